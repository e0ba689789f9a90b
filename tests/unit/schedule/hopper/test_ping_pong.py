"""Two groups of consumers that take a program's tiles in turn: when, with what, and what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp

import tessera as ts
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import (
    AllocBarriersOp,
    BarrierArriveOp,
    BarrierWaitOp,
    BulkCopyOp,
    BulkStoreOp,
    RoleGroupOp,
    RolesOp,
)
from tessera.ir.tile.shared import AllocSharedOp, SharedViewOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.warpgroup import MmaRetireOp, MmaStartOp, TurnOp
from tessera.schedule.hopper.stream_k import StreamKPass
from tessera.schedule.hopper.warp_specialize import WarpSpecializePass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.schedule.hopper.kernels import (
    aligned,
    attention,
    attention_of,
    gated_chain,
    gemm,
    gemm_scaled,
    gemm_stored_transposed,
    gemm_transposed,
    gemm_wide,
    note,
    random,
    scheduled,
)

SIZES = {"M": 128, "N": 256, "K": 256, "H": 2, "S": 256, "F": 256}
SEEDS = [None, 0, 1, 2]
OP = Any


def ops(root: Any, kind: type[OP]) -> list[OP]:
    return [op for op in root.walk() if isinstance(op, kind)]


def fact(op: Any, name: str) -> int | None:
    attribute = op.attributes.get(f"tessera_schedule.{name}")
    return None if attribute is None else attribute.data


def tiles_of(rows: int, columns: int, depth: int = 64) -> Any:
    def kernel(
        a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]
    ) -> None:
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc = ts.tile.zeros((rows, columns), ts.f32)
            for k in ts.tile.range(0, K, depth):
                acc = ts.tile.mma(a[m : m + rows, k : k + depth], b[k : k + depth, n : n + columns], acc)
            c[m : m + rows, n : n + columns] = ts.tile.cast(acc, ts.bf16)

    return kernel


def with_epilogue(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    bias: ts.Tensor["N", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
    sums: ts.Tensor["M", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        acc = acc + bias[n : n + 64][None, :]
        acc = 0.5 * acc * (1 + ts.tile.tanh(0.7978845608 * (acc + 0.044715 * acc * acc * acc)))
        ts.tile.atomic_add(sums[m : m + 64], ts.tile.row_sum(acc))
        c[m : m + 64, n : n + 64] = acc


def gated(
    a: ts.Tensor["M", "K", ts.bf16],
    g: ts.Tensor["K", "N", ts.bf16],
    u: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        gate = ts.tile.zeros((64, 64), ts.f32)
        up = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            x = a[m : m + 64, k : k + 64]
            gate = ts.tile.mma(x, g[k : k + 64, n : n + 64], gate)
            up = ts.tile.mma(x, u[k : k + 64, n : n + 64], up)
        c[m : m + 64, n : n + 64] = gate * up


def triangle(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, ts.tile.minimum(K, m + 64), 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def queries_stay(a: ts.Tensor["M", 64, ts.bf16], b: ts.Tensor["K", 64, ts.bf16], c: ts.Tensor["M", 64, ts.f32]) -> None:
    for m in ts.tile.grid((M, 64)):
        q = a[m : m + 64, :]
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(q, b[k : k + 64, :].T, acc)
        c[m : m + 64, :] = acc


@pytest.mark.parametrize("shape", [(64, 64), (64, 128), (64, 256), (128, 128), (128, 64)])
def test_groups_of_four_warps_share_a_ring(shape: tuple[int, int]) -> None:
    module = scheduled(tiles_of(*shape), SIZES, ping_pong=1)
    assert note(module) == ""
    (grid,), (roles,) = ops(module, GridOp), ops(module, RolesOp)
    assert (fact(grid, "num_warps"), fact(grid, "ping_pong"), fact(grid, "persistent")) == (4, 1, 1)
    assert (roles.groups.data, roles.producer_registers.data, roles.consumer_registers.data) == (2, 24, 240)
    assert [op.arrivals.data for op in ops(module, AllocBarriersOp)] == [1, 1, 1]
    staged = {op.buffer.owner.source.owner for op in ops(module, BulkStoreOp)}
    assert staged
    assert {op.result.type.shape[0] for op in staged} == {2}
    rings = [op for op in ops(module, AllocSharedOp) if op not in staged]
    (loop,) = [op for op in roles.consumer.block.ops if isinstance(op, ForOp)]
    assert {op.result.type.shape[0] for op in rings} == {fact(loop, "stages")}


def test_without_the_knob_all_consumers_work_on_one_tile() -> None:
    module = scheduled(tiles_of(128, 128), SIZES)
    (roles,) = ops(module, RolesOp)
    assert roles.groups.data == 1
    assert not ops(module, RoleGroupOp)
    assert not ops(module, MmaStartOp)


@pytest.mark.parametrize(
    ("kernel", "knobs", "reason"),
    [
        pytest.param(tiles_of(128, 256), {}, "the accumulators of 4 warps leave no registers", id="128x256"),
        pytest.param(triangle, {}, "tiles differ in their number of steps", id="triangle"),
        pytest.param(queries_stay, {}, "loaded outside of the loop", id="loaded once"),
        pytest.param(gemm, {"split_k": 2}, "programs share a tile's loop", id="split_k"),
        pytest.param(tiles_of(128, 64), {"num_warps": 8}, "num_warps=8 was asked for", id="8 warps"),
    ],
)
def test_what_does_not_fit_keeps_one_group_and_says_why(kernel: Any, knobs: dict[str, int], reason: str) -> None:
    module = scheduled(kernel, SIZES, ping_pong=1, **knobs)
    assert note(module).startswith("no ping-pong: ")
    assert reason in note(module)
    (roles,) = ops(module, RolesOp)
    assert roles.groups.data == 1


def test_tiles_whose_steps_are_shared_out_are_not_taken_in_turn() -> None:
    module, target = aligned(gemm, SIZES), target_named("sm_90a")
    StreamKPass(target, Knobs(stream_k=1)).apply(module)
    WarpSpecializePass(target, Knobs(ping_pong=1)).apply(module)
    assert note(module) == "no ping-pong: programs share a tile's loop over K"


def test_products_that_wait_for_each_other_take_turns_within_a_tile() -> None:
    module = scheduled(attention_of(64, 128, 128, False), SIZES, ping_pong=1)
    (roles,) = ops(module, RolesOp)
    assert roles.groups.data == 1
    assert ops(module, TurnOp)
    for kernel in (attention, gated_chain):
        assert not ops(scheduled(kernel, SIZES, ping_pong=1), RoleGroupOp)


def test_products_stay_under_way_where_nothing_else_reads_the_ring() -> None:
    for kernel, count in ((gemm, 1), (gemm_transposed, 1), (gated, 2)):
        module = scheduled(kernel, SIZES, ping_pong=1)
        assert not ops(module, MmaOp)
        assert len(ops(module, MmaStartOp)) == count
        assert [op.pending.data for op in ops(module, MmaRetireOp)] == [count]
    module = scheduled(gemm_scaled, SIZES, ping_pong=1)  # threads compute an operand from the ring
    (roles,) = ops(module, RolesOp)
    assert roles.groups.data == 2
    assert ops(module, MmaOp)
    assert not ops(module, MmaStartOp)


def product_of(module: ModuleOp, m: int, n: int, k: int, *, flip: bool = False, **options: Any) -> None:
    """Run a product and compare it with float64."""
    a, b, c = random(m, k), random(k, n), np.full((m, n), np.nan, np.float32)
    interpret(module, [a, b.T.copy() if flip else b, c], **options)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5 * (k + 1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((64, 64, 64), id="1 tile"),
        pytest.param((64, 320, 192), id="5 tiles"),
        pytest.param((65, 136, 328), id="6 ragged tiles"),
        pytest.param((300, 72, 136), id="10 ragged tiles"),
        pytest.param((1, 8, 8), id="one row"),
        pytest.param((200, 72, 0), id="no step"),
    ],
)
def test_a_product_equals_float64(stages: int, size: tuple[int, int, int], seed: int | None) -> None:
    m, n, k = size
    module = scheduled(gemm, {"M": m, "N": n, "K": k}, stages=stages, ping_pong=1)
    product_of(module, m, n, k, order_seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_stores_part_by_part_and_transposed_operands(seed: int | None) -> None:
    module = scheduled(gemm_wide, {"M": 200, "N": 392, "K": 136}, ping_pong=1)
    assert ops(module, BulkStoreOp)
    product_of(module, 200, 392, 136, order_seed=seed)
    flipped = scheduled(gemm_transposed, {"M": 136, "N": 200, "K": 72}, ping_pong=1)
    product_of(flipped, 136, 200, 72, flip=True, order_seed=seed)
    module = scheduled(gemm_stored_transposed, {"M": 136, "N": 200, "K": 72}, ping_pong=1)
    a, b, c = random(136, 72), random(72, 200), np.full((200, 136), np.nan, np.float32)
    interpret(module, [a, b, c], order_seed=seed)
    np.testing.assert_allclose(c, (a.astype(np.float64) @ b.astype(np.float64)).T, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_clusters_that_share_an_operand(seed: int | None) -> None:
    module = scheduled(gemm, {"M": 200, "N": 136, "K": 200}, cluster=2, ping_pong=1)
    assert {op.programs.data for op in ops(module, BulkCopyOp)} == {1, 2}
    product_of(module, 200, 136, 200, order_seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_operand_computed_by_threads(seed: int | None) -> None:
    a, b, c = random(200, 136), random(136, 72), np.full((200, 72), np.nan, np.float32)
    module = scheduled(gemm_scaled, {"M": 200, "N": 72, "K": 136}, ping_pong=1)
    interpret(module, [a, b, c], order_seed=seed)
    np.testing.assert_allclose(c, 2 * a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_sums_in_one_loop(seed: int | None) -> None:
    a, g, u = random(136, 200), random(200, 136), random(200, 136) + 1
    c = np.full((136, 136), np.nan, np.float32)
    interpret(scheduled(gated, {"M": 136, "N": 136, "K": 200}, ping_pong=1), [a, g, u, c], order_seed=seed)
    x, g, u = (v.astype(np.float64) for v in (a, g, u))
    np.testing.assert_allclose(c, (x @ g) * (x @ u), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_epilogue_with_gelu_and_sums(seed: int | None) -> None:
    m, n, k = 200, 136, 72
    a, b = random(m, k), random(k, n)
    bias = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    c, sums = np.full((m, n), np.nan, np.float32), np.zeros(m, np.float32)
    module = scheduled(with_epilogue, {"M": m, "N": n, "K": k}, ping_pong=1)
    assert ops(module, RoleGroupOp)
    interpret(module, [a, b, bias, c, sums], order_seed=seed)
    x = a.astype(np.float64) @ b.astype(np.float64) + bias
    wanted = 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(sums, wanted.sum(1), rtol=1e-4, atol=1e-2)


def no_turns(module: ModuleOp) -> None:
    (wait, *_) = [op for op in turns(module) if isinstance(op, BarrierWaitOp)]
    wait.detach()


def no_turn_given(module: ModuleOp) -> None:
    (arrive,) = [op for op in turns(module) if isinstance(op, BarrierArriveOp)]
    arrive.detach()


def turns(module: ModuleOp) -> list[Any]:
    """The uses of the barriers that give groups their turn: one for each group."""
    (alloc,) = [op for op in ops(module, AllocBarriersOp) if op.result.type.count.data == 2]
    return [use.operation for use in alloc.result.uses]


def one_staging_buffer(module: ModuleOp) -> None:
    """Let both groups write to the first one's buffer."""
    for view in ops(module, SharedViewOp):
        if isinstance(view.index.owner, RoleGroupOp):
            zero = ConstantOp(0, view.index.type)
            assert view.parent is not None
            view.parent.insert_op_before(zero, view)
            view.operands[1] = zero.result


def nothing_skipped(module: ModuleOp) -> None:
    """Let each group go on where its own last tile has ended."""
    (roles,) = ops(module, RolesOp)
    for op in ops(roles.consumer, ElementwiseOp):
        if op.fn.data == "mul":
            zero = ConstantOp(0, op.results[0].type)
            assert op.parent is not None
            op.parent.insert_op_before(zero, op)
            op.results[0].replace_all_uses_with(zero.result)


def released_at_once(module: ModuleOp) -> None:
    """Hand a stage back while its product still runs."""
    for op in ops(module, MmaRetireOp):
        op.detach()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("change", "codes"),
    [
        pytest.param(no_turns, {"race", "deadlock", "uninitialized-read"}, id="no wait for a turn"),
        pytest.param(no_turn_given, {"deadlock"}, id="no turn given"),
        pytest.param(one_staging_buffer, {"race"}, id="one staging buffer"),
        pytest.param(nothing_skipped, {"race", "deadlock", "uninitialized-read"}, id="nothing skipped"),
        pytest.param(released_at_once, {"race"}, id="released at once"),
    ],
)
def test_what_is_wrong_is_reported(change: Any, codes: set[str], seed: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("tessera.interp.control._shares", lambda op, tiles, machine: [tiles])
    module = scheduled(gemm_wide, {"M": 64, "N": 640, "K": 448}, stages=3, ping_pong=1)
    change(module)
    module.verify()
    with pytest.raises(DeviceError) as caught:
        product_of(module, 64, 640, 448, order_seed=seed)
    assert caught.value.code in codes


def test_a_group_is_named_in_messages() -> None:
    module = scheduled(gemm_wide, {"M": 64, "N": 640, "K": 448}, stages=3, ping_pong=1)
    no_turn_given(module)
    with pytest.raises(DeviceError, match="the consumer 1 waits") as caught:
        product_of(module, 64, 640, 448)
    assert "the consumer 0 waits" in str(caught.value)


def row_sums(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], s: ts.Tensor["T", "M", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        t = n // 64 * 4
        s[t : t + 4, m : m + 64] = ts.tile.where((ts.tile.arange(4) == 0)[:, None], ts.tile.row_sum(acc)[None, :], 0.0)


def test_buffers_smaller_than_a_swizzle_have_no_second_place() -> None:
    module = scheduled(row_sums, {"M": 256, "N": 256, "K": 256, "T": 16}, ping_pong=1)
    assert "within a swizzle" in note(module, "stores")
