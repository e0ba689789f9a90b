"""Kernels of gated activations: one pass over gate and up, forward and backward."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
M, N = ts.dims("M N")

ROOT_HALF = 0.7071067811865476
DENSITY = 0.3989422804014327
"""Of the normal distribution at 0."""
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
def slope(x: Any, act: Any) -> Any:
    """Return the derivative of an activation."""
    if act == "silu":
        s = ts.tile.sigmoid(x)
        return s + x * s * (1.0 - s)
    if act == "relu":
        return ts.tile.where(x <= 0.0, 0.0, 1.0).to(x.dtype)
    if act == "gelu":
        return 0.5 * ts.tile.erfc(-ROOT_HALF * x) + x * (DENSITY * ts.tile.exp(-0.5 * x * x))
    t = ts.tile.tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x))
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (TANH_SCALE * (1.0 + 3.0 * TANH_CUBE * x * x))


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
        grad_gate[m : m + BM, n : n + BN] = d * u * slope(g, act)
        grad_up[m : m + BM, n : n + BN] = d * activated(g, act)
