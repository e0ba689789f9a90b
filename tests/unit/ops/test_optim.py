"""Optimizers against NumPy in float64 and `torch.optim`."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.optim import together
from tests.unit.ops import library as lib

O = op.optim  # noqa: E741
SHAPES = [(3, 5), (7,), (), (2, 3, 400), (0,)]


def of(rng, dtype=ts.f32, shapes=SHAPES, positive=False):
    """Return arrays of random numbers."""
    found = [np.asarray(rng.standard_normal(shape)).astype(dtype.numpy()) for shape in shapes]
    return [np.asarray(np.abs(one)) for one in found] if positive else found


def f64(some):
    return [one.astype(np.float64) for one in some]


def adamw(p, g, m, v, step, lr, betas, eps, decay):
    """AdamW as its paper writes it, without a schedule."""
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
    hat, root = m / (1 - betas[0] ** step), np.sqrt(v / (1 - betas[1] ** step))
    return p - lr * hat / (root + eps) - lr * decay * p, m, v


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
@pytest.mark.parametrize("library", lib.LIBRARIES)
def test_adamw(library, dtype):
    rng = np.random.default_rng(1)
    state = ts.f64 if dtype == ts.f64 else ts.f32
    p, g = of(rng, dtype), of(rng, dtype)
    m, v = of(rng, state), of(rng, state, positive=True)
    how = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    want = [adamw(*one, 3, 1e-2, (0.8, 0.95), 1e-6, 0.1) for one in zip(*map(f64, (p, g, m, v)), strict=True)]
    for one, exact in zip(zip(p, g, m, v, strict=True), want, strict=True):
        assert all(np.allclose(*both) for both in zip(O.adamw_.reference(*one, 3, **how), exact, strict=True))
    given = [[lib.of_library(library, one) for one in some] for some in (p, g, m, v)]
    assert O.adamw_(*given, 3, **how) is None
    for at, exact in enumerate(want):
        lib.close(given[0][at], exact[0], dtype)
        lib.close(given[2][at], exact[1], state)
        lib.close(given[3][at], exact[2], state, 4)


@pytest.mark.parametrize("state", [ts.f32, ts.bf16], ids=str)
def test_lion(state):
    rng = np.random.default_rng(2)
    p, g, m = of(rng), of(rng, ts.bf16), of(rng, state)
    p64, g64, m64 = f64(p), f64(g), f64(m)
    O.lion_(p, g, m, lr=1e-2, betas=(0.7, 0.9), weight_decay=0.1)
    for at in range(len(p)):
        want = p64[at] * (1 - 1e-3) - 1e-2 * np.sign(0.7 * m64[at] + 0.3 * g64[at])
        lib.close(p[at], want, ts.f32)
        lib.close(m[at], 0.9 * m64[at] + 0.1 * g64[at], state)
        assert np.allclose(
            O.lion_.reference(p64[at], g[at], m64[at], lr=1e-2, betas=(0.7, 0.9), weight_decay=0.1)[0], want
        )


WAYS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "dampening": 0.2},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


@pytest.mark.parametrize("way", WAYS)
def test_sgd_is_pytorchs(way):
    torch = pytest.importorskip("torch")
    rng, shapes = np.random.default_rng(3), SHAPES[:4]
    p, g = of(rng, shapes=shapes), of(rng, shapes=shapes)
    theirs = [torch.tensor(one, requires_grad=True) for one in p]
    ours = [torch.tensor(one, requires_grad=True) for one in p]
    buffers = [torch.full_like(one, torch.nan) for one in ours] if "momentum" in WAYS[way] else None
    optimizer = torch.optim.SGD(theirs, lr=0.1, **WAYS[way])
    for step in (1, 2, 3):
        grads = [torch.tensor(one) * step for one in g]
        for one, grad in zip(theirs, grads, strict=True):
            one.grad = grad.clone()
        before = [one.detach().clone() for one in ours]
        held = [None] * len(ours) if buffers is None else [one.clone() for one in buffers]
        optimizer.step()
        O.sgd_(ours, grads, buffers, step, lr=0.1, **WAYS[way])
        for at, one in enumerate(ours):
            assert torch.allclose(one, theirs[at], atol=1e-6)
            want = O.sgd_.reference(before[at], grads[at], held[at], step, lr=0.1, **WAYS[way])[0]
            assert np.allclose(want, theirs[at].detach(), atol=1e-6)


def test_adamw_is_pytorchs():
    torch = pytest.importorskip("torch")
    theirs, ours = ([torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()] for _ in range(2))
    means, squares = [torch.zeros(3, 4)], [torch.zeros(3, 4)]
    optimizer, scale = torch.optim.AdamW(theirs, lr=0.1), torch.tensor(1024.0)
    for step in (1, 2, 3):
        grad = torch.randn(3, 4)
        theirs[0].grad = grad.clone()
        optimizer.step()
        version = ours[0]._version
        given = {"grad_scale": 1024.0 if step == 2 else scale}
        O.adamw_(ours, [grad * 1024], means, squares, step, lr=0.1, **given)
        assert ours[0]._version > version
        assert torch.allclose(ours[0], theirs[0], atol=1e-6)


@pytest.fixture
def in_twos(monkeypatch):
    """Change parameters as on a GPU, two by a launch; return the launches."""
    launches, kernel = [], together.change
    monkeypatch.setattr(together, "PARAMETERS", 2)
    monkeypatch.setattr(together.rows, "is_simt", lambda _array: True)
    monkeypatch.setattr(together, "change", lambda *args, **given: launches.append(kernel(*args, **given)))
    return launches


STEPS = {
    "adamw_": lambda p, g, m, v, step, lr: O.adamw_(p, g, m, v, step, lr=lr),
    "lion_": lambda p, g, m, v, step, lr: O.lion_(p, g, m, lr=lr),
    "sgd_": lambda p, g, m, v, step, lr: O.sgd_(p, g, m, step, lr=lr, momentum=0.9, dampening=0.1),
}


@contextmanager
def in_python(is_allowed):
    """Let steps fail that run as they are written, unless that is allowed."""

    def refuse(*_groups):
        raise AssertionError("a step ran as it is written")

    with pytest.MonkeyPatch.context() as patch:
        if not is_allowed:
            patch.setattr("tessera.ops.optim.lists.in_memory", refuse)
        yield


def trees_of(torch, rng, shapes, dtype=np.float32):
    """Return parameters, gradients and states, as NumPy's arrays and as PyTorch's tensors of their own."""
    ours = [of(rng, shapes=shapes), of(rng, shapes=shapes), of(rng, shapes=shapes)]
    ours = [[one.astype(dtype) for one in some] for some in (*ours, of(rng, shapes=shapes, positive=True))]
    return ours, [[torch.from_numpy(one.copy()) for one in some] for some in ours]


@pytest.mark.parametrize("name", STEPS)
def test_later_steps_are_those_of_the_optimizer_as_written(name):
    torch = pytest.importorskip("torch")
    rng, shapes = np.random.default_rng(21), [(3, 5), (7,), (), (2, 3, 40)]
    ours, theirs = trees_of(torch, rng, shapes)
    theirs[0] = [torch.nn.Parameter(one) for one in theirs[0]]
    for step in range(1, 7):
        ours[1] = of(rng, shapes=shapes)
        theirs[1] = [torch.from_numpy(np.array(one)) for one in ours[1]]  # elsewhere in each step
        versions = [one._version for one in theirs[0]]
        STEPS[name](*ours, step, 0.1 / step)
        with in_python(step < 4):
            STEPS[name](*theirs, step, 0.1 / step)
        assert all(one._version > before for one, before in zip(theirs[0], versions, strict=True))
        for some, others in zip(ours, theirs, strict=True):
            assert all(np.array_equal(one, other.detach()) for one, other in zip(some, others, strict=True))


MOVES = {
    "a parameter that moves": lambda trees: trees[0].__setitem__(0, trees[0][0].clone()),
    "another shape": lambda trees: [some.__setitem__(1, some[1].reshape(1, 6)) for some in trees],
    "strides that fit": lambda trees: [some.__setitem__(0, some[0].t().contiguous().t()) for some in trees],
    "another dtype": lambda trees: trees[1].__setitem__(0, trees[1][0].to("cpu", trees[0][0].double().dtype)),
    "gradients that share memory": lambda trees: trees[1].__setitem__(0, trees[1][2][:12].view(3, 4)),
    "an address of no alignment": lambda trees: trees[1].__setitem__(1, trees[1][2][1:7].clone().new_zeros(9)[1:7]),
}


@pytest.mark.parametrize("move", MOVES)
def test_steps_over_other_tensors_run_anew(move):
    torch = pytest.importorskip("torch")
    rng, shapes = np.random.default_rng(22), [(3, 4), (6,), (40,)]
    _, known = trees_of(torch, rng, shapes)
    written = [[one.numpy().copy() for one in some] for some in known]
    for step in range(1, 6):
        if step == 4:
            MOVES[move](known)
            of_torch = [[one.numpy() for one in some] for some in known]
            written = [[np.array(one) for one in some] for some in of_torch]
        O.adamw_(*known, step, lr=0.1)
        O.adamw_(*written, step, lr=0.1)
        for some, others in zip(written, known, strict=True):
            assert all(np.array_equal(one, other) for one, other in zip(some, others, strict=True))


def test_steps_as_known_are_refused_alike():
    torch = pytest.importorskip("torch")
    _, trees = trees_of(torch, np.random.default_rng(23), [(3, 4), (6,)])
    for step in range(1, 5):
        with in_python(step < 3):
            O.adamw_(*trees, step)
    with pytest.raises(ts.errors.CallError, match="bad-argument"):
        O.adamw_(*trees, 0)
    with pytest.raises(ts.errors.CallError, match="wrong-shape"):
        O.adamw_(trees[0], [trees[1][0], trees[1][0]], *trees[2:], 5)
    with pytest.raises(ts.errors.CallError, match="not-an-array"):
        O.adamw_(trees[0], [trees[1][0], None], *trees[2:], 5)
    trees[0][0].requires_grad_()
    product = (trees[0][0] * trees[0][0]).sum()
    with in_python(False):
        O.adamw_(*trees, 6)
    with pytest.raises(RuntimeError, match="inplace"):
        product.backward()


@pytest.mark.parametrize("name", ["adamw_", "lion_", "sgd_"])
def test_many_parameters_are_changed_by_few_launches(name, in_twos):
    rng = np.random.default_rng(11)
    shapes = [(48,), (5, 7), (3, 16), (1040,), (0,), (2, 32), (33,), (4, 4, 4)]
    p, g, *others = (of(rng, shapes=shapes) for _ in range(4 if name == "adamw_" else 3))
    others[-1][:] = [abs(one) for one in others[-1]]
    wide = [f64(some) for some in (p, g, *others)]
    options = {"adamw_": {"step": 3}, "lion_": {"lr": 0.1}, "sgd_": {"step": 3, "lr": 0.1, "momentum": 0.9}}[name]
    torch = pytest.importorskip("torch")
    getattr(O, name)(*([torch.from_numpy(one) for one in some] for some in (p, g, *others)), **options)
    assert len(in_twos) == 2
    for at, one in enumerate(p):
        step = getattr(O, name).reference(*(some[at] for some in wide), **options)
        lib.close(one, step[0], ts.f32)
        for state, want in zip(others, step[1:], strict=True):
            lib.close(state[at], want, ts.f32)


def test_parameters_that_share_memory_are_changed_one_after_the_other(in_twos):
    torch = pytest.importorskip("torch")
    p, g = [torch.ones(4, 16) for _ in range(3)], [torch.ones(4, 16) for _ in range(4)]
    O.sgd_([p[0], p[0], p[1], p[2]], g, lr=0.5)
    assert [float(one.max()) for one in p] == [float(one.min()) for one in p] == [0.0, 0.5, 0.5]
    assert len(in_twos) == 1


def test_parameters_of_any_rows():
    rng = np.random.default_rng(4)
    big = rng.standard_normal((8, 6, 10)).astype(np.float32)
    p = big[::2, 0, :7]
    before, g = p.astype(np.float64), rng.standard_normal((4, 7)).astype(np.float32)
    rest = big.copy()
    O.sgd_([p], [g], lr=0.5)
    lib.close(p, before - 0.5 * g, ts.f32)
    rest[::2, 0, :7] = p
    assert np.array_equal(big, rest)
    with pytest.raises(ts.errors.CallError, match="not-contiguous"):
        O.sgd_([big[:, :4]], [big[:, :4].copy()])


def test_stochastic_rounding_is_right_on_average():
    n, exact = 200_000, 1 + 2.0**-10  # an eighth of a step of bf16 above 1
    some = []
    for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1)):
        p, g = np.ones(n, ts.bf16.numpy()), np.full(n, -(2.0**-10), np.float32)
        O.sgd_(
            [p], [g], [np.zeros(n, ts.bf16.numpy())], step, lr=1.0, momentum=0.5, stochastic_rounding=True, seed=seed
        )
        some.append(p.astype(np.float64))
        assert set(np.unique(some[-1])) == {1.0, 1 + 2.0**-7}
        assert abs(some[-1].mean() - exact) < 5 * 2.0**-7 * np.sqrt(7 / 64 / n)
    assert np.array_equal(some[0], some[1])
    assert not np.array_equal(some[0], some[2])
    assert not np.array_equal(some[0], some[3])


def test_stochastic_rounding_of_states_and_of_what_is_not_finite():
    kind, n = ts.bf16.numpy(), 1000
    p, m, v = np.ones(n, kind), np.zeros(n, kind), np.zeros(n, kind)
    g = np.full(n, 0.3, np.float32)
    g[0], g[1] = np.nan, np.inf
    O.adamw_([p], [g], [m], [v], 1, lr=0.01, stochastic_rounding=True)
    wide = [one.astype(np.float64) for one in (p, m, v)]
    assert np.isnan(wide[0][:2]).all()
    assert np.isnan(wide[1][0])
    assert np.isinf(wide[1][1])
    for one, exact in zip(wide[1:], (0.03, 0.001 * 0.09), strict=True):
        assert (np.abs(one[2:] / exact - 1) < 2.0**-7).all()
        assert abs(one[2:].mean() / exact - 1) < 1e-3
        assert len(np.unique(one[2:])) == 2


@pytest.mark.parametrize("dtype", lib.FLOATS, ids=str)
@pytest.mark.parametrize("most", [0.5, 1e6])
def test_gradients_are_clipped_by_their_norm(dtype, most):
    rng = np.random.default_rng(5)
    g = of(rng, dtype, [*SHAPES, (3, 40_000)])
    wide = f64(g)
    norm = np.sqrt(sum((one**2).sum() for one in wide))
    assert np.allclose(O.clip_grad_norm_.reference(g, most)[1], norm)
    total = O.clip_grad_norm_(g, most)
    lib.close(total, [norm], (total.dtype == np.float64 and ts.f64) or ts.f32)
    for one, exact in zip(g, wide, strict=True):
        lib.close(one, exact * min(1, most / (norm + 1e-6)), dtype)


def test_norms_are_the_same_in_every_run_and_pytorchs():
    torch = pytest.importorskip("torch")
    some = [torch.randn(300, 77), torch.randn(5), torch.empty(0)]
    params = [one.clone().requires_grad_() for one in some]
    for one, grad in zip(params, some, strict=True):
        one.grad = grad.clone()
    want = torch.nn.utils.clip_grad_norm_(params, 1.0)
    runs = [[one.clone() for one in some] for _ in range(2)]
    norms = [O.clip_grad_norm_(one, 1.0) for one in runs]
    assert torch.equal(norms[0], norms[1])
    assert torch.allclose(norms[0], want)
    for one, param in zip(runs[0], params, strict=True):
        assert torch.allclose(one, param.grad)
    bad = [np.array([1, np.nan], np.float32), np.ones(3, np.float32)]
    assert np.isnan(O.clip_grad_norm_(bad, 1.0)).all()
    assert np.isnan(bad[1]).all()
    assert O.clip_grad_norm_([np.zeros((0, 3), np.float32)], 1.0)[0] == 0


X, I = np.zeros((3, 10), np.float32), np.zeros((3, 10), np.int32)  # noqa: E741
WRONG = {
    "not-an-array": lambda: O.sgd_([3], [X]),
    "wrong-shape": lambda: O.sgd_([X], [X[:2]]),
    "wrong-shape of grad_scale": lambda: O.sgd_([X], [X], grad_scale=X),
    "wrong-dtype": lambda: O.sgd_([I], [X]),
    "wrong-dtype of states": lambda: O.lion_([X], [X], [X.astype(np.float16)]),
    "wrong-dtype of two states": lambda: O.adamw_([X], [X], [X], [X.astype(np.float64)], 1),
    "bad-argument lists": lambda: O.sgd_([X], [X, X]),
    "bad-argument no list": lambda: O.sgd_(X, X),
    "bad-argument lr": lambda: O.adamw_([X], [X], [X], [X], 1, lr=-1.0),
    "bad-argument step": lambda: O.adamw_([X], [X], [X], [X], 0),
    "bad-argument betas": lambda: O.lion_([X], [X], [X], betas=(0.9, 1.0)),
    "bad-argument momentum": lambda: O.sgd_([X], [X], momentum=0.9),
    "bad-argument nesterov": lambda: O.sgd_([X], [X], nesterov=True),
    "bad-argument grad_scale": lambda: O.sgd_([X], [X], grad_scale=0),
    "bad-argument max_norm": lambda: O.clip_grad_norm_([X], "big"),
    "bad-argument nothing": lambda: O.clip_grad_norm_([], 1.0),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes(mistake):
    with pytest.raises(ts.errors.CallError) as caught:
        WRONG[mistake]()
    assert caught.value.code == mistake.split(" ")[0]
    assert "test_optim.py" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "target"),
    [("adamw_", "sm_90a"), ("lion_", "sm_80"), ("sgd_", "sm_90a"), ("clip_grad_norm_", "sm_80")],
)
def test_kernels_compile_without_a_device(name, target):
    function = getattr(O, name)
    given = {} if name == "clip_grad_norm_" else {"state": ts.bf16, "stochastic_rounding": name == "adamw_"}
    assert lib.spills(function.compile(2**20, ts.bf16, target=target, **given)) == 0


def test_costs():
    assert (O.adamw_.bytes(10, ts.bf16), O.lion_.bytes(10, ts.bf16), O.sgd_.bytes(10, ts.f32)) == (220, 140, 200)
    assert (O.adamw_.flops(10), O.clip_grad_norm_.flops((2, 5)), O.clip_grad_norm_.bytes((2, 5), ts.f32)) == (
        140,
        30,
        120,
    )
