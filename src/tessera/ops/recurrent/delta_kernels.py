"""Kernels of recurrences by the delta rule, computed a chunk of steps at a time.

For one head: `S[t] = exp(g[t])·S[t-1] + k[t]⊗u[t]`, where `u[t] = beta[t]·(v[t] - exp(g[t])·k[t]·S[t-1])` replaces
what the state holds for a key. In a chunk, u solves a triangular system whose matrix does not depend on the state and
is inverted for all chunks at once: `u = scaled values - scaled keys · state before the chunk`.
"""

from __future__ import annotations

import math
from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant
from tessera.ops.recurrent.chunk_kernels import between, first_state, inner, times, until_end

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32)
B, L, C, H, G, N, P = ts.dims("B L C H G N P")


@ts.function
def product(a: Any, b: Any, is_narrow: Any) -> Any:
    """Return a product in f32; for results that are rounded to 16 bits, of operands with mantissas of 10."""
    return ts.tile.mma(a, b, compute=ts.tf32) if is_narrow else ts.tile.mma(a, b)


@ts.function
def inverse(lower: Any, is_narrow: Any) -> Any:
    """Return the inverse of the unit triangular matrix with these elements below its diagonal.

    Inverses of blocks along the diagonal are merged in pairs: that of `[[a, 0], [c, b]]` has `-b⁻¹·c·a⁻¹` in its
    corner.
    """
    size = lower.shape[0]
    rows, columns = ts.tile.arange(size)[:, None], ts.tile.arange(size)[None, :]
    found = ts.tile.where(rows == columns, 1.0, ts.tile.where(rows // 2 == columns // 2, -lower, 0.0))
    # Not unrolled: every product would have shared memory of its own.
    for step in ts.tile.range(1, math.ceil(math.log2(size))):
        level = step.to(ts.i32)
        is_corner = (rows >> level != columns >> level) & (rows >> (level + 1) == columns >> (level + 1))
        corners = ts.tile.where(is_corner, lower, 0.0)
        found = found - product(product(found, corners, is_narrow), found, is_narrow)
    return found


@ts.function
def below(products: Any, sums: Any) -> Any:
    """Return products `(t, s)` of a chunk's steps, times what is left between them, where s is before t; else 0."""
    places = ts.tile.arange(products.shape[0])
    return ts.tile.where(places[:, None] > places[None, :], products * between(sums), 0.0)


@ts.kernel
def factors(
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    beta: ts.Tensor[B, L, H, ts.f32],
    keys: ts.Tensor[B, L, H, N, T],
    values: ts.Tensor[B, L, H, P, T],
    is_narrow: Constant,
    Q: Constant,
):
    """Scaled keys and values of chunks of Q steps."""
    for b, c, h in ts.tile.grid((B, 1), (ts.cdiv(L, Q), 1), (H, 1)):
        start = c * Q
        rows = k[b, start : start + Q, h // (H // G), :]
        strength = beta[b, start : start + Q, h]
        sums = ts.tile.cumsum(g[b, start : start + Q, h])
        solved = (
            inverse(below(ts.tile.mma(rows, rows.T), sums) * strength[:, None], is_narrow) * strength[None, :]
        ).to(k.dtype)
        values[b, start : start + Q, h, :] = ts.tile.mma(solved, v[b, start : start + Q, h, :])
        faded = (solved.to(ts.f32) * ts.tile.exp(sums)[None, :]).to(k.dtype)
        keys[b, start : start + Q, h, :] = ts.tile.mma(faded, rows)


@ts.kernel
def states(
    k: ts.Tensor[B, L, G, N, T],
    g: ts.Tensor[B, L, H, ts.f32],
    keys: ts.Tensor[B, L, H, N, T],
    values: ts.Tensor[B, L, H, P, T],
    initial: ts.Tensor[B, H, N, P, ts.f32] | None,
    before: ts.Tensor[B, C, H, N, P, T],
    written: ts.Tensor[B, L, H, P, T],
    last: ts.Tensor[B, H, N, P, ts.f32],
    Q: Constant,
    BP: Constant,
):
    """States before chunks and after the last one, and what steps write to them."""
    for b, h, p in ts.tile.grid((B, 1), (H, 1), (P, BP)):
        group = h // (H // G)
        state = first_state(initial, b, h, 0, p, False, N, BP)
        for c in ts.tile.range(C):
            start = c * Q
            held = state.to(k.dtype)
            before[b, c, h, :, p : p + BP] = held
            found = values[b, start : start + Q, h, p : p + BP].to(ts.f32)
            found = found - ts.tile.mma(keys[b, start : start + Q, h, :], held)
            written[b, start : start + Q, h, p : p + BP] = found
            rate = g[b, start : start + Q, h]
            added = (found * until_end(rate)[:, None]).to(k.dtype)
            left = ts.tile.exp(ts.tile.sum(rate))
            state = ts.tile.mma(k[b, start : start + Q, group, :].T, added, state * left)
        last[b, h, :, p : p + BP] = state


@ts.kernel
def state_gradients(
    grad: ts.Tensor[B, L, H, P, T],
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    g: ts.Tensor[B, L, H, ts.f32],
    keys: ts.Tensor[B, L, H, N, T],
    last: ts.Tensor[B, H, N, P, ts.f32] | None,
    after: ts.Tensor[B, C, H, N, P, T],
    of_written: ts.Tensor[B, L, H, P, T],
    of_initial: ts.Tensor[B, H, N, P, ts.f32],
    scale: F64,
    Q: Constant,
    BP: Constant,
):
    """Gradients of states after chunks, from the last one on, and of what steps write to them."""
    for b, h, p in ts.tile.grid((B, 1), (H, 1), (P, BP)):
        group = h // (H // G)
        state = first_state(last, b, h, 0, p, False, N, BP)
        for step in ts.tile.range(C):
            c = C - 1 - step
            start = c * Q
            held = state.to(k.dtype)
            after[b, c, h, :, p : p + BP] = held
            rate = g[b, start : start + Q, h]
            sums = ts.tile.cumsum(rate)
            rows = k[b, start : start + Q, group, :]
            queries = q[b, start : start + Q, group, :]
            slopes = grad[b, start : start + Q, h, p : p + BP]
            scores = ts.tile.mma(rows, queries.T) * between(sums).T * scale.to(ts.f32)
            found = ts.tile.mma(rows, held) * until_end(rate)[:, None]
            found = ts.tile.mma(scores.to(k.dtype), slopes, found).to(k.dtype)
            of_written[b, start : start + Q, h, p : p + BP] = found
            faded = times(slopes, ts.tile.exp(sums) * scale.to(ts.f32))
            state = ts.tile.mma(queries.T, faded, state * ts.tile.exp(ts.tile.sum(rate)))
            state = state - ts.tile.mma(keys[b, start : start + Q, h, :].T, found)
        of_initial[b, h, :, p : p + BP] = state


@ts.kernel
def value_gradients(
    grad: ts.Tensor[B, L, H, P, T],
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    v: ts.Tensor[B, L, H, P, T],
    g: ts.Tensor[B, L, H, ts.f32],
    beta: ts.Tensor[B, L, H, ts.f32],
    written: ts.Tensor[B, L, H, P, T],
    of_written: ts.Tensor[B, L, H, P, T],
    before: ts.Tensor[B, C, H, N, P, T],
    after: ts.Tensor[B, C, H, N, P, T],
    solved: ts.Tensor[B, L, H, P, T],
    of_v: ts.Tensor[B, L, H, P, T],
    of_g: ts.Tensor[B, L, H, ts.f32],
    of_beta: ts.Tensor[B, L, H, ts.f32],
    scale: F64,
    is_narrow: Constant,
    Q: Constant,
    BP: Constant,
):
    """Gradients of values, decays and strengths, and of the right sides of the systems of chunks, `solved`."""
    for b, c, h in ts.tile.grid((B, 1), (C, 1), (H, 1)):
        group = h // (H // G)
        start = c * Q
        rate = g[b, start : start + Q, h]
        strength = beta[b, start : start + Q, h]
        sums = ts.tile.cumsum(rate)
        through = ts.tile.exp(ts.tile.sum(rate)) * inner(after, before, b, c, h, N)
        rows = k[b, start : start + Q, group, :]
        queries = q[b, start : start + Q, group, :]
        unscaled = below(ts.tile.mma(rows, rows.T), sums)
        turned = inverse(unscaled * strength[:, None], is_narrow).T.to(k.dtype)
        lower = ts.tile.zeros((Q, Q), ts.f32)
        shares = ts.tile.zeros((Q, Q), ts.f32)
        asked = ts.tile.zeros((Q,), ts.f32)
        replaced = ts.tile.zeros((Q,), ts.f32)
        read = ts.tile.zeros((Q,), ts.f32)
        passed = ts.tile.zeros((Q,), ts.f32)
        for p in ts.tile.range(0, P, BP):
            slopes = ts.tile.mma(turned, of_written[b, start : start + Q, h, p : p + BP])
            solved[b, start : start + Q, h, p : p + BP] = slopes
            of_v[b, start : start + Q, h, p : p + BP] = slopes * strength[:, None]
            new = written[b, start : start + Q, h, p : p + BP]
            grads = grad[b, start : start + Q, h, p : p + BP]
            lower = ts.tile.mma(slopes.to(k.dtype), new.T, lower)
            shares = ts.tile.mma(grads, new.T, shares)
            state = before[b, c, h, :, p : p + BP]
            replaced = replaced + ts.tile.sum(slopes * ts.tile.mma(rows, state), 1)
            asked = asked + ts.tile.sum(slopes * v[b, start : start + Q, h, p : p + BP].to(ts.f32), 1)
            read = read + ts.tile.sum(grads.to(ts.f32) * ts.tile.mma(queries, state), 1)
            passed = passed + ts.tile.sum(new.to(ts.f32) * ts.tile.mma(rows, after[b, c, h, :, p : p + BP]), 1)

        faded = ts.tile.exp(sums)
        replaced = replaced * faded
        lower = -lower * unscaled
        of_beta[b, start : start + Q, h] = asked - replaced + ts.tile.sum(lower, 1)

        scores = ts.tile.mma(queries, rows.T) * between(sums)
        shares = shares * scores * scale.to(ts.f32) + lower * strength[:, None]
        taken = ts.tile.sum(shares, 1) - ts.tile.sum(shares, 0)
        taken = taken + read * faded * scale.to(ts.f32) - replaced * strength
        passed = passed * until_end(rate)
        of_rate = ts.tile.cumsum(taken, reverse=True) + (ts.tile.cumsum(passed) - passed) + through
        of_g[b, start : start + Q, h] = of_rate


@ts.kernel
def key_gradients(
    grad: ts.Tensor[B, L, H, P, T],
    q: ts.Tensor[B, L, G, N, T],
    k: ts.Tensor[B, L, G, N, T],
    g: ts.Tensor[B, L, H, ts.f32],
    beta: ts.Tensor[B, L, H, ts.f32],
    written: ts.Tensor[B, L, H, P, T],
    solved: ts.Tensor[B, L, H, P, T],
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
            rate = g[b, start : start + Q, h]
            strength = beta[b, start : start + Q, h]
            sums = ts.tile.cumsum(rate)
            faded = ts.tile.exp(sums)
            rest = until_end(rate)
            shares = ts.tile.zeros((Q, Q), ts.f32)
            lower = ts.tile.zeros((Q, Q), ts.f32)
            for p in ts.tile.range(0, P, BP):
                new = written[b, start : start + Q, h, p : p + BP]
                slopes = solved[b, start : start + Q, h, p : p + BP]
                grads = grad[b, start : start + Q, h, p : p + BP]
                state = before[b, c, h, n : n + BN, p : p + BP]
                shares = ts.tile.mma(grads, new.T, shares)
                lower = ts.tile.mma(slopes, new.T, lower)
                total_q = ts.tile.mma(times(grads, faded * scale.to(ts.f32)), state.T, total_q)
                total_k = ts.tile.mma(times(slopes, -faded * strength), state.T, total_k)
                total_k = ts.tile.mma(times(new, rest), after[b, c, h, n : n + BN, p : p + BP].T, total_k)
            shares = (shares * between(sums) * scale.to(ts.f32)).to(k.dtype)
            total_q = ts.tile.mma(shares, keys, total_q)
            total_k = ts.tile.mma(shares.T, queries, total_k)
            lower = (below(-lower, sums) * strength[:, None]).to(k.dtype)
            total_k = ts.tile.mma(lower, keys, total_k)
            total_k = ts.tile.mma(lower.T, keys, total_k)
        of_q[b, start : start + Q, group, n : n + BN] = total_q
        of_k[b, start : start + Q, group, n : n + BN] = total_k
