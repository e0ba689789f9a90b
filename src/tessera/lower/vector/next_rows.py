"""Prefetches the next program's rows while this one works on its own, and the next iteration's in a loop.

A program that reads a row several times, to reduce it and then to use it, leaves the memory idle while it computes: the
hardware follows one stream of addresses, and each row begins a new one. Programs run in the order of their numbers, so
the rows that the next one reads are known. A loop that reduces this program's rows with much arithmetic prefetches
them, else the loop that writes its result. So do programs that walk along tiles of several rows: each row is a stream
of its own, too short for the hardware to follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from xdsl.dialects import scf

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
LEAST_BYTES = 2 << 10
"""Shorter rows are read ahead by the hardware as they follow one another."""
MOST_BYTES = 128 << 10
"""Bytes that one program may prefetch: they must stay in the second-level cache until they are read."""


def next_row(context: VectorContext, op: LoadOp, box: Box) -> Box | None:
    """Return the box that the next program loads in the place of this one; None where that is not known to pay.

    Args:
        context: the lowering.
        op: a load of a tile.
        box: what it loads.
    """
    grid = context.plan.grid
    if (
        grid is None
        or not grid.block_sizes
        or not context.at_top
        or op.mask is not None
        or not box.kept
        or not box.unit[box.kept[-1]]
    ):
        return None
    fastest, block = grid.body.block.args[-1], grid.block_sizes[-1]
    axes = [axis for axis, offset in enumerate(op.offsets) if offset is fastest]
    size = prod(box.sizes) * dtype_of(op.result.type.element).bytes  # pyright: ignore
    if len(axes) != 1 or not LEAST_BYTES <= size <= MOST_BYTES:
        return None
    if axes[0] == box.kept[-1] and prod(box.sizes) == box.sizes[axes[0]]:
        return None  # one row that goes on: a stream that the hardware follows already
    offsets = list(box.offsets)
    offsets[axes[0]] = context.writer.scalars.add(offsets[axes[0]], block)
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
