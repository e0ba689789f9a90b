"""Atomics and fences of NVIDIA GPUs, as PTX; what the hardware lacks, LLVM expands to compare-and-swap loops.

A thread's only element is accessed by one instruction with its order and scope. Several elements, and loops of LLVM's,
are relaxed accesses between fences, which order all of them at once. Sequential consistency is a fence of its own
before the access.

Source: "PTX Writer's Guide to Interoperability", section "Atomics ABI"; Lustig et al., "A Formal Analysis of the NVIDIA
PTX Memory Consistency Model", ASPLOS 2019; PTX ISA, "Memory consistency model".
"""

from __future__ import annotations

from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.emitter import copies
from tessera.backends.simt.memory import element_pointer, owned_registers
from tessera.data import dataclass
from tessera.errors import LanguageError
from tessera.ir.atomics import acquires, releases
from tessera.ir.layouts import REGISTER
from tessera.ir.locations import location_of
from tessera.ir.target.atomics import AddressOp, AtomicOp, FenceOp
from tessera.ir.target.types import FragmentType, PointerType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

_SCOPE = {"group": "cta", "cluster": "cluster", "device": "gpu", "mesh": "sys"}
"""PTX's names of the scopes."""
_SEQUENTIAL = {"load": "acquire", "store": "relaxed"}
"""The order of a sequentially consistent access after its fence; that of an update is `acquire`."""
_PTX = {"exchange": "exch", "compare_exchange": "cas"}
"""PTX's names of functions, where they are others."""
_REDUCTIONS = ("add", "max", "min", "and", "or", "xor")
"""Functions of `red`, which gives no old value and acquires nothing."""
_REGISTER = {8: "h", 16: "h", 32: "r", 64: "l"}
_FLOAT = {"add": "fadd", "max": "fmaximum", "min": "fminimum", "exchange": "xchg"}
_INT = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


@NVIDIA.register(AddressOp)
def emit_address(emitter: NvidiaEmitter, op: AddressOp) -> None:
    """Find a buffer in shared memory."""
    emitter.bind(op.result, [emitter.shared_pointer(emitter.unit(op.buffer))])


@NVIDIA.register(FenceOp)
def emit_fence(emitter: NvidiaEmitter, op: FenceOp) -> None:
    """Order the thread's accesses before and after it."""
    _fence(emitter, op.order.data, op.scope.data)


def _fence(emitter: NvidiaEmitter, order: str, scope: str) -> None:
    kind = "sc" if order == "seq_cst" else "acq_rel"
    emitter.asm(f"fence.{kind}.{_scope(emitter, scope)};", "~{memory}", [], [])


def _scope(emitter: NvidiaEmitter, scope: str) -> str:
    """Return PTX's name of a scope; where there are no clusters, theirs is the device."""
    return _SCOPE["device" if scope == "cluster" and not emitter.target.has("clusters") else scope]


@NVIDIA.register(AtomicOp)
def emit_atomic(emitter: NvidiaEmitter, op: AtomicOp) -> None:
    """Access elements one by one; a thread that holds a copy takes no part and gets no old value."""
    dtype = dtype_of(element_of(op.pointer.type))
    fn, order, scope = op.fn.data, op.order.data, op.scope.data
    if not _is_known(fn, dtype):
        raise LanguageError(
            f"atomic {fn} on {dtype}: GPUs have none",
            code="unsupported-atomic",
            location=location_of(op),
            help="use f32, f16, bf16 or an integer of at least 16 bits",
        )
    registers, owner = owned_registers(emitter, op.offsets.type)
    kind = _kind(emitter, fn, dtype)
    alone = kind is not None and len(registers) == 1
    atomic = _Atomic(emitter, op, dtype, kind, order if alone else "relaxed")
    offsets = emitter.units(op.offsets)
    masks = emitter.units(op.mask) if op.mask is not None else None
    old: dict[int, str] = {}
    if not alone and releases(fn, order):
        _fence(emitter, order, scope)
    for register in registers:
        predicate = emitter.both(owner, masks[register] if masks is not None else None)
        pointer = element_pointer(emitter, emitter.unit(op.pointer), offsets[register], dtype, atomic.address)
        old[register] = _guarded(emitter, atomic, pointer, register, predicate)
    if not alone and acquires(fn, order):
        _fence(emitter, "acquire", scope)
    if op.result is not None:
        type_ = op.result.type
        first = copies(type_.linear.sublayout([REGISTER])) if isinstance(type_, FragmentType) else [0]
        emitter.bind(op.result, [old[register] for register in first])


def _is_known(fn: str, dtype: DType) -> bool:
    if fn in ("load", "store"):
        return dtype.bits >= (8 if dtype.is_int else 16)
    return dtype.bits >= 16 and (fn == "compare_exchange" or _operation(fn, dtype) is not None)


def _operation(fn: str, dtype: DType) -> str | None:
    """Return LLVM's name of an update."""
    if dtype.is_float:
        return _FLOAT.get(fn)
    if fn in ("max", "min"):
        return fn if dtype.kind == "int" else f"u{fn}"
    return _INT.get(fn)


def _kind(emitter: NvidiaEmitter, fn: str, dtype: DType) -> str | None:
    """Return the type that PTX's instruction names; None where there is none and LLVM expands the update to a loop."""
    if fn in ("load", "store", "compare_exchange"):
        return f"b{dtype.bits}"
    if fn == "exchange":
        return f"b{dtype.bits}" if dtype.bits >= 32 else None
    if dtype.is_float:
        native = {"f64": "f64", "f32": "f32", "f16": "noftz.f16"}
        if emitter.target.has("atomic_bf16x2"):
            native["bf16"] = "noftz.bf16"
        return native.get(dtype.name) if fn == "add" else None
    sign = "s" if dtype.kind == "int" else "u"
    return {"add": "u", "min": sign, "max": sign}.get(fn, "b") + str(dtype.bits) if dtype.bits >= 32 else None


def _guarded(emitter: NvidiaEmitter, atomic: _Atomic, pointer: str, register: int, predicate: str | None) -> str:
    """Emit one access, under a branch when predicated; what is skipped gives zero."""
    fn = emitter.fn
    before = fn.block
    with emitter.some_threads(predicate, "atomic"):
        result = atomic.emit(pointer, register)
        end = fn.block
    if predicate is None or atomic.op.result is None:
        return result
    return fn.phi(str(atomic.type), [(result, end), (emitter.zero(atomic.dtype), before)])


@dataclass(frozen=True)
class _Atomic:
    """An access of one element.

    Args:
        emitter: the emitter.
        op: the op.
        dtype: the tensor's.
        kind: the type that PTX's instruction names, None for a loop of LLVM's.
        order: the order that the access itself has.
    """

    emitter: NvidiaEmitter
    op: AtomicOp
    dtype: DType
    kind: str | None
    order: str

    @property
    def type(self) -> LLVMType:
        """The type of an element in a register."""
        return LLVMType(llvm_element(self.dtype))

    @property
    def address(self) -> str:
        """LLVM's type of the address."""
        assert isinstance(self.op.pointer.type, PointerType)
        return str(self.emitter.pointer_type(self.op.pointer.type))

    def emit(self, pointer: str, register: int) -> str:
        """Access an element and return its old value, "" for a store."""
        given = [v for v in (self.op.compare, self.op.value) if v is not None]
        values = [self.emitter.units(value)[register] for value in given]
        return self._expanded(pointer, values) if self.kind is None else self._instruction(pointer, values)

    def _instruction(self, pointer: str, values: list[str]) -> str:
        emitter, fn, order = self.emitter, self.op.fn.data, self.order
        if order == "seq_cst":
            _fence(emitter, order, self.op.scope.data)
            order = _SEQUENTIAL.get(fn, "acquire")
        used = self.op.result is not None and (fn == "load" or bool(self.op.result.uses.get_length()))
        reduces = fn in _REDUCTIONS and not used and order in ("relaxed", "release")
        name = {"load": "ld", "store": "st"}.get(fn, "red" if reduces else "atom")
        function = "" if fn in ("load", "store") else f".{_PTX.get(fn, fn)}"
        space = "shared" if self.address.endswith("(3)") else "global"
        text = f"{name}.{order}.{_scope(emitter, self.op.scope.data)}.{space}{function}.{self.kind}"
        gives = name in ("ld", "atom")
        operands = [f"${number}" for number in range(gives, gives + 1 + len(values))]
        operands[0] = f"[{operands[0]}]"
        register, held = _REGISTER[self.dtype.bits], LLVMType(f"i{max(self.dtype.bits, 16)}")
        constraints = [*[f"={register}"] * gives, "l", *[register] * len(values), "~{memory}"]
        given = [(self.address, pointer), *((str(held), self._bits(value, held)) for value in values)]
        line = f"{text} {', '.join([*['$0'] * gives, *operands])};"
        found = emitter.asm(line, ",".join(constraints), [held] * gives, given)
        if found:
            return self._value(found[0], held)
        return "" if self.op.result is None else emitter.zero(self.dtype)

    def _bits(self, value: str, held: LLVMType) -> str:
        """Return a value as the register holds it."""
        if self.dtype.bits == 8:
            return self.emitter.ops.convert("zext", self.type, value, held)
        return self.emitter.ops.convert("bitcast", self.type, value, held) if self.type.is_float else value

    def _value(self, bits: str, held: LLVMType) -> str:
        if self.dtype.bits == 8:
            return self.emitter.ops.convert("trunc", held, bits, self.type)
        return self.emitter.ops.convert("bitcast", held, bits, self.type) if self.type.is_float else bits

    def _expanded(self, pointer: str, values: list[str]) -> str:
        """Let LLVM write a loop, whose exchanges are relaxed ones of the device or of the whole system."""
        scope = "" if self.op.scope.data == "mesh" else 'syncscope("device") '
        operation, align = _operation(self.op.fn.data, self.dtype), self.dtype.bytes
        return self.emitter.fn.assign(
            f"atomicrmw {operation} {self.address} {pointer}, {self.type} {values[0]} {scope}monotonic, align {align}"
        )
