"""Rows at run-time indices, read and written as chunks: outside, negative, with odd widths, in every dtype."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import BY_NAME
from tests.conformance.harness import Case, Output, Updated, check, conformance

ROWS = 13
INDICES = np.array([0, 12, -1, 5, 13, 3, -(1 << 31), (1 << 31) - 1, 7, 11, -13, 1, 2, 6, 100, 4, 9, 10, 8], np.int32)
COUNT = len(INDICES)
DTYPES = (
    "f32",
    "bf16",
    "f64",
    "f16",
    "i8",
    "u16",
    "i32",
    "i64",
    "bool",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp6_e2m3",
    "fp4_e2m1",
)
WIDTHS = (1, 3, 8, 16, 37, 130)
FIRST = (0, 0, -2, 5, -(1 << 40), (1 << 63) - 1)


def _kernels(dtype: Any, width: int) -> dict[str, Any]:
    def load(x: ts.Tensor["m", "n", dtype], at: ts.Tensor["k", ts.i32], y: ts.Tensor["k", width, dtype], s: ts.i64):
        for i in ts.tile.grid((k, 8)):
            y[i : i + 8, :] = ts.tile.load(x[at[i : i + 8], s : s + width], fill=1)

    def store(x: ts.Tensor["k", width, dtype], at: ts.Tensor["k", ts.i32], y: ts.Tensor["m", "n", dtype], s: ts.i64):
        for i in ts.tile.grid((k, 8)):
            y[ts.tile.load(at[i : i + 8], fill=-1), s : s + width] = x[i : i + 8, :]

    def deep(
        x: ts.Tensor["m", 3, "n", dtype],
        at: ts.Tensor["k", ts.i32],
        y: ts.Tensor["k", 3, width, dtype],
        s: ts.i64,
    ):
        for i in ts.tile.grid((k, 4)):
            y[i : i + 4, :, :] = ts.tile.load(x[at[i : i + 4], :, s : s + width], fill=1)

    return {"load": load, "store": store, "deep": deep}


def _numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(np.float32).astype(dtype.numpy())


def _picked(x: np.ndarray, at: np.ndarray, first: int, width: int) -> np.ndarray:
    """Return rows of `x`, and 1 where they lie outside."""
    result = np.ones((len(at), *x.shape[1:-1], width), x.dtype)
    for row, place in enumerate(at.tolist()):
        for column in range(width):
            if 0 <= place < len(x) and 0 <= first + column < x.shape[-1]:
                result[row, ..., column] = x[place, ..., first + column]
    return result


def _case(form: str, name: str, width: int, first: int) -> Case:
    dtype, at = BY_NAME[name], INDICES
    columns = width + 2

    def arguments(rng: np.random.Generator) -> list[Any]:
        if form == "store":
            return [
                _numbers(rng, dtype, COUNT, width),
                at,
                Updated(_numbers(rng, dtype, ROWS, columns)),
                first,
            ]
        inner = (3,) if form == "deep" else ()
        x = _numbers(rng, dtype, ROWS, *inner, columns)
        return [x, at, Output((COUNT, *inner, width), dtype), first]

    def reference(x: np.ndarray, at: np.ndarray, y: np.ndarray, first: int) -> np.ndarray:
        if form != "store":
            return _picked(x, at, first, width)
        for row, place in enumerate(at.tolist()):
            for column in range(width):
                if 0 <= place < ROWS and 0 <= first + column < columns:
                    y[place, first + column] = x[row, column]
        return y

    return Case(f"rows-{form}-{name}-{width}-{first}", _kernels(dtype, width)[form], arguments, reference)


CASES = [
    _case(form, name, WIDTHS[(number + shift) % len(WIDTHS)], FIRST[(2 * number + shift) % len(FIRST)])
    for number, name in enumerate(DTYPES)
    for shift, form in enumerate(("load", "store", "deep"))
]


@conformance(CASES)
def test_rows_outside_are_left_out(case, backend):
    check(case, backend)


def mixed(
    x: ts.Tensor["m", 24, ts.f32],
    at: ts.Tensor["k", ts.i32],
    total: ts.Tensor["k", ts.f32],
    turned: ts.Tensor[24, "k", ts.f32],
    twice: ts.Tensor["k", 24, ts.f32],
    part: ts.Tensor["k", 16, ts.f32],
    last: ts.Tensor["k", 16, ts.bf16],
    s: ts.i32,
):
    for i in ts.tile.grid((k, 8)):
        rows = ts.tile.load(at[i : i + 8], fill=-1)
        found = x[rows, :]
        total[i : i + 8] = ts.tile.sum(found, axis=1)
        turned[:, i : i + 8] = ts.tile.transpose(found)
        twice[i : i + 8, :] = found * found + ts.tile.load(x[rows, :], fill=2)
        columns = s + ts.tile.arange(16)
        part[i : i + 8, :] = x[rows[:, None], columns[None, :]]
        some = ts.tile.load(x[rows[:, None], columns[None, :]], fill=1)
        last[i : i + 8, :] = ts.tile.where((rows > 4)[:, None], some, 7)


def _mixed(x: np.ndarray, at: np.ndarray, *rest: Any) -> tuple[np.ndarray, ...]:
    s, zero = rest[-1], np.where(_picked(x, at, 0, 24) == _picked(x + 1, at, 0, 24), 0, _picked(x, at, 0, 24))
    two = np.where((at[:, None] >= 0) & (at[:, None] < ROWS), zero, 2)
    some = _picked(x, at, s, 16)
    inside = (at[:, None] >= 0) & (at[:, None] < ROWS) & (np.arange(16) + s >= 0) & (np.arange(16) + s < 24)
    return (
        zero.sum(1),
        zero.T,
        zero * zero + two,
        np.where(inside, some, 0),
        np.where(at[:, None] > 4, some, 7).astype(ts.bf16.numpy()),
    )


@conformance(
    [
        Case(
            f"mixed-{s}",
            mixed,
            lambda rng, s=s: [
                _numbers(rng, ts.f32, ROWS, 24) + 1,
                INDICES,
                Output((COUNT,), ts.f32),
                Output((24, COUNT), ts.f32),
                Output((COUNT, 24), ts.f32),
                Output((COUNT, 16), ts.f32),
                Output((COUNT, 16), ts.bf16),
                s,
            ],
            _mixed,
        )
        for s in (0, 11, -3, (1 << 31) - 5)
    ]
)
def test_rows_are_reduced_turned_and_chosen(case, backend):
    check(case, backend)


def far(x: ts.Tensor["n", ts.i8], y: ts.Tensor[64, ts.i8], s: ts.i32):
    for _ in ts.tile.grid((1, 1)):
        y[:] = ts.tile.load(x[s + ts.tile.arange(64)], fill=3)


def test_counting_indices_wrap_in_their_dtype():
    x, y = np.zeros((1 << 31) + 100, np.int8), np.zeros(64, np.int8)
    ts.kernel(far)(x, y, (1 << 31) - 10)
    np.testing.assert_array_equal(y, [0] * 10 + [3] * 54)


def _by_index(x: ts.Tensor["m", "n", ts.i32], at: ts.Tensor[4, ts.i32]):
    for j in ts.tile.grid((n, 16)):
        if x[0:4, j : j + 16] > 0:
            x[at[0:4], j : j + 16] = x[0:4, j : j + 16] + 10


def _by_index_alone(x: ts.Tensor["m", "n", ts.i32], at: ts.Tensor[4, ts.i32]):
    for j in ts.tile.grid((n, 16)):
        if x[0:4, j : j + 16] > 0:
            x[at[0:4], j : j + 16] = ts.tile.full((4, 16), 7, ts.i32)


def _backwards(x: ts.Tensor["m", "n", ts.i32], at: ts.Tensor[4, ts.i32]):
    for j in ts.tile.grid((n, 16)):
        if x[0:4, j : j + 16] > 0:
            x[3::-1, j : j + 16] = x[0:4, j : j + 16] + 10


def _turned(x: np.ndarray, places: list[int], fill: int | None) -> np.ndarray:
    result = x.copy()
    for row, place in enumerate(places):
        new = x[row] + 10 if fill is None else np.full_like(x[row], fill)
        result[place] = np.where(x[row] > 0, new, result[place])
    return result


@conformance(
    [
        Case(
            name,
            kernel,
            lambda rng: [Updated(rng.integers(-9, 10, (5, 37)).astype(np.int32)), np.array([2, 3, 1, 0], np.int32)],
            lambda x, _at, places=places, fill=fill: _turned(x, places, fill),
        )
        for name, kernel, places, fill in [
            ("index", _by_index, [2, 3, 1, 0], None),
            ("index-alone", _by_index_alone, [2, 3, 1, 0], 7),
            ("backwards", _backwards, [3, 2, 1, 0], None),
        ]
    ]
)
def test_rows_that_a_condition_reads_are_stored_elsewhere(case, backend):
    check(case, backend)
