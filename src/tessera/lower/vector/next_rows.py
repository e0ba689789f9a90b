"""Prefetches the next program's rows while this one works on its own, and the next iteration's in a loop.

The schedule says of which loads and products. A loop that reduces this program's rows with much arithmetic prefetches
the next one's, else the loop that writes its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xdsl.dialects import scf

from tessera.errors import VerifyError
from tessera.ir import decisions
from tessera.ir.locations import location_of
from tessera.ir.target.memory import PrefetchOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.types import dtype_of
from tessera.lower.vector.nodes import Box, Coord, Coords
from tessera.lower.vector.site import Site

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext

BUSY_COST = 10
"""Vector instructions of a chunk from which on a reduction leaves time for its prefetches."""
LINE_BYTES = 64


def next_row(context: VectorContext, op: LoadOp, box: Box) -> Box:
    """Return the box that the next program loads in the place of this one.

    Args:
        context: the lowering.
        op: a load of a tile.
        box: what it loads.

    Raises:
        VerifyError: the box does not follow the grid's last dimension, or not every program loads it once.
    """
    grid = context.plan.grid
    fastest = None if grid is None or not grid.block_sizes else grid.body.block.args[-1]
    axes = [axis for axis, offset in enumerate(op.offsets) if offset is fastest]
    if grid is None or len(axes) != 1 or not context.at_top:
        raise VerifyError(
            f"{decisions.PREFETCH_BOX.key} is on a load of which it is not known what the next program loads",
            location=location_of(op),
            help="one of its offsets is the grid's last index, and it is in no loop or branch",
        )
    offsets = list(box.offsets)
    offsets[axes[0]] = context.writer.scalars.add(offsets[axes[0]], grid.block_sizes[-1])
    return replace(box, offsets=tuple(offsets))


def next_step(context: VectorContext, loop: scf.ForOp, box: Box) -> Box | None:
    """Return the matrix that the next iteration of a loop takes; None where no dimension follows the loop's counter.

    Args:
        context: the lowering.
        loop: the loop.
        box: what this iteration takes.
    """
    counter, step = (context.scalar(value) for value in (loop.body.block.args[0], loop.step))
    if not any(offset is counter for offset in box.offsets) or sum(box.unit[axis] for axis in box.kept) != 1:
        return None
    moved = context.writer.scalars.add(counter, step)
    return replace(box, offsets=tuple(moved if offset is counter else offset for offset in box.offsets))


def take_rows(context: VectorContext, shape: Sequence[int]) -> list[Box]:
    """Return the rows to prefetch in a loop over a tile of this shape, each once.

    Args:
        context: the lowering.
        shape: the shape of the tile.
    """
    if not context.at_top:
        return []
    rows = [row for row in context.next_rows if tuple(row.sizes[axis] for axis in row.kept) == tuple(shape)]
    context.next_rows = [row for row in context.next_rows if row not in rows]
    return rows


def ask_for(site: Site, row: Box, coords: Coords) -> None:
    """Write the prefetches of what a chunk at `coords` covers."""
    last = coords[-1]
    lanes = site.width if last.lanes else 1
    scalars = site.writer.scalars
    element = dtype_of(row.pointer.type.element).bytes  # pyright: ignore
    step = max(LINE_BYTES // element, 1)
    for first in range(0, lanes, step):
        place = site.place(row, (*coords[:-1], Coord(scalars.add(site.index(last.base), first))))
        site.writer.insert(PrefetchOp(row.pointer, place.offsets, list(row.strides)))
