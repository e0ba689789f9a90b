"""SIMT lowering of warp roles, phase barriers and bulk copies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from xdsl.ir import Block, SSAValue

from tessera.errors import CompilerFault
from tessera.ir.layouts import WARP
from tessera.ir.target import cluster
from tessera.ir.target import memory as memory
from tessera.ir.target import roles as target
from tessera.ir.target.types import BufferType
from tessera.ir.tile.roles import (
    AllocBarriersOp,
    BarrierArriveOp,
    BarrierExpectOp,
    BarriersType,
    BarrierWaitOp,
    BulkCopyOp,
    BulkStoreOp,
    BulkWaitOp,
    RoleEndOp,
    RoleGroupOp,
    RolesOp,
)
from tessera.ir.tile.shared import SharedGatherOp, SharedLoadOp, SharedStoreOp
from tessera.ir.tile.structure import DimOp
from tessera.ir.tile.types import SharedType
from tessera.ir.types import dtype_of, element_type
from tessera.ir.walking import ops_in
from tessera.lower.facts import Range, value_range
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import Placements, infers, place_block
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.target.artifact import MOST_MAPPED
from tessera.target.boxes import TRIMMED_ROWS, map_order, panel_box, shared_axis


@infers(RolesOp)
def _place_roles(placements: Placements, op: RolesOp) -> None:
    for region in op.regions:
        place_block(placements, region.block.ops)


@lowers(RolesOp)
def _roles(context: SimtContext, op: RolesOp) -> None:
    blocks: list[Block] = []
    state = [context.scalar(value) for value in op.state]
    groups = op.groups.data
    in_turn = groups > 1 and op.together is None
    if in_turn and context.tiles is None:
        raise CompilerFault("groups of consumers share the tiles of a persistent program")
    for region in op.regions:
        block = Block()
        with context.role(block):
            if groups > 1 and region is op.consumer:
                context.group, context.groups = context.value(target.RoleGroupOp()), groups
                context.in_turn = in_turn
            run = partial(_run_role, context, region.block)
            if context.tiles is None:
                run(state)
            else:
                context.tiles(run, state)
        blocks.append(block)
    context.group, context.groups, context.in_turn, context.kept_bytes = None, 1, False, None
    context.location = op.location
    registers = (op.producer_registers.data, op.consumer_registers.data)
    if any(isinstance(inner, BulkStoreOp) for inner in op.consumer.walk()):
        end = target.BulkWaitOp(0)  # shared memory must stay until the last stores have read it
        end.location = op.location
        blocks[1].add_op(end)
    start = context.params.func.body.block
    for map_ in reversed(context.params.tensor_maps):  # it takes as long as setting up the barriers: both at once
        fetch = target.PrefetchMapOp(map_)
        fetch.location = op.location
        start.insert_op_before(fetch, start.first_op) if start.first_op is not None else start.add_op(fetch)
    context.emit(memory.BarrierOp())  # all threads see the phase barriers
    context.wait_for_launch()
    context.emit(target.RolesOp(blocks[0], blocks[1], registers, groups))
    if any(isinstance(inner, BulkCopyOp) and inner.programs.data > 1 for inner in op.producer.walk()):
        context.emit(cluster.ClusterBarrierOp())  # no program ends while another one still writes to its memory


def _run_role(context: SimtContext, source: Block, state: Sequence[SSAValue]) -> list[SSAValue]:
    """Lower a role's ops for one tile, from a state to the one it leaves."""
    for argument, value in zip(source.args, state, strict=True):
        context.define(argument, value)
    end = source.last_op
    assert isinstance(end, RoleEndOp)
    context.lower_block([op for op in source.ops if op is not end])
    return [context.scalar(value) for value in end.state]


@lowers(RoleGroupOp)
def _group(context: SimtContext, op: RoleGroupOp) -> None:
    assert context.group is not None
    context.define(op.result, context.group)


@lowers(AllocBarriersOp)
def _alloc(context: SimtContext, op: AllocBarriersOp) -> None:
    assert isinstance(op.result.type, BarriersType)
    type_ = BufferType.of([op.result.type.count.data], element_type(dtypes.i64), "shared")
    buffer = context.value(memory.AllocOp(type_))
    context.emit(target.MbarrierInitOp(buffer, _arriving_threads(context, op)))
    if op.programs.data > 1:
        context.emit(cluster.ClusterBarrierOp())
    context.define(op.result, buffer)


def _arriving_threads(context: SimtContext, op: AllocBarriersOp) -> int:
    """Return how many threads arrive in a phase: the expecting thread, or one of each consumer warp."""
    expected = any(isinstance(use.operation, BarrierExpectOp) for use in op.result.uses)
    return op.arrivals.data * op.programs.data * (1 if expected else context.num_warps)


@lowers(BarrierExpectOp)
def _expect(context: SimtContext, op: BarrierExpectOp) -> None:
    context.emit(target.MbarrierExpectOp(context.scalar(op.barriers), context.scalar(op.at), op.bytes.data))


@lowers(BarrierArriveOp)
def _arrive(context: SimtContext, op: BarrierArriveOp) -> None:
    assert op.parent is not None
    if any(isinstance(other, SharedLoadOp | SharedGatherOp) for other in op.parent.walk()):
        if _frees_for_copies(op):
            # Threads' reads and what the copy engine writes are of two proxies: an arrival alone does not order them.
            context.emit(target.ProxyFenceOp())
        context.emit(target.WarpBarrierOp())  # one lane arrives for all, whose own reads must be complete
    barriers, at, programs = context.scalar(op.barriers), context.scalar(op.at), _sharing(op)
    when = None if op.when is None else context.scalar(op.when)
    if programs > 1:
        context.emit(cluster.ClusterArriveAllOp(barriers, at, programs, when))
    else:
        context.emit(target.MbarrierArriveOp(barriers, at, when))


def _frees_for_copies(op: BarrierArriveOp) -> bool:
    """Return whether a producer waits for an arrival, to start copies to what has been read."""
    waits = (use.operation for use in op.barriers.uses if isinstance(use.operation, BarrierWaitOp))
    return any(isinstance(other, BulkCopyOp) for wait in waits if wait.parent is not None for other in wait.parent.ops)


def _sharing(op: BarrierArriveOp) -> int:
    owner = op.barriers.owner
    return owner.programs.data if isinstance(owner, AllocBarriersOp) else 1


@lowers(BarrierWaitOp)
def _wait(context: SimtContext, op: BarrierWaitOp) -> None:
    barriers, at, parity = (context.scalar(value) for value in (op.barriers, op.at, op.parity))
    context.emit(target.MbarrierWaitOp(barriers, at, parity))


@lowers(BulkCopyOp)
def _copy(context: SimtContext, op: BulkCopyOp) -> None:
    arg = context.params.position(op.tensor)
    info = context.params.infos[arg]
    assert isinstance(op.buffer.type, SharedType)
    order = map_order(info.strides)
    box, programs = _box(op, order), op.programs.data
    sizes = [op.size_list[axis] for axis in order]
    part_axis = shared_axis(sizes, dtype_of(op.buffer.type.element).bytes, programs)
    if part_axis is None:
        raise CompilerFault(f"{programs} programs cannot share out a copy of {sizes}")
    if part_axis:
        box[part_axis] //= programs
    end = _end(context, op, order, box) if programs == 1 else None
    map_ = context.params.tensor_map(arg, order, box, "tf32" if op.tf32 is not None else None)
    coordinates = [_coordinate(context, op, axis) for axis in order]
    buffer, barriers, at = (context.scalar(value) for value in (op.buffer, op.barriers, op.at))
    once = None if op.once is None else context.scalar(op.once)
    context.emit(target.BulkCopyOp(buffer, map_, barriers, at, coordinates, box, programs, part_axis, once, end))


def _end(context: SimtContext, op: BulkCopyOp, order: Sequence[int], box: list[int]) -> tuple[int, SSAValue] | None:
    """Return the axis of a box along which copies past the tensor's end are left out, and that end; None without one.

    The box is cut into several along it, but along rows of a panel.
    """
    if op.loose is None:
        return None
    axis = order.index(op.loose.data)
    if axis and box[axis] % TRIMMED_ROWS == 0:
        box[axis] = TRIMMED_ROWS
    if box[axis] == op.size_list[op.loose.data] and isinstance(op.offsets[op.loose.data].owner, Block):
        return None  # a tile begins inside of the tensor
    arg = context.params.position(op.tensor)
    known = context.params.known_size(arg, op.loose.data)
    if known is not None:
        return axis, context.scalars.constant(known)
    return axis, context.params.size(arg, op.loose.data)


def _coordinate(context: SimtContext, op: BulkCopyOp | BulkStoreOp, axis: int) -> SSAValue:
    """Return where a box starts along a dimension, as a number of 32 bits: all that lies outside is alike there."""
    dims, scalars = context.params.infos[context.params.position(op.tensor)].dims, context.scalars
    start, known = context.scalar(op.offsets[axis]), dict[SSAValue, Range]()
    for size in (o for o in ops_in(context.params.kernel) if isinstance(o, DimOp)):
        info = context.params.infos[context.params.position(size.tensor)]
        if size.tensor is op.tensor or info.dims[size.axis.data] in dims:
            known[size.result] = (0, MOST_MAPPED)  # else the array has no tensor map
    low, high = value_range(op.offsets[axis], known)
    if low < -MOST_MAPPED:
        start = scalars.binary("maximum", start, -MOST_MAPPED)
    if high >= 1 << 31:
        start = scalars.binary("minimum", start, MOST_MAPPED)
    return start


def _box(op: BulkCopyOp | BulkStoreOp, order: Sequence[int]) -> list[int]:
    """Return the box of one copy: at most a panel wide, but for a row by itself."""
    assert isinstance(op.buffer.type, SharedType)
    sizes = [op.size_list[axis] for axis in order]
    is_row = len(op.buffer.type.shape) == 1
    return sizes if is_row else panel_box(sizes, dtype_of(op.buffer.type.element).bytes)


@lowers(BulkStoreOp)
def _bulk_store(context: SimtContext, op: BulkStoreOp) -> None:
    arg = context.params.position(op.tensor)
    order = map_order(context.params.infos[arg].strides)
    box, rows = _box(op, order), _rows_of_warps(context, op)
    row_axis = order.index(op.kept[0])
    if rows:
        box[row_axis] = rows
    map_ = context.params.tensor_map(arg, order, box)
    coordinates = [_coordinate(context, op, axis) for axis in order]
    context.emit(target.ProxyFenceOp())
    context.emit(target.WarpBarrierOp() if rows else memory.BarrierOp())
    context.emit(target.BulkStoreOp(context.scalar(op.buffer), map_, coordinates, box, rows, row_axis))


@lowers(BulkWaitOp)
def _bulk_wait(context: SimtContext, op: BulkWaitOp) -> None:
    assert op.parent is not None
    alone = all(_rows_of_warps(context, other) for other in op.parent.ops if isinstance(other, BulkStoreOp))
    context.emit(target.BulkWaitOp(op.pending.data))
    context.emit(target.WarpBarrierOp() if alone else memory.BarrierOp())


def _rows_of_warps(context: SimtContext, op: BulkStoreOp) -> int:
    """Return how many consecutive rows of the buffer each warp wrote, 0 unless it wrote whole rows and no one else did.

    Then each warp can store its rows without waiting for the others.
    """
    type_, value = op.buffer.type, _written(op)
    assert isinstance(type_, SharedType)
    if value is None or type_.permutation != (0, 1):
        return 0
    layout, warps = context.layout_of(value), context.num_warps
    columns = layout.in_bases(WARP)
    if not columns or len(columns) != warps.bit_length() - 1:
        return 0
    rows = columns[0][0]
    if any(vector != (rows << bit, 0) for bit, vector in enumerate(columns)) or rows % 8:
        return 0
    others = [vector for dim, vectors in layout.bases if dim != WARP for vector in vectors]
    return rows if all(row < rows or (row >= rows * warps and column == 0) for row, column in others) else 0


def _written(op: BulkStoreOp) -> SSAValue | None:
    """Return the tile that was stored last to the buffer, in the same block."""
    before = op.prev_op
    while before is not None:
        if isinstance(before, SharedStoreOp) and before.buffer is op.buffer:
            return before.value
        before = before.prev_op
    return None
