"""Functions that are series of Chebyshev polynomials in `torch.compile(backend="tessera")`, beside eager PyTorch."""

import pytest

torch = pytest.importorskip("torch")

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
