"""SIMT lowering of warp roles, phase barriers and bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.ir import Block, SSAValue

from tessera.ir.target import memory as memory
from tessera.ir.target import roles as target
from tessera.ir.target.types import PANEL_BYTES, BufferType
from tessera.ir.tile.roles import (
    AllocBarriersOp,
    BarrierArriveOp,
    BarrierExpectOp,
    BarriersType,
    BarrierWaitOp,
    BulkCopyOp,
    RoleEndOp,
    RolesOp,
)
from tessera.ir.tile.structure import ArgInfo
from tessera.ir.tile.types import SharedType
from tessera.ir.types import dtype_of, element_type
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import Placements, infers, place_block
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes


@infers(RolesOp)
def _place_roles(placements: Placements, op: RolesOp) -> None:
    for region in op.regions:
        place_block(placements, region.block.ops)


@lowers(RolesOp)
def _roles(context: SimtContext, op: RolesOp) -> None:
    blocks: list[Block] = []
    state = [context.scalar(value) for value in op.state]
    for region in op.regions:
        block = Block()
        with context.into(block):
            run = partial(_run_role, context, region.block)
            if context.tiles is None:
                run(state)
            else:
                context.tiles(run, state)
        blocks.append(block)
    context.location = op.location
    registers = (op.producer_registers.data, op.consumer_registers.data)
    context.emit(target.RolesOp(blocks[0], blocks[1], registers))


def _run_role(context: SimtContext, source: Block, state: Sequence[SSAValue]) -> list[SSAValue]:
    """Lower a role's ops for one tile, from a state to the one it leaves."""
    for argument, value in zip(source.args, state, strict=True):
        context.define(argument, value)
    end = source.last_op
    assert isinstance(end, RoleEndOp)
    context.lower_block([op for op in source.ops if op is not end])
    return [context.scalar(value) for value in end.state]


@lowers(AllocBarriersOp)
def _alloc(context: SimtContext, op: AllocBarriersOp) -> None:
    assert isinstance(op.result.type, BarriersType)
    type_ = BufferType.of([op.result.type.count.data], element_type(dtypes.i64), "shared")
    buffer = context.value(memory.AllocOp(type_))
    context.emit(target.MbarrierInitOp(buffer, _arriving_threads(context, op)))
    context.define(op.result, buffer)


def _arriving_threads(context: SimtContext, op: AllocBarriersOp) -> int:
    """Return how many threads arrive in a phase: the expecting thread, or one of each consumer warp."""
    expected = any(isinstance(use.operation, BarrierExpectOp) for use in op.result.uses)
    return op.arrivals.data * (1 if expected else context.num_warps)


@lowers(BarrierExpectOp)
def _expect(context: SimtContext, op: BarrierExpectOp) -> None:
    context.emit(target.MbarrierExpectOp(context.scalar(op.barriers), context.scalar(op.at), op.bytes.data))


@lowers(BarrierArriveOp)
def _arrive(context: SimtContext, op: BarrierArriveOp) -> None:
    context.emit(target.MbarrierArriveOp(context.scalar(op.barriers), context.scalar(op.at)))


@lowers(BarrierWaitOp)
def _wait(context: SimtContext, op: BarrierWaitOp) -> None:
    barriers, at, parity = (context.scalar(value) for value in (op.barriers, op.at, op.parity))
    context.emit(target.MbarrierWaitOp(barriers, at, parity))


def map_order(info: ArgInfo, rank: int) -> list[int]:
    """Return a tensor's dimensions as a tensor map has them: the contiguous one, then the others, last first."""
    contiguous = info.strides.index(1) if 1 in info.strides else rank - 1
    return [contiguous, *(axis for axis in reversed(range(rank)) if axis != contiguous)]


@lowers(BulkCopyOp)
def _copy(context: SimtContext, op: BulkCopyOp) -> None:
    arg = context.params.position(op.tensor)
    info = context.params.infos[arg]
    assert isinstance(op.buffer.type, SharedType)
    order = map_order(info, len(op.size_list))
    panel = PANEL_BYTES // dtype_of(op.buffer.type.element).bytes
    box = [min(op.size_list[order[0]], panel), *(op.size_list[axis] for axis in order[1:])]
    map_ = context.params.tensor_map(arg, order, box)
    coordinates = [context.scalar(op.offsets[axis]) for axis in order]
    buffer, barriers, at = (context.scalar(value) for value in (op.buffer, op.barriers, op.at))
    context.emit(target.BulkCopyOp(buffer, map_, barriers, at, coordinates, box))
