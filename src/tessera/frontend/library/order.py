"""Elements as integers that are in the order wanted, alone and with their places."""

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
def turned(keys: Any) -> Any:
    """Return keys in the opposite order."""
    return ~keys


@function
def with_places(keys: Any, places: Any, word: Any, low: Any, signed: Any, sign: Any) -> Any:
    """Return words with keys in their upper bits and places in the `low` lower ones, in the order of such pairs.

    Unsigned keys that fill the upper bits become `signed`, whose highest bit is `sign`: words have a sign.
    """
    upper = keys if signed is None else tile.bitcast(keys ^ (1 << sign), signed)
    return (tile.cast(upper, word) << low) | tile.cast(places, word)


@function
def places_of(words: Any, low: Any) -> Any:
    """Return the places that `with_places` has put into words."""
    return tile.cast(words & ((1 << low) - 1), dtypes.i32)


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
def in_rows(x: Any, order: Any, size: Any) -> Any:
    """Return a tile's elements as rows along the last dimension of a new order."""
    return tile.reshape(tile.transpose(x, order) if len(order) > 1 else x, (-1, size))


@function
def filled_up(rows: Any, size: Any) -> Any:
    """Return rows with what is never wanted behind their first elements."""
    return tile.where(tile.arange(rows.shape[1]) < size, rows, -(1 << 31))


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
def runs_of(words: Any, places: Any, last: Any, width: Any) -> Any:
    """Return words with their places, cut to runs of `width`."""
    return tile.reshape(packed(words, places, last), (-1, width))


@function
def larger_half(runs: Any, width: Any) -> Any:
    """Return the largest elements of each two runs that fall; what is returned falls and rises."""
    pairs = tile.reshape(runs, (-1, 2, width))
    return tile.max(tile.where(tile.arange(2)[:, None] == 1, tile.exchange(pairs, width - 1), pairs), 1)
