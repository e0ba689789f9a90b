"""Atomics of NVIDIA GPUs; what the hardware lacks, LLVM expands to compare-and-swap loops."""

from __future__ import annotations

from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.emitter import copies
from tessera.backends.simt.memory import element_pointer, owned_registers
from tessera.errors import LanguageError
from tessera.ir.layouts import REGISTER
from tessera.ir.locations import location_of
from tessera.ir.target.memory import AtomicOp
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

_ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}
_SCOPE = {
    "group": 'syncscope("block") ',
    "cluster": 'syncscope("cluster") ',
    "device": 'syncscope("device") ',
    "mesh": "",
}
_FLOAT = {"add": "fadd", "max": "fmax", "min": "fmin", "exchange": "xchg"}
_INT = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


def _operation(fn: str, dtype: DType) -> str | None:
    if dtype.is_float:
        return _FLOAT.get(fn)
    if fn in ("max", "min"):
        return fn if dtype.kind == "int" else f"u{fn}"
    return _INT.get(fn)


@NVIDIA.register(AtomicOp)
def emit_atomic(emitter: NvidiaEmitter, op: AtomicOp) -> None:
    """Update elements one by one; a thread that holds a copy takes no part and gets no old value."""
    dtype = dtype_of(element_of(op.value.type))
    fn, type_ = op.fn.data, LLVMType(llvm_element(dtype))
    if dtype.bits < 16 or (fn != "compare_exchange" and _operation(fn, dtype) is None):
        raise LanguageError(
            f"atomic {fn} on {dtype}: GPUs have none", code="unsupported-atomic", location=location_of(op),
            help="use f32, f16, bf16 or an integer of at least 16 bits",
        )  # fmt: skip
    registers, owner = owned_registers(emitter, op.value.type)
    values, offsets = emitter.units(op.value), emitter.units(op.offsets)
    masks = emitter.units(op.mask) if op.mask is not None else None
    compares = emitter.units(op.compare) if op.compare is not None else None
    old: dict[int, str] = {}
    for register in registers:
        predicate = emitter.both(owner, masks[register] if masks is not None else None)
        pointer = element_pointer(emitter, emitter.unit(op.pointer), offsets[register], dtype)
        expected = compares[register] if compares is not None else None
        old[register] = _guarded(emitter, op, type_, dtype, pointer, values[register], expected, predicate)
    if isinstance(op.value.type, FragmentType):
        first = copies(op.value.type.linear.sublayout([REGISTER]))
        emitter.bind(op.result, [old[r] for r in first])
    else:
        emitter.bind(op.result, [old[0]])


def _guarded(
    emitter: NvidiaEmitter, op: AtomicOp, type_: LLVMType, dtype: DType, pointer: str, value: str,
    expected: str | None, predicate: str | None,
) -> str:  # fmt: skip
    """Emit one atomic, under a branch when predicated; what is skipped gives zero."""
    fn = emitter.fn
    if predicate is None:
        return _atomic(emitter, op, type_, dtype, pointer, value, expected)
    then, join, before = fn.label("atomic"), fn.label("atomic.end"), fn.block
    fn.branch_if(predicate, then, join)
    fn.start(then)
    result = _atomic(emitter, op, type_, dtype, pointer, value, expected)
    end = fn.block
    fn.branch(join)
    fn.start(join)
    return fn.phi(str(type_), [(result, end), (emitter.zero(dtype), before)])


def _atomic(
    emitter: NvidiaEmitter,
    op: AtomicOp,
    type_: LLVMType,
    dtype: DType,
    pointer: str,
    value: str,
    expected: str | None,
) -> str:
    order, scope = _ORDER[op.order.data], _SCOPE[op.scope.data]
    fn = emitter.fn
    if expected is None:
        name = _operation(op.fn.data, dtype)
        return fn.assign(
            f"atomicrmw {name} ptr addrspace(1) {pointer}, {type_} {value} {scope}{order}, align {dtype.bytes}"
        )
    bits = LLVMType(f"i{dtype.bits}")
    if type_.is_float:
        expected = emitter.ops.convert("bitcast", type_, expected, bits)
        value = emitter.ops.convert("bitcast", type_, value, bits)
    failure = "monotonic" if order in ("monotonic", "release") else "acquire"
    operands = f"ptr addrspace(1) {pointer}, {bits} {expected}, {bits} {value}"
    pair = fn.assign(f"cmpxchg {operands} {scope}{order} {failure}, align {dtype.bytes}")
    old = fn.assign(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
    return emitter.ops.convert("bitcast", bits, old, type_) if type_.is_float else old
