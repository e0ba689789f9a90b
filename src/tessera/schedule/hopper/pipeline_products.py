"""Overlaps products of a consumer's loop with the arithmetic between them (Hopper).

Before, as attention has it::

    scf.for ... iter_args(%o, ...) {
      barrier_wait K; %s = mma Q, K; barrier_arrive K; softmax of %s
      barrier_wait V; %o' = mma %p, V, %o * alpha; barrier_arrive V
    }

After::

    S of the first block; its softmax
    scf.for ... iter_args(%o, %p, ...) {
      barrier_wait K; %1 = mma_start Q, K            (of this iteration)
      barrier_wait V; %2 = mma_start %p, V, %o       (of the one before)
      %s = mma_wait %1 pending 1; barrier_arrive K; softmax of %s, while %2 runs
      %o' = mma_wait %2 pending 0; barrier_arrive V; %o' * alpha; the next %p
    }
    O of the last block

`schedule.modulo` decides which op belongs to which iteration; the loop's attributes record the choice
(`tessera_schedule.pipeline` and `.cycles`) and its note the reason. The producer's loop gets the same stages, so that
it fetches in the order in which the consumers read. Where products add to several sums, or two iterations take too many
registers, only the ops of one iteration change places. Loops whose products do not depend on each other stay as they
are.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp, RoundTf32Op
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.roles import BarrierExpectOp, BarrierWaitOp, BulkCopyOp, RolesOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp, TurnOp
from tessera.ir.walking import ops_in
from tessera.schedule.costs import Engine
from tessera.schedule.dependences import Graph, is_remade, ring_of
from tessera.schedule.hopper.rings import are_dependent, top_of
from tessera.schedule.hopper.stage_shift import Instance, reorder, shift
from tessera.schedule.knobs import Knobs
from tessera.schedule.modulo import Schedule, in_order, overlapped, within
from tessera.schedule.products import GROUP_WARPS
from tessera.schedule.scheduled_pass import ScheduledPass
from tessera.target.machines import Rates

TURNS = 0.95
"""Time of the work between products, as a part of theirs, from which on warpgroups take turns: attention on an H200
takes 0.91 to 0.98 of the time where heads are of 128 (1.0) and queries see the keys before them, 0.93 where they are of
80 (1.6), and 1.02 of it where they are of 192 (0.76)."""
GAIN = 0.95
"""A schedule must make an iteration this much shorter to be worth its registers and code."""

_WORKING = (Engine.VECTOR, Engine.SPECIAL)
_WORK = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op, ReduceOp)
"""Work of threads that runs beside products."""
_NAMING = (BroadcastOp, ReshapeOp, TransposeOp)
"""What says anew which element a register holds."""

RESERVED_REGISTERS = 48
"""Registers of a thread for addresses, counters and temporaries, besides tiles."""
RESERVED_OF_GROUPS = 40
"""The same of three groups, of which two compute while one waits: attention to 4096 positions on an H200 takes 0.92 of
the time where heads are of 32 (120 registers of tiles), causal 1.08 of it where they are of 64 (136)."""
LEAST_RESERVED = 24
"""The same where products overlap work of the same iteration alone."""


@dataclass(frozen=True)
class PipelineProductsPass(ScheduledPass):
    """Pipelines the loops of consumers whose products wait for each other.

    Args:
        target: the GPU.
        knobs: `pipeline` forces or forbids it, `ping_pong` lets warpgroups take turns.
    """

    name: ClassVar[str] = "pipeline-products"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every loop of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            grid = roles.parent_op()
            warps = decisions.NUM_WARPS.of(grid) if isinstance(grid, GridOp) else None
            for loop in [op for op in roles.consumer.block.ops if isinstance(op, scf.ForOp)]:
                if warps is not None and are_dependent(loop):
                    _try(roles, loop, warps, self.target.machine.rates, self.knobs)


MACHINE = "ptx"
"""Whose inline assembly runs."""


def _try(roles: RolesOp, loop: scf.ForOp, warps: int, rates: Rates, knobs: Knobs) -> None:
    reserved = RESERVED_REGISTERS if roles.together is None else RESERVED_OF_GROUPS
    registers = roles.consumer_registers.data
    schedule, reason = _chosen(Graph.of(loop, warps, rates, MACHINE), registers, reserved, knobs.pipeline)
    if schedule is not None:
        if any(schedule.stage.values()):
            _shift_producer(roles, schedule)
            loop = shift(loop, schedule.stage, lambda now, before: _emit(schedule, now, before))
        else:
            loop = reorder(loop, lambda now, before: _emit(schedule, now, before))
        decisions.CYCLES.write(loop, round(schedule.cycles))
        _mark_waits(loop.body.block)
        turns = _gains_by_turns(schedule) if knobs.ping_pong is None else knobs.ping_pong
        if turns and warps == 2 * GROUP_WARPS:
            _take_turns(roles, loop)
    decisions.PIPELINE.write(loop, int(schedule is not None))
    note(loop, "pipeline", [reason])


def _chosen(graph: Graph, registers: int, reserved: int, asked: int | None) -> tuple[Schedule | None, str]:
    """Return the schedule to use, None to leave the loop as it is, and why.

    Where products add to several sums, those of one iteration overlap enough: what is left for the next one would hold
    back the first products of that (gradients of keys and values on an H200, heads of 64: 0.98 ms for 1.11 to 1.21).
    """
    plain = in_order(graph)
    if asked == 0:
        return None, "products in order: asked for"
    found, alone = overlapped(graph), within(graph)
    if not found and alone is None:
        return None, "products in order: no other order of this loop keeps its dependences"
    fitting = [s for s in found if s.registers() + reserved <= registers]
    if alone is not None and alone.registers() + LEAST_RESERVED <= registers:
        gains = not fitting and alone.cycles <= GAIN * plain.cycles
        fitting = [alone] if gains or _sums(graph) > 1 else fitting
    candidates = [*found, alone] if alone is not None else found
    if not fitting and not asked:
        least = min(schedule.registers() for schedule in candidates)
        return None, f"products in order: {least:.0f} registers of tiles leave too few of {registers}"
    best = (fitting or candidates)[0]
    if best.cycles > GAIN * plain.cycles and not asked:
        return None, f"products in order: {best.cycles:.0f} cycles an iteration against {plain.cycles:.0f}"
    stages = ", ".join(str(best.stage[op]) for op in graph.products)
    return best, (
        f"products in stages {stages}: {best.cycles:.0f} cycles an iteration of a warpgroup alone, "
        f"{plain.cycles:.0f} in order; {best.registers():.0f} registers of tiles"
    )


def _sums(graph: Graph) -> int:
    """Return how many sums of products a loop carries."""
    block = graph.loop.body.block
    return len({op.operands[2] for op in graph.products if op.operands[2] in block.args})


def _emit(schedule: Schedule, now: Instance, before: Instance) -> None:
    """Write the new loop's body."""
    started: dict[Operation, MmaStartOp] = {}
    for node in schedule.order:
        op = node.op
        instance = before if schedule.stage[op] else now
        if op not in schedule.graph.products:
            instance.add(op)
            continue
        assert isinstance(op, MmaOp)
        if op not in started:
            started[op] = instance.start(op)
        else:
            instance.wait(op, started[op], schedule.pending(node))


def _mark_waits(block: Block) -> None:
    """Mark the waits that come right after work of threads: it is to run before them, beside the products."""
    used: dict[Operation, None] = {}
    for op in reversed(list(block.ops)):
        users = [top_of(use.operation, block) for result in op.results for use in result.uses]
        acts = op is block.last_op or bool(op.regions) or effect_of(op) > Effect.PURE
        if acts or any(user in used for user in users):
            used[op] = None
    order = [op for op in used if not isinstance(op, _NAMING)]
    for wait, before in itertools.pairwise(order):
        if isinstance(wait, MmaWaitOp) and isinstance(before, _WORK):
            decisions.AFTER_WORK.write(wait)


def _gains_by_turns(schedule: Schedule) -> bool:
    """Return whether warpgroups are to start their products in turn, so that one computes while the other multiplies.

    Without turns both may wait for the matrix units at once, and then compute at once. Products that follow other work
    of an iteration leave no time for the other warpgroup.
    """
    graph = schedule.graph
    starts = [schedule.order.index(graph.start[op]) for op in graph.products]
    during = schedule.order[min(starts) : max(starts)]
    work = sum(node.cycles for node in graph.nodes if node.engine in _WORKING)
    products = sum(node.cycles for node in graph.nodes if node.engine == Engine.TENSOR)
    return not any(node.engine in _WORKING for node in during) and work >= TURNS * products


def _take_turns(roles: RolesOp, loop: scf.ForOp) -> None:
    """Let two warpgroups start their products in turn, so that one computes while the other multiplies."""
    starts = [op for op in loop.body.block.ops if isinstance(op, MmaStartOp)]
    Inserter(InsertPoint.before(roles), roles).add(TurnOp("init"))
    Inserter(InsertPoint.before(starts[0]), starts[0]).add(TurnOp("take"))
    Inserter(InsertPoint.after(starts[-1]), starts[-1]).add(TurnOp("pass"))
    decisions.PRODUCT_TURNS.write(loop)


def _shift_producer(roles: RolesOp, schedule: Schedule) -> None:
    """Let the producer fetch in the order in which the shifted consumers want."""
    wanted = {
        ring: at
        for op, at in schedule.stage.items()
        if isinstance(op, BarrierWaitOp) and (ring := ring_of(op.barriers)) is not None
    }
    for loop in [op for op in roles.producer.block.ops if isinstance(op, scf.ForOp)]:
        stage = _stages_of_copies(loop.body.block, wanted)
        if stage is not None and len(set(stage.values())) > 1:
            shift(loop, stage, lambda now, before, stage=stage: _emit_copies(stage, now, before))


def _stages_of_copies(block: Block, wanted: dict[int, int]) -> dict[Operation, int] | None:
    """Return the stage of a producer's ops; None where one belongs to no ring."""
    stage: dict[Operation, int] = {}
    for op in block.ops:
        if op is block.last_op or is_remade(op):
            continue
        if not isinstance(op, BarrierWaitOp | BarrierExpectOp | BulkCopyOp):
            return None
        ring = ring_of(op.barriers)
        if ring not in wanted:
            return None
        stage[op] = wanted[ring]
    return stage


def _emit_copies(stage: dict[Operation, int], now: Instance, before: Instance) -> None:
    for number, instance in enumerate((now, before)):
        for op in (op for op, at in stage.items() if at == number):
            instance.add(op)
