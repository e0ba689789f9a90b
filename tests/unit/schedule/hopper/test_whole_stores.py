"""Stores under masks of positions: whole tiles by the copy engine, the others from registers, and what they leave."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.roles import BulkStoreOp
from tests.unit.ops.test_flash_attention import emulated
from tests.unit.schedule.hopper.kernels import random
from tests.unit.schedule.hopper.test_divide_rows import scheduled
from tests.unit.schedule.hopper.test_ping_pong import ops

BF16 = ml_dtypes.bfloat16
K, N, M = 96, 72, 420
STARTS = np.array([0, 0, 64, 101, 293, 420], np.int32)
SIZES = {"M": M, "K": K, "N": N}


def packed(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    starts: ts.Tensor["Z+1", ts.i32],
    c: ts.Tensor["M", "N", ts.bf16],
    d: ts.Tensor["M", "N", ts.f32],
):
    for z, m, n in ts.tile.grid((Z, 1), (256, 64), (N, 64)):
        first = starts[z].to(ts.i64)
        left = starts[z + 1].to(ts.i64) - first - m
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K if left > 0 else 0, 64):
            acc = ts.tile.mma(a[first + m : first + m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        inside = (ts.tile.arange(64) < left)[:, None]
        if inside:
            c[first + m : first + m + 64, n : n + 64] = ts.tile.maximum(acc, 0.0)
        if inside:
            d[first + m : first + m + 64, n : n + 64] = acc * 2.0


def checkered(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    starts: ts.Tensor["Z+1", ts.i32],
    c: ts.Tensor["M", "N", ts.bf16],
    d: ts.Tensor["M", "N", ts.f32],
):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        even = (ts.tile.arange(64) & 1)[:, None] == 0
        if even:
            c[m : m + 64, n : n + 64] = acc
        d[m : m + 64, n : n + 64] = acc * 2.0


def operands() -> list[Any]:
    return [random(M, K), random(K, N), STARTS, np.full((M, N), 7, BF16), np.full((M, N), 7, np.float32)]


def exact() -> Any:
    a, b = (one.astype(np.float64) for one in operands()[:2])
    return a @ b


def check(c: Any, d: Any) -> None:
    wanted = exact()
    np.testing.assert_allclose(c.astype(np.float64), np.maximum(wanted, 0), rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(d, 2 * wanted, rtol=1e-4, atol=1e-3)


def test_whole_tiles_are_stored_by_the_copy_engine() -> None:
    module = scheduled(packed, SIZES)
    branches = [op for op in ops(module, scf.IfOp) if decisions.WHOLE_STORE.on(op)]
    assert len(branches) == 2
    for branch in branches:
        whole, rest = branch.true_region, branch.false_region
        assert ops(whole, BulkStoreOp)
        assert not ops(whole, StoreOp)
        assert [store.mask is not None for store in ops(rest, StoreOp)] == [True]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_rows_of_others_are_left_alone_whoever_is_first(seed: int | None) -> None:
    given = operands()
    interpret(scheduled(packed, SIZES), given, order_seed=seed)
    check(*given[3:])


def test_on_an_emulated_gpu() -> None:
    given = operands()
    emulated(ts.kernel(packed), "sm_90a", given, SIZES, ())
    check(*given[3:])


def test_other_masks_stay() -> None:
    module = scheduled(checkered, SIZES)
    assert not [op for op in ops(module, scf.IfOp) if decisions.WHOLE_STORE.on(op)]
    given = operands()
    interpret(module, given)
    wanted = exact()
    wanted[1::2] = 7
    np.testing.assert_allclose(given[3].astype(np.float64), wanted, rtol=1e-2, atol=1e-2)


def test_stores_from_registers_may_be_asked_for() -> None:
    module = scheduled(packed, SIZES, bulk_stores=0)
    assert not ops(module, BulkStoreOp)
    assert not [op for op in ops(module, scf.IfOp) if decisions.WHOLE_STORE.on(op)]
