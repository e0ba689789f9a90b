"""Maps of a product in its kernel: against float64, over chains, dtypes, sizes, layouts and readers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.graph import products

BF16: Any = ml_dtypes.bfloat16
TOLERANCE = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-5, np.dtype(np.float16): 4e-3, np.dtype(BF16): 3e-2}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "pays", lambda *_: True)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def bias_gelu(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return gelu(x @ w + b)


def relu_residual(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return np.maximum(x @ w + b, 0) + r


def rows_and_columns(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return (x @ w) * c - b


def masked(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return np.where(r > 0, x @ w, 0.5 * b) * 3.0


def two_full(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return (x @ w + r) * np.cos((c + b) * 2) / (2 + np.sin(r))


def gradient_of_gelu(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    inner = np.tanh(0.79788 * (r + 0.044715 * r * r * r))
    return (x @ w) * (0.5 * (1 + inner) + 0.5 * r * (1 - inner * inner) * 0.79788 * (1 + 0.134145 * r * r))


def several(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    y = x @ w
    z = y + b
    return y, z, np.tanh(z), z > 0


def read_again(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    y = np.tanh(x @ w + b)
    return y, (y * y + r).sum(-1)


def norm_of_sum(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    y = x @ w + r
    z = y - y.mean(-1, keepdims=True)
    return y, z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-2) * b


def between(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    y = x @ w
    return y / (1 + np.abs(y).max(-1, keepdims=True)) + r


def two_products(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return (x @ w) * (1 / (1 + np.exp(-(x @ (w * 0.5) + b))))


def mean_of_terms(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
    return (x @ w) / np.sqrt(x.shape[-1]) + b


CHAINS: list[Callable[..., Any]] = [
    bias_gelu,
    relu_residual,
    rows_and_columns,
    masked,
    two_full,
    gradient_of_gelu,
    several,
    read_again,
    norm_of_sum,
    between,
    two_products,
    mean_of_terms,
]


def arguments(shape: tuple[int, ...], terms: int, dtype: Any, batched: bool = False) -> list[Any]:
    rng = np.random.default_rng(5)
    lead, columns = shape[:-1], shape[-1]
    sizes = [(*lead, terms), (*(lead[:-1] if batched else ()), terms, columns), (columns,), shape, (*lead, 1)]
    scales = (1.0, terms**-0.5, 1.0, 1.0, 1.0)
    return [(rng.standard_normal(size) * scale).astype(dtype) for size, scale in zip(sizes, scales, strict=True)]


def check(function: Callable[..., Any], given: list[Any], run: Callable[..., Any] | None = None) -> Any:
    """Compare with the same in float64; return what ran it."""
    run = run or ts.jit(function)
    expected: Any = function(*(one.astype(np.float64) for one in given))
    run(*given)
    found: Any = run(*given)  # what was recorded
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    limit = TOLERANCE[given[0].dtype]
    for one, other in zip(found, expected, strict=True):
        if one.dtype == bool:
            assert np.mean(one != other) < 0.02
        else:
            assert one.shape == other.shape
            np.testing.assert_allclose(one.astype(np.float64), other, rtol=limit, atol=limit * 4)
    return run


def is_one(run: Any) -> bool:
    return any("matmul" in part.ops and len(part.ops) > 1 for part in run.explain().kernels)


@pytest.mark.parametrize("function", CHAINS)
def test_chains(function: Callable[..., Any]):
    run = check(function, arguments((2, 19, 24), 40, np.float32))
    assert is_one(run) == (function is not between)
    if function is between:
        assert any("in other ways" in why or "more than maps" in why for why in run.explain().kernels[0].apart)


@pytest.mark.parametrize("function", [several, norm_of_sum])
@pytest.mark.parametrize(("shape", "terms"), [((33, 50), 70), ((1, 5), 3), ((16, 1), 8), ((1, 9, 24), 8)])
def test_matrices(function: Callable[..., Any], shape: tuple[int, ...], terms: int):
    assert is_one(check(function, arguments(shape, terms, np.float32)))


@pytest.mark.parametrize("function", [several, two_full])
@pytest.mark.parametrize("dtype", [np.float64, np.float16, BF16])
def test_dtypes(function: Callable[..., Any], dtype: Any):
    assert is_one(check(function, arguments((33, 50), 70, dtype)))


@pytest.mark.parametrize("function", [rows_and_columns, several])
def test_batches(function: Callable[..., Any]):
    assert is_one(check(function, arguments((3, 2, 17, 20), 12, np.float32, batched=True)))


def test_layouts():
    x, w, b, r, c = arguments((34, 50), 70, np.float32)
    for given in (
        [np.asfortranarray(x), w, b, r, c],
        [x, np.asfortranarray(w), b, np.asfortranarray(r), c],
        [x, w, np.repeat(b, 2)[::2], np.repeat(r, 2, 1)[:, ::2], c],
        [x, w, b, np.broadcast_to(r[:1], r.shape), c],
    ):
        assert is_one(check(two_full, given))


def test_new_sizes():
    run = check(bias_gelu, arguments((33, 50), 70, np.float32))
    for rows in (7, 130):
        check(bias_gelu, arguments((rows, 50), 70, np.float32), run)
    assert is_one(run)


def test_arrays_across_matrices():
    """What lies neither along rows nor columns is read by a kernel of its own, which says why."""

    def positions(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
        return x @ w + r[:1]

    run = check(positions, arguments((2, 19, 24), 40, np.float32))
    assert not is_one(run)
    assert products.STRIDES in str(run.explain())


def test_gradients():
    def loss(x: Any, w: Any, b: Any, r: Any, c: Any) -> Any:
        return (gelu(x @ w + b) * r).sum()

    given = arguments((24, 18), 30, np.float64)
    run = ts.jit(lambda *args: ts.grad(loss, argnums=(0, 1, 2))(*args))
    found = run(*given)
    step = 1e-6
    for number in range(3):
        place = (0,) * given[number].ndim
        moved = []
        for sign in (1, -1):
            other = [one.copy() for one in given]
            other[number][place] += sign * step
            moved.append(loss(*other))
        assert found[number][place] == pytest.approx((moved[0] - moved[1]) / (2 * step), rel=1e-6)


SCRIPT = """
import numpy as np, tessera as ts
from tessera.graph import products
products.pays = lambda *_: True
given = [np.ones(size, np.float32) for size in ((4, 9, 20), (20, 24), (24,), (4, 9, 24))]
run = ts.jit(lambda x, w, b, r: np.tanh(x @ w + b) * r - x.shape[0])
run(*given)
print(run.explain().origin, "/", run.explain().kernels[0].kernel.origin)
"""


def test_plans_and_kernels_are_kept(tmp_path: Path):
    """Another process finds both, whatever this one has computed itself."""
    found: list[str] = []
    for _ in range(2):
        env = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path)}
        run = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
        found.append(run.stdout.strip())
    assert found == ["compiled / compiled", "disk cache / disk cache"]


def test_two_kernels_where_one_takes_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(products, "pays", lambda *_: False)
    for function in (several, norm_of_sum):
        run = check(function, arguments((2, 19, 24), 40, np.float32))
        assert not is_one(run)
        assert products.SLOWER in str(run.explain())


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_kernels_for_another_target(dtype: Any, monkeypatch: pytest.MonkeyPatch):
    """Predicted times decide: on a GPU one kernel of large products with one result, which no other kernel reads."""
    monkeypatch.undo()
    x, w, b, r = (np.empty(size, dtype) for size in ((4096, 1024), (1024, 2048), (2048,), (4096, 2048)))

    def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
        return np.maximum(x @ w + b, 0) + r

    def read_again(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = layer(x, w, b, r)
        return y, y.sum(-1)

    def kept(x: Any, w: Any, b: Any, r: Any) -> Any:
        y = x @ w
        return y, np.maximum(y + b, 0) + r

    made = ts.jit(layer).compile(x, w, b, r, target="sm_90a", dump=["ptx"])
    assert made.kernels["layer_0"].name.startswith("gemm")
    assert "wgmma" in made.dumps["ptx"]["layer_0"]
    for apart in (read_again, kept):
        (kernel,) = ts.jit(apart).compile(x, w, b, r, target="sm_90a").kernels.values()
        assert not kernel.name.startswith("gemm")
    few = ts.jit(layer).compile(x[:8, :16], w[:16, :64], b[:64], r[:8, :64], target="cpu")
    assert list(few.kernels) == ["layer_0"]
