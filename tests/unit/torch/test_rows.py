"""Single ops in `torch.compile(backend="tessera")`, many in one graph: eager PyTorch says what they give, both ways."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def both_ways(function: Callable[..., Any], *calls: tuple[Any, ...], tolerance: float = 1e-9, **options: Any) -> None:
    """Compare results and gradients of calls with eager PyTorch's; no graph may have an ATen op."""
    got = torch.compile(function, backend=compiled.backend, **options)
    for given in calls:
        floats = [one.requires_grad_() for one in given if one.is_floating_point()]
        results = []
        for run in (function, got):
            found = run(*given)
            smooth = [one for one in found if one.requires_grad]
            torch.manual_seed(1)
            weights = [torch.rand(one.shape).to(one) for one in smooth]
            grads = torch.autograd.grad(smooth, floats, weights, allow_unused=True) if smooth else ()
            results.append((found, grads))
        torch.testing.assert_close(*results[::-1], rtol=tolerance, atol=tolerance, equal_nan=True)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


def normal(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, dtype=dtype)


def test_numbers_that_follow_from_sizes():
    def function(x, w):
        size = x.shape[0]
        normed = F.batch_norm(x, None, None, w, None, True) * size**0.5
        made = torch.full((size,), size / 3), torch.arange(size) * (size / 2), torch.arange(0.5, 3, 0.25)
        return normed + size / (size + 1), x.mean(0) * (size * 0.5), *made

    both_ways(function, *((normal(size, 3, 4), normal(3)) for size in (5, 8)), dynamic=True)
    assert len(compiled.reports) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_special_functions(dtype):
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 1.5, 1e-12, 1e15, float("inf"), float("-inf"), float("nan")])

    def function(x, y):
        of_one = torch.asinh(x), torch.acosh(x.abs() + 1), torch.atanh(y), torch.erfinv(y), torch.lgamma(x.abs() + 0.1)
        of_two = torch.hypot(x, y), torch.copysign(x, y), torch.fmod(x, y), torch.fmax(x, y), torch.fmin(x, y)
        at_edges = torch.asinh(edges), torch.acosh(edges), torch.atanh(edges), torch.erfinv(edges), edges.digamma()
        rest = torch.signbit(x), torch.angle(y), torch.round(x, decimals=2), torch.ldexp(x, torch.arange(-2, 5))
        return *of_one, *of_two, *at_edges, *rest

    edges = edges.to(dtype)
    x, y = normal(9, 7, dtype=dtype) * 5, torch.rand((9, 7), dtype=dtype) * 1.9 - 0.95
    both_ways(function, (x, y), tolerance=1e-8 if dtype == torch.float64 else 2e-4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_have_the_signs_and_dtypes_of_pytorch(dtype):
    def function(a, b, n):
        signs = torch.fmod(a, b), torch.fmod(a, -3), a % b, a // b, torch.div(a, b, rounding_mode="trunc")
        powers = a**3, a**6, a**0, a**2.0, n**0.5, n**-1.0, 2**n, a**n, n ** a.sign()
        return *signs, *powers, a << 2, a >> 1, a.cumsum(0), (a > 0).cumsum(0), (a > 0).amax(), a.max(), b.cumprod(0)

    a, sign = torch.randint(-20, 20, (60,), dtype=dtype), torch.randint(0, 2, (60,), dtype=dtype) * 2 - 1
    both_ways(function, (a, torch.randint(1, 7, (60,), dtype=dtype) * sign, torch.arange(1, 61, dtype=dtype) % 9 + 1))


def test_norms_and_distances():
    def function(x, y):
        norms = x.norm(3, 1), x.norm(float("inf"), 0), x.norm(0), torch.linalg.vector_norm(x, 0.5, (0, 1), True)
        return *norms, torch.cdist(x, y), torch.cdist(x, y, p=1.0), torch.dist(x, x + 1), torch.addmv(x[:, 0], x, y[0])

    both_ways(function, (normal(6, 5), normal(4, 5)))


def test_diagonals_windows_and_borders():
    def function(x):
        lines = x.diagonal(), x.diagonal(1) * 2, x.diagonal(-2), x.trace(), torch.diag_embed(x[0], -1)
        placed = torch.diagonal_scatter(x, x[0, :4] * 2, 2), torch.select_scatter(x, x[0] * 2, 0, -2)
        windows = x.unfold(1, 3, 2) * torch.arange(3), x.unfold(0, 2, 3)
        return *lines, *placed, *windows, F.pad(x[None], (2, 1), mode="replicate")

    both_ways(function, (normal(6, 6),))


def test_what_is_padded_or_put_has_the_dtype_of_the_array():
    def function(x, i):
        padded = F.pad(x > 0, (1, 2), value=0.5), F.pad(i, (1, 2), value=2.7), F.pad(x, (1, 1), value=3)
        return *padded, torch.scatter(x, 1, i[:, :1], 2), (x > 0).amax(1), (x > 0).amin(1)

    both_ways(function, (normal(3, 4), torch.randint(0, 4, (3, 4))))


def test_order():
    def function(x):
        bounds = torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)
        found = torch.bucketize(x, bounds), torch.bucketize(x.round(), bounds, right=True)
        searched = torch.searchsorted(bounds, x), torch.searchsorted(x.nan_to_num().cummax(1)[0], x)
        return *found, *searched, *x.kthvalue(3, 1), x.cummin(0)[0], x.masked_scatter(x > 0, x.flip(0).contiguous())

    x = normal(6, 9)
    x[2, 3] = float("nan")
    with torch.no_grad():
        got = torch.compile(function, backend=compiled.backend)(x)
        torch.testing.assert_close(got, function(x), equal_nan=True)
    assert not compiled.reports[-1].left


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
def test_scattered_elements_are_combined(reduce):
    def function(x, y, i):
        return tuple(x.scatter_reduce(0, i, y, reduce, include_self=own) for own in (True, False))

    both_ways(function, (normal(5, 6), normal(9, 6), torch.randint(0, 4, (9, 6))))
