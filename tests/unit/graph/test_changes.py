"""Ops that change arrays in `ts.jit`: optimizers beside PyTorch's in float64, and what may not be changed."""

import numpy as np
import pytest
import torch

import tessera as ts
from tessera import ops
from tessera.errors import CallError

RNG = np.random.default_rng(11)


def weights():
    return {"a": RNG.standard_normal((5, 7)), "b": [RNG.standard_normal(9), (RNG.standard_normal((4, 3)).T,)]}


def mapped(function, tree):
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    return type(tree)(mapped(function, part) for part in tree) if isinstance(tree, list | tuple) else function(tree)


def leaves(tree):
    if isinstance(tree, dict | list | tuple):
        return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]
    return [tree]


def loss(p, x):
    return np.sum((x @ p["a"]) ** 2) + np.sum(p["b"][0] ** 3) + np.sum(np.tanh(p["b"][1][0]))


def torch_loss(p, x):
    return ((x @ p[0]) ** 2).sum() + (p[1] ** 3).sum() + torch.tanh(p[2]).sum()


OPTIMIZERS = {
    "adamw": (
        lambda p, g, m, v, step, lr: ops.optim.adamw_(p, g, m, v, step, lr=lr, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    ),
    "sgd": (
        lambda p, g, m, v, step, lr: ops.optim.sgd_(
            p, g, m, step, lr=lr, momentum=0.9, dampening=0.2, weight_decay=0.1
        ),
        lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.2, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_step_is_that_of_pytorch(library, name):
    change, make = OPTIMIZERS[name]
    calls = []

    @ts.jit
    def step(p, m, v, x, number, rate):
        calls.append(name)
        value, slope = ts.value_and_grad(loss)(p, x)
        norm = ops.optim.clip_grad_norm_(slope, 1.0)
        change(p, slope, m, v, number, rate)
        return value, norm, np.sum(p["a"])

    of = (lambda one: one) if library == "numpy" else torch.tensor
    p, x = weights(), RNG.standard_normal((4, 5))
    theirs = [torch.tensor(one, requires_grad=True) for one in leaves(p)]
    optimizer = make(theirs)
    p = mapped(of, p)
    m, v = (mapped(lambda one: one * (np.nan if name == "sgd" else 0), p) for _ in range(2))
    held = leaves(p)
    for number in range(1, 5):
        rate = 0.02 * number
        value, norm, total = step(p, m, v, of(x), float(number), rate)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        wanted = torch_loss(theirs, torch.tensor(x))
        wanted.backward()
        wanted_norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        optimizer.step()
        assert abs(float(value) - wanted.item()) < 1e-11
        assert abs(float(norm[0]) - wanted_norm.item()) < 1e-11
        assert abs(float(total) - theirs[0].sum().item()) < 1e-11
        for one, other in zip(held, theirs, strict=True):
            assert np.abs(np.asarray(one) - other.detach().numpy()).max() < 1e-13
    assert len(calls) == 1


def test_lion_and_a_rate_that_is_an_array():
    @ts.jit
    def step(p, g, m, state):
        ops.optim.lion_([p], [g], [m], state["step"], lr=state["rate"] * 0.5, grad_scale=state["scale"])
        return state["step"] + 1

    p, g, m = (RNG.standard_normal((3, 65)) for _ in range(3))
    state = {"step": np.array(1), "rate": np.array(0.2), "scale": np.array([4.0])}
    wanted, mean = ops.optim.lion_.reference(p, g / 4, m, lr=0.1)
    assert step(p, g, m, state) == 2
    assert np.abs(p - wanted).max() < 1e-14
    assert np.abs(m - mean).max() < 1e-14


def decayed(p):
    """Change an array by a step without a gradient."""
    ops.optim.sgd_([p], [p * 0.0], lr=1.0, weight_decay=0.5)


def test_what_was_computed_before_keeps_its_numbers_and_views_do_not():
    x = np.arange(12.0).reshape(3, 4)

    @ts.jit
    def twice(x, y):
        view, part, before = x.T, x[1:], x.T * 1
        decayed(x)
        once = np.sum(x)
        late = part + y
        decayed(x)
        return view, before, once, late, x

    given, y = x.copy(), np.ones(4)
    view, before, once, late, after = twice(given, y)
    assert np.array_equal(before, x.T)
    assert once == x.sum() / 2
    assert np.array_equal(late, x[1:] / 2 + 1)
    assert after is given
    assert np.array_equal(given, x / 4)
    assert np.array_equal(view, x.T / 4)


def test_intermediate_arrays_are_not_the_arguments():
    x = np.arange(6.0)

    @ts.jit
    def own(x):
        y, z = x * 1.0, np.copy(x)
        decayed(y)
        again = y + z
        decayed(z)
        return y, z, again

    y, z, again = own(x)
    assert np.array_equal(x, np.arange(6.0))
    assert np.array_equal(y, x / 2)
    assert np.array_equal(z, x / 2)
    assert np.array_equal(again, 1.5 * x)


AROUND = np.ones(4)


def within(x):
    decayed(x)
    return np.sum(x)


REFUSED = {
    "written-argument: a part": (lambda x: decayed(x[1:]), "changes a part"),
    "written-argument: around": (lambda x: ops.optim.sgd_([AROUND], [x]), "the program around"),
    "not-in-graphs: differentiated": (ts.grad(within), "what is differentiated"),
    "not-in-graphs: random": (
        lambda x: ops.optim.sgd_([x], [x], lr=1.0, stochastic_rounding=True),
        "rounds at random",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    function, words = REFUSED[name]
    with pytest.raises(ts.TesseraError, match=words) as caught:
        ts.jit(function)(np.ones(4))
    assert caught.value.code == name.partition(":")[0]
    assert np.array_equal(AROUND, np.ones(4))


def test_arguments_that_share_memory_or_may_not_be_written():
    @ts.jit
    def step(x, y):
        decayed(x)
        return x + y

    x = np.ones(8)
    step(x[:4], x[4:])
    for y in (x[:4], x[2:6], x[::2]):
        with pytest.raises(ts.CallError, match="share memory"):
            step(x[:4], y)
    with pytest.raises(ts.CallError, match="read-only"):
        step(np.broadcast_to(np.ones(1), 4), x[4:])
    assert np.array_equal(x, [0.5] * 4 + [1] * 4)


@ts.kernel
def doubled(x: ts.Tensor["n", ts.f64]):
    i = ts.tile.linear_id()
    if i < n:
        x[i] = x[i] * 2.0


def test_a_kernel_does_not_write_an_argument_that_an_optimizer_has_changed():
    with pytest.raises(ts.CallError, match="an argument of the traced function"):
        ts.jit(lambda x: (decayed(x), doubled(x)))(np.ones(4))


def test_gradients_lie_in_any_order():
    @ts.jit
    def step(p, x):
        _, slope = ts.value_and_grad(lambda p, x: np.sum(np.sum(p.transpose(2, 0, 1) @ x, axis=0) ** 2))(p, x)
        ops.optim.sgd_([p], [slope], lr=0.1)

    p, x = RNG.standard_normal((3, 4, 5)), RNG.standard_normal((4, 2))
    theirs = torch.tensor(p, requires_grad=True)
    ((theirs.permute(2, 0, 1) @ torch.tensor(x)).sum(0) ** 2).sum().backward()
    wanted = p - 0.1 * theirs.grad.numpy()
    step(p, x)
    assert np.abs(p - wanted).max() < 1e-12


def test_trees_have_one_form():
    with pytest.raises(ts.CallError, match="nested otherwise"):
        ops.optim.sgd_({"a": np.ones(3)}, {"b": np.ones(3)})
    p = {"a": np.ones(3), "b": np.zeros(2)}
    ops.optim.sgd_(p, {"b": np.ones(2), "a": np.zeros(3)}, lr=1.0)
    assert np.array_equal(p["a"], np.ones(3))
    assert np.array_equal(p["b"], -np.ones(2))


def test_what_reads_an_argument_reads_it_before_it_is_written():
    @ts.jit
    def step(x, g):
        root = np.sqrt(x)
        ops.optim.sgd_([x], [g], lr=1.0)
        return root + x, root

    x, g = np.arange(1.0, 5.0), np.full(4, 0.5)
    for _ in range(3):
        old = x.copy()
        total, root = step(x, g)
        np.testing.assert_allclose(x, old - 0.5)
        np.testing.assert_allclose(root, np.sqrt(old))
        np.testing.assert_allclose(total, np.sqrt(old) + x)
        x += 1.0


def across(x):
    one, other = x[::2], x[1:]
    one += 1
    other *= 2
    return x * 1


def in_turn(x):
    one = x[::2]
    one += 1
    one *= 3
    x[1] = 5
    x[2:][0] += 7
    part = x[1:][::2]
    part += 1
    x += 1
    return x * 1


def by_siblings(x):
    one, other, turned = x[1:], x[:4], x[::-1]
    one *= 2
    other += turned[1:5]
    x[2] = other[1]
    return turned[:2] + one[:2]


def by_rows(x):
    y = np.copy(x).reshape(2, 3)
    flat, last = y.ravel(), y[-1]
    for row in y:
        row += row[0]
    flat[::2] = 0
    y.T[1] *= 3
    return flat, last, y


def by_wholes_without_a_name(x):
    one, other = (x * 2)[1:], np.copy(x)[None].T
    one += 1
    other[0] = 7
    wide = np.broadcast_to(one, (2, 5))
    one *= 2
    return one, other, wide.sum(axis=0)


VIEWS = [across, in_turn, by_siblings, by_rows, by_wholes_without_a_name]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("function", VIEWS)
def test_views_see_what_has_changed(function, dtype):
    x, y = np.arange(6).astype(dtype), np.arange(6).astype(dtype)
    wanted, found = function(x), ts.jit(function)(y)
    np.testing.assert_array_equal(x, y)
    for one, other in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, wanted)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_may_be_a_view_of_what_has_changed_is_refused():
    def flat_of_argument(x):
        flat = x.reshape(-1)
        x += 1
        return flat * 2

    with pytest.raises(CallError) as caught:
        ts.jit(flat_of_argument)(np.ones((2, 3)))
    assert caught.value.code == "written-argument"


def exchange(x, y):
    x[...], y[...] = y * 1, x * 1


def hand_on(x, y):
    y[...] = x
    x += 1


def turn(x, y):
    x[...] = x.T
    y[...] = x[::-1].T


def move_on(x, y):
    x[1:] = x[:-1] * 2
    y[:-1] = y[1:]


def read_beside(x, y):
    y[1:] = 3
    y *= x[0]
    x *= 2
    return y * 1


@pytest.mark.parametrize("function", [exchange, hand_on, turn, move_on, read_beside])
def test_arguments_are_written_when_all_is_read(function):
    rng = np.random.default_rng(0)
    given = rng.standard_normal((2, 5, 5))
    wanted, found = [*given.copy()], [*given.copy()]
    results = function(*wanted), ts.jit(function)(*found)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(*results)
