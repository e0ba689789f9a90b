"""Compiles exchanges and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.calls import inline
from tessera.frontend.convert import axis_of, cast_to, places_along, reshape_to, static_int, to_tile
from tessera.frontend.library import order
from tessera.frontend.registry import compiles
from tessera.frontend.values import Tile
from tessera.ir.tile.elementwise import ConstantOp
from tessera.ir.tile.exchange import ExchangeOp, SortOp
from tessera.ir.tile.parts import PartOp
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


@compiles(tile.exchange)
def _exchange(b: Builder, x: Any, bits: Any, axis: Any) -> Any:
    source = to_tile(b, x, "exchange")
    where, known = axis_of(b, axis, source, "exchange"), static_int(b, bits, "exchange: bits")
    if known < 0:
        raise TypeMismatchError(
            f"exchange: bits {known} is negative",
            code="bad-argument",
            help="name the bits of an index, such as 1 for neighbours or 3 for groups of four turned round",
        )
    someone = 0 < known < 1 << (source.shape[where] - 1).bit_length()
    return Tile(b.emit(ExchangeOp(source.ssa, where, known)).result) if someone else source


@compiles(tile.sort)
def _sort(b: Builder, x: Any, axis: Any, descending: Any) -> Any:
    source = to_tile(b, x, "sort")
    where = axis_of(b, axis, source, "sort")
    (keys,) = _in_order(b, [_keys(b, source)], where, descending)
    return _of_keys(b, keys, source.dtype)


@compiles(tile.argsort)
def _argsort(b: Builder, x: Any, axis: Any, descending: Any) -> Any:
    source = to_tile(b, x, "argsort")
    where = axis_of(b, axis, source, "argsort")
    if source.dtype.is_float:
        source = inline(b, order.without_sign_of_zero.function, [source], {})
    keys, places = _keys(b, source), places_along(b, source.shape, where)
    if descending:
        keys = inline(b, order.turned.function, [keys], {})
    bits = keys.dtype.bits
    if bits > 32:
        return _in_order(b, [keys, places], where)[1]
    word, low = (dtypes.i32, 16) if bits <= 16 and source.shape[where] <= 1 << 16 else (dtypes.i64, 32)
    fills = keys.dtype.kind == "uint" and bits + low == word.bits
    signed = dtypes.BY_NAME[f"i{bits}"] if fills else None
    both = inline(b, order.with_places.function, [keys, places, word, low, signed, bits - 1], {})
    return inline(b, order.places_of.function, [*_in_order(b, [both], where), low], {})


def _in_order(
    b: Builder, tiles: Sequence[Tile], axis: int, descending: bool = False, merge: bool = False
) -> list[Tile]:
    """Return integers in order; with several tiles, tuples of them."""
    shape = tiles[0].shape
    if shape[axis] == 1:
        return list(tiles)
    # Neighbours are the elements of the last dimension.
    last = shape[: axis + 1] if prod(shape[axis + 1 :]) == 1 else shape
    sources = [reshape_to(b, each.ssa, last) for each in tiles]
    outputs = b.emit(SortOp(sources, axis, descending, merge)).outputs
    return [Tile(reshape_to(b, output, shape)) for output in outputs]


@compiles(tile.topk)
def _topk(b: Builder, x: Any, k: Any, axis: Any, largest: Any) -> Any:
    source = to_tile(b, x, "topk")
    where, up = axis_of(b, axis, source, "topk"), largest
    size, count = source.shape[where], static_int(b, k, "topk: k")
    if not 1 <= count <= size:
        raise TypeMismatchError(
            f"topk: {count} of {size} elements along axis {where}",
            code="bad-argument",
            help=f"take 1 to {size}",
        )
    by_place = source.dtype.storage.bits > 32
    return (_topk_by_places if by_place else _topk_packed)(b, source, count, where, up)


def _topk_by_places(b: Builder, source: Tile, count: int, axis: int, largest: bool) -> Any:
    """Sort all: what two words hold is compared as a pair."""
    places = inline(b, order.first_places.function, [source, count, axis, largest], {})
    return inline(b, order.picked.function, [source, places, axis], {}), places


def _topk_packed(b: Builder, source: Tile, count: int, axis: int, largest: bool) -> Any:
    """Order keys together with their places, which makes all of them different."""
    shape, size = source.shape, source.shape[axis]
    width, padded = 1 << (count - 1).bit_length(), 1 << (size - 1).bit_length()
    how = source.dtype.storage.name == "u32", largest
    floats = inline(b, order.without_sign_of_zero.function, [source], {}) if source.dtype.is_float else source
    words = inline(b, order.as_words.function, [_keys(b, floats), *how], {})
    others = tuple(i for i in range(len(shape)) if i != axis)
    rows = inline(b, order.in_rows.function, [words, (*others, axis), size], {})
    if padded > size:
        rows = inline(b, order.filled_up.function, [_longer(b, rows, padded), size], {})
    best = _largest(b, rows, width)
    back = tuple((*others, axis).index(i) for i in range(len(shape)))
    kept = inline(b, order.as_before.function, [best, count, (*(shape[i] for i in others), count), back], {})
    words, places = inline(b, order.unpacked.function, [kept, padded - 1], {})
    return _of_keys(b, inline(b, order.of_words.function, [words, *how], {}), source.dtype), places


def _largest(b: Builder, words: Tile, width: int) -> Tile:
    """Return the largest words of each row with their places, packed and in order.

    Runs of `width` are sorted. Of two such runs, one of them mirrored, the larger of each pair of elements are the
    largest of all; they fall and rise, so that a merge sorts them.

    Of long rows only elements of the best groups are looked at: what is one of the `width` largest is in one of the
    `width` groups whose largest elements are the largest, the first ones of equal groups.
    """
    size = words.shape[1]
    places, last = places_along(b, words.shape, 1), size - 1
    group = _group(size, width)
    if group > 1:
        maxima = inline(b, order.largest_of_groups.function, [words, group], {})
        _, numbers = inline(b, order.unpacked.function, [_largest(b, maxima, width), size // group - 1], {})
        places = inline(b, order.places_of_groups.function, [numbers, group], {})
        words = inline(b, order.picked.function, [words, places, 1], {})
    best = inline(b, order.runs_of.function, [words, places, last, width], {})
    (best,) = _in_order(b, [best], 1, True)
    for _ in range((words.shape[1] // width).bit_length() - 1):
        (best,) = _in_order(b, [inline(b, order.larger_half.function, [best, width], {})], 1, True, True)
    return best


def _longer(b: Builder, rows: Tile, size: int) -> Tile:
    """Return rows with zeros behind them."""
    zero = b.emit(ConstantOp(0, index)).result
    return Tile(b.emit(PartOp(rows.ssa, [zero, zero], (rows.shape[0], size))).result)


def _group(size: int, width: int) -> int:
    """Return how many elements of a row make a group, if it pays; otherwise 1."""
    share = size // width
    return 1 if share < 16 else 8 if share >= 64 else 4


def _word(dtype: DType) -> DType:
    """Return the signed integers that floats are compared as."""
    return {16: dtypes.i16, 32: dtypes.i32, 64: dtypes.i64}[dtype.bits]


def _keys(b: Builder, source: Tile) -> Tile:
    """Return integers in the order of the elements."""
    dtype = source.dtype.storage
    if dtype.kind == "bool":
        return Tile(cast_to(b, source.ssa, element_type(dtypes.u8)))
    if not dtype.is_float:
        return Tile(cast_to(b, source.ssa, element_type(dtype)))
    wide = dtype if dtype.bits >= 16 else dtypes.f16
    word = _word(wide)
    floats = Tile(cast_to(b, source.ssa, element_type(wide)))
    given = [floats, word, (1 << word.bits - 1) - 1, float("nan")]
    return inline(b, order.ordered.function, given, {})


def _of_keys(b: Builder, keys: Tile, dtype: DType) -> Tile:
    """Return the elements whose keys these are."""
    stored = dtype.storage
    if stored.is_float:
        wide = stored if stored.bits >= 16 else dtypes.f16
        words = Tile(cast_to(b, keys.ssa, element_type(_word(wide))))
        keys = inline(b, order.unordered.function, [words, wide, (1 << wide.bits - 1) - 1], {})
    return Tile(cast_to(b, keys.ssa, element_type(dtype)))
