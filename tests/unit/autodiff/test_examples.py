"""Gradients of the kernels in examples/, beside float64 autograd of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import bias_gelu
import dropout
import flash_attention
import gemm
import layernorm
import ml_dtypes
import mlp
import numpy as np
import pytest
import rmsnorm
import rope
import saxpy
import softmax

import tessera as ts

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(9)
TOLERANCE = {"f32": 5e-6, "bf16": 2e-2}
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}


def numbers(*shape: int, dtype: ts.DType = ts.f32) -> Any:
    return RNG.standard_normal(shape).astype(KINDS[dtype.name])


def check(
    kernel: Any,
    args: Sequence[Any],
    output: str,
    y: Any,
    function: Callable[..., Any],
    inputs: dict[str, Any],
    tolerance: float,
) -> None:
    """Check the gradients of a kernel beside those of a function of float64 tensors."""
    kernel(*args)
    weight = RNG.standard_normal(y.shape).astype(y.dtype)
    gradients = ts.pullback(kernel, [*inputs])(*args, cotangents={output: weight})
    leaves = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in inputs.values()]
    function(*leaves).backward(torch.tensor(weight.astype(np.float64)))
    for (name, x), leaf in zip(inputs.items(), leaves, strict=True):
        assert gradients[name].dtype == x.dtype
        wanted = leaf.grad.numpy()
        error = np.abs(gradients[name].astype(np.float64) - wanted).max() / np.abs(wanted).max()
        assert error < tolerance, f"{name}: {error}"


both = pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)


@both
def test_softmax(dtype: ts.DType):
    x, y = numbers(37, 77, dtype=dtype), numbers(37, 77, dtype=dtype)
    check(softmax.softmax_for(dtype), (x, y), "Y", y, lambda x: torch.softmax(x, -1), {"X": x}, TOLERANCE[dtype.name])


@both
def test_layernorm(dtype: ts.DType):
    x, w, b, y = (numbers(*shape, dtype=dtype) for shape in [(37, 77), (77,), (77,), (37, 77)])

    def function(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (77,), w, b, 1e-5)

    inputs = {"X": x, "W": w, "B": b}
    check(layernorm.layernorm_for(dtype), (x, w, b, y, 1e-5), "Y", y, function, inputs, TOLERANCE[dtype.name])


def test_rmsnorm():
    x, w, y = (numbers(*shape) for shape in [(37, 77), (77,), (37, 77)])

    def function(x: Any, w: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w

    check(rmsnorm.rmsnorm_for(ts.f32), (x, w, y, 1e-5), "Y", y, function, {"X": x, "W": w}, 5e-6)


def test_gemm():
    a, b, c = (numbers(*shape, dtype=ts.bf16) for shape in [(150, 170), (170, 290), (150, 290)])
    kernel = gemm.gemm_for(ts.bf16, ts.bf16, "cpu")
    check(kernel, (a, b, c), "C", c, torch.matmul, {"A": a, "B": b}, TOLERANCE["bf16"])


@pytest.mark.parametrize("approximate", [False, True])
def test_bias_gelu(approximate: bool):
    x, b, y = (numbers(*shape) for shape in [(37, 77), (77,), (37, 77)])

    def function(x: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(x + b, approximate="tanh" if approximate else "none")

    check(bias_gelu.bias_gelu_for(ts.f32), (x, b, y, approximate), "Y", y, function, {"X": x, "B": b}, 5e-6)


def test_rope():
    x, y, angle = numbers(5, 40, 16), numbers(5, 40, 16), rope.angles(40, 8)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def function(x: Any, cos: Any, sin: Any) -> Any:
        low, high = x[..., :8], x[..., 8:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    check(rope.rope_for(ts.f32), (x, cos, sin, y), "Y", y, function, {"X": x, "COS": cos, "SIN": sin}, 5e-6)


def test_saxpy():
    x, y = numbers(3001), numbers(3001)
    before = y.copy()
    check(saxpy.saxpy, (x, y, 2.5), "y", y, lambda x, y: 2.5 * x + y, {"x": x, "y": before}, 5e-6)


def test_dropout():
    x, y = numbers(3001), numbers(3001)
    mask = torch.tensor(dropout.reference(np.ones(3001), 0.3, 7))
    check(dropout.dropout, (x, y, 0.3, 7), "y", y, lambda x: x * mask, {"x": x}, 5e-6)


@pytest.mark.parametrize(("dtype", "is_causal"), [(ts.f32, False), (ts.bf16, True)], ids=str)
def test_flash_attention(dtype: ts.DType, is_causal: bool):
    q, k, v, out = (numbers(2, 301, 32, dtype=dtype) for _ in range(4))

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(1, 2) / math.sqrt(32)
        if is_causal:
            scores = scores.masked_fill(~torch.ones(301, 301, dtype=torch.bool).tril(), -math.inf)
        return torch.softmax(scores, -1) @ v

    kernel = flash_attention.flash_attention_for(dtype, "cpu")
    inputs = {"Q": q, "K": k, "V": v}
    check(kernel, (q, k, v, out, is_causal), "OUT", out, function, inputs, TOLERANCE[dtype.name])


def test_gated_layer_with_an_epilogue():
    x, g, u, y = numbers(40, 33), numbers(33, 70), numbers(33, 70), numbers(40, 70)
    bias = numbers(70)
    chain = mlp.E.chain([mlp.E.scale(0.5), mlp.E.bias(bias)])

    def function(x: Any, g: Any, u: Any) -> Any:
        return 0.5 * torch.nn.functional.silu(x @ g) * (x @ u) + torch.tensor(bias)

    inputs = {"X": x, "G": g, "U": u}
    check(mlp.gated_for(ts.f32), (x, g, u, chain, y), "Y", y, function, inputs, 5e-6)
