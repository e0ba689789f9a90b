"""Running sums between two reversals: eager PyTorch says what they give, both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is


def returns(x: Any) -> Any:
    return (x.flip(-1).cumsum(-1).flip(1) * 0.9).tanh()


def of_two(x: Any) -> Any:
    return x.flip(0).cumsum(0, dtype=torch.float64).flip(-2), x.sin().flip((1,)).cumsum(1).flip(1)


def running(x: Any) -> Any:
    return x.cumsum(0) * x.cumsum(1)


def read_between(x: Any) -> Any:
    total = x.flip(0).cumsum(0)
    return total.flip(0), total * 2


def along_others(x: Any) -> Any:
    return x.flip(1).cumsum(0).flip(1), x.flip(0).cumsum(0), x.flip(0, 1).cumsum(0).flip(0, 1)


def back_again(x: Any) -> Any:
    y = x.flip(0, 1).flip(1, 0)
    return x.flip(0).flip(0), y * 2, x.flip(1).flip(0) + 1, (x * 2).flip(1).flip(-1)


@pytest.mark.parametrize("function", [returns, of_two, running, read_between, along_others, back_again])
def test_sums_from_the_end(function: Callable[..., Any]) -> None:
    run = torch.compile(function, backend=compiled.backend)
    for dtype, shape in (torch.float64, (5, 7)), (torch.float32, (3, 300)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        found, wanted = (one if isinstance(one, tuple) else (one,) for one in (run(x), function(x)))
        grads = [torch.autograd.grad(sum(one.square().sum() for one in each), x)[0] for each in (found, wanted)]
        for got, other in zip((*found, grads[0]), (*wanted, grads[1]), strict=True):
            torch.testing.assert_close(got, other, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 1e-10)


def test_results_of_sums_have_memory_of_their_own() -> None:
    def twice(x: Any) -> Any:
        y, z = x.flip(0).cumsum(0), x * 2
        return y.flip(0), y.flip(0), z.flip(0).flip(0), z.flip(0).flip(0), z

    torch._dynamo.reset()
    x = torch.rand(5)
    found = torch.compile(twice, backend=compiled.backend)(x)
    assert len({one.data_ptr() for one in (x, *found)}) == 6
    for got, wanted in zip(found, twice(x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_nothing_is_moved_for_sums_from_the_end() -> None:
    torch._dynamo.reset()
    compiled.reports.clear()
    x = torch.randn(4, 8, requires_grad=True)
    torch.compile(returns, backend=compiled.backend)(x).sum().backward()
    assert [report.kernels for report in compiled.reports] == [1, 1]
    assert torch.compile(back_again, backend=compiled.backend)(x)[0].data_ptr() != x.data_ptr()
    number = torch.tensor(1.5)
    assert torch.compile(lambda x: x.flip(0).cumsum(0).flip(-1).flip(0) * 2, backend=compiled.backend)(number) == 3
    numbers = torch.arange(6).reshape(2, 3)
    assert torch.equal(torch.compile(returns, backend=compiled.backend)(numbers), returns(numbers))


def test_sums_of_graphs_that_run_as_they_were_traced() -> None:
    def of_two_devices(x: Any, y: Any) -> Any:
        return y + 1, x.flip(1).cumsum(1).flip(1)

    torch._dynamo.reset()
    compiled.reports.clear()
    x = torch.arange(6.0).reshape(2, 3)
    found = torch.compile(of_two_devices, backend=compiled.backend)(x, torch.ones(3, device="meta"))
    assert [report.kernels for report in compiled.reports] == [0]
    assert torch.equal(found[1], torch.tensor([[3.0, 3.0, 2.0], [12.0, 9.0, 5.0]]))
