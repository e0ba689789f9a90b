"""Clusters of programs with tiles below one another: what they share, what they compute, when they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import LanguageError
from tessera.interp import interpret
from tessera.ir.tile.roles import AllocBarriersOp, BulkCopyOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.knobs import Knobs
from tests.unit.schedule.hopper.kernels import attention, gemm, gemm_transposed, has_roles, note, random, scheduled


def adds(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        y[m : m + 64, n : n + 64] = x[m : m + 64, n : n + 64] + 1.0


A, B = ts.Tensor["M", 64, ts.bf16], ts.Tensor["N", 64, ts.bf16]


def shifted(a: A, b: B, c: ts.Tensor["M + 64", "N", ts.f32]) -> None:
    """Store below the rows of the grid, where there is room for more of them."""
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        c[m + 64 : m + 128, n : n + 64] = ts.tile.mma(a[m : m + 64, :], b[n : n + 64, :].T)


def half(a: A, b: B, c: ts.Tensor["M", "N", ts.f32]) -> None:
    """Compute some of the rows only."""
    for m, n in ts.tile.grid((64, 64), (N, 64)):
        c[m : m + 64, n : n + 64] = ts.tile.mma(a[m : m + 64, :], b[n : n + 64, :].T)


def searched(a: A, b: B, flags: ts.Tensor["M", 4, ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    """Look for what ends a loop, where programs past the end find zeros."""
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        place = 0
        while flags[m, place] < 1.0:
            place = place + 1
        c[m : m + 64, n : n + 64] = ts.tile.mma(a[m : m + 64, :], b[n : n + 64, :].T) + ts.tile.cast(place, ts.f32)


def test_programs_past_the_end_might_not_end() -> None:
    module = scheduled(searched, {"M": 64, "N": 64}, cluster=2)
    assert "may not end in programs past the last rows" in note(module, "cluster")


@pytest.mark.parametrize(("function", "rows"), [(shifted, 64), (half, 0)])
def test_programs_past_the_end_would_store_so_that_there_are_none(function: Any, rows: int) -> None:
    module = scheduled(function, {"M": 192, "N": 64}, cluster=4)
    assert "does not end where the grid does" in note(module, "cluster")
    a, b = random(192, 64).astype(ts.bf16.numpy()), random(64, 64).astype(ts.bf16.numpy())
    c = np.zeros((192 + rows, 64), np.float32)
    interpret(module, [a, b, c])
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    stored = wanted if rows else wanted[:64]
    np.testing.assert_allclose(c[rows : rows + len(stored)], stored, atol=1e-3)
    assert not c[:rows].any()
    assert not c[rows + len(stored) :].any()


@pytest.mark.parametrize("programs", [2, 4])
@pytest.mark.parametrize("size", [(64, 64, 64), (77, 72, 200), (1, 8, 8), (200, 136, 328)])
def test_a_product_in_clusters_equals_float64(size: tuple[int, int, int], programs: int) -> None:
    m, n, k = size
    module = scheduled(gemm, {"M": m, "N": n, "K": k}, cluster=programs)
    assert has_roles(module)
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    interpret(module, [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5 * (k + 1))


@pytest.mark.parametrize("function", [gemm, gemm_transposed])
def test_only_what_is_alike_in_all_programs_is_shared(function: Any) -> None:
    module = scheduled(function, {"M": 256, "N": 64, "K": 128}, cluster=2)
    copies = [op for op in module.walk() if isinstance(op, BulkCopyOp)]
    by_tensor = {op.tensor.name_hint or number: op.programs.data for number, op in enumerate(copies)}
    assert sorted(by_tensor.values()) == [1, 2], "A differs from program to program, B does not"
    barriers = [op for op in module.walk() if isinstance(op, AllocBarriersOp)]
    assert sorted(op.programs.data for op in barriers) == [1, 2], "stages are free when all programs have read them"


@pytest.mark.parametrize(
    ("function", "target", "why"),
    [
        (gemm, "sm_80", "sm_80 has no clusters"),
        (adds, "sm_90a", "the launch has no product"),
    ],
)
def test_what_cannot_be_grouped_is_not_and_says_why(function: Any, target: str, why: str) -> None:
    module = scheduled(function, {"M": 64, "N": 64, "K": 128}, on=target, cluster=2)
    assert why in note(module, "cluster")


def test_programs_that_share_a_tile_are_not_grouped_again() -> None:
    module = scheduled(gemm, {"M": 64, "N": 64, "K": 128}, cluster=2, split_k=4)
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    assert grid.block_sizes == (64, 64)


def test_attention_over_heads_keeps_its_rows() -> None:
    module = scheduled(attention, {"H": 3, "S": 200}, cluster=2)
    q, k, v = (random(3, 200, 64) + i for i in range(3))
    out = np.full((3, 200, 64), np.nan, np.float32)
    interpret(module, [q, k, v, out])
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(200, dtype=bool), q @ k.transpose(0, 2, 1) / 8, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(out, p @ v / p.sum(-1, keepdims=True), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("value", [3, 8, 0])
def test_a_bad_cluster_is_refused(value: int) -> None:
    with pytest.raises(LanguageError) as caught:
        Knobs.from_config({"cluster": value})
    assert caught.value.code == "bad-knob"


def added_rows(a: ts.Tensor["M", "K", ts.bf16], s: ts.Tensor["K", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            left = (a[m : m + 64, k : k + 64].to(ts.f32) + s[k : k + 64][None, :]).to(ts.bf16)
            acc = ts.tile.mma(left, ts.tile.full((64, 64), 1.0, ts.bf16), acc)
        c[m : m + 64, n : n + 64] = acc


def test_a_row_is_fetched_by_each_program_of_a_cluster() -> None:
    """One copy moves all of it: programs that shared it out would wait for parts that nobody fetches."""
    module = scheduled(added_rows, {"M": 128, "N": 128, "K": 128}, cluster=2)
    rows = [op for op in module.walk() if isinstance(op, BulkCopyOp) and len(op.size_list) == 1]
    assert [op.programs.data for op in rows] == [1]
