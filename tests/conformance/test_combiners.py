"""Reductions and scans by combiners of the user's own: several tiles, every kind of dtype, odd shapes, all axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.data import integers
from tests.conformance.harness import Case, Output, check, conformance, dtype


@ts.function
def larger(a, i, b, j):
    """The larger value and its place; of equal ones the first."""
    first = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(first, a, b), ts.tile.where(first, i, j)


@ts.function
def smaller(a, i, b, j):
    """The smaller value and its place, by an `if`."""
    if (a < b) | ((a == b) & (i < j)):
        value, place = a, i
    else:
        value, place = b, j
    return value, place


@ts.function
def affine(a, b, c, d):
    """`x -> a x + b`, and after it `x -> c x + d`."""
    return a * c, b * c + d


@ts.function
def segmented(f, x, g, y):
    """Sums that start again where a flag is set."""
    return f | g, ts.tile.where(g, y, x + y)


@ts.function
def both(a, b):
    """A combination of one tile that is not commutative in its form."""
    return (a ^ b) + 2 * (a & b)


SHAPES = ((1, 1), (1, 3), (2, 2), (5, 7), (16, 16), (3, 100), (33, 6), (17, 129), (64, 1), (32, 64))
DTYPES = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def values(rng: np.random.Generator, shape: tuple[int, ...], dt: DType) -> np.ndarray:
    """Return numbers with many equal ones; integers of the whole range."""
    if dt.is_int:
        few = rng.random(shape) < 0.5
        return np.where(few, rng.integers(0, 3, shape).astype(dt.numpy()), integers(rng, shape, dt))
    return (rng.integers(-9, 9, shape) / 4).astype(np.float32).astype(dt.numpy())


def extremes(shape: tuple[int, int], dt: DType) -> Callable[..., Any]:
    m, n = shape

    def kernel(
        x: ts.Tensor[m, n, dt],
        top: ts.Tensor[m, dt],
        where: ts.Tensor[m, ts.i32],
        low: ts.Tensor[n, dt],
        low_at: ts.Tensor[n, ts.i64],
        one: ts.Tensor[1, dt],
        one_at: ts.Tensor[1, ts.i32],
    ):
        v = x[...]
        columns = ts.tile.zeros((m, n), ts.i32) + ts.tile.arange(0, n, ts.i32)[None, :]
        top[:], where[:] = ts.tile.reduce((v, columns), 1, larger)
        rows = ts.tile.zeros((m, n), ts.i64) + ts.tile.arange(0, m, ts.i64)[:, None]
        least, at = ts.tile.reduce((v, rows), 0, smaller)
        low[:], low_at[:] = least, at
        one[0], one_at[0] = ts.tile.reduce((v, columns + n * ts.tile.cast(rows, ts.i32)), None, larger)

    return kernel


def _extremes(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    top, low, one = wide.argmax(1), wide.argmin(0), wide.argmax()
    return (
        np.take_along_axis(x, top[:, None], 1)[:, 0],
        top.astype(np.int32),
        np.take_along_axis(x, low[None], 0)[0],
        low,
        x.reshape(-1)[one : one + 1],
        np.array([one], np.int32),
    )


def _extremes_case(shape: tuple[int, int], name: str) -> Case:
    m, n = shape
    dt = dtype(name)
    outputs = [Output((m,), dt), Output((m,), ts.i32), Output((n,), dt), Output((n,), ts.i64)]
    return Case(
        f"{name}-{m}x{n}",
        extremes(shape, dt),
        lambda rng: [values(rng, shape, dt), *outputs, Output((1,), dt), Output((1,), ts.i32)],
        _extremes,
    )


@conformance(
    [
        _extremes_case(shape, name)
        for at, name in enumerate(DTYPES)
        for i, shape in enumerate(SHAPES)
        if (i + at) % 4 == 0
    ]
)
def test_extremes_and_their_places(case, backend):
    check(case, backend)


def running(shape: tuple[int, int], axis: int, reverse: bool) -> Callable[..., Any]:
    def kernel(
        a: ts.Tensor[*shape, ts.i32],
        b: ts.Tensor[*shape, ts.i32],
        f: ts.Tensor[*shape, ts.bool_],
        h: ts.Tensor[*shape, ts.i32],
        s: ts.Tensor[*shape, ts.i32],
        g: ts.Tensor[*shape, ts.bool_],
        c: ts.Tensor[*shape, ts.i32],
    ):
        _, hidden = ts.tile.associative_scan((a[...], b[...]), axis, affine, reverse)
        h[...] = hidden
        g[...], s[...] = ts.tile.scan((f[...], b[...]), axis, segmented, reverse)
        c[...] = ts.tile.scan(a[...], axis, both, reverse=reverse)

    return kernel


def _running(axis: int, reverse: bool, a: np.ndarray, b: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, ...]:
    """Follow the recurrences one step after the other."""
    order = np.arange(a.shape[axis])[:: -1 if reverse else 1]
    a, b, f = (np.moveaxis(v, axis, 0) for v in (a, b, f))
    h, s, g = np.zeros_like(a), np.zeros_like(a), np.zeros_like(f)
    hidden, total, seen = np.zeros_like(a[0]), np.zeros_like(a[0]), np.zeros_like(f[0])
    for t in order:
        hidden = a[t] * hidden + b[t]
        total = np.where(f[t], b[t], total + b[t])
        seen = seen | f[t]
        h[t], s[t], g[t] = hidden, total, seen
    c = np.cumsum(a[order], axis=0, dtype=np.int32)[np.argsort(order)]
    return tuple(np.moveaxis(v, 0, axis) for v in (h, s, g, c))


def _running_case(shape: tuple[int, int], axis: int, reverse: bool) -> Case:
    def make(rng: np.random.Generator) -> Sequence[Any]:
        numbers = [integers(rng, shape, ts.i32) for _ in range(2)]
        outputs = [Output(shape, ts.i32), Output(shape, ts.i32), Output(shape, ts.bool_), Output(shape, ts.i32)]
        return [*numbers, rng.random(shape) < 0.2, *outputs]

    return Case(
        f"{shape[0]}x{shape[1]}-axis-{axis}{'-reverse' if reverse else ''}",
        running(shape, axis, reverse),
        make,
        lambda a, b, f, *_: _running(axis, reverse, a, b, f),
    )


@conformance([_running_case(shape, i % 2, i % 3 == 0) for i, shape in enumerate((*SHAPES, *SHAPES[1:], (8, 257)))])
def test_recurrences(case, backend):
    check(case, backend)


def blocks(m: int, n: int) -> Callable[..., Any]:
    """Rows of tensors that end inside a block, in a loop that carries what was found so far."""

    def kernel(x: ts.Tensor["m", "n", ts.f32], top: ts.Tensor["m", ts.f32], where: ts.Tensor["m", ts.i32]):
        for i in ts.tile.grid((m, 4)):
            best, place = ts.tile.full((4,), -1e30, ts.f32), ts.tile.zeros((4,), ts.i32)
            for j in ts.tile.range(0, n, 24):
                columns = ts.tile.arange(0, 24, ts.i32) + ts.tile.cast(j, ts.i32)
                part = ts.tile.load(x[i : i + 4, j : j + 24], fill=-1e30)
                v, p = ts.tile.reduce((part, ts.tile.zeros((4, 24), ts.i32) + columns[None, :]), 1, larger)
                better = v > best
                best, place = ts.tile.where(better, v, best), ts.tile.where(better, p, place)
            top[i : i + 4], where[i : i + 4] = best, place

    return kernel


@conformance(
    [
        Case(
            f"{m}x{n}",
            blocks(m, n),
            lambda rng, m=m, n=n: [values(rng, (m, n), ts.f32), Output((m,), ts.f32), Output((m,), ts.i32)],
            lambda x, *_: (x.max(1), x.argmax(1).astype(np.int32)),
        )
        for m, n in ((1, 1), (4, 24), (9, 50), (6, 200))
    ]
)
def test_the_largest_of_long_rows(case, backend):
    check(case, backend)


def of_sizes(x: ts.Tensor["n", ts.i64], h: ts.Tensor["n", ts.i64], s: ts.Tensor["n", ts.i64], t: ts.Tensor[1, ts.i64]):
    """Sizes are integers of 64 bits, also as elements of tiles that are combined with others."""
    sizes = ts.tile.broadcast_to(n, x.shape)
    h[:] = ts.tile.associative_scan((sizes, x[:]), 0, affine)[1]
    s[:] = ts.tile.associative_scan((x[:], sizes), 0, affine)[1]
    t[0] = ts.tile.reduce((sizes, x[:]), 0, larger)[1]


def _of_sizes(x: np.ndarray) -> tuple[np.ndarray, ...]:
    n, h, s = np.int64(len(x)), np.zeros_like(x), np.zeros_like(x)
    hidden, total = np.int64(0), np.int64(0)
    with np.errstate(over="ignore"):
        for t, number in enumerate(x):
            hidden, total = hidden * n + number, total * number + n
            h[t], s[t] = hidden, total
    return h, s, x.min(keepdims=True)


@conformance(
    [
        Case(
            str(n),
            of_sizes,
            lambda rng, n=n: [integers(rng, (n,), ts.i64), *(Output((k,), ts.i64) for k in (n, n, 1))],
            lambda x, *_: _of_sizes(x),
        )
        for n in (1, 5, 33)
    ]
)
def test_sizes_are_combined_with_integers(case, backend):
    check(case, backend)
