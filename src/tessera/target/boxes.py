"""Boxes that the copy engine moves: how wide one copy's is, and which part each program of a cluster fetches.

Source: PTX ISA 9.2, "cp.async.bulk.tensor" and "Tensors": shared memory addresses are multiples of 128 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tessera.target.fragments import PANEL_BYTES

BOX_ALIGN_BYTES = 128
"""Boxes in shared memory begin at multiples of this."""

TRIMMED_ROWS = 64
"""Rows of a copy where those outside of the tensor are left out. An H200's copy engine writes the zeros of a row in 2.6
ns, more than twice as long as it takes for a row of data: a tile of 64 x 256 with 8 columns inside takes 1.6 times as
long as a whole one."""


def map_order(strides: Sequence[int]) -> list[int]:
    """Return a tensor's dimensions as a tensor map has them: the contiguous one, then the others, last first."""
    contiguous = strides.index(1) if 1 in strides else len(strides) - 1
    return [contiguous, *(axis for axis in reversed(range(len(strides))) if axis != contiguous)]


def panel_box(sizes: Sequence[int], element_bytes: int) -> list[int]:
    """Return the box of one copy of a tile, at most a panel wide.

    Args:
        sizes: of the tile, that along the contiguous dimension first.
        element_bytes: bytes of an element.
    """
    return [min(sizes[0], PANEL_BYTES // element_bytes), *sizes[1:]]


def shared_axis(sizes: Sequence[int], element_bytes: int, programs: int) -> int | None:
    """Return along which axis of a tile the programs of a cluster fetch a part each; None where no parts are equal.

    Args:
        sizes: of the tile, that along the contiguous dimension first. Parts along it are of whole panels.
        element_bytes: bytes of an element.
        programs: of the cluster.
    """
    box = panel_box(sizes, element_bytes)
    if sizes[0] // box[0] % programs == 0:
        return 0
    outermost = max((axis for axis in range(1, len(box)) if box[axis] > 1), default=0)
    part_bytes = prod(box[: outermost + 1]) * element_bytes // programs
    equal = outermost > 0 and box[outermost] % programs == 0 and part_bytes % BOX_ALIGN_BYTES == 0
    return outermost if equal else None
