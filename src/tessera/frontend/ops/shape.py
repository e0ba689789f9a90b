"""Compiles shape changes."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any, cast

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.access import view_shape
from tessera.frontend.builder import Builder
from tessera.frontend.convert import (
    apply,
    broadcast_to,
    cast_to,
    common_element,
    constant,
    default_element,
    element_in_tiles,
    operand,
    reshape_to,
    static_int,
    static_shape,
    to_ssa,
    to_tile,
)
from tessera.frontend.parts import part
from tessera.frontend.registry import attribute, compiles
from tessera.frontend.values import AnyView, Scalar, Shared, SharedPart, TensorValue, Tile, Value, View, show
from tessera.ir.tile.elementwise import ArangeOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import SharedTransposeOp
from tessera.ir.tile.types import describe
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


@compiles(tile.reshape)
def _reshape(b: Builder, x: Any, shape: Any) -> Tile:
    source = to_tile(b, x, "reshape")
    parts = cast(tuple[Any, ...], shape) if isinstance(shape, tuple) else (shape,)
    sizes = [static_int(b, part, "reshape: a size") for part in parts]
    total = prod(source.shape)
    if sizes.count(-1) == 1:
        rest = prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = total // rest if rest > 0 else 0
    if not sizes:
        raise TypeMismatchError(
            "reshape: () is no shape of a tile", code="shape-mismatch", help="take an element, a scalar: x[0]"
        )
    if min(sizes) < 1 or prod(sizes) != total:
        raise TypeMismatchError(
            f"reshape: {describe(source.type)} has {total} elements, {tuple(sizes)} has {prod(sizes)}",
            code="shape-mismatch",
            help="keep the number of elements; one size may be -1",
        )
    return Tile(reshape_to(b, source.ssa, sizes), source.policy)


@compiles(tile.transpose)
def transpose(b: Builder, x: Any, perm: Any) -> Tile | Shared:
    """Return a tile or a view of a shared buffer with permuted dimensions."""
    source: Value = x if isinstance(x, Shared) else to_tile(b, x, "transpose")
    rank = len(source.shape)
    if perm is None:
        if rank < 2:
            raise TypeMismatchError(
                f"transpose: {describe(source.type)} has one dimension",
                code="rank-mismatch",
                help="add a dimension first: x[:, None]",
            )
        order = (*range(rank - 2), rank - 1, rank - 2)
    else:
        parts = cast(tuple[Any, ...], perm) if isinstance(perm, tuple) else (perm,)
        axes = [static_int(b, part, "transpose: an axis") for part in parts]
        order = tuple(axis + rank if -rank <= axis < 0 else axis for axis in axes)
    if sorted(order) != list(range(rank)):
        raise TypeMismatchError(
            f"transpose: {order} is not a permutation of the dimensions of {describe(source.type)}",
            code="bad-axis",
            help=f"name each of {tuple(range(rank))} once",
        )
    if isinstance(source, Shared):
        return Shared(b.emit(SharedTransposeOp(source.ssa, order)).result, source.policy)
    return Tile(b.emit(TransposeOp(source.ssa, order)).result, source.policy)


@compiles(tile.broadcast_to)
def _broadcast_to(b: Builder, x: Any, shape: Any) -> Tile:
    ready = operand(b, x, "broadcast_to")
    ssa = ready.ssa if isinstance(ready, Value) else constant(b, ready, default_element(ready))
    return Tile(broadcast_to(b, ssa, static_shape(b, shape, "broadcast_to"), "broadcast_to"))


@compiles(tile.expand_dims)
def _expand_dims(b: Builder, x: Any, axis: Any) -> Tile:
    source = to_tile(b, x, "expand_dims")
    parts = cast(tuple[Any, ...], axis) if isinstance(axis, tuple) else (axis,)
    rank = len(source.shape) + len(parts)
    places = [static_int(b, part, "expand_dims: an axis") for part in parts]
    wrapped = {place % rank for place in places if -rank <= place < rank}
    if len(wrapped) != len(places):
        raise TypeMismatchError(
            f"expand_dims: axis {axis} of a result with {rank} dimensions",
            code="bad-axis",
            help=f"positions are {-rank} to {rank - 1}, each once",
        )
    sizes = iter(source.shape)
    return Tile(reshape_to(b, source.ssa, [1 if i in wrapped else next(sizes) for i in range(rank)]), source.policy)


@compiles(tile.stack)
def _stack(b: Builder, parts: Any, axis: Any) -> Tile:
    numbers = _numbers(b, parts, "stack")
    if numbers:
        _position(b, axis, 1, "stack")
        return numbers
    tiles = _alike(b, parts, "stack")
    rank = len(tiles[0].shape) + 1
    return _side_by_side(b, tiles, _position(b, axis, rank, "stack"))


@compiles(tile.join)
def _join(b: Builder, first: Any, second: Any) -> Tile:
    numbers = _numbers(b, (first, second), "join")
    if numbers:
        return numbers
    tiles = _alike(b, (first, second), "join")
    return _side_by_side(b, tiles, len(tiles[0].shape))


@compiles(tile.concatenate)
def _concatenate(b: Builder, parts: Any, axis: Any) -> Tile:
    tiles = _tiles(b, parts, "concatenate")
    place = _position(b, axis, len(tiles[0].shape), "concatenate")
    if any(_beside(each, place) != _beside(tiles[0], place) for each in tiles):
        raise TypeMismatchError(
            f"concatenate: {_listed(tiles)} differ along other dimensions than {place}",
            code="shape-mismatch",
            help=f"give tiles of as many dimensions, and of one size along all but dimension {place}",
        )
    tiles = _of_one_dtype(b, tiles)
    if any(each.shape != tiles[0].shape for each in tiles):
        return _one_after_the_other(b, tiles, place)
    shape = list(tiles[0].shape)
    shape[place] *= len(tiles)
    return Tile(reshape_to(b, _side_by_side(b, tiles, place).ssa, shape))


def _beside(given: Tile, axis: int) -> tuple[int, ...]:
    """Return the sizes along all dimensions but one, which counts as 0."""
    return tuple(0 if number == axis else size for number, size in enumerate(given.shape))


def _one_after_the_other(b: Builder, tiles: list[Tile], axis: int) -> Tile:
    """Return tiles of several sizes along a dimension: each is moved to its place, and those before it stay."""
    ends = list(accumulate(each.shape[axis] for each in tiles))
    shape, ones = list(tiles[0].shape), [1] * len(tiles[0].shape)
    shape[axis] = ones[axis] = ends[-1]
    places = Tile(reshape_to(b, b.emit(ArangeOp(ends[-1], element_type(dtypes.i32))).result, ones))
    moved = [_moved(b, each, axis, each.shape[axis] - end, shape) for each, end in zip(tiles, ends, strict=True)]
    result = moved[-1]
    for each, end in reversed(list(zip(moved[:-1], ends[:-1], strict=True))):
        result = cast(Tile, apply(b, "select", apply(b, "lt", places, end), each, result))
    return result


def _moved(b: Builder, given: Tile, axis: int, start: int, shape: list[int]) -> Tile:
    """Return a tile of a larger shape, whose first place along a dimension is `start` of the given tile."""
    return part(b, given, [start if number == axis else 0 for number in range(len(shape))], shape)


def _position(b: Builder, axis: Any, rank: int, what: str) -> int:
    known = static_int(b, axis, f"{what}: the axis")
    if not -rank <= known < rank:
        raise TypeMismatchError(
            f"{what}: there is no axis {known} of {rank}", code="bad-axis", help=f"axes are {-rank} to {rank - 1}"
        )
    return known % rank


def _alike(b: Builder, parts: Any, what: str) -> list[Tile]:
    """Return tiles of one shape, converted to one dtype."""
    tiles = _tiles(b, parts, what)
    if any(each.shape != tiles[0].shape for each in tiles):
        raise TypeMismatchError(
            f"{what}: {_listed(tiles)} have several shapes",
            code="shape-mismatch",
            help="give tiles of one shape; ts.tile.concatenate takes several sizes along its dimension",
        )
    return _of_one_dtype(b, tiles)


def _numbers(b: Builder, parts: Any, what: str) -> Tile | None:
    """Return the tile of scalars and Python numbers, None where there is anything else among them."""
    if not isinstance(parts, tuple) or not parts:
        return None
    ready = [operand(b, part, what) for part in cast(tuple[Any, ...], parts)]
    if any(isinstance(part, Tile) for part in ready):
        return None
    known = not any(isinstance(part, Value) for part in ready)
    element = element_in_tiles(ready) if known else common_element(ready)
    element = element_type(dtypes.i64) if element == index else element
    places = Tile(b.emit(ArangeOp(len(ready), element_type(dtypes.i32))).result)
    result = Tile(broadcast_to(b, to_ssa(b, ready[-1], element), (len(ready),)))
    for number in reversed(range(len(ready) - 1)):
        part = Scalar(to_ssa(b, ready[number], element))
        result = cast(Tile, apply(b, "select", apply(b, "eq", places, number), part, result))
    return result


def _tiles(b: Builder, parts: Any, what: str) -> list[Tile]:
    """Return the tiles of a tuple.

    Raises:
        TypeMismatchError: `bad-argument` for anything else.
    """
    if not isinstance(parts, tuple) or not parts:
        raise TypeMismatchError(
            f"{what}: {show(parts)} is no tuple of tiles", code="bad-argument", help=f"ts.tile.{what}((a, b), axis=0)"
        )
    return [to_tile(b, each, what) for each in cast(tuple[Any, ...], parts)]


def _listed(tiles: list[Tile]) -> str:
    return ", ".join(describe(each.type) for each in tiles)


def _of_one_dtype(b: Builder, tiles: list[Tile]) -> list[Tile]:
    element = common_element(tiles)
    return [Tile(cast_to(b, each.ssa, element)) for each in tiles]


def _side_by_side(b: Builder, tiles: list[Tile], axis: int) -> Tile:
    """Return tiles along a new dimension: where it is `i`, the elements of tile `i`."""
    shape = list(tiles[0].shape)
    shape.insert(axis, 1)
    ones = [1] * len(shape)
    ones[axis] = len(tiles)
    numbers = b.emit(ArangeOp(len(tiles), element_type(dtypes.i32))).result
    which = Tile(reshape_to(b, numbers, ones))
    parts = [Tile(reshape_to(b, each.ssa, shape)) for each in tiles]
    result = parts[-1]
    for number in reversed(range(len(parts) - 1)):
        result = cast(Tile, apply(b, "select", apply(b, "eq", which, number), parts[number], result))
    return result


@attribute(Tile, "T")
@attribute(Shared, "T")
def _transposed(b: Builder, owner: Any) -> Tile | Shared:
    return transpose(b, owner, None)


@attribute(TensorValue, "T")
def _tensor_transposed(b: Builder, owner: TensorValue) -> Any:
    name = owner.param.name
    raise LanguageError(
        f"tensor {name} has no .T",
        code="unknown-attribute",
        help=f"transpose the slice: {name}[n:n+64, k:k+64].T",
    )


@attribute(Tile, "shape")
@attribute(Shared, "shape")
@attribute(Scalar, "shape")
def _shape(b: Builder, owner: Value) -> tuple[int, ...]:
    return owner.shape


@attribute(View, "shape")
@attribute(SharedPart, "shape")
def _view_shape(b: Builder, owner: AnyView) -> tuple[int, ...]:
    return view_shape(owner)


@attribute(TensorValue, "shape")
def _tensor_shape(b: Builder, owner: TensorValue) -> tuple[Any, ...]:
    return tuple(b.axis_size(owner, axis) for axis in range(owner.rank))


@attribute(TensorValue, "dtype")
def _tensor_dtype(b: Builder, owner: TensorValue) -> DType:
    return owner.dtype
