"""Draws in which ways shared buffers are written: whole or part by part; and products of what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_access import Access
from tessera.tools.fuzz.generate_expressions import Expressions
from tessera.tools.fuzz.generate_scope import Scope
from tessera.tools.fuzz.types import OPERANDS, Type, accumulator

Storing = Callable[[Scope, tree.Expr], list[tree.Stmt]]
"""Stores a tile to a tensor, where one takes it."""

_ROWS, _TERMS, _COLUMNS = (8, 12, 16, 20, 32), (5, 8, 12, 16, 17, 20, 24, 32, 40), (8, 12, 16, 24)
"""Sizes of products of buffers, whose terms are padded where instructions take more."""


def filled(scope: Scope, name: str, type_: Type) -> list[tree.Stmt]:
    """Write a new buffer whole, by stages or by halves."""
    dice, (count, *rest) = scope.dice, type_.shape
    if rest and count <= 8 and dice.chance(0.15):
        return _by_stages(scope, name, type_)
    if name not in scope.swizzled and dice.chance(0.15):
        return _by_parts(scope, name, type_)
    return fill(scope, name, type_)


def _by_stages(scope: Scope, name: str, type_: Type) -> list[tree.Stmt]:
    count, *rest = type_.shape
    draw = Expressions(_beside(scope, name)).draw
    values = [draw(type_.dtype, tuple(rest), 2) for _ in range(count)]
    return [*(tree.StoreShared(name, v, tree.Number(k)) for k, v in enumerate(values)), tree.Barrier()]


def _by_parts(scope: Scope, name: str, type_: Type) -> list[tree.Stmt]:
    """Write a buffer in two parts along a dimension, or element by element along its first one."""
    dice, shape, made = scope.dice, type_.shape, list[tree.Stmt]()
    draw = Expressions(_beside(scope, name)).draw
    axis = dice.pick([axis for axis, size in enumerate(shape) if size > 1] or [0])
    whole = [tree.Span(None, size) for size in shape]
    if shape[axis] == 1 or dice.chance(0.3):
        places = tree.Pick(_backwards(shape[0]) if dice.chance(0.5) else tree.Arange(0, shape[0], "i32"))
        value = draw(type_.dtype, shape, 2)
        return [tree.StorePart(name, (places, *whole[1:]), type_.dtype, value), tree.Barrier()]
    cut = dice.between(1, shape[axis] - 1)
    for start, end in dice.shuffled([(0, cut), (cut, shape[axis])]):
        spans = [*whole[:axis], tree.Span(tree.Number(start), end - start), *whole[axis + 1 :]]
        value = draw(type_.dtype, tree.index_shape(tuple(spans)), 2)
        made.append(tree.StorePart(name, tuple(spans), type_.dtype, value))
    return [*made, tree.Barrier()]


def _backwards(count: int) -> tree.Expr:
    return tree.Apply("sub", (tree.Full((count,), tree.Number(count - 1), "i32"), tree.Arange(0, count, "i32")))


def _beside(scope: Scope, name: str) -> Scope:
    """Return a scope in which a buffer is not read."""
    return replace(scope, buffers={n: t for n, t in scope.buffers.items() if n != name})


def multiplied(scope: Scope, store: Storing) -> list[tree.Stmt]:
    """Multiply shared buffers that were written in some way each, most of them part by part, or one with a tile."""
    dice = scope.dice
    known = [dtype for dtype in scope.palette.dtypes if dtype in OPERANDS]
    operand = dice.pick(known) if known and dice.chance(0.5) else dice.pick(("f32", "f16", "bf16", "i8"))
    rows, terms, columns = (dice.pick(sizes) for sizes in (_ROWS, _TERMS, _COLUMNS))
    made: list[tree.Stmt] = []
    sides = [_side(scope, Type(operand, shape), made) for shape in ((rows, terms), (terms, columns))]
    start = tree.Full((rows, columns), tree.Number(dice.between(0, 1)), accumulator(operand))
    total = tree.Name(scope.fresh(), start.type)
    scope.names[total.name] = start.type
    return [*made, tree.Assign((total.name,), (tree.Mma(sides[0], sides[1], start),)), *store(scope, total)]


def _side(scope: Scope, type_: Type, made: list[tree.Stmt]) -> tree.Expr:
    """Return an operand: a buffer that is allocated and written before, as it is or transposed, or a tile."""
    dice, name, turned = scope.dice, scope.fresh("buffer"), scope.dice.chance(0.25)
    if dice.chance(0.2):
        return Expressions(scope).draw(type_.dtype, type_.shape, 1)
    own = Type(type_.dtype, type_.shape[::-1]) if turned else type_
    made.append(tree.AllocShared(name, own.shape, own.dtype))
    made += _by_parts(scope, name, own) if dice.chance(0.6) else filled(scope, name, own)
    scope.buffers[name] = own
    return tree.ReadShared(name, type_, transposed=turned)


def fill(scope: Scope, name: str, type_: Type) -> list[tree.Stmt]:
    """Write a buffer by a store or an asynchronous copy, and make it visible."""
    dice = scope.dice
    regions = [r for r in scope.regions.values() if r.readable and r.tensor.dtype == type_.dtype]
    if regions and dice.chance(0.6):
        region = dice.pick(regions)
        axes = Access(scope, region).axes(type_.shape, picks=0.0)
        if axes is not None and not any(isinstance(axis, tree.NewAxis) for axis in axes):
            copy = tree.CopyAsync(name, region.tensor.name, axes, type_.dtype)
            if dice.chance(0.3):
                return [copy, tree.Barrier()]
            return [copy, tree.Commit(), tree.Wait(0), tree.Barrier()]
    inner = replace(scope, buffers={n: t for n, t in scope.buffers.items() if n != name})
    value = Expressions(inner).draw(type_.dtype, type_.shape, 2)
    return [tree.StoreShared(name, value), tree.Barrier()]
