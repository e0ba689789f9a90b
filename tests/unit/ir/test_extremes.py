"""Which combiners are known to find the place of the largest or smallest element, and what code that gives."""

from typing import Any

import pytest

import tessera as ts
from tessera.ir.extremes import Extreme, extreme_of
from tessera.ir.tile.reduce import ReduceByOp
from tests.unit.lower.support import aligned

INF = float("inf")
LAST = (1 << 31) - 1


@ts.function
def nested(a, i, b, j):
    """The larger element or NaN, chosen step by step."""
    ties = ts.tile.where(i < j, a, b), ts.tile.where(i < j, i, j)
    value, place = ts.tile.where(a == b, ties[0], ts.tile.where(a > b, a, b)), ts.tile.where(a > b, i, j)
    place = ts.tile.where(a == b, ties[1], place)
    value, place = ts.tile.where(ts.tile.isnan(a), a, value), ts.tile.where(ts.tile.isnan(a), i, place)
    behind = ts.tile.isnan(b) & (~ts.tile.isnan(a) | (j < i))
    return ts.tile.where(behind, b, value), ts.tile.where(behind, j, place)


@ts.function
def without_nan(a, i, b, j):
    """The larger element; NaN or not as the order of the elements has it."""
    first = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(first, a, b), ts.tile.where(first, i, j)


@ts.function
def last(a, i, b, j):
    """The larger element; of equal ones the last."""
    first = (a > b) | ((a == b) & (i >= j))
    return ts.tile.where(first, a, b), ts.tile.where(first, i, j)


@ts.function
def mixed(a, i, b, j):
    """The larger element, and the smaller place whatever it is of."""
    first = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(first, a, b), ts.tile.minimum(i, j)


@ts.function
def near(a, i, b, j):
    """The larger element, compared with something else."""
    first = (a > b + 1) | ((a == b) & (i < j))
    return ts.tile.where(first, a, b), ts.tile.where(first, i, j)


def found(combiner: Any, dt: Any) -> Extreme | None:
    def kernel(x: ts.Tensor["m", 100, dt], y: ts.Tensor["m", dt], z: ts.Tensor["m", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i], z[i] = ts.tile.reduce((x[i, :], ts.tile.arange(0, 100, ts.i32)), 0, combiner)

    (reduction,) = [op for op in aligned(kernel).walk() if isinstance(op, ReduceByOp)]
    return extreme_of(reduction)


@pytest.mark.parametrize(
    ("combiner", "dt", "expected"),
    [
        (nested, ts.f32, Extreme("max", (-INF, LAST))),
        (without_nan, ts.i32, Extreme("max", (-(1 << 31), LAST))),
        (without_nan, ts.f32, None),
        (last, ts.i32, None),
        (mixed, ts.i32, None),
        (near, ts.i32, None),
    ],
)
def test_what_a_combiner_does_in_each_case_says_what_it_is(combiner: Any, dt: Any, expected: Extreme | None) -> None:
    assert found(combiner, dt) == expected


@ts.kernel
def least(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.i32]):
    """Places of the smallest elements of rows."""
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.argmin(x[i, :])


def ptx_of(n: int) -> str:
    return str(ts.compile(least, target="sm_90a", dims={"n": n}, dump=["ptx"]).dumps["ptx"])


def test_lanes_exchange_elements_once_and_places_once() -> None:
    lines = ptx_of(49).splitlines()
    # 16 rows over 32 lanes: 31 exchanges where rows are dealt out, and one more for all lanes to know.
    assert sum("shfl" in line for line in lines) <= 66


def test_long_rows_that_begin_anywhere_move_16_bytes_at_a_time() -> None:
    text = ptx_of(50001)
    assert "ld.global.v4" in text or "ld.global.L1::evict_last.v4" in text
