"""Kernels of attention to keys and values in pages, and of what fills them."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.attn.flash_kernels import INF, B, D, E, G, P, R, S, T, only_keys, power, present, scaled

C = ts.dtype_var("C", ts.f32, ts.bf16, ts.f16, ts.fp8_e4m3, ts.fp8_e5m2)
PAGES, SLOTS, MOST, K = ts.dims("PAGES SLOTS MOST K")


@ts.kernel
def paged_parts(
    q: ts.Tensor[B, G, R, D, T],
    k: ts.Tensor[PAGES, SLOTS, G, D, C],
    v: ts.Tensor[PAGES, SLOTS, G, E, C],
    table: ts.Tensor[B, MOST, ts.i32],
    lengths: ts.Tensor[B, ts.i32],
    k_scale: ts.Tensor[G, ts.f32] | None,
    v_scale: ts.Tensor[G, ts.f32] | None,
    out: ts.Tensor[P, B, G, R, E, S],
    lse: ts.Tensor[P, B, G, R, S],
    queries: I64,
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
    BM: Constant,
    BN: Constant,
    BE: Constant,
):
    """Softmax(q·kᵀ·scale)·v of rows, which are queries of all heads that share keys, by `each` keys in each of P parts.

    A part past the end of a sequence is zeros, and its logsumexp -inf.
    """
    ts.assume(each % BN == 0)
    for p, b, g, r, e in ts.tile.grid((P, 1), (B, 1), (G, 1), (R, BM), (E, BE)):
        length = lengths[b].to(ts.i64)
        rows = q[b, g, r : r + BM, :]
        factor = scale if k_scale is None else scale * k_scale[g].to(ts.f64)
        total = ts.tile.zeros((BM, BE), acc)
        tops = ts.tile.full((BM,), -INF, acc)
        sums = ts.tile.zeros((BM,), acc)
        place = (r + ts.tile.arange(BM, dtype=ts.i64)[:, None]) % queries + (length - queries)
        start = p * each
        if windowed:
            start = max(start, (length - queries - before) // BN * BN)
        for n in ts.tile.range(start, min((p + 1) * each, length), BN):
            number = table[b, n // page].to(ts.i64)
            slot = n % page
            keys = k[number, slot : slot + BN, g, :].to(q.dtype)
            scores = scaled(ts.tile.mma(rows, keys.T), factor, softcap, caps, plain)
            columns = n + ts.tile.arange(BN, dtype=ts.i64)[None, :]
            if causal:
                scores = ts.tile.where(columns > place, -INF, scores)
            if windowed:
                scores = ts.tile.where(columns < place - before, -INF, scores)
            scores = only_keys(scores, n, length, 1)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, True)
            kept = power(tops, base, factor, plain)
            powers = power(scores, base[:, None], factor, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            values = v[number, slot : slot + BN, g, e : e + BE].to(q.dtype)
            # What was never stored may be anything, NaN too, which weights of 0 do not hide.
            values = ts.tile.where((n + ts.tile.arange(BN, dtype=ts.i64) < length)[:, None], values, 0.0)
            total = ts.tile.mma(powers.to(q.dtype), values, kept[:, None] * total)
            tops = above
        found = total / ts.tile.where(sums == 0.0, 1.0, sums)[:, None]
        out[p, b, g, r : r + BM, e : e + BE] = found if v_scale is None else found * v_scale[g].to(acc)
        if e == 0:
            lse[p, b, g, r : r + BM] = (tops * factor.to(acc) if plain else tops) + ts.tile.log(sums)


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
