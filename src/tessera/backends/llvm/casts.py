"""Conversions between dtypes on one unit, with the meaning of `tessera_tile.cast`."""

from __future__ import annotations

import math
import sys

from tessera.backends.llvm.elementwise import Target
from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.types import LLVMType, compute_dtype, of_dtype
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

_LARGEST_F32 = (2.0 - 2.0**-23) * 2.0**127
_F32_DIGITS = 24
_INFINITE_F16 = 65535
"""An integer that is infinite as f16."""


def cast(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool = False) -> str:
    """Emit the conversion of `value` and return it.

    Numbers round to floats to nearest even, once; float to integer truncates and saturates (NaN gives 0),
    integers wrap, and to bool means "is not zero".
    """
    source, result = source.storage, result.storage
    if source == result:
        return value
    if source.is_float:
        return _from_float(target, value, source, result, width, saturate)
    if result.is_float:
        return _to_float(target, value, source, result, width, saturate)
    ops, src, dst = target.ops, of_dtype(source, width), of_dtype(result, width)
    if result.kind == "bool":
        return ops.compare("ne", src, value, ops.integer(src, 0))
    if result.bits == source.bits:
        return value
    if result.bits < source.bits:
        return ops.convert("trunc", src, value, dst)
    return ops.convert("sext" if source.kind == "int" else "zext", src, value, dst)


def _from_float(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool) -> str:
    ops, wide = target.ops, compute_dtype(source)
    if wide != source:
        value = target.widen(value, source, width)
    type_, dst = of_dtype(wide, width), of_dtype(result, width)
    if result.kind == "bool":
        return ops.compare("une", type_, value, ops.real(type_, 0.0))
    if result.is_int:
        return target.truncated(value, wide, result, width)
    if result in (dtypes.f32, dtypes.f64):
        converted = value
        if result != wide:
            converted = ops.convert("fpext" if result.bits > wide.bits else "fptrunc", type_, value, dst)
        return _clamped(ops, dst, converted, result) if saturate else converted
    if wide == dtypes.f64:
        value = _to_odd(ops, value, width)
    return target.narrow(value, result, width, saturate)


def _clamped(ops: Ops, type_: LLVMType, value: str, dtype: DType) -> str:
    """Return f32 or f64 values with the largest finite ones in place of infinities."""
    largest = ops.real(type_, _LARGEST_F32 if dtype == dtypes.f32 else sys.float_info.max)
    infinite = ops.compare("oeq", type_, ops.intrinsic("fabs", type_, value), ops.real(type_, math.inf))
    return ops.select(type_, infinite, ops.intrinsic("copysign", type_, largest, value), value)


def _to_odd(ops: Ops, value: str, width: int) -> str:
    """Round f64 to f32 such that rounding the result to a narrower float is right: an inexact one becomes odd.

    Source: Boldo and Melquiond, "When double rounding is odd", IMACS 2005.
    """
    f32, f64, i32 = of_dtype(dtypes.f32, width), of_dtype(dtypes.f64, width), LLVMType("i32", width)
    nearest = ops.convert("fptrunc", f64, value, f32)
    back = ops.convert("fpext", f32, nearest, f64)
    bits = ops.convert("bitcast", f32, nearest, i32)
    even = ops.compare("eq", i32, ops.binary("and", i32, bits, ops.integer(i32, 1)), ops.integer(i32, 0))
    inexact = ops.compare("one", f64, value, back)
    below = ops.compare("ogt", f64, ops.intrinsic("fabs", f64, value), ops.intrinsic("fabs", f64, back))
    step = ops.select(i32, below, ops.integer(i32, 1), ops.integer(i32, -1))
    moved = ops.select(i32, ops.binary("and", i32.of("i1"), inexact, even), ops.binary("add", i32, bits, step), bits)
    return ops.convert("bitcast", i32, moved, f32)


def _to_float(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool) -> str:
    ops, wide = target.ops, compute_dtype(result)
    op = "sitofp" if source.kind == "int" else "uitofp"
    if result == dtypes.bf16 and source.bits == 64:
        return target.narrow(_odd_f32(ops, value, source, width), result, width, saturate)
    if result == dtypes.bf16 and source.bits == 32:  # other narrow floats overflow before f32 rounds
        value = _folded(ops, value, source, width)
    if result == dtypes.f16 and source.bits > 16:
        value = _clamped_for_f16(ops, value, source, width)
    converted = ops.convert(op, of_dtype(source, width), value, of_dtype(wide, width))
    return converted if wide == result else target.narrow(converted, result, width, saturate)


def _clamped_for_f16(ops: Ops, value: str, source: DType, width: int) -> str:
    """Return integers whose conversion to f16 LLVM does not take for exact.

    It does where enough low bits are known to be zero, whatever the exponent (`isKnownExactCastIntToFP`): then
    large numbers become integers again without having been infinite. 65535 has 16 digits and rounds to infinity.
    """
    type_ = of_dtype(source, width)
    most = ops.integer(type_, _INFINITE_F16)
    if source.kind == "uint":
        return ops.intrinsic("umin", type_, value, most)
    least = ops.integer(type_, -_INFINITE_F16)
    return ops.intrinsic("smax", type_, ops.intrinsic("smin", type_, value, most), least)


def _odd_f32(ops: Ops, value: str, source: DType, width: int) -> str:
    """Return 64-bit integers as f32, whose rounding to bf16 is right: bits that f32 does not hold become one odd bit.

    All of it is arithmetic of integers but an exact product: by way of f64 it would meet ptxas of CUDA 13.0, which
    merges conversions of different f64 to f32.
    """
    type_, i32, f32 = of_dtype(source, width), LLVMType("i32", width), of_dtype(dtypes.f32, width)
    flag, signed = [(LLVMType("i1"), "false")], source.kind == "int"
    magnitude = ops.intrinsic("abs", type_, value, extra=flag) if signed else value
    zeros = ops.intrinsic("ctlz", type_, magnitude, extra=flag)
    excess = ops.binary("sub", type_, ops.integer(type_, 64 - _F32_DIGITS), zeros)
    shift = ops.intrinsic("smax", type_, excess, ops.integer(type_, 0))
    kept = ops.binary("lshr", type_, magnitude, shift)
    inexact = ops.compare("ne", type_, ops.binary("shl", type_, kept, shift), magnitude)
    odd = ops.binary("or", type_, kept, ops.convert("zext", type_.of("i1"), inexact, type_))
    digits = ops.convert("sitofp", i32, ops.convert("trunc", type_, odd, i32), f32)
    exponent = ops.binary("add", i32, ops.convert("trunc", type_, shift, i32), ops.integer(i32, 127))
    power = ops.convert("bitcast", i32, ops.binary("shl", i32, exponent, ops.integer(i32, 23)), f32)
    result = ops.fn.assign(f"fmul {f32} {digits}, {power}")
    if not signed:
        return result
    high = ops.convert("trunc", type_, ops.binary("lshr", type_, value, ops.integer(type_, 32)), i32)
    sign = ops.binary("and", i32, high, ops.integer(i32, -0x80000000))
    bits = ops.binary("or", i32, ops.convert("bitcast", f32, result, i32), sign)
    return ops.convert("bitcast", i32, bits, f32)


def _folded(ops: Ops, value: str, source: DType, width: int) -> str:
    """Return 32-bit integers that f32 holds exactly: of large ones, the low bits become one odd bit."""
    type_, low = of_dtype(source, width), 32 - _F32_DIGITS
    lost = ops.binary("and", type_, value, ops.integer(type_, (1 << low) - 1))
    sticky = ops.compare("ne", type_, lost, ops.integer(type_, 0))
    kept = ops.binary("and", type_, value, ops.integer(type_, -(1 << low)))
    odd = ops.binary("or", type_, kept, ops.integer(type_, 1 << low))
    shifted, limit = value, 1 << _F32_DIGITS
    if source.kind == "int":
        shifted, limit = ops.binary("add", type_, value, ops.integer(type_, limit)), 2 * limit
    large = ops.compare("ugt", type_, shifted, ops.integer(type_, limit))
    return ops.select(type_, large, ops.select(type_, sticky, odd, kept), value)
