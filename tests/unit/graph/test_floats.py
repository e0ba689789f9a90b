"""Floats among the arguments, and methods: what differs from call to call without tracing."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import tessera as ts

RNG = np.random.default_rng(11)
X = RNG.standard_normal((4, 5))


def counted(function):
    calls = []

    @ts.jit
    def traced(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    return traced, calls


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_floats_take_the_dtype_of_arrays(dtype):
    step, calls = counted(lambda x, g, lr: x - lr * g * (1 - lr / 2))
    x, g = (X * 4).astype(dtype), (X[::-1] * 4).astype(dtype)
    for lr in (0.1, 0.25, -3.0):
        found = step(x, g, lr)
        assert found.dtype == (np.float32 if dtype is np.int32 else dtype)
        exact = x.astype(float) - lr * g.astype(float) * (1 - lr / 2)
        bits = {2: 8e-3 if dtype is ml_dtypes.bfloat16 else 1e-3, 4: 1e-6, 8: 1e-14}[found.dtype.itemsize]
        assert np.abs(found.astype(float) - exact).max() < 4 * bits * (1 + np.abs(exact).max())
    assert len(calls) == 1


def test_functions_of_floats():
    f, calls = counted(lambda x, a: x * np.exp(-abs(a)) + np.where(x > a, a, 2.0 * x) + a**2 + 2**a + np.maximum(x, a))
    for a in (0.5, 1.5, 0.7):
        wanted = X * np.exp(-a) + np.where(X > a, a, 2 * X) + a**2 + 2**a + np.maximum(X, a)
        assert np.abs(f(X, a) - wanted).max() < 1e-14
    assert len(calls) == 1
    assert f(X, a=0.5).dtype == np.float64


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: x if a > 0.5 else -x,
        lambda x, a: x * math.sqrt(a),
        lambda x, a: ts.op.softmax(x, scale=a),
        lambda x, a: x * round(a, 1),
        lambda x, a: x if a else -x,
        lambda x, a: x * {0.25: 1.0}.get(a, 2.0),
    ],
)
def test_what_needs_a_value_is_traced_for_it(function):
    traced, calls = counted(function)
    for a in (0.25, 0.75, 0.25, 0.0):
        assert np.abs(traced(X, a) - function(X, a)).max() < 1e-14
    assert len(calls) == 3


def test_integers_and_numpy_numbers_count_by_value():
    f, calls = counted(lambda x, n: x * n)
    for n in (2, 3, 2, True, np.float32(0.5)):
        assert np.array_equal(f(X, n), X * n)
    assert len(calls) == 4


def test_a_float_is_returned_as_an_array():
    f, calls = counted(lambda x, a: {"a": a, "b": a * 3})
    for a in (0.1, 1e300):
        assert f(X, a)["a"] == a
        assert f(X, a)["b"] == a * 3
    assert len(calls) == 1


def test_nested_calls_and_gradients():
    inner = ts.jit(lambda x, a: x * a)
    f, calls = counted(lambda x, a: ts.grad(lambda x, a: np.sum(inner(x, a) ** 2))(x, a))
    for a in (0.5, 2.0):
        assert np.abs(f(X, a) - 2 * X * a * a).max() < 1e-13
        assert abs(ts.grad(lambda x, a: np.sum(x * a), argnums=1)(X.astype(np.float32), a) - X.sum()) < 1e-5
    assert len(calls) == 1


def test_tensors_of_pytorch():
    f, calls = counted(lambda x, a: x * a + a)
    x = torch.from_numpy(X).to(torch.bfloat16)
    for a in (0.5, 2.0):
        assert f(x, a).dtype == torch.bfloat16
        assert torch.allclose(f(x, a).double(), torch.from_numpy(X) * a + a, atol=0.05)
    assert len(calls) == 1


@ts.kernel
def scaled(
    x: ts.Tensor["n", ts.f64], y: ts.Tensor["n", ts.f64], by: ts.f64, power: ts.constexpr = 1.0
) -> ts.Tensor["n", ts.f64]:
    i = ts.tile.linear_id()
    if i < n:
        y[i] = x[i] * by * power
    return y


def test_kernels_take_floats():
    f, calls = counted(lambda x, by, power: scaled(x, np.empty_like(x), by * 2.0, power))
    for by, power in ((0.5, 1.0), (3.0, 1.0), (3.0, 2.0)):
        assert np.abs(f(X[0], by, power) - X[0] * by * 2 * power).max() < 1e-14
    assert len(calls) == 2


class Layer:
    traced = 0

    def __init__(self, w, rate):
        self.w, self.rate, self.name = {"w": w}, rate, "layer"

    @ts.jit
    def forward(self, x):
        Layer.traced += 1
        return x @ self.w["w"] * self.rate + self.bias()

    def bias(self):
        return np.sum(self.w["w"])

    @ts.jit
    def sets(self, x):
        self.seen = x
        return x

    @ts.jit
    def sets_inside(self, x):
        self.w["w"] = self.w["w"] + x
        return x


def test_methods():
    one, other = (Layer(RNG.standard_normal((5, 3)), rate) for rate in (0.5, 2.0))
    for layer in (one, other, one):
        for _ in range(2):
            wanted = X @ layer.w["w"] * layer.rate + layer.w["w"].sum()
            assert np.abs(layer.forward(X) - wanted).max() < 1e-13
            layer.w = {"w": layer.w["w"] * 2}
    assert Layer.traced == 1
    assert "tessera_graph.contract" in one.forward.graph()
    assert np.abs(Layer.forward(one, X) - one.forward(X)).max() < 1e-13
    gradient = ts.grad(lambda x: np.sum(one.forward(x)))(X)
    assert np.abs(gradient - (one.w["w"] * one.rate).sum(axis=1)).max() < 1e-13


@pytest.mark.parametrize(("method", "name"), [("sets", "seen"), ("sets_inside", "w")])
def test_what_a_method_sets_is_refused(method, name):
    layer = Layer(X, 1.0)
    with pytest.raises(ts.LanguageError, match="not-traceable") as caught:
        getattr(layer, method)(X)
    assert repr(name) in str(caught.value)
    assert np.array_equal(layer.w["w"], X)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_what_is_made_of_floats_alone_takes_the_dtype_of_arrays(dtype):
    def function(x):
        weights = np.where(x > 0, 0.1, 0.3)
        mixed = np.where(x > 1, np.where(x > 2, 0.1, 0.7), x)
        return weights * x, (weights * 2.0 + 1)[None] * x, np.stack([x[0, 0], 0.1]), mixed, weights

    x = (X * 2).astype(dtype)
    bound = 4 * np.finfo(dtype).eps
    for one, wide in zip(ts.jit(function)(x), function(x.astype(np.float64)), strict=True):
        np.testing.assert_allclose(one.astype(np.float64), wide, rtol=bound, atol=bound)
    assert [one.dtype for one in ts.jit(function)(x)] == [dtype] * 4 + [np.float64]


@pytest.mark.parametrize(("dtype", "number"), [(np.float32, 1e39), (np.float16, 7e4)])
def test_numbers_beyond_a_dtype_are_infinite(dtype, number):
    x = np.array([-2.0, 0.5, 3.0], dtype)
    found = ts.jit(lambda x: (x * number, np.where(x > 0, x, -number)))(x)
    wanted = np.copysign(np.inf, x), np.where(x > 0, x, -np.inf)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == dtype
        np.testing.assert_array_equal(one, other)
