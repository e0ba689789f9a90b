"""Draws parts of tiles, and elements of tiles that index tiles pick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX, Scope
from tessera.tools.fuzz.types import Shape, bits, elements

if TYPE_CHECKING:
    from tessera.tools.fuzz.generate_expressions import Expressions


def part(draws: Expressions, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
    """Draw a part of a larger tile: along each dimension some elements, from one end or the other."""
    dice = draws.scope.dice
    if shape and dice.chance(0.25):
        return _piece(draws, dtype, shape, depth)
    sizes = list(shape)
    if len(sizes) < 3 and (not sizes or dice.chance(0.3)):
        sizes.insert(dice.between(0, len(sizes)), 0)
    steps = [dice.pick((1, 1, 1, 2, 3, -1, -1, -2)) if size else 1 for size in sizes]
    reach = [max(size - 1, 0) * abs(step) + 1 for size, step in zip(sizes, steps, strict=True)]
    wide = tuple(length if dice.chance(0.3) else length + dice.between(1, 8) for length in reach)
    if elements(wide) > draws.scope.palette.limit:
        return None
    starts = tuple(_start(draws.scope, *each) for each in zip(wide, reach, steps, strict=True))
    return tree.Part(draws.draw(dtype, wide, depth), starts, tuple(sizes), tuple(steps))


def _start(scope: Scope, size: int, reach: int, step: int) -> tree.Expr:
    """Return where a part starts: a number inside of the tile, or an index, which may be outside."""
    dice = scope.dice
    known = [name for name in scope.offsets if name not in scope.dims | scope.unrolled]
    first = dice.between(0, size - reach) + (reach - 1 if step < 0 else 0)
    if not known or dice.chance(0.55):
        return tree.Number(first)
    name = dice.pick(known)
    index, low = tree.Name(name, INDEX), scope.offsets[name][0]
    moved = first - low
    return tree.Apply("add" if moved > 0 else "sub", (index, tree.Number(abs(moved)))) if moved else index


def _piece(draws: Expressions, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
    """Draw one of equal parts."""
    dice, count = draws.scope.dice, draws.scope.dice.pick((2, 3, 4))
    axis, alone = dice.between(0, len(shape) - 1), len(shape) < 3 and dice.chance(0.5)
    part = (count,) if alone else (shape[axis] * count,)
    wide = (*shape[:axis], *part, *shape[axis + (not alone) :])
    if elements(wide) > draws.scope.palette.limit:
        return None
    return tree.Piece(draws.draw(dtype, wide, depth), count, axis, dice.between(0, count - 1), alone)


def moved(draws: Expressions, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
    """Draw a tile whose elements are reversed or moved round along dimensions."""
    dice, x = draws.scope.dice, draws.draw(dtype, shape, depth)
    axis = None if dice.chance(0.3) else dice.between(-len(shape), len(shape) - 1)
    if dice.chance(0.5):
        return tree.Flip(x, None if axis is None else (axis,), int(dice.chance(0.4)))
    shift: tree.Expr = tree.Number(dice.between(-9, 40))
    if draws.scope.offsets and dice.chance(0.4):
        shift = tree.Name(dice.pick(list(draws.scope.offsets)), INDEX)
    return tree.Roll(x, shift, axis)


def picked(draws: Expressions, dtype: str, shape: Shape, depth: int) -> tree.Expr | None:
    """Draw elements or slices of a tile that an index tile picks, some of them outside of it."""
    dice, kind = draws.scope.dice, draws.scope.dice.pick(("flat", "slices", "along"))
    ints = [each for each in draws.scope.palette.ints if bits(each) >= 16] or ["i32"]
    axis: int | None = dice.between(0, len(shape) - 1)
    size, picked = dice.pick(draws.scope.palette.sizes), (shape[axis],)
    wide = (*shape[:axis], size, *shape[axis + 1 :])
    if kind == "flat":
        axis, wide, picked = None, (size,), shape
    elif kind == "along":
        picked = shape
    if elements(wide) > draws.scope.palette.limit:
        return None
    index = draws.draw(dice.pick(ints), picked, 1)
    if dice.chance(0.7):
        index = tree.Apply("mod", (index, tree.Number(size)))
    fill = draws.number(dtype) if dtype != "bool" and dice.chance(0.3) else None
    given = fill if isinstance(fill, tree.Number) else None
    return tree.Take(draws.draw(dtype, wide, depth), index, axis, given, kind == "along")
