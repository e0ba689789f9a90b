"""Kernels of gated activations: one pass over gate and up, forward and backward."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant
from tessera.ops.approximations import exp_for

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
M, N = ts.dims("M N")

ROOT_HALF = 0.7071067811865476
DENSITY = 0.3989422804014327
"""Of the normal distribution at 0."""
LEAST = 1e-30
"""What counts for a distance of 0, by which nothing can be divided."""
TANH_SCALE = 0.7978845608028654
TANH_CUBE = 0.044715


@ts.function
def activated(x: Any, act: Any) -> Any:
    """Return an activation of a gate."""
    if act == "silu":
        return ts.tile.silu(x)
    if act == "relu":
        return ts.tile.relu(x)
    return ts.tile.gelu(x, approximate=act == "gelu_tanh")


@ts.function
def with_slope(x: Any, act: Any, made: Any) -> Any:
    """Return an activation of a gate and its derivative, for results of the dtype `made`."""
    if act == "silu":
        s = ts.tile.sigmoid(x)
        return x * s, s + x * s * (1.0 - s)
    if act == "relu":
        return ts.tile.relu(x), ts.tile.where(x <= 0.0, 0.0, 1.0).to(x.dtype)
    if act == "gelu":
        return normal_with_slope(x, made)
    s = ts.tile.sigmoid(2.0 * TANH_SCALE * (x + TANH_CUBE * x * x * x))  # (1 + tanh) / 2
    return x * s, s + 2.0 * x * s * (1.0 - s) * (TANH_SCALE * (1.0 + 3.0 * TANH_CUBE * x * x))


@ts.function
def normal_with_slope(x: Any, made: Any) -> Any:
    """Return x times the normal distribution function, and its derivative."""
    bell = x * (DENSITY * exp_for(-0.5 * x * x, made))
    if made.bits == 64:
        return ts.tile.gelu(x), 0.5 * ts.tile.erfc(-ROOT_HALF * x) + bell
    # What is left of the distribution beyond |x|, times |x|, has all its digits; it is GELU's without max(x, 0).
    size = ts.tile.maximum(ts.tile.abs(x), LEAST)
    beyond = -ts.tile.gelu(-size)
    tail = beyond / size
    return ts.tile.maximum(x, 0.0) - beyond, ts.tile.where(x < 0.0, tail, 1.0 - tail) + bell


@ts.kernel
def forward(
    gate: ts.Tensor[M, N, T],
    up: ts.Tensor[M, N, T],
    out: ts.Tensor[M, N, T],
    act: Constant,
    acc: Constant,
    BM: Constant = 4,
    BN: Constant = 256,
):
    """Multiply `up` by the activated gate."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        g = gate[m : m + BM, n : n + BN].to(acc)
        out[m : m + BM, n : n + BN] = activated(g, act) * up[m : m + BM, n : n + BN].to(acc)


@ts.kernel
def backward(
    grad: ts.Tensor[M, N, T],
    gate: ts.Tensor[M, N, T],
    up: ts.Tensor[M, N, T],
    grad_gate: ts.Tensor[M, N, T],
    grad_up: ts.Tensor[M, N, T],
    act: Constant,
    acc: Constant,
    BM: Constant = 4,
    BN: Constant = 256,
):
    """Gradients of both, from one reading of what the call was given."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        d = grad[m : m + BM, n : n + BN].to(acc)
        g = gate[m : m + BM, n : n + BN].to(acc)
        u = up[m : m + BM, n : n + BN].to(acc)
        value, slope = with_slope(g, act, grad_gate.dtype)
        grad_gate[m : m + BM, n : n + BN] = d * u * slope
        grad_up[m : m + BM, n : n + BN] = d * value
