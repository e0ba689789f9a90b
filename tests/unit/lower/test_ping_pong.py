"""What two groups of consumers become: their tiles, barriers, buffers and registers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.backends.llvm.code import CompiledCode
from tessera.backends.nvidia import compile_nvidia
from tessera.backends.simt.placement import place_shared
from tessera.driver.pipeline import schedule_passes
from tessera.ir.target import arithmetic
from tessera.ir.target import roles as target
from tessera.ir.target.memory import AllocOp, ViewOp
from tessera.ir.target.structure import FuncOp, ProgramCountOp, ProgramIdOp
from tessera.ir.target.warpgroup import PendingType, TensorCoreRetireOp, TurnOp
from tessera.lower.simt import lower_to_simt
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import gemm, gemm_scaled, gemm_wide
from tests.unit.schedule.hopper.test_ping_pong import gated, tiles_of, with_epilogue

SIZES = {"M": 4096, "N": 4096, "K": 4096, "D": 64}
HOPPER = target_named("sm_90a")


def lowered(function: Any, **knobs: int) -> FuncOp:
    module = aligned(function, SIZES)
    for step in schedule_passes(HOPPER, Knobs(ping_pong=1, **knobs)):
        step.apply(module)
    (func,) = [op for op in lower_to_simt(module, HOPPER).ops if isinstance(op, FuncOp)]
    func.verify()
    return func


def compiled(func: FuncOp) -> tuple[CompiledCode, dict[str, Any]]:
    module = func.parent_op()
    assert isinstance(module, ModuleOp)
    code = compile_nvidia(module, HOPPER)
    (facts,) = code.reflection["kernels"].values()
    return code, facts


def ops(root: Any, kind: type[Any]) -> list[Any]:
    return [op for op in root.walk() if isinstance(op, kind)]


def value_of(value: Any, known: dict[Any, int]) -> int:
    """Compute index arithmetic from the values known."""
    if value in known:
        return known[value]
    op = value.owner
    if isinstance(op, arithmetic.ConstantOp):
        return int(op.python_value)
    functions = {"add": int.__add__, "sub": int.__sub__, "mul": int.__mul__, "floordiv": int.__floordiv__}
    return int(functions[op.fn.data](*(value_of(arg, known) for arg in op.args)))


@pytest.mark.parametrize("programs", [1, 3, 132])
@pytest.mark.parametrize("tiles", [1, 7, 264, 395])
def test_the_tiles_of_a_program_go_to_its_groups_in_turn(programs: int, tiles: int) -> None:
    func = lowered(gemm)
    (split,) = ops(func, target.RolesOp)
    assert split.groups.data == 2
    (group,) = ops(split.consumer, target.RoleGroupOp)
    walks = [next(o for o in r.block.ops if isinstance(o, scf.ForOp)) for r in (split.producer, split.consumer)]
    taken: list[int] = []
    for program in range(programs):
        known = {ops(func, ProgramIdOp)[0].result: program, ops(func, ProgramCountOp)[0].result: programs}
        fetched, first, second = (
            list(range(value_of(loop.lb, known | mine), tiles, value_of(loop.step, known | mine)))
            for loop, mine in (
                (walks[0], {}),
                (walks[1], {group.result: 0}),
                (walks[1], {group.result: 1}),
            )
        )
        assert fetched[0::2] == first
        assert fetched[1::2] == second
        taken += fetched
    assert sorted(taken) == list(range(tiles))


@pytest.mark.parametrize("shape", [(64, 256, 64), (128, 128, 64), (64, 128, 64), (64, 128, 128)])
def test_three_warpgroups_assemble_without_spills(shape: tuple[int, int, int]) -> None:
    func = lowered(tiles_of(*shape))
    code, facts = compiled(func)
    text = code.dumps["ptx"]
    assert isinstance(text, str)
    assert facts["threads"] == 384
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert facts["shared_bytes"] <= HOPPER.shared_bytes
    assert "setmaxnreg.dec.sync.aligned.u32 24" in text
    assert "setmaxnreg.inc.sync.aligned.u32 240" in text
    assert [op.arrivals.data for op in ops(func, target.MbarrierInitOp)] == [1, 4, 4], "a group has four warps"
    assert "wgmma.wait_group.sync.aligned 1;" in text


@pytest.mark.parametrize("function", [with_epilogue, gemm_scaled, gated, gemm_wide])
def test_groups_wait_for_their_own_warps_only(function: Any) -> None:
    code, facts = compiled(lowered(function))
    text = code.dumps["ptx"]
    assert isinstance(text, str)
    roles = text[text.index("setmaxnreg") :]
    assert not re.search(r"bar\.sync\s+[0-9]", roles), "a number would stop both groups, or all warps"
    assert facts["spill_store_bytes"] == 0
    waits = re.findall(r"bar\.sync (%r\d+), 128;", text)
    assert bool(waits) == (function is with_epilogue)
    for register in set(waits):
        assert re.search(rf"add\.s32\s+{register}, %r\d+, 1;", text), "barriers 1 and 2"


def test_accumulators_under_way_are_carried() -> None:
    func = lowered(gated)
    (roles,) = ops(func, target.RolesOp)
    (tiles,) = [op for op in roles.consumer.block.ops if isinstance(op, scf.ForOp)]
    (steps,) = [op for op in tiles.body.block.ops if isinstance(op, scf.ForOp)]
    assert sum(isinstance(v.type, PendingType) for v in steps.results) == 2
    assert [op.pending.data for op in ops(steps, TensorCoreRetireOp)] == [2]


def test_each_group_has_transient_buffers_that_no_other_one_touches() -> None:
    func = lowered(with_epilogue)
    place_shared(func)
    pairs = [op for op in ops(func, AllocOp) if op.transient is not None]
    assert len({op.result.type.size_bytes for op in pairs}) > 1, "of different sizes"
    for op in pairs:
        assert op.result.type.shape[0] == 2
        assert all(isinstance(use.operation, ViewOp) for use in op.result.uses)
    halves = [
        [(op.offset.data + number * op.result.type.size_bytes // 2, op.result.type.size_bytes // 2) for op in pairs]
        for number in range(2)
    ]
    for start, size in halves[0]:
        for other, length in halves[1]:
            assert start + size <= other or other + length <= start


def test_clusters_share_operands_of_both_groups() -> None:
    code, facts = compiled(lowered(gemm, cluster=2))
    assert facts["cluster"] == 2
    text = str(code.dumps["ptx"])
    assert "multicast::cluster" in text
    assert "wgmma.wait_group.sync.aligned 1;" in text
    assert text.count("mbarrier.arrive.shared::cluster") == 2, "behind each step but the first, and behind the last"


def plain_chain(
    q: ts.Tensor["M", "D", ts.bf16],
    k: ts.Tensor["N", "D", ts.bf16],
    v: ts.Tensor["N", "D", ts.bf16],
    out: ts.Tensor["M", "D", ts.f32],
):
    for m in ts.tile.grid((M, 128)):
        x = q[m : m + 128, 0:64]
        acc = ts.tile.zeros((128, 64), ts.f32)
        for n in ts.tile.range(0, N, 128):
            scores = ts.tile.mma(x, k[n : n + 128, 0:64].T)
            scores -= ts.tile.max(scores, axis=1)[:, None]
            acc = ts.tile.mma(ts.tile.exp(scores).to(ts.bf16), v[n : n + 128, 0:64], acc)
        out[m : m + 128, 0:64] = acc


def biased_chain(
    q: ts.Tensor["M", "D", ts.bf16],
    k: ts.Tensor["N", "D", ts.bf16],
    v: ts.Tensor["N", "D", ts.bf16],
    bias: ts.Tensor["N", ts.f32],
    out: ts.Tensor["M", "D", ts.f32],
):
    for m in ts.tile.grid((M, 128)):
        x = q[m : m + 128, 0:64]
        acc = ts.tile.zeros((128, 64), ts.f32)
        for n in ts.tile.range(0, N, 128):
            scores = ts.tile.mma(x, k[n : n + 128, 0:64].T) + bias[n : n + 128]
            scores -= ts.tile.max(scores, axis=1)[:, None]
            acc = ts.tile.mma(ts.tile.exp(scores).to(ts.bf16), v[n : n + 128, 0:64], acc)
        out[m : m + 128, 0:64] = acc


@pytest.mark.parametrize(("kernel", "turns"), [(plain_chain, 3), (biased_chain, 0)])
def test_warps_that_meet_between_products_take_no_turns(kernel: Any, turns: int) -> None:
    func = lowered(kernel, pipeline=1)
    assert len(ops(func, TurnOp)) == turns
    assert ("no turns" in str(func.attributes.get("tessera_notes.pipeline", ""))) == (turns == 0)
