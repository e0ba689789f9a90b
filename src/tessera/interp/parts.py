"""Parts of tiles, in exact integers: no start wraps around, however far away it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.types import shape_of

FAR = 1 << 40
"""Places beyond this are outside of every tile, whatever is added to them."""


def _along(start: int, step: int, count: int, size: int, wraps: bool) -> Any:
    """Return the places along one dimension; -1 where it is outside."""
    first = start % size if wraps else max(min(start, FAR), -FAR)
    places = first + step * np.arange(count)
    return places % size if wraps else np.where((places >= 0) & (places < size), places, -1)


@handles(PartOp)
def _part(op: PartOp, machine: Machine) -> Any:
    source = machine.get(op.source)
    rows = zip(machine.all(op.starts), op.step_list, op.sizes, source.shape, strict=True)
    at = np.ix_(*(_along(int(s), d, n, size, a in op.wrapped) for a, (s, d, n, size) in enumerate(rows)))
    inside = np.ones(op.sizes, bool)
    for places in at:
        inside &= places >= 0
    values = np.where(inside, source[at], np.zeros((), source.dtype))
    return values if shape_of(op.result.type) else values.reshape(-1)[0]


@handles(TakeOp)
def _take(op: TakeOp, machine: Machine) -> Any:
    source, index, axis = machine.get(op.source), machine.get(op.index), op.axis.data
    inside = (index >= 0) & (index < source.shape[axis])
    safe = np.where(inside, index, 0).astype(np.int64)
    return np.where(inside, np.take_along_axis(source, safe, axis), np.zeros((), source.dtype))
