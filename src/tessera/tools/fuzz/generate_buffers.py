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
    axes = buffer_axes(scope, name, shape, picks=0.3)
    return None if axes is None else tree.ReadPart(name, axes, dtype)


def buffer_axes(
    scope: Scope, name: str, shape: Shape, picks: float, write: bool = False
) -> tuple[tree.Axis, ...] | None:
    """Draw an index that takes a tile of a shape of a buffer; None when the buffer has none.

    A stage whose number is known when the program is compiled has to exist.

    Args:
        scope: where it is used.
        name: the buffer.
        shape: the shape wanted.
        picks: probability of index tiles.
        write: whether it is stored to.
    """
    type_ = scope.buffers[name]
    axes = Access(scope, buffer_region(name, type_), write).axes(shape, picks)
    if axes is None or not isinstance(axes[0], tree.At) or len(type_.shape) == 1:
        return axes
    index, stages = axes[0].index, type_.shape[0]
    if isinstance(index, tree.Number):
        return (tree.At(tree.Number(int(index.value) % stages)), *axes[1:])
    names = {part.name for part in tree.walk(index) if isinstance(part, tree.Name)}
    if not names <= scope.unrolled | scope.dims:
        return axes
    return (tree.At(tree.Apply("mod", (index, tree.Number(stages)))), *axes[1:])
