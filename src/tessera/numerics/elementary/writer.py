"""The operations that elementary functions are written in: values with operators, for whoever computes or emits them.

`Writer` says what each operation is; LLVM's text (`backends.llvm.vecmath_ir`) and NumPy (`interp.elementary`) are two
of them. Every operation is one of IEEE 754 or of integers, as written: a fused multiply-add appears only where
`Writer.fma` asks for it.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from tessera.data import dataclass

FLOAT_KINDS: Final = frozenset({"f32", "f64"})


UNIT: Final = "nvidia-special-function-unit"
"""The feature of targets with `ex2.approx` (2 ULP) and `rcp.approx` (1 ULP): PTX ISA, "Floating Point Instructions"."""


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
    """One value of a `Writer`; operators are its operations, numbers become constants.

    Args:
        writer: what it belongs to.
        kind: `f32`, `f64`, `i32`, `i64` or `i1`.
        held: what the writer knows it by: LLVM's text, or an array.
    """

    writer: Writer
    kind: str
    held: Any

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


class Writer(ABC):
    """Computes or emits the operations of one function, on `width` elements at once."""

    width: int
    block: str

    @abstractmethod
    def const(self, kind: str, value: float) -> Value:
        """A constant; a float is rounded to the format, an integer wraps to the kind's width."""

    @abstractmethod
    def binary(self, opcode: str, left: Value, right: Operand) -> Value:
        """`add`, `sub`, `mul`, `div`, `and`, `or`, `xor`, `shl` or `lshr`."""

    @abstractmethod
    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """A comparison by a predicate of LLVM's."""

    @abstractmethod
    def convert(self, opcode: str, value: Value, kind: str) -> Value:
        """A conversion by an instruction of LLVM's; none when the kind is already right."""

    @abstractmethod
    def select(self, condition: Value, true: Operand, false: Operand) -> Value:
        """`condition ? true : false`; at least one side must be a `Value`."""

    @abstractmethod
    def intrinsic(self, name: str, *arguments: Value) -> Value:
        """`fma`, `fabs`, `sqrt`, `copysign`, `rint` or `fshl`."""

    @abstractmethod
    def negate(self, x: Value) -> Value:
        """The float with its sign flipped."""

    @abstractmethod
    def avx512(self, name: str, arguments: tuple[Value, ...], immediates: tuple[str, ...], suffix: str) -> Value:
        """An AVX-512 intrinsic, for writers whose functions are given features that have it.

        Args:
            name: without `@llvm.x86.avx512.` and suffix.
            arguments: its vectors.
            immediates: its i32 operands after them.
            suffix: what `avx512_suffix` gives.
        """

    @abstractmethod
    def unit(self, instruction: str, *xs: Value) -> Value:
        """An instruction of a GPU's special function unit on f32, for writers whose features have `UNIT`."""

    @abstractmethod
    def large_remainder(self, a: Value) -> tuple[Value, Value, Value]:
        """What `trigonometry.Reduced` holds of an f64 from 2^30 up, by all bits of 2/pi that matter."""

    @abstractmethod
    def any_lane(self, condition: Value) -> Value:
        """Whether it holds for any element."""

    @abstractmethod
    def branch(self, condition: Value, true: str, false: str) -> None:
        """End the block: go to one of two. A writer may compute both, and takes then what comes from the first."""

    @abstractmethod
    def jump(self, block: str) -> None:
        """End the block: go to another."""

    @abstractmethod
    def start(self, block: str) -> None:
        """Open a block."""

    @abstractmethod
    def phi(self, kind: str, incoming: Sequence[tuple[Value, str]]) -> Value:
        """The value that comes from the block before."""

    def operand(self, kind: str, value: Operand) -> Value:
        """The value itself, or a number as a constant of the kind."""
        return value if isinstance(value, Value) else self.const(kind, value)

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

    def magnitude(self, x: Value) -> Value:
        """The absolute value."""
        return self.intrinsic("fabs", x)
