"""Where graphs are cut into kernels: what a kernel has at hand is neither written down for another nor read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional

import tessera as ts  # noqa: E402 - only where PyTorch is
import tessera.torch  # noqa: E402
from tessera.torch.compiled import backend as compiled  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


class Case(NamedTuple):
    """A function, the shapes of its operands, and the kernels of its graphs at most: forward, and backward."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    kernels: tuple[int, ...]


def halves(x: Any, c: Any, s: Any) -> Any:
    first, second = x.chunk(2, -1)
    return x * c + torch.cat((-second, first), -1) * s


def pairs(x: Any, rates: Any) -> Any:
    angles = torch.arange(x.shape[0])[:, None] * rates.float()
    return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(x.dtype)


def distilled(x: Any, y: Any) -> Any:
    return F.kl_div((x / 2).log_softmax(-1), (y / 2).log_softmax(-1), log_target=True, reduction="sum")


def matched(x: Any, y: Any) -> Any:
    scores, target = x @ y.T, torch.arange(x.shape[0])
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def shuffled(x: Any, scale: Any) -> Any:
    x = F.relu(x) * scale
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def grown(x: Any, y: Any) -> Any:
    """A concatenation that is a result, too."""
    both = torch.cat((x * 2, y.exp()), 1)
    return both, both.tanh() * 3


def unit(x: Any) -> Any:
    low, high = x.amin(-1, True), x.amax(-1, True)
    return (x - low) / (high - low)


CASES = {
    "halves": Case(halves, ((4, 6, 16), (6, 16), (6, 16)), (1, 2)),
    "pairs": Case(pairs, ((9, 16), (8,)), (1,)),
    "totals of rows": Case(distilled, ((96, 256), (96, 256)), (2, 1)),
    "two losses": Case(matched, ((24, 16), (24, 16)), (3, 2)),
    "shuffled": Case(shuffled, ((2, 6, 5, 4), (1,)), (1, 2)),
    "joined and read": Case(grown, ((3, 5), (3, 5)), (1, 2)),
    "unit range": Case(unit, ((6, 40),), (1,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_graphs(name: str, dtype: Any) -> None:
    function, shapes, kernels = CASES[name]
    given = [torch.randn(shape).to(dtype).requires_grad_(len(kernels) > 1) for shape in shapes]
    wide = [one.detach().double().requires_grad_(one.requires_grad) for one in given]
    run = torch.compile(function, backend=compiled.backend)
    found, exact, rounded = (_both_ways(one, args) for one, args in ((run, given), (function, wide), (function, given)))
    for got, wanted, allowed in zip(found, exact, rounded, strict=True):
        least = 2 * torch.finfo(dtype).eps * float(wanted.abs().max())
        assert (got.double() - wanted).abs().max() <= max(2 * float((allowed.double() - wanted).abs().max()), least)
    assert not any(report.left for report in compiled.reports)
    assert [report.kernels for report in compiled.reports] == [*kernels]


def _both_ways(function: Callable[..., Any], given: list[Any]) -> list[Any]:
    found = function(*given)
    results = [*found] if isinstance(found, tuple) else [found]
    by = [one for one in given if one.requires_grad]
    grads = torch.autograd.grad(sum(one.double().square().sum() for one in results), by) if by else ()
    return [*(one.detach() for one in results), *grads]


def scaled(q: Any, k: Any) -> Any:
    """Rows of what is computed of sums of columns, and a product that reads the same."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ k.mT, (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)


def spread(x: Any) -> Any:
    """Columns of what is computed of sums of rows, and rows of what is computed of those."""
    y = x.softmax(-1) * 2
    return (y * y.sum(0)).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_write_what_others_cannot_compute_in_its_narrowest_form(dtype: Any) -> None:
    q, k, x = (torch.randn(shape).to(dtype) for shape in ((2, 96, 64), (2, 96, 64), (512, 256)))
    for function, given, most in (scaled, (q, k), 2 * q.nbytes + 2 * 96 * 96 * q.itemsize), (spread, (x,), x.nbytes):
        found = ts.torch.explain(torch.compile(function, backend=compiled.backend), *given).graphs[0]
        assert most <= found.written <= 1.02 * most
