"""Atomics and fences of NVIDIA GPUs, as PTX; what the hardware lacks are loops of compare-and-swap.

A thread's only element is accessed by one instruction with its order and scope. Several elements, and loops, are
relaxed accesses between fences, which order all of them at once. Sequential consistency is a fence of its own before
the access.

Threads that take no part are predicated off, and a loop goes on for a whole warp until its last thread is done: no
thread leaves its warp. ptxas (13.0, from -O1 on) does not bring threads together again after some loops that they leave
one by one, and `bar.sync` needs whole warps.

Source: "PTX Writer's Guide to Interoperability", section "Atomics ABI"; Lustig et al., "A Formal Analysis of the NVIDIA
PTX Memory Consistency Model", ASPLOS 2019; PTX ISA, "Memory consistency model".
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.llvm.elementwise import apply
from tessera.backends.llvm.types import LLVMType
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.emitter import copies
from tessera.backends.simt.memory import element_pointer, owned_registers
from tessera.data import dataclass
from tessera.ir.atomics import acquires, releases
from tessera.ir.layouts import REGISTER
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
_REGISTER = {"i16": "h", "i32": "r", "i64": "l"}
_ELEMENTWISE = {"max": "maximum", "min": "minimum"}
"""Names of elementwise functions, where they are others."""
_WORD = LLVMType("i32")
"""What the narrowest compare-and-swap of all GPUs works on."""


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
        old[register] = atomic.emit(pointer, register, predicate)
    if not alone and acquires(fn, order):
        _fence(emitter, "acquire", scope)
    if op.result is not None:
        type_ = op.result.type
        first = copies(type_.linear.sublayout([REGISTER])) if isinstance(type_, FragmentType) else [0]
        emitter.bind(op.result, [old[register] for register in first])


def _kind(emitter: NvidiaEmitter, fn: str, dtype: DType) -> str | None:
    """Return the type that PTX's instruction names; None where there is none."""
    bits = dtype.bytes * 8
    if fn in ("load", "store", "compare_exchange", "exchange"):
        least = {"load": 8, "store": 8, "compare_exchange": 16, "exchange": 32}[fn]
        return f"b{bits}" if bits >= least else None
    if dtype.is_float:
        native = {"f64": "f64", "f32": "f32", "f16": "noftz.f16"}
        if emitter.target.has("atomic_bf16x2"):
            native["bf16"] = "noftz.bf16"
        return native.get(dtype.name) if fn == "add" else None
    sign = "s" if dtype.kind == "int" else "u"
    return {"add": "u", "min": sign, "max": sign}.get(fn, "b") + str(dtype.bits) if dtype.bits >= 32 else None


def _integer(bits: int) -> LLVMType:
    return LLVMType(f"i{bits}")


def _size(integer: LLVMType) -> int:
    """Return the bits of an integer type."""
    return int(integer.element[1:])


@dataclass(frozen=True)
class _Atomic:
    """An access of one element.

    Args:
        emitter: the emitter.
        op: the op.
        dtype: the tensor's.
        kind: the type that PTX's instruction names, None for a loop.
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
        return self.emitter.value_type(self.dtype)

    @property
    def bits(self) -> LLVMType:
        """The integer of an element's bytes."""
        return _integer(self.dtype.bytes * 8)

    @property
    def address(self) -> str:
        """LLVM's type of the address."""
        assert isinstance(self.op.pointer.type, PointerType)
        return str(self.emitter.pointer_type(self.op.pointer.type))

    @property
    def space(self) -> str:
        """PTX's name of where the element lies."""
        return "shared" if self.address.endswith("(3)") else "global"

    def emit(self, pointer: str, register: int, predicate: str | None) -> str:
        """Access an element and return its old value, "" for a store; zero where the predicate is false."""
        given = [v for v in (self.op.compare, self.op.value) if v is not None]
        values = [self.emitter.units(value)[register] for value in given]
        if self.kind is None:
            return self._loop(pointer, values, predicate)
        return self._instruction(pointer, values, predicate)

    def _instruction(self, pointer: str, values: list[str], predicate: str | None) -> str:
        emitter, fn, order = self.emitter, self.op.fn.data, self.order
        if order == "seq_cst":
            _fence(emitter, order, self.op.scope.data)
            order = _SEQUENTIAL.get(fn, "acquire")
        used = self.op.result is not None and (fn == "load" or bool(self.op.result.uses.get_length()))
        reduces = fn in _REDUCTIONS and not used and order in ("relaxed", "release")
        name = {"load": "ld", "store": "st"}.get(fn, "red" if reduces else "atom")
        function = "" if fn in ("load", "store") else f".{_PTX.get(fn, fn)}"
        text = f"{name}.{order}.{_scope(emitter, self.op.scope.data)}.{self.space}{function}.{self.kind}"
        held = _integer(max(self.dtype.bytes * 8, 16))
        given = [(self.address, pointer), *((str(held), self.held(value, held)) for value in values)]
        found = self._guarded(text, given, held if name in ("ld", "atom") else None, predicate)
        if found:
            return self.value(emitter.ops.convert("trunc", held, found, self.bits) if held != self.bits else found)
        return "" if self.op.result is None else emitter.zero(self.dtype)

    def _guarded(
        self, text: str, given: Sequence[tuple[str, str]], gives: LLVMType | None, predicate: str | None
    ) -> str:
        """Emit an instruction on an address and values; return its result, zero where the predicate is false."""
        count, constraint = len(given), [_REGISTER[type_] for type_, _ in given[1:]]
        first = int(gives is not None)
        operands = [f"[${first}]", *(f"${first + 1 + number}" for number in range(count - 1))]
        constraints = ["l", *constraint]
        guard, clear, given = "", "", list(given)
        if predicate is not None:
            guard, clear = f"@${first + count} ", f"mov.b{_size(gives)} $0, 0; " if gives is not None else ""
            constraints.append("b")
            given.append(("i1", predicate))
        if gives is not None:
            operands.insert(0, "$0")
            constraints.insert(0, f"={'&' if clear else ''}{_REGISTER[gives.element]}")
        line = f"{clear}{guard}{text} {', '.join(operands)};"
        found = self.emitter.asm(line, ",".join([*constraints, "~{memory}"]), [gives] if gives else [], given)
        return found[0] if found else ""

    def held(self, value: str, held: LLVMType) -> str:
        """Return a value's bits as an integer that is at least as wide."""
        ops = self.emitter.ops
        if self.dtype.kind == "bool":
            return ops.convert("zext", self.type, value, held)
        bits = ops.convert("bitcast", self.type, value, self.bits) if self.type.is_float else value
        return ops.convert("zext", self.bits, bits, held) if held != self.bits else bits

    def value(self, bits: str) -> str:
        """Return the value of an element's bits."""
        ops = self.emitter.ops
        if self.dtype.kind == "bool":
            return ops.convert("trunc", self.bits, bits, self.type)
        return ops.convert("bitcast", self.bits, bits, self.type) if self.type.is_float else bits

    def _loop(self, pointer: str, values: list[str], predicate: str | None) -> str:
        """Swap in new words until that succeeds in all threads of the warp; return the old value."""
        emitter, fn = self.emitter, self.emitter.fn
        word = _Word(self, pointer) if self.dtype.bytes < 4 else _Whole(self, pointer)
        instruction = f"relaxed.{_scope(emitter, self.op.scope.data)}.{self.space}"
        at = (self.address, word.pointer)
        start = self._guarded(f"ld.{instruction}.b{_size(word.type)}", [at], word.type, predicate)
        head, end, before = fn.label("retry"), fn.label("done"), fn.block
        fn.branch(head)
        fn.start(head)
        old, pending, places = fn.fresh("old"), fn.fresh("pending"), (fn.reserve(), fn.reserve())
        element = word.element(old)
        new, wanted = self._updated(element, values)
        trying = emitter.both(pending, wanted)
        assert trying is not None
        given = [at, (str(word.type), old), (str(word.type), word.replaced(old, new))]
        seen = self._guarded(f"atom.{instruction}.cas.b{_size(word.type)}", given, word.type, trying)
        current = emitter.ops.select(word.type, trying, seen, old)
        left = emitter.both(trying, emitter.ops.compare("ne", word.type, current, old))
        assert left is not None
        again = emitter.any_lane(left)
        for place, name, type_, first, following in (
            (places[0], old, word.type, start, current),
            (places[1], pending, "i1", predicate or "true", left),
        ):
            fn.fill(place, f"{name} = phi {type_} [ {first}, %{before} ], [ {following}, %{fn.block} ]")
        fn.branch_if(again, head, end, f", !llvm.loop {emitter.module.loop()}")
        fn.start(end)
        return element

    def _updated(self, element: str, values: Sequence[str]) -> tuple[str, str | None]:
        """Return what an element becomes, and whether it is to be stored (None for always)."""
        fn = self.op.fn.data
        if fn == "exchange":
            return values[0], None
        if fn == "compare_exchange":
            bits = [self.held(value, self.bits) for value in (element, values[0])]
            return values[1], self.emitter.ops.compare("eq", self.bits, *bits)
        return apply(self.emitter, _ELEMENTWISE.get(fn, fn), self.dtype, 1, [element, values[0]]), None


class _Whole:
    """An element that is a word of its own.

    Args:
        atomic: the access.
        pointer: the element's address.
    """

    def __init__(self, atomic: _Atomic, pointer: str) -> None:
        self.atomic, self.pointer, self.type = atomic, pointer, atomic.bits

    def element(self, word: str) -> str:
        """Return the element's value."""
        return self.atomic.value(word)

    def replaced(self, word: str, value: str) -> str:
        """Return the word with another value."""
        return self.atomic.held(value, self.type)


class _Word:
    """The word of 32 bits around a narrower element.

    Args:
        atomic: the access.
        pointer: the element's address.
    """

    type = _WORD

    def __init__(self, atomic: _Atomic, pointer: str) -> None:
        self.atomic, self.ops = atomic, atomic.emitter.ops
        address, wide = LLVMType(atomic.address), LLVMType("i64")
        place = self.ops.convert("ptrtoint", address, pointer, wide)
        low = self.ops.convert("trunc", wide, self.ops.binary("and", wide, place, "3"), _WORD)
        self.shift = self.ops.binary("shl", _WORD, low, "3")
        mask = self.ops.binary("shl", _WORD, str((1 << _size(atomic.bits)) - 1), self.shift)
        self.others = self.ops.binary("xor", _WORD, mask, "-1")
        self.pointer = self.ops.convert("inttoptr", wide, self.ops.binary("and", wide, place, "-4"), address)

    def element(self, word: str) -> str:
        """Return the element's value."""
        bits = self.ops.binary("lshr", _WORD, word, self.shift)
        return self.atomic.value(self.ops.convert("trunc", _WORD, bits, self.atomic.bits))

    def replaced(self, word: str, value: str) -> str:
        """Return the word with another value of the element."""
        bits = self.ops.binary("shl", _WORD, self.atomic.held(value, _WORD), self.shift)
        return self.ops.binary("or", _WORD, self.ops.binary("and", _WORD, word, self.others), bits)
