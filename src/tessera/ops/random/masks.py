"""Which elements dropout keeps: one run of Philox for four of them."""

from __future__ import annotations

from typing import Any

import tessera as ts


@ts.function
def word_of(a: Any, b: Any, c: Any, d: Any, number: Any) -> Any:
    """Return the word of a number from 0 to 3."""
    return ts.tile.where(number < 2, ts.tile.where(number == 0, a, b), ts.tile.where(number == 2, c, d))


@ts.function
def words_of_fours(seed: Any, first: Any, count: Any) -> Any:
    """Return the random words of `count` elements from each of several on, all of these divisible by 4."""
    counters = (first // 4)[:, None] + ts.tile.arange(count // 4, dtype=ts.i64)[None, :]
    a, b, c, d = ts.tile.philox(seed, counters)
    number = ts.tile.arange(4)[None, None, :]
    words = word_of(a[:, :, None], b[:, :, None], c[:, :, None], d[:, :, None], number)
    return words.reshape((first.shape[0], count))


@ts.function
def words_of_each(seed: Any, first: Any, count: Any) -> Any:
    """Return the same words of elements from anywhere on."""
    numbers = first[:, None] + ts.tile.arange(count, dtype=ts.i64)[None, :]
    a, b, c, d = ts.tile.philox(seed, numbers // 4)
    return word_of(a, b, c, d, numbers % 4)


@ts.function
def dropped(block: Any, first: Any, p: Any, seed: Any, fours: Any) -> Any:
    """Return rows after dropout, each element with probability `p`, the others divided by that of being kept.

    Element `i` of the whole array has the word `i % 4` of Philox's counter `i // 4`.

    Args:
        block: `(R, C)`, of f32 or f64.
        first: `(R,)`, the numbers of the rows' first elements in the whole array.
        p: the probability, f32.
        seed: 64-bit key.
        fours: whether `C` and all of `first` are divisible by 4.
    """
    count = block.shape[1]
    words = words_of_fours(seed, first, count) if fours else words_of_each(seed, first, count)
    # The upper 24 bits are a number from 0 to 1, of which none is between this and p.
    least = ts.tile.ceil(p * 2.0**24).to(ts.u32)
    return ts.tile.where((words >> 8) >= least, block * (1.0 / (1.0 - p)).to(block.dtype), 0.0)
