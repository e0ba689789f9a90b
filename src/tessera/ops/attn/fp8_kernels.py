"""Kernels of attention in 8 bits: rounding to e4m3 with scales, values with keys along rows, and the products."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, Constant
from tessera.ops.attn.flash_kernels import INF, LOG2E, only_keys
from tessera.ops.attn.flash_kernels import present as base_of
from tessera.ops.transforms.kernels import butterflies

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32)
C = ts.dtype_var("C", ts.fp8_e4m3, ts.fp8_e5m2)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.fp8_e4m3, ts.fp8_e5m2)
O = ts.dtype_var("O", ts.bf16, ts.f16, ts.f32)  # noqa: E741
B, H, G, M, N, D, E, L, P, X, Y = ts.dims("B H G M N D E L P X Y")

ROWS = 128
"""Queries, or keys, of a block with a scale of its own; keys of values are a multiple of it."""
LARGEST = 448.0
_LEAST = 2.0**-100
"""Largest magnitudes below it count as zeros, whose scale is 1."""
_LEAST_STEP = 2.0**-120
"""Of the factor of products: it is not 0, by which -inf must not be multiplied."""
LIFT = 8.0
"""Weights are 2**8 times as large as they are, so that most of those that count are no subnormal numbers of e4m3."""
_SEED = 0x7E55E4A


@ts.function
def rounded(x: Any) -> Any:
    """Return `x`, no larger than e4m3 has numbers, rounded to it: clamping is what GPUs do in one instruction."""
    return x.to(ts.fp8_e4m3 @ ts.saturate)


@ts.function
def interleaved(x: Any) -> Any:
    """Return `x` with keys, its last dimension, in the order that products take weights and values in.

    The first and the last 16 of 32 keys take turns. A thread of a GPU then multiplies the weights that it computed, and
    none go from thread to thread.
    """
    m, n = x.shape
    return x.reshape(m, n // 32, 2, 16).transpose(0, 1, 3, 2).reshape(m, n)


@ts.function
def turned(x: Any, rotates: Any) -> Any:
    """Return rows in f32, if asked for times random signs and the Hadamard matrix."""
    wide = x.to(ts.f32)
    if rotates:
        bits = ts.tile.philox(_SEED, ts.tile.arange(x.shape[1]))[0] & 1
        return butterflies(wide * (1.0 - 2.0 * bits.to(ts.f32))[None, :]) * (float(x.shape[1]) ** -0.5)
    return wide


@ts.function
def largest_of(found: Any, b: Any, h: Any, count: Any) -> Any:
    """Return the largest magnitude of a head by those of its blocks."""
    top = ts.tile.zeros((ROWS,), ts.f32)
    for at in ts.tile.range(0, count, ROWS):
        top = ts.tile.maximum(top, found[b, h, at : at + ROWS])
    return ts.tile.max(top)


@ts.function
def scale_of(top: Any) -> Any:
    """Return the scale of numbers by their largest magnitude."""
    return ts.tile.where(top < _LEAST, 1.0, top * (1.0 / LARGEST))


@ts.kernel
def largest(x: ts.Tensor[B, H, M, D, T], found: ts.Tensor[B, H, P, ts.f32], rotates: Constant):
    """The largest magnitude of each block of rows."""
    for b, h, p in ts.tile.grid((B, 1), (H, 1), (P, 1)):
        found[b, h, p] = ts.tile.max(ts.tile.abs(turned(x[b, h, p * ROWS : p * ROWS + ROWS, :], rotates)))


@ts.kernel
def quantize(
    x: ts.Tensor[B, H, M, D, T],
    found: ts.Tensor[B, H, P, ts.f32] | None,
    scales: ts.Tensor[B, H, X, ts.f32],
    codes: ts.Tensor[B, H, M, D, ts.fp8_e4m3],
    rotates: Constant,
):
    """Queries or keys in e4m3: a scale for each head by `found`, or else one for each block of rows."""
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, ROWS)):
        block = turned(x[b, h, m : m + ROWS, :], rotates)
        if found is not None:
            scale = scale_of(largest_of(found, b, h, P))
            if m == 0:
                scales[b, h, 0] = scale
        else:
            scale = scale_of(ts.tile.max(ts.tile.abs(block)))
            scales[b, h, m // ROWS] = scale
        codes[b, h, m : m + ROWS, :] = rounded(block * (1.0 / scale))


@ts.kernel
def quantize_values(
    v: ts.Tensor[B, G, N, E, W],
    found: ts.Tensor[B, G, P, ts.f32] | None,
    scales: ts.Tensor[B, G, ts.f32] | None,
    codes: ts.Tensor[B, G, E, L, C],
):
    """Values in 8 bits with keys along rows: rounded with a scale for each head, or as they are without scales."""
    for b, g, n in ts.tile.grid((B, 1), (G, 1), (L, ROWS)):
        block = v[b, g, n : n + ROWS, :]
        if scales is not None:
            scale = scale_of(largest_of(found, b, g, P))
            if n == 0:
                scales[b, g] = scale
            block = rounded(block.to(ts.f32) * (1.0 / scale))
        codes[b, g, :, n : n + ROWS] = interleaved(block.T)


@ts.kernel
def forward(
    q: ts.Tensor[B, H, M, D, C],
    k: ts.Tensor[B, G, N, D, C],
    v: ts.Tensor[B, G, E, L, C],
    q_scale: ts.Tensor[B, H, X, ts.f32],
    k_scale: ts.Tensor[B, G, Y, ts.f32],
    v_scale: ts.Tensor[B, G, ts.f32],
    out: ts.Tensor[B, H, M, E, O],
    lse: ts.Tensor[B, H, M, ts.f32] | None,
    softmax_scale: F64,
    causal: Constant,
    block: Constant,
    empties: Constant,
    BM: Constant,
    BN: Constant,
):
    """Softmax(q·kᵀ·scale)·v of 8-bit numbers, blocks of keys after each other.

    `tops` are scores times log2(e); weights, 2**(score - top + LIFT), are rounded to e4m3 for the product alone.
    """
    for b, h, m in ts.tile.grid((B, 1), (H, 1), (M, BM)):
        group = h // (H // G)
        rows = q[b, h, m : m + BM, :]
        total = ts.tile.zeros((BM, E), ts.f32)
        tops = ts.tile.full((BM,), -INF, ts.f32)
        sums = ts.tile.zeros((BM,), ts.f32)
        place = m + (N - M)
        of_rows = q_scale[b, h, m // ROWS if block else 0] * (softmax_scale * LOG2E).to(ts.f32)
        for n in ts.tile.range(0, min(N, place + BM) if causal else N, BN):
            step = max(of_rows * k_scale[b, group, n // ROWS if block else 0], _LEAST_STEP)
            scores = ts.tile.mma(rows, k[b, group, n : n + BN, :].T)
            scores = ts.tile.causal_mask(scores, place, n) if causal else only_keys(scores, n, N, 1)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores) * step)
            base = base_of(above, empties)
            kept = ts.tile.exp2(tops - base)
            weights = ts.tile.exp2(scores * step - (base - LIFT)[:, None])
            sums = kept * sums + ts.tile.row_sum(weights)
            values = v[b, group, :, n : n + BN].T
            total = ts.tile.mma(rounded(interleaved(weights)), values, kept[:, None] * total)
            tops = above
        whole = ts.tile.where(sums == 0.0, 1.0, sums) if empties else sums
        out[b, h, m : m + BM, :] = total * (v_scale[b, group] / whole)[:, None]
        if lse is not None:
            lse[b, h, m : m + BM] = (tops - LIFT + ts.tile.log2(sums)) * (1.0 / LOG2E)
