"""Epilogues computed part by part: what is done again for each part, what stays whole, and that results are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.interp import interpret
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.roles import BulkStoreOp
from tessera.ir.tile.shape import SubtileOp
from tessera.ir.tile.types import TileType
from tests.unit.schedule.hopper.kernels import random, scheduled

SIZES = {"M": 70, "N": 136, "K": 72}


def residual_silu(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    bias: ts.Tensor["N", ts.f32],
    r: ts.Tensor["M", "N", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 128], acc)
        x = acc + bias[n : n + 128]
        c[m : m + 64, n : n + 128] = x * ts.tile.sigmoid(x) + r[m : m + 64, n : n + 128]


def with_row_sums(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    s: ts.Tensor["M", "B", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 128)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 128], acc)
        x = acc * 2.0
        s[m : m + 64, n // 128] = ts.tile.row_sum(x)
        c[m : m + 64, n : n + 128] = x + 1.0


def widths(module: ModuleOp, kind: type[Any]) -> set[int]:
    """Return the columns of the f32 matrices of 64 rows that ops of a kind give."""
    types = [result.type for op in module.walk() if isinstance(op, kind) for result in op.results]
    return {t.shape[1] for t in types if isinstance(t, TileType) and t.rank == 2 and t.shape[0] == 64}


def product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return a.astype(np.float64) @ b.astype(np.float64)


def test_everything_that_leads_to_the_tile_alone_is_done_by_parts() -> None:
    module = scheduled(residual_silu, SIZES)
    assert len([op for op in module.walk() if isinstance(op, BulkStoreOp)]) == 4
    # The old, whole chain is left for dead-code elimination: what is live starts from parts of 32 columns.
    assert {32} <= widths(module, ElementwiseOp)
    assert 32 in widths(module, LoadOp)
    a, b, bias = random(70, 72), random(72, 136), random(136, dtype=np.float32)
    r, c = random(70, 136, dtype=np.float32), np.full((70, 136), np.nan, np.float32)
    interpret(module, [a, b, bias, r, c])
    x = product(a, b) + bias
    np.testing.assert_allclose(c, x / (1 + np.exp(-x)) + r, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", [None, 3])
def test_what_something_else_needs_is_computed_whole_and_once(seed: int | None) -> None:
    module = scheduled(with_row_sums, SIZES | {"B": 2})
    doubled = [op for op in module.walk() if isinstance(op, ElementwiseOp) and op.fn.data == "mul"]
    assert [op.result.type.shape for op in doubled if isinstance(op.result.type, TileType)] == [(64, 128)]
    assert widths(module, SubtileOp) == {32}
    a, b, s, c = (
        random(70, 72),
        random(72, 136),
        np.full((70, 2), np.nan, np.float32),
        np.zeros((70, 136), np.float32),
    )
    interpret(module, [a, b, s, c], order_seed=seed)
    x = 2 * product(a, b)
    np.testing.assert_allclose(c, x + 1, rtol=1e-4, atol=1e-4)
    sums = np.stack([x[:, :128].sum(1), x[:, 128:].sum(1)], axis=1)
    np.testing.assert_allclose(s, sums, rtol=1e-4, atol=1e-3)
