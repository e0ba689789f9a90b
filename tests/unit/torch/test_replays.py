"""Calls of compiled graphs after the first: other sizes, layouts, threads and failures beside PyTorch's own results."""

import contextlib
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from tessera.errors import ResourceError  # noqa: E402 - as the next ones
from tessera.graph import replay  # noqa: E402
from tessera.graph.program import Program  # noqa: E402
from tessera.ops import forms  # noqa: E402
from tessera.torch.compiled import backend as compiled  # noqa: E402 - only where PyTorch is
from tessera.torch.compiled import running  # noqa: E402


def compile_(function, **more):
    torch._dynamo.reset()
    return torch.compile(function, backend=compiled.backend, **more)


def check(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def images(x, w):
    """Convolutions, which are PyTorch's, with kernels before, between and after them."""
    y = F.conv2d(x.tanh(), w, padding=1)
    z = F.conv2d(y.relu() + 1, w.transpose(0, 1), padding=1)
    return z * y.sigmoid(), y.flatten(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def programs(monkeypatch):
    made = []

    def kept(*args, **named):
        made.append(Program(*args, **named))
        return made[-1]

    monkeypatch.setattr(running, "Program", kept)
    return made


@pytest.fixture
def plain():
    return torch.randn(3, 3, 3, 3, dtype=torch.float64)


def test_sizes_change_between_calls(plain):
    whole = compile_(images, dynamic=True)
    for shape in [(2, 3, 4, 5), (3, 3, 6, 4), (2, 3, 5, 5)] * 2:
        found = []
        for function in (whole, images):
            x = torch.ones(shape, dtype=torch.float64).cumsum(-1).div(7).requires_grad_()
            w = plain.clone().requires_grad_()
            results = function(x, w)
            sum(part.sum() for part in results).backward()
            found.append((*results, x.grad, w.grad))
        check(*found)
        assert [one.stride() for one in found[0]] == [one.stride() for one in found[1]]


def test_what_a_replay_calls_is_written_out(programs, plain):
    whole = compile_(images)
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    for _ in range(2):
        check(whole(x, plain), images(x, plain))
    ((bound,),) = (one._bound.values() for one in programs)
    assert bound.replay.text.count("= op_") == 2
    assert "ready" not in bound.replay.text, "nothing is made ready that lies as it has to"
    assert ".to(" not in bound.replay.text


def test_a_call_that_fails_half_way_leaves_the_next_one_alone():
    state = SimpleNamespace(fails=False)
    with torch.library._scoped_library("replays", "DEF") as library:
        library.define("maybe(Tensor x) -> Tensor")

        def maybe(x):
            if state.fails:
                raise ValueError("the step fails")
            return x * 3

        library.impl("maybe", maybe, "CPU")
        library.impl("maybe", lambda x: torch.empty_like(x), "Meta")

        def function(x):
            return torch.ops.replays.maybe(x.exp()).tanh() + x, x.sin()

        whole = compile_(function)
        for seed in range(6):
            x = torch.linspace(seed, 1, 12, dtype=torch.float64)
            state.fails = seed in (2, 4)
            if state.fails:
                with pytest.raises(ValueError, match="the step fails"):
                    whole(x)
                assert torch.is_grad_enabled()
            else:
                check(whole(x), function(x))


def test_threads_call_one_graph(plain):
    whole = compile_(images)
    given = [torch.randn(2, 3, 4, 4, dtype=torch.float64) for _ in range(4)]
    whole(given[0], plain), whole(given[0], plain)
    failed = []

    def work(x):
        wanted = images(x, plain)
        for _ in range(15):
            if not all(map(torch.allclose, whole(x, plain), wanted)):
                failed.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in given]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_results_that_share_memory_do_so_as_in_pytorch():
    def function(x):
        y = x.exp()
        return y, y.t(), y[0], y.flatten()[1:], x[1], x

    whole = compile_(function)
    for _ in range(4):
        found = []
        for call in (whole, function):
            x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4) / 12
            results = call(x)
            results[0][0, 1] = 7
            results[2][2] = 9
            results[4][3] = 5
            found.append([*results, x])
        check(*found)
        earlier = found[0][0].clone()
        whole(torch.zeros(3, 4, dtype=torch.float64))
        check(found[0][0], earlier)


def test_tensors_that_stand_for_others():
    def function(x):
        return torch.view_as_real(x * 2).exp() + 1

    def real(x):
        return x.exp() + x

    whole, of_real = compile_(function), torch.compile(real, backend=compiled.backend)
    z = torch.complex(torch.linspace(0, 1, 5).double(), torch.linspace(1, 2, 5).double())
    for x in (z, z.conj(), z, z.conj()):
        check(whole(x), function(x))
    for x in (z.imag, z.conj().imag, z.imag, z.conj().imag):
        check(of_real(x), real(x))


def test_parts_of_a_tensor_that_are_not_aligned():
    def function(x):
        return x.exp().cumsum(0), x * 2

    whole = compile_(function)
    memory = torch.linspace(0, 1, 70, dtype=torch.float32)
    for first in (0, 1, 2, 0, 3, 1):
        x = memory[first : first + 64]
        torch.testing.assert_close(whole(x), function(x))


def test_memory_that_is_not_there_is_said(monkeypatch):
    left = [100]

    def create(*given):
        if not left[0]:
            raise RuntimeError("PyTorch says no more")
        left[0] -= 1
        return torch.empty_strided(given[0], given[1], dtype=given[2])

    def unknown(_device):
        return create, None

    monkeypatch.setattr(replay, "creator", unknown)
    assert forms.creator(torch.device("cpu"))[1] is None
    whole = compile_(lambda x: x.exp() + 1)
    x = torch.ones(5, 7)
    whole(x), whole(x)
    left[0] = 0
    with pytest.raises(ResourceError, match=r"shape \(5, 7\)"):
        whole(x)
    left[0] = 100
    torch.testing.assert_close(whole(x), x.exp() + 1)


def test_a_thread_on_another_device_runs_step_by_step(monkeypatch):
    here = [True]
    monkeypatch.setattr(replay, "creator", lambda device: (forms.creator(device)[0], lambda: here[0]))
    whole = compile_(lambda x: x.exp() @ x.T)
    for seed in range(4):
        here[0] = seed != 2
        x = torch.linspace(seed, 1, 12, dtype=torch.float64).reshape(3, 4)
        check(whole(x), x.exp() @ x.T)


def test_arguments_that_change_are_written_once():
    def function(x, count, total):
        count.add_(1)
        total.mul_(0.5).add_(x.sum(0))
        return x - total, total[1:]

    whole = compile_(function)
    states = [(torch.zeros((), dtype=torch.int64), torch.ones(4, dtype=torch.float64)) for _ in range(2)]
    for seed in range(4):
        x = torch.linspace(seed, 1, 12, dtype=torch.float64).reshape(3, 4)
        check(whole(x, *states[0]), function(x, *states[1]))
        check(*states)


def test_attention_on_parts_of_one_array_is_launches(programs):
    def function(x):
        q, k, v = x.view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2).sin()

    whole = compile_(function)
    for seed in range(3):
        found = []
        for call in (whole, function):
            x = torch.linspace(-1, seed + 1, 576, dtype=torch.float64).sin().reshape(2, 6, 48).requires_grad_()
            y = call(x)
            y.backward(torch.ones_like(y))
            found.append((y, x.grad))
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)
    texts = [bound.replay.text for one in programs for bound in one._bound.values()]
    assert len(texts) == 2
    assert not any("op_" in text for text in texts)


def test_autocast_around_backward_changes_nothing(plain):
    def function(x, w):
        return F.conv2d(F.conv2d(x.tanh(), w, padding=1).relu(), w, padding=1).sigmoid()

    whole = compile_(function)
    for inside in (False, True, False, True):
        found = []
        for call in (whole, function):
            x = torch.linspace(-1, 1, 96).reshape(2, 3, 4, 4).requires_grad_()
            w = plain.float().requires_grad_()
            y = call(x, w)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside and call is whole):
                y.backward(torch.ones_like(y))
            assert x.grad.dtype == torch.float32
            found.append((y, x.grad, w.grad))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: x.exp() @ w[:, 1:],
        lambda x, w: F.conv1d(x[None], w.view(3, 3, 1)),
        lambda x, w: x @ torch.view_as_complex(w.view(9)[:6].view(3, 2)).abs().view(3, 1),
    ],
    ids=["transposed", "sliced", "viewed", "complex"],
)
def test_arguments_that_change_before_backward_are_refused(function):
    whole = compile_(function)
    for _ in range(3):
        x, w = torch.rand(3, 3).requires_grad_(), torch.rand(3, 3).requires_grad_()
        y = whole(x, w)
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: (y, y.t().tanh()))(x.exp()),
        lambda x: (lambda y: (y.t(), y[1:].exp()))(x.sigmoid()),
        lambda x: x.t().sigmoid(),
    ],
    ids=["both", "sliced", "turned"],
)
def test_results_that_change_before_backward_are_refused_or_others_than_what_is_kept(function):
    whole = compile_(function)
    for _ in range(3):
        x = torch.rand(3, 4, dtype=torch.float64).requires_grad_()
        found, wanted = (torch.utils._pytree.tree_leaves(call(x)) for call in (whole, function))
        want = torch.autograd.grad(sum(one.cos().sum() for one in wanted), x)
        total = sum(one.cos().sum() for one in map(torch.clone, found))
        found[0].detach().mul_(2)
        got = want
        with contextlib.suppress(RuntimeError):
            got = torch.autograd.grad(total, x)
        check(got, want)


def test_tensors_are_made_quickly_where_their_device_is_current(monkeypatch):
    current = [1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    forms.creator.cache_clear()
    try:
        make, is_here = forms.creator(torch.device("cuda", 1))
        assert make is torch._C._dynamo.guards._empty_strided_cuda
        assert is_here()
        current[0] = 0
        assert not is_here()
    finally:
        forms.creator.cache_clear()
