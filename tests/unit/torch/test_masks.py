"""What masks select and change, in `torch.compile(backend="tessera")`."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def put(x: Any, mask: Any, last: Any, rows: Any, *, accumulate: bool) -> list[Any]:
    several = [((mask,), 2.0), ((mask,), rows[0, 0]), ((None, mask[0]), rows), ((None, mask[0]), rows[0])]
    several += [((None, None, last), rows[0, :, :1]), ((mask[:, 0],), rows[:1]), ((None, mask[0], None), rows[:, :1])]
    several += [((x > 0,), 0.5)]
    numbers = [(places, torch.as_tensor(value, dtype=x.dtype)) for places, value in several]
    return [torch.ops.aten.index_put(x, places, value.to(x.dtype), accumulate) for places, value in numbers]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.int32])
def test_rows_are_put_where_a_mask_is_true(dtype, accumulate):
    run = torch.compile(lambda *given: put(*given, accumulate=accumulate), backend=compiled.backend)
    for size in (3, 5, 6):
        x, mask, last = torch.randn(size, 4, 2).mul(3).to(dtype), torch.rand(size, 4) > 0.5, torch.rand(2) > 0.5
        rows = torch.randn(size, 1, 2).mul(3).to(dtype)
        wanted = put(x, mask, last, rows, accumulate=accumulate)
        torch.testing.assert_close(run(x, mask, last, rows), wanted, rtol=0, atol=0)
    assert [(report.kernels > 0, report.left.total()) for report in compiled.reports] == [(True, 0)] * 2


def test_what_a_mask_selects_takes_values_in_order():
    def function(x, mask, values, columns):
        found = x.clone()
        found[mask] = values * 2
        added = x.index_put((mask,), values, accumulate=True)
        return found, added, torch.ops.aten.index_put(x, (None, mask[0]), columns)

    run = torch.compile(function, backend=compiled.backend, dynamic=True)
    for kept in (0.5, 0.3, 2.0, 0.8):
        x, mask = torch.randn(5, 70, 3, requires_grad=True), torch.rand(5, 70) > kept
        given = x, mask, torch.randn(int(mask.sum()), 3), torch.randn(5, int(mask[0].sum()), 3)
        found, wanted = run(*given), function(*given)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        slopes = [torch.autograd.grad(sum(one.square().sum() for one in some), x)[0] for some in (found, wanted)]
        torch.testing.assert_close(*slopes)
    assert not any(report.left or report.reason for report in compiled.reports)


def test_truth_values_in_order():
    def function(m):
        found = *m.sort(dim=-1, stable=True), *m.sort(dim=0, descending=True, stable=True)
        return *found, m.argsort(dim=-1, stable=True)

    mask = torch.rand(7, 50) > 0.5
    found = torch.compile(function, backend=compiled.backend)(mask)
    torch.testing.assert_close(found, function(mask), rtol=0, atol=0)
    assert not any(report.left or report.reason for report in compiled.reports)
