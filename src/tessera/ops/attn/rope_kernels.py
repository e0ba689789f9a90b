"""The kernel of the rotary embedding: angles are made or read once for several heads of queries and keys."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
C = ts.dtype_var("C", ts.f32, ts.f64)
I = ts.dtype_var("I", ts.i64, ts.i32)  # noqa: E741
B, H, K, S, D, R, P = ts.dims("B H K S D R P")


@ts.function
def turn(x: Any, y: Any, b: Any, h: Any, s: Any, cos: Any, sin: Any, interleaved: Any, copies: Any) -> Any:
    """Turn the pairs of one head, for a block of positions."""
    size, pairs = cos.shape
    if interleaved:
        both = x[b, h, s : s + size, 0 : 2 * pairs].to(cos.dtype).reshape(size, pairs, 2)
        first, second = ts.tile.unstack(both, 2)
        made = ts.tile.stack((first * cos - second * sin, second * cos + first * sin), 2)
        y[b, h, s : s + size, 0 : 2 * pairs] = made.reshape(size, 2 * pairs)
    else:
        first = x[b, h, s : s + size, 0:pairs].to(cos.dtype)
        second = x[b, h, s : s + size, pairs : 2 * pairs].to(cos.dtype)
        y[b, h, s : s + size, 0:pairs] = first * cos - second * sin
        y[b, h, s : s + size, pairs : 2 * pairs] = second * cos + first * sin
    if copies:
        y[b, h, s : s + size, 2 * pairs : D] = x[b, h, s : s + size, 2 * pairs : D]


@ts.kernel
def rotate(
    q: ts.Tensor[B, H, S, D, T],
    k: ts.Tensor[B, K, S, D, T] | None,
    positions: ts.Tensor[P, S, I] | None,
    cos: ts.Tensor[P, S, R, C] | None,
    sin: ts.Tensor[P, S, R, C] | None,
    out_q: ts.Tensor[B, H, S, D, T],
    out_k: ts.Tensor[B, K, S, D, T] | None,
    log_step: F64,
    direction: F64,
    pairs: Constant,
    interleaved: Constant,
    copies: Constant,
    acc: Constant,
    BS: Constant = 16,
    BH: Constant = 4,
):
    """Turn pairs by their positions' angles: a program turns BH heads of BS positions, heads of keys after the others.

    Angles are `position * 2**(-j * log_step)` for pair `j`, or those of tables. `direction` is 1 or -1.
    """
    heads = H if k is None else H + K
    for b, s, h in ts.tile.grid((B, 1), (S, BS), (heads, BH)):
        if cos is not None and sin is not None:
            row = min(b, P - 1)
            c = cos[row, s : s + BS, 0:pairs].to(acc)
            d = sin[row, s : s + BS, 0:pairs].to(acc) * direction.to(acc)
        else:
            frequency = ts.tile.exp2(ts.tile.arange(pairs).to(acc) * (-log_step).to(acc))
            if positions is not None:
                at = positions[min(b, P - 1), s : s + BS].to(acc)
            else:
                at = (s + ts.tile.arange(BS, dtype=ts.i64)).to(acc)
            angle = at[:, None] * frequency[None, :]
            c, d = ts.tile.cos(angle), ts.tile.sin(angle) * direction.to(acc)
        for i in ts.tile.range(h, min(h + BH, heads)):
            if i < H:
                turn(q, out_q, b, i, s, c, d, interleaved, copies)
            if k is not None:  # no case at run time where there are no keys
                if i >= H:
                    turn(k, out_k, b, i - H, s, c, d, interleaved, copies)
