"""Kernels of linear recurrences whose states decay, computed a chunk of steps at a time, and of their gradients.

For one head: `S[t] = exp(r[t])·S[t-1] + w[t]·k[t]⊗v[t]` and `y[t] = scale·q[t]·S[t] + skip·v[t]`. The rates r are `g`
and the weights w are 1; or, where a head has a factor, the rates are `g` times it and the weights are `g`. Only sums of
the rates of consecutive steps are exponentiated, and these are not positive.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32)
B, L, C, H, G, N, P, X, Y = ts.dims("B L C H G N P X Y")
INF = float("inf")
ROWS = 16


@ts.function
def rates(g: Any, factor: Any, b: Any, start: Any, h: Any, Q: Any) -> Any:
    """Return the logarithms of the decays of a chunk's steps."""
    if factor is not None:
        return g[b, start : start + Q, h] * factor[h]
    return g[b, start : start + Q, h]


@ts.function
def weights(g: Any, factor: Any, b: Any, start: Any, h: Any, Q: Any) -> Any:
    """Return what keys and values of a chunk's steps are multiplied by."""
    if factor is not None:
        return g[b, start : start + Q, h]
    return ts.tile.full((Q,), 1.0, ts.f32)


@ts.function
def between(sums: Any) -> Any:
    """Return what is left at step t of what step s added, `(t, s)`, by sums of rates; 0 where s is after t."""
    size = sums.shape[0]
    are_before = ts.tile.arange(size)[:, None] >= ts.tile.arange(size)[None, :]
    return ts.tile.exp(ts.tile.where(are_before, sums[:, None] - sums[None, :], -INF))


@ts.function
def until_end(rate: Any) -> Any:
    """Return what is left at the end of a chunk of what its steps added."""
    return ts.tile.exp(ts.tile.cumsum(rate, reverse=True) - rate)


@ts.function
def times(rows: Any, factors: Any) -> Any:
    """Return rows, each times a factor, in their own dtype."""
    return (rows.to(ts.f32) * factors[:, None]).to(rows.dtype)


@ts.function
def first_state(initial: Any, b: Any, h: Any, n: Any, p: Any, turned: Any, BN: Any, BP: Any) -> Any:
    """Return a part of a head's state before the first step."""
    if initial is None:
        return ts.tile.zeros((BN, BP), ts.f32)
    if turned:
        return initial[b, h, p : p + BP, n : n + BN].T
    return initial[b, h, n : n + BN, p : p + BP]


@ts.kernel
def states(
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    factor: ts.Tensor[H, ts.f32] | None,
    initial: ts.Tensor[B, H, X, Y, ts.f32] | None,
    before: ts.Tensor[B, C, H, N, P, T],
    last: ts.Tensor[B, H, X, Y, ts.f32],
    scale: F64,
    turned: Constant,
    reverse: Constant,
    Q: Constant,
    BN: Constant,
    BP: Constant,
):
    """States before chunks, and after the last one; or, in reverse, gradients of states after chunks.

    `turned` says that `initial` and `last` are `(P, N)`. In reverse, `k` holds the queries, `v` the gradient of the
    result, `initial` the gradient of the last state, and `last` that of the first.
    """
    for b, h, n, p in ts.tile.grid((B, 1), (H, 1), (N, BN), (P, BP)):
        group = h // (H // G)
        state = first_state(initial, b, h, n, p, turned, BN, BP)
        for step in ts.tile.range(C):
            c = C - 1 - step if reverse else step
            start = c * Q
            before[b, c, h, n : n + BN, p : p + BP] = state
            rate = rates(g, factor, b, start, h, Q)
            if reverse:
                kept = ts.tile.exp(ts.tile.cumsum(rate)) * scale.to(ts.f32)
            else:
                kept = until_end(rate) * weights(g, factor, b, start, h, Q)
            added = times(v[b, start : start + Q, h, p : p + BP], kept)
            left = ts.tile.exp(ts.tile.sum(rate))
            state = ts.tile.mma(k[b, start : start + Q, group, n : n + BN].T, added, state * left)
        if turned:
            last[b, h, p : p + BP, n : n + BN] = state.T
        else:
            last[b, h, n : n + BN, p : p + BP] = state


@ts.kernel
def outputs(
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    factor: ts.Tensor[H, ts.f32] | None,
    skip: ts.Tensor[H, ts.f32] | None,
    before: ts.Tensor[B, C, H, N, P, T],
    out: ts.Tensor[B, L, H, P, T],
    scale: F64,
    Q: Constant,
    BP: Constant,
):
    """Results of chunks by the states before them."""
    for b, c, h, p in ts.tile.grid((B, 1), (C, 1), (H, 1), (P, BP)):
        group = h // (H // G)
        start = c * Q
        sums = ts.tile.cumsum(rates(g, factor, b, start, h, Q))
        queries = q[b, start : start + Q, group, :]
        values = v[b, start : start + Q, h, p : p + BP]
        scores = ts.tile.mma(queries, k[b, start : start + Q, group, :].T)
        scores = scores * between(sums) * weights(g, factor, b, start, h, Q)[None, :]
        found = ts.tile.mma(queries, before[b, c, h, :, p : p + BP]) * ts.tile.exp(sums)[:, None]
        found = ts.tile.mma(scores.to(q.dtype), values, found) * scale.to(ts.f32)
        if skip is not None:
            found = found + values.to(ts.f32) * skip[h]
        out[b, start : start + Q, h, p : p + BP] = found


@ts.function
def inner(one: Any, other: Any, b: Any, c: Any, h: Any, size: Any) -> Any:
    """Return the sum of products of two states, a few rows at a time: all of them would fill the registers."""
    total = ts.tile.zeros((ROWS, one.shape[4]), ts.f32)
    for n in ts.tile.range(0, size, ROWS):
        rows = one[b, c, h, n : n + ROWS, :].to(ts.f32)
        total = total + rows * other[b, c, h, n : n + ROWS, :].to(ts.f32)
    return ts.tile.sum(total)


@ts.kernel
def value_gradients(
    grad: ts.Tensor[B, L, H, P, T],
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    factor: ts.Tensor[H, ts.f32] | None,
    skip: ts.Tensor[H, ts.f32] | None,
    before: ts.Tensor[B, C, H, N, P, T],
    after: ts.Tensor[B, C, H, N, P, T],
    of_v: ts.Tensor[B, L, H, P, T],
    of_g: ts.Tensor[B, L, H, ts.f32],
    of_factor: ts.Tensor[B, C, H, ts.f32] | None,
    of_skip: ts.Tensor[B, C, H, ts.f32] | None,
    scale: F64,
    Q: Constant,
    BP: Constant,
):
    """Gradients of values and of `g`; for each chunk those of the factor and the skip of a head, which are summed up.

    `after` holds the gradients of the states after chunks. The gradient of a rate is a sum over all its step decays:
    what later results take from earlier steps and the state before, and what the state after the chunk takes from both.
    """
    for b, c, h in ts.tile.grid((B, 1), (C, 1), (H, 1)):
        group = h // (H // G)
        start = c * Q
        rate = rates(g, factor, b, start, h, Q)
        weight = weights(g, factor, b, start, h, Q)
        sums = ts.tile.cumsum(rate)
        rest = until_end(rate)
        through = ts.tile.exp(ts.tile.sum(rate)) * inner(after, before, b, c, h, N)
        queries = q[b, start : start + Q, group, :]
        keys = k[b, start : start + Q, group, :]
        scores = ts.tile.mma(queries, keys.T) * between(sums) * scale.to(ts.f32)
        turned = scores.T.to(q.dtype)
        shares = ts.tile.zeros((Q, Q), ts.f32)
        read = ts.tile.zeros((Q,), ts.f32)
        to_state = ts.tile.zeros((Q,), ts.f32)
        skipped = ts.tile.zeros((Q,), ts.f32)
        for p in ts.tile.range(0, P, BP):
            values = v[b, start : start + Q, h, p : p + BP]
            slopes = grad[b, start : start + Q, h, p : p + BP]
            shares = ts.tile.mma(slopes, values.T, shares)
            read = read + ts.tile.sum(slopes.to(ts.f32) * ts.tile.mma(queries, before[b, c, h, :, p : p + BP]), 1)
            later = ts.tile.mma(keys, after[b, c, h, :, p : p + BP]) * rest[:, None]
            to_state = to_state + ts.tile.sum(values.to(ts.f32) * later, 1)
            of_value = ts.tile.mma(turned, slopes, later) * weight[:, None]
            if skip is not None:
                of_value = of_value + slopes.to(ts.f32) * skip[h]
            if of_skip is not None:
                skipped = skipped + ts.tile.sum(slopes.to(ts.f32) * values.to(ts.f32), 1)
            of_v[b, start : start + Q, h, p : p + BP] = of_value

        shares = shares * scores
        given = ts.tile.sum(shares, 0)
        taken = ts.tile.sum(shares * weight[None, :], 1) - given * weight
        taken = taken + read * ts.tile.exp(sums) * scale.to(ts.f32)
        passed = to_state * weight
        of_rate = ts.tile.cumsum(taken, reverse=True) + (ts.tile.cumsum(passed) - passed) + through
        if factor is not None:
            of_g[b, start : start + Q, h] = of_rate * factor[h] + given + to_state
        else:
            of_g[b, start : start + Q, h] = of_rate
        if of_factor is not None:
            of_factor[b, c, h] = ts.tile.sum(of_rate * g[b, start : start + Q, h])
        if of_skip is not None:
            of_skip[b, c, h] = ts.tile.sum(skipped)


@ts.kernel
def key_gradients(
    grad: ts.Tensor[B, L, H, P, T],
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    factor: ts.Tensor[H, ts.f32] | None,
    before: ts.Tensor[B, C, H, N, P, T],
    after: ts.Tensor[B, C, H, N, P, T],
    of_q: ts.Tensor[B, L, G, N, T],
    of_k: ts.Tensor[B, L, G, N, T],
    scale: F64,
    Q: Constant,
    BN: Constant,
    BP: Constant,
):
    """Gradients of queries and keys: heads that share them after each other, in one order."""
    for b, c, group, n in ts.tile.grid((B, 1), (C, 1), (G, 1), (N, BN)):
        start = c * Q
        queries = q[b, start : start + Q, group, n : n + BN]
        keys = k[b, start : start + Q, group, n : n + BN]
        total_q = ts.tile.zeros((Q, BN), ts.f32)
        total_k = ts.tile.zeros((Q, BN), ts.f32)
        for each in ts.tile.range(H // G):
            h = group * (H // G) + each
            rate = rates(g, factor, b, start, h, Q)
            weight = weights(g, factor, b, start, h, Q)
            sums = ts.tile.cumsum(rate)
            faded = ts.tile.exp(sums) * scale.to(ts.f32)
            kept = until_end(rate) * weight
            shares = ts.tile.zeros((Q, Q), ts.f32)
            for p in ts.tile.range(0, P, BP):
                values = v[b, start : start + Q, h, p : p + BP]
                slopes = grad[b, start : start + Q, h, p : p + BP]
                shares = ts.tile.mma(slopes, values.T, shares)
                total_q = ts.tile.mma(times(slopes, faded), before[b, c, h, n : n + BN, p : p + BP].T, total_q)
                total_k = ts.tile.mma(times(values, kept), after[b, c, h, n : n + BN, p : p + BP].T, total_k)
            shares = (shares * between(sums) * weight[None, :] * scale.to(ts.f32)).to(q.dtype)
            total_q = ts.tile.mma(shares, keys, total_q)
            total_k = ts.tile.mma(shares.T, queries, total_k)
        of_q[b, start : start + Q, group, n : n + BN] = total_q
        of_k[b, start : start + Q, group, n : n + BN] = total_k


@ts.kernel
def summed(
    parts: ts.Tensor[B, C, H, ts.f32],
    out: ts.Tensor[H, ts.f32],
    BC: Constant = 64,
    BH: Constant = 16,
):
    """Sums over chunks and batches, in one order."""
    for h in ts.tile.grid((H, BH)):
        total = ts.tile.zeros((BH,), ts.f32)
        for b in ts.tile.range(B):
            for c in ts.tile.range(0, C, BC):
                total = total + ts.tile.sum(parts[b, c : c + BC, h : h + BH], 0)
        out[h : h + BH] = total
