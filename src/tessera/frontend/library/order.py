"""Sorting networks over one dimension, whose elements are integers that are in the order wanted."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function


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
