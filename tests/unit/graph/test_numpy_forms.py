"""Forms of NumPy's calls that traced functions use, against NumPy on values, shapes and dtypes; their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.unit.graph.differences import differences

RNG = np.random.default_rng(11)
X = RNG.standard_normal((4, 6))
F = X.astype(np.float32)
N = np.where(X > 0.8, np.nan, X)
I = RNG.integers(-5, 6, (4, 6)).astype(np.int32)  # noqa: E741
L = I.astype(np.int64)
U = RNG.integers(0, 200, (4, 6)).astype(np.uint8)
B = X > 0
CUBE = RNG.standard_normal((2, 3, 4))
V = RNG.standard_normal(9)
PLACES = np.sort(RNG.standard_normal(9))
FAR = np.array([*PLACES[:3], -9.0, 9.0, np.nan, np.inf, -np.inf, 0.25])
trapezoid: Any = getattr(np, "trapezoid", None) or np.trapz


def elements_set(x: Any) -> Any:
    y = np.copy(x)
    y[0] = x[1] * 2
    y[:, ::2] = 1.0
    y[1:3, 1] = x[:2, 0]
    y[-1, ::-2] = x[0, :3]
    y[[0, 2], [1, 3]] = x[0, :2]
    y[[1, 1]] = x[2:4]
    y[y > 1] = 0
    y[1] += x[0]
    return y


def parts_changed(x: Any) -> Any:
    y, z = x * 1, np.zeros_like(x)
    row = y[1]
    row += 10
    y[0][1] = 5
    for one in y[2:]:
        one *= 2
    z.T[None, ::-1, 1][0] = x[:, 0].sum()
    z.reshape(-1)[::5] -= 1
    np.split(z, 2, axis=1)[1][...] = 3
    power = y**1
    power += 1
    wide = np.tile(y, (2, 1))
    wide += 1
    return y, z, power, wide


def put(x: Any) -> Any:
    y = x * 1
    np.putmask(y, y > 1, 0)
    np.copyto(y, 5, where=y < -1)
    np.put(y, [3, 0], [1, 2])
    np.put_along_axis(y, np.array([[1], [0], [5], [2]]), 9, 1)
    np.add.at(y, [0, 2, 0], x[:3])
    y[:, :4].sum()
    z = y[:, :4] * 1
    np.fill_diagonal(z, 7)
    z.sort()
    return y, z


def sizes(x: Any) -> Any:
    rows, columns = x.shape
    total = x / np.sqrt(columns) + columns**-0.5 * (rows * 0.5 + 1 / columns - rows / 3)
    return total, x * np.arange(columns), x + np.arange(np.prod(x.shape)).reshape(x.shape), x[: int(rows / 2)] * 2**rows


FORMS: dict[str, tuple[Any, ...]] = {
    "where": (lambda x: (np.sum(x, 1, where=x > 0), np.mean(x, 0, where=x > -2), np.any(x, 1, where=x > 1)), F),
    "var where": (lambda x: (np.var(x, 1, where=x > -2, ddof=1), np.std(x, where=x > 0)), X),
    "initial": (lambda x: (np.sum(x, 0, initial=3.0), np.max(x, 1, initial=0.5), x.min(initial=9, where=x > 0)), F),
    "initial of nothing": (lambda x: (np.max(x[:0], 0, initial=2.0), np.min(x[:, :0], 1, keepdims=True, initial=1)), F),
    "options": (lambda x: (np.add(x, 1, dtype=np.float64), np.sqrt(x, where=x > 0, out=np.zeros_like(x))), F),
    "out": (lambda x: (np.exp(x, out=np.empty_like(x)), np.sum(x, 0, out=np.empty_like(x[0]))), X),
    "outer": (lambda x: (np.subtract.outer(x[0], x), np.maximum.outer(x[0], x[1])), X),
    "sums of integers": (lambda x, y, z: (x.sum(), x.prod(), y.sum(0), y.cumsum(1), z.sum(), np.prod(z, 1)), I, U, B),
    "truth values": (lambda x: (x + x, x * x, np.maximum(x, ~x), np.max(x), np.sort(x, 1), np.argmax(x, 1)), B),
    "powers of integers": (lambda x: (x**0, x**2, x**17, np.power(x, abs(x)), 2 ** abs(x)), I),
    "powers of small integers": (lambda x: (x**x, np.power(x, np.uint8(3)), x**2), U),
    "whole numbers": (
        lambda x: (np.floor(x), np.trunc(x), np.reciprocal(x * 7 + 99), np.round(x, -1), np.fmod(x, 3)),
        I * 7,
    ),
    "remainders": (lambda x: (np.fmod(x, 0.3), *np.modf(x), np.round(x, 1)), X),
    "numbers outside": (lambda x: (x > -1, x == 300, np.clip(x, 10, 300)), U),
    "sums of logarithms": (lambda x: np.logaddexp(x, x[::-1], dtype=np.float32), U),
    "hyperbolic": (
        lambda x: (np.sinh(x), np.cosh(x), np.arcsinh(x), np.arctanh(np.tanh(x)), np.arccosh(x * x + 1)),
        X * 2,
    ),
    "far": (lambda x: (np.sinh(x), np.cosh(x), np.arcsinh(x), np.arccosh(x)), np.array([710.2, -710.2, 1e200])),
    "alike": (lambda x: (np.allclose(x, x), np.array_equal(x, x + 1), np.isclose(x, x + 1, rtol=0.5)), L),
    "without NaN": (lambda x: (np.nanvar(x, 1, ddof=1), np.nanstd(x), np.nancumsum(x, 1), np.nanargmax(x, 1)), N),
    "nothing but NaN": (lambda x: (np.nanmax(x * np.nan, 1), np.nanmin(x, 0)), X),
    "no NaN in integers": (lambda x: (np.nansum(x, 1), np.nanmax(x, 0), np.nanprod(x, 1)), L),
    "middle without NaN": (lambda x: (np.nanmedian(x, 1), np.nanquantile(x, 0.3, 0), np.nanpercentile(x, [5, 60])), N),
    "quantiles": (
        lambda x: (np.quantile(x, [0.1, 0.6], 1), np.quantile(x, 0.3, (0, 2)), np.median(x, (0, 1), keepdims=True)),
        CUBE,
    ),
    "quantile methods": (
        lambda x: tuple(np.quantile(x, 0.3, 0, method=one) for one in ("lower", "higher", "nearest", "midpoint")),
        X,
    ),
    "averages": (
        lambda x: (*np.average(x, 0, returned=True), np.average(x, 1, np.arange(6), keepdims=True), np.cov(x, x[:1])),
        X,
    ),
    "differences": (lambda x: (np.diff(x, prepend=0.0), np.diff(x, append=x[:, :1]), np.ediff1d(x, 1.0, [2.0])), X),
    "slopes": (lambda x: (*np.gradient(x), *np.gradient(x, 0.5, np.arange(6.0) ** 2, edge_order=2)), X),
    "integrals": (lambda x: (trapezoid(x, x * 2, axis=0), trapezoid(x, np.arange(4.0), axis=0)), X),
    "angles": (lambda x: (np.unwrap(x * 5, axis=0), np.unwrap(x * 5, period=3.0), np.angle(x), np.degrees(x)), X),
    "choices": (lambda x: (np.choose(np.arange(6) % 2, [x, 0.5]), np.piecewise(x, [x < 0], [lambda v: -v, 1])), X),
    "masks that are known": (lambda x: (x[B[:, 0]], x[:, [True, False] * 3], x[[0, 1], None], x[B]), X),
    "keys": (
        lambda x: (np.lexsort((x[0], np.round(x[0]))), np.take(x, [0, 9], 1, mode="clip"), x.take(-1, mode="wrap")),
        X,
    ),
    "einsum": (
        lambda x: (
            np.einsum("...ij,kj->...ik", x, x[0]),
            np.einsum("ijj", x[:, :, :3]),
            np.einsum(x, [0, 1, 2], [2, 0]),
            np.einsum("bij,bij->bij", x, x[:, :1]),
            np.einsum("...i,i", x, x[0, 0]),
        ),
        CUBE,
    ),
    "products": (lambda x: (np.dot(x, x.swapaxes(1, 2)), np.dot(x, 0.1), np.inner(x, x[0]), np.kron(x, x[0, 0])), CUBE),
    "products of integers": (lambda x, b: (x @ x.T, x @ x[0], np.einsum("ij,kj->ik", x, x), b @ b.T), I, B),
    "matrices": (
        lambda x: (
            np.linalg.matrix_power(x[:, :4], 5),
            np.linalg.matrix_power(x[:, :4], 0),
            np.linalg.multi_dot([x, x.T, x]),
            *(np.linalg.norm(x, one) for one in (1, -1, np.inf)),
        ),
        X,
    ),
    "vectors": (lambda x: (np.cross(x[:, :3], x[0, 3:]), np.vander(x[0], 3), np.polyval([1.0, 2.0, 3.0], x)), X),
    "shapes": (
        lambda x: (
            x.reshape(6, 4, order="F"),
            x.ravel("F"),
            np.resize(x, (3, 10)),
            np.block([[x, x], [x, x * 2]]),
            np.concatenate([x, x[0:1]], axis=None),
            np.repeat(x, [1, 0, 2, 3], 0),
            *np.hsplit(x, 2),
            np.broadcast_to(x[0], (2, 4, 6)),
            *np.unravel_index(np.abs(x * 9).astype(np.int64), (4, 6)),
        ),
        X,
    ),
    "pads": (lambda x: tuple(np.pad(x, 2, mode=one) for one in ("edge", "reflect", "symmetric", "wrap")), X),
    "pads by numbers": (
        lambda x: (np.pad(x, ((1, 2), (0, 1)), constant_values=((1, 2), (3, 4))), np.pad(x, {0: 1})),
        I,
    ),
    "lists": (lambda x: ([1, 2, 3, 4, 5, 6.0] - x, (1, 2, 3, 4, 5, 6) * x, np.vstack([[1, 2, 3, 4, 5, 6], x])), X),
    "sizes": (sizes, X),
    "elements set": (elements_set, X),
    "no elements": (
        lambda x: (np.flip(x, 0), x[::-1], np.std(x, ddof=1), np.cumsum(x, 0), np.histogram(x, 3, (0, 1))[0], x @ x.T),
        X[:0],
    ),
    "one rank less": (lambda x: (np.tril(x[0]), np.triu(x[0], 1), *np.meshgrid(x, x[0])), X),
    "halves": (
        lambda x: (np.nan_to_num(np.where(x > 0, np.inf, x)), np.add(x, x), np.max(x, 0, initial=1)),
        F.astype(np.float16),
    ),
    "parts changed": (parts_changed, X),
    "put": (put, X),
    "interp": (lambda x, p, f: (np.interp(x, p, f), np.interp(x, p, f, -7, 7), np.interp(0.3, p, f)), FAR, PLACES, V),
    "interp around": (lambda x, p, f: np.interp(x, p, f, period=2.5), FAR[:4], PLACES, V),
    "interp of one": (lambda x, p, f: np.interp(x, p, f, -7, 7), FAR, PLACES[:1], V[:1]),
    "searchsorted": (
        lambda a, v: (np.searchsorted(a, v), a.searchsorted(v, "right"), np.searchsorted(a, 0.1)),
        PLACES,
        FAR,
    ),
    "searchsorted of equal ones": (
        lambda v: tuple(np.searchsorted([1, 2, 2, 2, 5][:n], v, side) for n in range(6) for side in ("left", "right")),
        L,
    ),
    "digitize": (
        lambda x: tuple(
            np.digitize(x, bins, right) for bins in ([-1.0, 0, 1], [1.0, 0, -1]) for right in (False, True)
        ),
        np.round(X),
    ),
    "digitize by traced ends": (
        lambda x, b: (np.digitize(x, b), np.digitize(x, b[::-1], True)),
        X,
        np.array([-1.0, 0, 1]),
    ),
    "histogram": (lambda x: (*np.histogram(x), *np.histogram(x, 5, (-1, 1)), *np.histogram(x, [-1.0, 0, 2])), F),
    "histogram of weights": (lambda x, w: (*np.histogram(x, 4, weights=w), *np.histogram(x, 3, density=True)), X, X**2),
    "histogram of few": (lambda x: (*np.histogram(x * 0 + 3, 4), *np.histogram(x[:0], 3)), X),
    "bincount": (lambda w: np.bincount([0, 1, 1, 3, 0, 2, 3, 1, 1], w, 6), V),
    "insert": (
        lambda x: (
            np.insert(x, 1, 5.0),
            np.insert(x, 0, x[:, 0], axis=1),
            np.insert(x, [1, 3], [5.0, 6.0], axis=1),
            np.insert(x, 1, np.ones((2, 4)), axis=1),
            np.insert(x, slice(0, 4), 9.0, axis=1),
        ),
        X,
    ),
    "delete": (
        lambda x: tuple(np.delete(x, one, axis=1) for one in (2, [-1, 0, -1], slice(1, 5, 2), [], B[0])),
        X,
    ),
    "delete many": (lambda x: (np.delete(x, np.arange(0, 24, 2)), np.compress([True, False, True], x, 1)), X),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_forms_agree_with_numpy(name: str) -> None:
    function, *given = FORMS[name]
    wanted, found = function(*given), ts.jit(function)(*given)
    pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
    for exact, ours in pairs:
        assert np.asarray(ours).dtype == np.asarray(exact).dtype
        assert np.shape(ours) == np.shape(exact)
        tolerance = 1e-11 if np.asarray(exact).dtype.itemsize == 8 else 1e-5
        np.testing.assert_allclose(ours, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("size", "length"), [(7, 3), (3, 7), (5, 5), (41, 17), (17, 60)])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_agree_with_numpy(size: int, length: int, mode: Any) -> None:
    for dtype in (np.float64, np.int64):
        a, v = ((RNG.standard_normal(count) * 9).astype(dtype) for count in (size, length))
        found = ts.jit(lambda a, v: (np.convolve(a, v, mode), np.correlate(a, v, mode)))(a, v)
        for ours, exact in zip(found, (np.convolve(a, v, mode), np.correlate(a, v, mode)), strict=True):
            assert ours.dtype == exact.dtype
            np.testing.assert_allclose(ours, exact, rtol=1e-12, atol=1e-12 * size)


KERNEL = np.cos(np.arange(20.0))
SMOOTH: dict[str, tuple[Any, ...]] = {
    "interp": (lambda x, p, f: np.interp(x, p, f) ** 2, X * 0.5, PLACES, V),
    "convolve": (lambda a: np.convolve(a, a[:3], "same") ** 2, X[0]),
    "convolve by blocks": (
        lambda a: np.convolve(np.sin(a), KERNEL[: 20 + len(a) - 24], "same") ** 2,
        RNG.standard_normal(24),
    ),
    "insert and delete": (lambda x: np.delete(np.insert(x, [1, 3], x[:, :2] * 2, axis=1), [0, 2], axis=1) ** 2, X),
    "weights": (lambda w: np.histogram(X, 4, weights=w)[0] ** 2, X),
    "counts": (lambda w: np.bincount([0, 1, 1, 3, 0, 2, 3, 1, 1], w, 6) ** 2, V),
    "masks": (lambda x: x[np.array([True, False, True, True])][:, [0, 0, 1]] ** 2, X),
    "elements set": (lambda x: elements_set(x) ** 2, X),
    "prod": (lambda x: np.prod(np.where(B, x, 0 * x), axis=0) + np.prod(x[:, :3], axis=0)[0], X),
    "orders": (lambda x: np.sort(x, axis=0)[1] ** 2 + np.quantile(x, 0.3, axis=0) + np.nanmedian(x, axis=0), X),
    "running": (lambda x: np.cumsum(x * x, axis=1) ** 2 + np.unwrap(x * 4, axis=1), X),
    "where": (lambda x: np.var(x, 1, where=X > -1, ddof=1) + np.max(x, 1, initial=0.0) ** 2, X),
    "hyperbolic": (lambda x: np.sinh(x) * np.cosh(x) + np.arcsinh(x) + np.arccosh(1.5 + x * x) + np.arctanh(x / 9), X),
    "sinc": (lambda x: np.sinc(x), np.array([0.0, 0.1, 0.31, 0.33, 1.0, -2.5])),
    "polynomials": (lambda p: np.polyval(p, X[0]) + np.vander(p, 6)[0], V[:6]),
    "products": (
        lambda x: np.einsum("...ii", np.dot(x, x.swapaxes(1, 2))[:, :, 0, :2]) ** 2,
        RNG.standard_normal((2, 2, 3)),
    ),
    "slopes": (
        lambda x: np.gradient(x, np.arange(6.0) ** 2, axis=1, edge_order=2) ** 2 + np.pad(x, 1, "wrap")[1:5, :6],
        X,
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_agree_with_differences(name: str) -> None:
    function, *given = SMOOTH[name]

    def total(*given: Any) -> Any:
        return np.sum(function(*given))

    numbers = tuple(range(len(given)))
    slopes = ts.grad(total, argnums=numbers)(*given)
    exact = [differences(total, given, number) for number in numbers]
    for slope, wanted in zip(slopes, exact, strict=True):
        np.testing.assert_allclose(slope, wanted, rtol=1e-6, atol=1e-6 * (1 + np.abs(wanted).max()))
    along = [np.cos(np.arange(one.size)).reshape(one.shape) for one in given]
    _, tangent = ts.jvp(total, tuple(given), tuple(along))
    wanted = sum(float(np.sum(one * by)) for one, by in zip(exact, along, strict=True))
    np.testing.assert_allclose(tangent, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["prod", "orders", "running", "sinc", "convolve by blocks"])
def test_second_derivatives_agree_with_differences(name: str) -> None:
    function, x = SMOOTH[name]
    gradient = ts.jit(ts.grad(lambda x: np.sum(function(x))))
    along = np.cos(np.arange(x.size)).reshape(x.shape)
    found = ts.jvp(ts.grad(lambda x: np.sum(function(x))), (x,), (along,))[1]
    wanted = (np.asarray(gradient(x + 1e-5 * along)) - np.asarray(gradient(x - 1e-5 * along))) / 2e-5
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: np.unique(x), "value-needed"),
        (lambda x: np.nonzero(x), "value-needed"),
        (lambda x: np.where(x > 0), "value-needed"),
        (lambda x: np.bincount(x), "value-needed"),
        (lambda x: np.histogram(x, "auto"), "value-needed"),
        (lambda x: np.delete(x, x), "value-needed"),
        (lambda x: np.repeat(x, x), "value-needed"),
        (lambda x: x.tolist(), "value-needed"),
        (lambda x: np.arange(9)[x], "value-needed"),
        (lambda x: x**-1, "bad-argument"),
        (lambda x: np.digitize(x, [1.0, 0, 2]), "bad-argument"),
        (lambda x: np.delete(x, 9), "bad-index"),
        (lambda x: np.insert(x, 9, 1), "bad-index"),
        (lambda x: np.max(x, where=x > 0), "empty-reduction"),
        (lambda x: np.einsum("ij", x), "bad-argument"),
    ],
)
def test_what_depends_on_values_or_does_not_fit_is_said(function: Any, code: str) -> None:
    with pytest.raises(ts.TesseraError) as caught:
        ts.jit(function)(np.arange(3))
    assert caught.value.code == code
    assert "test_numpy_forms.py" in str(caught.value)


def test_sizes_in_arithmetic_serve_other_sizes() -> None:
    traced = ts.jit(sizes)
    for shape in ((4, 6), (5, 3), (2, 1)):
        x = RNG.standard_normal(shape)
        for ours, exact in zip(traced(x), sizes(x), strict=True):
            np.testing.assert_allclose(ours, exact, rtol=1e-14)
