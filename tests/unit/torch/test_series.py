"""Functions that are series of Chebyshev polynomials in `torch.compile(backend="tessera")`, beside eager PyTorch."""

import pytest

torch = pytest.importorskip("torch")

from tessera.numerics.functions import ROUGH_ERROR  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is

INF, NAN = float("inf"), float("nan")
EDGES = (0.0, -0.0, 1e-8, 8.0, -8.0, 30.0, -5.0, -6.2, 50.0, 1e5, 88.0, -30.0, INF, -INF, NAN)
FUNCTIONS = [torch.i0, torch.special.i0e, torch.special.i1, torch.special.i1e]
TAILS = [torch.special.erfcx, torch.special.log_ndtr]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()


def both_ways(run, x):
    x = x.clone().requires_grad_()
    found = run(x)
    return found.detach(), *torch.autograd.grad(found, x, torch.ones_like(found))


@pytest.mark.parametrize("function", FUNCTIONS + TAILS)
def test_errors_are_those_of_eager_pytorch(function):
    x = torch.cat([torch.linspace(-12, 12, 1001), torch.tensor(EDGES)])
    run = torch.compile(function, backend=compiled.backend)
    results = (both_ways(*call) for call in ((run, x), (function, x), (function, x.double())))
    for found, eager, wide in zip(*results, strict=True):
        finite = eager.isfinite()
        torch.testing.assert_close(found[~finite], eager[~finite], equal_nan=True)
        finite &= wide.isfinite()
        size = (
            wide[finite].abs() + x.double()[finite].abs().nan_to_num() + 1e-30
        )  # a gradient is the difference of larger numbers
        error, allowed = ((one.double()[finite] - wide[finite]).abs() / size for one in (found, eager))
        assert error.max() <= 2 * allowed.max() + 2**-22
    assert not any(report.left for report in compiled.reports)


@pytest.mark.parametrize("function", FUNCTIONS + TAILS)
def test_doubles_are_those_of_eager_pytorch(function):
    x = torch.linspace(-12, 12, 1001, dtype=torch.float64)
    found = both_ways(torch.compile(function, backend=compiled.backend), x)
    torch.testing.assert_close(found, both_ways(function, x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_integers_and_narrow_floats(function):
    for x in (torch.arange(-9, 10), torch.linspace(-9, 9, 99, dtype=torch.bfloat16)):
        found, eager = torch.compile(function, backend=compiled.backend)(x), function(x)
        torch.testing.assert_close(found, eager, rtol=torch.finfo(eager.dtype).eps * 8, atol=0)


@pytest.mark.parametrize("name", ["sinh", "cosh", "asinh", "atanh", "erfinv", "digamma", "trigamma", "tetragamma"])
def test_largest_errors_are_those_of_eager_pytorch(name):
    orders = {"trigamma": 1, "tetragamma": 2}

    def function(x):
        return torch.polygamma(orders[name], x) if name in orders else getattr(torch, name)(x)

    run = torch.compile(function, backend=compiled.backend)
    for scale in (0.05, 0.9, 0.999):
        x = torch.linspace(0.04, 1, 3001) * scale * (1 if name in ("atanh", "erfinv") else 9)
        exact = function(x.double())
        errors = [(each(x).double() - exact).abs().max() / exact.abs().max() for each in (run, function)]
        assert errors[0] <= max(2 * errors[1], 2**-24)


@pytest.mark.parametrize("function", [torch.sinh, torch.cosh])
def test_hyperbolic_functions_of_all_sizes(function):
    near = torch.cat([10.0 ** torch.arange(-30, 1.9, 0.01), torch.tensor([88.9, -89.2, INF, -INF, NAN, 0.0, -0.0])])
    for x in (near, near.double(), (near * 7).double(), near.bfloat16()):
        found, exact = torch.compile(function, backend=compiled.backend)(x), function(x.double())
        torch.testing.assert_close(found, exact.to(x.dtype), rtol=torch.finfo(x.dtype).eps * 4, atol=0, equal_nan=True)


def named(name):
    places = (torch, torch.special, torch.nn.functional)
    return next(getattr(place, name) for place in places if hasattr(place, name))


NAMED = (
    "i0",
    "i0e",
    "i1",
    "i1e",
    "asinh",
    "acosh",
    "atanh",
    "sinh",
    "cosh",
    "erfinv",
    "erfc",
    "asin",
    "acos",
    "log1p",
    "expm1",
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*NAMED, "logsigmoid"])
def test_functions_are_exact_for_their_size(name, dtype):
    function = named(name)
    small = torch.randn(3000, dtype=torch.float64) * 2.0 ** torch.randint(-30, 7, (3000,))
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 89.0, -88.7, 3e38, -3e38])
    x = torch.cat([small, torch.rand(3000), special]).to(dtype)
    found, exact = torch.compile(function, backend=compiled.backend)(x), function(x.double())
    assert torch.equal(found.isnan(), exact.isnan())
    assert torch.equal(found.isinf() & ~x.isinf(), exact.to(dtype).isinf() & ~x.isinf())
    is_normal = found.isfinite() & (exact.abs() >= torch.finfo(dtype).tiny)
    error = ((found.double() - exact) / exact)[is_normal].abs().max()
    eps = torch.finfo(dtype).eps
    wide = 10 if name.startswith("i1") else 4
    assert error <= (0.51 * eps + ROUGH_ERROR if dtype.itemsize == 2 else wide * eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["asinh", "sinh", "cosh", "erfc", "logsigmoid"])
def test_gradients_of_functions_are_as_exact_as_eagers(name, dtype):
    function = named(name)
    x = torch.cat([torch.randn(3000) * 3, torch.tensor([0.0, 1e-6, -1e-6, 20.0, -20.0])]).to(dtype)
    grads = []
    for run, given in ((torch.compile(function, backend=compiled.backend), x), (function, x), (function, x.double())):
        grads.append(both_ways(run, given)[1].double())
    found, eager, exact = grads
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["digamma", "lgamma"])
def test_functions_with_zeros_are_as_exact_as_eagers(name, dtype):
    x = (torch.randn(5000, dtype=torch.float64) * 2.0 ** torch.randint(-9, 6, (5000,))).to(dtype)
    x = torch.cat([x, torch.tensor([0.0, -0.0, -1.0, -2.0, 1.0, 2.0, INF, -INF, NAN], dtype=dtype)])
    found, eager, exact = (
        torch.compile(named(name), backend=compiled.backend)(x),
        named(name)(x),
        named(name)(x.double()),
    )
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.equal(found.isinf(), eager.isinf())
    finite = found.isfinite() & (x.abs() > 0.01) & ((x - x.round()).abs() > 0.01)  # poles
    error, allowed = ((one.double() - exact)[finite].abs() / (1 + exact[finite].abs()) for one in (found, eager))
    assert error.max() <= 2 * allowed.max() + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2", "hypot", "atan2", "floor_divide"])
def test_functions_of_two_are_as_exact_as_eagers(name, dtype):
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 40.0, -3.5, INF, -INF, NAN])
    x, y = (torch.randn(5000, dtype=torch.float64) * 2.0 ** torch.randint(-9, 6, (5000,)) for _ in range(2))
    x, y = torch.cat([x, special.repeat(9)]).to(dtype), torch.cat([y, special.repeat_interleave(9)]).to(dtype)
    found, eager = torch.compile(named(name), backend=compiled.backend)(x, y), named(name)(x, y)
    exact = named(name)(x.double(), y.double())
    assert torch.equal(found.isnan(), eager.isnan())
    assert torch.equal(found.isinf(), eager.isinf())
    finite = exact.isfinite() & found.isfinite()
    error, allowed = ((one.double() - exact)[finite].abs() / (1 + exact[finite].abs()) for one in (found, eager))
    assert error.max() <= 2 * allowed.max() + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_gradients_of_logarithms_of_sums(name):
    x, y = (torch.randn(500, dtype=torch.float64).mul(9).requires_grad_() for _ in range(2))
    found, eager = (
        torch.autograd.grad(run(x, y).sum(), (x, y))
        for run in (torch.compile(named(name), backend=compiled.backend), named(name))
    )
    torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-13)
