"""Hopper's asynchronous instructions: mbarrier, bulk tensor copies (TMA), warpgroup products (wgmma), warp roles.

Source: PTX ISA 9.2, "mbarrier", "cp.async.bulk.tensor", "Asynchronous Warpgroup Level Matrix Instructions" (matrix
descriptor, strides), "setmaxnreg".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.backends.llvm.ops import F32, I32, I64
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.nvidia.matrix import operand_words
from tessera.ir.target.arithmetic import SplatOp, constant_value
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
    RolesOp,
    WarpBarrierOp,
)
from tessera.ir.target.structure import GridWaitOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import PANEL_BYTES, BufferType, FragmentType, element_of
from tessera.ir.target.warpgroup import OrderOp, TensorCoreStartOp, TensorCoreWaitOp, TurnOp
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.target.fragments import WgmmaInstruction, wgmma_instruction

GROUP_WARPS = 4
_GROUP_ROWS = 64
_NO_GRID = 40001
_FIRST_TURN = 2
"""Named barriers 0 and 1 are those of the block and of the consumers."""

_SWIZZLE_128 = 1 << 62
_PLACE_MASK = (1 << 18) - 1
_ATOM_BYTES = 8 * PANEL_BYTES
"""Eight rows of a panel: the unit after which the swizzle repeats."""


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


def try_wait(order: str, parity: str) -> str:
    """Return the loop that waits for a phase of the barrier at `$0`; `order` has its dot, and is empty by default."""
    return (
        f"{{ .reg .pred done; again: mbarrier.try_wait.parity.{order}shared::cta.b64 done, [$0], {parity}; "
        "@done bra ready; bra again; ready: }"
    )


@NVIDIA.register(MbarrierInitOp)
def emit_init(emitter: NvidiaEmitter, op: MbarrierInitOp) -> None:
    """Let the first thread initialise the barriers, and all threads and the copy engine see it."""
    type_ = op.barriers.type
    assert isinstance(type_, BufferType)
    fn = emitter.fn
    then, join = fn.label("init"), fn.label("init.end")
    first = emitter.first_thread()
    fn.branch_if(first, then, join)
    fn.start(then)
    for number in range(type_.shape[0]):
        base = emitter.unit(op.barriers)
        address = emitter.shared_address(str(int(base) + 8 * number))
        text = f"mbarrier.init.shared::cta.b64 [$0], {op.arrivals.data};"
        emitter.asm(text, "r,~{memory}", [], [("i32", address)])
    emitter.asm("fence.mbarrier_init.release.cluster;", "~{memory}", [], [])
    fn.branch(join)
    fn.start(join)
    emitter.barrier()


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
    text = try_wait("", "$1")
    emitter.asm(text, "r,r,~{memory}", [], [("i32", address), ("i32", parity)])


@NVIDIA.register(ProxyFenceOp)
def emit_fence(emitter: NvidiaEmitter, _op: ProxyFenceOp) -> None:
    """Order generic writes before later accesses of the asynchronous proxy."""
    emitter.asm("fence.proxy.async.shared::cta;", "~{memory}", [], [])


@NVIDIA.register(GridWaitOp)
def emit_grid_wait(emitter: NvidiaEmitter, _op: GridWaitOp) -> None:
    """Wait for the launch before; the next one may start its programs once all of this one have come here."""
    emitter.asm("griddepcontrol.wait;", "~{memory}", [], [])
    emitter.asm("griddepcontrol.launch_dependents;", "~{memory}", [], [])


@NVIDIA.register(PrefetchMapOp)
def emit_prefetch(emitter: NvidiaEmitter, op: PrefetchMapOp) -> None:
    """Let the first thread fetch the map."""
    first = emitter.first_thread()
    emitter.asm(
        "@$1 prefetch.tensormap [$0];", "l,b,~{memory}", [], [("ptr", emitter.unit(op.map)), ("i1", first)]
    )


@NVIDIA.register(BulkCopyOp)
def emit_bulk_copy(emitter: NvidiaEmitter, op: BulkCopyOp) -> None:
    """Start one copy per panel of the buffer, or of this program's part of the panels or of their rows."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    box, programs = op.box_sizes, op.programs.data
    stored = buffer.stored_shape
    panels = stored[-1] // box[0]
    panel_bytes = buffer.size_bytes // panels
    rank = len(box)
    barrier = barrier_address(emitter, op.barriers, op.at)
    coordinates = [emitter.ops.convert("trunc", I64, emitter.unit(c), I32) for c in op.coordinates]
    base = emitter.unit(op.buffer)
    names = ", ".join(f"${3 + i}" for i in range(rank))
    several = ".multicast::cluster" if programs > 1 else ""
    mask = f", ${3 + rank}" if programs > 1 else ""
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{several} "
        f"[$0], [$1, {{{names}}}], [$2]{mask};"
    )
    constraints = ",".join(["r", "l", "r", *["r"] * rank, *["h"] * (programs > 1), "~{memory}"])
    if programs > 1:
        number = emitter.ops.convert("trunc", I64, emitter.cluster_rank(), I32)
        if op.part_axis.data == 0:
            panels //= programs
            steps = [(0, panels * box[0]), (None, panels * panel_bytes)]
        else:
            rows = box[op.part_axis.data]
            steps = [(op.part_axis.data, rows), (None, rows * PANEL_BYTES)]
        for axis, step in steps:
            moved = emitter.ops.binary("mul", I32, number, str(step))
            if axis is None:
                base = emitter.ops.binary("add", I32, base, moved)
            else:
                coordinates[axis] = emitter.ops.binary("add", I32, coordinates[axis], moved)
    for panel in range(panels):
        offset = base if panel == 0 else emitter.ops.binary("add", I32, base, str(panel * panel_bytes))
        first = coordinates[0]
        if panel:
            first = emitter.ops.binary("add", I32, first, str(panel * box[0]))
        args = [
            ("i32", emitter.shared_address(offset)),
            ("ptr", emitter.unit(op.map)),
            ("i32", barrier),
            ("i32", first),
            *(("i32", c) for c in coordinates[1:]),
            *[("i16", str((1 << programs) - 1))] * (programs > 1),
        ]
        emitter.asm(text, constraints, [], args)


@NVIDIA.register(WarpBarrierOp)
def emit_warp_barrier(emitter: NvidiaEmitter, _op: WarpBarrierOp) -> None:
    """Wait for the lanes of the warp."""
    emitter.asm("bar.warp.sync -1;", "~{memory}", [], [])


@NVIDIA.register(BulkWaitOp)
def emit_bulk_wait(emitter: NvidiaEmitter, op: BulkWaitOp) -> None:
    """Wait for this thread's groups to have read; those who started none go on at once."""
    emitter.asm(f"cp.async.bulk.wait_group.read {op.pending.data};", "~{memory}", [], [])


@NVIDIA.register(BulkStoreOp)
def emit_bulk_store(emitter: NvidiaEmitter, op: BulkStoreOp) -> None:
    """Start one copy per panel, and per run of rows of the warp, in the first lane of each warp or of the first one."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    box, rows, rank = op.box_sizes, op.rows.data, len(op.box_sizes)
    height, width = buffer.stored_shape
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

    moved = emitter.ops.binary("mul", I32, step, str(PANEL_BYTES)) if rows else "0"
    start = plus(emitter.unit(op.buffer), moved)
    for panel in range(width // box[0]):
        for run in range(0, height if rows else 1, rows * emitter.num_warps or 1):
            offset = plus(start, str(panel * height * PANEL_BYTES + run * PANEL_BYTES))
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
    fn, consumers = emitter.fn, emitter.num_warps * 32
    producer, work, consumer, join = (
        fn.label(name) for name in ("producer", "copies", "consumer", "roles.end")
    )
    is_consumer = emitter.entry("consumer", f"icmp ult i32 {emitter.warp_uniform()}, {emitter.num_warps}")
    first = emitter.entry("producer.thread", f"icmp eq i32 {emitter.thread()}, {consumers}")
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
    emitter.in_role = True
    emitter.emit_block(op.consumer.block)
    emitter.in_role = False
    fn.branch(join)
    fn.start(join)


# Warpgroup products


def warpgroup_record(name: str) -> WgmmaInstruction:
    """Return the instruction that a TIR-T op names."""
    kinds = r"(fp8_e\dm\d|bf16|f16|i8|u8)"
    parts = re.fullmatch(rf"wgmma_m64n(\d+)k\d+_{kinds}_{kinds}_(f32|i32)", name)
    assert parts is not None
    found = wgmma_instruction(parts[2], parts[3], parts[4], int(parts[1]))
    assert found is not None
    return found


class _Operand:
    """A shared operand of a warpgroup product, as descriptors see it.

    Args:
        emitter: the emitter.
        value: the buffer.
        axis: which logical axis is K.
    """

    def __init__(self, emitter: NvidiaEmitter, value: SSAValue, axis: int):
        type_ = value.type
        assert isinstance(type_, BufferType)
        self.bytes = type_.dtype.bytes
        stored_last = type_.permutation.index(1)
        self.k_contiguous = stored_last == axis
        rows, columns = type_.stored_shape
        self.panel_bytes = rows * PANEL_BYTES
        self.panels = columns * self.bytes // PANEL_BYTES
        leading = 16 if self.k_contiguous else self.panel_bytes
        constant = _SWIZZLE_128 | (_ATOM_BYTES >> 4) << 32 | (leading >> 4) << 16
        # In a cluster the address also names the program; the descriptor holds the place in its memory alone.
        place = emitter.ops.binary("and", I32, emitter.shared_address(emitter.unit(value)), str(_PLACE_MASK))
        field = emitter.ops.binary("lshr", I32, place, "4")
        wide = emitter.ops.convert("zext", I32, field, I64)
        self.base = emitter.ops.binary(
            "or", I64, wide, str(constant - (1 << 64) if constant >> 63 else constant)
        )
        self.emitter = emitter

    def offset(self, along: int, k: int) -> int:
        """Return the byte distance of the element (`along`, `k`); `along` is a multiple of 64, `k` of the step."""
        if self.k_contiguous:
            inside = k * self.bytes
            return along * PANEL_BYTES + inside // PANEL_BYTES * self.panel_bytes + inside % PANEL_BYTES
        return along * self.bytes // PANEL_BYTES * self.panel_bytes + k * PANEL_BYTES

    def descriptor(self, bytes_: int, base: str | None = None) -> str:
        """Return the descriptor that many bytes further."""
        start = base or self.base
        return start if bytes_ == 0 else self.emitter.ops.binary("add", I64, start, str(bytes_ >> 4))


def emit_warpgroup_product(emitter: NvidiaEmitter, op: TensorCoreOp) -> None:
    """Emit the instructions of a product and wait for it."""
    assert op.result is not None
    emitter.bind(op.result, _wait(emitter, dtype_of(element_of(op.acc.type)), _start(emitter, op), 0))


@NVIDIA.register(TensorCoreStartOp)
def emit_start(emitter: NvidiaEmitter, op: TensorCoreStartOp) -> None:
    """Emit the instructions of a product as a group."""
    emitter.bind(op.result, _start(emitter, op))


@NVIDIA.register(TurnOp)
def emit_turn(emitter: NvidiaEmitter, op: TurnOp) -> None:
    """Wait or arrive at one of two named barriers: whoever waits for its turn, and the other one's arrival."""
    threads = 2 * GROUP_WARPS * 32
    group = emitter.entry("group", f"lshr i32 {emitter.warp_uniform()}, 2")
    if op.step.data == "init":
        second = emitter.entry("group.second", f"icmp eq i32 {group}, 1")
        emitter.asm(f"@$0 bar.arrive {_FIRST_TURN}, {threads};", "b,~{memory}", [], [("i1", second)])
        return
    mine = emitter.entry("turn.mine", f"add i32 {group}, {_FIRST_TURN}")
    other = emitter.entry("turn.other", f"sub i32 {2 * _FIRST_TURN + 1}, {mine}")
    if op.step.data == "take":
        emitter.asm(f"bar.sync $0, {threads};", "r,~{memory}", [], [("i32", mine)])
    else:
        emitter.asm(f"bar.arrive $0, {threads};", "r,~{memory}", [], [("i32", other)])


@NVIDIA.register(OrderOp)
def emit_order(emitter: NvidiaEmitter, _op: OrderOp) -> None:
    """Branch on what never is, of which the assembler does not know: it schedules each basic block by itself.

    The condition is a size of the grid in a dimension that launches do not use.
    """
    emitter.module.declare("declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()")
    size = emitter.entry("nctaid.z", "call i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()")
    never = emitter.entry("never", f"icmp eq i32 {size}, {_NO_GRID}")
    text = "{ again: @!$0 bra done; nanosleep.u32 20; bra again; done: }"
    emitter.asm(text, "b,~{memory}", [], [("i1", never)])


@NVIDIA.register(TensorCoreWaitOp)
def emit_product_wait(emitter: NvidiaEmitter, op: TensorCoreWaitOp) -> None:
    """Wait for a product; the registers that it reads as A are inputs, so that they stay as they are up to here."""
    held = [("i32", word) for word in emitter.words[op.product]]
    dtype = dtype_of(element_of(op.result.type))
    emitter.bind(op.result, _wait(emitter, dtype, emitter.units(op.product), op.pending.data, held))


def _start(emitter: NvidiaEmitter, op: TensorCoreOp | TensorCoreStartOp) -> list[str]:
    """Issue the instructions of a product as a group; accumulators are tied through all of them."""
    instruction = warpgroup_record(op.instruction.data)
    assert isinstance(op.acc.type, FragmentType)
    groups = emitter.num_warps // GROUP_WARPS
    assert isinstance(op.b.type, BufferType)
    depth = op.b.type.shape[0]
    b = _Operand(emitter, op.b, 0)
    a = None if isinstance(op.a.type, FragmentType) else _Operand(emitter, op.a, 1)
    a_words = operand_words(emitter, op.a, instruction.a, False) if a is None else []
    per_tile = instruction.n // 2
    a_words = _fence(emitter, a_words)
    if isinstance(op, TensorCoreStartOp):
        emitter.words[op.result] = [word for _, word in a_words]
    zero = _is_zero(op.acc)
    acc = emitter.units(op.acc)
    tiles = len(acc) // per_tile
    group_base = _group_base(emitter, a) if a is not None else ""
    results: list[str] = []
    for tile in range(tiles):
        current: list[str] | None = None if zero else acc[tile * per_tile : (tile + 1) * per_tile]
        for k in range(0, depth, instruction.k):
            b_descriptor = b.descriptor(b.offset(0, k))
            if a is not None:
                along = tile * groups * _GROUP_ROWS
                left = [("i64", a.descriptor(a.offset(along, k), group_base))]
            else:
                per_step = instruction.a.registers
                at = (tile * (depth // instruction.k) + k // instruction.k) * per_step
                left = a_words[at : at + per_step]
            current = _issue(emitter, instruction, current, left, b_descriptor, a, b)
        assert current is not None
        results += current
    emitter.asm("wgmma.commit_group.sync.aligned;", "~{memory}", [], [])
    return results


def _is_zero(acc: SSAValue) -> bool:
    """Return whether accumulators start from zero, which the first instruction does by itself."""
    owner = acc.owner
    return isinstance(owner, SplatOp) and constant_value(owner.value) == 0


def _fence(emitter: NvidiaEmitter, words: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Order what was written to registers before the products that read them; tying an operand keeps it ahead."""
    count = len(words)
    constraints = ",".join([*["=r"] * count, *(str(i) for i in range(count)), "~{memory}"])
    fenced = emitter.asm("wgmma.fence.sync.aligned;", constraints, [I32] * count, words)
    return [("i32", word) for word in fenced]


def _group_base(emitter: NvidiaEmitter, a: _Operand) -> str:
    """Return A's descriptor at the 64 rows of this warpgroup."""
    if emitter.num_warps <= GROUP_WARPS:
        return a.base
    group = emitter.entry("group", f"lshr i32 {emitter.warp()}, 2")
    step = a.offset(_GROUP_ROWS, 0) >> 4
    moved = emitter.entry(("group", step), f"mul i32 {group}, {step}")
    wide = emitter.entry(("group.wide", step), f"zext i32 {moved} to i64")
    return emitter.ops.binary("add", I64, a.base, wide)


def _issue(
    emitter: NvidiaEmitter, instruction: WgmmaInstruction, acc: list[str] | None, left: list[tuple[str, str]],
    b_descriptor: str, a: _Operand | None, b: _Operand,
) -> list[str]:  # fmt: skip
    """Issue one instruction; without accumulators it starts from zero."""
    count = instruction.n // 2
    outputs = ", ".join(f"${i}" for i in range(count))
    names = [f"${count + i}" for i in range(len(left))]
    first = names[0] if a is not None else "{" + ", ".join(names) + "}"
    whole = instruction.acc_dtype == "i32"
    kind, type_ = ("r", I32) if whole else ("f", F32)
    flags = "p" if whole else "p, 1, 1"  # integers have no signs to flip
    if instruction.transposable:
        flags += f", {int(not a.k_contiguous)}" if a is not None else ""
        flags += f", {int(not b.k_contiguous)}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, {int(acc is not None)}, 0; {instruction.ptx} {{{outputs}}}, {first}, "
        f"${count + len(left)}, {flags}; }}"
    )
    kinds = ["l" if t == "i64" else "r" for t, _ in left]
    tied = [str(i) for i in range(count)] if acc is not None else []
    constraints = ",".join([*[f"={kind}"] * count, *kinds, "l", *tied, "~{memory}"])
    args = [*left, ("i64", b_descriptor), *((str(type_), value) for value in acc or ())]
    return emitter.asm(text, constraints, [type_] * count, args)


def _wait(
    emitter: NvidiaEmitter, dtype: DType, acc: list[str], pending: int, held: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Wait until `pending` groups are left; tying the accumulators keeps every later use behind it."""
    count = len(acc)
    kind, type_ = ("r", I32) if dtype.kind == "int" else ("f", F32)
    tied = (str(i) for i in range(count))
    constraints = ",".join([*[f"={kind}"] * count, *tied, *["r"] * len(held), "~{memory}"])
    args = [*((str(type_), value) for value in acc), *held]
    return emitter.asm(f"wgmma.wait_group.sync.aligned {pending};", constraints, [type_] * count, args)
