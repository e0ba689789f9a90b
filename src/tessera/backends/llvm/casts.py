"""Conversions between dtypes on one unit, with the meaning of `tessera_tile.cast`."""

from __future__ import annotations

import math

from tessera.backends.llvm.elementwise import Target
from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.types import LLVMType, compute_dtype, of_dtype
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

_LARGEST_F32 = (2.0 - 2.0**-23) * 2.0**127


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
        name = "fptosi" if result.kind == "int" else "fptoui"
        return ops.call(f"llvm.{name}.sat.{dst.mangled}.{type_.mangled}", dst, [(type_, value)])
    if result == dtypes.f64:
        return value if wide == dtypes.f64 else ops.convert("fpext", type_, value, dst)
    if result == dtypes.f32:
        if wide != dtypes.f64:
            return value
        narrow = ops.convert("fptrunc", type_, value, dst)
        return _clamped(ops, dst, narrow) if saturate else narrow
    if wide == dtypes.f64:
        value = _to_odd(ops, value, width)
    return target.narrow(value, result, width, saturate)


def _clamped(ops: Ops, f32: LLVMType, value: str) -> str:
    """Return f32 values with the largest finite ones in place of infinities."""
    magnitude = ops.intrinsic("fabs", f32, value)
    infinite = ops.compare("oeq", f32, magnitude, ops.real(f32, math.inf))
    return ops.select(
        f32, infinite, ops.intrinsic("copysign", f32, ops.real(f32, _LARGEST_F32), value), value
    )


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
    moved = ops.select(
        i32, ops.binary("and", i32.of("i1"), inexact, even), ops.binary("add", i32, bits, step), bits
    )
    return ops.convert("bitcast", i32, moved, f32)


def _to_float(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool) -> str:
    ops, wide = target.ops, compute_dtype(result)
    op = "sitofp" if source.kind == "int" else "uitofp"
    if result == dtypes.bf16 and source.bits >= 32:  # other narrow floats overflow before f32 rounds
        value = _folded(ops, value, source, width)
        if source.bits == 64:
            exact = ops.convert(op, of_dtype(source, width), value, of_dtype(dtypes.f64, width))
            return target.narrow(_to_odd(ops, exact, width), result, width, saturate)
    converted = ops.convert(op, of_dtype(source, width), value, of_dtype(wide, width))
    return converted if wide == result else target.narrow(converted, result, width, saturate)


def _folded(ops: Ops, value: str, source: DType, width: int) -> str:
    """Return integers that a float of their width holds exactly: of large ones, the low bits become one odd bit."""
    type_ = of_dtype(source, width)
    held, low = (53, 11) if source.bits == 64 else (24, 8)
    lost = ops.binary("and", type_, value, ops.integer(type_, (1 << low) - 1))
    sticky = ops.compare("ne", type_, lost, ops.integer(type_, 0))
    kept = ops.binary("and", type_, value, ops.integer(type_, -(1 << low)))
    odd = ops.binary("or", type_, kept, ops.integer(type_, 1 << low))
    shifted, limit = value, 1 << held
    if source.kind == "int":
        shifted, limit = ops.binary("add", type_, value, ops.integer(type_, limit)), 2 * limit
    large = ops.compare("ugt", type_, shifted, ops.integer(type_, limit))
    return ops.select(type_, large, ops.select(type_, sticky, odd, kept), value)
