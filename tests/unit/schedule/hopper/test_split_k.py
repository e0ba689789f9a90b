"""Sums split over a cluster: which loops are, what they give, and that a lost partial sum is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError, LanguageError
from tessera.interp import interpret
from tessera.ir.tile.roles import BulkCopyOp
from tessera.ir.tile.split import PartialSendOp, PartialSumOp
from tessera.schedule.knobs import Knobs
from tests.unit.schedule.hopper.kernels import gemm, gemm_wide, has_roles, note, random, scheduled


def gated(
    x: ts.Tensor["M", "K", ts.bf16],
    g: ts.Tensor["K", "N", ts.bf16],
    u: ts.Tensor["K", "N", ts.bf16],
    y: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        gate = ts.tile.zeros((64, 64), ts.f32)
        up = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            gate = ts.tile.mma(x[m : m + 64, k : k + 64], g[k : k + 64, n : n + 64], gate)
            up = ts.tile.mma(x[m : m + 64, k : k + 64], u[k : k + 64, n : n + 64], up)
        y[m : m + 64, n : n + 64] = gate * up


def started_at_one(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.full((64, 64), 1.0, ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def scaled_in_the_loop(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc) * 0.5
        c[m : m + 64, n : n + 64] = acc


def same_left_operand(
    q: ts.Tensor["M", 64, ts.f16],
    a: ts.Tensor[64, "L", ts.f16],
    b: ts.Tensor["L", 128, ts.f16],
    c: ts.Tensor["M", 128, ts.f32],
) -> None:
    for m in ts.tile.grid((M, 64)):
        acc = ts.tile.zeros((64, 128), ts.f32)
        for k in ts.tile.range(0, L, 128):
            p = ts.tile.mma(q[m : m + 64, :], a[:, k : k + 128])
            acc = ts.tile.mma(ts.tile.cast(p, ts.f16), b[k : k + 128, :], acc)
        c[m : m + 64, :] = acc


def stored_in_the_loop(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
            c[m : m + 64, n : n + 64] = 0.0
        c[m : m + 64, n : n + 64] = acc


def over_first_terms(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32], terms: ts.i32
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, terms, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("size", [(64, 64, 64), (77, 72, 200), (1, 8, 8), (16, 136, 1032)])
@pytest.mark.parametrize("function", [gemm, gemm_wide])
def test_a_split_product_equals_float64(function: Any, size: tuple[int, int, int], ranks: int) -> None:
    m, n, k = size
    module = scheduled(function, {"M": m, "N": n, "K": k}, split_k=ranks)
    assert has_roles(module)
    assert note(module, "split_k") == ""
    assert any(isinstance(op, PartialSumOp) for op in module.walk())
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    interpret(module, [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5 * (k + 1))


@pytest.mark.parametrize(("terms", "ranks"), [(320, 4), (257, 2), (64, 8), (0, 2)])
def test_no_part_goes_past_the_end_of_a_loop_that_ends_inside_the_tensor(terms: int, ranks: int) -> None:
    module = scheduled(over_first_terms, {"M": 70, "N": 72, "K": 968}, split_k=ranks)
    assert note(module, "split_k") == ""
    a, b, c = random(70, 968), random(968, 72), np.full((70, 72), np.nan, np.float32)
    interpret(module, [a, b, c, terms])
    within = -(-terms // 64) * 64
    wanted = a[:, :within].astype(np.float64) @ b[:within].astype(np.float64)
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5 * (terms + 1))


def test_two_sums_are_split_together() -> None:
    module = scheduled(gated, {"M": 70, "N": 72, "K": 328}, split_k=4)
    x, g, u, y = random(70, 328), random(328, 72), random(328, 72) + 1, np.full((70, 72), np.nan, np.float32)
    interpret(module, [x, g, u, y])
    x64 = x.astype(np.float64)
    np.testing.assert_allclose(y, (x64 @ g.astype(np.float64)) * (x64 @ u.astype(np.float64)), rtol=1e-3, atol=0.1)


@pytest.mark.parametrize(
    ("function", "target", "why"),
    [
        (started_at_one, "sm_90a", "starts at a value other than zero"),
        (scaled_in_the_loop, "sm_90a", "carries something that is not a sum of products"),
        (stored_in_the_loop, "sm_90a", "written before the sum is complete"),
        (gemm, "sm_80", "sm_80 has no schedule that splits K"),
    ],
)
def test_what_cannot_be_split_is_not_and_says_why(function: Any, target: str, why: str) -> None:
    module = scheduled(function, {"M": 64, "N": 64, "K": 128}, on=target, split_k=2)
    assert why in note(module, "split_k")
    assert not any(isinstance(op, PartialSumOp) for op in module.walk())


def test_a_partial_sum_that_is_not_sent_is_missed() -> None:
    module = scheduled(gemm, {"M": 64, "N": 64, "K": 128}, split_k=2)
    for op in [op for op in module.walk() if isinstance(op, PartialSendOp)]:
        op.detach()
    with pytest.raises(DeviceError, match="no partial sum comes from program 1 of the cluster") as caught:
        interpret(module, [random(64, 128), random(128, 64), np.zeros((64, 64), np.float32)])
    assert caught.value.code == "deadlock"


@pytest.mark.parametrize("value", [3, 16, 0, -1])
def test_a_bad_split_is_refused(value: int) -> None:
    with pytest.raises(LanguageError) as caught:
        Knobs.from_config({"split_k": value})
    assert caught.value.code == "bad-knob"


def test_programs_with_steps_of_their_own_share_no_copies():
    """The left operand is the same for all, but a program without a step would fetch no part of it for the others."""
    module = scheduled(same_left_operand, dict(M=64, L=256), split_k=4)
    assert has_roles(module)
    assert [op for op in module.walk() if isinstance(op, PartialSumOp)]
    copies = [op for op in module.walk() if isinstance(op, BulkCopyOp)]
    assert copies
    assert all(op.programs.data == 1 for op in copies)
