"""Tensors of no elements and of no dimensions in `torch.compile(backend="tessera")`, beside eager PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    compiled.reports.clear()
    torch.manual_seed(0)


def both_ways(function: Callable[..., Any], *given: Any) -> None:
    """Compare results and gradients with eager PyTorch's; no graph may have an ATen op."""
    found = []
    for run in (torch.compile(function, backend=compiled.backend), function):
        own = [one.clone().requires_grad_(one.is_floating_point()) for one in given]
        floats = [one for one in own if one.requires_grad]
        results = run(*own)
        smooth = [one for one in results if one.requires_grad]
        grads = torch.autograd.grad(smooth, floats, [*map(torch.ones_like, smooth)], allow_unused=True)
        grads = [torch.zeros_like(one) if grad is None else grad for grad, one in zip(grads, floats, strict=True)]
        found.append(([*results], grads))
    torch.testing.assert_close(*found, equal_nan=True)
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


NONE = torch.zeros(0, dtype=torch.int64)


def sums(x, y):
    return x.sum(), x.sum(0), x.prod(1), x.mean(1), x.mean(), x.norm(dim=1), x.logsumexp(1), (x > 0).sum(1)


def products(x, y):
    return x @ y, y @ x, F.linear(x, y.T, y.new_ones(3)), torch.einsum("ij,jk->ijk", y.T, y), (x @ y).exp()


def joined(x, y):
    return torch.cat([y, y * 2]), torch.cat([x, x.new_ones(3, 2)], 1), torch.cat([x.new_zeros(0), x.new_ones(3, 2)], 1)


def moved(x, y):
    return x.t(), x.view(-1), x.expand(2, 3, 0), x.flip(0), x.tril(), x.clone().mul_(2), F.pad(x, (1, 1)), x[None, 1:]


def rows(x, y):
    normed = F.layer_norm(y, (3,)), F.rms_norm(y, (3,)), y.softmax(1), y.log_softmax(0), F.group_norm(x[None], 1)
    return *normed, y.sort(-1)[0], y.topk(0)[0], y.cumsum(0), y.argsort(0)


def losses(x, y):
    target = y.detach() + 1
    found = F.mse_loss(y, target), F.l1_loss(y, target), F.huber_loss(y, target), F.smooth_l1_loss(y, target)
    return *found, F.cross_entropy(y, NONE), F.cross_entropy(y, NONE, reduction="sum"), F.poisson_nll_loss(y, target)


def placed(x, y):
    whole = x.sum(1, keepdim=True) + y.new_ones(3, 4)
    found = whole[NONE], whole.index_select(0, NONE), whole.gather(0, NONE.view(0, 1)), F.embedding(NONE, whole)
    parts = whole.index_add(0, NONE, whole[:0]), whole.index_copy(0, NONE, whole[:0])
    return *found, *parts, torch.index_put(whole, (NONE,), whole[:0]), F.embedding_bag(NONE, whole, NONE.new_zeros(2))


def blocks(x, y):
    heads = y.view(0, 1, 3, 1)
    return F.scaled_dot_product_attention(heads, heads, heads), F.max_pool2d(y.new_ones(0, 2, 4, 4), 2)


@pytest.mark.parametrize("function", [sums, products, joined, moved, rows, losses, placed, blocks])
def test_no_elements(function):
    both_ways(function, torch.randn(3, 0), torch.randn(0, 3))


ZERO, PLACE = torch.tensor(0), torch.tensor([0])


def running(x):
    return x.cumsum(0), x.cumprod(-1), *x.cummax(0), *x.cummin(0), x.logcumsumexp(0), x.softmax(0), x.log_softmax(-1)


def moments(x):
    return x.mean(0), x.var(-1, correction=0), *torch.std_mean(x.square(), 0, correction=0), x.bfloat16().mean(-1)


def ordered(x):
    found = *x.sort(0), *torch.sort(x, stable=True, dim=-1), x.argsort(), *x.topk(1), *x.kthvalue(1), x.median()
    return *found, *x.median(0), *x.nanmedian(0), x.argmax(), x.argmin(0), *x.max(0), x.quantile(0.5)


def taken(x):
    found = x.gather(0, ZERO), x.gather(0, PLACE), x.index_select(0, ZERO), x.take(ZERO)
    return *found, torch.take_along_dim(x, PLACE), x.masked_scatter(x > -9, x * 2)


def put(x):
    twice = x * 2
    found = (
        x.scatter(0, ZERO, 2.0),
        x.scatter(0, ZERO, twice),
        x.scatter_add(0, ZERO, twice),
        x.index_add(0, ZERO, twice),
    )
    means = x.scatter_reduce(0, ZERO, twice, "amax"), x.scatter_reduce(0, ZERO, twice, "mean", include_self=False)
    rest = x.index_copy(0, ZERO, twice), x.index_fill(0, ZERO, 2.0)
    return *found, *means, *rest, x.put(PLACE, PLACE + 2.0)


MADE = {
    "places": lambda: (torch.arange(5), torch.arange(2, 9, 3), torch.arange(0.5, 2.0, 0.25), torch.linspace(0, 1, 7)),
    "numbers": lambda: (torch.zeros(2, 3), torch.ones(4), torch.full((2, 2), 7), torch.tensor(3.5), torch.eye(3)),
    "one": lambda: torch.scalar_tensor(4.0) * 2,
    "triangles": lambda: (torch.ones(3, 3).tril() > 0, torch.triu_indices(3, 3), torch.hann_window(5)),
    "of nothing": lambda: (torch.empty(0, 3), torch.zeros(2, 0)),
}


@pytest.mark.parametrize("name", MADE)
def test_graphs_that_take_nothing(name):
    run = torch.compile(MADE[name], backend=compiled.backend)
    for _ in range(2):
        torch.testing.assert_close(run(), MADE[name]())
    assert not any(report.left or report.reason for report in compiled.reports), compiled.reports


def test_graphs_that_take_sizes_alone():
    run = torch.compile(lambda n: torch.arange(n) * 2, backend=compiled.backend, dynamic=True)
    for size in (5, 9, 2):
        torch.testing.assert_close(run(size), torch.arange(size) * 2)


@pytest.mark.parametrize("function", [running, moments, ordered, taken, put])
def test_no_dimensions(function):
    both_ways(function, torch.tensor(0.7))


def taken_and_put(x, at):
    return x.take(at), x.gather(0, at), x[at], x.scatter_add(0, at, x[1]), x.put(at, x[2] * 2, accumulate=True)


def test_places_without_dimensions():
    both_ways(taken_and_put, torch.randn(4), torch.tensor(2))
    both_ways(lambda x, labels: [F.multilabel_margin_loss(x, labels)], torch.tensor(0.3), torch.tensor(0))
