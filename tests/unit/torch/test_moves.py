"""Ops that move elements in `torch.compile(backend="tessera")`: eager PyTorch says what they give, both ways."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled.rows import scatters  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def both_ways(function: Callable[..., Any], *given: Any, **options: Any) -> None:
    """Compare results and gradients with eager PyTorch's in float64."""
    compiled_once = torch.compile(function, backend=compiled.backend, **options)
    for factor in (1, 0.75):  # the second run starts launches together
        changed = [one.detach().clone() * factor if one.is_floating_point() else one for one in given]
        one_way(function, compiled_once, *changed)


def one_way(function: Callable[..., Any], compiled_once: Callable[..., Any], *given: Any) -> None:
    floats = [one.requires_grad_() for one in given if one.is_floating_point()]
    results = []
    for run in (function, compiled_once):
        found = run(*given)
        found = found if isinstance(found, tuple) else (found,)
        torch.manual_seed(1)
        smooth = [one for one in found if one.requires_grad]
        weights = [torch.randn_like(one) for one in smooth]
        results.append((found, torch.autograd.grad(smooth, floats, weights, allow_unused=True) if smooth else ()))
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def kernels() -> list[int]:
    """Return how many kernels the graphs have; none may have an ATen op."""
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports
    return [report.kernels for report in compiled.reports]


def normal(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, dtype=dtype)


def test_takes():
    def function(x, i, j, k):
        rows = x[:, i], x[i], x[i, :, j], x[:, i, j], x[..., j], torch.index_select(x, 1, i[0].abs()), x.relu()[:, i]
        along = x.gather(1, i[:, :, None].abs()), torch.take_along_dim(x, k, 1), x.roll(3, 1), x.roll((1, -2), (0, 2))
        return *rows, *along, F.pad(x, (1, 2), mode="reflect")

    with torch.no_grad():
        i, j = torch.randint(-6, 6, (4, 3)), torch.randint(-5, 5, (4, 3), dtype=torch.int32)
        k = torch.randint(-7, 7, (6, 3, 1))
        both_ways(function, normal(6, 7, 5), i, j, k)
        both_ways(function, normal(5, 14, 6).transpose(0, 2)[:, ::2], i, j, k)
    assert kernels()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_takes_of_any_dtype(dtype):
    table, words = (torch.randn(9, 6) * 9).to(dtype), torch.randint(0, 9, (2, 5))
    function = torch.compile(
        lambda table, words: (F.embedding(words, table), table[words, 1]), backend=compiled.backend
    )
    got = function(table, words)
    assert torch.equal(got[0], table[words])
    assert torch.equal(got[1], table[words, 1])
    assert kernels()


def test_losses_are_kernels_of_rows():
    t = torch.randint(0, 33, (12,))
    both_ways(lambda x, t: F.cross_entropy(x, t, reduction="none"), normal(12, 33), t)
    assert kernels() == [1, 1]
    t[3] = -100
    weight = normal(33)
    both_ways(lambda x, t: F.cross_entropy(x, t, weight=weight, label_smoothing=0.1), normal(12, 33), t)
    both_ways(lambda x, t: F.nll_loss(x.log_softmax(1), t), normal(12, 33, 4), torch.randint(0, 33, (12, 4)))
    both_ways(lambda x, t: F.cross_entropy(x, t), normal(12, 33), t, dynamic=True)


def test_sums_of_rows_of_two_tensors_are_one_kernel():
    with torch.no_grad():
        both_ways(lambda x, y: F.cosine_similarity(x, y, 1), normal(6, 40), normal(6, 40))
    assert kernels() == [1]


def test_gradients_of_embeddings_by_the_frequency_of_rows():
    def function(i, w):
        return F.embedding(i, w, 3, scale_grad_by_freq=True), F.embedding(i[0], w, scale_grad_by_freq=True)

    for size in (4, 5, 7):
        both_ways(function, torch.randint(0, 9, (size, 6)), normal(9, 4))
    kernels()


def test_truth_values_put_at_places():
    def function(x, i, j):
        mask, along = x > 0, i.clone()
        many = mask.scatter(1, along, True), mask.scatter(1, along, x[:, :3] > 1), mask.scatter_(1, along[:, :1], False)
        rows, places = (x > 0.3).clone(), (x > 0.7).clone()
        rows[j], places[j, i[:, 0]] = False, x[:, 0] > 0.5
        added = rows.index_put((j,), x > 1, accumulate=True), rows.index_add(0, j, x > 0.2)
        return *many, rows, places, *added, rows.index_fill(1, i[0], True), rows.index_copy(0, i[0], x[:3] > 0.1)

    for size in (5, 300):
        i = torch.stack([torch.randperm(5)[:3] for _ in range(size)])
        both_ways(function, normal(size, 7), i, torch.randperm(size))
        with torch.no_grad():
            added = torch.compile(lambda m, j: m.index_put((j,), m, accumulate=True), backend=compiled.backend)
            mask, j = normal(size, 7) > 0, torch.arange(size) % 2  # more than 255 for a place
            assert torch.equal(added(mask, j), mask.index_put((j,), mask, accumulate=True))
    kernels()


def test_one_place_of_each_row_is_no_scatter():
    def function(x, y, i):
        value = torch.scatter(x, 1, i, 3.5), torch.scatter(x, -1, i, y), torch.scatter_add(x, 1, i, y)
        return *value, torch.scatter(torch.zeros_like(x), 1, i, 1.0)

    both_ways(function, normal(5, 9), normal(5, 1), torch.randint(0, 9, (5, 1)))


def test_takes_of_any_size():
    function = torch.compile(lambda x, i: x[i].relu() + x.tanh()[i], backend=compiled.backend, dynamic=True)
    for rows, taken in ((6, 4), (9, 30), (50, 7)):
        x, i = normal(rows, 5), torch.randint(-rows, rows, (taken,))
        torch.testing.assert_close(function(x, i), x[i].relu() + x.tanh()[i])
    assert len(kernels()) == 1


def gate(x):
    half = x.shape[-1] // 2
    return F.silu(x[..., :half]) * x[..., half:]


def rotary(x, cos, sin):
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def projections(x):
    q, k, v = x.split((6, 4, 4), -1)
    return (q.tanh().sum(-1, keepdim=True) * k + v).relu(), q * 2


def joined(x, y):
    both = torch.cat([x, y * 2], 1)
    return (
        both.relu() + 1,
        torch.stack([x, x * y, y], 1).tanh(),
        torch.cat([x.t() * 2, y.t()], 0),
        torch.cat([both, both + 1])[1:],
    )


@pytest.mark.parametrize(
    ("function", "shapes", "counts"),
    [
        (gate, [(6, 10)], [1, 1]),
        (gate, [(3, 5, 14)], [1, 1]),
        (rotary, [(2, 3, 5, 8), (5, 4)], [1, 1]),
        (lambda x: F.glu(x.relu(), -1), [(7, 6)], [1, 1]),
    ],
)
def test_parts_are_read_and_written_where_they_lie(function, shapes, counts):
    given = [normal(*shape) for shape in shapes]
    if function is rotary:
        with torch.no_grad():
            angles = given.pop()
        both_ways(lambda x: rotary(x, angles.cos(), angles.sin()), *given)
    else:
        both_ways(function, *given)
    assert kernels() == counts


_NUMBERS = (0, 1, -1, 2, 3, 5, 7, 40, 2**20, 2**31 - 3, -(2**31), 2**33, 2**62)


def integers(rng: random.Random, depth: int) -> Callable[[Any], Any]:
    """Draw a formula of integers that follow from places, beside the ends of 32 and 64 bits too."""
    if not depth:
        number = rng.choice(_NUMBERS)
        return rng.choice([lambda at: at, lambda at: torch.full_like(at, number)])
    a, b, c = (integers(rng, depth - 1) for _ in range(3))
    divisor, shift = rng.choice([1, 2, 3, 9, 64]), rng.uniform(-3, 3)
    formulas: list[Callable[[Any], Any]] = [
        lambda at: a(at) + b(at),
        lambda at: a(at) - b(at),
        lambda at: (a(at) - b(at)).abs(),
        lambda at: a(at) * b(at),
        lambda at: a(at) // divisor,
        lambda at: a(at) % divisor,
        lambda at: torch.minimum(a(at), b(at)),
        lambda at: torch.maximum(a(at), b(at)),
        lambda at: torch.where(a(at) < b(at), c(at), -a(at)),
        lambda at: torch.where((a(at) >= 0) & (b(at) != c(at)), a(at), b(at)),
        lambda at: ((at + 0.5) * 0.7 + shift).clamp(min=0).to(torch.int64),
        lambda at: (at * 1.5 + shift).floor().to(torch.int64) + c(at),
        lambda at: torch.where((at * 9 + divisor).to(torch.float16).to(torch.int64) <= 1007 + divisor, b(at), c(at)),
    ]
    return rng.choice(formulas)


@pytest.mark.parametrize("seed", range(8))
def test_random_integers_of_places(seed):
    rng = random.Random(seed)
    formulas = [integers(rng, 3) for _ in range(5)]
    x = normal(33, 40)

    def function(x):
        rows, columns = torch.arange(33)[:, None].expand(33, 40), torch.arange(40).expand(33, 40)
        found = [formula(rows + 2 * columns) for formula in formulas]
        return *found, x[found[0] % 33, found[1] % 40], found[2].float(), found[3] > found[4]

    for one, other in zip(torch.compile(function, backend=compiled.backend)(x), function(x), strict=True):
        assert torch.equal(one, other)


def test_maps_of_memory_are_reshaped_first_where_they_are_reduced():
    x, y, w = normal(4, 6, 5, 7), normal(4, 6, 5, 7), normal(6)
    for function, most in (
        (lambda x, y, w: x.sigmoid().flatten(1).sum(1), 1),
        (lambda x, y, w: (x * y + 2).flatten(2).amax(-1), 1),
        (lambda x, y, w: ((x * w[:, None, None]).exp().reshape(4, 6, 35) * y.reshape(4, 6, 35)).sum(-1), 1),
        (lambda x, y, w: (x.tanh().reshape(4, 210) * y.reshape(4, 210).sin()).sum(-1), 1),
        (lambda x, y, w: (x.tanh(), x.tanh().view(24, 35).mean(1)), 3),
        (lambda x, y, w: (x.mT * 2).flatten(1).sum(1), 3),
    ):
        compiled.reports.clear()
        torch._dynamo.reset()
        found, wanted = torch.compile(function, backend=compiled.backend)(x, y, w), function(x, y, w)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        assert max(kernels()) <= most
    both_ways(lambda x, y, w: ((x * y).tanh() * w[:, None, None]).flatten(1).sum(1), x, y, w)


def test_concatenations_of_views_are_one_kernel():
    x, y = normal(6, 8, 10), normal(6, 8, 10)
    for function in (
        lambda x, y: torch.cat(x.split(5, -1)[::-1], -1),
        lambda x, y: torch.cat([x[:, :4], y[:, 4:], x[:, 2:6]], 1),
        lambda x, y: torch.cat([torch.cat([x[..., 5:], y[..., :5]], -1), torch.cat([y[..., :5], x[..., 5:]], -1)], 1),
        lambda x, y: torch.stack(torch.meshgrid(x[0, 0], y[0, 1], indexing="ij")),
        lambda x, y: torch.block_diag(x[0], y[0]),
        lambda x, y: torch.cat([torch.cat([x[..., 5:] * 2, y[..., :5].exp()], -1), x[..., :0]], -1),
    ):
        compiled.reports.clear()
        torch._dynamo.reset()
        found = torch.compile(function, backend=compiled.backend)(x, y)
        torch.testing.assert_close(found, function(x, y), rtol=1e-14, atol=0)
        assert kernels() == [1]


def drawn(rng: random.Random, depth: int) -> tuple[Any, ...]:
    """Draw an array of four rows and six columns, of two others: its kind, a number, and its parts."""
    kind = rng.randrange(6 if depth else 5)
    return kind, rng.randint(0, 3), [drawn(rng, depth - 1) for _ in range(2)] if kind == 5 else []


def made(one: tuple[Any, ...], x: Any, y: Any) -> Any:
    kind, rows, parts = one
    match kind:
        case 0:
            return x[rows : rows + 4]
        case 1:
            return y.t()[:4] * 2
        case 2:
            return x[:1].expand(4, 6)
        case 3:
            return x[:4]
        case 4:
            return torch.cat([x[:4, :rows], y[:4, rows:6]], 1)
        case _:
            return torch.cat([made(part, x, y)[:, :3] for part in parts], 1)


@pytest.mark.parametrize("seed", range(5))
def test_random_concatenations(seed):
    rng = random.Random(seed)
    parts, axis = [drawn(rng, 2) for _ in range(rng.randint(2, 4))], rng.randint(0, 1)

    def function(x, y):
        found = [made(part, x, y) for part in parts]
        return torch.cat(found, axis), found[0] + 1

    x, y = normal(7, 6), normal(6, 7)
    for one, other in zip(torch.compile(function, backend=compiled.backend)(x, y), function(x, y), strict=True):
        assert torch.equal(one, other)


def test_concatenations():
    both_ways(joined, normal(5, 5), normal(5, 5))
    both_ways(projections, normal(4, 14))
    both_ways(lambda x, y: torch.cat([x, y.exp(), x[:2]]) * 2, normal(3, 5), normal(4, 5))
    both_ways(lambda x: torch.cat([x.exp(), x.exp(), x.tanh().t()], 1), normal(4, 4))
    assert kernels()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_that_start_anywhere(dtype):
    x = torch.randn(5, 37).to(dtype)
    for at in (1, 8, 13):
        torch._dynamo.reset()
        function = torch.compile(
            lambda x, at=at: torch.cat([x[:, at:] * 2, x[:, :at].abs(), x * 0.5], 1), backend=compiled.backend
        )
        assert torch.equal(function(x), torch.cat([x[:, at:] * 2, x[:, :at].abs(), x * 0.5], 1))


def test_parts_of_any_size():
    joins = torch.compile(lambda x, y: torch.cat([x * 2, y.exp()], 1).relu(), backend=compiled.backend, dynamic=True)
    gates = torch.compile(gate, backend=compiled.backend, dynamic=True)
    for rows, size in ((5, 6), (9, 40), (70, 8)):
        x, y = normal(rows, size).requires_grad_(), normal(rows, 2 * size + 1)
        torch.testing.assert_close(joins(x, y), torch.cat([x * 2, y.exp()], 1).relu())
        both = [torch.autograd.grad(run(x).square().sum(), x)[0] for run in (gate, gates)]
        torch.testing.assert_close(both[1], both[0])


def scattered(x, y):
    part = y[:, :2]
    steps = torch.slice_scatter(x, y, 1, 1, 9, 2), torch.slice_scatter(x.exp(), y.tanh(), 1, 1, 8, 2), x.flip(0, -1)
    zeros = torch.slice_scatter(torch.zeros_like(x), part.exp(), 1, -2), torch.select_scatter(x, y[:, 0], 1, 2)
    shifted = (
        F.pad(x, (1, 2, -1, 3)),
        F.pad(x.exp(), (2, 0), value=-1.5),
        F.pad(y, (0, 0, 1, 1)).relu(),
        x.tanh().flip(1),
    )
    return *steps, *zeros, *shifted, F.pad(x[1:, ::2], (-1, 4))[:, 1:]


def test_placed_and_turned():
    both_ways(scattered, normal(5, 9), normal(5, 4))
    both_ways(lambda x, y: F.pad(x, (1, 1)) + F.pad(x.exp(), (2, 0)).flip(1), normal(5, 9), normal(1), dynamic=True)
    assert kernels()


TRANSPOSED = {
    "sums": lambda x, v: (x.t().sum(1), (x.t() * v[:, None]).mean(0), x.t().exp().amax(1), (x.t() * 2).prod(-1, True)),
    "products": lambda x, v: (x.t()[:, : v.shape[0]] @ v[: x.shape[0]], torch.einsum("ij,j->i", x, v)),
    "rows": lambda x, v: (x.t().softmax(1), x.t().var(1), F.layer_norm(x.t(), (x.shape[0],)), x.t().logsumexp(0)),
    "both": lambda x, v: ((x.t() + x.t().relu().sum(0)).sum(1), (x.t() + x.sin().t()).sum(), x.t().sum(1) * v),
    "several": lambda x, v: (
        x.view(-1, 2, x.shape[1]).permute(2, 0, 1).sum((0, 2)),
        x.view(2, -1, 5).permute(2, 0, 1).amax(1),
    ),
    "moved": lambda x, v: (
        x.t().flip(0),
        x.t().flip(1).t(),
        x.rot90(),
        x.rot90(-1).exp(),
        x.t().roll(3, 0),
        x.t()[v.argsort()],
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_what_is_computed_of_transposed_arrays(name, dynamic):
    both_ways(TRANSPOSED[name], normal(160, 130), normal(130), dynamic=dynamic)
    both_ways(TRANSPOSED[name], normal(130, 160).t().contiguous().t()[:6, :5], normal(5))
    assert kernels()


def test_sums_of_what_is_joined_are_those_of_its_dimensions():
    def function(x, y):
        return (x * y).view(4, 6, -1).sum(2), (x * 2).view(-1, 5, 7).amax((1, 2)), x.exp().flatten(1, 2).sum(1)

    both_ways(function, normal(4, 6, 5, 7), normal(4, 6, 5, 7))
    assert kernels()[0] <= 3


IMAGE, ODD, VOLUME = (2, 3, 8, 6), (2, 3, 7, 9), (2, 4, 4, 6)
POOLS = {
    "max": (lambda x: F.max_pool2d(x, 2), ODD, [1, 1]),
    "max, both": (lambda x: F.max_pool2d(x.tanh(), 3, 2, 1, return_indices=True)[0], IMAGE, None),
    "max, to the end": (lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True), ODD, None),
    "max of volumes": (lambda x: F.max_pool3d(x, 2), VOLUME, [1, 1]),
    "max of rows": (lambda x: F.max_pool1d(x[0], 3, 1, 1), IMAGE, None),
    "average": (lambda x: F.avg_pool2d(x, 2), ODD, [1, 1]),
    "average, padded": (lambda x: F.avg_pool2d(x.relu(), 3, 2, 1, True, False), ODD, None),
    "average, ceil": (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), IMAGE, None),
    "average of volumes": (lambda x: F.avg_pool3d(x, 2, divisor_override=3), VOLUME, [1, 1]),
    "max, shared": (lambda x: F.max_pool2d(x, 3, 2, 1), ODD, None),
    "max, shared, to the end": (lambda x: F.max_pool2d(x, 3, 1, ceil_mode=True), IMAGE, None),
    "max, apart, to the end": (lambda x: F.max_pool2d(x, 3, dilation=(1, 2), ceil_mode=True), IMAGE, None),
    "max, apart": (lambda x: F.max_pool2d(x, 2, 2, 0, 2), ODD, None),
    "average, shared": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), ODD, None),
    "average of all": (lambda x: F.avg_pool2d(x, (8, 6)), IMAGE, [1, 1]),
    "adaptive, uneven": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), ODD, None),
    "adaptive, larger": (lambda x: F.adaptive_avg_pool2d(x, (9, 13)), ODD, None),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), ODD, None),
    "adaptive max of volumes": (lambda x: F.adaptive_max_pool3d(x[None], (3, 2, 4)), VOLUME, None),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 2)), IMAGE, [1, 1]),
    "larger": (lambda x: F.interpolate(x, scale_factor=2), ODD, [1, 1]),
    "larger, fused": (lambda x: F.interpolate(x * 2, size=(24, 6)).relu() + 1, IMAGE, None),
    "larger rows": (lambda x: F.interpolate(x[0], scale_factor=3), IMAGE, [1, 1]),
    "by a half": (lambda x: F.interpolate(x, scale_factor=1.5), IMAGE, None),
    "shuffled": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x[:, :, :4], 2), 2), (2, 4, 6, 2), None),
}


SMOOTHED = {
    "smaller": {"size": (5, 4)},
    "larger": {"size": (16, 11), "align_corners": True},
    "either": {"scale_factor": (0.4, 1.7)},
    "one": {"size": (1, 3), "align_corners": True},
}


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", SMOOTHED)
def test_images_resized_by_wide_filters(mode, how):
    both_ways(lambda x: F.interpolate(x, mode=mode, antialias=True, **SMOOTHED[how]), normal(*ODD))
    assert kernels()


def test_errors_of_images_resized_by_wide_filters():
    def function(x):
        return F.interpolate(x, scale_factor=0.3, mode="bicubic", antialias=True)

    run = torch.compile(function, backend=compiled.backend, dynamic=True)
    for shape in ((2, 3, 33, 40), (1, 2, 50, 21)):
        x = torch.randn(shape)
        wide = function(x.double())
        found, eager = ((one.double() - wide).norm() for one in (run(x), function(x)))
        assert found <= 1.5 * eager
    assert kernels()


PADDED = [(3, 2, 1, 2), ((3, 2), 1, (1, 0), (1, 3)), (2, 3, 1, 4)]


@pytest.mark.parametrize("how", PADDED)
def test_the_largest_of_padded_windows_with_gaps(how):
    both_ways(lambda x: F.max_pool2d(x, *how, return_indices=True), normal(*ODD))
    none = torch.full(ODD, -float("inf"), dtype=torch.float64)
    both_ways(lambda x: F.max_pool2d(x, *how, return_indices=True)[1], none)
    assert kernels()


LARGE = {
    "max": lambda x: F.max_pool2d(x, 7, 1, 3),
    "max, apart": lambda x: F.max_pool2d(x, (5, 8), (3, 2), (2, 4), (2, 1)),
    "max, two": lambda x: F.max_pool2d(F.max_pool2d(x, 6, 1, 3), 7, 2, 1, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 7, 1, 3),
    "average, in the image": lambda x: F.avg_pool2d(x, (6, 7), 2, (3, 2), True, False),
    "average, by a number": lambda x: F.avg_pool2d(x, (6, 7), 1, divisor_override=5),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LARGE)
def test_pools_of_large_windows(name, dynamic):
    both_ways(LARGE[name], normal(2, 3, 11, 13), dynamic=dynamic)
    assert kernels()


def test_which_of_large_windows_is_the_largest():
    x = torch.randint(-2, 3, (2, 3, 11, 13)).double()
    x[0, 1] = -float("inf")
    x[1, 2, 3, 4] = x[1, 2, 5, 2] = float("nan")
    for how in ((7, 1, 3), ((5, 8), (3, 2), (2, 4), (2, 1)), (6, 2, 0, 2)):
        got = torch.compile(lambda x, how=how: F.max_pool2d(x, *how, return_indices=True), backend=compiled.backend)(x)
        torch.testing.assert_close(got, F.max_pool2d(x, *how, return_indices=True), rtol=0, atol=0, equal_nan=True)
    assert kernels()


@pytest.mark.parametrize("name", POOLS)
def test_pools_and_larger_images(name):
    function, shape, counts = POOLS[name]
    both_ways(function, normal(*shape))
    if counts is not None:
        assert kernels() == counts


@pytest.mark.parametrize("sizes", [1, (3, 2)])
def test_the_largest_of_windows_of_sizes_that_change(sizes):
    def function(x):
        return F.adaptive_max_pool2d(x, sizes, return_indices=True)

    got = torch.compile(function, backend=compiled.backend, dynamic=True)
    for height, width in ((29, 31), (9, 7), (2, 14)):
        x = torch.randint(-9, 9, (2, 3, height, width)).double()
        one_way(function, got, x / 3)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


@pytest.mark.parametrize("args", [(2,), (3, 2, 1), (2, 1, 0, 2)])
def test_places_of_extremes(args):
    def function(x):
        return F.max_pool2d(x, *args, return_indices=True)

    x = torch.randint(-3, 3, (2, 3, 9, 8)).float()
    x[0, 0, 2, 2], x[0, 1], x[1, 1, 3:5, 3:5] = float("nan"), float("-inf"), float("nan")
    (wanted, places), (got, found) = function(x), torch.compile(function, backend=compiled.backend)(x)
    torch.testing.assert_close(got, wanted, equal_nan=True)
    assert torch.equal(found, places)
    assert kernels() == [1]


def test_images_whose_channels_lie_last():
    x = normal(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
    both_ways(lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2), x)


def pools_of_turned(x):
    y, z = x.mT, x[..., None].permute(3, 0, 1, 2)
    largest = F.max_pool1d(y, 3, 2, 1), F.max_pool2d(z, (2, 3), ceil_mode=True), F.adaptive_max_pool1d(y, 4)
    return *largest, F.avg_pool1d(y, 25, 1, 12), F.avg_pool2d(z, 3, 2, 1, count_include_pad=False), F.lp_pool1d(y, 2, 4)


def test_pools_of_what_lies_in_another_order():
    both_ways(pools_of_turned, normal(3, 40, 7))


def test_batches_of_any_size():
    function = torch.compile(
        lambda x: F.avg_pool2d(F.max_pool2d(x, 2), 3, 1, 1), backend=compiled.backend, dynamic=True
    )
    for batch in (3, 5, 8):
        x = normal(batch, 2, 8, 8)
        torch.testing.assert_close(function(x), F.avg_pool2d(F.max_pool2d(x, 2), 3, 1, 1))


def turned_back(x):
    y = x.t() + 1
    return y.t(), x.t().sort(0)[0].t(), x.kthvalue(2, 1)[0], torch.where(x.t() > 0, x.t(), 0.0).t()[None], y, x.relu()


def test_results_lie_side_by_side_where_pytorchs_do():
    x = normal(6, 7)
    for got, wanted in zip(torch.compile(turned_back, backend=compiled.backend)(x), turned_back(x), strict=True):
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted)


def with_gaps(x):
    part, ends = x[:, ::2], F.pad(x * 2, (0, 2), mode="reflect")
    scattered = part.slice_scatter(part[:2] * 2, 0, 1, 3), part.select_scatter(part[0] + 1, 0, 1)
    same = (x.relu()[:, :1].expand(-1, 4), x.index_select(1, torch.tensor([0, 0])), x[:1].exp().expand(3, -1).tanh())
    return *scattered, ends.select(1, 4), *ends.chunk(2, 1), torch.diagonal_scatter(part, part[0]), *same


@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_of_results_lie_as_far_apart_as_pytorchs(dynamic):
    function = torch.compile(with_gaps, backend=compiled.backend, dynamic=dynamic)
    for shape in (6, 8), (6, 8), (7, 10):
        x = normal(*shape)
        for got, wanted in zip(function(x), with_gaps(x), strict=True):
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted)


def test_results_lie_as_those_of_ops_that_pytorch_takes_apart():
    x = normal(6, 6).t()

    def function(x, k):
        same = F.pad(x[:1, :1].relu(), (2, 1)).expand(2, 1, 4)[k]
        return x.index_copy(0, torch.arange(3), x[:3]), x.index_fill(0, torch.tensor(0), 1), same

    given = x, torch.tensor([[1], [0]])
    for got, wanted in zip(torch.compile(function, backend=compiled.backend)(*given), function(*given), strict=True):
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted)


def ends(x, k):
    y = x.clone()
    y[-k:] = 0.5
    return x[-k:], x[:-k] * 2, x[..., -k:-1], x.select(1, -k), x.select_scatter(torch.zeros_like(x[0]), 0, -k), y


def steps(x, k):
    return x[::k], x.exp()[::k], x.relu()[:, -k::2]


@pytest.mark.parametrize("function", [ends, steps])
def test_parts_whose_bounds_and_steps_only_calls_know(function):
    compiled_once = torch.compile(function, backend=compiled.backend, dynamic=True)
    x = normal(8, 9)
    for k in (3, 2):
        torch.testing.assert_close(compiled_once(x, k), function(x, k), rtol=1e-12, atol=1e-12)


def test_sizes_that_numbers_of_the_call_decide():
    def function(x, w, stride, groups):
        return F.conv_transpose3d(x, w, None, stride, 1, 1, groups, 2), F.conv2d(x[0], w[:, :1, 0], groups=4)

    compiled_once = torch.compile(function, backend=compiled.backend, dynamic=True)
    for stride, groups in (2, 2), (3, 1):
        given = normal(2, 4, 4, 4, 4), normal(4, 2, 3, 3, 3), stride, groups
        for got, wanted in zip(compiled_once(*given), function(*given), strict=True):
            torch.testing.assert_close(got, wanted)


def overlapping(x, size, step):
    whole = x * 2
    found = whole.unfold(0, 3, 2), whole.as_strided((4, 3), (2, 1)), whole.expand(2, -1).unfold(1, 4, 3)
    return *found, x.unfold(0, 4, 1), x.as_strided((size, 3), (step, 1), step), x.as_strided((size, size), (1, 1))[1:]


@pytest.mark.parametrize("dynamic", [False, True])
def test_elements_of_results_that_lie_in_one_place_do_so(dynamic):
    compiled_once = torch.compile(overlapping, backend=compiled.backend, dynamic=dynamic)
    for size, step in (4, 1), (3, 2), (3, 3):
        x = normal(13).requires_grad_()
        found, wanted = compiled_once(x, size, step), overlapping(x, size, step)
        for got, other in zip(found, wanted, strict=True):
            assert got.stride() == other.stride()
            torch.testing.assert_close(got, other)
        assert all(one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for one in found[3:])
        grads = [torch.autograd.grad([(one**2).sum() for one in parts], x)[0] for parts in (found, wanted)]
        torch.testing.assert_close(*grads)


SHARED = {
    "windows": lambda x: x.tanh().unfold(1, 3, 1),
    "windows of windows": lambda x: (x * 2).unfold(0, 2, 1).unfold(1, 3, 2),
    "windows of columns": lambda x: x.mT.exp().mT.unfold(0, 3, 2),
    "by strides": lambda x: x.sin().as_strided((x.shape[0] + 1, 4), (2, 1), 1),
    "a matrix with what it is made of": lambda x: (x.sin().flatten().as_strided((4, 4), (1, 1)), x.sin() + 1),
    "repeated windows": lambda x: x.sum(1).expand(3, -1).unfold(1, 2, 1),
    "side by side": lambda x: (x.tanh().unfold(1, 2, 2), x.mT * 3, (x + 1)[:, ::2]),
}
"""Results whose elements share places in memory, each of which has a gradient of its own; the last ones do not."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SHARED)
def test_gradients_of_elements_in_one_place_are_added_up(name, dtype):
    compiled_once = torch.compile(SHARED[name], backend=compiled.backend)
    for rows in (1, 3):
        x = torch.randn(rows + 2, 7, dtype=dtype, requires_grad=True)
        wide = x.detach().double().requires_grad_()
        grads = []
        for run, given in ((compiled_once, x), (SHARED[name], wide)):
            found = run(given)
            found = found if isinstance(found, tuple) else (found,)
            torch.manual_seed(rows)
            weights = [torch.randn(one.shape, dtype=torch.float64).to(dtype).to(one.dtype) for one in found]
            grads.append(torch.autograd.grad(found, given, weights)[0].double())
        assert (grads[0] - grads[1]).abs().max() <= 4 * torch.finfo(dtype).eps * grads[1].abs().max()


ANY_SIZE = {
    "largest": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True)[0],
    "largest, to the end": lambda x: F.max_pool2d(x, (2, 3), (2, 1), (1, 0), ceil_mode=True),
    "largest, apart": lambda x: F.max_pool2d(x, 3, 2, 0, 2),
    "means": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "means, to the end": lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 0), ceil_mode=True),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, None)) * x.mean(),
    "area": lambda x: F.interpolate(x, scale_factor=1.6, mode="area"),
}


@pytest.mark.parametrize("name", ANY_SIZE)
def test_pools_of_images_of_any_size(name):
    compiled.reports.clear()
    function = ANY_SIZE[name]
    compiled_once = torch.compile(function, backend=compiled.backend, dynamic=True)
    for size in (7, 8, 11):
        x = normal(2, 3, size, size + 1).requires_grad_()
        found, wanted = compiled_once(x), function(x)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        weights = normal(*wanted.shape)
        grads = [torch.autograd.grad(one, x, weights)[0] for one in (found, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


def test_means_of_large_windows_that_differ_in_size():
    x = normal(1, 2, 61, 45)
    both_ways(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x)


def strided_pools(x):
    parts = x[..., ::2], x[..., ::2].transpose(0, 1)
    return *(F.max_pool2d(part, 2, padding=1) for part in parts), *(F.avg_pool2d(part, 2) for part in parts)


@pytest.mark.parametrize("shape", [(4, 8, 34), (2, 3, 8, 34)])
def test_pools_of_images_that_lie_anyhow(shape):
    both_ways(strided_pools, normal(*shape))


def laid_out(x, y):
    """Ops whose parts PyTorch copies, so that they lie as the op's own result does."""
    found = x.T.lerp(y.T, 0.3), x.T.lerp(y.T, y.T.sigmoid()), torch.lerp(x.T, y[0, :, None], 0.7)
    return *found, x.T.index_fill(0, torch.tensor([1]), 0.5), x.T.clone()


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_lie_as_copies_of_parts(dynamic):
    given = normal(5, 7), normal(5, 7)
    both_ways(laid_out, *given, dynamic=dynamic)
    found = torch.compile(laid_out, backend=compiled.backend, dynamic=dynamic)(*given)
    assert [one.stride() for one in found] == [one.stride() for one in laid_out(*given)]


RINGS = {(3, 3, 2, 2): (2, 3, 5, 6), (6, 0, 0, 5): (3, 5, 6), (1, 2): (3, 7), (1, 2, 3, 1, 0, 2): (1, 2, 3, 4, 5)}
"""Sides of circular pads, with shapes."""


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sides", RINGS)
def test_ends_that_follow_one_another_are_one_kernel_each_way(sides, dynamic):
    both_ways(lambda x: F.pad(x * 2, sides, "circular"), normal(*RINGS[sides]), dynamic=dynamic)
    assert compiled.reports[0].kernels == 1
    assert not any(report.left or report.reason for report in compiled.reports)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_circular_pads_are_rounded_once(dtype):
    x, w = normal(2, 3, 5, 6).detach().to(dtype).requires_grad_(), normal(2, 3, 13, 11).detach().to(dtype)

    def pad(x):
        return F.pad(x, (3, 2, 4, 4), "circular")

    (found,) = torch.autograd.grad(torch.compile(pad, backend=compiled.backend)(x), x, w)
    wide = x.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(pad(wide), wide, w.double())
    assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("in_order", [True, False])
def test_sums_have_an_order_where_pytorch_is_asked_for_one(in_order, monkeypatch):
    asked, fresh = [], scatters.SCATTER.fresh
    note = SimpleNamespace(fresh=lambda *given: asked.append(given[-1]) or fresh(*given))
    monkeypatch.setattr(scatters, "SCATTER", note)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(in_order)
    try:
        x, places = torch.zeros(3, 5), torch.randint(0, 5, (3, 7))
        run = torch.compile(lambda x, i, y: x.scatter_add(1, i, y), backend=compiled.backend)
        run(x, places, torch.ones(3, 7))
    finally:
        torch.use_deterministic_algorithms(before)
    assert asked == [in_order]


@pytest.mark.parametrize(
    ("shape", "kernel", "dilation", "padding", "stride"),
    [
        ((2, 3, 9, 7), 3, 1, 1, 1),
        ((2, 3, 9, 7), 2, 1, 0, 2),
        ((3, 8, 11), (3, 2), 2, (1, 0), (2, 1)),
        ((2, 3, 9, 7), (2, 3), (3, 1), 2, 3),
        ((3, 8, 11), (1, 4), 1, (0, 3), (1, 2)),
    ],
)
def test_blocks_as_columns_and_their_sums(shape, kernel, dilation, padding, stride):
    how = {"dilation": dilation, "padding": padding, "stride": stride}
    both_ways(lambda x: F.unfold(x, kernel, **how).sin(), normal(*shape))
    columns = F.unfold(normal(*shape), kernel, **how)
    both_ways(lambda x: F.fold(x * 2, shape[-2:], kernel, **how), columns)
    assert max(kernels()) <= 2


def placed(x, step):
    """Read between two elements, as resized images are: at places, and by weights that two kernels may compute."""
    place = (torch.arange(60, dtype=x.dtype) + 0.5) * step - 0.5
    low = place.floor()
    rest = (place - low).clamp(0, 1)
    row, column = (one.long().clamp(0, 8) for one in (low[:, None], low))
    rows = x[row, column] * (1 - rest)[:, None] + x[row + 1, column] * rest[:, None]
    return (
        rows * (1 - rest) + (x[row, column + 1] * (1 - rest)[:, None] + x[row + 1, column + 1] * rest[:, None]) * rest
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_places_and_weights_agree(dtype):
    x = torch.randn(10, 10, dtype=dtype)
    for step in (1 / 3, 1 / 7, 0.1, 1 / 49, 0.7 / 9):
        torch.testing.assert_close(torch.compile(placed, backend=compiled.backend)(x, step), placed(x, step))


@pytest.mark.parametrize("factor", [3, 7, (3, 0.4), 6.0])
def test_images_enlarged_by_any_number(factor):
    x = normal(2, 1, 7, 9)
    both_ways(lambda x: F.interpolate(x, scale_factor=factor, mode="bicubic"), x)


def test_places_that_are_compared_are_those_of_pytorch():
    def masks(x):
        place = torch.arange(60, dtype=x.dtype)
        found = [torch.where(place * step - first >= 0, x, -x) for step, first in STEPS]
        return *found, *(torch.where((place * step + first).tanh() > 0, x * 2, x) for step, first in STEPS)

    for dtype in (torch.float32, torch.float64):
        x = torch.rand(60, dtype=dtype) + 1
        for got, wanted in zip(torch.compile(masks, backend=compiled.backend)(x), masks(x), strict=True):
            assert torch.equal(got, wanted)


STEPS = [(0.1, 0.3), (0.1, 0.7), (1 / 3, 5.0), (1 / 49, 1.0), (0.3, 0.9), (0.7, 2.1), (-0.1, -0.3), (-1 / 3, -7.0)]
