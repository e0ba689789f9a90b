"""Graphs on a real GPU: traced functions and compiled models beside PyTorch in float64."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import tessera as ts

pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore")]  # of Dynamo and cuBLAS

TOLERANCE = {"float64": 1e-11, "float32": 3e-5, "bfloat16": 3e-2, "float16": 4e-3}


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    found._dynamo.reset()
    return found


def layer(x: Any, w: Any, b: Any) -> Any:
    apart = x - np.mean(x, axis=-1, keepdims=True)
    found = apart / np.sqrt(np.mean(apart * apart, axis=-1, keepdims=True) + 1e-5) * w + b
    return np.tanh(found), np.sum(found, axis=0), np.max(found), found.T @ found


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(3, 5), (64, 1000), (257, 4096), (1, 33)])
def test_traced_functions(torch, dtype, shape):
    kind = getattr(torch, dtype)
    given = [torch.randn(size, dtype=kind, device="cuda") for size in (shape, shape[1:], shape[1:])]
    exact = layer(*(one.double().cpu().numpy() for one in given))
    for one, other in zip(ts.jit(layer)(*given), exact, strict=True):
        assert one.is_cuda
        error = np.abs(one.double().cpu().numpy() - other).max() / (np.abs(other).max() + 1)
        assert error < TOLERANCE[dtype]


def test_gradients(torch):
    x, w = torch.randn(65, 129, device="cuda"), torch.randn(129, device="cuda")
    found = ts.grad(lambda x, w: np.mean(np.tanh(layer(x, w, w)[0]) ** 2), argnums=(0, 1))(x, w)
    given = [one.double().requires_grad_() for one in (x, w)]
    normed = torch.nn.functional.layer_norm(given[0], (129,), given[1], given[1])
    (normed.tanh().tanh() ** 2).mean().backward()
    for one, other in zip(found, given, strict=True):
        assert float((one.double() - other.grad).abs().max() / other.grad.abs().max()) < 1e-4


def _block(torch: Any, heads: int, x: Any, weights: Any) -> Any:
    functional, size = torch.nn.functional, x.shape[-1]
    h = functional.layer_norm(x, (size,), weights[4])
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (h @ weights[0]).split(size, -1))
    found = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
    x = x + found @ weights[1]
    return x + functional.gelu(functional.rms_norm(x, (size,)) @ weights[2]) @ weights[3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [64, 136])
def test_a_block_forwards_and_backwards(torch, dtype, size):
    compiled = importlib.import_module("tessera.torch.compiled.backend")
    kind = getattr(torch, dtype)
    shapes = [(size, 3 * size), (size, size), (size, 4 * size), (4 * size, size), (size,)]
    weights = [torch.randn(shape, device="cuda", dtype=torch.float64) * 0.1 for shape in shapes]
    x = torch.randn(3, 40, size, device="cuda", dtype=torch.float64)

    def results(run: Any, kind: Any) -> list[Any]:
        given = [one.clone().to(kind).requires_grad_() for one in (x, *weights)]
        found = run(torch, 2, given[0], given[1:])
        found.backward(torch.ones_like(found))
        return [found.detach(), *(one.grad for one in given)]

    exact, eager = results(_block, torch.float64), results(_block, kind)
    for one, other, theirs in zip(
        results(torch.compile(_block, backend=compiled.backend), kind), exact, eager, strict=True
    ):
        error, allowed = (float((each.double() - other).abs().max()) for each in (one, theirs))
        assert error <= 2 * allowed + 1e-5 * float(other.abs().max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64"])
def test_sizes_that_differ(torch, dtype):
    compiled = importlib.import_module("tessera.torch.compiled.backend")

    def function(x: Any, y: Any) -> Any:
        z = (x + y) * 2
        wide = z.double() if z.dtype.is_floating_point else z
        return z, z.amax(-1), z.t() + 1, wide.sum(0), (z > 0).any(0), torch.where(z > 1, z, x).flatten()

    whole = torch.compile(function, backend=compiled.backend, dynamic=True)
    for rows, columns in ((5, 9), (128, 64), (77, 4099), (2000, 33)):
        x, y = (
            (torch.randn(shape, device="cuda") * 9).to(getattr(torch, dtype)) for shape in ((rows, columns), (columns,))
        )
        for one, other in zip(whole(x, y), function(x, y), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2 if dtype == "bfloat16" else 1e-3, atol=1e-3)


PRODUCTS: dict[str, Any] = {
    "gelu": lambda x, w, b, r: 0.5 * (x @ w + b) * (1 + np.tanh(0.79788 * (x @ w + b))),
    "a residual": lambda x, w, b, r: np.maximum(x @ w + b, 0) + r,
    "several results": lambda x, w, b, r: (x @ w, np.tanh(x @ w + b), (x @ w + b) * r),
    "a mask and a vector": lambda x, w, b, r: np.where(r > 0, x @ w, 0.0) * r[:, :1] - b,
    "a sum of columns": lambda x, w, b, r: ((x @ w) * r, np.sum((x @ w) * r, axis=0)),
}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", list(PRODUCTS))
def test_maps_of_products(torch, dtype, name, monkeypatch):
    """Once where one kernel is forced, once where it is chosen."""
    for m, k, n in ((256, 128, 512), (333, 77, 129)):
        shapes = ((m, k), (k, n), (n,), (m, n))
        given = [(torch.randn(shape, device="cuda") / 2).to(getattr(torch, dtype)) for shape in shapes]
        given[1] /= 4
        wanted = PRODUCTS[name](*(one.double().cpu().numpy() for one in given))
        exact = wanted if isinstance(wanted, tuple) else (wanted,)
        for forced in (True, False):
            with monkeypatch.context() as patched:
                if forced:
                    patched.setattr("tessera.graph.products.pays", lambda *_: True)
                run = ts.jit(PRODUCTS[name])
                found = run(*given)
            for one, other in zip(found if isinstance(found, tuple) else (found,), exact, strict=True):
                error = np.abs(one.double().cpu().numpy() - other).max() / (np.abs(other).max() + 1)
                assert error < 2 * TOLERANCE[dtype]


NORMS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "group norm": (lambda f, x, w: f.group_norm(x, 4, w, w), ((6, 32, 11, 13), (32,))),
    "few channels": (lambda f, x, w: f.group_norm(x, 3, w, w).relu() * 2, ((2, 6, 5), (6,))),
    "rows in steps": (lambda f, x, w: f.layer_norm(x, (1000,), w, w), ((1537, 1000), (1000,))),
    "short rows in steps": (lambda f, x, w: f.rms_norm(x, (40,), w), ((9000, 40), (40,))),
    "transposed": (lambda f, x, w: f.layer_norm(x.permute(0, 2, 3, 1), (770,), w), ((3, 770, 14, 9), (770,))),
    "columns": (lambda f, x, w: x.softmax(1) * w, ((3, 1100, 70), (70,))),
    "long columns": (lambda f, x, w: x.t().softmax(-1) * w, ((2600, 70), (2600,))),
    "mean and deviation": (lambda f, x, w: (x - x.mean(0)) / (x.std(0) + w), ((1280, 70), (70,))),
    "entropy": (
        lambda f, x, w: f.cross_entropy(x * w, (x[:, 0] * 0).long() + 7, reduction="none"),
        ((300, 5000), (5000,)),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(NORMS))
def test_norms_both_ways(torch, dtype, name):
    compiled = importlib.import_module("tessera.torch.compiled.backend")
    function, shapes = NORMS[name]
    given = [torch.randn(shape, device="cuda", dtype=torch.float64).abs() + 0.1 for shape in shapes]
    given[0] -= 1
    given = [one.to(getattr(torch, dtype)).double() for one in given]

    def results(run: Any, kind: Any) -> list[Any]:
        own = [one.clone().to(kind).requires_grad_() for one in given]
        found = run(torch.nn.functional, *own)
        found.backward(torch.linspace(-1, 1, found.numel(), device="cuda").view(found.shape).to(found.dtype))
        return [found.detach(), *(one.grad for one in own)]

    kind = getattr(torch, dtype)
    exact, eager = results(function, torch.float64), results(function, kind)
    for one, other, theirs in zip(
        results(torch.compile(function, backend=compiled.backend), kind), exact, eager, strict=True
    ):
        error, allowed = (float((each.double() - other).abs().max()) for each in (one, theirs))
        assert error <= 2 * allowed + 1e-5 * float(other.abs().max())


def test_cuda_graphs(torch):
    """Steps of training and calls without gradients replay CUDA graphs, and follow their arguments."""
    compiled = importlib.import_module("tessera.torch.compiled.backend")
    torch.manual_seed(3)
    shapes = [(72, 216), (72, 72), (72, 288), (288, 72), (72,)]
    weights = [(torch.randn(shape, device="cuda") * 0.1).requires_grad_() for shape in shapes]

    def run(function: Any, x: Any) -> list[Any]:
        y = x.clone().requires_grad_()
        found = function(torch, 2, y, weights)
        return [
            found.detach().clone(),
            *(one.clone() for one in torch.autograd.grad(found.square().sum(), [y, *weights])),
        ]

    graphed = torch.compile(_block, backend=compiled.backend, mode="reduce-overhead")
    for step in range(6):
        x = torch.randn(3, 40 if step < 4 else 24, 72, device="cuda")
        for one, other in zip(run(graphed, x), run(_block, x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
        with torch.no_grad():
            torch.testing.assert_close(
                graphed(torch, 2, x, weights), _block(torch, 2, x, weights), rtol=1e-3, atol=1e-3
            )
            for weight in weights:  # where it lies
                weight.mul_(1.01)
    manager = importlib.import_module("torch._inductor.cudagraph_trees").get_manager(0, create_if_none_exists=False)
    assert manager is not None


def test_arrays_of_the_program_around_come_to_the_gpu(torch):
    held = np.arange(1000, dtype=np.float32)
    f = ts.jit(lambda x: (x * held)[::-1] + x[np.arange(999, -1, -1)])
    for _ in range(4):
        x = torch.randn(1000, device="cuda")
        held += 1
        want = (x * torch.from_numpy(held).to("cuda")).flip(0) + x.flip(0)
        assert torch.allclose(f(x), want)
