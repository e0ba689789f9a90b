"""Atomics of NVIDIA GPUs; what the hardware lacks, LLVM expands to compare-and-swap loops.

LLVM writes every atomic that the hardware has as a relaxed one of the device, whatever order and scope it is given. So
orders are fences beside relaxed atomics (PTX ISA, "Memory consistency model": release and acquire patterns), and those
of the whole system are written as PTX. An atomic of a wider scope than asked for is one of that scope, too.
"""

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

_SCOPE = {"group": "cta", "cluster": "cluster", "device": "gpu", "mesh": "sys"}
"""PTX's names of the scopes."""
_FLOAT = {"add": "fadd", "max": "fmaximum", "min": "fminimum", "exchange": "xchg"}
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
            f"atomic {fn} on {dtype}: GPUs have none",
            code="unsupported-atomic",
            location=location_of(op),
            help="use f32, f16, bf16 or an integer of at least 16 bits",
        )
    registers, owner = owned_registers(emitter, op.value.type)
    values, offsets = emitter.units(op.value), emitter.units(op.offsets)
    masks = emitter.units(op.mask) if op.mask is not None else None
    compares = emitter.units(op.compare) if op.compare is not None else None
    old: dict[int, str] = {}
    if op.order.data in ("release", "acq_rel"):
        _fence(emitter, op)
    for register in registers:
        predicate = emitter.both(owner, masks[register] if masks is not None else None)
        pointer = element_pointer(emitter, emitter.unit(op.pointer), offsets[register], dtype)
        expected = compares[register] if compares is not None else None
        old[register] = _guarded(emitter, op, type_, dtype, pointer, values[register], expected, predicate)
    if op.order.data in ("acquire", "acq_rel"):
        _fence(emitter, op)
    if isinstance(op.value.type, FragmentType):
        first = copies(op.value.type.linear.sublayout([REGISTER]))
        emitter.bind(op.result, [old[r] for r in first])
    else:
        emitter.bind(op.result, [old[0]])


def _guarded(
    emitter: NvidiaEmitter,
    op: AtomicOp,
    type_: LLVMType,
    dtype: DType,
    pointer: str,
    value: str,
    expected: str | None,
    predicate: str | None,
) -> str:
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
    fn, everywhere = emitter.fn, op.scope.data == "mesh"
    if expected is None:
        name = _operation(op.fn.data, dtype)
        instruction = _system_instruction(emitter, op.fn.data, dtype) if everywhere else None
        if instruction is not None:
            return _system_atomic(emitter, instruction, type_, dtype, pointer, value)
        scope = "" if everywhere else 'syncscope("device") '
        return fn.assign(
            f"atomicrmw {name} ptr addrspace(1) {pointer}, {type_} {value} {scope}monotonic, align {dtype.bytes}"
        )
    bits = LLVMType(f"i{dtype.bits}")
    if type_.is_float:
        expected = emitter.ops.convert("bitcast", type_, expected, bits)
        value = emitter.ops.convert("bitcast", type_, value, bits)
    operands = f"ptr addrspace(1) {pointer}, {bits} {expected}, {bits} {value}"
    scope = "" if everywhere else 'syncscope("device") '
    pair = fn.assign(f"cmpxchg {operands} {scope}monotonic monotonic, align {dtype.bytes}")
    old = fn.assign(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
    return emitter.ops.convert("bitcast", bits, old, type_) if type_.is_float else old


def _fence(emitter: NvidiaEmitter, op: AtomicOp) -> None:
    """Order what comes before and after among the threads of the scope."""
    scope = _SCOPE[op.scope.data]
    if scope == "cluster" and not emitter.target.has("clusters"):
        scope = "gpu"
    emitter.asm(f"fence.acq_rel.{scope};", "~{memory}", [], [])


def _system_instruction(emitter: NvidiaEmitter, fn: str, dtype: DType) -> str | None:
    """Return the PTX of an atomic of the whole system; None where LLVM expands it, with its scope, to a loop."""
    if dtype.is_float:
        native = {"f64": "f64", "f32": "f32", "f16": "noftz.f16"}
        if emitter.target.has("atomic_bf16x2"):
            native["bf16"] = "noftz.bf16"
        kind = native.get(dtype.name) if fn == "add" else None
    else:
        sign = "s" if dtype.kind == "int" else "u"
        kind = {"add": "u", "min": sign, "max": sign}.get(fn, "b") + str(dtype.bits) if dtype.bits >= 32 else None
    if fn == "exchange":
        kind = f"b{dtype.bits}" if dtype.bits >= 32 else None
    name = {"exchange": "exch"}.get(fn, fn)
    return None if kind is None else f"atom.relaxed.sys.global.{name}.{kind}"


def _system_atomic(
    emitter: NvidiaEmitter, instruction: str, type_: LLVMType, dtype: DType, pointer: str, value: str
) -> str:
    bits = LLVMType(f"i{dtype.bits}")
    given = emitter.ops.convert("bitcast", type_, value, bits) if type_.is_float else value
    register = {16: "h", 32: "r", 64: "l"}[dtype.bits]
    (old,) = emitter.asm(
        f"{instruction} $0, [$1], $2;",
        f"={register},l,{register},~{{memory}}",
        [bits],
        [("ptr addrspace(1)", pointer), (str(bits), given)],
    )
    return emitter.ops.convert("bitcast", bits, old, type_) if type_.is_float else old
