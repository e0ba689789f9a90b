"""Products of the four quad-pairs of a warp: lanes 4 q to 4 q + 3, and those 16 above them, multiply 8x4 by 4x8.

A lane of the pair's lower quad has row, or column, `lane % 4` of an operand, one of the upper quad that 4 further on.

Source: PTX ISA 9.2, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
"""

from __future__ import annotations

import numpy as np

from tessera.tools.emulate.machine import WARP, Array

_LANES = np.arange(WARP)[:, None]
_PAIR = _LANES % 16 // 4
_UPPER = np.where(_LANES < 16, 0, 4)
_ROW = _LANES % 4 + _UPPER
_SUMS = np.arange(8)
_ROW_F32 = (_LANES & 1) + (_SUMS & 2) + _UPPER
_COLUMN_F32 = (_SUMS & 4) + (_LANES & 2) + (_SUMS & 1)


def multiplied(left: Array, right: Array, held: Array, wide: bool) -> Array:
    """Return what each lane holds of its pair's sums, `(warps, 32, 8)`.

    Args:
        left: 4 elements of a row for each lane, `(warps, 32, 4)`.
        right: 4 elements of a column, likewise.
        held: what is added to, laid out as the result.
        wide: whether sums are f32, each with a register of its own; those of f16 are a row for each lane.
    """
    rows, columns = (_ROW_F32, _COLUMN_F32) if wide else (np.broadcast_to(_ROW, (WARP, 8)), _SUMS)
    a, b, sums = (np.zeros((len(left), 4, 8, depth)) for depth in (4, 4, 8))
    a[:, _PAIR, _ROW, np.arange(4)] = left
    b[:, _PAIR, _ROW, np.arange(4)] = right
    sums[:, _PAIR, rows, columns] = held
    sums += a @ np.swapaxes(b, 2, 3)
    return sums[:, _PAIR, rows, columns]
