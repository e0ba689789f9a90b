"""Single ops in `torch.compile(backend="tessera")`, many in one graph: eager PyTorch says what they give, both ways."""

import math
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


def test_distances_within_matrices_of_any_size():
    calls = [(normal(size, 4),) for size in (7, 3, 30)]
    both_ways(lambda x: (F.pdist(x), torch.pdist(x, 1.0).exp()), *calls, dynamic=True)
    assert len(compiled.reports) == 2


def padded_to_blocks(x):
    blocks = F.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, x.shape[1])
    return (blocks.softmax(1).flatten(0, 1)[: x.shape[0]],)


def quotients_of_floats(x):
    size = x.shape[0]
    parts = int(size * 0.3), int(size / (8 / 4 / 2)), math.ceil(size / 3)
    return x[: parts[0]].exp(), x.view(parts[1], -1).sin(), x.new_zeros(parts[2]) + x[0, 0]


def extremes_and_remainders(x):
    size = x.shape[0]
    return (
        x[: max(2, size - 5)].exp(),
        x[: min(size, 6)].sin(),
        x * (size % 5),
        x.new_full((size % 5 + 2,), 3) * x[0, 0],
    )


def grids_of_matrices(x):
    flat = x[:, : 6 * (x.shape[1] // 6)].reshape(-1, 2, 3)
    deep = F.affine_grid(F.pad(flat, (0, 1, 0, 1)), (flat.shape[0], 1, 2, 3, 2), align_corners=True)
    return F.affine_grid(flat, (flat.shape[0], 1, 3, 4), align_corners=False), deep


@pytest.mark.parametrize(
    "function", [padded_to_blocks, quotients_of_floats, extremes_and_remainders, grids_of_matrices]
)
def test_sizes_that_are_no_sums_and_products_of_sizes(function):
    both_ways(function, *((normal(size, 6),) for size in (7, 9, 12)), dynamic=True)
    assert len(compiled.reports) == 2


EDGES = (0.0, -0.0, 1.0, -1.0, 1.5, 1e-12, 1e15, float("inf"), float("-inf"), float("nan"))


def hyperbolic(x, y):
    edges = torch.tensor(EDGES, dtype=x.dtype)
    found = torch.asinh(x), torch.acosh(x.abs() + 1), torch.atanh(y), torch.asinh(edges), torch.acosh(edges)
    return *found, torch.atanh(edges)


def special(x, y):
    edges = torch.tensor(EDGES, dtype=x.dtype)
    return torch.erfinv(y), torch.lgamma(x.abs() + 0.1), torch.erfinv(edges), edges.digamma()


def of_two(x, y):
    found = torch.hypot(x, y), torch.copysign(x, y), torch.fmod(x, y), torch.fmax(x, y), torch.fmin(x, y)
    rest = torch.signbit(x), torch.angle(y), torch.round(x, decimals=2), torch.ldexp(x, torch.arange(-2, 5))
    return *found, *rest


def signs(a, b, n):
    return torch.fmod(a, b), torch.fmod(a, -3), a % b, a // b, torch.div(a, b, rounding_mode="trunc"), a << 2, a >> 1


def powers(a, b, n):
    return a**3, a**6, a**0, a**2.0, n**0.5, n**-1.0, 2**n, a**n, n ** a.sign()


def running(a, b, n):
    return a.cumsum(0), (a > 0).cumsum(0), (a > 0).amax(), a.max(), b.cumprod(0)


def norms(x, y):
    found = x.norm(3, 1), x.norm(float("inf"), 0), x.norm(0), torch.linalg.vector_norm(x, 0.5, (0, 1), True)
    return *found, torch.addmv(x[:, 0], x, y[0])


def distances(x, y):
    powers = [torch.cdist(x, y, p=p) for p in (0.0, 0.5, 1.0, 1.5, 3.0, float("inf"))]
    within = F.pdist(x), F.pdist(x, 1.0), F.pdist(x, 3.0), torch.pdist(y, float("inf"))
    return torch.cdist(x, y), *powers, *within, torch.cdist(x[:2], x[:3].detach(), p=1.5), torch.dist(x, x + 1)


def diagonals(x):
    lines = x.diagonal(), x.diagonal(1) * 2, x.diagonal(-2), x.trace(), torch.diag_embed(x[0], -1)
    return *lines, torch.diagonal_scatter(x, x[0, :4] * 2, 2), torch.select_scatter(x, x[0] * 2, 0, -2)


def windows(x):
    return x.unfold(1, 3, 2) * torch.arange(3), x.unfold(0, 2, 3), F.pad(x[None], (2, 1), mode="replicate")


def by_dtype(x, i):
    padded = F.pad(x > 0, (1, 2), value=0.5), F.pad(i, (1, 2), value=2.7), F.pad(x, (1, 1), value=3)
    return *padded, torch.scatter(x, 1, i[:, :1], 2), (x > 0).amax(1), (x > 0).amin(1)


def order(x):
    x = x.detach()
    bounds = torch.tensor([-1.0, 0.0, 0.5], dtype=x.dtype)
    found = torch.bucketize(x, bounds), torch.bucketize(x.round(), bounds, right=True)
    searched = torch.searchsorted(bounds, x), torch.searchsorted(x.nan_to_num().cummax(1)[0], x)
    return *found, *searched, *x.kthvalue(3, 1), x.cummin(0)[0], x.masked_scatter(x > 0, x.flip(0).contiguous())


def strided(x):
    x = x.detach()
    return torch.as_strided(x * 2, (3, 2), (6, 1), 1), torch.as_strided((x * 2).t(), (3, 2), (6, 1), 1)


def sampled(x, grid):
    image = x.reshape(2, 3, 3, 4)
    return (F.grid_sample(image, grid.tanh() * 1.5, padding_mode="border", align_corners=True),)


SAMPLES = [
    (mode, outside)
    for mode in ("nearest", "bicubic", "bilinear")
    for outside in ("zeros", "border", "reflection")
    if mode != "bilinear" or outside == "reflection"
]


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(("mode", "outside"), SAMPLES)
def test_samples_of_images(mode, outside, corners):
    def function(x, grid):
        return (F.grid_sample(x, grid * 0.8, mode, outside, corners),)

    both_ways(function, reals((2, 3, 5, 4), (2, 3, 2, 2))())


@pytest.mark.parametrize(
    ("mode", "outside", "corners"),
    [("nearest", "border", False), ("bilinear", "zeros", False), ("bilinear", "reflection", True)],
)
def test_samples_of_volumes(mode, outside, corners):
    def function(x, grid):
        return (F.grid_sample(x, grid * 0.8, mode, outside, corners),)

    both_ways(function, reals((2, 2, 3, 4, 3), (2, 3, 2, 2, 3))())


@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("rank", [2, 3])
def test_samples_at_pixels_have_pytorchs_slopes(rank: int, outside: str) -> None:
    torch._dynamo.reset()

    def function(x: Any, grid: Any) -> Any:
        return F.grid_sample(x, grid, "bilinear", outside, True)

    x = torch.randn(2, 3, *[5] * rank, dtype=torch.float64)
    places = torch.eye(rank, rank + 1, dtype=torch.float64).repeat(2, 1, 1)
    places[1] *= 1.5  # some between pixels, some outside of the image
    grid = F.affine_grid(places, [2, 3, *[5] * rank], True).requires_grad_()
    slopes = [
        torch.autograd.grad(run(x, grid).square().sum(), grid)
        for run in (torch.compile(function, backend=compiled.backend), function)
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_next_numbers(dtype):
    info = torch.finfo(dtype)
    least, normal_ = info.smallest_normal * info.eps, info.smallest_normal
    edges = [0.0, least, normal_ - least, normal_, 2 * normal_, normal_ / info.eps, 1.0, 2 - info.eps, 2.0, info.max]
    x = torch.tensor([*edges, *(3.3**power for power in range(-30, 31, 3)), math.inf, math.nan], dtype=dtype)
    x = torch.cat([x, -x])

    def function(x):
        return [torch.nextafter(x, y) for y in (x.flip(0), x * 0, x * 0 + 9, -x, x, torch.full_like(x, -math.inf))]

    found = torch.compile(function, backend=compiled.backend)(x)
    for one, wanted in zip(found, function(x), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(one.signbit() | one.isnan(), wanted.signbit() | wanted.isnan())
    assert not compiled.reports[-1].left


def test_the_inverse_of_erf_is_as_exact_as_pytorch_has_it():
    x = torch.cat([torch.linspace(-1, 1, 999)[1:-1], torch.tensor([1e-30, 1 - 2**-23, 2**-23 - 1, 1.0, -1.0, 1.5])])
    found, eager, wide = torch.compile(torch.erfinv, backend=compiled.backend)(x), x.erfinv(), x.double().erfinv()
    torch.testing.assert_close(found, eager, equal_nan=True)
    inside = wide.isfinite()
    errors = [((one - wide) / wide)[inside].nan_to_num().abs().max() for one in (found, eager)]
    assert errors[0] <= 1.5 * errors[1]


def made():
    """Take no tensor."""
    ranges = torch.arange(7), torch.arange(0.5, 4), torch.linspace(0, 1, 9), torch.tril_indices(4, 3)
    return *ranges, torch.eye(4), torch.full((2, 3), 3.5), torch.zeros(3, 4), torch.ones(5, dtype=torch.bfloat16)


def test_graphs_without_tensors():
    both_ways(made, ())


def test_ranges_between_tensors():
    def function(a, b):
        return torch.linspace(a, b, 7), torch.linspace(a, 2.0, 5), torch.linspace(-1, b, 4), torch.logspace(a, b, 5)

    both_ways(function, (torch.tensor(0.3), torch.tensor(1.7)), tolerance=1e-6)


def written(x, y):
    """Write parts of memory."""
    places = ((3, 2), (1, 3), 2), ((3, 2), (2, 1), 0), ((2, 3), (3, 1), 14)
    parts = [torch.as_strided_scatter(x, y.reshape(sizes), sizes, *rest) for sizes, *rest in places]
    return *parts, torch.as_strided_scatter(x, x.sin(), (4, 5), (5, 1)), x.sum().unfold(0, 1, 1) * 2


def test_parts_of_memory():
    both_ways(written, reals((4, 5), (3, 2))())


def written_apart(x, y):
    """Write elements that lie apart in memory, in place too."""
    places = ((3, 2), (6, 2), 1), ((2, 3), (1, 5), 2), ((1, 3, 2), (1, 6, 4), 0)
    parts = [torch.as_strided_scatter(x, y.reshape(sizes), sizes, *rest) for sizes, *rest in places]
    return *parts, (x * 2).fill_diagonal_(0.5), (y * 3).fill_diagonal_(-1.0, wrap=True)


def test_elements_that_lie_apart_in_memory():
    both_ways(written_apart, reals((4, 5), (3, 2))())


def test_the_mean_of_turned_images():
    """A mean of channels last lets PyTorch write its gradient by strides."""

    def function(x, w):
        return (F.adaptive_avg_pool2d((x.permute(0, 2, 3, 1) @ w).permute(0, 3, 1, 2), 1).flatten(1),)

    both_ways(function, reals((2, 3, 4, 4), (3, 5))())


def weight_norm(x):
    return torch._weight_norm(x, x[:, :1].abs() + 1, 0), torch._weight_norm(x, x[:1] + 3, 1)


def leaky(x):
    return F.rrelu(x), F.rrelu(x, 0.2, 0.2, training=False) * 2, F.rrelu(x.clone(), inplace=True)


def of_lists(x, y):
    several, others = [x, y * 2], [y, x]
    factors = torch._foreach_mul(several, [0.5, 3.0]), torch._foreach_addcmul(several, others, others, value=0.3)
    sums = torch._foreach_add(several, others, alpha=2), torch._foreach_lerp(several, others, 0.3)
    least = torch._foreach_maximum(several, others), torch._foreach_minimum(several, 0.1)
    quotients = torch._foreach_addcdiv(several, others, torch._foreach_exp(several), [0.1, 0.2])
    norms = torch._foreach_norm(several), torch._foreach_pow(2.0, several), x.clone().mul_(0.9).addcmul_(y, y, value=3)
    return [one for some in (*factors, *sums, *least, quotients, *norms) for one in some]


def of_several(x, y, w):
    batches, labels = w[:, :4].mT, y.detach().sign()
    found = torch.addbmm(x, w, batches, beta=0.5, alpha=2)[:4], F.bilinear(x, y, w)
    taken = x.masked_scatter(x > 0, y), x.masked_scatter((x > 0)[0], y), x[0].masked_scatter(x > 0, y)
    losses = F.soft_margin_loss(20 * x, labels), F.soft_margin_loss(9 * x, labels, reduction="none")
    return *found, *taken, *losses


def margins(x):
    labels = torch.tensor([[3, -1, 0, 0, 0], [3, 1, -1, 4, 2], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4], [2, 2, -1, 1, 0]])
    several = [F.multilabel_margin_loss(x, labels, reduction=how) for how in ("none", "mean", "sum")]
    return *several, F.multilabel_margin_loss(x[1], labels[1])


def combined(reduce: str) -> Callable[..., Any]:
    return lambda x, y, i: tuple(x.scatter_reduce(0, i, y, reduce, include_self=own) for own in (True, False))


def reals(*shapes: tuple[int, ...], dtype: Any = torch.float64) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(normal(*shape, dtype=dtype) for shape in shapes)


def pairs(dtype: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: (normal(9, 7, dtype=dtype) * 5, torch.rand((9, 7), dtype=dtype) * 1.9 - 0.95)


def integers(dtype: Any) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        sign = torch.randint(0, 2, (60,), dtype=dtype) * 2 - 1
        some = torch.randint(-20, 20, (60,), dtype=dtype), torch.randint(1, 7, (60,), dtype=dtype) * sign
        return *some, torch.arange(1, 61, dtype=dtype) % 9 + 1

    return make


def with_nan() -> tuple[Any, ...]:
    x = normal(6, 9)
    x[2, 3] = float("nan")
    return (x,)


ROWS = {
    **{
        f"{f.__name__}, {d}": (f, pairs(d))
        for f in (hyperbolic, special, of_two)
        for d in (torch.float64, torch.float32)
    },
    **{f"{f.__name__}, {d}": (f, integers(d)) for f in (signs, powers, running) for d in (torch.int64, torch.int32)},
    "norms": (norms, reals((6, 5), (4, 5))),
    "distances": (distances, reals((6, 5), (4, 5))),
    "diagonals": (diagonals, reals((6, 6))),
    "windows": (windows, reals((6, 6))),
    "by dtype": (by_dtype, lambda: (normal(3, 4), torch.randint(0, 4, (3, 4)))),
    "order": (order, with_nan),
    "strided": (strided, reals((4, 6))),
    "sampled": (sampled, reals((6, 12), (2, 4, 3, 2))),
    "of lists": (of_lists, reals((4, 5), (4, 5))),
    "of several": (of_several, reals((4, 4), (4, 4), (3, 4, 4))),
    "margins": (margins, reals((5, 5))),
    "leaky": (leaky, reals((4, 5))),
    "weight norm": (weight_norm, reals((4, 6))),
    **{
        f"scatter {kind}": (combined(kind), lambda: (normal(5, 6), normal(9, 6), torch.randint(0, 4, (9, 6))))
        for kind in ("sum", "prod", "amax", "amin", "mean")
    },
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_give_what_eager_pytorch_gives(name):
    function, make = ROWS[name]
    both_ways(function, make(), tolerance=2e-4 if "float32" in name else 1e-8)


@pytest.mark.filterwarnings("ignore:The reduce argument:UserWarning")
def test_scattered_products():
    def function(x, y):
        places = torch.arange(4)[:, None] // 2
        x = x.detach()
        return torch.scatter(x, 0, places, y.detach(), reduce="multiply"), x.scatter(0, places, 2.5, reduce="add")

    both_ways(function, (normal(4, 5), normal(4, 5)))


def test_order_along_sizes_that_change():
    def function(x):
        return *x.topk(2, 0), *x.sort(1, descending=True), *x.topk(1, 1, largest=False)

    both_ways(function, *((normal(size, 3 * size),) for size in (7, 4, 33)), dynamic=True)


def sum_of_windows(y, size):
    found = torch.zeros(size, dtype=y.dtype)
    for number, row in enumerate(y):
        found[4 * number : 4 * number + 8] += row
    return found


def test_windows_are_added_up_as_often_as_there_are_rows():
    """PyTorch takes a Fourier transform's inverse apart so, of as many rows as the transform has."""

    def function(x, y):
        return (
            torch.ops.aten.unfold_backward(y[None].expand(1, -1, -1) * 2, (x.shape[0], 4 * y.shape[0] + 4), 1, 8, 4),
        )

    given = normal(3, 2), normal(5, 8)
    for options in ({}, {"dynamic": True}):
        torch._dynamo.reset()
        (got,) = torch.compile(function, backend=compiled.backend, **options)(*given)
        torch.testing.assert_close(got, sum_of_windows(2 * given[1], 24).expand(3, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(7,), (333, 41), (1, 5000), (2, 3, 517)])
def test_what_is_added_up_of_everything_is_exact_but_for_one_rounding(shape):
    def function(x):
        axes = tuple(range(x.ndim))
        return x.sum(), x.mean(), x.sum(axes, keepdim=True), x.norm(), x.norm(1), torch.square(x).mean()

    run = torch.compile(function, backend=compiled.backend)
    for _ in range(4):
        x = torch.randint(-255, 256, shape) / 256.0  # so that squares have no rounding
        for found, exact in zip(run(x), function(x.double()), strict=True):
            assert found.dtype == torch.float32
            assert torch.equal(found, exact.float())
