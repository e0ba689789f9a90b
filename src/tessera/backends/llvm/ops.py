"""Single LLVM instructions on scalars and vectors: the vocabulary the emitters write in."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.llvm.remainder import vector_remainder_function
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, float_literal

I1, I8, I16, I32, I64 = (LLVMType(f"i{bits}") for bits in (1, 8, 16, 32, 64))
F32, F64, PTR = LLVMType("float"), LLVMType("double"), LLVMType("ptr")
Typed = tuple[LLVMType, str]


class Ops:
    """Appends instructions to a function.

    Args:
        module: where declarations go.
        fn: the function being written.
        contract: whether a multiplication and an addition may be fused.
    """

    def __init__(self, module: ModuleText, fn: FunctionText, contract: bool = False):
        self.module = module
        self.fn = fn
        self.flags = "contract " if contract else ""

    def binary(self, op: str, type_: LLVMType, a: str, b: str) -> str:
        """Append a two-operand instruction; `fadd`, `fsub`, `fmul` get the profile's fast-math flags."""
        flags = self.flags if op in ("fadd", "fsub", "fmul") else ""
        return self.fn.assign(f"{op} {flags}{type_} {a}, {b}")

    def remainder(self, type_: LLVMType, a: str, b: str) -> str:
        """Append the exact remainder with the dividend's sign (C's `fmod`)."""
        if type_.width == 1 or type_.element != F32.element:
            return self.fn.assign(f"frem {type_} {a}, {b}")
        name, text, declares = vector_remainder_function(type_.width)
        self.module.declare(*declares)
        self.module.define(name, text)
        return self.fn.assign(f"call {type_} @{name}({type_} {a}, {type_} {b})")

    def floored_quotient(self, type_: LLVMType, a: str, b: str) -> str:
        """Append `floor(a / b)` through the exact remainder: rounding of the quotient cannot reach the next integer."""
        zero, half, one = (self.real(type_, value) for value in (0.0, 0.5, 1.0))
        plain = self.fn.assign(f"fdiv {type_} {a}, {b}")
        rest, adjust = self.signed_remainder(type_, a, b)
        quotient = self.fn.assign(f"fdiv {type_} {self.fn.assign(f'fsub {type_} {a}, {rest}')}, {b}")
        # The quotient is adjusted, not the remainder: that would become infinite where the divisor is.
        quotient = self.select(type_, adjust, self.fn.assign(f"fsub {type_} {quotient}, {one}"), quotient)
        floor = self.intrinsic("floor", type_, quotient)
        above = self.compare("ogt", type_, self.fn.assign(f"fsub {type_} {quotient}, {floor}"), half)
        floor = self.select(type_, above, self.fn.assign(f"fadd {type_} {floor}, {one}"), floor)
        signed_zero = self.intrinsic("copysign", type_, zero, plain)
        floor = self.select(type_, self.compare("oeq", type_, quotient, zero), signed_zero, floor)
        return self.select(type_, self.compare("oeq", type_, b, zero), plain, floor)

    def signed_remainder(self, type_: LLVMType, a: str, b: str) -> tuple[str, str]:
        """Append the exact remainder with the dividend's sign, and whether Python's has the other one."""
        zero = self.real(type_, 0.0)
        rest = self.remainder(type_, a, b)
        nonzero = self.compare("one", type_, rest, zero)
        opposite = self.binary(
            "xor", type_.of("i1"), self.compare("olt", type_, rest, zero), self.compare("olt", type_, b, zero)
        )
        return rest, self.binary("and", type_.of("i1"), nonzero, opposite)

    def compare(self, predicate: str, type_: LLVMType, a: str, b: str) -> str:
        """Append a comparison; gives i1 lanes."""
        return self.fn.assign(f"{'fcmp' if type_.is_float else 'icmp'} {predicate} {type_} {a}, {b}")

    def select(self, type_: LLVMType, condition: str, a: str, b: str) -> str:
        """Append `condition ? a : b`, lane by lane."""
        return self.fn.assign(f"select {type_.of('i1')} {condition}, {type_} {a}, {type_} {b}")

    def convert(self, op: str, source: LLVMType, value: str, target: LLVMType) -> str:
        """Append a conversion such as `bitcast` or `fpext`."""
        return self.fn.assign(f"{op} {source} {value} to {target}")

    def call(self, symbol: str, result: LLVMType | None, args: Sequence[Typed]) -> str:
        """Append a call and declare the callee; an empty string when there is no result."""
        types = ", ".join(str(type_) for type_, _ in args)
        given = ", ".join(f"{type_} {value}" for type_, value in args)
        self.module.declare(f"declare {result or 'void'} @{symbol}({types})")
        if result is None:
            self.fn.line(f"call void @{symbol}({given})")
            return ""
        return self.fn.assign(f"call {result} @{symbol}({given})")

    def intrinsic(self, name: str, type_: LLVMType, *values: str, extra: Sequence[Typed] = ()) -> str:
        """Append a call of `llvm.name.<type>` whose result and operands are all of `type_`."""
        return self.call(f"llvm.{name}.{type_.mangled}", type_, [*((type_, v) for v in values), *extra])

    def extreme(self, name: str, type_: LLVMType, a: str, b: str) -> str:
        """Append `llvm.maximum` or `llvm.minimum`; which zero wins is left open under the `fast` profile."""
        if not self.flags:
            return self.intrinsic(name, type_, a, b)
        symbol = f"llvm.{name}.{type_.mangled}"
        self.module.declare(f"declare {type_} @{symbol}({type_}, {type_})")
        return self.fn.assign(f"call nsz {type_} @{symbol}({type_} {a}, {type_} {b})")

    def reduce(self, name: str, type_: LLVMType, value: str, start: str | None = None) -> str:
        """Append `llvm.vector.reduce.name`, which combines the lanes; `start` is for `fadd` and `fmul`."""
        element = LLVMType(type_.element)
        args: list[Typed] = [] if start is None else [(element, start)]
        return self.call(f"llvm.vector.reduce.{name}.{type_.mangled}", element, [*args, (type_, value)])

    def integer(self, type_: LLVMType, value: int) -> str:
        """Return an integer constant, the same in each lane."""
        return type_.splat(str(value))

    def real(self, type_: LLVMType, value: float) -> str:
        """Return a float constant, the same in each lane."""
        return type_.splat(float_literal(value, type_.element))

    def splat(self, type_: LLVMType, scalar: str) -> str:
        """Return a vector whose lanes all are `scalar` (the scalar itself for width 1)."""
        if type_.width == 1:
            return scalar
        if not scalar.startswith("%"):
            return type_.splat(scalar)
        first = self.fn.assign(f"insertelement {type_} poison, {type_.element} {scalar}, i64 0")
        zeros = LLVMType("i32", type_.width)
        return self.fn.assign(f"shufflevector {type_} {first}, {type_} poison, {zeros} zeroinitializer")

    def extract(self, type_: LLVMType, value: str, lane: int) -> str:
        """Return one lane."""
        return value if type_.width == 1 else self.fn.assign(f"extractelement {type_} {value}, i64 {lane}")

    def insert(self, type_: LLVMType, value: str, scalar: str, lane: int) -> str:
        """Return the vector with one lane replaced."""
        if type_.width == 1:
            return scalar
        return self.fn.assign(f"insertelement {type_} {value}, {type_.element} {scalar}, i64 {lane}")

    def gep(self, element: str, pointer: str, offset: str) -> str:
        """Return `pointer` moved by `offset` (i64) elements."""
        if offset == "0":
            return pointer
        return self.fn.assign(f"getelementptr {element}, ptr {pointer}, i64 {offset}")
