"""Partial sums that programs exchange through device memory.

Source: PTX ISA 9.2, "Memory Consistency Model": what a thread writes before a block-wide barrier, and another thread's
release at GPU scope after it, is seen after an acquire of the same flag and a barrier of the other block.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import I32, I64
from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.ir.target.stream import FlagSetOp, FlagsTakeOp, FlagTakeOp, SlotCombineOp, SlotsCombineOp, SlotStoreOp
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.target.artifact import FLAG_BYTES

_ACCESS_BYTES = 16
_LOADED_WORDS = 64
_CONSUMER_WORDS = 160
"""Registers of partial sums that are loaded before they are combined; with a thread's own ones, where warps have roles
and consumers most of the registers."""
_SPACE = "ptr addrspace(1)"


def _moved(emitter: NvidiaEmitter, pointer: str, bytes_: str) -> str:
    return emitter.fn.assign(f"getelementptr i8, {_SPACE} {pointer}, i64 {bytes_}")


def _wide(emitter: NvidiaEmitter, value: str) -> str:
    return emitter.ops.convert("zext", I32, value, I64)


def _accesses(
    emitter: NvidiaEmitter, op: SlotStoreOp | SlotCombineOp | SlotsCombineOp, at: str
) -> tuple[int, list[str]]:
    """Return how many registers move at a time, and this thread's addresses: lanes and warps are neighbours."""
    type_ = op.value.type
    assert isinstance(type_, FragmentType)
    count = type_.linear.registers
    width = min(count, _ACCESS_BYTES // type_.dtype.bytes)
    bytes_ = width * type_.dtype.bytes
    slot = emitter.ops.binary("mul", I64, at, str(op.bytes.data))
    place = _wide(emitter, emitter.ops.binary("mul", I32, emitter.thread(), str(bytes_)))
    start = _moved(emitter, emitter.unit(op.workspace), emitter.ops.binary("add", I64, slot, place))
    step = bytes_ * emitter.num_warps * 32
    first = FLAG_BYTES + op.offset.data
    return width, [_moved(emitter, start, str(first + number * step)) for number in range(count // width)]


@NVIDIA.register(SlotStoreOp)
def emit_store(emitter: NvidiaEmitter, op: SlotStoreOp) -> None:
    """Write registers in their order."""
    type_ = op.value.type
    assert isinstance(type_, FragmentType)
    width, addresses = _accesses(emitter, op, emitter.unit(op.at))
    units = emitter.units(op.value)
    for number, address in enumerate(addresses):
        words = emitter.pack(units[number * width : (number + 1) * width], type_.dtype)
        emitter.store_words(address, words, None)


@NVIDIA.register(SlotCombineOp)
def emit_combine(emitter: NvidiaEmitter, op: SlotCombineOp) -> None:
    """Read the slots one after the other."""
    slots = [_before(emitter, op.at, str(back)) for back in range(op.count.data)]
    _emit_combined(emitter, op, slots, [None] * len(slots))


@NVIDIA.register(SlotsCombineOp)
def emit_combine_parts(emitter: NvidiaEmitter, op: SlotsCombineOp) -> None:
    """Read every n-th slot, the last one again in place of those that there are not."""
    type_ = op.value.type
    assert isinstance(type_, FragmentType)
    place, apart, left = _wide(emitter, emitter.thread_part(type_.linear, 0)), type_.shape[0], emitter.unit(op.left)
    slots, exist = list[str](), list[str | None]()
    for number in range(op.count.data):
        back = emitter.ops.binary("add", I64, place, str(number * apart)) if number else place
        exists = emitter.ops.compare("slt", I64, back, left)
        slots.append(_before(emitter, op.at, emitter.ops.select(I64, exists, back, "0")))
        exist.append(exists)
    _emit_combined(emitter, op, slots, exist)


def _before(emitter: NvidiaEmitter, at: SSAValue, back: str) -> str:
    """Return the number of the slot so many before another one."""
    return emitter.unit(at) if back == "0" else emitter.ops.binary("sub", I64, emitter.unit(at), back)


def _emit_combined(
    emitter: NvidiaEmitter, op: SlotCombineOp | SlotsCombineOp, slots: Sequence[str], exist: Sequence[str | None]
) -> None:
    """Read registers in their order, past the first-level cache, which is not kept in step with other programs.

    Few are loaded before they are combined: a thread that holds large sums has no room for as many others.

    Args:
        emitter: the emitter.
        op: combines slots with its value.
        slots: the number of each.
        exist: whether there is one, None where that is known.
    """
    dtype = dtype_of(element_of(op.value.type))
    width, addresses = 0, list[list[str]]()
    for at in slots:
        width, slot = _accesses(emitter, op, at)
        addresses.append(slot)
    words, element = emitter.word_types(dtype, width), LLVMType(llvm_element(dtype))
    units = list(emitter.units(op.value))
    own = len(units) * max(dtype.bytes // 4, 1)
    room = max(_LOADED_WORDS, _CONSUMER_WORDS - own if emitter.in_role else 0)
    together = max(room // (len(slots) * max(width * dtype.bytes // 4, 1)), 1)
    for first in range(0, len(addresses[0]), together):
        loaded = [
            [emitter.load_vector("ld.global.cg", words, (_SPACE, a)) for a in slot[first : first + together]]
            for slot in addresses
        ]
        for slot, exists in zip(loaded, exist, strict=True):
            for number, vector in enumerate(slot, first):
                for at, other in enumerate(emitter.unpack(vector, dtype, width), number * width):
                    both = elementwise.apply(emitter, op.fn.data, dtype, 1, [units[at], other])
                    units[at] = both if exists is None else emitter.ops.select(element, exists, both, units[at])
    emitter.bind(op.result, units)


def _flag(emitter: NvidiaEmitter, workspace: SSAValue, at: SSAValue) -> str:
    return _moved(emitter, emitter.unit(workspace), emitter.ops.binary("shl", LLVMType("i64"), emitter.unit(at), "2"))


@NVIDIA.register(FlagSetOp)
def emit_set(emitter: NvidiaEmitter, op: FlagSetOp) -> None:
    """Let the first thread release what all have written."""
    flag = _flag(emitter, op.workspace, op.at)
    emitter.barrier()
    text = "@$1 st.release.gpu.global.u32 [$0], 1;"
    emitter.asm(text, "l,b,~{memory}", [], [(_SPACE, flag), ("i1", emitter.first_thread())])


def _take(emitter: NvidiaEmitter, flag: str, takes: str) -> None:
    """Let threads wait for a flag each, with their warps, and clear it; the others wait for those threads."""
    text = (
        "{ .reg .u32 flag; .reg .pred unset; again: mov.u32 flag, 1; @$1 ld.acquire.gpu.global.u32 flag, [$0]; "
        "setp.eq.u32 unset, flag, 0; vote.sync.any.pred unset, unset, 0xffffffff; @!unset bra ready; nanosleep.u32 32; "
        "bra again; ready: @$1 st.relaxed.gpu.global.u32 [$0], 0; }"
    )
    emitter.asm(text, "l,b,~{memory}", [], [(_SPACE, flag), ("i1", takes)])
    emitter.barrier()


@NVIDIA.register(FlagTakeOp)
def emit_take(emitter: NvidiaEmitter, op: FlagTakeOp) -> None:
    """Let the first thread wait for the flag."""
    _take(emitter, _flag(emitter, op.workspace, op.at), emitter.first_thread())


@NVIDIA.register(FlagsTakeOp)
def emit_take_all(emitter: NvidiaEmitter, op: FlagsTakeOp) -> None:
    """Let each of the first threads wait for one of the flags."""
    thread = _wide(emitter, emitter.thread())
    place = emitter.ops.binary("shl", I64, emitter.ops.binary("add", I64, emitter.unit(op.at), thread), "2")
    takes = emitter.fn.assign(f"icmp ult i64 {thread}, {emitter.unit(op.count)}")
    _take(emitter, _moved(emitter, emitter.unit(op.workspace), place), takes)
