"""Programs whose sizes follow from data, in one graph, beside eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402 - only where PyTorch is

from tessera.torch.compiled import backend as compiled  # noqa: E402


def masked(x: Any, mask: Any) -> Any:
    y = x.sin()
    z = y[mask]
    return (z @ z.T).sum(0), torch.cat([y, z * 2]).relu(), z.sum()


def experts(x: Any, mask: Any) -> Any:
    out = torch.zeros_like(x)
    for wanted in (True, False):
        rows = torch.where(mask == wanted)[0]
        out = out.index_add(0, rows, x[rows].softmax(-1) * (1 + wanted))
    return out


def numbered(x: Any, mask: Any) -> Any:
    count = mask.sum().item()
    torch._check(count >= 0)
    torch._check(count <= x.shape[0])
    first = x[:count].tanh() * count
    return F.pad(first, (0, 0, 0, x.shape[0] - count)), torch.arange(count, dtype=x.dtype) / 2


def starting(x: Any, mask: Any) -> Any:
    return x[mask.sum().item() - 1] * 2, x.repeat_interleave(mask.long() + 1, 0).sum(1)


def changed(x: Any, mask: Any) -> Any:
    y = x * 2
    z = y[y[:, 0] > 0]
    y.add_(1)
    return y, z.exp(), z.nonzero(), torch.unique(mask.long()) * 2, (x * 3).nonzero()


def attended(x: Any, mask: Any) -> Any:
    count = mask.sum().item()
    torch._check(count >= 2)
    torch._check(count <= x.shape[0])
    first = x[None, None, :count]
    place = torch.arange(count)
    return F.scaled_dot_product_attention(first, first, first, place[:, None] >= place).sum(2)


@pytest.mark.parametrize("function", [masked, experts, numbered, starting, changed, attended])
def test_sizes_from_data(function: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)
    run = torch.compile(function, backend=compiled.backend, fullgraph=True)
    for length, chosen in (6, (0, 3, 4)), (9, (1, 2, 5, 7)), (6, (5,) if function is not attended else (4, 5)):
        mask = torch.zeros(length, dtype=torch.bool)
        mask[list(chosen)] = True
        x = torch.randn(length, 5, requires_grad=True)
        found, wanted = (one if isinstance(one, tuple) else (one,) for one in (run(x, mask), function(x, mask)))
        grads = [
            torch.autograd.grad(sum(one.square().sum() for one in each if one.requires_grad), x)[0]
            for each in (found, wanted)
        ]
        for got, other in zip((*found, grads[0]), (*wanted, grads[1]), strict=True):
            assert got.shape == other.shape
            torch.testing.assert_close(got, other, rtol=1e-5, atol=1e-5)
    assert not {report.reason for report in compiled.reports if report.reason}
    assert sum(report.kernels for report in compiled.reports)


def test_no_elements_at_all() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x, m: (x[m] * 2).sum(0), backend=compiled.backend, fullgraph=True)
    for count in 2, 0:
        assert torch.equal(run(torch.ones(4, 3), torch.arange(4) < count), torch.full((3,), 2.0 * count))


def test_what_tells_sizes_is_refused_where_aten_is() -> None:
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: x.nonzero() * 2, backend=compiled.backend, fullgraph=True, options={"fallback": "error"}
    )
    with pytest.raises(
        torch._dynamo.exc.BackendCompilerFailed, match=r"no-row.*sizes that aten\.nonzero\.default tells"
    ):
        run(torch.ones(3))


def test_sizes_that_are_checked() -> None:
    torch._dynamo.reset()
    compiled.reports.clear()

    def function(x: Any) -> Any:
        torch._check(x.shape[0] >= 3)
        return x.softmax(0).sum(1) / x.shape[0], x.T * 2

    run = torch.compile(function, backend=compiled.backend, fullgraph=True, options={"fallback": "error"})
    for length in 5, 3, 8:
        x = torch.randn(length, 4, requires_grad=True)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        found = [(*y, torch.autograd.grad(y[0].square().sum(), x)[0]) for y in (run(x), function(x))]
        torch.testing.assert_close(*found)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports
