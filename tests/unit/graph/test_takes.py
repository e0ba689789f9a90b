"""Elements at computed places in `ts.jit`: NumPy says what they are."""

import ml_dtypes
import numpy as np
import pytest

import tessera as ts

RNG = np.random.default_rng(7)


def places(x, i, j, t):
    y = np.tanh(x)
    rows = x[:, i], y[:, i], x[2:, i], x[:, i, 1], x[:, i, j], y[0, i], x[i % 6, :, j], x[[1, -2]], y[..., j]
    taken = np.take(x, i, 1), np.take(y, i), np.take(x.T, np.arange(3)[:, None] + np.arange(2), 0)
    along = np.take_along_axis(y, t, 1), np.sum(np.take_along_axis(x, t * 0 - 1, 1), axis=-1)
    return *rows, *taken, *along, y.reshape(6, 45)[:, i], np.take(np.sum(x, axis=1), j, 1), (x * 2)[:, i][j]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_places_are_those_of_numpy(dtype):
    x = (RNG.standard_normal((6, 9, 5)) * 4).astype(dtype)
    i, j, t = RNG.integers(-9, 9, (4, 3)), RNG.integers(-5, 5, (4, 3)), RNG.integers(-9, 9, (6, 1, 5)).astype(np.int32)
    for got, wanted in zip(ts.jit(places)(x, i, j, t), places(x, i, j, t), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-12 if dtype is np.float64 else 1e-5, atol=1e-6)


def test_another_size_needs_no_tracing():
    count = 0

    def function(x, i):
        nonlocal count
        count += 1
        return np.exp(x)[i] + x[i]

    traced = ts.jit(function)
    for rows, taken in ((5, 7), (8, 3), (40, 90)):
        x, i = RNG.standard_normal((rows, 6)), RNG.integers(-rows, rows, taken)
        np.testing.assert_allclose(traced(x, i), np.exp(x)[i] + x[i], rtol=1e-12)
    assert count == 1


def entropy(x, t):
    apart = x - np.max(x, axis=1, keepdims=True)
    logs = apart - np.log(np.sum(np.exp(apart), axis=1, keepdims=True))
    return -np.take_along_axis(logs, t[:, None], 1)[:, 0]


def test_an_element_of_each_row_joins_the_row():
    x, t = RNG.standard_normal((5, 33)), RNG.integers(-33, 33, 5)
    traced = ts.jit(entropy)
    np.testing.assert_allclose(traced(x, t), entropy(x, t), rtol=1e-12)
    assert traced.graph().count("tessera_graph.group") == 1


def test_gradients():
    x, t, along = RNG.standard_normal((5, 33)), RNG.integers(-33, 33, 5), RNG.standard_normal((5, 33))
    slope = ts.jit(ts.grad(lambda x, t: np.sum(entropy(x, t))))(x, t)
    powers = np.exp(x) / np.sum(np.exp(x), axis=1, keepdims=True)
    powers[np.arange(5), t] -= 1
    np.testing.assert_allclose(slope, powers, atol=1e-12)
    assert np.allclose(ts.jvp(lambda x: x[:, t] * 2, (x,), (along,))[1], along[:, t] * 2)


PLACES, LAST, EACH = RNG.integers(-9, 9, (4, 3)), RNG.integers(-5, 5, (4, 3)), RNG.integers(-9, 9, (6, 2, 5))
ROWS = RNG.integers(-6, 6, 40)
TAKEN = {
    "rows": lambda x: x[ROWS],
    "middle": lambda x: x[2:, PLACES],
    "beside a number": lambda x: x[:, PLACES, 1],
    "two, apart": lambda x: x[PLACES % 6, :, LAST],
    "two, last": lambda x: x[:, PLACES, LAST],
    "three": lambda x: x[PLACES % 6, PLACES, LAST],
    "a list": lambda x: x[[1, -2, 1]],
    "flat": lambda x: np.take(x, PLACES),
    "along": lambda x: np.take_along_axis(x, EACH, 1),
    "a diagonal": lambda x: np.take(np.take(x, np.arange(5), 0), np.arange(5), 2)[:, 0],
}


@pytest.mark.parametrize("name", TAKEN)
def test_gradients_of_what_is_taken_several_times_are_sums(name):
    function, x = TAKEN[name], RNG.standard_normal((6, 9, 5))
    weight = RNG.standard_normal(function(x).shape)
    numbers = function(np.arange(x.size).reshape(x.shape))  # which element of x each one is
    wanted = np.bincount(numbers.ravel(), weight.ravel(), x.size).reshape(x.shape)
    slope = ts.jit(ts.grad(lambda x, w: np.sum(function(np.tanh(x)) * w)))(x, weight)
    np.testing.assert_allclose(slope, wanted * (1 - np.tanh(x) ** 2), atol=1e-12)


def test_sums_of_gradients_have_derivatives():
    x, along = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 4))
    slope = ts.grad(lambda x: np.sum(x[ROWS] ** 3))
    often = np.bincount(ROWS % 6, minlength=6)[:, None]
    assert np.allclose(ts.grad(lambda x: np.sum(slope(x) * along))(x), often * 6 * x * along)
    assert np.allclose(ts.jvp(slope, (x,), (along,))[1], often * 6 * x * along)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_16_bits_are_rounded_once(dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, weight = RNG.standard_normal((3, 5)).astype(kind), RNG.standard_normal((400, 5)).astype(kind)
    places = RNG.integers(0, 3, 400)
    slope = ts.grad(lambda x, w: np.sum(x[places] * w))(x, weight)
    wanted = np.stack([weight[places == row].astype(np.float64).sum(0) for row in range(3)])
    assert np.abs(slope.astype(np.float64) - wanted).max() < np.abs(wanted).max() * 2.0 ** (
        -11 if dtype == "float16" else -8
    )


def test_what_lies_outside_gets_nothing():
    x, places = RNG.standard_normal((4, 3)), np.array([-5, 1, 4, 1 << 40, 1, -1])
    assert np.array_equal(ts.grad(lambda x: np.sum(x[places]))(x)[:, 0], [0, 2, 0, 1])
    assert not ts.grad(lambda x: np.sum(x[np.zeros((0, 2), int)]))(x).any()


def test_what_lies_outside_reads_nothing_else():
    x = RNG.standard_normal((4, 8))
    got = ts.jit(lambda x, i: np.take(x, i, 1))(x, np.array([-9, 3, 8, 1 << 40]))
    assert np.array_equal(got[:, 1], x[:, 3])
    assert not got[:, [0, 2, 3]].any()
