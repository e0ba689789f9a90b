"""Kernels of attention to keys and values in pages, and of what fills them."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.attn.flash_kernels import INF, B, D, E, G, P, R, S, T, only_keys, power, present, scaled

C = ts.dtype_var("C", ts.f32, ts.bf16, ts.f16, ts.fp8_e4m3, ts.fp8_e5m2)
PAGES, SLOTS, MOST, K, X = ts.dims("PAGES SLOTS MOST K X")


@ts.function
def places_of(counts: Any, r: Any, rows: Any, queries: Any) -> Any:
    """Return the places of rows from `r` on among the keys of their sequences, `(1 or sequences, rows)`."""
    return (r + ts.tile.arange(rows, dtype=ts.i64))[None, :] % queries + (counts - queries)


@ts.function
def whole_pages(shared: Any, b: Any, page: Any) -> Any:
    """Return how many keys a sequence shares, in whole pages."""
    return 0 if shared is None else shared[b].to(ts.i64) // page * page


@ts.function
def put_group(out: Any, lse: Any, p: Any, b: Any, g: Any, r: Any, e: Any, left: Any, found: Any, logs: Any) -> None:
    """Store results of the `left` sequences of a group from `b` on, and once the logarithms of their sums."""
    count, rows, wide = found.shape
    if (ts.tile.arange(count) < left)[:, None, None]:
        out[p, b : b + count, g, r : r + rows, e : e + wide] = found
    if e == 0:
        if (ts.tile.arange(count) < left)[:, None]:
            lse[p, b : b + count, g, r : r + rows] = logs


@ts.kernel
def paged_parts(
    q: ts.Tensor[B, G, R, D, T],
    k: ts.Tensor[PAGES, SLOTS, G, D, C],
    v: ts.Tensor[PAGES, SLOTS, G, E, C],
    table: ts.Tensor[B, MOST, ts.i32],
    lengths: ts.Tensor[B, ts.i32],
    shared: ts.Tensor[B, ts.i32] | None,
    starts: ts.Tensor[X + 1, ts.i32] | None,
    k_scale: ts.Tensor[G, ts.f32] | None,
    v_scale: ts.Tensor[G, ts.f32] | None,
    out: ts.Tensor[P, B, G, R, E, S],
    lse: ts.Tensor[P, B, G, R, S],
    queries: I64,
    parts: I64,
    each: I64,
    scale: F64,
    softcap: F64,
    before: I64,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    plain: Constant,
    acc: Constant,
    page: Constant,
    BB: Constant,
    BM: Constant,
    BN: Constant,
    BE: Constant,
):
    """Softmax(q·kᵀ·scale)·v of rows, which are queries of all heads that share keys, by `each` keys in each part.

    A part past the end of a sequence is zeros, and its logsumexp -inf. What sequences share, their first `shared` keys
    in whole pages, is in the parts behind the first `parts`. Those are computed where there are `starts`, for BB
    sequences together: from `starts[x]` to `starts[x + 1]` they share the pages of the first one.
    """
    ts.assume(each % BN == 0)
    for p, x, i, g, r, e in ts.tile.grid(
        (P - parts if starts is not None else parts, 1),
        (B if starts is None else X, 1),
        (1 if starts is None else B, BB),
        (G, 1),
        (R, BM),
        (E, BE),
    ):
        if starts is None:
            leader, b, left = x, x, 1
            rows, count = q[x, g, r : r + BM, :], lengths[x].to(ts.i64)
            place = places_of(count, r, BM, queries).reshape(BM, 1)
            first, end = whole_pages(shared, x, page), count
        else:
            leader = starts[x].to(ts.i64)
            b, left = leader + i, starts[x + 1].to(ts.i64) - leader - i
            rows, counts = q[b : b + BB, g, r : r + BM, :].reshape(BB * BM, D), lengths[b : b + BB].to(ts.i64)
            place = places_of(counts[:, None], r, BM, queries).reshape(BB * BM, 1)
            first, end = 0, whole_pages(shared, leader, page) if left > 0 else 0
        factor = scale if k_scale is None else scale * k_scale[g].to(ts.f64)
        total = ts.tile.zeros((BB * BM, BE), acc)
        tops = ts.tile.full((BB * BM,), -INF, acc)
        sums = ts.tile.zeros((BB * BM,), acc)
        start = first + p * each
        start = max(start, (end - queries - before) // BN * BN) if windowed and starts is None else start
        for n in ts.tile.range(start, min(first + (p + 1) * each, end), BN):
            number = table[leader, n // page].to(ts.i64)
            slot = n % page
            keys = k[number, slot : slot + BN, g, :].to(q.dtype)
            scores = scaled(ts.tile.mma(rows, keys.T), factor, softcap, caps, plain)
            columns = n + ts.tile.arange(BN, dtype=ts.i64)[None, :]
            if causal:
                scores = ts.tile.where(columns > place, -INF, scores)
            if windowed:
                scores = ts.tile.where(columns < place - before, -INF, scores)
            scores = only_keys(scores, n, end, 1)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, True)
            kept = power(tops, base, factor, plain)
            powers = power(scores, base[:, None], factor, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            values = v[number, slot : slot + BN, g, e : e + BE].to(q.dtype)
            # What was never stored may be anything, NaN too, which weights of 0 do not hide.
            values = ts.tile.where((n + ts.tile.arange(BN, dtype=ts.i64) < end)[:, None], values, 0.0)
            total = ts.tile.mma(powers.to(q.dtype), values, kept[:, None] * total)
            tops = above
        found = total / ts.tile.where(sums == 0.0, 1.0, sums)[:, None]
        found = found if v_scale is None else found * v_scale[g].to(acc)
        logs = (tops * factor.to(acc) if plain else tops) + ts.tile.log(sums)
        if starts is None:
            out[p, x, g, r : r + BM, e : e + BE] = found
            if e == 0:
                lse[p, x, g, r : r + BM] = logs
        else:
            put_group(out, lse, parts + p, b, g, r, e, left, found.reshape(BB, BM, BE), logs.reshape(BB, BM))


@ts.function
def narrowed(values: Any, scale: Any, dtype: Any) -> Any:
    """Return numbers over a scale in the dtype of pages; none becomes infinite there."""
    wide = values.to(ts.f32) if scale is None else values.to(ts.f32) / scale
    return wide.to(dtype @ ts.saturate)


@ts.kernel
def append(
    k: ts.Tensor[B, K, G, D, T],
    v: ts.Tensor[B, K, G, E, T],
    k_pages: ts.Tensor[PAGES, SLOTS, G, D, C],
    v_pages: ts.Tensor[PAGES, SLOTS, G, E, C] | None,
    table: ts.Tensor[B, MOST, ts.i32],
    lengths: ts.Tensor[B, ts.i32],
    k_scale: ts.Tensor[G, ts.f32] | None,
    v_scale: ts.Tensor[G, ts.f32] | None,
    BD: Constant,
    BE: Constant,
):
    """Store the last K keys and values of each sequence where its page table says."""
    for b, i, g in ts.tile.grid((B, 1), (K, 1), (G, 1)):
        place = lengths[b].to(ts.i64) - K + i
        found = table[b, place // SLOTS].to(ts.i64)
        number = -1 if place < 0 or place >= MOST * SLOTS else found
        of_k = None if k_scale is None else k_scale[g]
        of_v = None if v_scale is None else v_scale[g]
        for d in ts.tile.range(0, D, BD):
            k_pages[number, place % SLOTS, g, d : d + BD] = narrowed(k[b, i, g, d : d + BD], of_k, k_pages.dtype)
        if v_pages is not None:
            for e in ts.tile.range(0, E, BE):
                v_pages[number, place % SLOTS, g, e : e + BE] = narrowed(v[b, i, g, e : e + BE], of_v, v_pages.dtype)
