"""Kernels of short causal convolutions along time, one filter a channel."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
U = ts.dtype_var("U", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64, ts.bf16, ts.f16)
B, D, L, W = ts.dims("B D L W")


@ts.function
def convolved(x: Any, weight: Any, bias: Any, b: Any, d: Any, t: Any, shape: Any, taps: Any, acc: Any) -> Any:
    """Return for a block of times the sums of what came up to them, by the weights of their channels."""
    total = ts.tile.zeros(shape, acc)
    if bias is not None:
        total = total + bias[d : d + shape[0]].to(acc)[:, None]
    for w in ts.tile.static_range(taps):
        back = t + (w - taps + 1)
        some = x[b, d : d + shape[0], back : back + shape[1]].to(acc)
        total = total + some * weight[d : d + shape[0], w].to(acc)[:, None]
    return total


@ts.kernel
def forward(
    x: ts.Tensor[B, D, L, T],
    weight: ts.Tensor[D, W, U],
    bias: ts.Tensor[D, U] | None,
    out: ts.Tensor[B, D, L, T],
    taps: Constant,
    activates: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Convolve each channel; elements before the first are zeros."""
    for b, d, t in ts.tile.grid((B, 1), (D, BD), (L, BL)):
        y = convolved(x, weight, bias, b, d, t, (BD, BL), taps, acc)
        out[b, d : d + BD, t : t + BL] = ts.tile.silu(y) if activates else y


@ts.kernel
def activation_gradient(
    grad: ts.Tensor[B, D, L, T],
    x: ts.Tensor[B, D, L, T],
    weight: ts.Tensor[D, W, U],
    bias: ts.Tensor[D, U] | None,
    out: ts.Tensor[B, D, L, S],
    taps: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Gradient of the sums that SiLU was applied to, which are computed again."""
    for b, d, t in ts.tile.grid((B, 1), (D, BD), (L, BL)):
        y = convolved(x, weight, bias, b, d, t, (BD, BL), taps, acc)
        s = ts.tile.sigmoid(y)
        out[b, d : d + BD, t : t + BL] = grad[b, d : d + BD, t : t + BL].to(acc) * (s + y * s * (1.0 - s))


@ts.kernel
def input_gradient(
    grad: ts.Tensor[B, D, L, S],
    weight: ts.Tensor[D, W, U],
    out: ts.Tensor[B, D, L, T],
    taps: Constant,
    acc: Constant,
    BD: Constant = 4,
    BL: Constant = 256,
):
    """Gradient of the input: the same convolution, from the other end."""
    for b, d, t in ts.tile.grid((B, 1), (D, BD), (L, BL)):
        total = ts.tile.zeros((BD, BL), acc)
        for w in ts.tile.static_range(taps):
            later = t + (taps - 1 - w)
            some = grad[b, d : d + BD, later : later + BL].to(acc)
            total = total + some * weight[d : d + BD, w].to(acc)[:, None]
        out[b, d : d + BD, t : t + BL] = total


@ts.kernel
def weight_gradient(
    grad: ts.Tensor[B, D, L, S],
    x: ts.Tensor[B, D, L, T],
    out: ts.Tensor[D, W, U],
    out_bias: ts.Tensor[D, U] | None,
    acc: Constant,
    BD: Constant = 1,
    BL: Constant = 512,
):
    """Gradients of one weight of some channels, and of their bias: sums over batch and time in one order."""
    for d, w in ts.tile.grid((D, BD), (W, 1)):
        of_weight = ts.tile.zeros((BD, BL), acc)
        of_bias = ts.tile.zeros((BD, BL), acc)
        for b in ts.tile.range(B):
            for t in ts.tile.range(0, L, BL):
                g = grad[b, d : d + BD, t : t + BL].to(acc)
                back = t + (w - W + 1)
                of_weight = of_weight + g * x[b, d : d + BD, back : back + BL].to(acc)
                of_bias = of_bias + g
        out[d : d + BD, w] = ts.tile.sum(of_weight, 1)
        if out_bias is not None:  # no case at run time where there is no bias
            if w == 0:
                out_bias[d : d + BD] = ts.tile.sum(of_bias, 1)
