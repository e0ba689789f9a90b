"""Matrix products of warps.

A fragment's registers hold 8x8 blocks of rows and of 32-bit words of a row; lane 4 g + t has word t of row g.

Source: PTX ISA 9.2, "Matrix Fragments for mma".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tessera.tools.emulate.errors import Unknown
from tessera.tools.emulate.machine import WARP, Array, Machine, Step
from tessera.tools.emulate.quad_pairs import multiplied
from tessera.tools.emulate.rounding import narrowed
from tessera.tools.emulate.text import Instruction, Operand
from tessera.tools.emulate.values import Write, handles, items, reader, writer

_ELEMENTS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
    "f32": np.float32,
    "tf32": np.float32,
}


def elements(words: Array, kind: str) -> Array:
    """Return the elements in words, widened: floats to f64 and integers to i64; of tf32 only the bits that count."""
    if kind not in _ELEMENTS:
        raise Unknown(f"matrices of {kind}")
    if kind == "tf32":
        words = words & np.uint32(0xFFFFE000)
    found = np.ascontiguousarray(words).view(_ELEMENTS[kind])
    return found.astype(np.int64 if kind in ("s8", "u8", "s32") else np.float64)


def _gathered(machine: Machine, operand: Operand, bits: int) -> Array:
    """Return the words of a fragment: active warps, registers, 8 rows, 4 lanes of a row."""
    registers = [
        np.broadcast_to(reader(item, f"b{bits}")(machine), (machine.lanes,))[machine.active] for item in items(operand)
    ]
    return np.stack([register.reshape(-1, 8, 4) for register in registers], axis=1)


def rows_first(words: Array, kind: str, blocks: int) -> Array:
    """Return the matrix of a fragment whose registers go down blocks of 8 rows, then along a row.

    Args:
        words: as `_gathered` gives them.
        kind: the elements.
        blocks: how many blocks of 8 rows there are.
    """
    warps, registers = words.shape[:2]
    split = elements(words[..., None], kind).reshape(warps, registers // blocks, blocks, 8, -1)
    return np.moveaxis(split, 1, 3).reshape(warps, 8 * blocks, -1)


def _accumulator(words: Array, kind: str, rows: int) -> Array:
    """Return the matrix of an accumulator: pairs along a row, in one register or in two."""
    warps = words.shape[0]
    values = elements(words[..., None], kind)
    split = values.reshape(warps, rows // 8, -1, 8, 4, values.shape[-1])
    return np.moveaxis(split, 2, 4).reshape(warps, rows, 8)


def _registers(matrix: Array, kind: str) -> Array:
    """Return what the registers of an accumulator hold: one for each element, or for each pair of f16."""
    warps, rows, _ = matrix.shape
    pairs = matrix.reshape(warps, rows // 8, 8, 4, 2)
    if kind == "f16":
        return np.ascontiguousarray(pairs.astype(np.float16)).view(np.uint32)[..., 0].reshape(warps, rows // 8, WARP)
    typed = narrowed(pairs, kind) if kind in ("f32", "f64") else pairs.astype(np.int64).astype(np.int32)
    return np.moveaxis(typed, 4, 2).reshape(warps, rows // 4, WARP)


@handles("mma")
def _product(instruction: Instruction) -> Step:
    parts = instruction.parts
    shape = re.fullmatch(r"m(\d+)n8k(\d+)", parts[2]) if len(parts) == 9 else None
    if shape is None or parts[:2] != ("sync", "aligned") or parts[3:5] != ("row", "col"):
        raise instruction.unknown()
    rows, (d, a, b, c) = int(shape[1]), parts[5:]
    bits = 64 if a == "f64" else 32
    target, *sources = instruction.operands
    writes = [writer(item) for item in items(target)]
    if {a, b, c, d} - set(_ELEMENTS) or c != d:
        raise instruction.unknown()
    if (shape[0], a) == ("m8n8k4", "f16"):
        return _pairs(sources, writes, c)

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        left = rows_first(_gathered(machine, sources[0], bits), a, rows // 8)
        right = rows_first(_gathered(machine, sources[1], bits), b, 1)
        held = _accumulator(_gathered(machine, sources[2], bits), c, rows)
        found = _registers(left @ np.swapaxes(right, 1, 2) + held, d)
        for number, write in enumerate(writes):
            result = np.zeros(machine.lanes, found.dtype)
            result[machine.active] = found[:, number].reshape(-1)
            write(machine, result)
        return None

    return run


def _pairs(sources: Sequence[Operand], writes: Sequence[Write], kind: str) -> Step:
    """Return the step of a product of quad-pairs."""

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        left, right = (_by_lane(_gathered(machine, source, 32), "f16") for source in sources[:2])
        held = _by_lane(_gathered(machine, sources[2], 32), kind)
        found = multiplied(left, right, held, kind == "f32")
        typed = narrowed(found, kind) if kind == "f32" else found.astype(np.float16)
        words = np.ascontiguousarray(typed).view(np.uint32)
        for number, write in enumerate(writes):
            result = np.zeros(machine.lanes, np.uint32)
            result[machine.active] = words[..., number].reshape(-1)
            write(machine, result)
        return None

    return run


def _by_lane(words: Array, kind: str) -> Array:
    """Return the elements of each lane of a fragment: warps, lanes, elements."""
    lanes = np.moveaxis(words.reshape(*words.shape[:2], WARP), 1, 2)
    return elements(lanes, kind)
