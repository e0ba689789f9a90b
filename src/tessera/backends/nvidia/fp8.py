"""Conversions between fp8 and wider floats, which sm_89 and later have for pairs.

That to fp8 clamps. One more than the code of the largest finite number is that of infinity in e5m2 and of NaN in e4m3:
the code of what rounds to more than it is incremented.

Where there are none, e5m2 is the upper byte of f16, and e4m3 one bit lower is f16 with a bias that is too large by 8,
but for NaN, which would be 480.
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
    """Return whether a dtype is one that the target has conversions of."""
    return dtype.name in _PTX and emitter.target.has("cvt_fp8")


def unpacked(emitter: NvidiaEmitter, word: str, pair: int, dtype: DType) -> str:
    """Return the numbers of the lower (0) or upper (1) two codes of an i32 as an i32 of two f16."""
    ops = emitter.ops
    if converts(emitter, dtype):
        part = ops.binary("lshr", I32, word, "16") if pair else word
        return to_halves(emitter, ops.convert("trunc", I32, part, I16), dtype)
    text = f"prmt.b32 $0, $1, 0, {0x1404 + 0x2020 * pair};"
    (placed,) = emitter.asm(text, "=r,r", [I32], [("i32", word)], pure=True)
    return placed if dtype.name == "fp8_e5m2" else _shifted_e4m3(emitter, placed)


def _shifted_e4m3(emitter: NvidiaEmitter, placed: str) -> str:
    """Return two f16, given e4m3 in the upper bytes; the carry out of the code of NaN sets the top bit of exponents."""
    ops = emitter.ops
    size = ops.binary("and", I32, ops.binary("lshr", I32, placed, "1"), str(0x3F803F80))
    top = ops.binary("and", I32, ops.binary("add", I32, size, str(0x00800080)), str(0x40004000))
    sign = ops.binary("and", I32, placed, str(0x80008000 - (1 << 32)))
    bits = ops.binary("or", I32, ops.binary("or", I32, size, top), sign)
    given = [("i32", x) for x in (bits, str(0x5C005C00), str(0x80008000 - (1 << 32)))]  # times 256, plus -0
    return emitter.asm("fma.rn.f16x2 $0, $1, $2, $3;", "=r,r,r,r", [I32], given, pure=True)[0]


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
