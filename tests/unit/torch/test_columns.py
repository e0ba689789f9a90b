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
explain: Any = pytest.importorskip("tessera.torch").explain


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", [lambda x: x.softmax(1) * 2, lambda x: functional.normalize(x, dim=1)])
def test_longer_columns_are_held_where_they_are_read_again(function: Callable[..., Any], dtype: str) -> None:
    assert check(function, (5, 1300, 9), dtype=dtype) == [1]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 130, 7, 9), "bfloat16"), ((2, 770, 5, 6), "float32"), ((1, 2600, 3, 4), "float32")]
)
def test_rows_of_transposed_arrays_go_along_them_as_they_lie(shape: tuple[int, ...], dtype: str) -> None:
    sizes = shape[1:2]

    def normed(x: Any, w: Any, b: Any) -> Any:
        return functional.layer_norm(x.permute(0, 2, 3, 1), sizes, w, b)

    check(normed, shape, sizes, sizes, backward=True, dtype=dtype)
    check(lambda x: x.flatten(2).transpose(1, 2).softmax(-1), shape, dtype=dtype)


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


def _normed(n: int) -> Callable[..., Any]:
    return lambda x, w, b: functional.layer_norm(x, (n,), w, b)


@pytest.mark.parametrize(
    ("rows", "n", "dtype"),
    [
        (1024, 96, "float32"),
        (530, 1000, "float32"),
        (513, 1025, "bfloat16"),
        (600, 2048, "float32"),
        (513, 7, "bfloat16"),
    ],
)
def test_a_program_that_combines_columns_of_its_rows_takes_them_in_steps(rows: int, n: int, dtype: str) -> None:
    found = check(_normed(n), (rows, n), (n,), (n,), backward=True, dtype=dtype)
    assert found[1] <= 3


@pytest.mark.parametrize("fn", ["sum", "amax", "amin"])
def test_combined_columns_of_rows_by_any_function(fn: str) -> None:
    def rows_and_columns(x: Any) -> Any:
        return torch.cat((x.softmax(-1).amax(-1), getattr(torch, fn)(x, 0), x.sum(0)))

    check(rows_and_columns, (777, 130))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x.sub(x.mean(-1, keepdim=True)).view(12, 4, 5) * w.view(12, 1, 1), ((2, 6, 20), (12,))),
        (lambda x, w: x.softmax(-1).reshape(24, 5).mul(w[:, None]).to(torch.float64), ((4, 6, 5), (24,))),
        (lambda x, w: x.softmax(-1).view(4, 1, 6, 5).add(w.view(1, 1, 1, 1)).gt(0.5), ((4, 6, 5), (1,))),
        (lambda x, w: functional.group_norm(x, 3, w, w).relu() * 3, ((2, 6, 5, 7), (6,))),
    ],
)
def test_what_follows_a_reshape_joins_the_kernel_before_it(function: Any, shapes: Any) -> None:
    assert check(lambda x, w: function(x, w).to(x.dtype), *shapes) == [1]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x.sub(x.mean(-1, keepdim=True)).view(2, 6, 20) * w[:, None], ((2, 3, 40), (6,))),
        (lambda x, w: (x.exp().reshape(4, 6, 5) + w.view(1, 6, 1)).sigmoid().view(4, 3, 10) * 2, ((4, 30), (6,))),
        (lambda x, w: functional.instance_norm(x) * w[:, None, None], ((2, 6, 5, 7), (6,))),
        (lambda x, w: x.softmax(-1).reshape(5, 24) * w, ((4, 30), (24,))),  # no dimension stays
        (lambda x, w: x.exp().view(6, 20) * w, ((6, 5, 4), (20,))),  # computed of arrays alone, in either shape
        (lambda x, w: x.softmax(-1).view(6, 20) + w.cumsum(-1), ((6, 5, 4), (6, 20))),  # not repeated
        (lambda x, w: x.exp().view(0, 6) * w, ((0, 2, 3), (6,))),
        (lambda x, w: (x.exp().view(2, 6, 1, 5) * w).view(12, 5).sum(-1), ((2, 3, 2, 5), (5,))),
    ],
)
def test_reshapes_of_any_kind(function: Any, shapes: Any) -> None:
    check(function, *shapes)


@pytest.mark.parametrize(
    ("shape", "dtype", "affine"),
    [
        ((2, 6, 9, 11), "float32", True),
        ((2, 6, 9, 11), "bfloat16", True),
        ((3, 24), "float32", True),
        ((1, 6, 33), "bfloat16", False),
        ((2, 12, 3, 2, 5), "float32", False),
    ],
)
def test_group_norms_both_ways(shape: tuple[int, ...], dtype: str, affine: bool) -> None:
    def normed(x: Any, w: Any, b: Any) -> Any:
        found = functional.group_norm(x, 3, w if affine else None, b if affine else None)
        return found if affine else found * w.sum() + b.sum()

    assert check(normed, shape, shape[1:2], shape[1:2], backward=True, dtype=dtype)[0] <= (1 if affine else 3)


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("shape", [(1024, 33), (40, 70), (3, 640, 9)])
def test_a_mean_comes_with_its_variance(shape: tuple[int, ...], keepdim: bool) -> None:
    def centred(x: Any) -> Any:
        mean, deviation = x.mean(-2, keepdim=keepdim), x.std(-2, keepdim=keepdim)
        return (x - (mean if keepdim else mean.unsqueeze(-2))) / (
            (deviation if keepdim else deviation.unsqueeze(-2)) + 1
        )

    assert check(centred, shape) == [1 if shape[-2] <= 512 else 3]


def test_gradients_of_cross_entropy_compute_logits_again() -> None:
    """What is kept for them is a number or two a row, and not all logarithms."""
    torch._dynamo.reset()
    x = torch.randn(64, 1000, requires_grad=True)
    run = torch.compile(lambda x: functional.cross_entropy(x, torch.arange(64)), backend=compiled.backend)
    forward, _ = explain(lambda: run(x).backward()).graphs
    assert forward.written < x.nbytes // 10
    exact = x.detach().double().requires_grad_()
    functional.cross_entropy(exact, torch.arange(64)).backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-7)


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
