"""Atomics of the vector model: one element after the other."""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.memory import Access, access_of, set_single
from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.types import LLVMType
from tessera.ir.target.memory import AtomicOp

ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}


@CPU.register(AtomicOp)
def emit_atomic(emitter: CpuEmitter, op: AtomicOp) -> None:
    """Update elements one after the other."""
    access = access_of(emitter, op.value)
    if access.width == 1:
        set_single(emitter, access, op)
        compare = None if op.compare is None else emitter.unit(op.compare)
        emitter.bind(op.result, [_guarded_update(emitter, access, op, emitter.unit(op.value), compare)])
        return
    emitter.bind(op.result, [_lane_loop(emitter, access, op)])


def _lane_loop(emitter: CpuEmitter, access: Access, op: AtomicOp) -> str:
    """Loop over the lanes of a chunk; returns the vector of old values."""
    fn, width = emitter.fn, access.width
    value_type = emitter.unit_type(op.value.type)
    i64 = LLVMType("i64", width)
    bits: str | None = None
    if op.mask is not None:  # a lane of a mask in a register costs more than a bit of a number
        bits = fn.assign(f"bitcast {LLVMType('i1', width)} {emitter.unit(op.mask)} to i{width}")
    head, body, exit_ = fn.label("lane.head"), fn.label("lane"), fn.label("lane.exit")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    lane, old = fn.fresh("lane"), fn.fresh("old")
    places = fn.reserve(), fn.reserve()
    fn.branch_if(emitter.ops.compare("slt", I64, lane, str(width)), body, exit_)
    fn.start(body)
    single = Access(emitter, access.dtype, 1)

    def pick(type_: LLVMType, value: str) -> str:
        return fn.assign(f"extractelement {type_} {value}, i64 {lane}")

    offset = pick(i64, emitter.unit(op.offsets))
    single.address = emitter.ops.gep(single.memory.element, emitter.unit(op.pointer), offset)
    if bits is not None:
        place = lane if width == 64 else fn.assign(f"trunc i64 {lane} to i{width}")
        shifted = fn.assign(f"lshr i{width} {bits}, {place}")
        single.and_mask(fn.assign(f"trunc i{width} {shifted} to i1"))
    compare = None if op.compare is None else pick(value_type, emitter.unit(op.compare))
    result = _guarded_update(emitter, single, op, pick(value_type, emitter.unit(op.value)), compare)
    updated = fn.assign(f"insertelement {value_type} {old}, {value_type.element} {result}, i64 {lane}")
    following = fn.assign(f"add nsw i64 {lane}, 1")
    fn.fill(places[0], f"{lane} = phi i64 [ 0, %{before} ], [ {following}, %{fn.block} ]")
    fn.fill(places[1], f"{old} = phi {value_type} [ zeroinitializer, %{before} ], [ {updated}, %{fn.block} ]")
    fn.branch(head, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)
    return old


def _guarded_update(emitter: CpuEmitter, access: Access, op: AtomicOp, value: str, compare: str | None) -> str:
    fn, element = emitter.fn, str(emitter.value_type(access.dtype))
    if access.condition is None:
        return _update(emitter, access, op, value, compare)
    before, inside, join = fn.block, fn.label("update"), fn.label("join")
    fn.branch_if(access.condition, inside, join)
    fn.start(inside)
    old = _update(emitter, access, op, value, compare)
    end = fn.block
    fn.branch(join)
    fn.start(join)
    return fn.phi(element, [(emitter.literal(0, access.dtype), before), (old, end)])


def _update(emitter: CpuEmitter, access: Access, op: AtomicOp, value: str, compare: str | None) -> str:
    """Update one element and return its old value."""
    dtype, name, order = access.dtype, op.fn.data, ORDERS[op.order.data]
    bits = LLVMType(f"i{dtype.bytes * 8}")
    signed = dtype.kind == "int"
    direct = {
        "add": "add",
        "max": "max" if signed else "umax",
        "min": "min" if signed else "umin",
        "and": "and",
        "or": "or",
        "xor": "xor",
        "exchange": "xchg",
    }
    if name == "compare_exchange":
        assert compare is not None
        expected, new = (_to_bits(emitter, access, v, bits) for v in (compare, value))
        return _from_bits(emitter, access, _cmpxchg(emitter, access, bits, expected, new, order)[0], bits)
    if not dtype.is_float or name == "exchange":
        new = _to_bits(emitter, access, value, bits)
        text = f"atomicrmw {direct[name]} ptr {access.address}, {bits} {new} {order}, align {dtype.bytes}"
        return _from_bits(emitter, access, emitter.fn.assign(text), bits)
    fn = {"add": "add", "max": "maximum", "min": "minimum"}[name]
    return _compare_exchange_loop(
        emitter, access, bits, order, lambda old: elementwise.apply(emitter, fn, dtype, 1, [old, value])
    )


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
    failure = "acquire" if order in ("acquire", "acq_rel") else "monotonic"
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
