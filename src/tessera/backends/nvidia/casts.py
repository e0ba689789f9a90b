"""Conversions of 8-bit elements, two at a time: byte permutes and one packed instruction instead of one `cvt` each.

An integer placed in the low bits of a float's significand is that float plus a constant, which a subtraction takes
away exactly. f16 holds an 8-bit integer beside 1024, f32 beside 2^23; bf16 only seven bits beside 128, so that the
eighth, -128 in an i8 and 128 in a u8, is added on its own. fp8 pairs become f16, which holds them all (`fp8`).
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.backends.llvm.ops import F32, I8, I16, I32
from tessera.backends.llvm.types import LLVMType
from tessera.backends.nvidia import fp8
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.fragments import emit_cast as emit_unit_casts
from tessera.ir.target.arithmetic import CastOp, RoundTf32Op
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

_BYTES = (dtypes.i8, dtypes.u8)
_FP8 = (dtypes.fp8_e4m3, dtypes.fp8_e5m2)
_HALVES = (dtypes.f16, dtypes.bf16)

Pair = Callable[[str, int], str]
"""Converts bytes `2 i` and `2 i + 1` of an i32, given the word and `i`, to a word of two 16-bit floats."""


@NVIDIA.register(CastOp)
def emit_cast(emitter: NvidiaEmitter, op: CastOp) -> None:
    """Convert 8-bit elements of a fragment in pairs, others one by one."""
    source, result = dtype_of(element_of(op.source.type)), dtype_of(element_of(op.result.type))
    if not isinstance(op.source.type, FragmentType) or len(emitter.units(op.source)) % 2:
        emit_unit_casts(emitter, op)
        return
    if source in (*_HALVES, dtypes.f32) and fp8.converts(emitter, result):
        _emit_to_fp8(emitter, op, source, result)
        return
    if source in _BYTES and result == dtypes.f32:
        words = _words(emitter, op, source)
        emitter.bind(op.result, [unit for word, count in words for unit in _to_f32(emitter, word, count, source)])
        return
    clamps = op.saturate is not None and source == dtypes.fp8_e5m2  # the others have no infinities
    convert = None if clamps else _pair_conversion(emitter, source, result)
    if convert is None:
        emit_unit_casts(emitter, op)
        return
    pairs = [convert(word, i) for word, count in _words(emitter, op, source) for i in range(count // 2)]
    if result == dtypes.f32:
        emitter.bind(op.result, [unit for word in pairs for unit in fp8.widened(emitter, word)])
        return
    element = LLVMType("half" if result == dtypes.f16 else "bfloat")
    emitter.bind(op.result, [unit for word in pairs for unit in emitter.split(word, element, I32, 2)])
    emitter.words[op.result] = pairs


@NVIDIA.register(RoundTf32Op)
def emit_round_tf32(emitter: NvidiaEmitter, op: RoundTf32Op) -> None:
    """Round each register, as the copy engine does: to nearest even."""
    words = [
        emitter.asm("cvt.rn.tf32.f32 $0, $1;", "=r,f", [I32], [("float", unit)], pure=True)[0]
        for unit in emitter.units(op.source)
    ]
    emitter.bind(op.result, [emitter.ops.convert("bitcast", I32, word, F32) for word in words])
    emitter.words[op.result] = words


def _emit_to_fp8(emitter: NvidiaEmitter, op: CastOp, source: DType, result: DType) -> None:
    """Round fours, or pairs where there are no fours; words of four stay packed."""
    values = emitter.units(op.source)
    if source != dtypes.f32:
        values = [emitter.widen(unit, source, 1) for unit in values]
    count = 2 if len(values) % 4 else 4
    saturate = op.saturate is not None
    words = [fp8.from_f32(emitter, values[i : i + count], result, saturate) for i in range(0, len(values), count)]
    if count == 4:
        emitter.words[op.result] = words
        emitter.bind(op.result, [unit for word in words for unit in emitter.split(word, I8, I32, 4)])
        return
    pairs = [emitter.ops.convert("trunc", I32, word, I16) for word in words]
    emitter.bind(op.result, [unit for pair in pairs for unit in emitter.split(pair, I8, I16, 2)])


def _pair_conversion(emitter: NvidiaEmitter, source: DType, result: DType) -> Pair | None:
    """Return how the target converts pairs, None where it does so one by one."""
    if source in _BYTES and result == dtypes.bf16 and emitter.target.has("bf16_arith"):
        signed = source == dtypes.i8
        return lambda word, i: _bytes_to_bf16(emitter, word, i, signed)
    if source in _BYTES and result == dtypes.f16:
        return lambda word, i: _bytes_to_f16(emitter, word, i, source == dtypes.i8)
    to_bf16 = result == dtypes.bf16
    if source in _FP8 and result in (*_HALVES, dtypes.f32) and (not to_bf16 or emitter.target.has("bf16_arith")):
        return lambda word, i: _fp8_to_half(emitter, word, i, source, to_bf16)
    return None


def _words(emitter: NvidiaEmitter, op: CastOp, source: DType) -> list[tuple[str, int]]:
    """Return the operand's bytes as i32 words, with how many each holds: four where they were loaded so, else two."""
    units, ops = emitter.units(op.source), emitter.ops
    known = emitter.words.get(op.source)
    if known is not None and len(units) == 4 * len(known):
        return [(word, 4) for word in known]
    pairs = [emitter.join(units[i : i + 2], I8, I16) for i in range(0, len(units), 2)]
    return [(ops.convert("zext", I16, pair, I32), 2) for pair in pairs]


def _pure(emitter: NvidiaEmitter, text: str, *args: str) -> str:
    """Emit one PTX instruction on i32 operands."""
    names = ", ".join(f"${i + 1}" for i in range(len(args)))
    given = [("i32", arg) for arg in args]
    constraints = ",".join(["=r", *["r"] * len(args)])
    (result,) = emitter.asm(f"{text} $0, {names};", constraints, [I32], given, pure=True)
    return result


def _interleaved(emitter: NvidiaEmitter, word: str, i: int, high: int) -> str:
    """Return bytes `2 i` and `2 i + 1` of a word, each under a byte `high`."""
    (result,) = emitter.asm(
        f"prmt.b32 $0, $1, {high}, {0x4140 + 0x0202 * i};", "=r,r", [I32], [("i32", word)], pure=True
    )
    return result


def _bytes_to_bf16(emitter: NvidiaEmitter, word: str, i: int, signed: bool) -> str:
    placed = _interleaved(emitter, word, i, 0x43)
    low = emitter.ops.binary("and", I32, placed, str(0xFF7FFF7F - (1 << 32)))  # 128 + the low seven bits
    top = emitter.ops.binary("and", I32, placed, str(0x43804380))  # 128, or 256 with the eighth bit
    if signed:
        return _pure(emitter, "fma.rn.bf16x2", top, str(0xBF80BF80 - (1 << 32)), low)
    one, minus_256 = str(0x3F803F80), str(0xC380C380 - (1 << 32))
    top = _pure(emitter, "fma.rn.bf16x2", top, one, minus_256)
    return _pure(emitter, "fma.rn.bf16x2", top, one, low)


def _bytes_to_f16(emitter: NvidiaEmitter, word: str, i: int, signed: bool) -> str:
    if signed:
        word = emitter.ops.binary("xor", I32, word, str(0x80808080 - (1 << 32)))
    placed = _interleaved(emitter, word, i, 0x64)
    minus = 0xE480E480 if signed else 0xE400E400  # -1152, -1024
    return _pure(emitter, "fma.rn.f16x2", placed, str(0x3C003C00), str(minus - (1 << 32)))


def _to_f32(emitter: NvidiaEmitter, word: str, count: int, source: DType) -> list[str]:
    ops, signed = emitter.ops, source == dtypes.i8
    if signed:
        word = ops.binary("xor", I32, word, str(0x80808080 - (1 << 32)))
    base = ops.real(F32, 8388608.0 + (128.0 if signed else 0.0))
    units: list[str] = []
    for i in range(count):
        (placed,) = emitter.asm(
            f"prmt.b32 $0, $1, {0x4B000000}, {0x7440 + i};", "=r,r", [I32], [("i32", word)], pure=True
        )
        units.append(ops.binary("fsub", F32, ops.convert("bitcast", I32, placed, F32), base))
    return units


def _fp8_to_half(emitter: NvidiaEmitter, word: str, i: int, source: DType, to_bf16: bool) -> str:
    ops = emitter.ops
    half = fp8.unpacked(emitter, word, i, source)
    if not to_bf16:
        return half
    wide, narrow = LLVMType("float", 2), LLVMType("bfloat", 2)
    packed = LLVMType("half", 2)
    value = ops.convert("fpext", packed, ops.convert("bitcast", I32, half, packed), wide)
    return ops.convert("bitcast", narrow, ops.convert("fptrunc", wide, value, narrow), I32)
