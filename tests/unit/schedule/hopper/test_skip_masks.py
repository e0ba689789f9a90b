"""Masks that hide nothing are branched around, and the branch is right in the corners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.interp import interpret
from tessera.ir.tile.elementwise import ElementwiseOp
from tests.unit.schedule.hopper.kernels import attention_of, has_roles, random, scheduled

SIZES = {"M": 64, "N": 64, "K": 128, "H": 1, "S": 256}


def shifted(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["N", "K", ts.bf16],
    shift: ts.i32,
    last: ts.i32,
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            p = ts.tile.mma(a[m : m + 64, k : k + 64], b[n : n + 64, k : k + 64].T)
            acc = acc + ts.tile.where(ts.tile.arange(64) + shift <= last, p, 0.0)
        c[m : m + 64, n : n + 64] = acc


def by_value(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["N", "K", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            p = ts.tile.mma(a[m : m + 64, k : k + 64], b[n : n + 64, k : k + 64].T)
            acc = acc + ts.tile.where(p > 0, p, 0.0)
        c[m : m + 64, n : n + 64] = acc


def unless_whole(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["N", "K", ts.bf16],
    kept: ts.Tensor["N", ts.i32],
    whole: ts.i32,
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            p = ts.tile.mma(a[m : m + 64, k : k + 64], b[n : n + 64, k : k + 64].T)
            keeps = kept[n + ts.tile.arange(64)] == kept[m + ts.tile.arange(64)][:, None]
            acc = acc + ts.tile.where((k >= whole) | keeps, p, 0.0)
        c[m : m + 64, n : n + 64] = acc


def skipped(module: ModuleOp) -> list[scf.IfOp]:
    return [op for op in module.walk() if "tessera_schedule.skips_mask" in op.attributes]  # pyright: ignore


@pytest.mark.parametrize("causal", [False, True])
def test_the_mask_of_attention_is_computed_where_it_hides_something(causal: bool) -> None:
    module = scheduled(attention_of(64, 128, 64, causal), SIZES, pipeline=0)
    (branch,) = skipped(module)
    assert [type(op) for op in branch.true_region.block.ops] == [scf.YieldOp]
    masks = [op for op in module.walk() if isinstance(op, ElementwiseOp) and op.fn.data == "select"]
    matrices = [op for op in masks if getattr(op.result.type, "rank", 0) == 2]
    assert [op.parent_op() for op in matrices] == [branch]
    compared = [op for op in branch.false_region.block.ops if isinstance(op, ElementwiseOp)]
    assert {"le", "lt"} & {op.fn.data for op in compared}


def test_a_mask_of_values_stays() -> None:
    module = scheduled(by_value, SIZES)
    assert has_roles(module)
    assert not skipped(module)


MOST, LEAST = 2**31 - 1, -(2**31)


@pytest.mark.parametrize(
    ("shift", "last"),
    [
        (0, 63),
        (0, 62),
        (0, 0),
        (0, -1),
        (5, 68),
        (5, 67),
        (-63, 0),
        (-64, -1),
        (-100, -200),
        (MOST, MOST),
        (MOST - 63, MOST),
        (MOST - 62, MOST),
        (MOST - 10, -5),
        (LEAST, LEAST),
        (LEAST, MOST),
        (LEAST, LEAST + 63),
        (LEAST, LEAST + 62),
        (1, LEAST),
    ],
)
def test_a_mask_of_positions_means_the_same_at_the_ends_of_its_type(shift: int, last: int) -> None:
    module = scheduled(shifted, SIZES)
    assert skipped(module)
    a, b, c = random(64, 128), random(65, 128)[:64], np.full((64, 64), np.nan, np.float32)
    interpret(module, [a, b, np.int32(shift), np.int32(last), c])
    places = (np.arange(64, dtype=np.int64) + shift + 2**31) % 2**32 - 2**31  # integers wrap
    expected: Any = (a.astype(np.float64) @ b.astype(np.float64).T) * (places <= last)
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-3)


def test_a_scalar_says_that_a_mask_hides_nothing() -> None:
    module = scheduled(unless_whole, SIZES)
    branches = skipped(module)  # in the loop, and for its last iteration after it
    assert branches
    for branch in branches:
        inside = {op.name.rsplit(".", 1)[-1] for op in branch.false_region.walk()}
        assert "gather" in inside or "load" in inside  # what only the mask needs is not read either
    a, b, c = random(64, 128), random(65, 128)[:64], np.full((64, 64), np.nan, np.float32)
    kept = np.arange(64, dtype=np.int32) // 10
    interpret(module, [a, b, kept, np.int32(64), c])
    wide = [one.astype(np.float64) for one in (a, b)]
    products = [wide[0][:, part] @ wide[1][:, part].T for part in (slice(0, 64), slice(64, 128))]
    expected = products[0] * (kept[:, None] == kept) + products[1]
    np.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-3)
