"""Conversions.

Source: PTX ISA 9.2, "Data Movement and Conversion Instructions: cvt".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tessera.tools.emulate.floating import float_reader, float_writer, halves
from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.memory import where
from tessera.tools.emulate.rounding import directed, odd_sum
from tessera.tools.emulate.text import Instruction
from tessera.tools.emulate.values import DTYPES, handles, reader, writer

_FLOATS = ("f16", "bf16", "f32", "f64")
_WHOLE: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_NARROW: dict[str, tuple[Any, float]] = {
    "e4m3x2": (ml_dtypes.float8_e4m3fn, 448.0),
    "e5m2x2": (ml_dtypes.float8_e5m2, 57344.0),
}


@handles("cvt")
def _convert(instruction: Instruction) -> Step:
    *how, to, source = instruction.parts
    if to == "tf32" and source == "f32":
        return _to_tf32(instruction)
    if to.endswith("x2") or source.endswith("x2"):
        return _pairs(instruction, to, source)
    if to in _FLOATS and source in _FLOATS:
        return _between_floats(instruction, how, to, source)
    if to in _FLOATS and source in DTYPES:
        return _from_integer(instruction, how, to, source)
    if source in _FLOATS and to in DTYPES:
        return _to_integer(instruction, how, to, source)
    if to not in DTYPES or source not in DTYPES or how not in ([], ["sat"]):
        raise instruction.unknown()
    return _between_integers(instruction, to, source, bool(how))


def _between_integers(instruction: Instruction, to: str, source: str, saturate: bool) -> Step:
    target, operand = instruction.operands
    read, write, dtype = reader(operand, source), writer(target), DTYPES[to]
    if not saturate:
        return lambda machine: write(machine, read(machine).astype(dtype))
    low, high = (
        max(np.iinfo(dtype).min, np.iinfo(DTYPES[source]).min),
        min(np.iinfo(dtype).max, np.iinfo(DTYPES[source]).max),
    )
    return lambda machine: write(machine, np.clip(read(machine), low, high).astype(dtype))


def _from_integer(instruction: Instruction, how: list[str], to: str, source: str) -> Step:
    target, operand = instruction.operands
    read, write = reader(operand, source), float_writer(target, to)
    if how != ["rn"]:
        raise instruction.unknown()
    if to == "f64":
        return lambda machine: write(machine, read(machine).astype(np.float64))
    return lambda machine: write(machine, _exactly(read(machine)))


def _exactly(value: Array) -> Array:
    """Return integers as f64; those of 64 bits rounded to odd, so that they can be rounded again."""
    if value.dtype.itemsize < 8:
        return value.astype(np.float64)
    shift = value.dtype.type(32)
    top = value >> shift
    return odd_sum(top.astype(np.float64) * 2.0**32, (value - (top << shift)).astype(np.float64))


def _to_integer(instruction: Instruction, how: list[str], to: str, source: str) -> Step:
    target, operand = instruction.operands
    read, write, dtype = float_reader(operand, source), writer(target), DTYPES[to]
    modes = [part for part in how if part not in ("ftz", "sat")]
    if len(modes) != 1 or modes[0] not in _WHOLE:
        raise instruction.unknown()
    whole = _WHOLE[modes[0]]
    return lambda machine: write(machine, saturated(whole(read(machine).astype(np.float64)), dtype))


def saturated(value: Array, dtype: Any) -> Array:
    """Return whole f64 numbers as integers: the nearest there is; NaN as zero, or as the sign bit of 64."""
    info = np.iinfo(dtype)
    high = value >= float(info.max)
    low = value <= float(info.min)
    inside = where(high | low | np.isnan(value), 0.0, value).astype(dtype)
    nothing = dtype.type(0) if dtype.itemsize < 8 else np.array([1 << 63], np.uint64).view(dtype)[0]
    result = where(high, dtype.type(info.max), where(low, dtype.type(info.min), inside))
    return where(np.isnan(value), nothing, result)


def _between_floats(instruction: Instruction, how: list[str], to: str, source: str) -> Step:
    target, operand = instruction.operands
    read, write = float_reader(operand, source), float_writer(target, to)
    modes = [part for part in how if part != "ftz"]
    if not modes or modes == ["rn"]:
        return lambda machine: write(machine, read(machine))
    if len(modes) > 1:
        raise instruction.unknown()
    if modes[0] in _WHOLE:
        return lambda machine: write(machine, _WHOLE[modes[0]](read(machine)))
    if modes[0] not in ("rz", "rm", "rp") or to not in ("f16", "f32"):
        raise instruction.unknown()
    plain, dtype = writer(target), DTYPES[to]

    def run(machine: Machine) -> None:
        value = read(machine).astype(np.float64)
        plain(machine, directed(value, value.astype(dtype), modes[0]))

    return run


def _to_tf32(instruction: Instruction) -> Step:
    """Round to 10 bits of fraction: to nearest, ties away from zero, or to even."""
    target, operand = instruction.operands
    read, write = reader(operand, "b32"), writer(target)
    mode = instruction.parts[0]
    if mode not in ("rna", "rn"):
        raise instruction.unknown()

    def run(machine: Machine) -> None:
        bits = read(machine)
        half = np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        rounded = (bits + half) & np.uint32(0xFFFFE000)
        write(machine, where((bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000), bits, rounded))

    return run


def _pairs(instruction: Instruction, to: str, source: str) -> Step:
    target, *operands = instruction.operands
    if any(part not in ("rn", "satfinite") for part in instruction.parts[:-2]):
        raise instruction.unknown()
    if source == "f32" and len(operands) == 2:
        top, low = (float_reader(operand, "f32") for operand in operands)

        def read(machine: Machine) -> Array:
            parts = np.broadcast_arrays(low(machine), top(machine))
            return np.stack(parts, axis=-1)

    elif source in _NARROW and len(operands) == 1:
        bits, dtype = reader(operands[0], "b16"), _NARROW[source][0]

        def read(machine: Machine) -> Array:
            return np.ascontiguousarray(bits(machine)).view(dtype).reshape(-1, 2).astype(np.float32)

    elif source in ("f16x2", "bf16x2") and len(operands) == 1:
        words = reader(operands[0], "b32")

        def read(machine: Machine) -> Array:
            return halves(words(machine), source)

    else:
        raise instruction.unknown()
    if to not in _NARROW:
        write_halves = float_writer(target, to)
        return lambda machine: write_halves(machine, read(machine))
    write, (narrow, most) = writer(target), _NARROW[to]
    saturate = instruction.has("satfinite")

    def run(machine: Machine) -> None:
        value = read(machine)
        if saturate:
            value = where(np.isnan(value), value, np.clip(value, -most, most))
        write(machine, np.ascontiguousarray(value.astype(narrow)).view(np.uint16).reshape(-1))

    return run
