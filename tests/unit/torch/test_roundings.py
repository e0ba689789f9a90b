"""16-bit floats in `torch.compile(backend="tessera")`: what is rounded, and that errors are no larger than eager's."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera import numerics  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import backend as compiled  # noqa: E402

NARROW = (torch.bfloat16, torch.float16)
WORST = 2.0
"""An error against float64, by eager's; those of one rounding count as that."""


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def kernels() -> list[int]:
    """Return how many kernels the graphs have; none may have an ATen op."""
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports
    return [report.kernels for report in compiled.reports]


def results(function: Callable[..., Any], given: list[Any]) -> list[Any]:
    """Return a result and gradients, in float64."""
    given = [one.detach().clone().requires_grad_() for one in given]
    out = function(*given)
    torch.manual_seed(1)
    weight = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    return [one.double() for one in (out, *torch.autograd.grad(out, given, weight))]


def as_exact_as_eager(function: Callable[..., Any], *given: Any) -> None:
    exact = results(function, [one.double() for one in given])
    eager, ours = (
        results(function, list(given)),
        results(torch.compile(function, backend=compiled.backend), list(given)),
    )
    for right, theirs, mine in zip(exact, eager, ours, strict=True):
        least = torch.finfo(given[0].dtype).eps / 2 * right.abs().max()
        worst = [(one - right).abs().max() for one in (theirs, mine)]
        assert worst[1] <= WORST * max(worst[0], least), (worst, least)


CHAINS: dict[str, tuple[Callable[..., Any], int]] = {
    "points": (lambda x, y: (x * y + 1).sigmoid() * x.tanh() - y.relu(), 2),
    "softplus": (lambda x: F.softplus(x) * 3, 1),
    "elu": (lambda x: F.elu(x - 0.5), 1),
    "mish": (lambda x: F.mish(x) + x, 1),
    "gelu": (lambda x: F.gelu(x * 3, approximate="tanh") * 1.702 + x, 1),
    "logarithms": (lambda x: (x.abs() + 1.01).log() + (x * x).log1p() - (x.abs() + 0.5).log2() * 2, 1),
    "powers": (lambda x: (x.abs() + 0.1) ** 2.5 - (x.abs() + 0.1) ** -0.3, 1),
    "expm1": (lambda x: x.expm1() / (1 + x.abs()), 1),
    "softmax": (lambda x, y: (x * 0.3 + y).softmax(-1) * y, 2),
    "norm": (lambda x, y: F.layer_norm(x + y, (x.shape[-1],)) * 0.5, 2),
    "halves": (lambda x: F.silu(x[:, :32]) * x[:, 32:64], 1),
    "thirds": (lambda x: torch.tanh(x[:, :20] * x[:, 20:40]) + x[:, 40:60], 1),
    "columns": (lambda x: (x - x.mean(0)) / (x.std(0) + 0.1), 1),
}


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
@pytest.mark.parametrize("name", CHAINS)
def test_errors_are_no_larger_than_eagers(name: str, dtype: Any) -> None:
    function, count = CHAINS[name]
    as_exact_as_eager(function, *(torch.randn(37, 65, dtype=dtype) for _ in range(count)))
    kernels()


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
def test_what_is_compared_is_rounded(dtype: Any) -> None:
    def maxima(x, w):
        y = x * w + w
        top = y.amax(-1, keepdim=True)
        return (y == top).sum(-1), (y >= top).sum(-1), (y - top).exp()

    given = [torch.randn(64, 300, dtype=dtype) for _ in "xw"]
    found = torch.compile(maxima, backend=compiled.backend)(*given)
    assert bool((found[0] >= 1).all())
    for mine, theirs in zip(found, maxima(*given), strict=True):
        torch.testing.assert_close(mine, theirs)
    as_exact_as_eager(lambda x, w: (x * w + w).amax(-1) * 2, *given)


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
def test_strict_rounds_each_result(dtype: Any) -> None:
    def function(x, y):
        z = x * y + y
        return z * z - x, (z + x).abs() * y

    given = [torch.randn(33, 70, dtype=dtype) for _ in "xy"]
    with numerics.profile("strict"):
        found = torch.compile(function, backend=compiled.backend)(*given)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, function(*given), strict=True))


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
def test_casts_that_a_program_writes_round(dtype: Any) -> None:
    def function(x):
        return (x * 1.001).to(dtype).float() - x, x.to(dtype).float() * 3

    x = torch.randn(999)
    for mine, theirs in zip(torch.compile(function, backend=compiled.backend)(x), function(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
def test_what_a_program_casts_is_what_it_sees(dtype: Any) -> None:
    def function(x, y):
        z = (x * y + y).tanh()
        return z, z.double(), z[:, 1:].t().float().sum(0), z.view(-1).double() * 3

    given = [torch.randn(33, 70, dtype=dtype) for _ in "xy"]
    z, wide, sums, flat = torch.compile(function, backend=compiled.backend)(*given)
    assert torch.equal(wide, z.double())
    assert torch.equal(flat, z.double().view(-1) * 3)
    torch.testing.assert_close(sums.double(), z[:, 1:].double().sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32], ids=("bf16", "f16", "f32"))
def test_gradients_of_parts_are_written_side_by_side(dtype: Any) -> None:
    def parts(x):
        q, k, v = x.split(24, 1)
        return torch.sigmoid(q) * k + v.tanh()

    as_exact_as_eager(parts, torch.randn(50, 72, dtype=dtype))
    assert kernels() == [1, 1]


def test_largest_elements_alone_are_a_reduction() -> None:
    def function(x):
        return x.max(-1).values, x.min(0, keepdim=True)[0], x.max(1)

    x = torch.randn(33, 70, dtype=torch.bfloat16)
    x[3, 5] = float("nan")
    got, wanted = torch.compile(function, backend=compiled.backend)(x), function(x)
    for mine, theirs in zip((*got[:2], *got[2]), (*wanted[:2], *wanted[2]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.compile(lambda x: x.max(-1).values, backend=compiled.backend)(x)
    assert kernels() == [1]


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32], ids=("bf16", "f16", "f32"))
def test_statistics_of_many_rows(dtype: Any) -> None:
    def function(x):
        return (x - x.mean(0)) / (x.std(0) + 0.1)

    as_exact_as_eager(function, torch.randn(4096, 48, dtype=dtype))
    kernels()


@pytest.mark.parametrize("dtype", NARROW, ids=("bf16", "f16"))
def test_gradients_of_group_norms(dtype: Any) -> None:
    def function(x, w, b):
        return F.group_norm(x, 4, w, b)

    as_exact_as_eager(function, torch.randn(5, 12, 7, 9, dtype=dtype), *(torch.randn(12, dtype=dtype) for _ in "wb"))
    kernels()


def _of_columns(x: Any) -> Any:
    return (x.sum(0) * 0.1 + x).amin(0)


def _of_parts(x: Any) -> Any:
    return torch.cat([x.mean(1)] * 2, 1).amax(1)


def _returned(x: Any) -> Any:
    y = F.rms_norm(x, x.shape[-1:], eps=1e-3).sum(0) * 0.1 + x
    return y.amin(0) + F.rms_norm(y, y.shape[-1:], eps=1e-3).sum(0)


@pytest.mark.parametrize(
    ("function", "shape", "dynamic"),
    [(_of_columns, (7, 5), True), (_of_parts, (8, 7, 4), False), (_returned, (7, 5), True)],
)
def test_a_maximum_is_one_of_the_numbers_that_are_compared_with_it(function, shape, dynamic):
    run = torch.compile(function, backend=compiled.backend, dynamic=dynamic)
    for _ in range(6):
        x = torch.randn(shape)
        for right, mine in zip(results(function, [x]), results(run, [x]), strict=True):
            torch.testing.assert_close(mine, right, atol=2e-5, rtol=2e-5)
