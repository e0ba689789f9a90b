"""Where `torch.compile(backend="tessera")` and eager PyTorch could differ in silence: edges of single ops."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is

NAN, INF = float("nan"), float("inf")
NARROW = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def run(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return what the compiled function gives; no graph may have an ATen op."""
    found = torch.compile(function, backend=compiled.backend, **options)(*given)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports
    return found


def same(function: Callable[..., Any], *given: Any, tolerance: float = 0.0, **options: Any) -> None:
    """Compare with eager PyTorch."""
    found, wanted = run(function, *given, **options), function(*given)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def all_of(dtype: Any) -> Any:
    """Return every third number of a 16-bit dtype."""
    bits = torch.arange(-(1 << 15), 1 << 15, 3, dtype=torch.int32).to(torch.int16)
    found = bits.view(dtype)
    return found[found.isfinite()]


@pytest.mark.parametrize("dtype", NARROW)
def test_numbers_that_16_bits_do_not_hold(dtype):
    near = torch.tensor([0.1, 0.3, 1000.3], dtype=dtype)

    def function(x):
        found = x == 0.1, x != 0.1, x < 1000.3, x <= 0.1, x > 0.3, x >= 1000.3
        return *found, F.hardshrink(x, 0.1), F.threshold(x, 0.3, -0.1), torch.full_like(x, 0.1).float()

    same(function, torch.cat([near, -near, all_of(dtype)]))


@pytest.mark.parametrize("dtype", NARROW)
def test_remainders_by_numbers_that_16_bits_do_not_hold(dtype):
    x = all_of(dtype)
    found = run(lambda x: (x % 0.1, x % -0.3, torch.fmod(x, 0.3), torch.remainder(0.3, x.abs() + 1)), x)
    tenth, third = (torch.tensor(number, dtype=dtype).double() for number in (0.1, 0.3))
    wide = x.double()
    last = torch.remainder(third, (x.abs() + 1).double())
    for one, wanted in zip(found, (wide % tenth, wide % -third, wide.fmod(third), last), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=0, atol=torch.finfo(dtype).eps * 0.3)


@pytest.mark.parametrize("dtype", NARROW)
def test_soft_shrinkage_does_not_round_its_bound(dtype):
    x = all_of(dtype)
    found, wide = run(lambda x: F.softshrink(x, 0.1), x), F.softshrink(x.double(), 0.1)
    assert ((found.double() - wide).abs() <= torch.finfo(dtype).eps * wide.abs() + 1e-7).all()


def test_quotients_that_are_cut_off_beside_whole_numbers():
    x = torch.arange(-999.0, 999.0)
    numbers = (0.1, 49.0)

    def function(*given):
        return [
            torch.div(x, y, rounding_mode=mode)
            for x, number in zip(given, numbers * 2, strict=True)
            for y, mode in ((number, "trunc"), (number, "floor"), (torch.full_like(x, number), "trunc"))
        ]

    given = [(x.double() * number).to(dtype) for dtype in (torch.float32, torch.float64) for number in numbers]
    same(function, *given)
    edges = torch.tensor([0.0, -0.0, 1.0, -2.5, INF, -INF, NAN, 1e30, 0.5])
    same(lambda a, b: torch.div(a, b, rounding_mode="trunc"), edges[:, None], edges[None])


def test_integers_divided_by_the_least_one():
    for dtype in (torch.int8, torch.int64):
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        x = torch.tensor([low + 1, -7, -1, 0, 1, 2, high], dtype=dtype)

        def function(x, low=low):
            by = torch.full_like(x, low), torch.tensor([3, 2, -1, 5, -2, -3, 7], dtype=x.dtype)
            found = [(x % y, torch.fmod(x, y), x // y, torch.div(x, y, rounding_mode="trunc")) for y in by]
            return *found, torch.fmod(x, low), x % low

        same(function, x)


def test_integers_divided_by_the_number_0_are_refused():
    x = torch.arange(3)
    for function in (lambda x: x // 0, lambda x: x % 0, lambda x: torch.fmod(x, 0), lambda x: x**-1):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=r"ZeroDivisionError|negative integer powers"):
            torch.compile(function, backend=compiled.backend)(x)


def test_powers_have_the_bits_of_large_exponents():
    x, y = torch.rand(3, 999) * 50, torch.rand(3, 999) * 20 - 10
    edges = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.0, INF, -INF, NAN, 3.0])

    def function(x, y, e):
        return (x**2.7, x**-11, 2.5**y, y.norm(3, 1)), (e[:, None] ** e[None], e**7, e**-2.5, e**0, e**-2, e**-0.5)

    close, exact = run(function, x, y, edges)
    wanted, wide = function(x, y, edges)[1], function(x.double(), y.double(), edges.double())[0]
    for one, other in zip(close, wide, strict=True):
        assert ((one.double() - other).abs() <= 1.5 * 2**-23 * other.abs() + 2**-149).all()
    torch.testing.assert_close(exact, wanted, rtol=2e-7, atol=0, equal_nan=True)


def test_sums_are_as_exact_as_pytorch_has_them():
    def function(x):
        return x.cumsum(1), x.var(1), x.std(0)

    x = torch.randn(50, 801)
    for found, eager, wide in zip(run(function, x), function(x), function(x.double()), strict=True):
        assert (found - wide).abs().max() <= 2 * (eager - wide).abs().max()
    edges = torch.tensor([1.0, 0.5, -3e4, INF, NAN, 1e30])
    same(torch.acosh, edges, tolerance=1e-6)


def pools(x):
    found = [F.avg_pool2d(x, k, s, p, c) for k, s, p, c in ((2, 2, 0, False), (3, 2, 1, True))]
    found += [F.max_pool2d(x, k, s, p, 1, c) for k, s, p, c in ((2, 2, 0, False), (2, 1, 1, True))]
    return sum(one.sum() for one in found)


def windows(x):
    parts = x.unfold(3, 3, 2), x.unfold(2, 2, 3), F.adaptive_avg_pool2d(x, (3, 4))
    return sum(one.sum() for one in parts)


@pytest.mark.parametrize("function", [pools, windows])
def test_gradients_of_windows_are_none_outside_of_them(function):
    x = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    grads = []
    for each in (lambda x: run(function, x), function):
        given = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(each(given), given)
        grads.append(grad)
    assert not any(report.left for report in compiled.reports), compiled.reports
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def test_bounds_are_searched_as_pytorch_does():
    x = torch.tensor([NAN, -2, -1, 0, 0.25, 0.5, 3, INF, -INF])
    bounds = [[-1.0, 0.0, 0.5, 2.0], [-1.0, 0.0, 0.5, NAN], [0.0, NAN, NAN], [1.0, -1.0, 0.5, 0.0, 3.0], [0.5]]

    def function(x):
        given = [torch.tensor(one) for one in bounds]
        found = [torch.bucketize(x, one, right=number % 2 == 0) for number, one in enumerate(given)]
        return *found, torch.searchsorted(given[0], x[None], side="right")

    same(function, x)
    rows = torch.randn(3, 1000).sort(1).values
    same(lambda b, x: torch.searchsorted(b, x) + torch.bucketize(x, b[0]), rows, torch.randn(3, 11))


def test_bounds_in_another_order_and_numbers_among_bounds():
    def function(b, x, order, whole):
        turned = torch.searchsorted(b, x, sorter=order), torch.searchsorted(b[0], x, sorter=order[0], right=True)
        numbers = torch.searchsorted(whole, 5), torch.searchsorted(whole, 5.5, right=True), torch.bucketize(0.3, x[0])
        return *turned, *numbers, torch.bucketize(3, whole, out_int32=True), torch.searchsorted(whole, x * 5)

    b, x = torch.randn(3, 9), torch.randn(3, 5).sort(1).values
    same(function, b, x, b.argsort(1), torch.randint(0, 20, (9,)).sort().values)


def test_places_that_are_no_number_take_the_first_pixel():
    image, grid = torch.randn(2, 3, 5, 4), torch.rand(2, 3, 3, 2) * 3 - 1.5
    grid[0, 0, 0, 0] = grid[0, 1, 1, 1] = grid[1, 0, 0] = NAN
    grid[1, 1, 1, 0] = INF

    def function(image, grid):
        return F.grid_sample(image, grid, padding_mode="border", align_corners=False)

    same(function, image, grid, tolerance=1e-5)


def test_bags_with_nothing_in_them_and_behind_them():
    table, index = torch.randn(10, 4), torch.tensor([1, 2, 3, 4, 5, 6, 7, 0])
    table[2, 1] = table[7, 0] = NAN

    def function(index, table):
        ends = [torch.tensor(one) for one in ([0, 2, 2, 8], [0, 2, 2, 5], [0, 0, 8, 8])]
        found = [F.embedding_bag(index, table, one, mode="sum", include_last_offset=True) for one in ends]
        found += [F.embedding_bag(index, table, ends[0], include_last_offset=True)]
        return *found, *(F.embedding_bag(index.view(shape), table, mode="max") for shape in ((2, 4), (4, 2)))

    same(function, index, table, tolerance=1e-6)


def test_keys_and_values_that_are_shared_differently():
    q = torch.randn(2, 8, 5, 16)

    def function(q, a, b, c):
        return [F.scaled_dot_product_attention(q, k, v, enable_gqa=True) for k, v in ((a, b), (b, c), (b, a))]

    same(function, q, *(torch.randn(2, heads, 7, 16) for heads in (4, 2, 1)), tolerance=1e-5)


def moments(x):
    mean = torch.zeros(5, dtype=x.dtype)
    F.batch_norm(x.T[None].contiguous(), mean, torch.ones(5, dtype=x.dtype), training=True, momentum=1.0)
    return torch.var_mean(x, 0)[1], torch.std_mean(x.T, 1)[1], mean, x[:5].trace()


def test_moments_of_elements_that_cancel_are_as_exact_as_on_eager_cpus():
    few, many = torch.diag(torch.tensor([3e4, 1e-3, -3e4, 2e-3, 1e-4])), torch.randn(20, 5) * 1e3
    x = torch.cat([few, many, torch.randn(5, 5) * 1e-3 - few, -many])
    for found in (moments(x), run(moments, x)):
        for one, other in zip(found, moments(x.double()), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-6, atol=0.0)


def test_sizes_take_part_as_numbers():
    def function(z, x, i):
        size = x.shape[0]
        pairs = z * size, z * (size / 2), torch.arange(size - 1, -1, -3) * x.sum()
        numbers = i**size, x.scatter(0, i[:2], size), F.leaky_relu(x, size / 9), x < size / 9
        return *pairs, *numbers, torch.addmm(x[:, None], x[:, None], x[:1, None], alpha=size, beta=size / 2)

    for size in (5, 8):
        z = torch.view_as_complex(torch.randn(size, 2))
        same(function, z, torch.randn(size), torch.arange(size), tolerance=1e-5, dynamic=True)


def test_powers_of_one_by_no_number():
    edges = torch.tensor([1.0, 0.0, -1.0, float("nan"), 2.5])
    got, wanted = (
        run(lambda x: (x ** float("nan"), torch.pow(1.0, x)), edges),
        (edges ** float("nan"), torch.pow(1.0, edges)),
    )
    torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize(("shape", "over"), [((1,), 1), ((7, 1), 1), ((3, 4, 1, 1), 2)])
def test_norms_over_one_element_do_not_depend_on_it(shape, over):
    x = (torch.randn(shape) * 100).requires_grad_()
    weight, bias = (torch.randn(shape[-over:], requires_grad=True) for _ in range(2))
    out = run(lambda *given: F.layer_norm(given[0], shape[-over:], *given[1:]), x, weight, bias)
    gradients = torch.autograd.grad(out, (x, weight, bias), torch.randn(shape))
    torch.testing.assert_close(out, bias.expand(shape))
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients[:2])


@pytest.mark.parametrize("given", [float("nan"), float("inf")])
def test_norms_over_one_element_keep_what_is_not_finite(given):
    x, weight = torch.randn(4, 1, requires_grad=True), torch.randn(1)
    cotangents = torch.tensor([[1.0], [given], [2.0], [3.0]])
    (got,) = torch.autograd.grad(run(lambda x: F.layer_norm(x, (1,), weight), x), x, cotangents)
    (wanted,) = torch.autograd.grad(F.layer_norm(x, (1,), weight), x, cotangents)
    assert torch.equal(got.isnan(), wanted.isnan())


def test_parts_that_are_set_have_the_dtype_of_what_they_are_set_in():
    def function(x, y, n):
        return x.select_scatter(y, 0, 1), x.select_scatter(y > 0, 1, -1), y.clone().copy_(n), (x * 2).copy_(n)

    for dtype in (torch.bool, torch.int8, torch.bfloat16):
        for number in (2, 0.5):
            same(function, torch.ones(3, 3).to(dtype), torch.tensor([1, 0, 3]), number)


def test_whole_numbers_at_equal_distances():
    same(lambda x: (x + torch.linspace(4.3, 1, 50, dtype=torch.int64), x + torch.linspace(-3, 7, 50)), torch.zeros(50))


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_integers_without_sign(bits):
    dtype = getattr(torch, f"uint{bits}")

    def function(x):
        wide = x.to(torch.int64)
        found = wide + 1, (wide // 2).to(dtype), x.to(torch.float32) / 3, x.to(torch.float64), x * x, x & 7, x.sum()
        return *found, torch.cat([x, x]), x[torch.tensor([2, -1])], (x.to(torch.float64) / 7).to(dtype)

    x = torch.tensor([0, 1, 9, 2 ** (bits - 1) - 1, -1]).to(dtype)
    for found, wanted in zip(run(function, x), function(x), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_what_has_no_dimensions_turns_around():
    same(lambda x: (x.flip(0), x.flip(-1).sum(0).flip(0)), torch.tensor(1.5))


def test_parts_of_results_lie_in_them():
    def function(x):
        y, z = x * 2, torch.cat([x, x + 1])
        places, order = x.sort(1)
        return y, y[1], y[:, 1:].t()[0], z, z[4:], z.chunk(2)[0], order[0], order, places

    for options in ({}, {"dynamic": True}):
        torch._dynamo.reset()
        found = torch.compile(function, backend=compiled.backend, **options)(torch.randn(4, 6))
        for whole, parts in ((found[0], found[1:3]), (found[3], found[4:6]), (found[7], found[6:7])):
            assert all(one.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr() for one in parts)
        found[0].fill_(7)
        assert (found[1] == 7).all()
        assert (found[2] == 7).all()


def test_numbers_beyond_a_dtype_are_infinite():
    def function(x):
        return x * 1e39, x < 1e39, x + 1e300, x == 1e39, x / 1e-46, x + 1e-50

    same(function, torch.tensor([-1.5, 0.0, 2.0, INF]))
    halves = torch.tensor([-1.5, 0.0, 2.0, INF], dtype=torch.float16)
    same(lambda x: (torch.where(x > 0, x, -1e9), x * 1e5, x * 1e40), halves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_of_the_normal_distribution(dtype):
    small = 10.0 ** -torch.arange(1.0, 300.0, 7.0, dtype=torch.float64)
    ends = torch.tensor([0.0, 1.0, 0.5, 0.075, 0.925, -0.1, 1.1, NAN, INF], dtype=torch.float64)
    x = torch.cat([torch.rand(500, dtype=torch.float64), small, 1 - small[:2], ends]).to(dtype)
    wanted = torch.special.ndtri(x.double())
    found = run(torch.special.ndtri, x).double()
    torch.testing.assert_close(found, wanted, rtol=4 * torch.finfo(dtype).eps, atol=1e-15, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_few_bits(dtype):
    x = (torch.randn(4, 6) * 3).to(dtype)
    scales, zeros = torch.rand(6) + 0.1, torch.arange(6, dtype=torch.int32) - 3

    def function(x):
        single = torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7)
        given = torch.fake_quantize_per_tensor_affine(x, scales[0], zeros[0], 0, 255)
        rows = torch.fake_quantize_per_channel_affine(x, scales[:4], scales[2:] + 1, 0, -8, 7)
        return single, given, rows, torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 7)

    same(function, x, tolerance=1e-6)
    grads = [
        torch.autograd.grad(sum(one.sum() for one in each(y)), y)[0]
        for each in (function, torch.compile(function, backend=compiled.backend))
        for y in [x.clone().requires_grad_()]
    ]
    assert torch.equal(*grads)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, INF])
def test_distances_of_batches_that_are_repeated(p):
    x, y = torch.randn(2, 1, 3, 2), torch.randn(4, 5, 2)
    same(lambda x, y: torch.cdist(x, y, p), x, y, tolerance=1e-5)
    same(lambda x, y: torch.cdist(x, y, p), y, x, tolerance=1e-5)
