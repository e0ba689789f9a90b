"""Medians, running logarithms, extremes and what is put at places, through `torch.compile`: beside eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

from tessera.torch import explain  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def same(function: Callable[..., Any], *calls: tuple[Any, ...], dynamic: bool = False, tolerance: float = 0.0) -> None:
    """Compare results, and gradients where arguments want them, for one call after another; nothing may be ATen."""
    compiled_once = torch.compile(function, backend=compiled.backend, dynamic=dynamic)
    for given in calls:
        found, wanted = compiled_once(*given), function(*given)
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        wants = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
        smooth = [(one, other) for one, other in zip(found, wanted, strict=True) if wants and other.requires_grad]
        weights = [torch.rand_like(one.detach()) for _, one in smooth]
        for_each = [torch.autograd.grad(parts, wants, weights) for parts in zip(*smooth, strict=True)]
        torch.testing.assert_close(*(for_each or ((), ())), rtol=tolerance, atol=tolerance)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_medians(dtype: Any, dynamic: bool) -> None:
    def function(x: Any) -> Any:
        middle = x.median(1), x.median(0, True), x.nanmedian(0), x.kthvalue(2, 1)
        return *(part for each in middle for part in each), x.median(), x.nanmedian()

    shapes = (7, 5), (4, 6)
    same(function, *((torch.randperm(a * b).view(a, b).to(dtype),) for a, b in shapes), dynamic=dynamic)


def test_medians_of_what_is_no_number() -> None:
    x = torch.randn(4, 9)
    x[1, 3] = x[1, 5] = x[2] = x[3, 0] = float("nan")
    same(lambda x: (*x.median(1), x.nanmedian(1).values, x.nanmedian(1).indices[[0, 1, 3]], x.median()), (x,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_medians_have_gradients(dtype: Any) -> None:
    x = torch.randn(5, 8, dtype=dtype, requires_grad=True)
    same(lambda x: (x.median(1).values, x.median(), x.nanmedian(0).values), (x,))


@pytest.mark.parametrize("length", [1, 2, 33, 1100])
def test_running_logarithms_are_as_exact_as_eager_ones(length: int) -> None:
    def function(x: Any) -> Any:
        return x.logcumsumexp(1), (x * 50 - 20).logcumsumexp(1), x.logcumsumexp(0)

    x = torch.randn(5, length)
    found, wanted, wide = (run(one) for run, one in ((compiled_of(function), x), (function, x), (function, x.double())))
    for one, other, exact in zip(found, wanted, wide, strict=True):
        assert (one - exact).abs().max() <= 1.5 * (other - exact).abs().max()
    edges = torch.tensor(
        [[-float("inf")] * 2 + [0.0, 1e30, float("inf"), 1.0], [float("nan"), 1.0, 2.0, 3.0, 4.0, 5.0]]
    )
    same(lambda x: (x.logcumsumexp(1),), (edges,))
    calls = [(torch.randn(4, size, dtype=torch.float64, requires_grad=True),) for size in (9, 12, 40)]
    same(lambda x: (x.logcumsumexp(1),), *calls, dynamic=length == 1, tolerance=1e-12)


def compiled_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, backend=compiled.backend)


def test_extremes_of_truth_values_and_of_numbers() -> None:
    def function(x: Any) -> Any:
        positive = x > 0
        found = positive.max(1), positive.min(0, True), (x > 9).max(0), x[0, 0].max(0), x.long()[1, 1].min(-1)
        return [part for each in found for part in each]

    same(function, (torch.randn(4, 6),))
    x = torch.randn(3, 5, dtype=torch.float64)
    x[1, 2] = 0
    same(lambda x: (x.cumprod(1),), (x.requires_grad_(),), tolerance=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_what_is_put_at_places_of_all_elements(dtype: Any) -> None:
    def function(x: Any, place: Any, source: Any) -> Any:
        return x.put(place, source), x.put(place % 3, source, True), x.t().take(place)

    place, source = torch.randperm(30)[:7] - 15, torch.arange(7)
    same(function, (torch.arange(30).view(5, 6).to(dtype), place, source.to(dtype)))
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    source = torch.randn(7, dtype=torch.float64, requires_grad=True)
    same(function, (x, place, source), tolerance=1e-12)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["mean", "amax", "amin", "prod"])
def test_rows_that_are_combined_by_an_index(reduce: str) -> None:
    def function(x: Any, index: Any, source: Any) -> Any:
        both = x.index_reduce(0, index, source, reduce), x.index_reduce(0, index, source, reduce, include_self=False)
        return *both, x.t().index_reduce(-1, index, source.t(), reduce)

    same(function, (torch.randn(6, 4), torch.tensor([3, 0, 3, 5, 3]), torch.randn(5, 4)), tolerance=1e-6)


def test_gradients_of_embeddings_of_any_number_of_rows() -> None:
    def function(index: Any, weight: Any) -> Any:
        return (F.embedding(index, weight, padding_idx=1).sum(1) * weight[0],)

    calls = [
        (torch.randint(0, rows, (6, 3)), torch.randn(rows, 5, dtype=torch.float64, requires_grad=True))
        for rows in (9, 12)
    ]
    same(function, *calls, dynamic=True, tolerance=1e-12)


def test_windows_counts_and_ends_that_calls_give() -> None:
    def function(x: Any, k: int) -> Any:
        found = x.topk(k, -1).values, x.kthvalue(k, 0).values, F.max_pool1d(x[None], k, 1, k // 2)
        more = F.avg_pool2d(x[None], k, k, k // 2), F.pad(x[None], (k, 1), mode="replicate")
        return *found, *more, F.avg_pool2d(x[None], k, divisor_override=k)

    calls = [(torch.randn(size, 8, dtype=torch.float64, requires_grad=True), k) for size, k in ((5, 3), (8, 3), (6, 2))]
    same(function, *calls, dynamic=True, tolerance=1e-12)


def test_bounds_of_any_number() -> None:
    def function(x: Any, bounds: Any) -> Any:
        return (
            torch.bucketize(x, bounds, right=True),
            torch.searchsorted(bounds, x),
        )

    calls = [(torch.randn(4, 8) * 2, torch.randn(size).sort().values) for size in (5, 40, 2, 999)]
    same(function, *calls, dynamic=True)
    assert len(compiled.reports) == 1


@pytest.mark.parametrize("order", [1, 2, 3, 6])
def test_derivatives_of_the_gamma_function_s_logarithm(order: int) -> None:
    x = torch.cat([torch.rand(999) * 9 - 3 * (order < 2), torch.rand(99) * 1000, torch.tensor([1e-5, 1e5, 0.5])])
    x = torch.cat([x, torch.tensor([float("nan")])]).double()
    found = compiled_of(lambda x: torch.polygamma(order, x))(x)
    torch.testing.assert_close(found, torch.polygamma(order, x), rtol=1e-8, atol=0, equal_nan=True)
    x = x[x > 0].float()
    found, wide = compiled_of(lambda x: torch.polygamma(order, x))(x), torch.polygamma(order, x.double())
    assert ((found - wide).abs() <= 4 * 2**-23 * wide.abs()).all()
    assert not any(report.left for report in compiled.reports)


def test_derivatives_of_the_gamma_function_s_logarithm_by_steps() -> None:
    """PyTorch has none of numbers below 0: they follow from those of a number that is larger by 1."""
    x = -torch.rand(99, dtype=torch.float64) * 6
    for order in (2, 3, 5):
        run = compiled_of(lambda x, order=order: torch.polygamma(order, x))
        step = (-1) ** order * math.factorial(order) * x ** -(order + 1)
        torch.testing.assert_close(run(x + 1), run(x) + step, rtol=1e-5, atol=0)


def test_derivatives_of_the_gamma_function_s_logarithm_have_gradients() -> None:
    x = (torch.rand(40, dtype=torch.float64) * 5 + 0.1).requires_grad_()
    same(lambda x: (torch.digamma(x), torch.polygamma(1, x), torch.polygamma(3, x)), (x,), tolerance=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_numbers_and_real_ones(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        a, b = torch.complex(x, y), torch.complex(y, x.exp())
        found = a.abs(), a.angle(), a.sum(0), a.mean(1), a / b, 1 / b, torch.exp(a * 1j), a * (2 - 1j), a + x, a - 2
        more = torch.add(a, b, alpha=3), b / (1 + 2j), a.sgn(), torch.full_like(a, 2j) * a, a.reciprocal()
        return [torch.view_as_real(one) if one.is_complex() else one for one in (*found, *more)]

    x, y = torch.randn(4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    same(function, (x.requires_grad_(), y.requires_grad_()), tolerance=1e-4 if dtype == torch.float32 else 1e-11)


COMPLEX = {
    "products": lambda a, b: (a @ b.mT, torch.einsum("ij,kj->ik", a, b.conj()), a.mH @ b, torch.mv(a, b[0])),
    "batches": lambda a, b: (a.expand(3, 4, 5) @ (b.mH * 2), torch.bmm(a[None], b.mT[None])),
    "products and what is added": lambda a, b: (
        F.linear(a, b, b[:, 0]),
        torch.addmm(a[:, :1], a, b.mH, beta=2, alpha=0.5),
    ),
    "made": lambda a, b: (
        torch.zeros(4, 9, dtype=a.dtype).slice_scatter(a.detach(), 1, 1, 6),
        a.new_empty(2, 3).fill_(1j) * a[:2, :3],
        torch.empty_like(b).copy_(a),
        b.new_empty_strided((4, 5), (1, 4)).copy_(b * 2),
    ),
    "of no terms": lambda a, b: (a[:, :0] @ b[:, :0].mT, b[:0] @ a.mT),
    "conjugates": lambda a, b: ((a * b.conj()).sum(-1), a.conj().imag, (a.mH.imag * 2), torch.vdot(a[0], b[1])),
    "functions": lambda a, b: (a.log(), a**2 + b**3, (a.square() ** 4).abs().log()),
    "norms": lambda a, b: (a.norm(dim=1), torch.linalg.vector_norm(b), torch.linalg.vector_norm(a, 1, 0)),
    "parts": lambda a, b: (
        torch.cat(a.split((2, 3), 1)[::-1], 1),
        torch.stack(b.unbind(-1)[::-1]),
        a.chunk(2)[1] * b[:2],
    ),
    "moves": lambda a, b: (a.flip(1), b.flip(0, -1), a.repeat(2, 1, 3), F.pad(a, (1, -2, 0, 3)), F.pad(b, (-1, 2))),
    "places": lambda a, b: (
        a.roll(2, 1),
        b.roll((1, -1), (0, 1)),
        a[:, torch.tensor([4, 0, 0])],
        b.index_select(0, PLACES),
    ),
}
"""Functions of complex numbers; what is taken at places is not differentiated: it is put back by ATen."""
PLACES = torch.tensor([3, 1, 1, 0, 2])


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_computed_with_in_kernels(name: str) -> None:
    def function(u: Any, v: Any, x: Any, y: Any) -> Any:
        found = COMPLEX[name](torch.complex(u, v), torch.complex(x, y))
        return [torch.view_as_real(one) if one.is_complex() else one for one in found]

    given = [torch.randn(4, 5, dtype=torch.float64).requires_grad_(name != "places") for _ in range(4)]
    same(function, tuple(given), tolerance=1e-11)


def test_complex_numbers_whose_squares_are_too_large_or_small() -> None:
    def function(x: Any, y: Any, size: Any) -> Any:
        a, b = torch.complex(x, y), torch.complex(y * size, x / size)
        found = torch.view_as_real(a / b) * size, torch.view_as_real(a / (b / size)), b.abs(), (a * 0).sgn().real
        return *found, a == a * 1, a != 2 + 1j, a * 0 == 0

    x, y = torch.randn(2, 4, 5).unbind()
    same(function, *((x, y, torch.tensor(size)) for size in (1e-19, 1e19)), tolerance=1e-5)


def test_spectra() -> None:
    def function(x: Any) -> Any:
        bins = torch.stft(x, 8, 4, 8, torch.hann_window(8, dtype=x.dtype), return_complex=True)
        return bins.abs().pow(2).clamp(min=1e-8).log().mean(-1), bins.angle().sin(), bins.sum(-1).real

    x = torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(compiled_of(function)(x), function(x), rtol=1e-9, atol=1e-9)
    assert {name for report in compiled.reports for name in report.left} == {"aten._fft_r2c.default"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_padding_that_adds_elements_or_leaves_some_out(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        more = y.shape[0] - 6
        found = (
            F.pad(x, (more, -more)),
            F.pad(x, (x.shape[0] - 6, more, 2, 0), value=1.5 if x.is_floating_point() else 3),
        )
        return found if not x.is_floating_point() else (*found, *ends(x))

    def ends(x: Any) -> Any:
        return F.pad(x[None], (2, 3), mode="replicate"), F.pad(x[None, None], (1, 0, 0, 2), mode="replicate")

    sizes = (5, 8, 6)
    calls = [(torch.randint(-9, 9, (size, 8)).to(dtype), torch.zeros(size + 1)) for size in sizes]
    if dtype == torch.float64:
        calls = [(x.requires_grad_(), y) for x, y in calls]
    same(function, *calls, dynamic=True, tolerance=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_comes_most_often(dtype, dynamic):
    run = torch.compile(lambda x: (*x.mode(1), *x.mode(0, keepdim=True)), backend=compiled.backend, dynamic=dynamic)
    for rows, columns in ((5, 16), (7, 12)):
        x = (torch.randn(rows, columns) * 2).round().to(dtype)
        torch.testing.assert_close(run(x), (*x.mode(1), *x.mode(0, keepdim=True)))
    assert not any(report.left or report.reason for report in compiled.reports)


def histograms(x):
    edges = torch.arange(-40, 41, dtype=x.dtype) / 20
    given = torch.cat([x, edges, x.new_tensor([5.0, float("nan")])])
    found = (
        torch.histc(given, 10, -2, 2),
        torch.histc(given, 7, -1, 3),
        torch.histc(edges),
        torch.histc(x[:0] + 1, 3, 0, 2),
    )
    return *found, torch.histc(torch.ones_like(x), 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms_have_the_bins_of_eager_pytorch(dtype):
    x = torch.randn(1500).to(dtype)
    torch.testing.assert_close(torch.compile(histograms, backend=compiled.backend)(x), histograms(x), rtol=0, atol=0)
    assert not any(report.left for report in compiled.reports)


def _with_zeros(x: Any) -> Any:
    """Return numbers of which rows along each dimension have no, one and several zeros."""
    for place in ((1, 3), (2, 2, 1), (3, 0, 0), (3, 4, 5), (4, 2, 3), (4, 4, 3), (0, 2), (5, slice(None), 2)):
        x[place] = 0
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["no zeros", "zeros", "nothing"])
def test_gradients_of_products_and_of_running_ones(kind: str, dtype: Any) -> None:
    def function(x: Any) -> Any:
        running = [x.cumprod(axis) for axis in (0, 1, -1)]
        return *running, *(x.prod(axis) for axis in (0, 1, -1)), torch.prod(x, 1, True), torch.prod(x), x.prod(0).sin()

    x = torch.randn(7, 5, 6).to(dtype)
    x = _with_zeros(x) if kind == "zeros" else x[:, :0] if kind == "nothing" else x
    leaf, exact = x.clone().requires_grad_(), x.double().clone().requires_grad_()
    bound = 8 * torch.finfo(dtype).eps
    for number, (one, other) in enumerate(zip(compiled_of(function)(leaf), function(exact), strict=True)):
        weight = torch.randn_like(other).to(dtype)
        (got,) = torch.autograd.grad(one, leaf, weight, retain_graph=True)
        (wanted,) = torch.autograd.grad(other, exact, weight.double())
        # What is added up after a product and divided by a factor is as exact as the sum's largest parts are.
        atol = bound * (8 * float(wanted.abs().max()) if number < 3 and kind != "nothing" else 1e-3)
        torch.testing.assert_close(got.double(), wanted, rtol=bound, atol=atol)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


def test_products_within_transforms_and_of_integers() -> None:
    def function(x: Any) -> Any:
        named = (
            torch.prod(input=x, dim=1),
            torch.cumprod(input=x, dim=0),
            x.prod(axis=-1, keepdim=True),
            x.cumprod(axis=1),
        )
        return torch.func.grad(lambda y: (y.prod(0) * y[0].cumprod(-1)).sum())(x), (x * 4).long().prod(1), *named

    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(compiled_of(function)(x), function(x))
    number = torch.randn((), requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(compiled_of(lambda x: x.prod() * 2)(number), number)[0].item(), 2.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_medians_of_long_columns(dynamic: bool) -> None:
    def function(x: Any) -> Any:
        found = x.median(0), x.kthvalue(3, 1, True), x.nanmedian(1)
        return *(one.values for one in found), *(x.gather(1, found[1].indices), x.median(0).values * 2)

    same(function, *((torch.randn(rows, rows + 3, 2, requires_grad=True),) for rows in (70, 81)), dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_one_row_that_is_put_at_many_places(dtype: Any) -> None:
    def function(x: Any, i: Any, v: Any) -> Any:
        rows = (
            x.index_put((i,), v),
            x.index_put((i,), v[0]),
            torch.ops.aten.index_put(x, [None, i % 6], v[0, :1]),
            x.clone(),
        )
        rows[3][i] = 3
        some = (
            x.index_fill(1, i % 6, 2),
            x.index_put((i, i % 6), v[0, 2:3], accumulate=True),
            x.scatter(0, i[:, None], 7),
        )
        many = torch.zeros_like(x), torch.zeros(4, 6, dtype=dtype), torch.zeros(4, 6, dtype=dtype)
        wide = i[:, None] % 6 + torch.zeros_like(i)[:3]
        added = many[0].index_add(0, i, v.expand(7, 6)), many[1].scatter_add(1, wide[:4] % 6, x[:4, :3])
        return *rows, *some, *added, many[2].index_put((i % 4,), v[0, 0], accumulate=True)

    x, v = torch.arange(30).view(5, 6).to(dtype), torch.arange(6).to(dtype)[None]
    i = torch.tensor([3, 0, 3, 1, 4, 3, 2])
    if dtype.is_floating_point:
        x, v = x.requires_grad_(), v.requires_grad_()
    # A gradient that is one number is the exact sum, rounded once, where eager's is rounded at each step.
    same(function, (x, i, v), (x, i, v), tolerance=torch.finfo(dtype).eps if dtype.is_floating_point else 0.0)


@pytest.mark.parametrize("shape", [(600, 70), (1100, 64), (2, 515, 65)])
def test_long_columns_that_no_sum_goes_along_are_read_once(shape: tuple[int, ...]) -> None:
    def function(x: Any) -> Any:
        x = x[-1] if x.ndim > 2 else x
        positive = x > 0
        product = torch.where(positive, 1, x.double()).prod(0)
        return positive.sum(0), product, (x == 0).any(0), (x < 9).all(0), (x * 2).amin(0)

    x = torch.rand(shape) * 3 - 1.5
    x[..., 513, 7], x[..., 3] = 0, -x[..., 3].abs()
    same(function, (x,), tolerance=1e-12)
    assert explain(compiled_of(function), x).graphs[0].read < 2 * x[..., :1, :].nbytes * shape[-2]
