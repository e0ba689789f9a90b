"""Floats narrower than 32 bits in integer arithmetic: exact on every target, vectors and scalars alike.

Rounding is to nearest even; subnormals are kept. Overflow gives infinity where the format has one, NaN in
`fp8_e4m3` (the "fn" variant) and the largest finite number in formats with neither.
"""

from __future__ import annotations

from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.types import LLVMType
from tessera.data import dataclass
from tessera.numerics.dtypes import DType


@dataclass(frozen=True, slots=True)
class Format:
    """The encoding of a narrow float.

    Args:
        bits: width with sign.
        mantissa: explicit mantissa bits.
        bias: exponent bias.
        largest: code of the largest finite number.
        infinity: code of infinity, None when there is none.
        nan: code a NaN becomes; in formats without NaN that is minus zero.
    """

    bits: int
    mantissa: int
    bias: int
    largest: int
    infinity: int | None
    nan: int

    @property
    def has_nan(self) -> bool:
        """Whether the format can hold a NaN."""
        return self.nan != 1 << (self.bits - 1)


FORMATS = {
    "f16": Format(16, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "bf16": Format(16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
    "fp8_e4m3": Format(8, 3, 7, 0x7E, None, 0x7F),
    "fp8_e5m2": Format(8, 2, 15, 0x7B, 0x7C, 0x7E),
    "fp6_e2m3": Format(6, 3, 1, 0x1F, None, 0x20),
    "fp6_e3m2": Format(6, 2, 3, 0x1F, None, 0x20),
    "fp4_e2m1": Format(4, 1, 1, 0x07, None, 0x08),
}


def storage_int(dtype: DType, width: int) -> LLVMType:
    """Return the integer type that holds the codes of `dtype`."""
    return LLVMType("i16" if dtype.bits == 16 else "i8", width)


def widen(ops: Ops, code: str, dtype: DType, width: int) -> str:
    """Return the f32 value of the codes `code` (lanes of `storage_int`)."""
    form, i32, f32 = FORMATS[dtype.name], LLVMType("i32", width), LLVMType("float", width)
    wide = ops.convert("zext", storage_int(dtype, width), code, i32)
    if dtype.name == "bf16":
        return ops.convert("bitcast", i32, ops.binary("shl", i32, wide, ops.integer(i32, 16)), f32)
    magnitude = ops.binary("and", i32, wide, ops.integer(i32, (1 << (form.bits - 1)) - 1))
    sign = ops.binary("and", i32, wide, ops.integer(i32, 1 << (form.bits - 1)))
    sign = ops.binary("shl", i32, sign, ops.integer(i32, 32 - form.bits))
    shifted = ops.binary("shl", i32, magnitude, ops.integer(i32, 23 - form.mantissa))
    # The power of two moves the exponent to f32's bias and makes subnormals of the format normal.
    scale = ops.real(f32, 2.0 ** (127 - form.bias))
    scaled = ops.fn.assign(f"fmul {f32} {ops.convert('bitcast', i32, shifted, f32)}, {scale}")
    bits = ops.convert("bitcast", f32, scaled, i32)
    if form.infinity is not None:
        special = ops.compare("uge", i32, magnitude, ops.integer(i32, form.infinity))
        all_ones = ops.binary("or", i32, bits, ops.integer(i32, 0x7F800000))
        bits = ops.select(i32, special, all_ones, bits)
    elif form.has_nan:
        is_nan = ops.compare("eq", i32, magnitude, ops.integer(i32, form.nan))
        bits = ops.select(i32, is_nan, ops.integer(i32, 0x7FC00000), bits)
    return ops.convert("bitcast", i32, ops.binary("or", i32, bits, sign), f32)


def narrow(ops: Ops, value: str, dtype: DType, width: int, saturate: bool = False) -> str:
    """Return the codes (lanes of `storage_int`) nearest to the f32 lanes `value`."""
    form, i32, f32 = FORMATS[dtype.name], LLVMType("i32", width), LLVMType("float", width)
    bits = ops.convert("bitcast", f32, value, i32)
    if dtype.name == "bf16" and not saturate:
        return _narrow_bf16(ops, value, bits, width)
    magnitude = ops.binary("and", i32, bits, ops.integer(i32, 0x7FFFFFFF))
    code = _rounded(ops, form, magnitude, width)
    if dtype.name != "bf16":  # bf16 has f32's exponents: the rounding above is right for subnormals too
        code = ops.select(
            i32,
            ops.compare("ult", i32, magnitude, ops.integer(i32, (128 - form.bias) << 23)),
            _rounded_subnormal(ops, form, magnitude, width),
            code,
        )
    code = _overflow(ops, form, code, i32, saturate)
    is_nan = ops.compare("ugt", i32, magnitude, ops.integer(i32, 0x7F800000))
    code = ops.select(i32, is_nan, ops.integer(i32, form.nan), code)
    sign = ops.binary("lshr", i32, bits, ops.integer(i32, 32 - form.bits))
    sign = ops.binary("and", i32, sign, ops.integer(i32, 1 << (form.bits - 1)))
    code = ops.binary("or", i32, code, sign)
    if not form.has_nan:  # +0, whatever sign: that of NaN is the processor's choice
        code = ops.select(i32, is_nan, ops.integer(i32, 0), code)
    return ops.convert("trunc", i32, code, storage_int(dtype, width))


def _narrow_bf16(ops: Ops, value: str, bits: str, width: int) -> str:
    """Round the upper half of f32 with its sign on: what is carried out of the mantissa is right in the exponent."""
    i32, f32, i16 = LLVMType("i32", width), LLVMType("float", width), LLVMType("i16", width)
    odd = ops.binary("and", i32, ops.binary("lshr", i32, bits, ops.integer(i32, 16)), ops.integer(i32, 1))
    rounded = ops.binary("add", i32, ops.binary("add", i32, bits, ops.integer(i32, 0x7FFF)), odd)
    # A NaN with all bits set would become a zero.
    quiet = ops.binary("and", i32, bits, ops.integer(i32, -0x80000000))
    quiet = ops.binary("or", i32, quiet, ops.integer(i32, 0x7FC00000))
    is_nan = ops.compare("uno", f32, value, value)
    code = ops.binary("lshr", i32, ops.select(i32, is_nan, quiet, rounded), ops.integer(i32, 16))
    return ops.convert("trunc", i32, code, i16)


def _rounded(ops: Ops, form: Format, magnitude: str, width: int) -> str:
    i32, shift = LLVMType("i32", width), 23 - form.mantissa
    odd = ops.binary("lshr", i32, magnitude, ops.integer(i32, shift))
    odd = ops.binary("and", i32, odd, ops.integer(i32, 1))
    rounded = ops.binary("add", i32, magnitude, ops.integer(i32, (1 << (shift - 1)) - 1))
    rounded = ops.binary("add", i32, rounded, odd)
    code = ops.binary("lshr", i32, rounded, ops.integer(i32, shift))
    rebias = (127 - form.bias) << form.mantissa
    return ops.binary("sub", i32, code, ops.integer(i32, rebias)) if rebias else code


def _rounded_subnormal(ops: Ops, form: Format, magnitude: str, width: int) -> str:
    """Round by an f32 addition whose last place is the format's smallest subnormal."""
    i32, f32 = LLVMType("i32", width), LLVMType("float", width)
    exponent = 1 - form.bias - form.mantissa + 23
    as_float = ops.convert("bitcast", i32, magnitude, f32)
    total = ops.fn.assign(f"fadd {f32} {as_float}, {ops.real(f32, 2.0**exponent)}")
    total_bits = ops.convert("bitcast", f32, total, i32)
    return ops.binary("sub", i32, total_bits, ops.integer(i32, (exponent + 127) << 23))


def _overflow(ops: Ops, form: Format, code: str, i32: LLVMType, saturate: bool) -> str:
    limit = form.largest
    if not saturate:
        limit = form.infinity if form.infinity is not None else form.nan if form.has_nan else form.largest
    too_large = ops.compare("ugt", i32, code, ops.integer(i32, form.largest))
    return ops.select(i32, too_large, ops.integer(i32, limit), code)
