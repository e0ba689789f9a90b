"""What all library ops hold to: given arrays, gradients of gradients, tracing."""

from __future__ import annotations

import inspect
from functools import reduce
from itertools import takewhile

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.unit.ops import library as lib


def refused(code, call):
    """Check that a call is refused."""
    with pytest.raises(ts.errors.CallError) as caught:
        call()
    assert caught.value.code == code


def test_norms_over_a_whole_matrix():
    x = lib.normal(np.random.default_rng(1), 4, 8)
    whole = x.astype(np.float64)
    lib.close(op.norm.rms(x, (4, 8), eps=0.0), whole / np.sqrt((whole**2).mean()), ts.f32, 8)
    lib.close(op.norm.ln(x, (4, 8), x, eps=0.0), (whole - whole.mean()) / whole.std() * whole, ts.f32, 8)


def test_results_over_inputs():
    rng = np.random.default_rng(2)
    for call in (
        lambda x, **o: op.norm.ln(x, 9, **o),
        lambda x, **o: op.softmax(x, **o),
        lambda x, **o: op.cumsum(x, 1, **o),
    ):
        x = lib.normal(rng, 9, 9)
        want = call(x)
        refused("overlapping-arguments", lambda call=call, x=x: call(x, out=x.T))
        call(x, out=x)
        assert np.array_equal(x, want)
    x, w = lib.normal(rng, 1, 4, 600), lib.normal(rng, 4, 3)
    refused("bad-argument", lambda: op.conv1d(x, w, out=x))
    table = lib.normal(rng, 9, 4)
    refused("bad-argument", lambda: op.embedding(np.arange(9)[::-1].copy(), table, out=table))
    one = np.empty(2, np.int64)
    refused("overlapping-arguments", lambda: op.reduce.max(np.array([[5, 1], [2, 7]]), 1, out=(one, one)))


def test_keys_that_are_turned_in_part_are_copied():
    rng = np.random.default_rng(3)
    q, k = lib.normal(rng, 1, 2, 5, 8), lib.normal(rng, 1, 2, 5, 8)
    want = op.attn.rope(q, k, rotary_dim=4)[1]
    fresh = np.full_like(k, 777.0)
    op.attn.rope(q, k, rotary_dim=4, out=(q, fresh))
    assert np.array_equal(fresh, want)


def test_batches_without_targets_have_gradients_of_zero():
    torch = pytest.importorskip("torch")
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    op.loss.linear_cross_entropy(x, w, torch.full((3,), -100)).backward()
    assert not x.grad.any()
    assert not w.grad.any()


def test_gradients_where_a_cosine_is_the_margin():
    torch = pytest.importorskip("torch")
    f, y = torch.nn.functional, torch.tensor([-1])
    a, b = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 1.0]])
    found = torch.autograd.grad(op.loss.cosine_embedding(a, b, y), a)[0]
    assert torch.allclose(found, torch.autograd.grad(f.cosine_embedding_loss(a, b, y), a)[0])


def test_norms_alone_are_measured_by_clipping():
    grads = [np.ones(4, np.float32)]
    assert float(op.optim.clip_grad_norm_(grads, float("inf"))[0]) == 2.0
    assert (grads[0] == 1).all()


def test_optimizers_change_all_parameters_or_none():
    first, second = np.ones(4, np.float32), np.ones((4, 4, 4), np.float32).transpose(1, 0, 2)
    grads, states = (
        [np.ones_like(one) for one in (first, second)],
        [[np.zeros_like(first), second * 0] for _ in range(2)],
    )
    refused(
        "not-contiguous",
        lambda: op.optim.adamw_(
            [first, second[:, ::2]], [grads[0], grads[1][:, ::2]], *[[one[0], one[1][:, ::2]] for one in states], 1
        ),
    )
    assert (first == 1).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's forward mode
def test_gradients_that_are_not_there_are_refused():
    torch = pytest.importorskip("torch")
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    (g,) = torch.autograd.grad(op.mse(x, y), x, create_graph=True)
    refused("no-gradient", lambda: (g**2).sum().backward())
    refused("no-gradient", lambda: op.norm.rms(x, 4, quantize=ts.fp8_e4m3))
    z = torch.randn(3, 4, requires_grad=True)
    refused("out-needs-no-gradient", lambda: op.reduce.sum(z, 1, out=torch.empty(3)))
    refused("out-needs-no-gradient", lambda: op.softmax(z, 1, out=torch.empty(4, 3).t()))
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(torch.randn(3, 5), torch.ones(3, 5))
        refused("no-gradient", lambda: op.cumsum(dual, 1))


def test_changed_tensors_are_known_to_have_changed():
    torch = pytest.importorskip("torch")
    q, w = torch.randn(1, 1, 3, 4), torch.ones(1, 1, 3, 4, requires_grad=True)
    y = (w * q).sum()
    op.attn.rope(q, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.slow
def test_graphs_hold_for_all_sizes_and_seeds():
    torch = pytest.importorskip("torch")
    import tessera.torch  # noqa: F401

    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def loss(x, y, seed):
        return (
            op.mse(op.dropout(x, 0.5, seed=seed), y)
            + op.reduce.var(x, 1).sum()
            + op.norm.rms(x, 8, dropout=0.1, seed=seed).sum()
            + op.flash_attention(x[None, None], y[None, None], y[None, None], dropout_p=0.1, seed=seed).sum()
        )

    traced = torch.compile(loss, backend=backend, fullgraph=True)
    for size in range(3, 9):
        traced(torch.randn(size, 8, requires_grad=True), torch.randn(size, 8), size + 100).backward()
    assert len(graphs) <= 3


NAMESAKES = {
    "loss.mse": "mse_loss",
    "loss.l1": "l1_loss",
    "loss.huber": "huber_loss",
    "loss.smooth_l1": "smooth_l1_loss",
    "loss.bce": "binary_cross_entropy",
    "loss.bce_with_logits": "binary_cross_entropy_with_logits",
    "loss.kl_div": "kl_div",
    "loss.cross_entropy": "cross_entropy",
    "loss.cosine_embedding": "cosine_embedding_loss",
    "loss.triplet_margin": "triplet_margin_loss",
    "embedding": "embedding",
    "dropout": "dropout",
    "norm.ln": "layer_norm",
    "norm.rms": "rms_norm",
    "norm.group": "group_norm",
}


@pytest.mark.parametrize("name", NAMESAKES)
def test_arguments_by_place_are_those_of_the_namesake(name):
    torch = pytest.importorskip("torch")
    theirs = inspect.signature(getattr(torch.nn.functional, NAMESAKES[name])).parameters
    function = reduce(getattr, name.split("."), op)
    ours = inspect.signature(function).parameters
    known = list(takewhile(lambda one: one in ours, theirs))
    assert list(ours)[: len(known)] == known
    for one in known:
        assert ours[one].kind != inspect.Parameter.KEYWORD_ONLY
        assert ours[one].default == theirs[one].default
