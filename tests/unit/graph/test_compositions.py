"""NumPy's functions that others make up, traced, against NumPy; gradients of some against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import LanguageError, TypeMismatchError

RNG = np.random.default_rng(5)
X = RNG.integers(-4, 5, (4, 6)).astype(np.float32) / 2 + np.linspace(0, 0.1, 24, dtype=np.float32).reshape(4, 6)
CUBE = RNG.standard_normal((2, 3, 4)).astype(np.float32)
trapezoid: Any = getattr(np, "trapezoid", None) or np.trapz

FUNCTIONS = {
    "argmax": lambda x: (np.argmax(x, axis=1), np.argmax(x), x.argmin(axis=0), np.argmin(x, axis=1, keepdims=True)),
    "argmax of NaN": lambda x: np.argmax(np.where(x > 1, np.nan, x), axis=1),
    "argmax of equal ones": lambda x: np.argmax(np.round(x / 2), axis=1),
    "cumsum": lambda x: (np.cumsum(x, axis=1), np.cumsum(x), x.cumsum(axis=0), np.cumprod(x, axis=1)),
    "cumsum of integers": lambda x: np.cumsum(x.astype(np.int8), axis=0),
    "accumulate": lambda x: (np.add.accumulate(x, axis=1), np.maximum.accumulate(x), np.minimum.accumulate(x, axis=1)),
    "reduce": lambda x: (np.add.reduce(x), np.maximum.reduce(x, axis=1), np.multiply.reduce(x, axis=1)),
    "sort": lambda x: (np.sort(x, axis=1), np.sort(x, axis=0), np.sort(x, axis=None), np.argsort(x, axis=1)),
    "argsort of equal ones": lambda x: np.argsort(np.round(x), axis=1, kind="stable"),
    "partition": lambda x: np.partition(x, 2, axis=1)[:, 2],
    "median": lambda x: (np.median(x, axis=1), np.median(x), np.median(x[:3], axis=0, keepdims=True)),
    "quantile": lambda x: (np.quantile(x, 0.3, axis=1), np.percentile(x, 75), np.quantile(x, 1.0, axis=0)),
    "quantile of NaN": lambda x: np.quantile(np.where(x > 1.2, np.nan, x), 0.5, axis=1),
    "flip": lambda x: (np.flip(x, 1), np.flip(x), np.fliplr(x), np.flipud(x)),
    "backwards": lambda x: (x[::-1], x[:, ::-2], x[3:0:-1, 1], x[None, ::-1, 2:]),
    "rot90": lambda x: (np.rot90(x), np.rot90(x, 2), np.rot90(x, -1)),
    "roll": lambda x: (np.roll(x, 2, axis=1), np.roll(x, -3), np.roll(x, (1, 2), axis=(0, 1)), np.roll(x, 60, 0)),
    "repeat": lambda x: (np.repeat(x, 3, axis=1), np.repeat(x, 2), x.repeat(2, axis=0)),
    "tile": lambda x: (np.tile(x, (2, 1)), np.tile(x, 2), np.tile(x, (2, 1, 2))),
    "split": lambda x: (*np.split(x, 2, axis=1), *np.array_split(x, 4, axis=1), *np.split(x, [1, 3])),
    "stacks": lambda x: (np.hstack([x, x]), np.vstack([x, x[0]]), np.dstack([x, x]), np.column_stack([x[0], x[1]])),
    "append": lambda x: (np.append(x, x, axis=1), np.append(x, x[0])),
    "pad": lambda x: (np.pad(x, ((1, 1), (0, 2))), np.pad(x, 1, constant_values=7.0)),
    "atleast": lambda x: (np.atleast_1d(x[0, 0]), np.atleast_2d(x[0]), *np.atleast_3d(x[0, 0], x[0], x)),
    "meshgrid": lambda x: (*np.meshgrid(x[0], x[:, 1]), *np.meshgrid(x[0], x[:, 1], indexing="ij")),
    "broadcast_arrays": lambda x: (*np.broadcast_arrays(x, x[0]),),
    "triangles": lambda x: (np.tril(x), np.triu(x, 1), np.tril(x, -1), np.tril(CUBE * x[0, 0])),
    "diagonals": lambda x: (
        np.diag(x),
        np.diagonal(x, 1),
        np.diag(x[0]),
        np.diag(x[0], -2),
        np.trace(x),
        x.diagonal(),
        x.trace(),
    ),
    "norm": lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1), np.linalg.norm(x[0], 3)),
    "norms": lambda x: tuple(np.linalg.norm(x, one, axis=1) for one in (0, 1, 2, np.inf, -np.inf)),
    "tensordot": lambda x: (np.tensordot(x, x, ([1], [1])), np.tensordot(x[0], x[1], 1), np.inner(x, x)),
    "vdot": lambda x: (np.vdot(x, x), np.kron(x[:2, :2], x)),
    "einsum": lambda x: (np.einsum("ij,kj->ik", x, x), np.einsum("ij,ij->i", x, x), np.einsum("ij->ji", x)),
    "einsum of batches": lambda x: np.einsum("bij,bkj,lk->bil", CUBE * x[0, 0], CUBE, RNG_MATRIX),
    "einsum without result": lambda x: np.einsum("ij,jk", x, x.T),
    "statistics": lambda x: (
        np.ptp(x, axis=1),
        np.average(x, axis=1),
        np.average(x, axis=1, weights=np.arange(1.0, 7)),
    ),
    "covariances": lambda x: (np.cov(x), np.cov(x, rowvar=False, bias=True), np.corrcoef(x)),
    "count_nonzero": lambda x: (np.count_nonzero(x > 0, axis=1), np.count_nonzero(x)),
    "without NaN": lambda x: (
        *(f(np.where(x > 1, np.nan, x), axis=1) for f in (np.nansum, np.nanmean, np.nanmax, np.nanmin, np.nanprod)),
        np.nan_to_num(np.where(x > 1, np.inf, x)),
        np.nan_to_num(np.where(x > 1, np.nan, x), nan=3.0),
    ),
    "differences": lambda x: (np.diff(x, axis=1), np.diff(x, 2, axis=0), np.gradient(x, axis=1), trapezoid(x, axis=1)),
    "trapezoid": lambda x: (trapezoid(x, dx=0.5, axis=0), trapezoid(x, np.arange(6.0) ** 2)),
    "isclose": lambda x: (np.isclose(x, x + 1e-7), np.isclose(x * np.inf, x * np.inf, equal_nan=True)),
    "select": lambda x: np.select([x > 1, x < -1], [x, x * 2], 0.5),
    "elements": lambda x: (np.heaviside(x, 0.5), np.sinc(x), np.fix(x), np.logaddexp2(x, x + 1), np.signbit(x)),
    "rounded": lambda x: (np.round(x, 1), np.round(x * 100, -1), x.round(), *np.divmod(x, 0.3)),
    "float_power": lambda x: np.float_power(np.abs(x), 1.5),
    "cross": lambda x: np.cross(x[:, :3], x[:, 3:]),
    "rollaxis": lambda x: (np.rollaxis(CUBE * x[0, 0], 2), np.rollaxis(CUBE * x[0, 0], 0, 2)),
}
RNG_MATRIX = RNG.standard_normal((5, 3)).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_agree_with_numpy(name: str) -> None:
    function = FUNCTIONS[name]
    wanted, found = function(X), ts.jit(function)(X)
    pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
    for exact, ours in pairs:
        assert np.asarray(ours).dtype == np.asarray(exact).dtype
        assert np.shape(ours) == np.shape(exact)
        np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=2e-5)


DIFFERENTIABLE = {
    "order": lambda x: np.sum(np.sort(x, axis=1) * np.arange(6.0)),
    "places": lambda x: np.sum(np.flip(x, 1) * np.roll(x, 1, 0)) + np.sum(np.tile(x, 2) ** 3),
    "sums": lambda x: np.sum(np.cumsum(x, axis=1) ** 2) + np.linalg.norm(x),
    "products": lambda x: np.sum(np.einsum("ij,kj->ik", x, x) ** 2) + np.trace(np.tril(x)[:, :4]),
    "parts": lambda x: np.sum(np.diff(np.pad(x, 1), axis=1) ** 3) + np.sum(np.repeat(x, 2, 1)[::-1] ** 2),
    "statistics": lambda x: np.sum(np.median(x, axis=1) ** 2) + np.sum(np.cov(x)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_agree_with_differences(name: str) -> None:
    function, x = DIFFERENTIABLE[name], X.astype(np.float64)
    slope = np.asarray(ts.jit(ts.grad(function))(x))
    exact = np.empty_like(x)
    for at in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[at] = 1e-6
        exact[at] = (function(x + step) - function(x - step)) / 2e-6
    np.testing.assert_allclose(slope, exact, rtol=1e-6, atol=1e-6 * np.abs(exact).max())


def test_other_sizes_are_traced_anew() -> None:
    turned = ts.jit(lambda x: np.roll(x[::-1], 1, axis=1))
    for shape in ((4, 6), (3, 5), (1, 1), (2, 0)):
        x = RNG.standard_normal(shape).astype(np.float32)
        assert np.array_equal(turned(x), np.roll(x[::-1], 1, axis=1))


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda x: np.einsum("ij->ii", x), TypeMismatchError),
        (lambda x: np.quantile(x, 0.5, method="weibull"), LanguageError),
        (lambda x: np.pad(x, 1, mode="mean"), LanguageError),
        (lambda x: np.split(x, 5, axis=1), TypeMismatchError),
        (lambda x: np.quantile(x, 1.5), TypeMismatchError),
        (lambda x: np.argmax(x, axis=2), TypeMismatchError),
        (lambda x: np.add.reduceat(x, [0]), LanguageError),
        (lambda x: np.gradient(x[:, :1], axis=1), TypeMismatchError),
    ],
)
def test_what_is_not_there_is_said(function: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        ts.jit(function)(X)
    assert "test_compositions.py" in str(caught.value)
