"""Places of extremes, running extremes and products, softmax and log-sum-exp against NumPy in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType, accumulator_of
from tessera.numerics.tolerances import Tolerance
from tests.conformance.data import integers
from tests.conformance.harness import Case, Output, check, conformance, dtype

SHAPES = ((1, 1), (3, 5), (16, 16), (7, 100), (33, 6), (9, 130))
DTYPES = ("f32", "f64", "f16", "bf16", "fp8_e4m3", "i8", "i32", "i64", "u8", "u32", "bool")


def values(rng: np.random.Generator, shape: tuple[int, ...], dt: DType, special: bool = False) -> np.ndarray:
    """Return numbers with many equal ones, among them NaN and infinities where `special`."""
    if dt.kind == "bool":
        return rng.random(shape) < 0.3
    if dt.is_int:
        return np.where(rng.random(shape) < 0.5, np.ones((), dt.numpy()), integers(rng, shape, dt))
    x = (rng.integers(-9, 9, shape) / 4).astype(np.float32)
    if special:
        x = np.where(rng.random(shape) < 0.05, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), x).astype(np.float32)
    return x.astype(dt.numpy())


def places(shape: tuple[int, int], dt: DType) -> Callable[..., Any]:
    m, n = shape

    def kernel(
        x: ts.Tensor[m, n, dt],
        most: ts.Tensor[m, ts.i32],
        least: ts.Tensor[1, n, ts.i32],
        of_all: ts.Tensor[2, ts.i32],
    ):
        v = x[...]
        most[:] = ts.tile.argmax(v, 1)
        least[:, :] = ts.tile.argmin(v, axis=0, keepdims=True)
        of_all[0] = ts.tile.argmax(v)
        of_all[1] = ts.tile.argmin(v, axis=None)

    return kernel


def _places(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    wide = x if x.dtype.kind in "iub" else x.astype(np.float64)
    of_all = np.array([wide.argmax(), wide.argmin()], np.int32)
    return wide.argmax(1).astype(np.int32), wide.argmin(0)[None].astype(np.int32), of_all


@conformance(
    [
        Case(
            f"{name}-{m}x{n}{'-special' if special else ''}",
            places((m, n), dtype(name)),
            lambda rng, name=name, m=m, n=n, special=special: [
                values(rng, (m, n), dtype(name), special),
                Output((m,), ts.i32),
                Output((1, n), ts.i32),
                Output((2,), ts.i32),
            ],
            _places,
        )
        for at, name in enumerate(DTYPES)
        for i, (m, n) in enumerate(SHAPES)
        for special in ((False, True) if name in ("f32", "f64", "bf16") else (False,))
        if (i + at) % 3 == 0
    ]
)
def test_places_of_extremes(case, backend):
    check(case, backend)


def running(shape: tuple[int, int], axis: int, reverse: bool) -> Callable[..., Any]:
    def kernel(
        x: ts.Tensor[*shape, ts.f32],
        top: ts.Tensor[*shape, ts.f32],
        low: ts.Tensor[*shape, ts.f32],
        p: ts.Tensor[*shape, ts.i32],
    ):
        v = x[...]
        top[...] = ts.tile.cummax(v, axis, reverse)
        low[...] = ts.tile.cummin(v, axis, reverse=reverse)
        p[...] = ts.tile.cumprod(ts.tile.cast(v * 4.0, ts.i32), axis=axis, reverse=reverse)

    return kernel


def _running(axis: int, reverse: bool, x: np.ndarray) -> tuple[np.ndarray, ...]:
    def follow(function: np.ufunc, data: np.ndarray) -> np.ndarray:
        turned = np.flip(data, axis) if reverse else data
        result = function.accumulate(turned, axis=axis, dtype=data.dtype)
        return np.flip(result, axis) if reverse else result

    return follow(np.maximum, x), follow(np.minimum, x), follow(np.multiply, (x * 4).astype(np.int32))


@conformance(
    [
        Case(
            f"{m}x{n}-{axis}-{reverse}",
            running((m, n), axis, reverse),
            lambda rng, m=m, n=n: [
                values(rng, (m, n), ts.f32),
                *(Output((m, n), dt) for dt in (ts.f32, ts.f32, ts.i32)),
            ],
            lambda x, *_, axis=axis, reverse=reverse: _running(axis, reverse, x),
        )
        for i, (m, n) in enumerate(SHAPES)
        for axis, reverse in ((i % 2, i % 3 == 0),)
    ]
)
def test_running_extremes_and_products(case, backend):
    check(case, backend)


def exponentials(shape: tuple[int, int], dt: DType, out: DType) -> Callable[..., Any]:
    m, n = shape

    def kernel(
        x: ts.Tensor[m, n, dt],
        s: ts.Tensor[m, n, out],
        c: ts.Tensor[m, n, out],
        rows: ts.Tensor[m, out],
        columns: ts.Tensor[1, n, out],
        one: ts.Tensor[1, out],
    ):
        v = x[...]
        s[...] = ts.tile.softmax(v)
        c[...] = ts.tile.softmax(v, axis=0)
        rows[:] = ts.tile.logsumexp(v, -1)
        columns[...] = ts.tile.logsumexp(v, 0, keepdims=True)
        one[0] = ts.tile.logsumexp(v)

    return kernel


def _exponentials(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    wide = x.astype(np.longdouble)

    def softmax(axis: int) -> np.ndarray:
        e = np.exp(wide - wide.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def logsumexp(axis: int | None, keepdims: bool = False) -> np.ndarray:
        top = np.asarray(wide.max(axis, keepdims=True))
        shift = np.where(np.isfinite(top), top, 0)
        result = shift + np.log(np.exp(wide - shift).sum(axis, keepdims=True))
        return result if keepdims else result.reshape(wide.sum(axis).shape)

    return softmax(1), softmax(0), logsumexp(1), logsumexp(0, True), logsumexp(None).reshape(1)


def _tails(rng: np.random.Generator, shape: tuple[int, int], dt: DType) -> np.ndarray:
    """Return exponents that overflow unless the largest is taken out, a row of -inf, and one with +inf."""
    x = rng.standard_normal(shape) * 30 + rng.integers(-900, 900, (shape[0], 1))
    if shape[0] > 3:
        x[1], x[2, 0] = -np.inf, np.inf
    return x.astype(np.float32).astype(dt.numpy())


def _close(dt: DType, absolute: float) -> Tolerance:
    unit = 2.0 ** -accumulator_of(dt).mantissa
    return Tolerance(relative=16 * unit, absolute=absolute * unit)


@conformance(
    [
        Case(
            f"{name}-{m}x{n}",
            exponentials((m, n), dtype(name), accumulator_of(dtype(name))),
            lambda rng, name=name, m=m, n=n: [
                _tails(rng, (m, n), dtype(name)),
                *(Output(shape, accumulator_of(dtype(name))) for shape in ((m, n), (m, n), (m,), (1, n), (1,))),
            ],
            _exponentials,
            [_close(dtype(name), 1e-3)] * 2 + [_close(dtype(name), 16)] * 3,
        )
        for at, name in enumerate(("f32", "f64", "bf16", "f16"))
        for i, (m, n) in enumerate(SHAPES)
        if (i + at) % 2 == 0
    ]
)
def test_exponentials(case, backend):
    check(case, backend)
