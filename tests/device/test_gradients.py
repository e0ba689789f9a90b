"""Gradients through tile kernels on a real GPU: those of the CPU, and PyTorch's in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flash_attention
import gemm
import layernorm
import numpy as np
import pytest
import softmax

import tessera as ts
from tests.unit.autodiff.slopes import fresh, numbers
from tests.unit.autodiff.test_small_kernels import CASES

pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore")]  # of cuBLAS

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
KINDS = {"float32": ts.f32, "bfloat16": ts.bf16, "float16": ts.f16}


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_cpu(torch: Any, name: str) -> None:
    kernel, arguments, outputs, inputs = CASES[name]
    given = fresh(arguments)
    kernel(**given)
    weights = {out: numbers(*arguments[out].shape) for out in outputs}
    wanted = ts.pullback(kernel, inputs)(**given, cotangents=weights)

    def on_gpu(one: Any) -> Any:
        return torch.from_numpy(one).cuda() if isinstance(one, np.ndarray) else one

    there = {key: on_gpu(one.copy() if isinstance(one, np.ndarray) else one) for key, one in arguments.items()}
    kernel(**there)
    weights = {key: on_gpu(one) for key, one in weights.items()}
    for _ in range(2):
        found = ts.pullback(kernel, inputs)(**there, cotangents=weights)
        for key, one in wanted.items():
            error = np.abs(found[key].cpu().numpy() - one).max() / (np.abs(one).max() + 1e-3)
            assert error < 1e-11, f"{key}: {error}"


def check(
    torch: Any, kernel: Any, args: Sequence[Any], places: dict[str, int], output: int, exact: Callable[..., Any]
) -> None:
    """Compare the gradients of a kernel by some arguments with PyTorch's of the same function in float64."""
    kernel(*args)
    weight = torch.randn_like(args[output])
    found = ts.pullback(kernel, [*places])(*args, cotangents=weight)
    leaves = [args[at].double().requires_grad_() for at in places.values()]
    exact(*leaves).backward(weight.double())
    for name, leaf in zip(places, leaves, strict=True):
        error = float((found[name].double() - leaf.grad).abs().max() / leaf.grad.abs().max())
        assert error < TOLERANCE[str(weight.dtype).removeprefix("torch.")], f"{name}: {error}"


every = pytest.mark.parametrize("kind", list(KINDS))


@every
@pytest.mark.parametrize("shape", [(37, 77), (1000, 4096)])
def test_softmax(torch: Any, kind: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device="cuda").to(getattr(torch, kind))
    kernel = softmax.softmax_for(KINDS[kind])
    check(torch, kernel, (x, torch.empty_like(x)), {"X": 0}, 1, lambda x: torch.softmax(x, -1))


@every
@pytest.mark.parametrize("shape", [(37, 77), (3000, 1024)])
def test_layer_norm(torch: Any, kind: str, shape: tuple[int, int]) -> None:
    x, w, b = (torch.randn(one, device="cuda").to(getattr(torch, kind)) for one in (shape, shape[1:], shape[1:]))

    def exact(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.layer_norm(x, shape[1:], w, b, 1e-5)

    args = (x, w, b, torch.empty_like(x), 1e-5)
    check(torch, layernorm.layernorm_for(KINDS[kind]), args, {"X": 0, "W": 1, "B": 2}, 3, exact)


@every
@pytest.mark.parametrize("sizes", [(100, 70, 130), (1024, 512, 768)])
def test_products(torch: Any, kind: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = (torch.randn(shape, device="cuda").to(getattr(torch, kind)) for shape in ((m, k), (k, n)))
    kernel = gemm.gemm_for(KINDS[kind], KINDS[kind], "cuda")
    check(torch, kernel, (a, b, a.new_empty(m, n)), {"A": 0, "B": 1}, 2, lambda a, b: a @ b)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("length", [100, 1024])
def test_attention(torch: Any, kind: str, is_causal: bool, length: int) -> None:
    q, k, v = (torch.randn(3, length, 64, device="cuda").to(getattr(torch, kind)) for _ in range(3))

    def exact(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT * 64**-0.5
        hidden = torch.ones(length, length, device="cuda", dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(hidden, float("-inf")) if is_causal else scores, -1) @ v

    args = (q, k, v, torch.empty_like(q), is_causal)
    check(torch, flash_attention.flash_attention_for(KINDS[kind]), args, {"Q": 0, "K": 1, "V": 2}, 3, exact)


def test_gradients_of_a_kernel_in_a_traced_function(torch: Any) -> None:
    kernel = softmax.softmax_for(ts.f32)

    def total(x: Any) -> Any:
        y = np.empty_like(x)
        kernel(x * 2.0, y)
        return np.sum(y * y)

    x = torch.randn(50, 333, device="cuda")
    leaf = x.double().requires_grad_()
    (torch.softmax(leaf * 2, -1) ** 2).sum().backward()
    assert float((ts.jit(ts.grad(total))(x).double() - leaf.grad).abs().max()) < 1e-6
