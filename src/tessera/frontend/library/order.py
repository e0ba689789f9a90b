"""Sorting networks over one dimension, whose elements are integers that are in the order wanted."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function
from tessera.numerics import dtypes


@function
def ordered(x: Any, bits: Any, flipped: Any, nan: Any) -> Any:
    """Return floats as signed integers in the same order, NaNs last: the lower bits of negative numbers are flipped."""
    word = tile.bitcast(tile.where(tile.isnan(x), nan, x), bits)
    return tile.where(word < 0, word ^ flipped, word)


@function
def without_sign_of_zero(x: Any) -> Any:
    """Return floats whose zeros are positive: they are equal, and their bits are then, too."""
    return tile.where(x == 0.0, 0.0, x)


@function
def unordered(word: Any, dtype: Any, flipped: Any) -> Any:
    """Return the floats that `ordered` has made integers of."""
    return tile.bitcast(tile.where(word < 0, word ^ flipped, word), dtype)


@function
def in_order(x: Any, at: Any, steps: Any, axis: Any, descending: Any) -> Any:
    """Return the elements in order: in each step the smaller of two goes to the lower place."""
    for bits, top in steps:
        other = tile.exchange(x, bits, axis)
        upper = (at & top) != (top if descending else 0)
        x = tile.where(upper, tile.maximum(x, other), tile.minimum(x, other))
    return x


@function
def places_in_order(x: Any, at: Any, steps: Any, axis: Any, descending: Any) -> Any:
    """Return where the elements in order come from; of equal ones the first comes first."""
    place = at
    for bits, top in steps:
        other, other_place = tile.exchange(x, bits, axis), tile.exchange(place, bits, axis)
        before = other > x if descending else other < x
        first = before | ((other == x) & (other_place < place))
        taken = first != ((at & top) != 0)
        x, place = tile.where(taken, other, x), tile.where(taken, other_place, place)
    return place


@function
def as_words(keys: Any, unsigned: Any, largest: Any) -> Any:
    """Return keys of 32 bits at most as i32, the largest of which are wanted."""
    word = tile.bitcast(keys ^ (1 << 31), dtypes.i32) if unsigned else tile.cast(keys, dtypes.i32)
    return word if largest else ~word


@function
def of_words(words: Any, unsigned: Any, largest: Any) -> Any:
    """Return the keys that `as_words` has made words of."""
    word = words if largest else ~words
    return tile.bitcast(word, dtypes.u32) ^ (1 << 31) if unsigned else word


@function
def packed(words: Any, places: Any, last: Any) -> Any:
    """Return words with their places, 0 to `last`: of equal ones the first counts as the largest."""
    return (tile.cast(words, dtypes.i64) << 32) | tile.cast(last - places, dtypes.i64)


@function
def unpacked(both: Any, last: Any) -> Any:
    """Return the words and the places that `packed` has put together."""
    return tile.cast(both >> 32, dtypes.i32), tile.cast(last - (both & 0xFFFFFFFF), dtypes.i32)


@function
def in_rows(x: Any, order: Any, size: Any, padded: Any) -> Any:
    """Return a tile's elements as rows along the last dimension of a new order, filled up by what is never wanted."""
    rows = tile.reshape(tile.transpose(x, order) if len(order) > 1 else x, (-1, size))
    return rows if padded == size else tile.take(rows, tile.arange(padded), 1, -(1 << 31))


@function
def as_before(rows: Any, count: Any, shape: Any, order: Any) -> Any:
    """Return the first elements of rows in the dimensions that `in_rows` has taken them from."""
    best = tile.reshape(rows[:, :count], shape)
    return tile.transpose(best, order) if len(order) > 1 else best


@function
def first_places(x: Any, count: Any, axis: Any, largest: Any) -> Any:
    """Return where the first elements in order come from."""
    return tile.take(tile.argsort(x, axis, largest), tile.arange(count), axis)


@function
def picked(x: Any, places: Any, axis: Any) -> Any:
    """Return the elements at places along a dimension."""
    return tile.take_along_axis(x, places, axis)


@function
def largest_of_groups(x: Any, group: Any) -> Any:
    """Return the largest of each `group` elements that follow one another in a row."""
    return tile.max(tile.reshape(x, (-1, x.shape[1] // group, group)), 2)


@function
def places_of_groups(numbers: Any, group: Any) -> Any:
    """Return where the elements of groups are in their rows."""
    return tile.reshape(numbers[:, :, None] * group + tile.arange(group), (-1, numbers.shape[1] * group))


@function
def largest_of(x: Any, width: Any, runs: Any, merges: Any, halvings: Any) -> Any:
    """Return the `width` largest elements of each row, the largest first.

    Runs of `width` are sorted. Of two such runs, one of them mirrored, the larger of each pair of elements are the
    largest of all; they rise and fall, so that a merge sorts them.
    """
    at = tile.arange(width)
    x = in_order(tile.reshape(x, (-1, width)), at, runs, 1, True)
    for _ in halvings:
        pairs = tile.reshape(x, (-1, 2, width))
        mirrored = tile.where(tile.arange(2)[:, None] == 1, tile.exchange(pairs, width - 1), pairs)
        x = in_order(tile.max(mirrored, 1), at, merges, 1, True)
    return x
