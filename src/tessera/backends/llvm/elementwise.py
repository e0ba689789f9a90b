"""Elementwise functions of `numerics.functions` on one unit (a scalar or a vector), with their exact meaning.

Floats narrower than 32 bits are computed in f32 and rounded after each function. What a target does its own
way (transcendental functions, conversions) goes through the hooks of `Target`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.types import LLVMType, compute_dtype, of_dtype
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import FUNCTIONS, TRANSCENDENTAL


class Target(Protocol):
    """What an emitter offers to the functions of this file."""

    ops: Ops

    def value_type(self, dtype: DType, width: int = 1) -> LLVMType:
        """Return the LLVM type of values of `dtype`."""
        ...

    def math_call(self, name: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Apply a transcendental function to f32 or f64 lanes."""
        ...

    def byte_perm(self, width: int, x: str, y: str, selector: str) -> str:
        """Pick four of the eight bytes of two words."""
        ...

    def widen(self, value: str, dtype: DType, width: int) -> str:
        """Return the f32 value of a narrow float."""
        ...

    def narrow(self, value: str, dtype: DType, width: int, saturate: bool = False) -> str:
        """Round an f32 value to a narrow float."""
        ...

    def truncated(self, value: str, source: DType, result: DType, width: int) -> str:
        """Convert f32 or f64 lanes to integers: the nearest bound out of range, 0 of NaN."""
        ...


def apply(target: Target, fn: str, dtype: DType, width: int, args: Sequence[str]) -> str:
    """Emit the function `fn` on operands of `dtype` and return the result.

    Args:
        target: the emitter.
        fn: a name in `numerics.functions`.
        dtype: dtype of the operands (of the last one for `select`).
        width: lanes of each operand.
        args: the operands.
    """
    type_ = target.value_type(dtype, width)
    if fn == "select":
        return target.ops.select(type_, *args)
    compute = compute_dtype(dtype)
    if compute == dtype:
        return _direct(target, fn, dtype, type_, args)
    wide = [target.widen(arg, dtype, width) for arg in args]
    result = _direct(target, fn, compute, of_dtype(compute, width), wide)
    return result if FUNCTIONS[fn].result == "bool" else target.narrow(result, dtype, width)


def _direct(target: Target, fn: str, dtype: DType, type_: LLVMType, args: Sequence[str]) -> str:
    if fn in TRANSCENDENTAL:
        return target.math_call(fn, dtype, type_.width, args)
    ops = target.ops
    if dtype.is_float:
        simple = _FLOAT_BINARY.get(fn)
        if simple is not None:
            return ops.binary(simple, type_, *args)
        if fn in _FLOAT_COMPARE:
            return ops.compare(_FLOAT_COMPARE[fn], type_, *args)
        if fn in ("maximum", "minimum"):
            return ops.extreme(fn, type_, *args)
        if fn in _FLOAT_INTRINSIC:
            return ops.intrinsic(_FLOAT_INTRINSIC[fn], type_, *args)
        return _FLOAT_OTHER[fn](ops, type_, *args)
    if fn == "byte_perm":
        return target.byte_perm(type_.width, *args)
    signed = dtype.kind == "int"
    if fn in _INT_BINARY:
        return ops.binary(_INT_BINARY[fn], type_, *args)
    if fn in _INT_COMPARE:
        prefix = "" if fn in ("eq", "ne") else "s" if signed else "u"
        return ops.compare(prefix + _INT_COMPARE[fn], type_, *args)
    if fn in ("maximum", "minimum"):
        return ops.intrinsic(f"{'s' if signed else 'u'}{fn[:3]}", type_, *args)
    return _INT_OTHER[fn](ops, type_, signed, *args)


_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_FLOAT_INTRINSIC = {
    "abs": "fabs",
    "fma": "fma",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
    "trunc": "trunc",
    "sqrt": "sqrt",
    "copysign": "copysign",
}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_INT_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


def _float_mod(ops: Ops, type_: LLVMType, a: str, b: str) -> str:
    """The remainder with the divisor's sign, as in Python and NumPy."""
    zero = ops.real(type_, 0.0)
    rest, adjust = ops.signed_remainder(type_, a, b)
    moved = ops.select(type_, adjust, ops.fn.assign(f"fadd {type_} {rest}, {b}"), rest)
    is_zero = ops.compare("oeq", type_, moved, zero)
    return ops.select(type_, is_zero, ops.intrinsic("copysign", type_, zero, b), moved)


def _floored_quotient(ops: Ops, type_: LLVMType, a: str, b: str) -> str:
    return ops.floored_quotient(type_, a, b)


def _negate(ops: Ops, type_: LLVMType, a: str) -> str:
    return ops.fn.assign(f"fneg {type_} {a}")


def _isnan(ops: Ops, type_: LLVMType, a: str) -> str:
    return ops.compare("uno", type_, a, a)


def _isinf(ops: Ops, type_: LLVMType, a: str) -> str:
    return ops.compare("oeq", type_, ops.intrinsic("fabs", type_, a), ops.real(type_, math.inf))


def _isfinite(ops: Ops, type_: LLVMType, a: str) -> str:
    return ops.compare("olt", type_, ops.intrinsic("fabs", type_, a), ops.real(type_, math.inf))


def _rounded_product(ops: Ops, type_: LLVMType, a: str, b: str) -> str:
    """A product that is rounded whatever follows: no flag lets it be fused."""
    return ops.fn.assign(f"fmul {type_} {a}, {b}")


_FLOAT_OTHER: dict[str, Callable[..., str]] = {
    "rounded_mul": _rounded_product,
    "mod": _float_mod,
    "floordiv": _floored_quotient,
    "neg": _negate,
    "isnan": _isnan,
    "isinf": _isinf,
    "isfinite": _isfinite,
}


def _known(b: str) -> int | None:
    """Return an integer that is known when compiling."""
    text = b.removesuffix(")").rpartition(" ")[2] if b.startswith("splat (") else b
    return int(text) if text.removeprefix("-").isdigit() else None


def _shifted(ops: Ops, type_: LLVMType, a: str, b: int) -> tuple[str, str]:
    """Return the parts of signed integers by a power of two, or its negative.

    LLVM 22 makes of `sdiv` by 2 shifts of which it drops the last where the dividend is the product of 8 bits with a
    number, in 64 bits.
    """
    low = abs(b) - 1
    quotient = ops.binary("ashr", type_, a, ops.integer(type_, low.bit_length()))
    rest = ops.binary("and", type_, a, ops.integer(type_, low))
    if b > 0:
        return quotient, rest
    zero = ops.integer(type_, 0)
    inexact = ops.compare("ne", type_, rest, zero)
    upper = ops.select(type_, inexact, ops.binary("add", type_, quotient, ops.integer(type_, 1)), quotient)
    moved = ops.binary("add", type_, rest, ops.integer(type_, b))
    return ops.binary("sub", type_, zero, upper), ops.select(type_, inexact, moved, rest)


def _divide(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> tuple[str, str]:
    """Return quotient (towards zero) and remainder; no divisor traps, and by zero both are 0."""
    zero, one = ops.integer(type_, 0), ops.integer(type_, 1)
    known = _known(b)
    if known is not None and known not in (0, -1):
        quotient = ops.binary("sdiv" if signed else "udiv", type_, a, ops.integer(type_, known))
    else:
        unsafe = ops.compare("eq", type_, b, zero)
        minus = ops.compare("eq", type_, b, ops.integer(type_, -1)) if signed else ""
        bad = ops.binary("or", type_.of("i1"), unsafe, minus) if signed else unsafe
        a = ops.select(type_, unsafe, zero, a)
        quotient = ops.binary("sdiv" if signed else "udiv", type_, a, ops.select(type_, bad, one, b))
        if signed:
            quotient = ops.select(type_, minus, ops.binary("sub", type_, zero, a), quotient)
    return quotient, ops.binary("sub", type_, a, ops.binary("mul", type_, quotient, b))


def _floor_parts(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> tuple[str, str]:
    known = _known(b)
    if signed and known is not None and abs(known) > 1 and abs(known).bit_count() == 1:
        return _shifted(ops, type_, a, known)
    quotient, rest = _divide(ops, type_, signed, a, b)
    if not signed:
        return quotient, rest
    zero = ops.integer(type_, 0)
    nonzero = ops.compare("ne", type_, rest, zero)
    opposite = ops.compare("slt", type_, ops.binary("xor", type_, rest, b), zero)
    adjust = ops.binary("and", type_.of("i1"), nonzero, opposite)
    lower = ops.binary("sub", type_, quotient, ops.integer(type_, 1))
    moved = ops.binary("add", type_, rest, b)
    return ops.select(type_, adjust, lower, quotient), ops.select(type_, adjust, moved, rest)


def _int_floordiv(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    return _floor_parts(ops, type_, signed, a, b)[0]


def _int_mod(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    return _floor_parts(ops, type_, signed, a, b)[1]


def _int_abs(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    return ops.intrinsic("abs", type_, a, extra=[(LLVMType("i1"), "false")]) if signed else a


def _int_neg(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    return ops.binary("sub", type_, ops.integer(type_, 0), a)


def _not(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    ones = type_.splat("true") if type_.element == "i1" else ops.integer(type_, -1)
    return ops.binary("xor", type_, a, ones)


def _mulhi(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    bits = int(type_.element[1:])
    wide, extend = type_.of(f"i{2 * bits}"), "sext" if signed else "zext"
    product = ops.binary("mul", wide, ops.convert(extend, type_, a, wide), ops.convert(extend, type_, b, wide))
    return ops.convert("trunc", wide, ops.binary("lshr", wide, product, ops.integer(wide, bits)), type_)


def _shl(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    """Shifts by at least the width give 0, as in NumPy."""
    return _logical_shift("shl", ops, type_, a, b)


def _shr(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    """Arithmetic for signed, logical for unsigned; shifts by at least the width leave only the sign."""
    if not signed:
        return _logical_shift("lshr", ops, type_, a, b)
    amount = ops.intrinsic("umin", type_, b, ops.integer(type_, int(type_.element[1:]) - 1))
    return ops.binary("ashr", type_, a, amount)


def _logical_shift(op: str, ops: Ops, type_: LLVMType, a: str, b: str) -> str:
    """Shift zeros in.

    LLVM 22 takes a select between a shift and 0 for a shift of PTX, which gives 0 for large counts by itself, but looks
    at 32 bits of the count only: with counts of 64 bits what is shifted is selected.
    """
    bits = int(type_.element[1:])
    inside = ops.compare("ult", type_, b, ops.integer(type_, bits))
    if bits == 64:
        shifted = ops.select(type_, inside, a, ops.integer(type_, 0))
        return ops.binary(op, type_, shifted, ops.binary("and", type_, b, ops.integer(type_, bits - 1)))
    amount = ops.select(type_, inside, b, ops.integer(type_, 0))
    return ops.select(type_, inside, ops.binary(op, type_, a, amount), ops.integer(type_, 0))


def _rotl(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    return ops.intrinsic("fshl", type_, a, a, b)


def _rotr(ops: Ops, type_: LLVMType, signed: bool, a: str, b: str) -> str:
    return ops.intrinsic("fshr", type_, a, a, b)


def _popcount(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    return ops.intrinsic("ctpop", type_, a)


def _clz(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    return ops.intrinsic("ctlz", type_, a, extra=[(LLVMType("i1"), "false")])


def _ctz(ops: Ops, type_: LLVMType, signed: bool, a: str) -> str:
    return ops.intrinsic("cttz", type_, a, extra=[(LLVMType("i1"), "false")])


def byte_perm(ops: Ops, width: int, x: str, y: str, selector: str) -> str:
    """Pick four of the eight bytes of two words by shifts of 64 bits."""
    type_, wide = LLVMType("i32", width), LLVMType("i64", width)
    low, high, digits = (ops.convert("zext", type_, value, wide) for value in (x, y, selector))
    pool = ops.binary("or", wide, low, ops.binary("shl", wide, high, ops.integer(wide, 32)))
    eightfold = ops.binary("shl", wide, digits, ops.integer(wide, 3))
    result = ops.integer(wide, 0)
    for place in range(4):
        digit = ops.binary("lshr", wide, eightfold, ops.integer(wide, 4 * place))
        shift = ops.binary("and", wide, digit, ops.integer(wide, 56))
        byte = ops.binary("and", wide, ops.binary("lshr", wide, pool, shift), ops.integer(wide, 255))
        result = ops.binary("or", wide, result, ops.binary("shl", wide, byte, ops.integer(wide, 8 * place)))
    return ops.convert("trunc", wide, result, type_)


_INT_OTHER: dict[str, Callable[..., str]] = {
    "floordiv": _int_floordiv,
    "mod": _int_mod,
    "abs": _int_abs,
    "neg": _int_neg,
    "not": _not,
    "mulhi": _mulhi,
    "shl": _shl,
    "shr": _shr,
    "rotl": _rotl,
    "rotr": _rotr,
    "popcount": _popcount,
    "clz": _clz,
    "ctz": _ctz,
}
