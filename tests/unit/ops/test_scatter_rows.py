"""Rows that are put or combined at places, in turn and by atomic operations: against NumPy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.ops.lookup import atomic, kernels
from tessera.ops.lookup.scatter_steps import SCATTER
from tessera.ops.lookup.steps import blocks, by_rows, runs

COMBINED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "put": lambda _, one: one}
DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8)
DTYPE_OF = {"float64": ts.f64, "int64": ts.i64, "uint8": ts.u8}
SHAPES = [(5, 7, 6), (30, 9, 1), (4, 300, 33), (3, 1, 600)]


def in_turn(x, index, source, kind):
    return SCATTER.fresh(x, index, source, kind, True)[0]


def by_atomic_operations(x, index, source, kind):
    out = np.full_like(x, 99)
    atomic.scatter(x, index, source, out, kind, in_order=True)
    return out


@pytest.mark.parametrize("kind", COMBINED)
@pytest.mark.parametrize(("rows", "length", "width"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_are_combined_in_their_order(kind, rows, length, width, dtype):
    check(in_turn, kind, rows, length, width, dtype)


@pytest.mark.parametrize("kind", atomic.KINDS)
@pytest.mark.parametrize(("rows", "length", "width"), [(5, 7, 6), (300, 1700, 1), (4, 300, 33), (1, 2100, 1)], ids=str)
@pytest.mark.parametrize("dtype", [*DTYPES, np.int8, np.int16, np.int32], ids=str)
def test_atomic_operations_combine_the_same(kind, rows, length, width, dtype):
    check(by_atomic_operations, kind, rows, length, width, dtype)


@pytest.mark.parametrize(("rows", "length", "width"), [(300, 90, 1), (40, 1300, 1), (30, 7, 6)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_of_what_is_put_in_one_place_stays(rows, length, width, dtype):
    rng = np.random.default_rng(5)
    x, source = (rng.integers(0, 100, (size, width)).astype(dtype) for size in (rows, length))
    index = rng.integers(-2, rows + 2, length)
    out = np.full_like(x, 99)
    atomic.scatter(x, index, source, out, "put", in_order=False)
    for row in range(rows):
        here = source[index == row] if (index == row).any() else x[row : row + 1]
        assert all(out[row, column] in here[:, column] for column in range(width))


@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize(("rows", "length"), [(40, 300), (300, 40), (1, 700)])
def test_sorted_elements_combine_the_same(kind, rows, length):
    def sorted_first(x, index, source, kind):
        out = np.full_like(x, 99)
        order = by_rows(index, rows, -1)
        kernels.scatter_elements(x[:, 0], source[:, 0], *order, out[:, 0], kind=kind, acc=ts.f32)
        return out

    check(sorted_first, kind, rows, length, 1, np.float32)


@pytest.mark.parametrize("kind", ["sum", "put"])
@pytest.mark.parametrize(("rows", "length", "width"), [(300, 90, 33), (40, 300, 6), (1, 70, 9), (50, 1, 600)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_have_tokens_combine_the_same(kind, rows, length, width, dtype):
    def by_runs(x, index, source, kind):
        out = x.copy()
        acc = DTYPE_OF[np.dtype(dtype).name] if np.issubdtype(dtype, np.integer) or dtype == np.float64 else ts.f32
        order = runs(index, rows, -1)
        kernels.scatter_runs(x, source, *order, out, adds=kind == "sum", acc=acc, **blocks(source))
        if kind == "sum":  # nothing is added to
            alone = np.zeros_like(x)
            kernels.scatter_runs(None, source, *order, alone, adds=True, acc=acc, **blocks(source))
            hit = np.isin(np.arange(rows), index)
            assert not alone[~hit].any()
            assert alone[hit].all()
        return out

    check(by_runs, kind, rows, length, width, dtype)


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_extremes_of_what_is_no_number_are_none(dtype):
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, -1.5, 2.5], np.float64)
    first, second = (one.reshape(-1, 1).astype(dtype) for one in np.meshgrid(special, special))
    index = np.arange(64)
    for kind, function in (("max", np.maximum), ("min", np.minimum)):
        found = by_atomic_operations(first, index, second, kind)
        assert np.array_equal(found.astype(float), function(first.astype(float), second.astype(float)), equal_nan=True)


def check(scatter, kind, rows, length, width, dtype):
    rng = np.random.default_rng(1)
    given = [rng.integers(1, 3, (count, width)) for count in (rows, length)]
    exact = np.issubdtype(dtype, np.integer)
    spread = 1 if exact else rng.uniform(0.9, 1.1, (length, width))
    x, source = given[0].astype(dtype), (given[1] * spread).astype(dtype)
    index = rng.integers(-1, rows + 1, length)  # some are of no row
    wanted = x.astype(np.int64 if exact else np.float64)
    wide = source.astype(wanted.dtype)
    with np.errstate(over="ignore"):
        for row, one in zip(index, wide, strict=True):
            if 0 <= row < rows:
                wanted[row] = COMBINED[kind](wanted[row], one)
        found = scatter(x, index, source, kind)
        wanted = wanted.astype(dtype)
    if exact or kind in ("put", "max", "min"):
        assert np.array_equal(found, wanted)
        return
    finite = np.isfinite(wanted.astype(np.float64))
    limit = 4 * float(ml_dtypes.finfo(dtype).eps) * np.abs(wanted[finite].astype(np.float64))
    limit *= 4 if kind == "sum" else length if np.dtype(dtype).itemsize > 2 else 1
    assert np.array_equal(finite, np.isfinite(found.astype(np.float64)))
    assert (np.abs(found[finite].astype(np.float64) - wanted[finite].astype(np.float64)) <= limit).all()
