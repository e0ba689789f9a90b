"""A small writer of width-generic vector LLVM IR: values with operators that append SSA text.

`Writer` builds one function; `Value` is one SSA name with its element kind. Every operation is emitted as
written: no fast-math flag is ever set, and a fused multiply-add appears only where `Writer.fma` asks for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field
from typing import Final, TypeAlias

from tessera.data import dataclass

LLVM_ELEMENT: Final = {"f32": "float", "f64": "double", "i32": "i32", "i64": "i64", "i1": "i1"}
FLOAT_KINDS: Final = frozenset({"f32", "f64"})


@dataclass(frozen=True)
class Format:
    """What an algorithm must know of a binary floating-point format and of the integers of the same size."""

    elem: str
    ints: str
    bits: int
    mantissa: int
    bias: int

    @property
    def one(self) -> int:
        """The bits of 1.0."""
        return self.bias << self.mantissa

    @property
    def sign(self) -> int:
        """The sign bit alone."""
        return 1 << (self.bits - 1)

    @property
    def mantissa_mask(self) -> int:
        """The explicit mantissa bits."""
        return (1 << self.mantissa) - 1

    @property
    def round_magic(self) -> float:
        """1.5 * 2^mantissa: added to a small number it leaves the nearest integer in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def min_normal(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def bits_of(self, value: float) -> int:
        """The bits of a number of this format, unsigned."""
        if self.elem == "f32":
            return int(struct.unpack("<I", struct.pack("<f", value))[0])
        return int(struct.unpack("<Q", struct.pack("<d", value))[0])

    def nearest(self, value: float) -> float:
        """The nearest number of this format."""
        if self.elem == "f32":
            return float(struct.unpack("<f", struct.pack("<f", value))[0])
        return value


F32: Final = Format("f32", "i32", 32, 23, 127)
F64: Final = Format("f64", "i64", 64, 52, 1023)
FORMATS: Final = {"f32": F32, "f64": F64}


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value (or constant) of a `Writer`; operators append instructions, numbers become splats."""

    writer: Writer
    kind: str
    text: str

    def __add__(self, other: Operand) -> Value:
        return self.writer.binary("add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.writer.binary("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.writer.binary("sub", self.writer.const(self.kind, other), self)

    def __mul__(self, other: Operand) -> Value:
        return self.writer.binary("mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.writer.binary("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.writer.binary("div", self.writer.const(self.kind, other), self)

    def __and__(self, other: Operand) -> Value:
        return self.writer.binary("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.writer.binary("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.writer.binary("xor", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.writer.binary("shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        """Logical shift: AVX2 has no arithmetic one for 64-bit elements."""
        return self.writer.binary("lshr", self, other)

    def compare(self, predicate: str, other: Operand) -> Value:
        """The i1 result of `fcmp` or `icmp` with an LLVM predicate (`olt`, `une`, `eq`, ...)."""
        return self.writer.compare(predicate, self, other)

    def to(self, opcode: str, kind: str) -> Value:
        """A conversion instruction (`bitcast`, `sitofp`, `fpext`, `zext`, ...) to another kind."""
        return self.writer.convert(opcode, self, kind)

    def as_int(self) -> Value:
        """The bits of a float."""
        return self.to("bitcast", "i32" if self.kind == "f32" else "i64")

    def as_float(self) -> Value:
        """The float with these bits."""
        return self.to("bitcast", "f32" if self.kind == "i32" else "f64")


Operand: TypeAlias = Value | float


@dataclass
class Writer:
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

    def operand(self, kind: str, value: Operand) -> Value:
        """The value itself, or a number as a splat of the kind."""
        return value if isinstance(value, Value) else self.const(kind, value)

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
        return self.emit(left.kind, f"{name} {self.type_of(left.kind)} {left.text}, {right.text}")

    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """A comparison."""
        right = self.operand(left.kind, right)
        opcode = "fcmp" if left.kind in FLOAT_KINDS else "icmp"
        return self.emit("i1", f"{opcode} {predicate} {self.type_of(left.kind)} {left.text}, {right.text}")

    def convert(self, opcode: str, value: Value, kind: str) -> Value:
        """A conversion; none when the kind is already right."""
        if value.kind == kind:
            return value
        return self.emit(kind, f"{opcode} {self.type_of(value.kind)} {value.text} to {self.type_of(kind)}")

    def select(self, condition: Value, true: Operand, false: Operand) -> Value:
        """`condition ? true : false`; at least one side must be a `Value`."""
        kind = true.kind if isinstance(true, Value) else false.kind if isinstance(false, Value) else ""
        true, false = self.operand(kind, true), self.operand(kind, false)
        kind_type, bool_type = self.type_of(kind), self.type_of("i1")
        return self.emit(
            kind, f"select {bool_type} {condition.text}, {kind_type} {true.text}, {kind_type} {false.text}"
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
        given = [(self.type_of(argument.kind), argument.text) for argument in arguments] + list(literals)
        self.declare(f"declare {self.type_of(kind)} {symbol}({', '.join(kind for kind, _ in given)})")
        operands = ", ".join(f"{kind} {text}" for kind, text in given)
        return self.emit(kind, f"call {self.type_of(kind)} {symbol}({operands})")

    def lanes_of(self, value: Value, first: int, count: int) -> str:
        """Some neighbouring lanes of a vector, as a shorter vector."""
        vector = self.type_of(value.kind)
        mask = ", ".join(f"i32 {first + lane}" for lane in range(count))
        shuffle = f"shufflevector {vector} {value.text}, {vector} poison, <{count} x i32> <{mask}>"
        return self.emit(value.kind, shuffle).text

    def joined(self, kind: str, parts: Sequence[str], count: int) -> Value:
        """A whole vector from a power of two of parts with `count` lanes each."""
        texts = list(parts)
        while len(texts) > 1:
            vector = f"<{count} x {LLVM_ELEMENT[kind]}>"
            count *= 2
            mask = f"<{count} x i32> <{', '.join(f'i32 {lane}' for lane in range(count))}>"
            texts = [
                self.emit(kind, f"shufflevector {vector} {left}, {vector} {right}, {mask}").text
                for left, right in zip(texts[::2], texts[1::2], strict=True)
            ]
        return Value(self, kind, texts[0])

    def declare(self, item: str) -> None:
        """Record a module-level item this function needs, once."""
        if item not in self.declares:
            self.declares.append(item)

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """`a * b + c`, rounded once."""
        return self.intrinsic("fma", a, self.operand(a.kind, b), self.operand(a.kind, c))

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The polynomial with these coefficients, lowest power first."""
        total = self.const(x.kind, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, coefficient)
        return total

    def estrin(self, x: Value, coefficients: Sequence[float]) -> Value:
        """The same polynomial by groups of four that do not wait for each other, then Horner in x^4."""
        x2 = x * x
        x4 = x2 * x2
        groups: list[Value] = []
        for start in range(0, len(coefficients), 4):
            group = coefficients[start : start + 4]
            low = self.horner(x, group[:2])
            groups.append(self.fma(self.horner(x, group[2:]), x2, low) if len(group) > 2 else low)
        total = groups[-1]
        for group in reversed(groups[:-1]):
            total = self.fma(total, x4, group)
        return total

    def minimum(self, x: Value, bound: float) -> Value:
        """The smaller of the two; NaN stays (one `vminps`: the operand order matters)."""
        limit = self.const(x.kind, bound)
        return self.select(limit.compare("olt", x), limit, x)

    def maximum(self, x: Value, bound: float) -> Value:
        """The larger of the two; NaN stays."""
        limit = self.const(x.kind, bound)
        return self.select(limit.compare("ogt", x), limit, x)

    def negate(self, x: Value) -> Value:
        """The float with its sign flipped."""
        return self.emit(x.kind, f"fneg {self.type_of(x.kind)} {x.text}")

    def magnitude(self, x: Value) -> Value:
        """The absolute value."""
        return self.intrinsic("fabs", x)

    def any_lane(self, condition: Value) -> Value:
        """A scalar i1: true when any lane is."""
        if self.width == 1:
            return condition
        symbol = f"@llvm.vector.reduce.or.v{self.width}i1"
        self.declare(f"declare i1 {symbol}({self.type_of('i1')})")
        return self.emit("i1", f"call i1 {symbol}({self.type_of('i1')} {condition.text})")

    def branch(self, condition: Value, true: str, false: str) -> None:
        """End the block with a conditional branch."""
        self.lines.append(f"  br i1 {condition.text}, label %{true}, label %{false}")

    def jump(self, block: str) -> None:
        """End the block with an unconditional branch."""
        self.lines.append(f"  br label %{block}")

    def start(self, block: str) -> None:
        """Open a block."""
        self.lines.append(f"{block}:")
        self.block = block

    def phi(self, kind: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        """A phi of values with the blocks they come from."""
        pairs = ", ".join(f"[ {value.text}, %{block} ]" for value, block in incoming)
        return self.emit(kind, f"phi {self.type_of(kind)} {pairs}")

    def lane(self, vector: Value, index: int) -> Value:
        """One lane as a scalar."""
        if self.width == 1:
            return vector
        return self.emit(vector.kind, f"extractelement {self.type_of(vector.kind)} {vector.text}, i64 {index}")

    def with_lane(self, vector: Value, scalar: Value, index: int) -> Value:
        """The vector with one lane replaced by a scalar."""
        if self.width == 1:
            return scalar
        element = f"{LLVM_ELEMENT[scalar.kind]} {scalar.text}"
        return self.emit(
            vector.kind, f"insertelement {self.type_of(vector.kind)} {vector.text}, {element}, i64 {index}"
        )
