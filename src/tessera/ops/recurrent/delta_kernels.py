"""Kernels of recurrences by the delta rule, computed a chunk of steps at a time.

For one head: `S[t] = exp(g[t])·S[t-1] + k[t]⊗u[t]`, where `u[t] = beta[t]·(v[t] - exp(g[t])·k[t]·S[t-1])` replaces
what the state holds for a key. In a chunk, u solves a triangular system whose matrix does not depend on the state, so it
is inverted for all chunks at once: `u = scaled values - scaled keys · state before the chunk`.
"""

from __future__ import annotations

import math
from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant
from tessera.ops.recurrent.chunk_kernels import between, first_state, until_end

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32)
B, L, C, H, G, N, P = ts.dims("B L C H G N P")


@ts.function
def product(a: Any, b: Any, is_narrow: Any) -> Any:
    """Return a product in f32; for results that are rounded to 16 bits, of operands with mantissas of 10."""
    return ts.tile.mma(a, b, compute=ts.tf32) if is_narrow else ts.tile.mma(a, b)


@ts.function
def inverse(below: Any, is_narrow: Any) -> Any:
    """Return the inverse of the unit triangular matrix with these elements below its diagonal.

    Inverses of blocks along the diagonal are merged in pairs: that of `[[a, 0], [c, b]]` has `-b⁻¹·c·a⁻¹` in its
    corner.
    """
    size = below.shape[0]
    rows, columns = ts.tile.arange(size)[:, None], ts.tile.arange(size)[None, :]
    found = ts.tile.where(rows == columns, 1.0, ts.tile.where(rows // 2 == columns // 2, -below, 0.0))
    # Not unrolled: every product would have shared memory of its own.
    for step in ts.tile.range(1, math.ceil(math.log2(size))):
        level = step.to(ts.i32)
        is_corner = (rows >> level != columns >> level) & (rows >> (level + 1) == columns >> (level + 1))
        corners = ts.tile.where(is_corner, below, 0.0)
        found = found - product(product(found, corners, is_narrow), found, is_narrow)
    return found


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
        places = ts.tile.arange(Q)
        below = ts.tile.mma(rows, rows.T) * between(sums) * strength[:, None]
        below = ts.tile.where(places[:, None] > places[None, :], below, 0.0)
        solved = (inverse(below, is_narrow) * strength[None, :]).to(k.dtype)
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
