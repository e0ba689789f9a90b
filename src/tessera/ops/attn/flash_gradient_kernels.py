"""Kernels of attention's gradients: weights are computed again by the logsumexp of their row."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.attn.flash_kernels import (
    INF,
    LOG2E,
    B,
    D,
    E,
    G,
    H,
    M,
    N,
    S,
    T,
    U,
    W,
    allowed,
    are_near,
    away,
    biased,
    grown,
    is_whole,
    listed,
    nth,
    of_tile,
    only_keys,
    places,
    present,
    put_rows,
    scaled,
    seen,
    square_row,
    tile_of,
)
from tessera.ops.attn.mods import MB, NB, Mods
from tessera.ops.attn.packed import (
    COLUMNS,
    KEYS,
    QUERIES,
    ROOM,
    START_OF_KEYS,
    START_OF_NUMBERS,
    START_OF_QUERIES,
    taken,
)

L = ts.dims("L")


@ts.function
def weight(scores: Any, lse: Any, scale: Any, plain: Any) -> Any:
    """Return the weights of scores by the logsumexp of their row."""
    if plain:
        return ts.tile.exp2(scores * (scale * LOG2E).to(scores.dtype) - lse * LOG2E)
    return ts.tile.exp(scores - lse)


@ts.function
def seen_by(
    scores: Any, queries: Any, keys: Any, last: Any, before: Any, after: Any, causal: Any, windowed: Any
) -> Any:
    """Return scores `(BN, BM)` as `seen` does those that are not turned."""
    steps = ts.tile.arange(scores.shape[0])[:, None] - ts.tile.arange(scores.shape[1])[None, :]
    if windowed:
        scores = ts.tile.where(are_near(steps, queries, keys, before, after), scores, -INF)
    elif causal:
        scores = ts.tile.where(steps.to(ts.i64) <= queries - keys, scores, -INF)
    return only_keys(scores, keys, last, 0)


@ts.function
def slope(scores: Any, softcap: Any) -> Any:
    """Return the derivative of scores that a cap gave by those before."""
    part = scores * (1.0 / softcap).to(scores.dtype)
    return 1.0 - part * part


@ts.function
def with_slope(scores: Any, mods: Any, b: Any, h: Any, rows: Any, columns: Any) -> Any:
    """Return scores as the user's function changes them, and its derivative; None where there is no function."""
    if mods.score is None:
        return scores, None
    found, turn = ts.tile.jvp(mods.score, (scores, b, h, rows, columns), (1.0, 0, 0, 0, 0))
    return found.to(scores.dtype), turn


@ts.function
def signed(weights: Any, mods: Any, row: Any, n: Any, turned: Any) -> Any:
    """Return weights, those that dropout leaves out as negative numbers, so that no mask has to be kept."""
    if mods.drop is None:
        return weights
    keeps = mods.drop(row, n, weights.shape[0], weights.shape[1], turned)
    return ts.tile.where(keeps, weights, -weights)


@ts.function
def kept(weights: Any, mods: Any) -> Any:
    """Return signed weights with zeros for those that dropout leaves out."""
    return weights if mods.drop is None else ts.tile.where(weights < 0.0, 0.0, weights)


@ts.function
def of_scores(weights: Any, of_weights: Any, less: Any, mods: Any) -> Any:
    """Return the gradients of scores by signed weights and the gradients of weights that dropout keeps."""
    slopes = of_weights - less
    return weights * (slopes if mods.drop is None else ts.tile.where(weights < 0.0, less, slopes))


@ts.kernel
def deltas(
    grad: ts.Tensor[B, H, M, E, T],
    out: ts.Tensor[B, H, M, E, T],
    grad_lse: ts.Tensor[B, H, M, S] | None,
    delta: ts.Tensor[B, H, M, S],
    acc: Constant,
    BM: Constant = 64,
):
    """What is `taken` for each row."""
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, BM)):
        delta[b, h, m : m + BM] = taken(grad, out, grad_lse, b, h, m, BM, acc)


@ts.kernel
def sink_gradients(
    sinks: ts.Tensor[H, S],
    lse: ts.Tensor[B, H, L, S],
    delta: ts.Tensor[B, H, L, S],
    of_sinks: ts.Tensor[H, S],
    acc: Constant,
    BM: Constant = 1024,
):
    """Gradients of sinks, which have weights and no values: -sum(exp(sink - logsumexp)·delta), in one order."""
    for (h,) in ts.tile.grid((H, 1)):
        total = ts.tile.zeros((BM,), acc)
        for b in ts.tile.range(B):
            for m in ts.tile.range(0, L, BM):
                inside = m + ts.tile.arange(BM) < L
                weights = ts.tile.where(inside, ts.tile.exp(sinks[h] - lse[b, h, m : m + BM]), 0.0)
                total = total - weights * delta[b, h, m : m + BM]
        of_sinks[h] = ts.tile.sum(total)


@ts.kernel
def query_gradients(
    grad: ts.Tensor[B, H, M, E, T],
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    tiles: ts.Tensor[W, COLUMNS, ts.i32] | None,
    partials: ts.Tensor[B, H, MB, ts.i32] | None,
    counts: ts.Tensor[B, H, MB, ts.i32] | None,
    blocks: ts.Tensor[B, H, MB, NB, ts.i32] | None,
    lse: ts.Tensor[B, H, L, S],
    delta: ts.Tensor[B, H, L, S],
    of_q: ts.Tensor[B, H, M, D, T] | None,
    of_bias: ts.Tensor[B, H, M, N, U] | None,
    mods: Mods[M, N],
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
    sequences: I64,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    empties: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """Gradients of queries and of the bias: blocks of keys after each other."""
    packed = tiles is not None
    for x, y, first in ts.tile.grid(
        (1 if packed else B, 1), (1 if packed else H, 1), (W if packed else M, 1 if packed else BM)
    ):
        z, h, m = tile_of(tiles, x, y, first)
        b = 0 if packed else z
        group = h // (H // G)
        last, queries = of_tile(tiles, first, KEYS, N), of_tile(tiles, first, QUERIES, M)
        q0, k0 = of_tile(tiles, first, START_OF_QUERIES, 0), of_tile(tiles, first, START_OF_KEYS, 0)
        n0 = of_tile(tiles, first, START_OF_NUMBERS, 0) * ROOM
        rows = q[b, h, q0 + m : q0 + m + BM, :]
        g = grad[b, h, q0 + m : q0 + m + BM, :]
        base = present(lse[b, h, n0 + m : n0 + m + BM], empties)[:, None]
        less = delta[b, h, n0 + m : n0 + m + BM][:, None]
        total = ts.tile.zeros((BM, D), acc)
        place = m + (last - queries)
        row = square_row(mods, b, h, q0, z, m, H, M, sequences if packed else None)
        start = max(place - before, 0) // BN * BN if windowed else 0
        end = min(last, place + BM + after) if windowed else min(last, place + BM) if causal else last
        if blocks is not None:
            start, end = 0, listed(counts, b, h, m)
        if packed:
            end = end if m < queries else 0
        # All of the bias has a gradient, zeros too.
        for i in ts.tile.range(0 if of_bias is not None else start, N if of_bias is not None else end, BN):
            n = i if blocks is None else nth(blocks, b, h, m, i)
            keys = k[b, group, k0 + n : k0 + n + BN, :]
            scores = scaled(ts.tile.mma(rows, keys.T), scale, softcap, caps, plain)
            bend = slope(scores, softcap) if caps else None
            scores = biased(scores, bias, slopes, b, h, m, n, place)
            these, those = places(m, BM)[:, None], places(n, BN)[None, :]
            scores, turn = with_slope(scores, mods, z, h, these, those)
            scores = seen(scores, place, n, last, before, after, causal, windowed)
            scores = allowed(scores, mods, is_whole(partials, b, h, m, i), z, h, these, those)
            powers = weight(scores, base, scale, plain)
            powers = signed(powers, mods, row, n, False)
            of_weights = grown(ts.tile.mma(g, v[b, group, k0 + n : k0 + n + BN, :].T), mods)
            slopes_of = of_scores(powers, of_weights, less, mods)
            if turn is not None:
                slopes_of = slopes_of * turn
            if of_bias is not None:
                of_bias[b, h, m : m + BM, n : n + BN] = slopes_of
            if bend is not None:
                slopes_of = slopes_of * bend
            total = ts.tile.mma(slopes_of.to(q.dtype), keys, total)
        if of_q is not None:
            put_rows(of_q, b, h, q0 + m, queries - m if packed else None, total * scale.to(acc))


@ts.kernel
def key_gradients(
    grad: ts.Tensor[B, H, M, E, T],
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    tiles: ts.Tensor[W, COLUMNS, ts.i32] | None,
    partials: ts.Tensor[B, G, NB, ts.i32] | None,
    counts: ts.Tensor[B, G, NB, ts.i32] | None,
    blocks: ts.Tensor[B, G, NB, MB, ts.i32] | None,
    lse: ts.Tensor[B, H, L, S],
    delta: ts.Tensor[B, H, L, S],
    of_k: ts.Tensor[B, G, N, D, T],
    of_v: ts.Tensor[B, G, N, E, T],
    mods: Mods[M, N],
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
    sequences: I64,
    grouped: Constant,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    empties: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """Gradients of keys and values: heads that share them and blocks of queries after each other, in one order."""
    packed = tiles is not None
    for x, y, first in ts.tile.grid(
        (1 if packed else B, 1), (1 if packed else G, 1), (W if packed else N, 1 if packed else BN)
    ):
        z, group, n = tile_of(tiles, x, y, first)
        b = 0 if packed else z
        last, queries = of_tile(tiles, first, KEYS, N), of_tile(tiles, first, QUERIES, M)
        q0, k0 = of_tile(tiles, first, START_OF_QUERIES, 0), of_tile(tiles, first, START_OF_KEYS, 0)
        n0 = of_tile(tiles, first, START_OF_NUMBERS, 0) * ROOM
        keys = k[b, group, k0 + n : k0 + n + BN, :]
        values = v[b, group, k0 + n : k0 + n + BN, :]
        total_k = ts.tile.zeros((BN, D), acc)
        total_v = ts.tile.zeros((BN, E), acc)
        apart = last - queries
        start = max(n - apart - (after if windowed else 0), 0) // BM * BM if causal or windowed else 0
        end = min(queries, n + BN - apart + before) if windowed else queries
        if packed:
            end = end if n < last else 0
        each = max(ts.cdiv(end - start, BM), 0)
        if blocks is not None:
            each = ts.cdiv(listed(counts, b, group, n), BM)
        for step in ts.tile.range(H // G * each if grouped else each):
            h, place = group, step
            if grouped:
                head = step.to(ts.i32) // each.to(ts.i32)  # of 32 bits: a step waits for their quotient
                h, place = group * (H // G) + head, step - head.to(ts.i64) * each
            m = start + place * BM if blocks is None else nth(blocks, b, group, n, place * BM)
            rows = q[b, h, q0 + m : q0 + m + BM, :]
            g = grad[b, h, q0 + m : q0 + m + BM, :]
            scores = scaled(ts.tile.mma(keys, rows.T), scale, softcap, caps, plain)
            bend = slope(scores, softcap) if caps else None
            if bias is not None:
                scores = scores + bias[b, h, m : m + BM, n : n + BN].to(acc).T
            if slopes is not None:
                steps = ts.tile.arange(BN)[:, None] - ts.tile.arange(BM)[None, :]
                scores = scores + away(steps, m + apart, n, acc) * slopes[h]
            these, those = places(m, BM)[None, :], places(n, BN)[:, None]
            scores, turn = with_slope(scores, mods, z, h, these, those)
            whole = is_whole(partials, b, group, n, place * BM)
            scores = allowed(scores, mods, whole, z, h, these, those)
            if (slopes is not None or turn is not None) and not packed:
                # Of no query: they would be powers of what is not there.
                scores = ts.tile.where((m + ts.tile.arange(BM) < queries)[None, :], scores, -INF)
            base = present(lse[b, h, n0 + m : n0 + m + BM], empties)[None, :]
            powers = weight(seen_by(scores, m + apart, n, last, before, after, causal, windowed), base, scale, plain)
            row = square_row(mods, b, h, q0, z, m, H, M, sequences if packed else None)
            powers = signed(powers, mods, row, n, True)
            total_v = ts.tile.mma(kept(powers, mods).to(q.dtype), g, total_v)
            of_weights = grown(ts.tile.mma(values, g.T), mods)
            slopes_of = of_scores(powers, of_weights, delta[b, h, n0 + m : n0 + m + BM][None, :], mods)
            if turn is not None:
                slopes_of = slopes_of * turn
            if bend is not None:
                slopes_of = slopes_of * bend
            total_k = ts.tile.mma(slopes_of.to(q.dtype), rows, total_k)
        left = last - n if packed else None
        put_rows(of_k, b, group, k0 + n, left, total_k * scale.to(acc))
        put_rows(of_v, b, group, k0 + n, left, grown(total_v, mods))
