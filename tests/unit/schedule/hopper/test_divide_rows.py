"""Tiles of 192 rows: three groups of consumers that share rings, what they compute, and what keeps a tile whole."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.driver.pipeline import schedule_passes
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.ir.tile.roles import AllocBarriersOp, BarrierArriveOp, BarrierWaitOp, BulkCopyOp, RoleGroupOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.hopper.stores import BulkStoresPass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import attention_of, product_of, random, slopes_of_keys
from tests.unit.schedule.hopper.test_ping_pong import fact, ops, tiles_of

BF16 = ml_dtypes.bfloat16
HOPPER = target_named("sm_90a")
SIZES = {"M": 400, "N": 136, "K": 200}
SEEDS = [None, 3]


def scheduled(
    function: Any, sizes: dict[str, int], last: str = "", profile: str = "fast", **knobs: int | str
) -> ModuleOp:
    """Return a kernel after the passes for Hopper, up to one of them where it is named."""
    module = aligned(function, sizes, profile=profile)
    for step in schedule_passes(HOPPER, Knobs.of(knobs)):
        step.apply(module)
        if step.name == last:
            break
    module.verify()
    return module


def note(module: ModuleOp) -> str:
    """Return what is said of rows; empty where nothing is."""
    found: Any = ops(module, GridOp)[-1].attributes.get("tessera_notes.rows")
    return "" if found is None else found.data[0].data


def gated_rows(columns: int) -> Any:
    """Return two products that share their left operand, and row sums of it: blocks stay as they are."""

    def kernel(
        a: ts.Tensor["M", "K", ts.bf16],
        g: ts.Tensor["K", "N", ts.bf16],
        u: ts.Tensor["K", "N", ts.bf16],
        c: ts.Tensor["M", "N", ts.f32],
    ) -> None:
        for m, n in ts.tile.grid((M, 192), (N, columns)):
            first = ts.tile.zeros((192, columns), ts.f32)
            second = ts.tile.zeros((192, columns), ts.f32)
            for k in ts.tile.range(0, K, 64):
                x = a[m : m + 192, k : k + 64]
                first = ts.tile.mma(x, g[k : k + 64, n : n + columns], first)
                second = ts.tile.mma(x, u[k : k + 64, n : n + columns], second)
            rows = (m + ts.tile.arange(192)).to(ts.f32)
            c[m : m + 192, n : n + columns] = first * second + (ts.tile.row_max(first) * rows)[:, None]

    return kernel


def test_groups_share_the_stages_of_rings() -> None:
    module = scheduled(attention_of(64, 192, 128, True), {"H": 2, "S": 400})
    assert note(module) == "192 rows are divided among three warpgroups"
    (grid,), (roles,) = ops(module, GridOp), ops(module, RolesOp)
    assert (fact(grid, "row_groups"), fact(grid, "num_warps"), fact(grid, "persistent")) == (3, 4, 1)
    assert fact(grid, "ping_pong") is None
    assert roles.together is not None
    assert (roles.groups.data, roles.producer_registers.data, roles.consumer_registers.data) == (3, 32, 160)
    # Keys and values are copied once a stage, queries once for each group; all groups free what they have read.
    assert len(ops(roles.producer, BulkCopyOp)) == 5
    freed = [op.barriers.owner for op in ops(roles.consumer, BarrierArriveOp)]
    assert {owner.arrivals.data for owner in freed} == {3}
    assert {op.arrivals.data for op in ops(module, AllocBarriersOp) if op not in freed} == {1}
    stages = {op.result.type.count.data for op in ops(module, AllocBarriersOp)} - {1}
    assert {op.result.type.shape[0] for op in ops(module, AllocSharedOp) if op.result.type.rank == 3} == stages | {3}


@pytest.mark.parametrize("size", [(64, 128), (128, 64), (96, 80), (48, 96)], ids=str)
def test_tiles_of_other_sizes_have_groups_too(size: tuple[int, int]) -> None:
    head, columns = size
    module = scheduled(attention_of(head, 192, columns, False), {"H": 2, "S": 400})
    assert fact(ops(module, GridOp)[0], "row_groups") == 3


def attention_in_f64(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Return attention without this project's code."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.einsum("hsd,htd->hst", q, k) / q.shape[-1] ** 0.5
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hst,htd->hsd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("last", ["divide-rows", "warp-specialize", ""])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_float64(causal: bool, last: str) -> None:
    for seed in SEEDS:
        module = scheduled(attention_of(64, 192, 128, causal), {"H": 2, "S": 200}, last)
        q, k, v = (random(2, 200, 64 + shift)[..., :64] for shift in range(3))
        out = np.full((2, 200, 64), np.nan, np.float32)
        interpret(module, [q.copy(), k.copy(), v.copy(), out], order_seed=seed)
        np.testing.assert_allclose(out, attention_in_f64(q, k, v, causal), atol=0.02)


@pytest.mark.parametrize("last", ["divide-rows", ""])
def test_operands_that_differ_by_group_go_through_the_rings(last: str) -> None:
    module = scheduled(gated_rows(64), SIZES, last)
    assert fact(ops(module, GridOp)[0], "row_groups") == 3
    if not last:
        (roles,) = ops(module, RolesOp)
        assert len(ops(roles.producer, BulkCopyOp)) == 5  # a box of `a` for each group, and one of `g` and of `u`
    a, g, u = random(400, 200), random(200, 136), random(201, 136)[:200]
    x, y = a.astype(np.float64) @ g.astype(np.float64), a.astype(np.float64) @ u.astype(np.float64)
    tiles = np.concatenate([np.repeat(x[:, n : n + 64].max(1, keepdims=True), 64, 1) for n in (0, 64, 128)], 1)
    c = np.full((400, 136), np.nan, np.float32)
    interpret(module, [a, g, u, c], order_seed=5)
    inside = slice(0, 128)  # columns past the end are zeros, which the last tile's largest may be
    exact = x * y + tiles[:, :136] * np.arange(400)[:, None]
    np.testing.assert_allclose(c[:, inside], exact[:, inside], rtol=1e-4, atol=0.05)


def test_gradients_of_keys_equal_float64() -> None:
    module = scheduled(slopes_of_keys(64, 192, 64), {"H": 1, "S": 264})
    assert fact(ops(module, GridOp)[0], "row_groups") == 3
    given = [(random(1, 264, 64 + shift)[..., :64] * 0.3).astype(BF16) for shift in range(4)]
    k, v, q, g = (x.astype(np.float64) for x in given)
    scores = q @ k.transpose(0, 2, 1)
    lse = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - lse[..., None])
    delta = (g * (weights @ v)).sum(-1)
    slopes = weights * (g @ v.transpose(0, 2, 1) - delta[..., None])
    found = [np.full(k.shape, np.nan, np.float32) for _ in range(2)]
    interpret(module, [*given, lse.astype(np.float32), delta.astype(np.float32), *found], order_seed=2)
    np.testing.assert_allclose(found[0], slopes.transpose(0, 2, 1) @ q, atol=0.02)
    np.testing.assert_allclose(found[1], weights.transpose(0, 2, 1) @ g, atol=0.02)


def unsummed(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
    s: ts.Tensor["N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 192), (N, 64)):
        acc = ts.tile.zeros((192, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 192, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 192, n : n + 64] = acc * m
        s[n : n + 64] = ts.tile.zeros((64,), ts.f32)


def in_place(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 192), (N, 64)):
        acc = ts.tile.zeros((192, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 192, k : k + 64], b[k : k + 64, n : n + 64], acc)
        rows = m + ts.tile.arange(192)
        c[m : m + 192, n : n + 64] = acc + c[m + 191 - (rows - m), n : n + 64]


def stored_twice(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 192), (N, 64)):
        acc = ts.tile.zeros((192, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 192, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 192, n : n + 64] = acc
        c[m + 64 : m + 256, n : n + 64] = acc


@pytest.mark.parametrize(
    ("kernel", "knobs", "reason"),
    [
        pytest.param(product_of(192, 64, 64, "columns"), {}, "rows are summed up", id="column maxima"),
        pytest.param(in_place, {}, "what is stored is read by the same launch", id="in place"),
        pytest.param(stored_twice, {}, "several stores write to a tensor", id="stored twice"),
        pytest.param(unsummed, {}, "something is written, or waited for, that has no rows", id="a row is written"),
        pytest.param(attention_of(256, 192, 128, False), {}, "leave no registers", id="256"),
        pytest.param(tiles_of(192, 64), {"num_warps": 4}, "num_warps was asked for", id="warps"),
        pytest.param(tiles_of(192, 64), {"cluster": 2, "split_k": 2}, "split_k, cluster was asked for", id="cluster"),
    ],
)
def test_what_keeps_a_tile_whole_is_said(kernel: Any, knobs: dict[str, int], reason: str) -> None:
    module = scheduled(kernel, {**SIZES, "H": 2, "S": 400}, fit_blocks=0, **knobs)
    assert note(module).startswith("no three warpgroups divide 192 rows: ")
    assert reason in note(module)
    assert not ops(module, RoleGroupOp) or not any(op.together for op in ops(module, RolesOp))


def test_rows_are_divided_only_where_warps_have_roles() -> None:
    asked: dict[str, str | int]
    for profile, asked in (
        ("strict", {}),
        ("fast", {"mma_kind": "mma_sync"}),
        ("fast", {"mma_kind": "fma"}),
        ("fast", {"stages": 1}),
    ):
        module = scheduled(attention_of(64, 192, 128, False), {"H": 2, "S": 400}, profile=profile, **asked)
        assert note(module).startswith("no three warpgroups divide 192 rows: ")
        assert not ops(module, RoleGroupOp)


def test_a_group_that_does_not_wait_is_reported(monkeypatch: Any) -> None:
    def without_waits(step: Any, module: ModuleOp) -> None:
        apply(step, module)
        (roles,) = ops(module, RolesOp)
        for op in ops(roles.consumer, BarrierWaitOp):
            op.detach()

    apply = BulkStoresPass.apply
    monkeypatch.setattr(BulkStoresPass, "apply", without_waits)
    module = scheduled(tiles_of(192, 64), SIZES, "bulk-stores", fit_blocks=0)
    with pytest.raises(DeviceError):
        interpret(module, [random(400, 200), random(200, 136), np.zeros((400, 136), BF16)], order_seed=1)
