"""Combiners that look at places, which come in order along the axis or do not: ties, NaN, tails, long rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.harness import Case, Output, check, conformance, dtype

WIDTHS = (1, 3, 8, 31, 40, 64, 100, 136, 255, 307, 520, 1000)
DTYPES = ("bf16", "f16", "f32", "f64", "i8", "u16", "i32", "i64")


def values(rng: np.random.Generator, shape: tuple[int, ...], dt: DType) -> np.ndarray:
    """Return numbers with many equal ones, and some that are not numbers."""
    found = rng.integers(0, 5, shape).astype(np.float32)
    if dt.is_float:
        found[rng.random(shape) < 0.002] = np.nan
    return found.astype(dt.numpy())


def extremes(n: int, dt: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", n, dt], most: ts.Tensor["m", ts.i32], least: ts.Tensor["m", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            most[i] = ts.tile.argmax(x[i, :])
            least[i] = ts.tile.argmin(x[i, :])

    return kernel


def _extremes(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
    wide = x.astype(np.float64)
    return wide.argmax(1).astype(np.int32), wide.argmin(1).astype(np.int32)


def _extremes_case(n: int, name: str, m: int = 9) -> Case:
    dt = dtype(name)
    return Case(
        f"{name}-{m}x{n}",
        extremes(n, dt),
        lambda rng: [values(rng, (m, n), dt), Output((m,), ts.i32), Output((m,), ts.i32)],
        _extremes,
    )


@conformance(
    [_extremes_case(n, DTYPES[(at + turn) % len(DTYPES)]) for at, n in enumerate(WIDTHS) for turn in (0, 3)]
    + [_extremes_case(4144, "bf16", 3), _extremes_case(2371, "f16", 3), _extremes_case(20011, "f32", 2)]
)
def test_extremes_of_rows(case, backend):
    check(case, backend)


@ts.function
def first(a, i, b, j):
    """The larger value; of equal ones that of the smaller place."""
    take = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(take, a, b), ts.tile.where(take, i, j)


@ts.function
def last(a, i, b, j):
    """The larger value; of equal ones that of the larger place."""
    take = (a > b) | ((a == b) & (i >= j))
    return ts.tile.where(take, a, b), ts.tile.where(take, i, j)


@ts.function
def ends(a, i, b, j):
    """The value at the smallest place and the one at the largest, added up by how places compare."""
    return ts.tile.where(i != j, ts.tile.maximum(a, b), a + b), ts.tile.minimum(i, j)


@ts.function
def rising(c, n):
    """Places as they are."""
    return c


@ts.function
def moved(c, n):
    """Places from 7 on."""
    return c + 7


@ts.function
def falling(c, n):
    """Places from the end."""
    return n - c


@ts.function
def halves(c, n):
    """Pairs of equal places."""
    return c // 2


@ts.function
def turned(c, n):
    """Places from the middle on, and then those before."""
    return (c + n // 2) % n


PLACES: dict[str, tuple[Any, Callable[[int], np.ndarray]]] = {
    "rising": (rising, np.arange),
    "moved": (moved, lambda n: np.arange(n) + 7),
    "falling": (falling, lambda n: n - np.arange(n)),
    "halves": (halves, lambda n: np.arange(n) // 2),
    "turned": (turned, lambda n: (np.arange(n) + n // 2) % n),
}


def _followed(name: str, x: np.ndarray, places: np.ndarray) -> tuple[float, int]:
    """Combine one row from its beginning to its end."""
    value, place = float(x[0]), int(places[0])
    for b, j in zip(x[1:].tolist(), places[1:].tolist(), strict=True):
        a, i = value, place
        take = a > b or (a == b and (i < j if name == "first" else i >= j))
        if name in ("first", "last"):
            value, place = (a, i) if take else (b, j)
        else:
            value, place = (max(a, b) if i != j else a + b), min(i, j)
    return value, place


def by_places(n: int, combiner: Any, of: Any) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", n, ts.f32], value: ts.Tensor["m", ts.f32], place: ts.Tensor["m", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            columns = of(ts.tile.arange(0, n, ts.i32), n)
            value[i], place[i] = ts.tile.reduce((x[i, :], columns), 0, combiner)

    return kernel


def _by_places_case(n: int, name: str, kind: str) -> Case:
    of, places = PLACES[kind]

    def expected(x: np.ndarray, *_: Any) -> tuple[np.ndarray, ...]:
        found = [_followed(name, row, places(n)) for row in x]
        return np.array([v for v, _ in found], np.float32), np.array([p for _, p in found], np.int32)

    return Case(
        f"{name}-{kind}-{n}",
        by_places(n, {"first": first, "last": last, "ends": ends}[name], of),
        lambda rng: [
            rng.integers(0, 4, (5, n)).astype(np.float32),
            Output((5,), ts.f32),
            Output((5,), ts.i32),
        ],
        expected,
    )


@conformance(
    [
        _by_places_case(n, name, kind)
        for at, n in enumerate((6, 33, 96, 200, 513))
        for name in ("first", "last", "ends")
        for kind in PLACES
        if (at + len(kind)) % 2 == 0 and not (name == "ends" and kind == "halves")  # whose places are equal
    ]
)
def test_places_that_rise_fall_or_turn(case, backend):
    check(case, backend)
