"""Calls of library ops on PyTorch's tensors that start again what a call of the same kind launched."""

import threading
from typing import ClassVar

import pytest

import tessera as ts
from tessera import op
from tessera.ops import repeats

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402

import tessera.torch  # noqa: E402 - for torch.compile


def _normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def _heads(*shape):
    return _normal(1, 2, *shape)


CALLS = {
    "swiglu": lambda: (op.activation.swiglu, (_normal(5, 64), _normal(5, 64)), {}),
    "swiglu of halves": lambda: (op.activation.swiglu, (_normal(2, 3, 64),), {}),
    "rms": lambda: (op.norm.rms, (_normal(5, 48), 48, _normal(48)), {"eps": 1e-5}),
    "rms with its residual": lambda: (op.norm.rms, (_normal(5, 48), 48), {"residual": _normal(5, 48)}),
    "ln": lambda: (op.norm.ln, (_normal(3, 5, 48), (48,), _normal(48)), {"bias": _normal(48)}),
    "group": lambda: (op.norm.group, (_normal(2, 8, 5, 5), 4), {}),
    "softmax": lambda: (op.softmax, (_normal(7, 33),), {}),
    "log_softmax of columns": lambda: (op.log_softmax, (_normal(7, 33), 0), {}),
    "sum": lambda: (op.reduce.sum, (_normal(4, 7, 33), 1), {}),
    "sum of all": lambda: (op.reduce.sum, (_normal(4, 7, 33),), {}),
    "max": lambda: (op.reduce.max, (_normal(7, 33), 1), {}),
    "var": lambda: (op.reduce.var, (_normal(33, 7), 0), {}),
    "cumsum": lambda: (op.cumsum, (_normal(7, 33), 1), {}),
    "sort": lambda: (op.sort, (_normal(7, 33),), {}),
    "cross entropy": lambda: (op.loss.cross_entropy, (_normal(7, 33), torch.randint(0, 33, (7,))), {}),
    "mse": lambda: (op.loss.mse, (_normal(7, 33), _normal(7, 33)), {}),
    "embedding": lambda: (op.embedding, (torch.randint(0, 9, (7,)), _normal(9, 16)), {}),
    "rope": lambda: (op.attn.rope, (_heads(5, 16), _heads(5, 16)), {}),
    "attention": lambda: (op.flash_attention, (_heads(9, 16), _heads(9, 16), _heads(9, 16)), {"causal": True}),
    "attention of one tensor": lambda: (op.flash_attention, (_heads(9, 16),) * 3, {"return_lse": True}),
    "linear attention": lambda: (
        op.linear_attention,
        (*(_normal(1, 9, 2, 16) for _ in range(3)), -torch.rand(1, 9, 2)),
        {},
    ),
    "linear cross entropy": lambda: (
        op.loss.linear_cross_entropy,
        (_normal(6, 8), _normal(20, 8), torch.randint(0, 20, (6,))),
        {},
    ),
    "dropout": lambda: (op.dropout, (_normal(5, 33), 0.5), {"seed": 7}),
}


def _flat(result):
    if isinstance(result, dict):
        return [leaf for one in result.values() for leaf in _flat(one)]
    if isinstance(result, tuple):
        return [leaf for one in result for leaf in _flat(one)]
    return [result]


def _same(found, wanted):
    assert type(found) is type(wanted)
    for one, other in zip(_flat(found), _flat(wanted), strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert torch.equal(one, other)


def _as_written(function, args, kwargs):
    return type(function).__call__.__wrapped__(function, *args, **kwargs)


@pytest.fixture
def counted(monkeypatch):
    """Count repeats."""
    count = []
    run = repeats.Repeat.__call__
    monkeypatch.setattr(repeats.Repeat, "__call__", lambda self, *given: (count.append(1), run(self, *given))[1])
    return count


DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CALLS)
def test_the_third_call_of_a_kind_gives_what_the_op_as_written_gives(name, device, counted):
    torch.manual_seed(1)
    kept = []
    for _ in range(4):
        function, args, kwargs = CALLS[name]()
        args, kwargs = tree_map_only(torch.Tensor, lambda one: one.to(device), (args, kwargs))
        wanted = _as_written(function, args, kwargs)
        counted.clear()
        kept.append((function(*args, **kwargs), wanted))
    assert len(counted) == 1
    for found, wanted in kept:  # none writes what another gave
        _same(found, wanted)


def test_gradients_that_are_asked_for_by_hand_are_repeated(counted):
    torch.manual_seed(2)
    for _ in range(4):
        grad, gate, up = (_normal(5, 64) for _ in range(3))
        found = op.activation.swiglu.backward(grad, gate, up)
        _same(found, type(op.activation.swiglu).backward.__wrapped__(op.activation.swiglu, grad, gate, up))
    assert len(counted) == 2


def test_what_decides_a_call_tells_its_kind():
    x = _normal(6, 40)
    for _ in range(3):
        op.softmax(x), op.norm.rms(x, 40, eps=0.0), op.reduce.sum(x, 1)
    for given in (x[:, 1:33], x.T, x.bfloat16(), x.double(), _normal(241)[1:].view(6, 40)):
        _same(op.softmax(given), _as_written(op.softmax, (given,), {}))
    for eps in (1.0, -0.0, 1):
        _same(op.norm.rms(x, 40, eps=eps), _as_written(op.norm.rms, (x, 40), {"eps": eps}))
    assert op.reduce.sum(x, 0).shape == (40,)
    twice = op.loss.mse
    for _ in range(3):
        assert twice(x, x) == 0
    assert twice(x, x + 1) > 0.9
    with ts.numerics.profile("strict"):
        _same(op.softmax(x), _as_written(op.softmax, (x,), {}))


def test_gradients_given_results_and_changes_are_as_before():
    x, w = _normal(5, 48), _normal(48)
    for _ in range(3):
        op.norm.rms(x, 48, w)
    asked = w.clone().requires_grad_()
    op.norm.rms(x, 48, asked).sum().backward()
    assert asked.grad is not None
    out = torch.full_like(x, 7.0)
    for _ in range(3):
        version = out._version
        assert op.norm.rms(x, 48, w, out=out) is out
        assert out._version > version
    _same(out, op.norm.rms(x, 48, w))


def test_results_whose_size_depends_on_elements_are_not_repeated():
    for values in ([1, 1, 2, 2], [3, 3, 4, 4], [1, 2, 3, 4], [5, 5, 5, 5]):
        given = torch.tensor(values)
        assert torch.equal(op.unique_consecutive(given), torch.unique_consecutive(given))


def test_explain_says_what_a_repeat_ran():
    rows, columns = _normal(64, 48), _normal(7, 9)
    for _ in range(3):
        op.reduce.sum(rows, 1)
    wanted = op.reduce.sum.explain()
    op.reduce.sum(columns, 0)
    assert op.reduce.sum.explain() != wanted
    op.reduce.sum(rows, 1)
    assert op.reduce.sum.explain() == wanted


def test_threads_and_traces_beside_a_repeat():
    x = _normal(64, 96)
    wanted = _as_written(op.softmax, (x,), {})
    wrong = []

    def run():
        for _ in range(200):
            wrong.extend([1] * (not torch.equal(op.softmax(x), wanted)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
    assert torch.equal(torch.compile(lambda x: op.softmax(x) * 2, fullgraph=True, backend="eager")(x), wanted * 2)
    assert torch.equal(ts.jit(lambda x: op.softmax(x) * 2)(x), wanted * 2)


def test_kinds_that_never_come_again_are_forgotten():
    for at in range(repeats.MOST_KNOWN + 10):
        op.dropout(torch.ones(4), 0.5, seed=at)
    torch.manual_seed(3)
    x = _normal(4)
    _same(op.dropout(x, 0.5, seed=3), _as_written(op.dropout, (x, 0.5), {"seed": 3}))


FOLLOWED = {
    "swiglu": lambda: (op.activation.swiglu, (_normal(5, 64), _normal(5, 64)), {}),
    "rms": lambda: (op.norm.rms, (_normal(5, 48), 48, _normal(48)), {}),
    "group": lambda: (op.norm.group, (_normal(2, 8, 5, 5), 4), {}),
    "softmax of columns": lambda: (op.softmax, (_normal(7, 33), 0), {}),
    "cross entropy": lambda: (op.loss.cross_entropy, (_normal(7, 33), torch.arange(7)), {}),
    "attention": lambda: (op.flash_attention, (_heads(9, 16), _heads(9, 16), _heads(9, 16)), {"causal": True}),
    "scan": lambda: (op.scan, (_normal(2, 9, 8), torch.rand(2, 9, 8)), {}),
}


def _gradients(function, args, kwargs):
    """Return the gradients of a sum of squares."""
    leaves = [one.requires_grad_() if one.is_floating_point() else one for one in map(torch.clone, _tensors(args))]
    rest = iter(leaves)
    found = function(*(next(rest) if isinstance(one, torch.Tensor) else one for one in args), **kwargs)
    found.square().sum().backward()
    return [one.grad for one in leaves if one.requires_grad]


def _tensors(args):
    return [one for one in args if isinstance(one, torch.Tensor)]


class _Seen(TorchDispatchMode):
    """Sees every operator, so that calls go through those of the library."""

    names: ClassVar[set[str]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FOLLOWED)
def test_gradients_without_an_operator_are_those_with_one(name, device, counted):
    torch.manual_seed(4)
    for _ in range(4):
        function, args, kwargs = FOLLOWED[name]()
        args = tree_map_only(torch.Tensor, lambda one: one.to(device), args)
        with _Seen() as seen:
            wanted = _gradients(function, args, kwargs)
        counted.clear()
        for one, other in zip(_gradients(function, args, kwargs), wanted, strict=True):
            assert torch.equal(one, other)
    assert len(counted) == 2
    assert any(name.startswith("tessera::") for name in seen.names)


def test_what_follows_gradients_otherwise_still_does():
    x = _normal(3, 8, dtype=torch.float64).requires_grad_()
    y = op.softmax(x)
    assert y.grad_fn.name().startswith("tessera_softmax")
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    wanted = torch.autograd.grad(torch.softmax(x, -1).square().sum(), x)[0]
    assert torch.allclose(grad, wanted)
    with pytest.raises(ts.errors.CallError) as caught:
        grad.sum().backward()
    assert caught.value.code == "no-gradient"
    base = x * 1
    z = op.norm.rms(base, 8)
    base.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_lists_that_lie_in_themselves_are_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ts.errors.CallError, match="not-an-array"):
        op.mse(endless, torch.zeros(3))
