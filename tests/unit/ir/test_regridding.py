"""Launches with other blocks give the same bits, and launches that might not are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.rewriter import InsertPoint, Rewriter

import tessera as ts
from tessera.canonicalize.stages import CANONICALIZE
from tessera.interp import interpret
from tessera.ir.notes import Unfit
from tessera.ir.regridding import Regrid
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tests.unit.lower.support import aligned

Kernel = Callable[..., None]


def finished(
    a: ts.Tensor["M", "K", ts.f32],
    b: ts.Tensor["K", "N", ts.f32],
    bias: ts.Tensor["N", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
    norms: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 24), (N, 40)):
        acc, around = ts.tile.zeros((24, 40), ts.f32), ts.tile.zeros((24,), ts.f32)
        for k in ts.tile.range(0, K, 8):
            x = a[m : m + 24, k : k + 8]
            acc = ts.tile.mma(x, b[k : k + 8, n : n + 40], acc)
            around = around + ts.tile.sum(x * x, 1)
        ends = (m + ts.tile.arange(24))[:, None] >= (ts.tile.arange(40) + n)[None, :]
        c[m : m + 24, n : n + 40] = ts.tile.where(ends, acc + bias[n : n + 40][None, :], c[m : m + 24, n : n + 40])
        norms[m : m + 24, n : n + 40] = acc * around[:, None]


def row_sums(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", 40, ts.f32], c: ts.Tensor["M", 40, ts.f32]) -> None:
    for m in ts.tile.grid((M, 24)):
        acc = ts.tile.zeros((24, 40), ts.f32)
        for k in ts.tile.range(0, K, 8):
            acc = ts.tile.mma(a[m : m + 24, k : k + 8], b[k : k + 8, :], acc)
        c[m : m + 24, :] = acc / ts.tile.sum(acc * acc, 1)[:, None]


def computing(finish: str) -> Kernel:
    """Return a product with an end that may depend on blocks."""

    def kernel(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, 24), (N, 40)):
            acc = ts.tile.zeros((24, 40), ts.f32)
            for k in ts.tile.range(0, K, 8):
                acc = ts.tile.mma(a[m : m + 24, k : k + 8], b[k : k + 8, n : n + 40], acc)
            if finish == "columns":
                acc = acc - ts.tile.max(acc, 0)[None, :]
            elif finish == "scan":
                acc = ts.tile.cumsum(acc, 1)
            elif finish == "positions":
                acc = acc + ts.tile.arange(24).to(ts.f32)[:, None]
            elif finish == "number":
                acc = acc * m
            elif finish == "rounded":
                acc = acc + (m.to(ts.f32) + ts.tile.arange(24).to(ts.f32))[:, None]
            c[m : m + 24, n : n + 40] = acc

    return kernel


def reading(finish: str) -> Kernel:
    """Return a product with an end that reads or stores by blocks."""

    def kernel(
        a: ts.Tensor["M", "K", ts.f32],
        b: ts.Tensor["K", "N", ts.f32],
        v: ts.Tensor["L", ts.f32],
        c: ts.Tensor["M", "N", ts.f32],
        d: ts.Tensor["P", "Q", ts.f32],
    ):
        for m, n in ts.tile.grid((M, 24), (N, 40)):
            acc = ts.tile.zeros((24, 40), ts.f32)
            for k in ts.tile.range(0, K, 8):
                acc = ts.tile.mma(a[m : m + 24, k : k + 8], b[k : k + 8, n : n + 40], acc)
            if finish == "corner":
                acc = acc + v[0:24][:, None]
            elif finish == "shifted":
                acc = acc + v[m + 1 : m + 25][:, None]
            elif finish == "wider":
                acc = acc + ts.tile.sum(v[m : m + 32])
            elif finish == "diagonal":
                acc = acc + ts.tile.sum(a[m : m + 24, m : m + 24], 1)[:, None]
            elif finish == "in place":
                acc = acc + ts.tile.sum(c[m : m + 24, 0:16], 1)[:, None]
            elif finish == "behind":
                d[m : m + 24, n : n + 40] = acc
            elif finish == "one place":
                v[n : n + 40] = ts.tile.sum(acc, 0)
            c[m : m + 24, n : n + 40] = acc

    return kernel


def regrid_of(kernel: Kernel) -> tuple[Any, Regrid]:
    module = aligned(kernel)
    for step in CANONICALIZE:
        step.apply(module)
    (op,) = [op for op in module.walk() if isinstance(op, KernelOp)]
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    return module, Regrid(op, grid)


def owners(regrid: Regrid) -> tuple[int | None, int | None]:
    (op,) = [op for op in regrid.grid.walk() if isinstance(op, MmaOp)]
    return regrid.owner(op.acc, 0), regrid.owner(op.acc, 1)


@pytest.mark.parametrize("blocks", [{0: 64, 1: 64}, {0: 16}, {1: 8}, {0: 128, 1: 256}, {0: 3, 1: 5}])
@pytest.mark.parametrize("sizes", [(24, 40, 8), (50, 81, 19), (1, 1, 1), (131, 37, 24)])
def test_other_blocks_give_the_same_bits(blocks: dict[int, int], sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m)
    arrays = [rng.integers(-9, 9, shape).astype(np.float32) for shape in ((m, k), (k, n), (n,), (m, n), (m, n))]
    module, regrid = regrid_of(finished)
    assert owners(regrid) == (0, 1)
    expected = [array.copy() for array in arrays]
    interpret(module, expected)
    Rewriter.insert_op(regrid.with_blocks(blocks), InsertPoint.before(regrid.grid))
    Rewriter.erase_op(regrid.grid)
    module.verify()
    interpret(module, arrays)
    for got, want in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got, want)
    a, b, bias = (array.astype(np.float64) for array in arrays[:3])
    below = np.arange(m)[:, None] >= np.arange(n)[None, :]
    np.testing.assert_array_equal(arrays[3][below], (a @ b + bias)[below])


def test_rows_alone_may_change() -> None:
    _, regrid = regrid_of(row_sums)
    assert owners(regrid) == (0, None)


def test_a_guard_says_whether_a_launch_has_programs() -> None:
    module, regrid = regrid_of(row_sums)
    with_size = regrid.with_blocks({0: 64}, regrid.grid.extents[0])
    Rewriter.insert_op(with_size, InsertPoint.before(regrid.grid))
    Rewriter.erase_op(regrid.grid)
    assert " when " in str(module)
    c = np.full((0, 40), 7, np.float32)
    interpret(module, [np.ones((0, 8), np.float32), np.ones((8, 40), np.float32), c])


@pytest.mark.parametrize(
    ("kernel", "found", "reason"),
    [
        (computing("none"), (0, 1), ""),
        (computing("columns"), (None, 1), "a dimension of tiles is not its block alone"),
        (computing("positions"), (None, 1), "a dimension of tiles is not its block alone"),
        (computing("number"), (None, 1), "the number of a program says more than where its boxes start"),
        (computing("rounded"), (None, 1), "the number of a program says more than where its boxes start"),
        (reading("corner"), (None, 1), "a dimension of tiles is not its block alone"),
        (reading("shifted"), (None, 1), "the number of a program says more than where its boxes start"),
        (reading("wider"), (None, 1), "a box that starts at the number of a program has another size than its block"),
        (reading("diagonal"), (None, 1), "a box lies at the number of a program in other ways than by its block"),
        (reading("behind"), (None, None), "a tensor that is stored to does not end where the grid does"),
        (reading("one place"), (None, None), "a tensor that is stored to does not end where the grid does"),
    ],
)
def test_what_asks_for_blocks_keeps_them(kernel: Kernel, found: tuple[int | None, int | None], reason: str) -> None:
    _, regrid = regrid_of(kernel)
    assert owners(regrid) == found
    assert set(regrid.fixed.values()) == ({reason} if reason else set())


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (computing("scan"), "scan may ask for the blocks as they are"),
        (reading("in place"), "programs load what others may store"),
    ],
)
def test_other_launches_are_left_alone(kernel: Kernel, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        regrid_of(kernel)
