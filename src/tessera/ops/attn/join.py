"""Joins what attention gave for several parts of the keys."""

from __future__ import annotations

from math import prod
from typing import Any

import tessera as ts
from tessera.ops import arrays, rows
from tessera.ops.annotations import I64, Constant
from tessera.ops.attn.flash_kernels import INF, E, H, P, S, T, present

U = ts.dtype_var("U", ts.f64, ts.f32, ts.bf16, ts.f16)
K = ts.dims("K")
_MOST_PARTS = 32
"""Parts that are read at a time."""
_MOST_ELEMENTS = 256
"""Elements of a row that a program computes at most."""


@ts.kernel
def join_rows(
    parts: ts.Tensor[P, K, E, T],
    sums: ts.Tensor[P, K, S],
    sinks: ts.Tensor[H, S] | None,
    out: ts.Tensor[K, E, U],
    lse: ts.Tensor[K, S],
    queries: I64,
    acc: Constant,
    BP: Constant,
    BE: Constant,
):
    """Results of rows by those of parts of their keys, BP parts at a time, in one order."""
    for r, e in ts.tile.grid((K, 1), (E, BE)):
        sink = None if sinks is None else sinks[r // queries % H].to(acc)  # rows: queries, one head after the other
        tops = ts.tile.full((BP,), -INF, acc)
        for p in ts.tile.range(0, P, BP):
            tops = ts.tile.maximum(tops, ts.tile.load(sums[p : p + BP, r], fill=-INF).to(acc))
        top = ts.tile.max(tops)
        if sink is not None:
            top = ts.tile.maximum(top, sink)
        base = present(top, True)
        total = ts.tile.zeros((BP, BE), acc)
        whole = ts.tile.zeros((BP,), acc)
        for p in ts.tile.range(0, P, BP):
            weights = ts.tile.exp(ts.tile.load(sums[p : p + BP, r], fill=-INF).to(acc) - base)
            whole = whole + weights
            # What no key was seen for may hold anything.
            part = ts.tile.where((weights > 0.0)[:, None], parts[p : p + BP, r, e : e + BE].to(acc), 0.0)
            total = total + weights[:, None] * part
        sum_of = ts.tile.sum(whole) if sink is None else ts.tile.sum(whole) + ts.tile.exp(sink - base)
        out[r, e : e + BE] = ts.tile.sum(total, 0) / ts.tile.where(sum_of == 0.0, 1.0, sum_of)
        if e == 0:
            lse[r] = top + ts.tile.log(sum_of)


def join(parts: Any, sums: Any, sinks: Any, out: Any, lse: Any) -> None:
    """Compute results of rows by those of parts.

    Args:
        parts: `(P, rows, E)`.
        sums: `(P, rows)`.
        sinks: scores without a key `(H,)`, or None.
        out: results `(B, H, S, E)`, whose rows those of parts are in order.
        lse: `(B, H, S)`.
    """
    count, wide, held = prod(map(int, lse.shape)), int(out.shape[-1]), int(parts.shape[0])
    goals = out.reshape(count, wide), lse.reshape(count)
    blocks = {"BP": min(1 << max(held - 1, 0).bit_length(), _MOST_PARTS), "BE": min(wide, _MOST_ELEMENTS)}
    acc = rows.accumulator(arrays.dtype_of(lse))
    join_rows(parts, sums, sinks, *goals, int(lse.shape[-1]), acc=acc, **blocks)
    for goal, found in zip((out, lse), goals, strict=True):
        if arrays.start(goal, "out") != arrays.start(found, "out"):
            goal[...] = found.reshape(goal.shape)
