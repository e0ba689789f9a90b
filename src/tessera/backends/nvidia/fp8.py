"""Conversions between fp8 and wider floats, which sm_89 and later have for pairs.

The one to fp8 clamps. One more than the code of the largest finite number is that of infinity in e5m2 and of NaN in
e4m3, so that what rounds to more than it has its code incremented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.backends.llvm.ops import F32, I16, I32
from tessera.backends.llvm.types import LLVMType
from tessera.numerics.dtypes import DType

if TYPE_CHECKING:
    from tessera.backends.nvidia.emitter import NvidiaEmitter

_PTX = {"fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}
_TOO_LARGE = {"fp8_e4m3": ("ogt", 464.0), "fp8_e5m2": ("oge", 61440.0)}
"""How numbers that round to more than the largest compare with the middle between it and the next: ties go to even."""


def converts(emitter: NvidiaEmitter, dtype: DType) -> bool:
    """Return whether a dtype is one that the target converts pairs from and to."""
    return dtype.name in _PTX and emitter.target.has("cvt_fp8")


def to_halves(emitter: NvidiaEmitter, codes: str, dtype: DType) -> str:
    """Return the numbers of two codes, an i16, as an i32 of two f16."""
    text = f"cvt.rn.f16x2.{_PTX[dtype.name]}x2 $0, $1;"
    return emitter.asm(text, "=r,h", [I32], [("i16", codes)], pure=True)[0]


def from_f32(emitter: NvidiaEmitter, values: Sequence[str], dtype: DType, saturate: bool) -> str:
    """Return the codes of one, two or four f32 in an i32, the first in the lowest bits."""
    pairs = [_clamped_pair(emitter, values[i : i + 2], dtype) for i in range(0, len(values), 2)]
    ops = emitter.ops
    if len(pairs) > 1:  # which LLVM would take apart again, where its bytes are stored together
        codes = emitter.opaque(emitter.join(pairs, I16, I32))
    else:
        codes = ops.convert("zext", I16, pairs[0], I32)
    if saturate:
        return codes
    order, limit = _TOO_LARGE[dtype.name]
    for place, value in enumerate(values):
        over = ops.compare(order, F32, ops.intrinsic("fabs", F32, value), ops.real(F32, limit))
        codes = ops.binary("add", I32, codes, ops.select(I32, over, str(1 << 8 * place), "0"))
    return codes


def _clamped_pair(emitter: NvidiaEmitter, values: Sequence[str], dtype: DType) -> str:
    low, high = values if len(values) > 1 else (values[0], emitter.ops.real(F32, 0.0))
    text = f"cvt.rn.satfinite.{_PTX[dtype.name]}x2.f32 $0, $2, $1;"
    return emitter.asm(text, "=h,f,f", [I16], [("float", low), ("float", high)], pure=True)[0]


def widened(emitter: NvidiaEmitter, word: str) -> list[str]:
    """Return the f32 values of a word of two f16."""
    half = LLVMType("half")
    return [emitter.ops.convert("fpext", half, unit, F32) for unit in emitter.split(word, half, I32, 2)]
