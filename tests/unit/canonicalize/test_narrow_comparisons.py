"""Comparisons of places: the same masks as NumPy's in 64 bits, at the corners of 32 bits too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.canonicalize.narrow_comparisons import NarrowComparisonsPass
from tessera.interp import interpret
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.types import TileType
from tests.unit.lower.support import aligned

SIZE = 16


def along(place: ts.i64, end: ts.i64, out: ts.Tensor[8, SIZE, ts.i32]) -> None:
    for _z in ts.tile.grid((1, 1)):
        i = ts.tile.arange(SIZE)
        for n in ts.tile.range(place, place + 1, 1):
            for e in ts.tile.range(end, end + 1, 1):
                out[0, :] = (n + i < e).to(ts.i32)
                out[1, :] = (n + i <= e).to(ts.i32)
                out[2, :] = (n + i > e).to(ts.i32)
                out[3, :] = (e >= i + n).to(ts.i32)
                out[4, :] = (n + i == e).to(ts.i32)
                out[5, :] = (n + i != e).to(ts.i32)
                out[6, :] = (e < i + n + 3).to(ts.i32)
                out[7, :] = (e + i < i + n).to(ts.i32)


def across(place: ts.i64, end: ts.i64, out: ts.Tensor[SIZE, SIZE, ts.i32]) -> None:
    for _z in ts.tile.grid((1, 1)):
        i = ts.tile.arange(SIZE)
        for n in ts.tile.range(place, place + 1, 1):
            for e in ts.tile.range(end, end + 1, 1):
                out[:, :] = ((n + i)[:, None] >= (e + i)[None, :]).to(ts.i32)


def of_numbers(place: ts.i64, end: ts.i64, out: ts.Tensor[1, SIZE, ts.i32]) -> None:
    for _z in ts.tile.grid((1, 1)):
        out[0, :] = (place + ts.tile.arange(SIZE) < end).to(ts.i32)


def wide(module: ModuleOp) -> int:
    """Return how many comparisons of tiles are of 64 bits."""
    found = [op.args[0].type for op in module.walk() if isinstance(op, ElementwiseOp)]
    names = [op.fn.data for op in module.walk() if isinstance(op, ElementwiseOp)]
    return sum(
        isinstance(type_, TileType) and type_.dtype.bits == 64 and name in ("lt", "le", "gt", "ge", "eq", "ne")
        for type_, name in zip(found, names, strict=True)
    )


def run(kernel: Any, rows: int, place: int, end: int) -> tuple[np.ndarray, ModuleOp, int]:
    module = aligned(kernel)
    before = wide(module)
    NarrowComparisonsPass().apply(module)
    module.verify()
    out = np.full((rows, SIZE), -1, np.int32)
    interpret(module, [np.int64(place), np.int64(end), out])
    return out, module, before


PLACES = [
    (0, 0),
    (0, 9),
    (5, 5),
    (100, 108),
    (0, 2**31),
    (2**31, 0),
    (2**31 - 8, 2**31),
    (0, 2**30 + 3),
    (2**40, 2**40 + 4),
    (2**40, 0),
    (0, 2**40),
    (3 - 2**30 + 7, 3),
]


@pytest.mark.parametrize(("place", "end"), PLACES)
def test_masks_along_a_row(place: int, end: int) -> None:
    out, module, before = run(along, 8, place, end)
    i = np.arange(SIZE, dtype=np.int64)
    n, e = place + i, np.full(SIZE, end, np.int64)
    expected = [n < e, n <= e, n > e, e >= n, n == e, n != e, e < n + 3, e + i < n]
    np.testing.assert_array_equal(out, np.array(expected, np.int32))
    assert before == 8
    assert wide(module) == 0


@pytest.mark.parametrize(("place", "end"), PLACES)
def test_masks_of_rows_and_columns(place: int, end: int) -> None:
    out, module, before = run(across, SIZE, place, end)
    i = np.arange(SIZE, dtype=np.int64)
    np.testing.assert_array_equal(out, ((place + i)[:, None] >= (end + i)[None, :]).astype(np.int32))
    assert before == 1
    assert wide(module) == 0


def test_numbers_of_the_caller_may_wrap_and_stay_wide() -> None:
    place, end = 2**63 - 4, 0
    out, module, _ = run(of_numbers, 1, place, end)
    with np.errstate(over="ignore"):
        expected = np.int64(place) + np.arange(SIZE, dtype=np.int64) < end
    np.testing.assert_array_equal(out[0], expected.astype(np.int32))
    assert wide(module) == 1
