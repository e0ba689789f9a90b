"""Library ops on a real GPU, forward and backward, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

from tessera import ops as op

pytestmark = pytest.mark.device

ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
WIDTHS = (5, 33, 256, 1001, 4096, 20000)


@pytest.fixture
def torch() -> Any:
    found = pytest.importorskip("torch")
    found.manual_seed(0)
    return found


def _rms(f: Any, n: int) -> tuple[Any, Any]:
    return (
        lambda x, w, b: op.norm.rms(x, n, w, 1e-5, bias=b),
        lambda x, w, b: f.rms_norm(x, (n,), w, 1e-5) + b,
    )


def _ln(f: Any, n: int) -> tuple[Any, Any]:
    return lambda x, w, b: op.norm.ln(x, n, w, b), lambda x, w, b: f.layer_norm(x, (n,), w, b)


def _added(f: Any, n: int) -> tuple[Any, Any]:
    def ours(x: Any, w: Any, b: Any) -> Any:
        y, h = op.norm.rms(x, n, w, 1e-5, residual=2 * x, input_bias=b)
        return y + h

    def theirs(x: Any, w: Any, b: Any) -> Any:
        h = x + b + 2 * x
        return f.rms_norm(h, (n,), w, 1e-5) + h

    return ours, theirs


ROWS = {"rms": _rms, "ln": _ln, "added": _added}
"""Ops of rows with weights and a bias: ours and PyTorch's, by the width."""


def agree(torch: Any, ours: Any, theirs: Any, inputs: list[Any], roundings: int = 8) -> None:
    """Compare results and gradients with those of the same in float64: a few roundings of the whole's size."""
    own = [one.clone().requires_grad_() for one in inputs]
    exact = [one.double().requires_grad_() for one in inputs]
    got, want = ours(*own), theirs(*exact)
    grads = torch.randn_like(got)
    got.backward(grads)
    want.backward(grads.double())
    pairs = [(got, want), *((one.grad, other.grad) for one, other in zip(own, exact, strict=True))]
    for found, expected in ((one.detach(), other.detach()) for one, other in pairs):
        rounding = ROUNDING[str(found.dtype).removeprefix("torch.")]
        size = float(expected.abs().max()) if expected.numel() else 0.0
        assert float((found.double() - expected).abs().max()) <= roundings * rounding * size


def _swiglu(f: Any) -> Any:
    return lambda x, y: f.silu(x) * y


def _scan(torch: Any) -> Any:
    def theirs(gate: Any, x: Any) -> Any:
        states, state = [], torch.zeros_like(x[:, 0])
        for at in range(x.shape[1]):
            state = gate[:, at] * state + x[:, at]
            states.append(state)
        return torch.stack(states, 1)

    return theirs


def _conv1d(f: Any) -> Any:
    def theirs(x: Any, w: Any, b: Any) -> Any:
        width = w.shape[1]
        return f.silu(f.conv1d(f.pad(x, (width - 1, 0)), w[:, None], b, groups=x.shape[1]))

    return theirs


def _js(x: Any, y: Any) -> Any:
    p, q = x.exp(), y.exp()
    middle = ((p + q) / 2).log()
    return ((p * (x - middle) + q * (y - middle)) / 2).sum() / x.shape[0]


def _pairs(torch: Any) -> dict[str, tuple[Any, Any, list[tuple[int, ...]]]]:
    """Return ops with PyTorch's, and the shapes of their arguments."""
    f, loss, many = torch.nn.functional, op.loss, (300, 515)
    target = torch.randint(0, 515, (300,), device="cuda")
    signs = torch.randint(0, 2, (300,), device="cuda") * 2 - 1
    places = torch.randint(0, 90, (40, 7), device="cuda")
    soft = torch.softmax
    return {
        "group": (
            lambda x, w, b: op.norm.group(x, 4, w, b),
            lambda x, w, b: f.group_norm(x, 4, w, b),
            [(3, 24, 500), (24,), (24,)],
        ),
        "group by channels": (
            lambda x, w, b: op.norm.group(x, 4, w, b),
            lambda x, w, b: f.group_norm(x, 4, w, b),
            [(3, 24, 4104), (24,), (24,)],
        ),
        "l2": (lambda x: op.norm.l2(x), lambda x: f.normalize(x), [many]),
        "softmax": (lambda x: op.softmax(x, 1), lambda x: soft(x, 1), [many]),
        "softmax of columns": (lambda x: op.softmax(x, 0), lambda x: soft(x, 0), [many]),
        "long softmax": (lambda x: op.softmax(x), lambda x: soft(x, -1), [(5, 70001)]),
        "log_softmax": (lambda x: op.log_softmax(x, -1), lambda x: f.log_softmax(x, -1), [(9, 20, 33)]),
        "logsumexp": (lambda x: op.logsumexp(x, 1), lambda x: torch.logsumexp(x, 1), [(9, 20, 33)]),
        "sum": (lambda x: op.reduce.sum(x, (0, 2)), lambda x: x.sum((0, 2)), [(31, 20, 133)]),
        "sum of all": (lambda x: op.reduce.sum(x), lambda x: x.sum(), [(310, 2000)]),
        "mean": (lambda x: op.reduce.mean(x, 0), lambda x: x.mean(0), [(3001, 65)]),
        "var": (lambda x: op.reduce.var(x, 1), lambda x: x.var(1), [many]),
        "norm": (lambda x: op.reduce.norm(x, 2, 1), lambda x: torch.linalg.vector_norm(x, 2, 1), [many]),
        "max": (lambda x: op.reduce.max(x, 1)[0], lambda x: x.max(1)[0], [many]),
        "cumsum": (lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), [(20, 3001)]),
        "cumsum of columns": (lambda x: op.cumsum(x, 0), lambda x: x.cumsum(0), [(301, 70)]),
        "cummax": (lambda x: op.cummax(x, 1)[0], lambda x: x.cummax(1)[0], [(20, 901)]),
        "mse": (lambda x, y: loss.mse(x, y), f.mse_loss, [many, many]),
        "l1": (lambda x, y: loss.l1(x, y), f.l1_loss, [many, many]),
        "huber": (lambda x, y: loss.huber(x, y, delta=0.7), lambda x, y: f.huber_loss(x, y, delta=0.7), [many, many]),
        "smooth_l1": (
            lambda x, y: loss.smooth_l1(x, y, reduction="sum"),
            lambda x, y: f.smooth_l1_loss(x, y, reduction="sum"),
            [many, many],
        ),
        "bce_with_logits": (loss.bce_with_logits, f.binary_cross_entropy_with_logits, [many, many]),
        "kl_div": (
            lambda x, y: loss.kl_div(x, y, log_target=True, reduction="sum"),
            lambda x, y: f.kl_div(x, y, log_target=True, reduction="sum"),
            [many, many],
        ),
        "js": (lambda x, y: loss.js(x, y, log=True), _js, [many, many]),
        "cross_entropy": (
            lambda x: loss.cross_entropy(x, target, label_smoothing=0.1),
            lambda x: f.cross_entropy(x, target, label_smoothing=0.1),
            [many],
        ),
        "linear_cross_entropy": (
            lambda x, w: loss.linear_cross_entropy(x, w, target),
            lambda x, w: f.cross_entropy(x @ w.T, target),
            [(300, 96), (515, 96)],
        ),
        "cosine_embedding": (
            lambda x, y: loss.cosine_embedding(x, y, signs, margin=0.2),
            lambda x, y: f.cosine_embedding_loss(x, y, signs, margin=0.2),
            [many, many],
        ),
        "triplet_margin": (loss.triplet_margin, f.triplet_margin_loss, [many, many, many]),
        "swiglu": (op.activation.swiglu, _swiglu(f), [many, many]),
        "geglu": (
            lambda x, y: op.activation.geglu(x, y, "tanh"),
            lambda x, y: f.gelu(x, approximate="tanh") * y,
            [many, many],
        ),
        "geglu of erf": (op.activation.geglu, lambda x, y: f.gelu(x) * y, [many, many]),
        "embedding": (lambda w: op.embedding(places, w), lambda w: f.embedding(places, w), [(90, 130)]),
        "embedding of few tokens": (
            lambda w: op.embedding(places, w),
            lambda w: f.embedding(places, w),
            [(5000, 130)],
        ),
        "conv1d": (
            lambda x, w, b: op.conv1d(x, w, b, "silu"),
            _conv1d(f),
            [(3, 40, 700), (40, 4), (40,)],
        ),
        "scan": (op.scan, _scan(torch), [(2, 129, 70), (2, 129, 70)]),
    }


PAIRS = (
    "group,group by channels,l2,softmax,softmax of columns,long softmax,log_softmax,logsumexp,sum,sum of all,"
    "mean,var,norm,max,cumsum,cumsum of columns,cummax,mse,l1,huber,smooth_l1,bce_with_logits,kl_div,js,"
    "cross_entropy,linear_cross_entropy,cosine_embedding,triplet_margin,swiglu,geglu,geglu of erf,embedding,"
    "embedding of few tokens,"
    "conv1d,scan"
).split(",")


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", PAIRS)
def test_ops(torch, name, kind):
    ours, theirs, shapes = _pairs(torch)[name]
    inputs = [torch.randn(shape, device="cuda").to(getattr(torch, kind)) for shape in shapes]
    if name == "scan":
        inputs[0] = inputs[0].sigmoid()
    agree(torch, ours, theirs, inputs, 64 if kind == "float32" else 8)  # f32 sums of thousands


def test_orders_and_counts(torch):
    x = torch.randint(-50, 50, (7, 3000), device="cuda").float()
    values, places = op.sort(x, 1)
    want = torch.sort(x, dim=1, stable=True)
    assert torch.equal(values, want.values)
    assert torch.equal(places, want.indices)
    given = x + torch.rand_like(x)
    best, places = op.topk(given, 20, 1)
    assert torch.equal(best, torch.topk(given, 20, 1).values)
    assert torch.equal(best, torch.gather(given, 1, places))
    whole = (x[0] + 50).long()
    assert torch.equal(op.bincount(whole), torch.bincount(whole))
    assert torch.equal(op.histogram(x, 25, -50, 50), torch.histc(x, 25, -50, 50))
    assert torch.equal(op.unique_consecutive(whole.sort().values), torch.unique(whole))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(torch, interleaved):
    q, k = (torch.randn(2, heads, 77, 64, device="cuda").bfloat16() for heads in (4, 2))
    got = op.attn.rope(q, k, interleaved=interleaved)
    angle = torch.arange(77.0, dtype=torch.float64)[:, None] * 10000.0 ** (
        -torch.arange(32.0, dtype=torch.float64) / 32
    )
    turn = torch.polar(torch.ones_like(angle), angle).cuda()
    for given, found in zip((q, k), got, strict=True):
        wide = given.double()
        halves = wide.unflatten(-1, (32, 2)).unbind(-1) if interleaved else wide.chunk(2, -1)
        turned = torch.complex(*halves) * turn
        parts = (turned.real, turned.imag)
        want = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
        assert float((found.double() - want).abs().max()) <= 2.0**-7 * float(want.abs().max())


def test_dropout_keeps_what_it_keeps_on_cpus(torch):
    x = torch.randn(1000, 37)
    assert torch.equal(op.dropout(x, 0.3, seed=5), op.dropout(x.cuda(), 0.3, seed=5).cpu())


def test_adamw_steps_as_pytorch_does(torch):
    params = [torch.randn(shape, device="cuda") for shape in ((300, 70), (33,), (2, 3, 5))]
    theirs = [one.double().requires_grad_() for one in params]
    optimizer = torch.optim.AdamW(theirs, lr=1e-2, weight_decay=0.1)
    means, squares = ([torch.zeros_like(one) for one in params] for _ in range(2))
    for step in range(1, 5):
        grads = [torch.randn_like(one) for one in params]
        op.optim.adamw_(params, grads, means, squares, step, lr=1e-2, weight_decay=0.1)
        for one, grad in zip(theirs, grads, strict=True):
            one.grad = grad.double()
        optimizer.step()
    for one, other in zip(params, theirs, strict=True):
        assert float((one.double() - other.detach()).abs().max()) < 1e-5


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ROUNDING)
@pytest.mark.parametrize("name", ROWS)
def test_rows(torch, name, kind, width):
    dtype = getattr(torch, kind)
    x = torch.randn(77, width, device="cuda").to(dtype)
    w, b = (torch.randn(width, device="cuda").to(dtype) for _ in range(2))
    agree(torch, *ROWS[name](torch.nn.functional, width), [x, w, b])


@pytest.mark.parametrize("name", ROWS)
def test_many_rows_give_the_same_bits_again(torch, name):
    x = torch.randn(30000, 130, device="cuda").bfloat16()
    w, b = (torch.randn(130, device="cuda").bfloat16() for _ in range(2))
    ours, theirs = ROWS[name](torch.nn.functional, 130)
    agree(torch, ours, theirs, [x, w, b])
    found = []
    for _ in range(2):
        given = [one.clone().requires_grad_() for one in (x, w, b)]
        ours(*given).sum().backward()
        found.append([one.grad for one in given])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
