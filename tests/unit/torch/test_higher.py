"""Ops of higher order in `torch.compile(backend="tessera")`: they run between kernels, as eager PyTorch runs them."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch._higher_order_ops.scan import scan  # noqa: E402 - only where PyTorch is

from tessera.torch.compiled import backend as compiled  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()


def both_ways(function: Callable[..., Any], eager: Callable[..., Any], *given: Any, left: list[set[str]]) -> None:
    """Compare results and gradients of several calls with eager PyTorch's; graphs leave just these ops as they are."""
    got = torch.compile(function, backend=compiled.backend)
    for factor in (1, -1, 0.5):
        results = []
        for run in (eager, got):
            torch.manual_seed(1)
            floats = [(one * factor).requires_grad_() for one in given]
            found = run(*floats)
            results.append((found, *torch.autograd.grad(found.sum(), floats)))
        torch.testing.assert_close(*results[::-1], rtol=1e-10, atol=1e-10)
    assert [set(report.left) for report in compiled.reports] == left
    assert all(report.kernels and not report.reason for report in compiled.reports), compiled.reports


def test_random_ops_that_a_checkpoint_computes_again():
    def block(x):
        return F.dropout(x.tanh(), 0.3).sin() * torch.rand(4, 9)

    def function(x):
        return torch.utils.checkpoint.checkpoint(block, x * 1.5, use_reentrant=False).exp()

    random = [{"run_and_save_rng_state"}, {"run_with_rng_state"}]
    both_ways(function, function, torch.randn(4, 9, dtype=torch.float64), left=random)


def test_branches():
    def function(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() + 1, (x * 2,)).exp()

    def eager(x):
        return (torch.sin(x * 2) if x.sum() > 0 else torch.cos(x * 2) + 1).exp()

    both_ways(function, eager, torch.rand(4, 5, dtype=torch.float64), left=[{"cond"}, {"cond"}])


def test_effects():
    def function(x):
        return torch.linalg.inv(x @ x.mT + torch.eye(4, dtype=x.dtype)).exp() @ x

    checked = {"aten.linalg_inv_ex.default", "with_effects"}
    both_ways(function, function, torch.randn(4, 4, dtype=torch.float64), left=[checked, set()])


def test_results_beside_effects_lie_as_eagers():
    def function(x):
        return x.mT * 2, torch.linalg.inv(x).exp(), x + 1

    x = torch.eye(3) + 1
    found, exact = torch.compile(function, backend=compiled.backend)(x), function(x)
    torch.testing.assert_close(found, exact)
    assert [one.stride() for one in found] == [one.stride() for one in exact]


def test_an_effect_raises():
    inverse = torch.compile(lambda x: torch.linalg.inv(x * 2).exp(), backend=compiled.backend)
    for _ in range(3):
        inverse(torch.eye(3))
        with pytest.raises(RuntimeError, match="singular"):
            inverse(torch.zeros(3, 3))


def test_numbers_that_stand_for_tensors():
    # So PyTorch traces `0.1 * x` of several levels of `torch.func`.
    graph, aten = torch.fx.Graph(), torch.ops.aten
    x = graph.placeholder("x")
    number = graph.call_function(aten._to_copy.default, (0.1,), {"dtype": torch.float32})
    product = graph.call_function(aten.mul.Tensor, (x, number))
    graph.output((product,))
    for node, shape in ((x, (3, 4)), (number, ()), (product, (3, 4))):
        node.meta["val"] = torch.empty(shape)
    given = torch.randn(3, 4)
    (found,) = compiled.compile_graph(torch.fx.GraphModule({}, graph))([given])
    torch.testing.assert_close(found, given * 0.1)


@torch.library.custom_op("tessera_tests::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, part: torch.Tensor, factor: float) -> torch.Tensor:
    total.add_(part, alpha=factor)
    return total.abs().sum(-1)


@accumulate.register_fake
def _(total, part, factor):
    return total.new_empty(total.shape[:-1])


@pytest.mark.parametrize("dynamic", [None, True])
def test_ops_that_change_what_they_take(dynamic):
    def function(total, x):
        found = accumulate(total, x * 2, 0.5) + accumulate(total[1:], x[1:].sin(), 2.0).sum()
        return found.tanh(), total * 3

    got = torch.compile(function, backend=compiled.backend, dynamic=dynamic)
    for rows in (4, 6, 2):
        total, x = torch.rand(2, rows, 5)
        own, kept = total.clone(), total.clone()
        torch.testing.assert_close((got(own, x), own), (function(kept, x), kept))
    assert all(report.kernels and not report.reason for report in compiled.reports), compiled.reports


@pytest.mark.parametrize("dynamic", [None, True])
def test_regions_are_parts_of_the_graph_around(dynamic):
    weight = torch.rand(6, 6, dtype=torch.float64)

    def layer(x, factor):
        return (x @ weight).tanh() * factor, x.mean(-1, keepdim=True)

    def stack(layer, x):
        for factor in (2, 3):
            x, mean = layer(x, factor)
            x = x + mean
        return x

    region = torch.compiler.nested_compile_region(layer)
    got = torch.compile(lambda x: stack(region, x), backend=compiled.backend, dynamic=dynamic)
    for rows in (4, 7):
        x = torch.rand(rows, 6, dtype=torch.float64, requires_grad=True)
        found = [(y, *torch.autograd.grad(y.sum(), x)) for y in (got(x), stack(layer, x))]
        torch.testing.assert_close(*found)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's own code
def test_scans():
    def step(carry, x):
        return (carry * 0.5 + x).tanh(), carry * 2 + x

    def function(x):
        return scan(step, x[0] * 2, x.sin())[1].exp()

    def eager(x):
        carry, found = x[0] * 2, []
        for row in x.sin():
            carry, one = step(carry, row)
            found.append(one)
        return torch.stack(found).exp()

    both_ways(function, eager, torch.rand(5, 3, dtype=torch.float64), left=[{"scan"}, {"scan"}])


def test_nested_tensors():
    weight = torch.rand(3, 4, dtype=torch.float64)

    def function(x):
        return (x @ weight).tanh() * 2

    got = torch.compile(function, backend=compiled.backend)
    for lengths in ((2, 4), (3, 1, 5)):
        parts = [torch.rand(length, 3, dtype=torch.float64) for length in lengths]
        x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        found = [(y.values(), torch.autograd.grad(y.values().sum(), x)[0].values()) for y in (got(x), function(x))]
        torch.testing.assert_close(*found)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports
