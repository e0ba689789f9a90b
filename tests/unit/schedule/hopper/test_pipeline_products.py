"""Overlapped products: what is overlapped, in which order, and that it means what the plain loop means."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, ModuleOp
from xdsl.ir import Operation

import tessera as ts
from tessera.backends.nvidia import compile_nvidia
from tessera.driver.pipeline import schedule_passes
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.ir.target.structure import FuncOp
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import BarrierArriveOp, BarrierExpectOp, BarrierWaitOp, BulkCopyOp, RolesOp
from tessera.ir.tile.shared import SharedLoadOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp, TurnOp
from tessera.ir.types import index
from tessera.lower.simt import lower_to_simt
from tessera.schedule.dependences import Graph, ring_of
from tessera.schedule.knobs import Knobs
from tessera.schedule.modulo import in_order, overlapped
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import (
    attention,
    attention_of,
    gated_chain,
    gemm,
    gemm_scaled,
    gemm_transposed,
    random,
    scheduled,
    slopes_of_keys,
    specialized,
)

SIZES = {"M": 128, "N": 128, "K": 256, "H": 2, "S": 256, "F": 256}
HOPPER = target_named("sm_90a")


def gated(
    x: ts.Tensor["M", "K", ts.bf16],
    g: ts.Tensor["K", "N", ts.bf16],
    u: ts.Tensor["K", "N", ts.bf16],
    y: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        a = ts.tile.zeros((64, 64), ts.f32)
        b = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            left = x[m : m + 64, k : k + 64]
            a = ts.tile.mma(left, g[k : k + 64, n : n + 64], a)
            b = ts.tile.mma(left, u[k : k + 64, n : n + 64], b)
        y[m : m + 64, n : n + 64] = a * ts.tile.sigmoid(a) * b


def ops(root: Any, kind: type[Any]) -> list[Any]:
    return [op for op in root.walk() if isinstance(op, kind)]


def steady(module: ModuleOp) -> scf.ForOp:
    """The loop that runs two iterations at once."""
    (split,) = ops(module, RolesOp)
    (loop,) = [op for op in ops(split.consumer, scf.ForOp) if "tessera_schedule.pipeline" in op.attributes]
    return loop


def fact(loop: Operation, name: str) -> int:
    attr = loop.attributes[f"tessera_schedule.{name}"]
    assert isinstance(attr, IntAttr)
    return attr.data


def test_attention_runs_the_scores_of_a_block_beside_the_values_of_the_one_before() -> None:
    loop = steady(scheduled(attention_of(64, 128, 128, False), SIZES))
    kinds = (MmaStartOp, MmaWaitOp, BarrierWaitOp, BarrierArriveOp)
    steps = [op for op in loop.body.block.ops if isinstance(op, kinds)]
    named = [
        f"{type(op).__name__.removesuffix('Op')} {ring_of(op.barriers)}"
        if hasattr(op, "barriers")
        else f"{type(op).__name__.removesuffix('Op')}"
        for op in steps
    ]
    assert named == [
        "BarrierWait 0",
        "MmaStart",
        "BarrierWait 1",
        "MmaStart",
        "MmaWait",
        "BarrierArrive 0",
        "MmaWait",
        "BarrierArrive 1",
    ]
    scores, values, first, second = (steps[i] for i in (1, 3, 4, 6))
    assert (first.start, first.pending.data, second.start, second.pending.data) == (scores, 1, values, 0)
    assert values.a in loop.body.block.args, "probabilities of the iteration before"
    assert fact(loop, "pipeline") == 1
    assert not ops(loop, MmaOp)


def test_the_producer_fetches_in_the_order_of_use() -> None:
    module = scheduled(attention_of(64, 128, 128, False), SIZES)
    (split,) = ops(module, RolesOp)
    copies = [ring_of(op.barriers) for op in ops(split.producer, BulkCopyOp)]
    assert copies == [2, 0, 0, 1, 1], "queries, keys; keys and the values of the block before; the last values"


def test_a_chain_of_three_products_computes_the_gate_while_the_last_one_runs() -> None:
    block = steady(scheduled(gated_chain, SIZES)).body.block
    at = {op: number for number, op in enumerate(block.ops)}
    waits = [op for op in block.ops if isinstance(op, MmaWaitOp)]
    assert len(waits) == 3
    (gate,) = [at[op] for op in block.ops if isinstance(op, ElementwiseOp) and op.fn.data == "sigmoid"]
    (last,) = [wait for wait in waits if wait.result.type.shape == (64, 128)]
    assert at[last.start] < gate < at[last]


@pytest.mark.parametrize("kernel", [gemm, gemm_transposed, gemm_scaled, gated])
@pytest.mark.parametrize("pipeline", [None, 1])
def test_products_that_do_not_wait_for_each_other_stay(kernel: Any, pipeline: int | None) -> None:
    module = scheduled(kernel, SIZES, pipeline=pipeline)
    assert "tessera_schedule.ring" not in str(module)
    assert "pipeline" not in str(module)


def test_the_knob_forbids_it_and_the_loop_says_so() -> None:
    loop = steady(scheduled(attention, SIZES, pipeline=0))
    assert fact(loop, "pipeline") == 0
    assert "asked for" in str(loop.attributes["tessera_notes.pipeline"])
    assert not ops(loop, MmaStartOp)


@pytest.mark.parametrize("asked", [None, 1])
def test_two_warpgroups_take_turns_where_the_work_between_products_takes_as_long(asked: int | None) -> None:
    module = scheduled(attention_of(64, 128, 128, False), SIZES, ping_pong=asked)
    loop = steady(module)
    steps = [op for op in loop.body.block.ops if isinstance(op, MmaStartOp | MmaWaitOp | TurnOp)]
    assert [op.step.data if isinstance(op, TurnOp) else type(op) for op in steps] == [
        "take",
        MmaStartOp,
        MmaStartOp,
        "pass",
        MmaWaitOp,
        MmaWaitOp,
    ]
    (split,) = ops(module, RolesOp)
    assert isinstance(split.prev_op, TurnOp)
    assert fact(loop, "product_turns") == 1
    assert not ops(scheduled(attention, SIZES, ping_pong=asked), TurnOp), "one warpgroup has no other"


@pytest.mark.parametrize(
    ("kernel", "asked"),
    [
        (attention_of(64, 128, 128, False), 0),
        (attention_of(192, 128, 64, False), None),  # 1.5 times as much to multiply for each score
        (slopes_of_keys(64, 128, 64), None),  # work between the products of a step
    ],
)
def test_other_warpgroups_take_no_turns(kernel: Any, asked: int | None) -> None:
    module = scheduled(kernel, SIZES, ping_pong=asked)
    assert fact(steady(module), "pipeline") == 1
    assert not ops(module, TurnOp)


def test_too_many_registers_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.schedule.hopper.pipeline_products.RESERVED_REGISTERS", 96)
    loop = steady(scheduled(attention_of(256, 128, 64, False), SIZES))
    assert fact(loop, "pipeline") == 0
    assert "registers of tiles leave too few of 240" in str(loop.attributes["tessera_notes.pipeline"])
    assert not ops(loop, MmaStartOp)


def test_products_that_add_to_two_sums_overlap_work_of_the_same_step() -> None:
    module = scheduled(slopes_of_keys(64, 128, 64), SIZES)
    loop = steady(module)
    steps = [op for op in loop.body.block.ops if isinstance(op, MmaStartOp | MmaWaitOp)]
    assert [(type(op), steps.index(op.start) if isinstance(op, MmaWaitOp) else None) for op in steps] == [
        (MmaStartOp, None),  # scores
        (MmaStartOp, None),  # slopes of weights, which run while weights are computed
        (MmaWaitOp, 0),
        (MmaStartOp, None),  # values' gradients, while the slopes are used
        (MmaWaitOp, 1),
        (MmaStartOp, None),
        (MmaWaitOp, 3),
        (MmaWaitOp, 5),
    ]
    assert "products in stages 0, 0, 0, 0" in str(loop.attributes["tessera_notes.pipeline"])
    (split,) = ops(module, RolesOp)
    (copies,) = [op for op in split.producer.block.ops if isinstance(op, scf.ForOp)]
    assert len(ops(copies, BarrierExpectOp)) == 1, "statistics arrive with queries"
    assert sorted(len(op.buffer.type.shape) for op in ops(copies, BulkCopyOp)) == [1, 1, 2, 2]


def test_a_row_is_read_where_it_is_needed() -> None:
    block = steady(scheduled(slopes_of_keys(64, 128, 64), SIZES)).body.block
    at = {op: number for number, op in enumerate(block.ops)}
    loads = [op for op in block.ops if isinstance(op, SharedLoadOp)]
    assert len(loads) == 2
    (powers,) = [at[op] for op in block.ops if isinstance(op, ElementwiseOp) and op.fn.data == "exp"]
    assert at[loads[0]] < powers < at[loads[1]], "it would take registers meanwhile"


@pytest.mark.parametrize("seed", [None, 0, 3])
@pytest.mark.parametrize(("rows", "columns", "length"), [(128, 64, 136), (64, 64, 128), (128, 64, 260)])
def test_slopes_of_keys_equal_float64(rows: int, columns: int, length: int, seed: int | None) -> None:
    rng = np.random.default_rng(length)
    # With larger queries each would see one key alone.
    k, v, q, g = ((rng.standard_normal((2, length, 64)) / c).astype(ml_dtypes.bfloat16) for c in (1, 1, 8, 1))
    exact = [one.astype(np.float64) for one in (k, v, q, g)]
    scores = exact[2] @ exact[0].swapaxes(1, 2)
    lse = np.log(np.exp(scores).sum(2))
    weights = np.exp(scores - lse[:, :, None])
    of_weights = exact[3] @ exact[1].swapaxes(1, 2)
    delta = (weights * of_weights).sum(2)
    slopes = weights * (of_weights - delta[:, :, None])
    found = [np.full((2, length, 64), np.nan, np.float32) for _ in range(2)]
    module = scheduled(slopes_of_keys(64, rows, columns), {"H": 2, "S": length})
    assert ops(module, RolesOp)
    statistics = [one.astype(np.float32) for one in (lse, delta)]
    interpret(module, [k, v, q, g, *statistics, *found], order_seed=seed)
    expected = slopes.swapaxes(1, 2) @ exact[2], weights.swapaxes(1, 2) @ exact[3]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max())


def graph_of(kernel: Any) -> Graph:
    module = specialized(kernel, SIZES)
    (grid,) = ops(module, GridOp)
    (split,) = ops(module, RolesOp)
    (loop,) = [op for op in split.consumer.block.ops if isinstance(op, scf.ForOp)]
    return Graph.of(loop, grid.attributes["tessera_schedule.num_warps"].data, HOPPER.machine.rates)


@pytest.mark.parametrize("kernel", [attention, gated_chain, attention_of(128, 128, 64, True)])
def test_every_schedule_keeps_every_dependence(kernel: Any) -> None:
    graph = graph_of(kernel)
    found = overlapped(graph)
    assert found
    for schedule in found:
        assert sorted(map(id, schedule.order)) == sorted(map(id, graph.nodes))
        place = {node: at for at, node in enumerate(schedule.order)}
        for edge in graph.edges:
            crossing = schedule.crossing(edge)
            assert crossing > 0 or (crossing == 0 and place[edge.before] < place[edge.after])
        assert schedule.cycles < in_order(graph).cycles
        assert schedule.registers() > 0


def attention_reference(q: Any, k: Any, v: Any, causal: bool) -> Any:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
    if causal:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def run_attention(module: ModuleOp, heads: int, length: int, size: int, causal: bool, **options: Any) -> None:
    q, k, v = (random(heads, length, size) + i for i in range(3))
    out = np.full((heads, length, size), np.nan, np.float32)
    interpret(module, [q, k, v, out], **options)
    np.testing.assert_allclose(out, attention_reference(q, k, v, causal), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("size", "columns"), [(64, 64), (64, 128), (128, 64), (128, 128)])
@pytest.mark.parametrize("length", [1, 129, 333])
def test_attention_equals_float64(size: int, columns: int, length: int, causal: bool) -> None:
    module = scheduled(attention_of(size, 128, columns, causal), {"H": 1, "S": length})
    assert fact(steady(module), "pipeline") == 1
    run_attention(module, 1, length, size, causal)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stages", [2, 3])
def test_any_interleaving_of_the_roles_is_right(seed: int, stages: int) -> None:
    module = scheduled(attention_of(64, 64, 64, True), {"H": 1, "S": 333}, stages=stages)
    run_attention(module, 1, 333, 64, True, order_seed=seed)


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize(("m", "f", "stages"), [(64, 64, None), (70, 200, 2), (3, 0, 2), (130, 333, 3)])
def test_a_gated_chain_equals_float64(m: int, f: int, stages: int | None, seed: int | None) -> None:
    module = scheduled(gated_chain, {"M": m, "F": f}, stages=stages)
    x, g, u, d = random(m, 64), random(f, 64), random(f + 1, 64)[:f], random(f, 128)
    y = np.full((m, 128), np.nan, np.float32)
    interpret(module, [x, g, u, d, y], order_seed=seed)
    wide = [a.astype(np.float64) for a in (x, g, u, d)]
    gate = wide[0] @ wide[1].T
    expected = (gate / (1 + np.exp(-gate)) * (wide[0] @ wide[2].T)) @ wide[3]
    np.testing.assert_allclose(y, expected, rtol=2e-2, atol=2e-2 * max(1, np.abs(expected).max()))


# What the interpreter must find wrong


def changed(change: Any) -> ModuleOp:
    module = scheduled(attention_of(64, 64, 64, False), {"H": 1, "S": 640}, stages=2)
    change(steady(module).body.block)
    return module


def release_early(ring: int) -> Any:
    """Hand a ring back once its product has started."""

    def change(block: Any) -> None:
        (arrive,) = [op for op in block.ops if isinstance(op, BarrierArriveOp) and ring_of(op.barriers) == ring]
        start = [op for op in block.ops if isinstance(op, MmaStartOp)][ring]
        arrive.detach()
        block.insert_op_after(arrive, start)

    return change


def no_wait_for(ring: int) -> Any:
    def change(block: Any) -> None:
        (wait,) = [op for op in block.ops if isinstance(op, BarrierWaitOp) and ring_of(op.barriers) == ring]
        wait.detach()

    return change


def more_pending(number: int) -> Any:
    def change(block: Any) -> None:
        wait = [op for op in block.ops if isinstance(op, MmaWaitOp)][number]
        wait.properties["pending"] = IntAttr(wait.pending.data + 1)

    return change


def test_queries_handed_back_before_the_last_product_are_found() -> None:
    module = changed(lambda _block: None)
    (split,) = ops(module, RolesOp)
    role = split.consumer.block
    (wait,) = [op for op in role.ops if isinstance(op, BarrierWaitOp)]
    (arrive,) = [op for op in role.ops if isinstance(op, BarrierArriveOp)]
    arrive.detach()
    role.insert_op_after(arrive, wait)
    body = split.parent_op()
    assert isinstance(body, GridOp)
    twice = split.producer.block  # as for the next tile of a persistent program
    first = [op for op in twice.ops if isinstance(op, BarrierWaitOp | BarrierExpectOp | BulkCopyOp)]
    flipped = ConstantOp(0, index)
    end = twice.last_op
    assert end is not None
    twice.insert_op_before(flipped, end)
    for op in first:
        again = op.clone()
        if isinstance(again, BarrierWaitOp):
            again.operands[2] = flipped.result
        twice.insert_op_before(again, end)
    module.verify()
    q, k, v = (random(1, 640, 64) for _ in range(3))
    with pytest.raises(DeviceError, match="race"):
        interpret(module, [q, k, v, np.zeros((1, 640, 64), np.float32)])


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(release_early(0), "by mma_start", id="keys released early"),
        pytest.param(release_early(1), "by mma_start", id="values released early"),
        pytest.param(no_wait_for(0), "mma_start", id="no wait for keys"),
        pytest.param(no_wait_for(1), "mma_start", id="no wait for values"),
        pytest.param(more_pending(0), "accumulators of a product under way", id="scores read early"),
        pytest.param(more_pending(1), "accumulators of a product under way", id="output read early"),
    ],
)
def test_a_wrong_pipeline_is_found(change: Any, message: str, seed: int | None) -> None:
    module = changed(change)
    q, k, v = (random(1, 640, 64) for _ in range(3))
    with pytest.raises(DeviceError) as caught:
        interpret(module, [q, k, v, np.zeros((1, 640, 64), np.float32)], order_seed=seed)
    assert caught.value.code in ("race", "uninitialized-read")
    assert message in str(caught.value)


# What the assembler makes of it


@pytest.mark.parametrize(
    ("size", "columns", "causal"),
    [(64, 64, True), (64, 128, False), (64, 128, True), (128, 64, False), (128, 64, True), (128, 128, True)],
)
def test_attention_assembles_without_spills(size: int, columns: int, causal: bool) -> None:
    module = aligned(attention_of(size, 128, columns, causal), SIZES)
    for step in schedule_passes(HOPPER, Knobs()):
        step.apply(module)
    assert fact(steady(module), "pipeline") == 1
    lowered = lower_to_simt(module, HOPPER)
    (func,) = [op for op in lowered.ops if isinstance(op, FuncOp)]
    func.verify()
    code = compile_nvidia(lowered, HOPPER)
    (facts,) = code.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert "serialized_products" not in facts
    # The exponentials of the steady loop lie before its second wait, and the packing of the probabilities, whose
    # registers the second product reads, behind.
    text = code.dumps["ptx"]
    assert isinstance(text, str)
    before, behind = text.split("nanosleep")
    assert before[before.rindex("$L__BB") :].count("ex2.approx.ftz") >= columns // 2
    wait, after = behind.split("wgmma.wait_group.sync.aligned 0;", 1)
    assert "ex2" not in wait
    assert after.split("wgmma")[0].count("cvt.rn.bf16x2") == columns // 4


def test_turns_are_named_barriers_of_both_warpgroups() -> None:
    module = aligned(attention_of(128, 128, 128, False), SIZES)
    for step in schedule_passes(HOPPER, Knobs(ping_pong=1)):
        step.apply(module)
    code = compile_nvidia(lower_to_simt(module, HOPPER), HOPPER)
    (facts,) = code.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == 0
    assert "serialized_products" not in facts
    text = code.dumps["ptx"]
    assert isinstance(text, str)
    assert text.count("bar.arrive 2, 256;") == 1
    take, give = (re.findall(rf"bar\.{kind} (%r\d+), 256;", text) for kind in ("sync", "arrive"))
    assert len(take) == len(give) == 1
