"""Kernels of short causal convolutions along time, one filter a channel."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops import approximations as about
from tessera.ops.annotations import I64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
U = ts.dtype_var("U", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64, ts.bf16, ts.f16)
B, D, L, W, P = ts.dims("B D L W P")


@ts.function
def filters(weight: Any, d: Any, count: Any, taps: Any, acc: Any) -> Any:
    """Return the weights of some channels, a column for each tap."""
    found = ()
    for w in ts.tile.static_range(taps):
        found += (weight[d : d + count, w].to(acc)[:, None],)
    return found


@ts.function
def convolved(x: Any, by: Any, bias: Any, b: Any, d: Any, t: Any, shape: Any, taps: Any, acc: Any) -> Any:
    """Return for a block of times the sums of what came up to them, by the weights of their channels."""
    total = ts.tile.zeros(shape, acc)
    if bias is not None:
        total = total + bias[d : d + shape[0]].to(acc)[:, None]
    for w in ts.tile.static_range(taps):
        back = t + (w - taps + 1)
        total = total + x[b, d : d + shape[0], back : back + shape[1]].to(acc) * by[w]
    return total


@ts.kernel
def forward(
    x: ts.Tensor[B, D, L, T],
    weight: ts.Tensor[D, W, U],
    bias: ts.Tensor[D, U] | None,
    out: ts.Tensor[B, D, L, T],
    taps: Constant,
    activates: Constant,
    rough: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Convolve each channel; elements before the first are zeros."""
    for b, d, t in ts.tile.grid((B, 1), (D, BD), (L, BL)):
        by = filters(weight, d, BD, taps, acc)
        y = convolved(x, by, bias, b, d, t, (BD, BL), taps, acc)
        out[b, d : d + BD, t : t + BL] = about.silu(y, rough) if activates else y


@ts.kernel
def input_gradient(
    grad: ts.Tensor[B, D, L, T],
    weight: ts.Tensor[D, W, U],
    out: ts.Tensor[B, D, L, T],
    taps: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Gradient of the input: the same convolution, from the other end."""
    for b, d, t in ts.tile.grid((B, 1), (D, BD), (L, BL)):
        by = filters(weight, d, BD, taps, acc)
        total = ts.tile.zeros((BD, BL), acc)
        for w in ts.tile.static_range(taps):
            later = t + (taps - 1 - w)
            total = total + grad[b, d : d + BD, later : later + BL].to(acc) * by[w]
        out[b, d : d + BD, t : t + BL] = total


@ts.kernel
def weight_gradients(
    grad: ts.Tensor[B, D, L, T],
    x: ts.Tensor[B, D, L, T],
    weight: ts.Tensor[D, W, U],
    bias: ts.Tensor[D, U] | None,
    inner: ts.Tensor[B, D, L, T] | None,
    of_weight: ts.Tensor[P, D, W, S],
    of_bias: ts.Tensor[P, D, 1, S],
    each: I64,
    taps: Constant,
    rough: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Gradients of weights and bias: sums over `each` blocks of times in each of P parts.

    `inner` takes the gradient of the sums that SiLU was applied to, which are computed again.
    """
    for p, d in ts.tile.grid((P, 1), (D, BD)):
        by = filters(weight, d, BD, taps, acc)
        weights = (ts.tile.zeros((BD, BL), acc),) * taps
        biases = ts.tile.zeros((BD, BL), acc)
        blocks = ts.cdiv(L, BL)
        for i in ts.tile.range(p * each, min((p + 1) * each, B * blocks)):
            b = i // blocks
            t = i % blocks * BL
            inside = (t + ts.tile.arange(BL, dtype=ts.i64) < L)[None, :]
            g = grad[b, d : d + BD, t : t + BL].to(acc)
            if inner is not None:
                y = convolved(x, by, bias, b, d, t, (BD, BL), taps, acc)
                s = about.sigmoid(y, rough)
                g = ts.tile.where(inside, g * (s + y * s * (1.0 - s)), 0.0)
            added = ()
            for w in ts.tile.static_range(taps):
                back = t + (w - taps + 1)
                before = x[b, d : d + BD, back : back + BL].to(acc)
                added += (weights[w] + g * ts.tile.where(inside, before, 0.0),)
            weights = added
            biases = biases + g
            if inner is not None:
                inner[b, d : d + BD, t : t + BL] = g
        for w in ts.tile.static_range(taps):
            of_weight[p, d : d + BD, w] = ts.tile.sum(weights[w], 1)
        of_bias[p, d : d + BD, :] = ts.tile.sum(biases, 1, keepdims=True)


@ts.kernel
def joined(parts: ts.Tensor[P, D, W, S], out: ts.Tensor[D, W, U], acc: Constant, BD: Constant = 64):
    """Add up the sums of parts in one order."""
    for d in ts.tile.grid((D, BD)):
        total = ts.tile.zeros((BD, W), acc)
        for p in ts.tile.range(P):
            total = total + parts[p, d : d + BD, :]
        out[d : d + BD, :] = total
