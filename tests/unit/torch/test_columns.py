"""Reductions along any dimensions, results in PyTorch's order: what becomes one kernel, beside PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

torch: Any = pytest.importorskip("torch")
functional: Any = torch.nn.functional
compiled: Any = pytest.importorskip("tessera.torch.compiled.backend")


def check(
    function: Callable[..., Any], *shapes: tuple[int, ...], backward: bool = False, dtype: str = "float32"
) -> Any:
    """Compare a function with PyTorch in float64, forwards and backwards; return what became of its graphs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled.reports.clear()
    given = [torch.randn(shape).to(getattr(torch, dtype)).requires_grad_(backward) for shape in shapes]
    exact = [one.detach().double().requires_grad_(backward) for one in given]
    wanted, got = function(*exact), torch.compile(function, backend=compiled.backend)(*given)
    bound = 2e-2 if dtype == "bfloat16" else 2e-5
    weight = torch.randn(wanted.shape, dtype=torch.float64)
    torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=bound)
    if backward:
        (wanted * weight).sum().backward()
        (got * weight.to(got.dtype)).sum().backward()
        for one, other in zip(given, exact, strict=True):
            largest = float(other.grad.abs().max())
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=bound, atol=2 * bound * largest)
    eager = function(*[one.detach() for one in given])
    assert (got.stride(), got.dtype) == (eager.stride(), eager.dtype)
    return [report.kernels for report in compiled.reports]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 40, 130), (2, 7, 5, 9), (64, 33)])
def test_a_program_holds_columns(shape: tuple[int, ...], dtype: str) -> None:
    assert check(lambda x: x.softmax(-2) * 2, shape, dtype=dtype) == [1]


def test_columns_and_what_reads_them_are_one_kernel() -> None:
    assert check(lambda x: (x / (x.norm(dim=1, keepdim=True) + 1)).relu(), (4, 16, 9, 11)) == [1]


@pytest.mark.parametrize(
    "function", [lambda x: x.sum((0, 2, 3)), lambda x: x.amax((0, 2)), lambda x: (x * x).mean((0, 3))]
)
def test_sums_of_several_dimensions_take_rows_first(function: Callable[..., Any]) -> None:
    check(function, (5, 6, 7, 33))


@pytest.mark.parametrize("name", ["sum", "amax", "var", "logsumexp"])
@pytest.mark.parametrize("rows", [640, 1000])
def test_long_columns(name: str, rows: int) -> None:
    check(lambda x: getattr(torch, name)(x, dim=0), (rows, 70))


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_batch_norm_reads_its_input_twice(offset: float) -> None:
    """Variances of numbers far from 0 are as exact as those around it."""

    def normed(x: Any, w: Any, b: Any) -> Any:
        return functional.batch_norm(x + offset, None, None, w, b, True)

    if offset:
        x = torch.randn(8, 6, 10, 14)
        ones = torch.ones(6)
        got = torch.compile(normed, backend=compiled.backend)(x, ones, ones)
        assert float((got.double() - normed(x.double(), ones.double(), ones.double())).abs().max()) < 1e-3
    else:
        assert check(normed, (8, 6, 10, 14), (6,), (6,), backward=True)[0] == 3


def test_rows_and_columns_of_one_array_are_one_kernel() -> None:
    def normed(x: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x, (96,), w, b)

    # Backwards one kernel reads both arrays; two combine what its programs leave of either column.
    assert check(normed, (4096, 96), (96,), (96,), backward=True)[1] <= 3


def test_rows_of_two_arrays_are_one_kernel() -> None:
    assert check(lambda x, y: functional.cosine_similarity(x, y), (50, 70), (50, 70)) == [1]


@pytest.mark.parametrize("shape", [(64, 64), (300, 1000), (7,)])
def test_sums_of_all(shape: tuple[int, ...]) -> None:
    check(lambda x: ((x + 1) * 2).tanh().sum(), shape)
    check(lambda x: x.sum(), shape)


def test_a_kernel_writes_results_in_the_order_that_pytorch_has_them_in() -> None:
    assert check(lambda x, y: (x.t() + y).relu(), (37, 50), (50, 37)) == [1]
    check(lambda x: (x.transpose(1, 2) * 2).sum(0), (3, 4, 5))


def test_images_with_channels_last_stay_so() -> None:
    weight = torch.randn(8, 4, 3, 3)

    def layer(x: Any) -> Any:
        return functional.conv2d(x.relu(), weight.to(x.dtype)).sigmoid()

    x = torch.randn(2, 4, 9, 9).to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    got, wanted = torch.compile(layer, backend=compiled.backend)(x), layer(x)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + (torch.arange(x.shape[0]) * 2.0).sum(),
        lambda x: (torch.arange(x.shape[0])[:, None] * torch.ones(3)).sum(0) + x[0, :3],
        lambda x: x[torch.arange(x.shape[0]), torch.arange(x.shape[0])].sum(),
        lambda x: (torch.arange(x.shape[0]) * 1.0).softmax(-1) + x,
    ],
)
def test_sums_of_places_that_no_array_has(function: Callable[..., Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend=compiled.backend, dynamic=dynamic)
    for size in (9, 13):
        x = torch.randn(size, size)
        torch.testing.assert_close(run(x), function(x))


def test_groups_that_share_one_array_after_another_are_one_kernel() -> None:
    def sums(p: Any, q: Any, r: Any) -> Any:
        return torch.stack([(q * r).sum(-1), (p * q).sum(-1), (p * 2).sum(-1), (p * r).amax(-1)])

    assert check(sums, (40, 70), (40, 70), (40, 70)) == [1]


def test_columns_without_elements() -> None:
    total = ts.jit(lambda x: x + np.sum(np.sum(np.zeros((4, 0), np.float32, like=x), axis=0)))
    np.testing.assert_array_equal(total(np.ones(3, np.float32)), np.ones(3))
