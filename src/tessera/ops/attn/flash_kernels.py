"""Kernels of attention by an online softmax, and of its gradients."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
U = ts.dtype_var("U", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
B, H, G, M, N, D, E, P, R = ts.dims("B H G M N D E P R")
INF = float("inf")
LOG2E = 1.4426950408889634


@ts.function
def scaled(scores: Any, scale: Any, softcap: Any, caps: Any, plain: Any) -> Any:
    """Return scores by their products, scaled and capped; where they are plain, `power` scales them."""
    if plain:
        return scores
    return bent(scores * scale.to(scores.dtype), softcap, caps)


@ts.function
def power(scores: Any, base: Any, scale: Any, plain: Any) -> Any:
    """Return powers of e of scores less `base`; of plain ones, both before they are scaled, in one multiply-add."""
    if plain:
        step = (scale * LOG2E).to(scores.dtype)
        return ts.tile.exp2(scores * step - base * step)
    return ts.tile.exp(scores - base)


@ts.function
def weight(scores: Any, lse: Any, scale: Any, plain: Any) -> Any:
    """Return the weights of scores by the logsumexp of their row."""
    if plain:
        return ts.tile.exp2(scores * (scale * LOG2E).to(scores.dtype) - lse * LOG2E)
    return ts.tile.exp(scores - lse)


@ts.function
def bent(scores: Any, softcap: Any, caps: Any) -> Any:
    """Return scores that a cap holds between its negative and itself."""
    if caps:
        return ts.tile.tanh(scores * (1.0 / softcap).to(scores.dtype)) * softcap.to(scores.dtype)
    return scores


@ts.function
def seen(scores: Any, queries: Any, keys: Any, last: Any, before: Any, after: Any, causal: Any, windowed: Any) -> Any:
    """Return scores `(BM, BN)` with -inf where a query does not see a key.

    Args:
        scores: of queries and keys.
        queries: the first query's place among the keys: queries are aligned to the last key.
        keys: the first key.
        last: the number of keys.
        before: keys before its own place that a query sees.
        after: keys after it.
        causal: whether no query sees keys after its place.
        windowed: whether `before` and `after` count.
    """
    if windowed:
        steps = ts.tile.arange(scores.shape[1])[None, :] - ts.tile.arange(scores.shape[0])[:, None]
        return ts.tile.where(are_near(steps, queries, keys, before, after), only_keys(scores, keys, last, 1), -INF)
    if causal:
        return ts.tile.causal_mask(scores, queries, keys)
    return only_keys(scores, keys, last, 1)


@ts.function
def seen_by(
    scores: Any, queries: Any, keys: Any, last: Any, before: Any, after: Any, causal: Any, windowed: Any
) -> Any:
    """The same of scores `(BN, BM)`."""
    steps = ts.tile.arange(scores.shape[0])[:, None] - ts.tile.arange(scores.shape[1])[None, :]
    if windowed:
        scores = ts.tile.where(are_near(steps, queries, keys, before, after), scores, -INF)
    elif causal:
        scores = ts.tile.where(steps.to(ts.i64) <= queries - keys, scores, -INF)
    return only_keys(scores, keys, last, 0)


@ts.function
def are_near(steps: Any, queries: Any, keys: Any, before: Any, after: Any) -> Any:
    """Return which keys are no further from queries than a window reaches, by their distances in a block."""
    distance = steps.to(ts.i64) + (keys - queries)
    return (distance >= -before) & (distance <= after)


@ts.function
def only_keys(scores: Any, keys: Any, last: Any, axis: Any) -> Any:
    """Return scores with -inf behind the last key."""
    inside = keys + ts.tile.arange(scores.shape[axis]) < last
    return ts.tile.where(inside[None, :] if axis else inside[:, None], scores, -INF)


@ts.function
def away(steps: Any, queries: Any, keys: Any, acc: Any) -> Any:
    """Return how far keys are before queries, as negative numbers, or as negative ones after them: -|distance|."""
    return -ts.tile.abs((steps.to(ts.i64) + (keys - queries)).to(acc))


@ts.function
def biased(scores: Any, bias: Any, slopes: Any, b: Any, h: Any, m: Any, n: Any, place: Any) -> Any:
    """Return scores `(BM, BN)` of queries from `m` on and keys from `n` on, with what a bias and distances add."""
    rows, columns = scores.shape
    if bias is not None:
        scores = scores + bias[b, h, m : m + rows, n : n + columns].to(scores.dtype)
    if slopes is not None:
        steps = ts.tile.arange(columns)[None, :] - ts.tile.arange(rows)[:, None]
        scores = scores + away(steps, place, n, scores.dtype) * slopes[h]
    return scores


@ts.function
def present(top: Any, empties: Any) -> Any:
    """Return what is taken from scores: the largest, 0 where there is none above -inf."""
    return ts.tile.where(top == -INF, 0.0, top) if empties else top


@ts.kernel
def forward(
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    out: ts.Tensor[B, H, M, E, T],
    lse: ts.Tensor[B, H, M, S] | None,
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    empties: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """Softmax(q·kᵀ·scale + bias)·v, blocks of keys after each other.

    `empties` says that a query may see no key: its row is zeros, and its logsumexp -inf. `plain` says that scores are
    products times a positive scale, and nothing else.
    """
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, BM)):
        group = h // (H // G)
        rows = q[b, h, m : m + BM, :]
        total = ts.tile.zeros((BM, E), acc)
        tops = ts.tile.full((BM,), -INF, acc)
        sums = ts.tile.zeros((BM,), acc)
        place = m + (N - M)
        start = max(place - before, 0) // BN * BN if windowed else 0
        end = min(N, place + BM + after) if windowed else min(N, place + BM) if causal else N
        for n in ts.tile.range(start, end, BN):
            scores = ts.tile.mma(rows, k[b, group, n : n + BN, :].T)
            scores = scaled(scores, scale, softcap, caps, plain)
            scores = biased(scores, bias, slopes, b, h, m, n, place)
            scores = seen(scores, place, n, N, before, after, causal, windowed)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, empties)
            kept = power(tops, base, scale, plain)
            powers = power(scores, base[:, None], scale, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            total = ts.tile.mma(powers.to(q.dtype), v[b, group, n : n + BN, :], kept[:, None] * total)
            tops = above
        whole = ts.tile.where(sums == 0.0, 1.0, sums) if empties else sums
        out[b, h, m : m + BM, :] = total / whole[:, None]
        if lse is not None:
            lse[b, h, m : m + BM] = (tops * scale.to(acc) if plain else tops) + ts.tile.log(sums)


@ts.kernel
def deltas(
    grad: ts.Tensor[B, H, M, E, T],
    out: ts.Tensor[B, H, M, E, T],
    grad_lse: ts.Tensor[B, H, M, S] | None,
    delta: ts.Tensor[B, H, M, S],
    acc: Constant,
    BM: Constant = 64,
):
    """What is taken from the gradients of weights of a row: sum(grad·out), less the gradient of its logsumexp."""
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, BM)):
        found = ts.tile.sum(grad[b, h, m : m + BM, :].to(acc) * out[b, h, m : m + BM, :].to(acc), 1)
        if grad_lse is not None:
            found = found - grad_lse[b, h, m : m + BM]
        delta[b, h, m : m + BM] = found


@ts.function
def slope(scores: Any, softcap: Any) -> Any:
    """Return the derivative of scores that `bent` gave by those before."""
    part = scores * (1.0 / softcap).to(scores.dtype)
    return 1.0 - part * part


@ts.kernel
def query_gradients(
    grad: ts.Tensor[B, H, M, E, T],
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    lse: ts.Tensor[B, H, M, S],
    delta: ts.Tensor[B, H, M, S],
    of_q: ts.Tensor[B, H, M, D, T] | None,
    of_bias: ts.Tensor[B, H, M, N, U] | None,
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    empties: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """Gradients of queries and of the bias: blocks of keys after each other, weights computed again."""
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, BM)):
        group = h // (H // G)
        rows = q[b, h, m : m + BM, :]
        g = grad[b, h, m : m + BM, :]
        base = present(lse[b, h, m : m + BM], empties)[:, None]
        less = delta[b, h, m : m + BM][:, None]
        total = ts.tile.zeros((BM, D), acc)
        place = m + (N - M)
        start = max(place - before, 0) // BN * BN if windowed else 0
        end = min(N, place + BM + after) if windowed else min(N, place + BM) if causal else N
        # All of the bias has a gradient, zeros too.
        first = 0 if of_bias is not None else start
        last = N if of_bias is not None else end
        for n in ts.tile.range(first, last, BN):
            keys = k[b, group, n : n + BN, :]
            scores = scaled(ts.tile.mma(rows, keys.T), scale, softcap, caps, plain)
            turn = slope(scores, softcap) if caps else None
            scores = biased(scores, bias, slopes, b, h, m, n, place)
            powers = weight(seen(scores, place, n, N, before, after, causal, windowed), base, scale, plain)
            slopes_of = powers * (ts.tile.mma(g, v[b, group, n : n + BN, :].T) - less)
            if of_bias is not None:
                of_bias[b, h, m : m + BM, n : n + BN] = slopes_of
            if caps:
                slopes_of = slopes_of * turn
            total = ts.tile.mma(slopes_of.to(q.dtype), keys, total)
        if of_q is not None:
            of_q[b, h, m : m + BM, :] = total * scale.to(acc)


@ts.kernel
def key_gradients(
    grad: ts.Tensor[B, H, M, E, T],
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    lse: ts.Tensor[B, H, M, S],
    delta: ts.Tensor[B, H, M, S],
    of_k: ts.Tensor[B, G, N, D, T],
    of_v: ts.Tensor[B, G, N, E, T],
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
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
    for b, group, n in ts.tile.grid((B, 1), (G, 1), (N, BN)):
        keys = k[b, group, n : n + BN, :]
        values = v[b, group, n : n + BN, :]
        total_k = ts.tile.zeros((BN, D), acc)
        total_v = ts.tile.zeros((BN, E), acc)
        apart = N - M
        start = max(n - apart - (after if windowed else 0), 0) // BM * BM if causal or windowed else 0
        end = min(M, n + BN - apart + before) if windowed else M
        blocks = max(ts.cdiv(end - start, BM), 0)
        for step in ts.tile.range(H // G * blocks):
            h = group * (H // G) + step // blocks
            m = start + step % blocks * BM
            rows = q[b, h, m : m + BM, :]
            g = grad[b, h, m : m + BM, :]
            scores = scaled(ts.tile.mma(keys, rows.T), scale, softcap, caps, plain)
            turn = slope(scores, softcap) if caps else None
            if bias is not None:
                scores = scores + bias[b, h, m : m + BM, n : n + BN].to(acc).T
            if slopes is not None:
                steps = ts.tile.arange(BN)[:, None] - ts.tile.arange(BM)[None, :]
                scores = scores + away(steps, m + apart, n, acc) * slopes[h]
                # Of no query: they would be powers of nothing but the distance.
                scores = ts.tile.where((m + ts.tile.arange(BM) < M)[None, :], scores, -INF)
            base = present(lse[b, h, m : m + BM], empties)[None, :]
            powers = weight(seen_by(scores, m + apart, n, N, before, after, causal, windowed), base, scale, plain)
            total_v = ts.tile.mma(powers.to(q.dtype), g, total_v)
            slopes_of = powers * (ts.tile.mma(values, g.T) - delta[b, h, m : m + BM][None, :])
            if caps:
                slopes_of = slopes_of * turn
            total_k = ts.tile.mma(slopes_of.to(q.dtype), rows, total_k)
        of_k[b, group, n : n + BN, :] = total_k * scale.to(acc)
        of_v[b, group, n : n + BN, :] = total_v


@ts.kernel
def parts_forward(
    q: ts.Tensor[B, G, R, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    out: ts.Tensor[P, B, G, R, E, S],
    lse: ts.Tensor[P, B, G, R, S],
    queries: I64,
    each: I64,
    scale: F64,
    softcap: F64,
    causal: Constant,
    caps: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """The same of few queries, by `each` keys in each of P parts: rows are queries of all heads that share keys."""
    ts.assume(each % BN == 0)
    for p, b, g in ts.tile.grid((P, 1), (B, 1), (G, 1)):
        rows = q[b, g, 0:BM, :]
        total = ts.tile.zeros((BM, E), acc)
        tops = ts.tile.full((BM,), -INF, acc)
        sums = ts.tile.zeros((BM,), acc)
        places = ts.tile.arange(BM, dtype=ts.i64)[:, None] % queries + (N - queries)
        for n in ts.tile.range(p * each, min((p + 1) * each, N), BN):
            scores = ts.tile.mma(rows, k[b, g, n : n + BN, :].T)
            scores = scaled(scores, scale, softcap, caps, plain)
            if causal:
                scores = ts.tile.where(n + ts.tile.arange(BN, dtype=ts.i64)[None, :] > places, -INF, scores)
            scores = only_keys(scores, n, N, 1)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, True)
            kept = power(tops, base, scale, plain)
            powers = power(scores, base[:, None], scale, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            total = ts.tile.mma(powers.to(q.dtype), v[b, g, n : n + BN, :], kept[:, None] * total)
            tops = above
        out[p, b, g, 0:BM, :] = total / ts.tile.where(sums == 0.0, 1.0, sums)[:, None]
        lse[p, b, g, 0:BM] = (tops * scale.to(acc) if plain else tops) + ts.tile.log(sums)


@ts.kernel
def joined(
    parts: ts.Tensor[P, B, G, R, E, S],
    sums: ts.Tensor[P, B, G, R, S],
    out: ts.Tensor[B, G, R, E, T],
    lse: ts.Tensor[B, G, R, S],
    acc: Constant,
    BM: Constant,
):
    """Results of rows by those of parts, in one order."""
    for b, g, r in ts.tile.grid((B, 1), (G, 1), (R, BM)):
        top = ts.tile.full((BM,), -INF, acc)
        for p in ts.tile.range(P):
            top = ts.tile.maximum(top, sums[p, b, g, r : r + BM])
        base = present(top, True)
        total = ts.tile.zeros((BM, E), acc)
        whole = ts.tile.zeros((BM,), acc)
        for p in ts.tile.range(P):
            weights = ts.tile.exp(sums[p, b, g, r : r + BM] - base)
            whole = whole + weights
            total = total + weights[:, None] * parts[p, b, g, r : r + BM, :]
        out[b, g, r : r + BM, :] = total / ts.tile.where(whole == 0.0, 1.0, whole)[:, None]
        lse[b, g, r : r + BM] = top + ts.tile.log(whole)
