"""Draws what is read of shared buffers in part."""

from __future__ import annotations

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_access import Access
from tessera.tools.fuzz.generate_scope import Region, Scope
from tessera.tools.fuzz.types import Shape, Type


def buffer_region(name: str, type_: Type) -> Region:
    """Return a buffer as something that parts are drawn of like those of a tensor."""
    rank = len(type_.shape)
    layout = tree.Layout(tuple(range(rank)), (1,) * rank, 0)
    return Region(
        tree.Tensor(name, type_.shape, type_.dtype, type_.shape, tree.Contents("small", 0, 1), layout), "read"
    )


def buffer_part(scope: Scope, dtype: str, shape: Shape) -> tree.Expr | None:
    """Draw a part of a buffer of a dtype that has a shape; None where none has."""
    names = [name for name, type_ in scope.buffers.items() if type_.dtype == dtype and name not in scope.swizzled]
    if not names:
        return None
    name = scope.dice.pick(names)
    axes = Access(scope, buffer_region(name, scope.buffers[name])).axes(shape, picks=0.3)
    return None if axes is None else tree.ReadPart(name, axes, dtype)
