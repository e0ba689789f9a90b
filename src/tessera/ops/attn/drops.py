"""Dropout of attention's weights: which of them are kept, by one run of Philox for four that a thread holds.

Queries and keys are taken in squares of 16 by 16. Four weights whose places are equal in the halves of their square,
eight apart, have the four words of one counter: a thread of a GPU holds these four among the results of its products,
whichever of queries and keys are the rows. A counter's words are the number of the key and that of the query, counted
through all heads, without the bit that says in which half they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts
from tessera.frontend.structure import ConstantField, Layout, ScalarField, TensorField
from tessera.ops.random.masks import word_of

SQUARE = 16
"""Queries, and keys, of a square."""
_HALF = SQUARE // 2


@ts.function
def counters(first: Any, n: Any, rows: Any, columns: Any, turned: Any) -> Any:
    """Return the counters of the squares of weights, `(rows / 16, 8, columns / 16, 8)`.

    Args:
        first: the first row of squares, counted through all heads.
        n: the first key.
        rows: queries of the weights, or keys where they are `turned`.
        columns: keys, or queries.
        turned: whether keys are rows.
    """
    row, key = (first * _HALF).to(ts.u32), (n // SQUARE * _HALF).to(ts.u32)
    start, other = (key, row) if turned else (row, key)
    down = (start + ts.tile.arange(rows // 2, dtype=ts.u32)).reshape(rows // SQUARE, _HALF)[:, :, None, None].to(ts.i64)
    across = (other + ts.tile.arange(columns // 2, dtype=ts.u32)).reshape(columns // SQUARE, _HALF).to(ts.i64)
    return across << 32 | down if turned else down << 32 | across


@ts.function
def keeps(self: Any, first: Any, n: Any, rows: Any, columns: Any, turned: Any) -> Any:
    """Return which weights are kept, `(rows, columns)`; the arguments are those of `counters`."""
    seed = self.seed[0] if self.has_seed else self.key
    a, b, c, d = ts.tile.philox(seed, counters(first, n, rows, columns, turned))
    halves = ts.tile.arange(2)
    i, j = halves[None, :, None, None, None, None], halves[None, None, None, None, :, None]
    number = i + 2 * j if turned else 2 * i + j
    words = word_of(spread(a), spread(b), spread(c), spread(d), number).reshape(rows, columns)
    return (words >> 8) >= ts.tile.ceil(self.p * 2.0**24).to(ts.u32)


@ts.function
def spread(word: Any) -> Any:
    """Return words of squares with dimensions for the halves of these."""
    return word[:, None, :, :, None, :]


@ts.function
def growth(drop: Any) -> Any:
    """Return what weights that are kept are multiplied by."""
    return ts.tile.where(drop.p < 1.0, 1.0 / (1.0 - drop.p), 0.0)


def _layout_of(has_seed: bool) -> Layout:
    fields = (("has_seed", ConstantField(has_seed)), ("p", ScalarField(ts.f32)))
    last = ("seed", TensorField((1,), ts.i64)) if has_seed else ("key", ScalarField(ts.i64))
    return Layout.of("dropout", keeps, (), (*fields, last))


BY_TENSOR, BY_NUMBER = _layout_of(True), _layout_of(False)
"""Dropout whose seed is read on the device, and one whose seed is a number. Their values are p and the seed."""


def factors(p: float, seed: int, shape: tuple[int, ...], packed: tuple[int, int] | None = None) -> Any:
    """Return what weights `(B, H, S, N)` are multiplied by in NumPy and float64: zeros and `1 / (1 - p)`.

    Args:
        p: the probability of a zero.
        seed: as a signed 64-bit number.
        shape: of the weights.
        packed: of a packed sequence its first row of squares, and how many rows of squares a head has.
    """
    from tessera.interp.random import philox4x32

    batch, heads, queries, keys = shape
    first, rows = packed or (0, -(-queries // SQUARE))
    b, h, q, k = np.ogrid[:batch, :heads, :queries, :keys]
    row = (((b * heads + h) * rows + first + q // SQUARE) * _HALF + q % _HALF) & 0xFFFFFFFF
    key, zero = k // SQUARE * _HALF + k % _HALF, np.zeros(1, np.int64)
    words = np.broadcast_arrays(*philox4x32((key, row, zero, zero), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)))
    number = np.broadcast_to(q // _HALF % 2 * 2 + k // _HALF % 2, shape)
    uniform = (np.choose(number, words) >> 8).astype(np.float64) * 2.0**-24
    rounded = float(np.float32(p))
    return (uniform >= rounded) / (1 - rounded) if rounded < 1 else np.zeros(shape)
