"""Compiles parts of tiles: all are boxes with a step, or elements at an index tile."""

from __future__ import annotations

import math
from math import prod
from typing import Any, cast

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import (
    apply,
    axis_of,
    broadcast_shapes,
    broadcast_to,
    may_be_far,
    operand,
    reshape_to,
    static_int,
    to_index,
    to_ssa,
    to_tile,
)
from tessera.frontend.parts import part
from tessera.frontend.registry import compiles
from tessera.frontend.values import Scalar, Tile, show, wrap
from tessera.ir.tile.parts import TakeOp
from tessera.ir.tile.types import describe, element_of, shape_of


def _axes(b: Builder, axis: Any, source: Tile, what: str) -> list[int]:
    parts = cast(tuple[Any, ...], axis) if isinstance(axis, tuple) else (axis,)
    found = [axis_of(b, each, source, what) for each in parts]
    if len(set(found)) != len(found):
        raise TypeMismatchError(
            f"{what}: {show(axis)} names a dimension twice", code="bad-axis", help="give each dimension once"
        )
    return found


@compiles(tile.flip)
def _flip(b: Builder, x: Any, axis: Any) -> Tile:
    source = to_tile(b, x, "flip")
    axes = range(len(source.shape)) if axis is None else _axes(b, axis, source, "flip")
    starts = [size - 1 if number in axes else 0 for number, size in enumerate(source.shape)]
    steps = [-1 if number in axes else 1 for number in range(len(source.shape))]
    return part(b, source, starts, source.shape, steps=steps)


@compiles(tile.roll)
def _roll(b: Builder, x: Any, shift: Any, axis: Any) -> Tile:
    source = to_tile(b, x, "roll")
    if axis is None:
        flat = Tile(reshape_to(b, source.ssa, [prod(source.shape)]), source.policy)
        return Tile(reshape_to(b, _roll(b, flat, shift, 0).ssa, source.shape), source.policy)
    axes = _axes(b, axis, source, "roll")
    shifts = cast(tuple[Any, ...], shift) if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise TypeMismatchError(
            f"roll: {len(shifts)} shifts for {len(axes)} dimensions",
            code="bad-argument",
            help="give one shift, or one for each dimension",
        )
    starts: list[Any] = [0] * len(source.shape)
    for number, by in zip(axes, shifts, strict=True):
        starts[number] = _back(b, by, source.shape[number])
    return part(b, source, starts, source.shape, wrap=axes)


def _back(b: Builder, shift: Any, size: int) -> Any:
    """Return the place whose element comes first."""
    if isinstance(shift, int) and not isinstance(shift, bool):
        return -shift % size
    what = "roll: the shift"
    number = shift if may_be_far(shift) else Scalar(to_index(b, shift, what))
    by = to_index(b, apply(b, "mod", number, size), what)  # no shift wraps around
    return apply(b, "sub", size, Scalar(by)).ssa


@compiles(tile.split)
def _split(b: Builder, x: Any, parts: Any, axis: Any) -> tuple[Tile, ...]:
    source = to_tile(b, x, "split")
    number, count = axis_of(b, axis, source, "split"), static_int(b, parts, "split: the number of parts")
    size = source.shape[number]
    if count < 1 or size % count:
        raise TypeMismatchError(
            f"split: {describe(source.type)} has no {count} equal parts along dimension {number}, of size {size}",
            code="bad-argument",
            help="give a number that divides the size, or take slices: x[0:3], x[3:8]",
        )
    return tuple(_piece(b, source, number, at, size // count) for at in range(0, size, size // count))


def _piece(b: Builder, source: Tile, axis: int, start: int, size: int) -> Tile:
    starts, shape = [0] * len(source.shape), list(source.shape)
    starts[axis], shape[axis] = start, size
    return part(b, source, starts, shape)


@compiles(tile.unstack)
def _unstack(b: Builder, x: Any, axis: Any) -> tuple[Tile, ...]:
    source = to_tile(b, x, "unstack")
    number = axis_of(b, axis, source, "unstack")
    rest = [*source.shape[:number], *source.shape[number + 1 :]]
    if not rest:
        raise TypeMismatchError(
            f"unstack: {describe(source.type)} has one dimension",
            code="rank-mismatch",
            help="take its elements: x[0], x[1]",
        )
    pieces = [_piece(b, source, number, at, 1) for at in range(source.shape[number])]
    return tuple(Tile(reshape_to(b, piece.ssa, rest), source.policy) for piece in pieces)


@compiles(tile.take)
def _take(b: Builder, x: Any, index: Any, axis: Any, fill: Any) -> Tile | Scalar:
    source, picked = to_tile(b, x, "take"), _index(b, index, "take")
    if axis is None:
        source, axis = Tile(reshape_to(b, source.ssa, [prod(source.shape)]), source.policy), 0
    number = axis_of(b, axis, source, "take")
    outer, inner = source.shape[:number], source.shape[number + 1 :]
    count = prod(picked.shape)
    along = (*outer, count, *inner)
    if picked.shape:
        line = reshape_to(b, picked.ssa, (*(1 for _ in outer), count, *(1 for _ in inner)))
    else:
        line = picked.ssa
    found = _taken(b, source, broadcast_to(b, line, along), number, fill)
    shape = (*outer, *picked.shape, *inner)
    if shape:
        return Tile(reshape_to(b, found.ssa, shape), source.policy)
    return cast(Scalar, wrap(part(b, found, [0], []).ssa, source.policy))


@compiles(tile.take_along_axis)
def _take_along_axis(b: Builder, x: Any, index: Any, axis: Any, fill: Any) -> Tile:
    what = "take_along_axis"
    source, picked = to_tile(b, x, what), _index(b, index, what)
    if len(picked.shape) != len(source.shape):
        raise TypeMismatchError(
            f"{what}: {describe(source.type)} is indexed by {show(picked)}",
            code="rank-mismatch",
            help="give an index of as many dimensions, or use ts.tile.take",
        )
    number = axis_of(b, axis, source, what)
    alone = [(*shape[:number], 1, *shape[number + 1 :]) for shape in (source.shape, picked.shape)]
    others = broadcast_shapes(alone, what, (source, picked))
    wide, along = list(others), list(others)
    wide[number], along[number] = source.shape[number], picked.shape[number]
    source = Tile(broadcast_to(b, source.ssa, tuple(wide)), source.policy)
    return _taken(b, source, broadcast_to(b, picked.ssa, tuple(along)), number, fill)


def _index(b: Builder, index: Any, what: str) -> Tile | Scalar:
    """Return integers to pick elements by.

    Raises:
        TypeMismatchError: `bad-index` for anything else.
    """
    ready = operand(b, index, f"{what}: the index")
    if not isinstance(ready, Tile | Scalar):
        return Scalar(to_index(b, ready, f"{what}: the index"))
    if not ready.dtype.is_int:
        raise TypeMismatchError(
            f"{what}: the index is {show(ready)}, not integer",
            code="bad-index",
            help="keep elements where a condition holds with ts.tile.where"
            if ready.dtype.kind == "bool"
            else "cast it to ts.i32",
        )
    return ready


def _taken(b: Builder, source: Tile, index: Any, axis: int, fill: Any) -> Tile:
    """Return elements of a tile at an index of its shape, `fill` where it is outside."""
    taken = Tile(b.emit(TakeOp(source.ssa, index, axis)).result, source.policy)
    if fill is None or (isinstance(fill, int | float) and fill == 0 and math.copysign(1, fill) > 0):
        return taken
    value = wrap(to_ssa(b, operand(b, fill, "fill"), element_of(source.type)))
    if shape_of(value.type):
        raise TypeMismatchError("fill is a tile, not a number", code="not-a-value", help="use ts.tile.where afterwards")
    inside = apply(b, "ge", Tile(index), 0)
    limit = source.shape[axis]
    if limit <= _most(Tile(index)):
        inside = apply(b, "and", inside, apply(b, "lt", Tile(index), limit))
    return Tile(apply(b, "select", inside, taken, value).ssa, source.policy)


def _most(index: Tile) -> int:
    """Return the largest number that an index can be."""
    return (1 << index.dtype.bits - (index.dtype.kind == "int")) - 1
