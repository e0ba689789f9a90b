"""Rows that steps or index tiles name move in whole vectors on GPUs, where they are aligned."""

import re
from typing import Any

import pytest

import tessera as ts

X = ts.Tensor["m", 256, ts.f32]
Y = ts.Tensor["k", 256, ts.f32]
ROWS = ts.Tensor["k", ts.i32]


def every_second_row(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        y[i : i + 8, :] = x[2 * i : 2 * i + 16 : 2, :]


def rows_backwards(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        y[i : i + 8, 0:128] = x[i + 7 : i - 1 : -1, 128:256]


def stored_to_every_third_row(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        x[3 * i : 3 * i + 24 : 3, :] = y[i : i + 8, :]


def picked_rows(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        y[i : i + 8, :] = x[r[i : i + 8], :]


def scattered_rows(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        x[r[i : i + 8], :] = y[i : i + 8, :]


def every_second_column(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        y[i : i + 8, 0:128] = x[i : i + 8, ::2]


def columns_that_start_anywhere(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        first = r[i]
        y[i : i + 8, 0:128] = x[2 * i : 2 * i + 16 : 2, first : first + 128]


def rows_where_a_condition_holds(x: X, y: Y, r: ROWS):
    for i in ts.tile.grid((k, 8)):
        if ts.tile.arange(256) < r[i]:
            y[i : i + 8, :] = x[2 * i : 2 * i + 16 : 2, :]


def widths(kernel: Any) -> tuple[set[str], set[str]]:
    """Return the widths of loads and of stores of f32."""
    ptx = ts.compile(ts.kernel(kernel), target="sm_80", dump=["ptx"]).dumps["ptx"]
    loads, stores = (re.findall(rf"{kind}\.global\.(?:v(\d)\.)?b32", ptx) for kind in ("ld", "st"))
    return set(loads), set(stores)


@pytest.mark.parametrize("kernel", [every_second_row, rows_backwards, stored_to_every_third_row])
def test_rows_with_steps_move_in_vectors(kernel: Any) -> None:
    assert widths(kernel) == ({"4"}, {"4"})


@pytest.mark.parametrize("kernel", [picked_rows, scattered_rows])
def test_picked_rows_move_in_vectors(kernel: Any) -> None:
    loads, stores = widths(kernel)
    assert "4" in loads  # the indices are loaded one by one
    assert stores == {"4"}


@pytest.mark.parametrize("kernel", [every_second_column, columns_that_start_anywhere, rows_where_a_condition_holds])
def test_others_move_one_by_one(kernel: Any) -> None:
    assert widths(kernel)[0] == {""}
