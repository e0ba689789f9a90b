"""Conversions between dtypes on one unit, with the meaning of `tessera_tile.cast`."""

from __future__ import annotations

from tessera.backends.llvm.elementwise import Target
from tessera.backends.llvm.types import compute_dtype, of_dtype
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


def cast(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool = False) -> str:
    """Emit the conversion of `value` and return it.

    Float to float rounds to nearest even (f64 to a float narrower than f32 by way of f32), float to integer
    truncates and saturates (NaN gives 0), integers wrap, and to bool means "is not zero".
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
    if wide == dtypes.f64:
        value = ops.convert("fptrunc", type_, value, of_dtype(dtypes.f32, width))
    return value if result == dtypes.f32 else target.narrow(value, result, width, saturate)


def _to_float(target: Target, value: str, source: DType, result: DType, width: int, saturate: bool) -> str:
    wide = compute_dtype(result)
    op = "sitofp" if source.kind == "int" else "uitofp"
    converted = target.ops.convert(op, of_dtype(source, width), value, of_dtype(wide, width))
    return converted if wide == result else target.narrow(converted, result, width, saturate)
