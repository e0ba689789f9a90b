"""`ts.tile.jvp` against central differences of NumPy's functions in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera as ts
from tessera.autodiff.partials import PARTIALS
from tessera.errors import LanguageError, TypeMismatchError


@ts.kernel
def along(
    x: ts.Tensor[8, 12, ts.f64],
    y: ts.Tensor[8, 12, ts.f64],
    dx: ts.Tensor[8, 12, ts.f64],
    dy: ts.Tensor[8, 12, ts.f64],
    value: ts.Tensor[8, 12, ts.f64],
    slope: ts.Tensor[8, 12, ts.f64],
    function: ts.constexpr,
):
    for _ in ts.tile.grid((1, 1)):
        found, moved = ts.tile.jvp(function, (x[:, :], y[:, :]), (dx[:, :], dy[:, :]))
        value[:, :] = found
        slope[:, :] = moved


def compare(function, meaning, between=(-2.0, 2.0), tolerance=1e-6):
    """Compare a function's value and derivative with NumPy and central differences."""
    rng = np.random.default_rng(0)
    x, y, dx, dy = (rng.uniform(*between, (8, 12)) for _ in range(4))
    value, slope = np.full((8, 12), np.nan), np.full((8, 12), np.nan)
    along(x, y, dx, dy, value, slope, function=function)
    step = 1e-6
    moved = meaning(x + step * dx, y + step * dy) - meaning(x - step * dx, y - step * dy)
    assert np.allclose(value, meaning(x, y), rtol=tolerance, atol=tolerance)
    assert np.allclose(slope, moved / (2 * step), rtol=tolerance, atol=tolerance)


ONLY_POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "cbrt"}
WITHIN_ONE = {"asin", "acos"}
INSIDE = {"fma", "rounded_mul", "add", "sub", "mul", "div", "floordiv", "mod", "neg"}
"""Operators, and what has no name in `ts.tile`."""


def of_name(name, arity):
    """Return a helper that applies one function to its operands."""
    applied = getattr(ts.tile, name)
    if arity == 1:

        @ts.function
        def one(x, y):
            return applied(x)

        return one

    @ts.function
    def two(x, y):
        return applied(x, y)

    return two


NUMPY = {
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
    "pow": np.power,
    "rsqrt": lambda x: x**-0.5,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", sorted(set(PARTIALS) - INSIDE))
def test_functions(name):
    exact = NUMPY.get(name) or getattr(np, name)
    arity = len(PARTIALS[name])
    between = (0.1, 3.0) if name in ONLY_POSITIVE else (-0.9, 0.9) if name in WITHIN_ONE else (-2.0, 2.0)
    compare(of_name(name, arity), (lambda x, y: exact(x)) if arity == 1 else exact, between)


@ts.function
def operators(x, y):
    return (x + y) * (x - y) / (2.0 + x * x) - (-y) % (x + 3.0) + (x // 0.5)


@ts.function
def shapes(x, y):
    rows = ts.tile.sum(x * y, 1)
    turned = (x.T * rows[None, :]).reshape(8, 12)
    return turned + ts.tile.where(x > y, ts.tile.exp(y), 3.0) + ts.tile.arange(12)[None, :]


@ts.function
def inner(x):
    return x * ts.tile.sin(x)


@ts.function
def nested(x, y):
    _, slope = ts.tile.jvp(inner, (x,), (y,))
    return slope


def test_operators():
    compare(operators, lambda x, y: (x + y) * (x - y) / (2 + x * x) - np.mod(-y, x + 3) + x // 0.5)


def test_shapes_and_sums():
    def meaning(x, y):
        turned = (x.T * (x * y).sum(1)[None, :]).reshape(8, 12)
        return turned + np.where(x > y, np.exp(y), 3.0) + np.arange(12)[None, :]

    compare(shapes, meaning)


def test_derivatives_of_derivatives():
    compare(nested, lambda x, y: y * (np.sin(x) + x * np.cos(x)))


@ts.function
def ends(x, y):
    return ts.tile.maximum(x, y) + 4.0 * ts.tile.minimum(x, y) + 16.0 * ts.tile.abs(x - y)


def test_kinks():
    x = np.ones((8, 12))
    value, slope = np.full((8, 12), np.nan), np.full((8, 12), np.nan)
    along(x, x, x, 3 * x, value, slope, function=ends)
    assert np.array_equal(value, 5 * x)
    assert np.array_equal(slope, 2 * x + 8 * x)  # half of each side, and none of |0|


@ts.function
def two_results(x, k):
    return x * k, x * x, k


@ts.kernel
def several(x: ts.Tensor[16, ts.f32], out: ts.Tensor[4, 16, ts.f32]):
    for _ in ts.tile.grid((1, 1)):
        values, slopes = ts.tile.jvp(two_results, (x[:], 3.0), (2.0, 0))
        out[0] = values[1]
        out[1] = slopes[0]
        out[2] = slopes[1]
        out[3] = ts.tile.zeros((16,), ts.f32) + slopes[2]


def test_several_results():
    x, out = np.arange(16, dtype=np.float32), np.full((4, 16), np.nan, np.float32)
    several(x, out)
    assert np.array_equal(out, [x * x, np.full(16, 6.0), 4 * x, np.zeros(16)])


@ts.function
def same(x, y):
    return x


@ts.kernel
def twice(x: ts.Tensor[16, ts.f32], out: ts.Tensor[2, 16, ts.f32], function: ts.constexpr):
    for _ in ts.tile.grid((1, 1)):
        tile = x[:]
        out[0], out[1] = ts.tile.jvp(function, (tile, tile), (0, 1.0))


@ts.function
def product(x, y):
    return x * y


@pytest.mark.parametrize("function", [same, product])
def test_one_tile_for_two_operands(function):
    x, out = np.arange(16, dtype=np.float32), np.full((2, 16), np.nan, np.float32)
    twice(x, out, function=function)
    assert np.array_equal(out, [x, 0 * x] if function is same else [x * x, x])


@ts.function
def looping(x):
    for _ in ts.tile.range(3):
        x = x * x
    return x


@ts.function
def largest(x):
    return x - ts.tile.max(x, 0)


@ts.function
def stepping(x):
    return x * ts.tile.lgamma(x)


@ts.kernel
def derive(x: ts.Tensor[16, ts.f32], function: ts.constexpr, primals: ts.constexpr, tangent: ts.constexpr):
    for _ in ts.tile.grid((1, 1)):
        _, x[:] = ts.tile.jvp(function, (x[:],) if primals == 1 else (x[:], x[:]), (tangent,))


@pytest.mark.parametrize("function", [looping, largest, stepping], ids=repr)
def test_what_has_no_derivative(function):
    with pytest.raises(LanguageError) as error:
        derive(np.ones(16, np.float32), function=function, primals=1, tangent=1.0)
    assert error.value.code == "no-derivative"
    assert error.value.location is not None


def test_wrong_arguments():
    x = np.ones(16, np.float32)
    with pytest.raises(TypeMismatchError, match="2 primals, 1 tangents"):
        derive(x, function=inner, primals=2, tangent=1.0)
    with pytest.raises(LanguageError, match=r"with @ts\.function"):
        derive(x, function=3, primals=1, tangent=1.0)
