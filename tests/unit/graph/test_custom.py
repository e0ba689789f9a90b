"""Derivatives that a program states, linear functions, and what is computed again for a gradient."""

import tracemalloc

import numpy as np
import pytest

import tessera as ts
from tests.unit.graph.differences import assert_gradients, differences

RNG = np.random.default_rng(10)
X, Y = RNG.standard_normal((2, 6))


@ts.custom_vjp
def softplus(x):
    return np.log(1 + np.exp(x))


softplus.defvjp(lambda x: (np.log(1 + np.exp(x)), x), lambda x, back: (back / (1 + np.exp(-x)),))


def test_a_stated_gradient_is_taken():
    assert np.abs(ts.jit(softplus)(X) - np.log1p(np.exp(X))).max() < 1e-15
    assert np.abs(softplus(X) - np.log1p(np.exp(X))).max() < 1e-15
    given = [X]
    assert_gradients([ts.grad(lambda x: np.sum(softplus(x) ** 2))(X)], lambda x: np.sum(softplus(x) ** 2), given, [0])
    second = ts.grad(lambda x: np.sum(ts.grad(lambda x: np.sum(softplus(x)))(x)))(X)
    assert_gradients([second], lambda x: np.sum(1 / (1 + np.exp(-x))), given, [0])


def test_rounding_with_the_gradient_of_the_identity():
    rounded = ts.custom_vjp(lambda x: np.rint(x))
    rounded.defvjp(lambda x: (np.rint(x), None), lambda _, back: (back,))
    found = ts.grad(lambda x: np.sum(rounded(x * 3.0) * x))(X)
    assert np.abs(found - (np.rint(X * 3) + 3 * X)).max() < 1e-12


def test_options_and_trees():
    def power(p, exponent, x):
        return {"y": x**exponent * p["a"]}, p["b"]

    f = ts.custom_vjp(power, nondiff_argnums=(1,))

    def bwd(exponent, kept, back):
        (p, x), (found, other) = kept, back
        of_p = {"a": np.sum(found["y"] * x**exponent), "b": other}
        return of_p, found["y"] * p["a"] * exponent * x ** (exponent - 1)

    f.defvjp(lambda p, exponent, x: (power(p, exponent, x), (p, x)), bwd)

    def loss(p, x):
        y, b = f(p, exponent=3, x=x)
        return np.sum(y["y"] * b)

    p = {"a": np.array(2.0), "b": np.array(0.5)}
    found = ts.grad(loss, argnums=(0, 1))(p, X)
    assert abs(found[0]["a"] - np.sum(X**3) * 0.5) < 1e-12
    assert abs(found[0]["b"] - np.sum(X**3) * 2.0) < 1e-12
    assert np.abs(found[1] - 3 * X**2).max() < 1e-12


def test_fwd_may_call_its_function():
    @ts.custom_vjp
    def root(x):
        return np.sqrt(x)

    def fwd(x):
        y = root(x)
        return y, y

    root.defvjp(fwd, lambda y, back: (np.where(y > 0, back / (2 * np.where(y > 0, y, 1.0)), 0.0),))
    x = np.array([0.0, 0.25, 4.0])
    found = ts.grad(lambda x: np.sum(root(x) * 3))(x)
    assert np.abs(found - [0, 3, 0.75]).max() < 1e-12
    twice = ts.grad(lambda x: np.sum(ts.grad(lambda x: np.sum(root(x)))(x)))(x)
    assert np.abs(twice - [0, -2, -1 / 32]).max() < 1e-12


def test_none_comes_back_as_zeros():
    f = ts.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, y), lambda y, back: (back * y, None))
    found = ts.grad(lambda x, y: np.sum(f(x, y)), argnums=(0, 1))(X, Y)
    assert np.array_equal(found[0], Y)
    assert not found[1].any()


@ts.custom_jvp
def wave(x, y):
    return {"a": x * y, "b": np.sin(x)}


@wave.defjvp
def _(primals, directions):
    (x, y), (a, b) = primals, directions
    return wave(x, y), {"a": a * y + x * b, "b": np.cos(x) * a}


def waves(x, y):
    found = wave(x, y)
    return np.sum(found["a"] * np.exp(found["b"]))


def plain_waves(x, y):
    return np.sum(x * y * np.exp(np.sin(x)))


def test_a_stated_derivative_serves_both_modes():
    assert_gradients(ts.grad(waves, argnums=(0, 1))(X, Y), plain_waves, [X, Y], [0, 1])
    step = 1e-6
    _, forward = ts.jvp(waves, (X, Y), (Y, X))
    wanted = (plain_waves(X + step * Y, Y + step * X) - plain_waves(X - step * Y, Y - step * X)) / (2 * step)
    assert abs(forward - wanted) < 1e-7 * (1 + abs(wanted))
    second = ts.grad(lambda x: np.sum(ts.grad(waves)(x, Y)))(X)
    assert_gradients([second], lambda x: np.sum(ts.grad(plain_waves)(x, Y)), [X], [0])


def test_linearize():
    value, along = ts.linearize(lambda x, p: np.sin(x) * p["w"], X, {"w": Y})
    assert np.abs(value - np.sin(X) * Y).max() < 1e-15
    for one, other in ((Y, X), (X, Y)):
        found = along(one, {"w": other})
        assert np.abs(found - (np.cos(X) * Y * one + np.sin(X) * other)).max() < 1e-14

    def inside(x):
        value, along = ts.linearize(np.sin, x)
        return value + along(x)

    assert np.abs(ts.jit(inside)(X) - np.sin(X) - np.cos(X) * X).max() < 1e-14


def layers(again):
    def loss(x, w):
        def block(h):
            for _ in range(2):
                h = np.tanh(ts.op.cumsum(h, 1) * w)
            return h

        each = ts.checkpoint(block) if again else block
        for _ in range(2):
            x = each(x)
        return np.sum(x * x)

    return ts.jit(ts.grad(loss, argnums=(0, 1)))


def test_checkpoint_computes_again_in_less_memory():
    x, w = RNG.standard_normal((256, 96)), RNG.standard_normal(96)
    peaks, found, calls = [], [], []
    for again in (False, True):
        gradient = layers(again)
        found.append(gradient(x, w))
        tracemalloc.start()
        gradient(x, w)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        calls.append(gradient.graph().count('"cumsum"'))
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() < 1e-12 * np.abs(one).max()
    assert calls == [4, 8]
    assert peaks[1] < 0.85 * peaks[0], peaks


@pytest.mark.parametrize("function", [lambda x: np.sin(np.exp(x)), lambda x: np.sin(np.exp(x)) * Y])
def test_derivatives_of_a_checkpoint(function):
    again = ts.checkpoint(function)
    assert_gradients([ts.grad(lambda x: np.sum(again(x)))(X)], lambda x: np.sum(function(x)), [X], [0])
    for one, other in zip(ts.jvp(again, (X,), (Y,)), ts.jvp(function, (X,), (Y,)), strict=True):
        assert np.abs(one - other).max() < 1e-13

    def twice(f):
        return ts.grad(lambda x: np.sum(ts.grad(lambda x: np.sum(f(x)))(x)))(X)

    assert np.abs(twice(again) - twice(function)).max() < 1e-12
    assert np.array_equal(again(X), function(X))


def test_a_checkpoint_takes_what_is_around_it():
    def loss(x, w):
        return np.sum(ts.checkpoint(lambda h: np.tanh(h * w) * w)(x))

    assert_gradients(ts.grad(loss, argnums=(0, 1))(X, Y), lambda x, w: np.sum(np.tanh(x * w) * w), [X, Y], [0, 1])


def test_a_step_as_it_is_written_first():
    @ts.jit
    @ts.autodiff(argnums=2)
    def train_step(x, y, w):
        return ts.mse(ts.gemm(x, w), y)

    x, y, w = RNG.standard_normal((5, 4)), RNG.standard_normal((5, 3)), RNG.standard_normal((4, 3))
    found = ts.grad(train_step)(x, y, w)
    assert np.abs(found - x.T @ (x @ w - y) * 2 / 15).max() < 1e-14
    assert ts.grad(train_step, argnums=0)(x, y, w).shape == x.shape
    bare = ts.jit(ts.autodiff(lambda x, y, w: ts.mse(ts.gemm(x, w), y)))
    assert np.array_equal(ts.grad(bare)(x, y, w), found)
    assert np.array_equal(ts.jit(ts.grad(bare))(x, y, w), found)
    assert bare(x, y, w) == train_step(x, y, w)
    assert ts.grad(ts.autodiff(lambda x: np.sum(x * x)))(X).shape == X.shape


def stated(bwd):
    f = ts.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, (x, y)), bwd)
    return lambda x: ts.grad(lambda x: np.sum(f(x, x)))(x)


def closed_over(x):
    def loss(x):
        f = ts.custom_vjp(lambda y: y * x)
        f.defvjp(lambda y: (y * x, None), lambda _, back: (back,))
        return np.sum(f(x * 2.0))

    return ts.grad(loss)(x)


def without_kept(x):
    f = ts.custom_vjp(lambda x: x)
    f.defvjp(lambda x: x, lambda _, back: (back,))
    return ts.grad(lambda x: np.sum(f(x)))(x)


WRONG = {
    "bad-gradient, count": stated(lambda kept, back: (back,)),
    "bad-gradient, shape": stated(lambda kept, back: (back, back[1:])),
    "bad-gradient, tree": stated(lambda kept, back: (back, {"y": back})),
    "bad-gradient, kept": without_kept,
    "closed-over": closed_over,
    "no-adjoint": lambda x: ts.jvp(softplus, (x,), (x,))[1],
    "no-rule": lambda x: ts.custom_vjp(lambda x: x)(x),
    "no-rule, forwards": lambda x: ts.custom_jvp(lambda x: x)(x),
    "argument-count": lambda x: ts.grad(lambda x: np.sum(undefined(x)))(x),
    "not-a-function": lambda x: ts.custom_vjp(x),
    "not-a-function, checkpoint": lambda x: ts.checkpoint(1.0),
}
undefined = ts.custom_vjp(lambda x: x, nondiff_argnums=(4,))
undefined.defvjp(lambda x: (x, None), lambda _, back: (back,))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_name_the_line(name):
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(WRONG[name])(X)
    assert caught.value.code == name.partition(",")[0]
    assert caught.value.location.frame.file == __file__


def recomputed(x, take):
    """Take a derivative at the end of what reads an array that changes meanwhile."""
    y = np.copy(x)
    part = y[1:]
    y *= 2
    found = take(lambda z: np.sin(z) * np.sum(part), x)
    y += 1
    return found() + np.sum(part**2)


def at_once(f, x):
    made = np.sum(f(x))
    return lambda: made


def by_checkpoint(f, x):
    made = np.sum(ts.checkpoint(f)(x))
    return lambda: made


def by_pull(f, x):
    z = np.copy(x)
    value, pull = ts.vjp(f, z)
    z *= 5
    return lambda: np.sum(value) + np.sum(pull(np.ones_like(x))[0]) * 0


def by_directions(f, x):
    z, along = np.copy(x), np.ones_like(x)
    value, push = ts.linearize(f, z)
    z *= 5
    return lambda: np.sum(value) + np.sum(push(along)) * 0


@pytest.mark.parametrize("take", [by_checkpoint, by_pull, by_directions])
def test_what_is_computed_later_reads_arrays_as_they_were(take):
    x = X.ravel()[:5].copy()
    found = ts.grad(lambda x: recomputed(x, take))(x)
    wanted = differences(lambda x: recomputed(x, at_once), (x,), 0)
    assert np.abs(found - wanted).max() < 1e-6 * (1 + np.abs(wanted).max())


def test_derivatives_taken_later_are_of_the_arrays_of_then():
    def both(x, w):
        z = np.copy(w)
        _, pull = ts.vjp(lambda x: x * x * z, x)
        _, push = ts.linearize(lambda x: x * x * z, x)
        z += 100
        return pull(np.ones_like(x))[0], push(np.ones_like(x))

    x, w = X.ravel()[:5].copy(), Y.ravel()[:5].copy()
    for one in ts.jit(both)(x, w):
        assert np.abs(one - 2 * x * w).max() < 1e-12
    kept = x.copy()
    _, pull = ts.vjp(lambda x: x * x, x)
    _, push = ts.linearize(lambda x: x * x, x)
    x += 100
    assert np.abs(pull(np.ones(5))[0] - 2 * kept).max() < 1e-12
    assert np.abs(push(np.ones(5)) - 2 * kept).max() < 1e-12
