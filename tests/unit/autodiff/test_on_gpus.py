"""Which instructions the gradients of products and attentions are computed by on GPUs, and what these would give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flash_attention
import gemm
import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.driver.variants import points
from tessera.tools.emulate.launch import Emulation, Limits
from tessera.tools.emulate.memory import Device

RNG = np.random.default_rng(11)
KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


def numbers(*shape: int, dtype: ts.DType) -> np.ndarray:
    return RNG.standard_normal(shape).astype(KINDS[dtype.name])


class Derived:
    """The adjoint of a kernel for a call, compiled for Hopper."""

    def __init__(self, kernel: Any, args: Sequence[Any], cotangent: np.ndarray) -> None:
        pullback, values = ts.pullback(kernel), kernel.bound(args, {})
        made = pullback._found(kernel, next(iter(points(kernel.space))), values, None)
        own = [one for one in args if isinstance(one, np.ndarray)]
        fresh = pullback._arrays(kernel.signature, made.known, own)
        self.arrays = [*own, cotangent, *fresh]
        self.gradients = dict(zip(made.known.inputs, fresh, strict=False))
        dims: dict[str, int] = {}
        for param, one in zip(made.known.signature.tensors, self.arrays, strict=True):
            for dim, size in zip(param.dims, one.shape, strict=True):
                dims |= {**dict.fromkeys(dim.names, 1), **dict.fromkeys(dim.names[:1], size)}
        self.artifact = ts.compile(made.kernel, "sm_90a", ["ptx"], dims=dims)

    @property
    def programs(self) -> list[str]:
        """The text of each launch."""
        return self.artifact.dumps["ptx"].split(".visible .entry")[1:]

    def run(self) -> dict[str, np.ndarray]:
        """Return the gradients that an emulated GPU computes."""
        device = Device()
        pointers = [device.add(one.reshape(-1).view(np.uint8), np.ones(one.nbytes, bool)) for one in self.arrays]
        shapes = [(one.shape, tuple(step // one.itemsize for step in one.strides)) for one in self.arrays]
        Emulation(self.artifact).run(device, pointers, shapes, [], Limits(10**9))
        for number, one in enumerate(self.arrays):
            one.reshape(-1).view(np.uint8)[...] = device.back(number)
        return self.gradients


def attention_by_numpy(q: Any, k: Any, v: Any, grad: Any, causal: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return result and gradients in float64."""
    q, k, v, grad = (one.astype(np.float64) for one in (q, k, v, grad))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = q @ k.swapaxes(1, 2) * scale
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    of_p = grad @ v.swapaxes(1, 2)
    of_scores = p * (of_p - (of_p * p).sum(-1, keepdims=True)) * scale
    found = {"Q": of_scores @ k, "K": of_scores.swapaxes(1, 2) @ q, "V": p.swapaxes(1, 2) @ grad}
    return p @ v, found


@pytest.mark.parametrize(("dtype", "size", "causal"), [(ts.bf16, 128, True), (ts.f16, 64, False)], ids=str)
def test_gradients_of_attention_on_matrix_units(dtype: ts.DType, size: int, causal: bool) -> None:
    q, k, v, grad = (numbers(1, 150, size, dtype=dtype) for _ in range(4))
    out, exact = attention_by_numpy(q, k, v, grad, causal)
    kernel = flash_attention.flash_attention_for(dtype, "cuda")
    derived = Derived(kernel, [q, k, v, out.astype(q.dtype), causal], grad)
    assert [text.count("wgmma.mma_async") > 0 for text in derived.programs] == [True] * 3
    assert not any("mma.sync" in text for text in derived.programs)
    for name, found in derived.run().items():
        error = np.abs(found.astype(np.float64) - exact[name]).max() / np.abs(exact[name]).max()
        assert error < 2e-2, f"{name}: {error}"


@pytest.mark.parametrize("out", [ts.bf16, ts.f32], ids=str)
def test_gradients_of_products_on_matrix_units(out: ts.DType) -> None:
    a, b = numbers(128, 64, dtype=ts.bf16), numbers(64, 256, dtype=ts.bf16)
    grad = numbers(128, 256, dtype=out)
    derived = Derived(gemm.gemm_for(ts.bf16, out, "cuda"), [a, b, np.zeros_like(grad)], grad)
    products = [text for text in derived.programs if "mma" in text]
    assert products
    assert all("wgmma.mma_async" in text and "mma.sync" not in text for text in products)
    wide = grad.astype(np.float64)
    exact = {"A": wide @ b.astype(np.float64).T, "B": a.astype(np.float64).T @ wide}
    for name, found in derived.run().items():
        error = np.abs(found.astype(np.float64) - exact[name]).max() / np.abs(exact[name]).max()
        assert error < 2e-2, f"{name}: {error}"
