"""Elementary functions as LLVM IR of any vector width: values append SSA text.

Every operation is emitted as written: no fast-math flag is ever set.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field
from typing import Final

from tessera.backends.llvm.vecmath_remainder import HELPER_ITEMS, HELPER_RESULT
from tessera.data import dataclass
from tessera.numerics.elementary.writer import FLOAT_KINDS, FORMATS, Operand, Value, Writer

LLVM_ELEMENT: Final = {"f32": "float", "f64": "double", "i32": "i32", "i64": "i64", "i1": "i1"}


@dataclass
class TextWriter(Writer):
    """Writes the body of one function over vectors of `width` elements (plain scalars when it is 1)."""

    width: int
    lines: list[str] = field(default_factory=list[str])
    declares: list[str] = field(default_factory=list[str])
    block: str = "entry"
    count: int = 0

    def type_of(self, kind: str) -> str:
        """The LLVM type of a value of this kind."""
        element = LLVM_ELEMENT[kind]
        return element if self.width == 1 else f"<{self.width} x {element}>"

    def suffix_of(self, kind: str) -> str:
        """The type part of an overloaded intrinsic's name, which is also used in our own symbols."""
        return kind if self.width == 1 else f"v{self.width}{kind}"

    def const(self, kind: str, value: float) -> Value:
        """A splat; a float is rounded to the format, an integer wraps to the kind's width."""
        if kind in FLOAT_KINDS:
            nearest = FORMATS[kind].nearest(value)
            literal = f"0x{struct.unpack('>Q', struct.pack('>d', nearest))[0]:016X}"
        else:
            literal = str(int(value) & ((1 << int(kind[1:])) - 1))
        scalar = f"{LLVM_ELEMENT[kind]} {literal}"
        return Value(self, kind, literal if self.width == 1 else f"splat ({scalar})")

    def emit(self, kind: str, instruction: str) -> Value:
        """Append one instruction and return its result."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, kind, name)

    def binary(self, opcode: str, left: Value, right: Operand) -> Value:
        """An arithmetic or bitwise instruction; `add`, `sub`, `mul`, `div` take the float form for floats."""
        right = self.operand(left.kind, right)
        name = f"f{opcode}" if left.kind in FLOAT_KINDS else opcode
        return self.emit(left.kind, f"{name} {self.type_of(left.kind)} {left.held}, {right.held}")

    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """A comparison."""
        right = self.operand(left.kind, right)
        opcode = "fcmp" if left.kind in FLOAT_KINDS else "icmp"
        return self.emit("i1", f"{opcode} {predicate} {self.type_of(left.kind)} {left.held}, {right.held}")

    def convert(self, opcode: str, value: Value, kind: str) -> Value:
        """A conversion; none when the kind is already right."""
        if value.kind == kind:
            return value
        return self.emit(kind, f"{opcode} {self.type_of(value.kind)} {value.held} to {self.type_of(kind)}")

    def select(self, condition: Value, true: Operand, false: Operand) -> Value:
        """`condition ? true : false`; at least one side must be a `Value`."""
        kind = true.kind if isinstance(true, Value) else false.kind if isinstance(false, Value) else ""
        true, false = self.operand(kind, true), self.operand(kind, false)
        kind_type, bool_type = self.type_of(kind), self.type_of("i1")
        return self.emit(
            kind, f"select {bool_type} {condition.held}, {kind_type} {true.held}, {kind_type} {false.held}"
        )

    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """A call of an intrinsic overloaded on its one type, `llvm.fma` for instance."""
        kind = arguments[0].kind
        symbol = f"@llvm.{name}.{self.suffix_of(kind)}"
        return self.call(kind, symbol, arguments)

    def call(
        self, kind: str, symbol: str, arguments: Sequence[Value], literals: Sequence[tuple[str, str]] = ()
    ) -> Value:
        """A call and the declaration it needs; `literals` are further operands as (type, text)."""
        given = [(self.type_of(argument.kind), argument.held) for argument in arguments] + list(literals)
        self.declare(f"declare {self.type_of(kind)} {symbol}({', '.join(kind for kind, _ in given)})")
        operands = ", ".join(f"{kind} {text}" for kind, text in given)
        return self.emit(kind, f"call {self.type_of(kind)} {symbol}({operands})")

    def avx512(self, name: str, arguments: tuple[Value, ...], immediates: tuple[str, ...], suffix: str) -> Value:
        """Call an AVX-512 intrinsic on each register of its operands."""
        elem, size = arguments[0].kind, int(suffix.split(".")[1])
        lanes = size // (32 if elem == "f32" else 64)
        symbol = f"@llvm.x86.avx512.{name}.{suffix}"
        rounds = suffix.endswith("512") and name.startswith("mask.")
        if lanes == self.width:
            literals = [("i32", value) for value in immediates] + _unmasked(self.type_of(elem), lanes, rounds)
            return self.call(elem, symbol, arguments, literals)
        one = self.type_of(elem).replace(f"<{self.width} ", f"<{lanes} ")
        fixed = [("i32", value) for value in immediates] + _unmasked(one, lanes, rounds)
        listed = [one] * len(arguments) + [kind for kind, _ in fixed]
        self.declare(f"declare {one} {symbol}({', '.join(listed)})")
        parts: list[str] = []
        for first in range(0, self.width, lanes):
            pieces = [self.lanes_of(argument, first, lanes) for argument in arguments]
            given = [f"{one} {piece}" for piece in pieces] + [f"{kind} {text}" for kind, text in fixed]
            parts.append(self.emit(elem, f"call {one} {symbol}({', '.join(given)})").held)
        return self.joined(elem, parts, lanes)

    def unit(self, instruction: str, *xs: Value) -> Value:
        """Write the instruction as inline assembly, as LLVM's intrinsics change their names."""
        assert self.width == 1, "a GPU's threads have numbers"
        places = ", ".join(f"${number}" for number in range(len(xs) + 1))
        given = ", ".join(f"float {x.held}" for x in xs)
        effect = "nounwind memory(none)"
        return self.emit("f32", f'call float asm "{instruction} {places};", "=f{",f" * len(xs)}"({given}) {effect}')

    def large_remainder(self, a: Value) -> tuple[Value, Value, Value]:
        """Call the scalar helper for each lane."""
        for item in HELPER_ITEMS:
            self.declare(item)
        kinds = ("f64", "f64", "i64")
        parts = [self.const(kind, 0) for kind in kinds]
        for lane in range(self.width):
            given = f"double {self.lane(a, lane).held}"
            result = self.emit("f64", f"call {HELPER_RESULT} @tessera_rem_pio2_f64({given})")
            for i, kind in enumerate(kinds):
                scalar = self.emit(kind, f"extractvalue {HELPER_RESULT} {result.held}, {i}")
                parts[i] = self.with_lane(parts[i], scalar, lane)
        return parts[0], parts[1], parts[2]

    def lanes_of(self, value: Value, first: int, count: int) -> str:
        """Some neighbouring lanes of a vector, as a shorter vector."""
        vector = self.type_of(value.kind)
        mask = ", ".join(f"i32 {first + lane}" for lane in range(count))
        shuffle = f"shufflevector {vector} {value.held}, {vector} poison, <{count} x i32> <{mask}>"
        return self.emit(value.kind, shuffle).held

    def joined(self, kind: str, parts: Sequence[str], count: int) -> Value:
        """A whole vector from a power of two of parts with `count` lanes each."""
        texts = list(parts)
        while len(texts) > 1:
            vector = f"<{count} x {LLVM_ELEMENT[kind]}>"
            count *= 2
            mask = f"<{count} x i32> <{', '.join(f'i32 {lane}' for lane in range(count))}>"
            texts = [
                self.emit(kind, f"shufflevector {vector} {left}, {vector} {right}, {mask}").held
                for left, right in zip(texts[::2], texts[1::2], strict=True)
            ]
        return Value(self, kind, texts[0])

    def declare(self, item: str) -> None:
        """Record a module-level item this function needs, once."""
        if item not in self.declares:
            self.declares.append(item)

    def negate(self, x: Value) -> Value:
        """The float with its sign flipped."""
        return self.emit(x.kind, f"fneg {self.type_of(x.kind)} {x.held}")

    def any_lane(self, condition: Value) -> Value:
        """A scalar i1: true when any lane is."""
        if self.width == 1:
            return condition
        symbol = f"@llvm.vector.reduce.or.v{self.width}i1"
        self.declare(f"declare i1 {symbol}({self.type_of('i1')})")
        return self.emit("i1", f"call i1 {symbol}({self.type_of('i1')} {condition.held})")

    def branch(self, condition: Value, true: str, false: str) -> None:
        """End the block with a conditional branch."""
        self.lines.append(f"  br i1 {condition.held}, label %{true}, label %{false}")

    def jump(self, block: str) -> None:
        """End the block with an unconditional branch."""
        self.lines.append(f"  br label %{block}")

    def start(self, block: str) -> None:
        """Open a block."""
        self.lines.append(f"{block}:")
        self.block = block

    def phi(self, kind: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        """A phi of values with the blocks they come from."""
        pairs = ", ".join(f"[ {value.held}, %{block} ]" for value, block in incoming)
        return self.emit(kind, f"phi {self.type_of(kind)} {pairs}")

    def lane(self, vector: Value, index: int) -> Value:
        """One lane as a scalar."""
        if self.width == 1:
            return vector
        return self.emit(vector.kind, f"extractelement {self.type_of(vector.kind)} {vector.held}, i64 {index}")

    def with_lane(self, vector: Value, scalar: Value, index: int) -> Value:
        """The vector with one lane replaced by a scalar."""
        if self.width == 1:
            return scalar
        element = f"{LLVM_ELEMENT[scalar.kind]} {scalar.held}"
        return self.emit(
            vector.kind, f"insertelement {self.type_of(vector.kind)} {vector.held}, {element}, i64 {index}"
        )


def abreast(w: TextWriter, value: Value, features: frozenset[str]) -> Value:
    """Have all registers of a value ready before any of them is used, where it takes several of AVX-512.

    An empty inline assembly with all of them in and out. Without it, LLVM's scheduler puts the long chains of each
    register's lanes one after another, to save registers, and a core's schedulers see few instructions that may run.
    """
    lanes = 512 // (64 if value.kind == "f64" else 32)
    parts = w.width // lanes
    if "avx512f" not in features or w.width % lanes or parts not in (2, 4):
        return value
    one = w.type_of(value.kind).replace(f"<{w.width} ", f"<{lanes} ")
    together = f"{{ {', '.join([one] * parts)} }}"
    pieces = ", ".join(f"{one} {w.lanes_of(value, part * lanes, lanes)}" for part in range(parts))
    places = ",".join(["=v"] * parts + [str(part) for part in range(parts)])
    group = w.emit(value.kind, f'call {together} asm "", "{places}"({pieces})').held
    held = [w.emit(value.kind, f"extractvalue {together} {group}, {part}").held for part in range(parts)]
    return w.joined(value.kind, held, lanes)


def _unmasked(vector: str, lanes: int, rounds: bool) -> list[tuple[str, str]]:
    """The last operands of an AVX-512 intrinsic: no pass-through, all lanes, and the current rounding if it rounds."""
    operands = [(vector, "zeroinitializer"), (f"i{max(lanes, 8)}", "-1")]
    return [*operands, ("i32", "4")] if rounds else operands
