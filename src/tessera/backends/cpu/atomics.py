"""Atomics and fences of the vector model: one element after the other.

Orders are those of LLVM (Language Reference, "Atomic Memory Ordering Constraints"), whose code generators map them to
the machine's. Scopes are all one: every thread of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from xdsl.ir import SSAValue

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.memory import Access, set_single
from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.types import LLVMType
from tessera.ir.target.atomics import AddressOp, AtomicOp, FenceOp
from tessera.ir.target.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

ORDERS = {
    "relaxed": "monotonic",
    "acquire": "acquire",
    "release": "release",
    "acq_rel": "acq_rel",
    "seq_cst": "seq_cst",
}

_FLOAT = {"add": "add", "max": "maximum", "min": "minimum"}
_INTEGER = {"exchange": "xchg", **{fn: fn for fn in ("add", "max", "min", "and", "or", "xor")}}

Pick = Callable[[SSAValue], str]
"""Gives the one element of an operand that is accessed."""


@CPU.register(AddressOp)
def emit_address(emitter: CpuEmitter, op: AddressOp) -> None:
    """A buffer is an address."""
    emitter.bind(op.result, [emitter.unit(op.buffer)])


@CPU.register(FenceOp)
def emit_fence(emitter: CpuEmitter, op: FenceOp) -> None:
    """Order the accesses before and after it."""
    emitter.fn.line(f"fence {ORDERS[op.order.data]}")


@CPU.register(AtomicOp)
def emit_atomic(emitter: CpuEmitter, op: AtomicOp) -> None:
    """Access elements one after the other."""
    access = Access(emitter, dtype_of(element_of(op.pointer.type)), emitter.unit_width(op.offsets.type))
    if access.width == 1:
        set_single(emitter, access, op)
        old = _guarded(emitter, access, op, emitter.unit)
    else:
        old = _lane_loop(emitter, access, op)
    if op.result is not None:
        emitter.bind(op.result, [old])


def _lane_loop(emitter: CpuEmitter, access: Access, op: AtomicOp) -> str:
    """Loop over the lanes of a chunk; returns the vector of old values, "" for a store."""
    fn, width = emitter.fn, access.width
    bits: str | None = None
    if op.mask is not None:  # a lane of a mask in a register costs more than a bit of a number
        bits = fn.assign(f"bitcast {LLVMType('i1', width)} {emitter.unit(op.mask)} to i{width}")
    head, body, exit_ = fn.label("lane.head"), fn.label("lane"), fn.label("lane.exit")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    lane, old = fn.fresh("lane"), fn.fresh("old") if op.result is not None else ""
    places = fn.reserve(), fn.reserve()
    fn.branch_if(emitter.ops.compare("slt", I64, lane, str(width)), body, exit_)
    fn.start(body)
    single = Access(emitter, access.dtype, 1)

    def pick(value: SSAValue) -> str:
        return fn.assign(f"extractelement {emitter.unit_type(value.type)} {emitter.unit(value)}, i64 {lane}")

    single.address = emitter.ops.gep(single.memory.element, emitter.unit(op.pointer), pick(op.offsets))
    if bits is not None:
        place = lane if width == 64 else fn.assign(f"trunc i64 {lane} to i{width}")
        shifted = fn.assign(f"lshr i{width} {bits}, {place}")
        single.and_mask(fn.assign(f"trunc i{width} {shifted} to i1"))
    result = _guarded(emitter, single, op, pick)
    following = ""
    if op.result is not None:
        kind = emitter.unit_type(op.result.type)
        updated = fn.assign(f"insertelement {kind} {old}, {kind.element} {result}, i64 {lane}")
        following = f"{old} = phi {kind} [ zeroinitializer, %{before} ], [ {updated}, %{fn.block} ]"
    next_lane = fn.assign(f"add nsw i64 {lane}, 1")
    fn.fill(places[0], f"{lane} = phi i64 [ 0, %{before} ], [ {next_lane}, %{fn.block} ]")
    fn.fill(places[1], following)
    fn.branch(head, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)
    return old


def _guarded(emitter: CpuEmitter, access: Access, op: AtomicOp, pick: Pick) -> str:
    """Access one element where it counts; the old value is zero where it does not."""
    fn, element = emitter.fn, str(emitter.value_type(access.dtype))
    value, compare = (None if v is None else pick(v) for v in (op.value, op.compare))
    if access.condition is None:
        return _access(emitter, access, op, value, compare)
    before, inside, join = fn.block, fn.label("update"), fn.label("join")
    fn.branch_if(access.condition, inside, join)
    fn.start(inside)
    old = _access(emitter, access, op, value, compare)
    end = fn.block
    fn.branch(join)
    fn.start(join)
    if op.result is None:
        return ""
    return fn.phi(element, [(emitter.literal(0, access.dtype), before), (old, end)])


def _access(emitter: CpuEmitter, access: Access, op: AtomicOp, value: str | None, compare: str | None) -> str:
    """Access one element and return its old value, "" for a store."""
    dtype, name, order = access.dtype, op.fn.data, ORDERS[op.order.data]
    bits, align = LLVMType(f"i{dtype.bytes * 8}"), f"align {dtype.bytes}"
    if value is None:
        loaded = emitter.fn.assign(f"load atomic {bits}, ptr {access.address} {order}, {align}")
        return _from_bits(emitter, access, loaded, bits)
    new = _to_bits(emitter, access, value, bits)
    if name == "store":
        emitter.fn.line(f"store atomic {bits} {new}, ptr {access.address} {order}, {align}")
        return ""
    if compare is not None:
        expected = _to_bits(emitter, access, compare, bits)
        return _from_bits(emitter, access, _cmpxchg(emitter, access, bits, expected, new, order)[0], bits)
    if dtype.is_float and name in _FLOAT:
        update = partial(_combined, emitter, dtype, _FLOAT[name], value)
        return _compare_exchange_loop(emitter, access, bits, order, update)
    instruction = f"u{name}" if name in ("max", "min") and dtype.kind != "int" else _INTEGER[name]
    text = f"atomicrmw {instruction} ptr {access.address}, {bits} {new} {order}, {align}"
    return _from_bits(emitter, access, emitter.fn.assign(text), bits)


def _combined(emitter: CpuEmitter, dtype: DType, fn: str, value: str, old: str) -> str:
    return elementwise.apply(emitter, fn, dtype, 1, [old, value])


def _compare_exchange_loop(
    emitter: CpuEmitter, access: Access, bits: LLVMType, order: str, update: Callable[[str], str]
) -> str:
    fn = emitter.fn
    start = fn.assign(f"load atomic {bits}, ptr {access.address} monotonic, align {access.dtype.bytes}")
    head, exit_ = fn.label("retry"), fn.label("done")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    current, place = fn.fresh("cur"), fn.reserve()
    old = _from_bits(emitter, access, current, bits)
    new = _to_bits(emitter, access, update(old), bits)
    seen, success = _cmpxchg(emitter, access, bits, current, new, order)
    fn.fill(place, f"{current} = phi {bits} [ {start}, %{before} ], [ {seen}, %{fn.block} ]")
    fn.branch_if(success, exit_, head)
    fn.start(exit_)
    return old


def _cmpxchg(
    emitter: CpuEmitter, access: Access, bits: LLVMType, expected: str, new: str, order: str
) -> tuple[str, str]:
    failure = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
    pair = emitter.fn.assign(
        f"cmpxchg ptr {access.address}, {bits} {expected}, {bits} {new} {order} {failure}, align {access.dtype.bytes}"
    )
    kind = f"{{ {bits}, i1 }}"
    return (
        emitter.fn.assign(f"extractvalue {kind} {pair}, 0"),
        emitter.fn.assign(f"extractvalue {kind} {pair}, 1"),
    )


def _to_bits(emitter: CpuEmitter, access: Access, value: str, bits: LLVMType) -> str:
    value = emitter.to_memory(value, access.dtype, 1)
    memory = access.memory
    return value if memory == bits else emitter.ops.convert("bitcast", memory, value, bits)


def _from_bits(emitter: CpuEmitter, access: Access, value: str, bits: LLVMType) -> str:
    memory = access.memory
    value = value if memory == bits else emitter.ops.convert("bitcast", bits, value, memory)
    return emitter.from_memory(value, access.dtype, 1)
