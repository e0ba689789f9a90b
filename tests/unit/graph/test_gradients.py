"""Gradients: finite differences in float64, both modes beside each other, derivatives of derivatives."""

import numpy as np
import pytest
import torch

import tessera as ts

RNG = np.random.default_rng(6)


def softmax_loss(x, w):
    scores = x @ w
    scores = scores - np.max(scores, axis=1, keepdims=True)
    return -np.mean(scores[:, 0] - np.log(np.sum(np.exp(scores), axis=1)))


def norm(x, w):
    apart = x - np.mean(x, axis=1, keepdims=True)
    return np.sum(apart / np.sqrt(np.mean(apart * apart, axis=1, keepdims=True) + 0.1) * w[:, 0] ** 3)


def views(x, w):
    y = np.concatenate([x[:, ::2], x[:, 1:3] * 2.0], axis=1).T
    return np.sum(np.sin(y.reshape(-1, 1) * w[0, 0]) * np.broadcast_to(np.cos(w[1:2, :1]), (y.size, 1)))


def branches(x, w):
    return np.sum(np.where(x > 0.1, np.exp(x), np.minimum(x, np.abs(w[0, 0])))) / np.max(np.abs(w)) + np.min(x * x)


def functions(x, w):
    positive = np.abs(x) + 0.5
    found = np.log(positive) + np.sqrt(positive) + np.tanh(x) * np.arctan(x) + np.log1p(positive) + np.expm1(x)
    return np.sum(found * np.cbrt(positive) / np.hypot(x, positive) + positive**1.5) + np.mean(np.copysign(x, w[0, 0]))


FUNCTIONS = (softmax_loss, norm, views, branches, functions)


def arguments():
    return RNG.standard_normal((5, 6)), RNG.standard_normal((6, 4))


def differences(function, given, number):
    found = np.zeros_like(given[number])
    for at in np.ndindex(found.shape):
        sides = []
        for step in (1e-6, -1e-6):
            moved = [one.copy() for one in given]
            moved[number][at] += step
            sides.append(function(*moved))
        found[at] = (sides[0] - sides[1]) / 2e-6
    return found


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_finite_differences(function):
    given = arguments()
    value, found = ts.value_and_grad(function, argnums=(0, 1))(*given)
    assert abs(value - function(*given)) < 1e-12 * (1 + abs(value))
    for number in (0, 1):
        wanted = differences(function, given, number)
        assert np.abs(found[number] - wanted).max() < 1e-6 * (1 + np.abs(wanted).max())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_both_modes_agree(function):
    given, along = arguments(), arguments()
    _, forward = ts.jvp(function, given, along)
    _, pull = ts.vjp(function, *given)
    back = pull(np.ones(()))
    inner = sum(np.sum(one * other) for one, other in zip(back, along, strict=True))
    assert abs(forward - inner) < 1e-12 * (1 + abs(forward)) * 10


@pytest.mark.parametrize("function", FUNCTIONS)
def test_products_with_hessians(function):
    given, along = arguments(), arguments()

    def gradient(*args):
        return ts.grad(function, argnums=(0, 1))(*args)

    _, forward = ts.jvp(gradient, given, along)
    step = 1e-5
    sides = [
        gradient(*(one + sign * step * other for one, other in zip(given, along, strict=True))) for sign in (1, -1)
    ]
    for number in (0, 1):
        wanted = (sides[0][number] - sides[1][number]) / (2 * step)
        assert np.abs(forward[number] - wanted).max() < 1e-4 * (1 + np.abs(wanted).max())


TRANSPOSED = [
    lambda x: np.sum(np.cumsum(x * x, axis=0) ** 2),
    lambda x: np.sum(np.cumsum(np.sin(x), axis=1) * x),
    lambda x: np.sum(np.sort(x, axis=1) ** 3 * np.arange(5)),
    lambda x: np.sum(ts.ops.topk(x, 2, 0).values ** 3),
    lambda x: np.sum(ts.ops.cummax(x, 1).values ** 3),
    lambda x: np.sum(np.take(np.cumsum(x, axis=0), np.array([0, 0, 2]), axis=1) ** 3),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("function", TRANSPOSED)
def test_gradients_of_gradients_of_sums_and_orders(function, dtype):
    x, along = (RNG.standard_normal((4, 5)).astype(dtype) for _ in range(2))
    gradient = ts.grad(function)
    found = ts.jit(ts.grad(lambda x, along: np.sum(gradient(x) * along)))(x, along)
    assert found.dtype == dtype
    step, wide = 1e-5, (x.astype(np.float64), along.astype(np.float64))
    sides = [gradient(wide[0] + sign * step * wide[1]) for sign in (1, -1)]
    wanted = (sides[0] - sides[1]) / (2 * step)
    assert np.abs(found - wanted).max() < (1e-6 if dtype == np.float64 else 1e-4) * (1 + np.abs(wanted).max())


def test_a_closure_is_no_argument():
    def outer(x):
        return np.sum(ts.grad(lambda y: np.sum(x * y))(x))  # the gradient by y is x, whatever y is

    x = RNG.standard_normal(5)
    assert abs(ts.jit(outer)(x) - x.sum()) < 1e-12
    assert np.abs(ts.grad(outer)(x) - 1.0).max() < 1e-12


def test_trees_and_aux():
    def loss(p, x):
        y = x @ p["w"] + p["b"]
        return np.mean(y * y), {"y": y}

    p, x = {"w": RNG.standard_normal((4, 3)), "b": RNG.standard_normal(3)}, RNG.standard_normal((7, 4))
    (value, aux), found = ts.value_and_grad(loss, has_aux=True)(p, x)
    y = x @ p["w"] + p["b"]
    assert abs(value - np.mean(y * y)) < 1e-12
    assert np.abs(aux["y"] - y).max() < 1e-12
    assert np.abs(found["w"] - x.T @ y * 2 / y.size).max() < 1e-12
    assert np.abs(found["b"] - y.sum(axis=0) * 2 / y.size).max() < 1e-12


def test_equal_extremes_share():
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    found = ts.grad(lambda x: np.sum(np.max(x, axis=1)))(x)
    assert np.abs(found - np.array([[0, 0.5, 0.5], [1 / 3] * 3])).max() < 1e-12


def test_what_has_no_influence():
    x, y = RNG.standard_normal(4), RNG.standard_normal(4)
    assert not ts.grad(lambda x, y: np.sum(y))(x, y).any()
    assert np.array_equal(ts.grad(lambda x: np.sum(ts.stop_gradient(x) * x))(x), x)
    assert not ts.grad(lambda x: np.sum((x > 0).astype(np.float64)))(x).any()
    assert ts.stop_gradient(x) is x


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: x * 2, "not-a-number"),
        (lambda x: np.sum(x > 0), "not-a-number"),
        (lambda x: np.sum(ts.op.histogram(x, 5, 0.0, 1.0)), "no-adjoint"),
    ],
)
def test_mistakes(function, code):
    with pytest.raises(ts.TesseraError) as caught:
        ts.grad(function)(RNG.standard_normal((3, 3)))
    assert caught.value.code == code
    assert "test_gradients.py" in str(caught.value)


def test_training_descends():
    x, y = RNG.standard_normal((64, 5)), RNG.standard_normal((64, 1))

    @ts.jit
    def step(p, x, y):
        loss, found = ts.value_and_grad(lambda p: np.mean((np.tanh(x @ p["a"]) @ p["b"] - y) ** 2))(p)
        return loss, {name: p[name] - 0.1 * found[name] for name in p}

    p = {"a": RNG.standard_normal((5, 16)) * 0.3, "b": RNG.standard_normal((16, 1)) * 0.3}
    losses = []
    for _ in range(300):
        loss, p = step(p, x, y)
        losses.append(float(loss))
    assert losses[-1] < 0.8 * losses[0]


LAYERS = {
    "a layer": (lambda x, w: np.tanh(x) @ w, (3, 5, 4), (4, 6)),
    "two batches": (lambda x, w: x @ w, (2, 3, 5, 4), (4, 6)),
    "turned weights": (lambda x, w: x @ w.T, (3, 5, 4), (6, 4)),
    "turned input": (lambda x, w: np.swapaxes(x, 1, 2) @ w, (3, 4, 5), (4, 6)),
    "a part": (lambda x, w: x[1:, :, ::2] @ w, (3, 5, 8), (4, 6)),
    "weights first": (lambda x, w: w @ x, (3, 4, 5), (6, 4)),
    "a vector": (lambda x, w: x @ w, (3, 5, 4), (4,)),
    "a batch of one": (lambda x, w: x @ w, (1, 5, 4), (3, 4, 6)),
    "a batch of weights": (lambda x, w: x @ w, (3, 5, 4), (3, 4, 6)),
    "one row": (lambda x, w: x @ w, (3, 1, 4), (4, 1)),
    "none": (lambda x, w: x @ w, (0, 5, 4), (4, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_products_of_batches_are_those_of_pytorch(name):
    function, *shapes = LAYERS[name]
    x, w = (RNG.standard_normal(shape) for shape in shapes)
    value = function(x, w)
    weight = RNG.standard_normal(value.shape)
    by = [torch.tensor(one, requires_grad=True) for one in (x, w)]
    torch_function = {"a layer": lambda x, w: torch.tanh(x) @ w, "turned input": lambda x, w: x.transpose(1, 2) @ w}
    (torch_function.get(name, function)(*by) * torch.tensor(weight)).sum().backward()
    (_, found), slopes = ts.value_and_grad(
        lambda x, w, c: (np.sum(function(x, w) * c), function(x, w)), argnums=(0, 1), has_aux=True
    )(x, w, weight)
    assert np.abs(found - value).max(initial=0) < 1e-13
    for slope, one in zip(slopes, by, strict=True):
        assert np.abs(slope - one.grad.numpy()).max(initial=0) < 1e-13
