"""Hopper's barriers in shared memory (mbarrier), bulk tensor copies (TMA) and warp roles.

Source: PTX ISA 9.2, "mbarrier", "cp.async.bulk.tensor", "setmaxnreg".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from xdsl.ir import SSAValue

from tessera.backends.llvm.ops import I32, I64
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.ir.target.roles import (
    BulkCopyOp,
    BulkStoreOp,
    BulkWaitOp,
    MbarrierArriveOp,
    MbarrierExpectOp,
    MbarrierInitOp,
    MbarrierWaitOp,
    PrefetchMapOp,
    ProxyFenceOp,
    RoleGroupOp,
    RolesOp,
    WarpBarrierOp,
)
from tessera.ir.target.structure import GridWaitOp
from tessera.ir.target.types import BufferType

_EVICT_FIRST, _EVICT_NORMAL = 0x12F0000000000000, 0x1000000000000000
"""Cache policies as CUTLASS has them (cute/arch/copy_sm90_desc.hpp). The first is what `createpolicy` gives; what it
gives for `evict_normal` is another one, with which copies of data that many programs read are a third slower."""


def barrier_address(emitter: NvidiaEmitter, barriers: SSAValue, at: SSAValue) -> str:
    """Return the shared-window address of a barrier."""
    base, index = emitter.unit(barriers), emitter.unit(at)
    if index.isdigit():
        offset = str(int(index) * 8)
    else:
        narrow = emitter.ops.convert("trunc", I64, index, I32)
        offset = emitter.ops.binary("shl", I32, narrow, "3")
    total = offset if base == "0" else emitter.ops.binary("add", I32, base, offset)
    return emitter.shared_address(total)


@NVIDIA.register(MbarrierInitOp)
def emit_init(emitter: NvidiaEmitter, op: MbarrierInitOp) -> None:
    """Let the first thread initialise the barriers; at addresses that differ by lane it would take as long."""
    type_ = op.barriers.type
    assert isinstance(type_, BufferType)
    base = int(emitter.unit(op.barriers))
    for number in range(type_.shape[0]):
        address = emitter.shared_address(str(base + 8 * number))
        text = f"@$1 mbarrier.init.shared::cta.b64 [$0], {op.arrivals.data};"
        emitter.asm(text, "r,b,~{memory}", [], [("i32", address), ("i1", emitter.first_thread())])
    emitter.asm("fence.mbarrier_init.release.cluster;", "~{memory}", [], [])


@NVIDIA.register(MbarrierExpectOp)
def emit_expect(emitter: NvidiaEmitter, op: MbarrierExpectOp) -> None:
    """Arrive and announce bytes."""
    address = barrier_address(emitter, op.barriers, op.at)
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {op.bytes.data};"
    emitter.asm(text, "r,~{memory}", [], [("i32", address)])


@NVIDIA.register(MbarrierArriveOp)
def emit_arrive(emitter: NvidiaEmitter, op: MbarrierArriveOp) -> None:
    """Arrive once for the warp."""
    address = barrier_address(emitter, op.barriers, op.at)
    leader = emitter.first_lane()
    if op.when is not None:
        leader = emitter.fn.assign(f"and i1 {leader}, {emitter.unit(op.when)}")
    emitter.asm(
        "@$1 mbarrier.arrive.shared::cta.b64 _, [$0];",
        "r,b,~{memory}",
        [],
        [("i32", address), ("i1", leader)],
    )


@NVIDIA.register(MbarrierWaitOp)
def emit_wait(emitter: NvidiaEmitter, op: MbarrierWaitOp) -> None:
    """Try until the phase has ended."""
    address = barrier_address(emitter, op.barriers, op.at)
    parity = emitter.ops.convert("trunc", I64, emitter.unit(op.parity), I32)
    text = (
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "@done bra ready; bra again; ready: }"
    )
    emitter.asm(text, "r,r,~{memory}", [], [("i32", address), ("i32", parity)])


@NVIDIA.register(ProxyFenceOp)
def emit_fence(emitter: NvidiaEmitter, _op: ProxyFenceOp) -> None:
    """Order generic writes before later accesses of the asynchronous proxy."""
    emitter.asm("fence.proxy.async.shared::cta;", "~{memory}", [], [])


@NVIDIA.register(GridWaitOp)
def emit_grid_wait(emitter: NvidiaEmitter, _op: GridWaitOp) -> None:
    """Wait for the launch before; the next one may start once all programs of this one have reached this point."""
    emitter.asm("griddepcontrol.wait;", "~{memory}", [], [])
    emitter.asm("griddepcontrol.launch_dependents;", "~{memory}", [], [])


def _producer_thread(emitter: NvidiaEmitter) -> str:
    """Return whether this is the thread that starts the copies."""
    return emitter.entry("producer.thread", f"icmp eq i32 {emitter.thread()}, {emitter.consumer_warps * 32}")


@NVIDIA.register(PrefetchMapOp)
def emit_prefetch(emitter: NvidiaEmitter, op: PrefetchMapOp) -> None:
    """Let the first thread of the producer fetch the map."""
    first = _producer_thread(emitter)
    emitter.asm("@$1 prefetch.tensormap [$0];", "l,b,~{memory}", [], [("ptr", emitter.unit(op.map)), ("i1", first)])


def part_bytes(box: Sequence[int], axis: int, element_bytes: int) -> int:
    """Return how far apart the boxes of neighbouring programs lie in a panel that is split along `axis`.

    A panel's rows are as wide as a box: 128 bytes, or less for narrow tiles.
    """
    return prod(box[: axis + 1]) * element_bytes


@NVIDIA.register(BulkCopyOp)
def emit_bulk_copy(emitter: NvidiaEmitter, op: BulkCopyOp) -> None:
    """Start one copy per panel of the buffer, or of this program's part of the panels or of their rows."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    box, programs = op.box_sizes, op.programs.data
    panels = buffer.stored_shape[-1] // box[0]
    panel_bytes = buffer.size_bytes // panels
    barrier = barrier_address(emitter, op.barriers, op.at)
    coordinates = [emitter.ops.convert("trunc", I64, emitter.unit(c), I32) for c in op.coordinates]
    base = emitter.unit(op.buffer)
    once = [] if op.once is None else [("i1", emitter.unit(op.once))]
    text, constraints = _copy_text(op)
    if programs > 1:
        number = emitter.ops.convert("trunc", I64, emitter.cluster_rank(), I32)
        if op.part_axis.data == 0:
            panels //= programs
        for axis, step in _steps_of_parts(op, panels, panel_bytes):
            moved = emitter.ops.binary("mul", I32, number, str(step))
            if axis is None:
                base = emitter.ops.binary("add", I32, base, moved)
            else:
                coordinates[axis] = emitter.ops.binary("add", I32, coordinates[axis], moved)
    end = None if op.end is None else emitter.ops.convert("trunc", I64, emitter.unit(op.end), I32)

    def plus(value: str, more: int) -> str:
        return emitter.ops.binary("add", I32, value, str(more)) if more else value

    for panel, (axis, place, moved) in itertools.product(range(panels), _boxes_of_panel(op, panel_bytes)):
        here = list(coordinates)
        here[0] = plus(here[0], panel * box[0])
        here[axis] = plus(here[axis], place)
        args = [
            ("i32", emitter.shared_address(plus(base, panel * panel_bytes + moved))),
            ("ptr", emitter.unit(op.map)),
            ("i32", barrier),
            *(("i32", coordinate) for coordinate in here),
            *[("i16", str((1 << programs) - 1))] * (programs > 1),
            *once,
        ]
        if end is not None and op.end_axis is not None:
            args.append(("i1", emitter.fn.assign(f"icmp slt i32 {here[op.end_axis.data]}, {end}")))
        emitter.asm(text, constraints, [], args)


def _boxes_of_panel(op: BulkCopyOp, panel_bytes: int) -> list[tuple[int, int, int]]:
    """Return the copies of a panel: an axis of the box, how far along it each starts, and in how many bytes."""
    axis, buffer = 0 if op.end_axis is None else op.end_axis.data, op.buffer.type
    assert isinstance(buffer, BufferType)
    if not axis:
        return [(0, 0, 0)]
    size = _bytes_of(op)
    return [(axis, number * op.box_sizes[axis], number * size) for number in range(panel_bytes // size)]


def _copy_text(op: BulkCopyOp) -> tuple[str, str]:
    """Return the instruction of one copy, and the constraints of its operands."""
    rank, programs = len(op.box_sizes), op.programs.data
    names = ", ".join(f"${3 + i}" for i in range(rank))
    several = ".multicast::cluster" if programs > 1 else ""
    mask = f", ${3 + rank}" if programs > 1 else ""
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{several}"
    places = f"[$0], [$1, {{{names}}}], [$2]{mask}"
    text, kinds = f"{copy} {places};", ["r", "l", "r", *["r"] * rank, *["h"] * (programs > 1)]
    inside = f"@${len(kinds) + (op.once is not None)} " if op.end is not None else ""
    text = f"{inside}{text}"
    if op.once is not None:  # chosen at each copy: held as a bool, it takes no register
        choice = f"selp.b64 policy, {_EVICT_FIRST}, {_EVICT_NORMAL}, ${len(kinds)};"
        text = f"{{ .reg .b64 policy; {choice} {inside}{copy}.L2::cache_hint {places}, policy; }}"
        kinds.append("b")
    if inside:
        kinds.append("b")
        text += f" {inside.replace('@', '@!')}mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [$2], {_bytes_of(op)};"
    return text, ",".join([*kinds, "~{memory}"])


def _bytes_of(op: BulkCopyOp) -> int:
    """Return the bytes of one copy."""
    assert isinstance(op.buffer.type, BufferType)
    return prod(op.box_sizes) * op.buffer.type.dtype.bytes


def _steps_of_parts(op: BulkCopyOp, panels: int, panel_bytes: int) -> list[tuple[int | None, int]]:
    """Return how far apart the parts of neighbouring programs lie: along an axis, and in the buffer (None) in bytes.

    Args:
        op: the copy.
        panels: those of one program.
        panel_bytes: size of one panel.
    """
    box, axis, buffer = op.box_sizes, op.part_axis.data, op.buffer.type
    assert isinstance(buffer, BufferType)
    if axis == 0:
        return [(0, panels * box[0]), (None, panels * panel_bytes)]
    return [(axis, box[axis]), (None, part_bytes(box, axis, buffer.dtype.bytes))]


@NVIDIA.register(WarpBarrierOp)
def emit_warp_barrier(emitter: NvidiaEmitter, _op: WarpBarrierOp) -> None:
    """Wait for the lanes of the warp."""
    emitter.asm("bar.warp.sync -1;", "~{memory}", [], [])


@NVIDIA.register(BulkWaitOp)
def emit_bulk_wait(emitter: NvidiaEmitter, op: BulkWaitOp) -> None:
    """Wait until this thread's groups have been read; threads that started none go on at once."""
    emitter.asm(f"cp.async.bulk.wait_group.read {op.pending.data};", "~{memory}", [], [])


@NVIDIA.register(BulkStoreOp)
def emit_bulk_store(emitter: NvidiaEmitter, op: BulkStoreOp) -> None:
    """Start one copy per panel, and per run of rows of the warp, in the first lane of each warp or of the first one."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    box, rows, rank = op.box_sizes, op.rows.data, len(op.box_sizes)
    height, width = buffer.stored_shape
    row_bytes = box[0] * buffer.dtype.bytes
    if rows:
        leader = emitter.first_lane()
        step = emitter.entry(("warp.rows", rows), f"mul i32 {emitter.warp()}, {rows}")
    else:
        leader = emitter.first_thread()
        step = "0"
    coordinates = [emitter.ops.convert("trunc", I64, emitter.unit(c), I32) for c in op.coordinates]
    names = ", ".join(f"${2 + i}" for i in range(rank))
    text = f"@${2 + rank} cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [$1, {{{names}}}], [$0];"
    constraints = ",".join(["r", "l", *["r"] * rank, "b", "~{memory}"])

    def plus(value: str, more: str) -> str:
        return value if more == "0" else emitter.ops.binary("add", I32, value, more)

    moved = emitter.ops.binary("mul", I32, step, str(row_bytes)) if rows else "0"
    start = plus(emitter.unit(op.buffer), moved)
    for panel in range(width // box[0]):
        for run in range(0, height if rows else 1, rows * emitter.num_warps or 1):
            offset = plus(start, str((panel * height + run) * row_bytes))
            places = list(coordinates)
            places[0] = plus(places[0], str(panel * box[0]))
            if rows:
                places[op.row_axis.data] = plus(plus(places[op.row_axis.data], step), str(run))
            args = [
                ("i32", emitter.shared_address(offset)),
                ("ptr", emitter.unit(op.map)),
                *(("i32", place) for place in places),
                ("i1", leader),
            ]
            emitter.asm(text, constraints, [], args)
    emitter.asm("cp.async.bulk.commit_group;", "~{memory}", [], [])


@NVIDIA.register(RolesOp)
def emit_roles(emitter: NvidiaEmitter, op: RolesOp) -> None:
    """Branch by warp; each role adjusts its registers, and the producer goes on with one thread."""
    fn = emitter.fn
    producer, work, consumer, join = (fn.label(name) for name in ("producer", "copies", "consumer", "roles.end"))
    warps = emitter.consumer_warps
    is_consumer = emitter.entry("consumer", f"icmp ult i32 {emitter.warp_uniform()}, {warps}")
    first = _producer_thread(emitter)
    few, many = (r.data for r in op.registers.data)
    fn.branch_if(is_consumer, consumer, producer)
    fn.start(producer)
    emitter.asm(f"setmaxnreg.dec.sync.aligned.u32 {few};", "~{memory}", [], [])
    fn.branch_if(first, work, join)
    fn.start(work)
    emitter.emit_block(op.producer.block)
    fn.branch(join)
    fn.start(consumer)
    emitter.asm(f"setmaxnreg.inc.sync.aligned.u32 {many};", "~{memory}", [], [])
    emitter.in_role, emitter.groups = True, op.groups.data
    emitter.emit_block(op.consumer.block)
    emitter.in_role, emitter.groups = False, 1
    fn.branch(join)
    fn.start(join)


@NVIDIA.register(RoleGroupOp)
def emit_role_group(emitter: NvidiaEmitter, op: RoleGroupOp) -> None:
    """Count the groups of warps before this one."""
    emitter.bind(op.result, [emitter.entry("role.group.wide", f"zext i32 {emitter.group()} to i64")])
