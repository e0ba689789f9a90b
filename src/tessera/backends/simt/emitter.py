"""The SIMT model of emission: one scalar LLVM value per register of a fragment.

Positions follow from layouts: thread parts are XORs of lane and warp bits, computed once in the entry block;
register parts are constants.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from xdsl.ir import Attribute, Operation, SSAValue

from tessera.backends.llvm.arithmetic import ARITHMETIC
from tessera.backends.llvm.control import CONTROL
from tessera.backends.llvm.emitter import Emitter, Handlers
from tessera.backends.llvm.ops import I8, I16, I32, I64
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, memory_element, of_dtype
from tessera.data import dataclass
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout
from tessera.ir.target.types import BufferType, FragmentType, PointerType
from tessera.ir.target.warpgroup import PendingType
from tessera.numerics.dtypes import DType

SIMT = Handlers()


@dataclass(frozen=True)
class Access:
    """One memory access of a thread: neighbouring elements that move together.

    Args:
        registers: the fragment's registers, in memory order.
        at: what the register part adds to the thread's coordinates (or offset).
    """

    registers: tuple[int, ...]
    at: tuple[int, ...]


class SimtEmitter(Emitter):
    """Writes one GPU function.

    Args:
        module: the module being written.
        fn: the function being written.
        profile: numerics profile.
        num_warps: warps of a program.

    `words` are the packed registers of fragments of narrow elements; `loaded` is what loads found, by place, each with
    the first load that did; `positions` splits a register's coordinate in the thread's part and a constant;
    `upper_halves` are the words of two elements, by the second one.
    """

    registries: ClassVar[tuple[Handlers, ...]] = (SIMT, CONTROL, ARITHMETIC)

    def __init__(self, module: ModuleText, fn: FunctionText, profile: str, num_warps: int):
        super().__init__(module, fn, profile)
        self.num_warps = num_warps
        self.words: dict[SSAValue, list[str]] = {}
        self.loaded: dict[Any, tuple[Operation, list[str]]] = {}
        self.positions: dict[str, tuple[str, int]] = {}
        self.upper_halves: dict[str, str] = {}
        self._entry: dict[object, str] = {}

    # What a GPU backend provides

    def lane(self) -> str:
        """Return the lane's number, an i32 of the entry block."""
        raise NotImplementedError

    def warp(self) -> str:
        """Return the warp's number, an i32 of the entry block."""
        raise NotImplementedError

    def program_id(self) -> str:
        """Return the program's number, an i64."""
        raise NotImplementedError

    def program_count(self) -> str:
        """Return the number of programs of the launch, an i64."""
        raise NotImplementedError

    def shared_pointer(self, offset: str) -> str:
        """Return the address of a byte (i32) of shared memory."""
        raise NotImplementedError

    def load_words(
        self, pointer: str, words: Sequence[LLVMType], predicate: str | None, otherwise: Sequence[str] | None = None
    ) -> list[str]:
        """Load words from global memory; zeros, or other words, where the predicate is false."""
        raise NotImplementedError

    def load_holding(self, pointer: str, predicate: str | None, count: int = 1) -> list[str]:
        """Load so many i32, aligned as a whole, around elements; zeros where the predicate is false."""
        return self.load_words(pointer, [I32] * count, predicate)

    def store_words(self, pointer: str, words: Sequence[tuple[LLVMType, str]], predicate: str | None) -> None:
        """Store words to global memory where the predicate is true."""
        raise NotImplementedError

    def shuffle_xor(self, value: str, mask: int | str) -> str:
        """Return the i32 that lane `lane ^ mask` holds."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait for all threads of the program."""
        raise NotImplementedError

    def native_narrow(self, dtype: DType) -> str | None:
        """Return the LLVM type of a 16-bit float that the target converts to natively, None for others."""
        raise NotImplementedError

    # Units

    def fragment_units(self, type_: FragmentType) -> tuple[int, int]:
        """Return one scalar unit per register."""
        return type_.linear.in_size(REGISTER), 1

    def carried_types(self, type_: Attribute) -> list[LLVMType]:
        """Return words of 32 bits for fragments of narrower elements, so that they take no more registers."""
        if isinstance(type_, PendingType):
            return super().carried_types(type_.fragment)
        per_word = _per_word(type_)
        return [I32] * (self.unit_count(type_) // per_word) if per_word else super().carried_types(type_)

    def carried(self, value: SSAValue) -> list[tuple[LLVMType, str]]:
        """Return a value as loops and branches carry it: packed words where it is in those."""
        per_word = _per_word(value.type)
        if not per_word:
            return super().carried(value)
        assert isinstance(value.type, FragmentType)
        units, words = self.units(value), self.words.get(value)
        if words is None:
            words = [word for _, word in self.pack(units, value.type.dtype)]
        return [(I32, self.opaque(word)) for word in words]

    def opaque(self, word: str) -> str:
        """Return an i32 whose origin LLVM does not see, so that it cannot carry the wider values behind it."""
        return word

    def bind_carried(self, value: SSAValue, given: Sequence[str]) -> None:
        """Bind a value to what was carried; packed words stay packed for the matrix unit."""
        if not _per_word(value.type):
            super().bind_carried(value, given)
            return
        assert isinstance(value.type, FragmentType)
        self.words[value] = list(given)
        self.bind(value, self.unpack(given, value.type.dtype, self.unit_count(value.type)))

    def pointer_type(self, type_: PointerType | BufferType) -> LLVMType:
        """Return the type of addresses: a byte offset in shared memory for buffers."""
        if isinstance(type_, BufferType):
            return I32
        return LLVMType("ptr addrspace(3)" if type_.space.data == "shared" else "ptr addrspace(1)")

    # Thread positions

    def entry(self, key: object, rhs: str) -> str:
        """Return a value computed once at the start of the function."""
        if key not in self._entry:
            self._entry[key] = self.fn.entry_assign(rhs)
        return self._entry[key]

    def linear(self, inputs: Sequence[tuple[str, Sequence[int]]]) -> str:
        """Return the XOR over inputs of their bits' columns, an i32 of the entry block.

        Args:
            inputs: an i32 (of the entry block) and the value each of its bits contributes.
        """
        parts = [part for value, columns in inputs for part in self._runs(value, columns)]
        if not parts:
            return "0"
        total = parts[0]
        for part in parts[1:]:
            total = self.entry(("xor", total, part), f"xor i32 {total}, {part}")
        return total

    def _runs(self, value: str, columns: Sequence[int]) -> Iterable[str]:
        """Yield one term per run of bits whose columns double: `(value >> low & mask) << shift`."""
        bit = 0
        while bit < len(columns):
            first, length = columns[bit], 1
            if first == 0:
                bit += 1
                continue
            single = first & (first - 1) == 0
            while single and bit + length < len(columns) and columns[bit + length] == first << length:
                length += 1
            yield self._run(value, bit, length, first)
            bit += length

    def _run(self, value: str, bit: int, length: int, column: int) -> str:
        mask = (1 << length) - 1 << bit
        term = self.entry(("and", value, mask), f"and i32 {value}, {mask}")
        if column & (column - 1):
            low = self.entry(("lshr", term, bit), f"lshr i32 {term}, {bit}") if bit else term
            return self.entry(("mul", low, column), f"mul i32 {low}, {column}")
        shift = column.bit_length() - 1 - bit
        if shift == 0:
            return term
        op, amount = ("shl", shift) if shift > 0 else ("lshr", -shift)
        return self.entry((op, term, amount), f"{op} i32 {term}, {amount}")

    def thread_part(self, layout: LinearLayout, axis: int) -> str:
        """Return the lane's and warp's part of a coordinate, an i32."""
        return self.linear(
            [
                (self.lane(), [v[axis] for v in layout.in_bases(LANE)]),
                (self.warp(), [v[axis] for v in layout.in_bases(WARP)]),
            ]
        )

    def owner_predicate(self, layout: LinearLayout) -> str | None:
        """Return whether this thread is the one of several copies that writes, None when there is one copy."""
        masks = layout.free_variable_masks()
        tests: list[str] = []
        for value, mask in ((self.lane(), masks.get(LANE, 0)), (self.warp(), masks.get(WARP, 0))):
            if mask:
                bits = self.entry(("and", value, mask), f"and i32 {value}, {mask}")
                tests.append(self.entry(("owner", bits), f"icmp eq i32 {bits}, 0"))
        if len(tests) == 2:
            return self.entry(("both", *tests), f"and i1 {tests[0]}, {tests[1]}")
        return tests[0] if tests else None

    # Words: elements as they move through memory

    def pack(self, units: Sequence[str], dtype: DType) -> list[tuple[LLVMType, str]]:
        """Return neighbouring elements as the widest words they fill (i8, i16, i32, or i64 for 64-bit ones)."""
        element = LLVMType(memory_element(dtype))
        values = list(units)
        if dtype.kind == "bool":
            values = [self.ops.convert("zext", LLVMType("i1"), unit, I8) for unit in values]
        word = _word_type(len(values) * dtype.bytes, dtype.bytes)
        per_word = _bytes(word) // dtype.bytes
        packed: list[tuple[LLVMType, str]] = []
        for start in range(0, len(values), per_word):
            packed.append((word, self.join(values[start : start + per_word], element, word)))
        return packed

    def join(self, values: Sequence[str], element: LLVMType, word: LLVMType) -> str:
        """Return the word of these elements, the first in the lowest bits."""
        if len(values) == 1:
            if element.element == word.element:
                return values[0]
            return self.ops.convert("bitcast", element, values[0], word)
        vector = LLVMType(element.element, len(values))
        text = "poison"
        for lane, value in enumerate(values):
            text = self.ops.insert(vector, text, value, lane)
        return self.ops.convert("bitcast", vector, text, word)

    def unpack(self, words: Sequence[str], dtype: DType, count: int) -> list[str]:
        """Return the elements that words hold, as register values."""
        element = LLVMType(memory_element(dtype))
        word = _word_type(count * dtype.bytes, dtype.bytes)
        per_word = _bytes(word) // dtype.bytes
        units = [unit for value in words for unit in self.split(value, element, word, per_word)]
        if dtype.kind == "bool":
            return [self.ops.compare("ne", I8, unit, "0") for unit in units]
        return units

    def split(self, value: str, element: LLVMType, word: LLVMType, count: int) -> list[str]:
        """Return the elements of one word."""
        if count == 1:
            return [value if element.element == word.element else self.ops.convert("bitcast", word, value, element)]
        vector = LLVMType(element.element, count)
        cast = self.ops.convert("bitcast", word, value, vector)
        found = [self.ops.extract(vector, cast, lane) for lane in range(count)]
        if count == 2 and word == I32:
            self.upper_halves[found[1]] = value
        return found

    def word_types(self, dtype: DType, count: int) -> list[LLVMType]:
        """Return the words that `count` neighbouring elements fill."""
        word = _word_type(count * dtype.bytes, dtype.bytes)
        return [word] * (count * dtype.bytes // _bytes(word))

    def zero(self, dtype: DType) -> str:
        """Return the zero of a dtype as a register value."""
        type_ = of_dtype(dtype)
        if dtype.kind == "bool":
            return "false"
        return self.ops.real(type_, 0.0) if type_.is_float else "0"

    @contextmanager
    def some_threads(self, condition: str | None, hint: str) -> Generator[None]:
        """Emit what only the threads execute for which a condition holds; all do where it is None.

        No other branch may lead into the block: where regions cross that way ptxas lets the threads of a warp go on
        apart, also to barriers that need whole warps. LLVM would sink equal ends of two such blocks to one that both
        branches enter: the empty assembly at its end stays where it is. And it would lead threads from one such branch
        past or into the block of the next one of the same condition: what is `convergent` before the branch is not
        copied to where that is known.
        """
        if condition is None:
            yield
            return
        fn = self.fn
        then, join = fn.label(hint), fn.label(f"{hint}.end")
        fn.line('call void asm sideeffect "", ""() convergent memory(inaccessiblemem: readwrite)')
        fn.branch_if(condition, then, join)
        fn.start(then)
        yield
        self.fn.line('call void asm sideeffect "", ""()')
        fn.branch(join)
        fn.start(join)

    def both(self, first: str | None, second: str | None) -> str | None:
        """Return the conjunction of two predicates, None standing for true."""
        if first is None or second is None:
            return first or second
        return self.fn.assign(f"and i1 {first}, {second}")


def _per_word(type_: Attribute) -> int:
    """Return how many elements of a fragment share a word when loops carry it; 0 when each has its own register."""
    if not isinstance(type_, FragmentType) or type_.dtype.kind == "bool" or type_.dtype.bytes >= 4:
        return 0
    per_word = 4 // type_.dtype.bytes
    return 0 if type_.linear.in_size(REGISTER) % per_word else per_word


def _bytes(type_: LLVMType) -> int:
    return int(type_.element[1:]) // 8


def _word_type(total_bytes: int, element_bytes: int) -> LLVMType:
    if element_bytes == 8:
        return I64
    return I8 if total_bytes == 1 else I16 if total_bytes == 2 else I32


def register_accesses(columns: LinearLayout, axis: int, vector: int) -> list[Access]:
    """Group a layout's registers into accesses of `vector` neighbours along output `axis`.

    Registers that hold copies of an earlier one are left out (see `copies`).
    """
    where: dict[tuple[int, ...], int] = {}
    for register in range(columns.in_size(REGISTER)):
        where.setdefault(columns.apply(register=register), register)
    found: list[Access] = []
    for at in sorted(where):
        if at[axis] % vector:
            continue
        run = [tuple(x + (i if a == axis else 0) for a, x in enumerate(at)) for i in range(vector)]
        found.append(Access(tuple(where[place] for place in run), at))
    return found


def copies(columns: LinearLayout) -> list[int]:
    """Return, for every register, the first register that holds the same element."""
    first: dict[tuple[int, ...], int] = {}
    return [
        first.setdefault(columns.apply(register=register), register) for register in range(columns.in_size(REGISTER))
    ]
