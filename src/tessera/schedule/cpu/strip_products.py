"""Decides which products are computed a strip of rows at a time, each strip just before it is stored.

A strip of sums is small: it stays close to the core between the matrix unit that computes it and the loop that rounds
and stores it. A product is computed so when its only use is one store that comes next, or that is all that the last
iteration of the loop around it does after it, and when that store goes along the rows of all that it reads.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import GatherOp, LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp, unit_axes
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import i1
from tessera.ir.walking import ops_in
from tessera.lower.launch import LaunchPlan
from tessera.lower.vector.liveness import Liveness
from tessera.lower.vector.site import chunk_width
from tessera.lower.vector.strips import store_after
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.knobs import KNOBS
from tessera.schedule.scheduled_pass import launches

Axes = tuple[int | None, int | None]
"""Which axis of a tile runs along the rows' numbers of a store, and which along its columns'; None for neither."""

_SAME_PLACE = (ElementwiseOp, CastOp, BitcastOp, PhiloxOp)
"""Ops each of whose elements is computed from those at its place."""


@dataclass(frozen=True)
class StripProductsPass(CpuPass):
    """Writes `tessera_schedule.strip` on products.

    Args:
        target: the CPU.
        knobs: `strip` says how many rows, or that there are no strips.
    """

    name: ClassVar[str] = "strip-products"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the products of every kernel of the module."""
        strip = int(KNOBS["strip"].default) if self.knobs.strip is None else self.knobs.strip
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if strip else []:
            for unit in launches(kernel):
                self._annotate(kernel, unit, strip)

    def _annotate(self, kernel: KernelOp, unit: GridOp | KernelOp, strip: int) -> None:
        grid = unit if isinstance(unit, GridOp) else None
        liveness = Liveness(LaunchPlan("", [], grid, list(unit.body.block.ops)))
        waiting = [(op, store_after(liveness, op)) for op in ops_in(unit) if isinstance(op, MmaOp)]
        stores = [store for _, store in waiting]
        for op, store in waiting:
            rows, columns = shape_of(op.acc.type)
            if store is None or stores.count(store) > 1 or rows % strip or columns == 1:
                continue
            if decisions.MATRIX_UNIT.on(op) and self._order(kernel, unit, store).takes_rows(op):
                decisions.STRIP.write(op, strip)

    def _order(self, kernel: KernelOp, unit: GridOp | KernelOp, store: StoreOp) -> _Order:
        columns, lanes = shape_of(store.value.type)[-1], max(self.target.vector_bytes // 4, 1)
        return _Order(kernel, store, decisions.SQUARES.on(unit) and columns >= chunk_width(columns, lanes))


@dataclass(frozen=True)
class _Order:
    """Asks whether a store may take a product a row at a time.

    Args:
        kernel: the kernel.
        store: the store.
        squares: whether tiles that lie against the order of rows are transposed in squares, all rows of one together.
    """

    kernel: KernelOp
    store: StoreOp
    squares: bool

    def takes_rows(self, op: MmaOp) -> bool:
        """Return whether it takes a product as it is, and reads all else along rows, too."""
        store = self.store
        overwritten = decisions.LEFT_IN_PLACE.on(op) and not self._elsewhere(op.a)
        if shape_of(store.value.type) != shape_of(op.result.type) or overwritten:
            return False
        work: list[tuple[SSAValue, Axes]] = [(store.value, (0, 1))]
        work += [] if store.mask is None else [(store.mask, (0, 1))]
        seen = set[tuple[SSAValue, Axes]]()
        while work:
            value, axes = work.pop()
            if (value, axes) in seen:
                continue
            seen.add((value, axes))
            if axes != (0, 1) if value is op.result else not self._along_rows(value, axes):
                return False
            work += _operands(value, axes)
        return (op.result, (0, 1)) in seen

    def _elsewhere(self, value: SSAValue) -> bool:
        """Return whether a tile is not loaded from the memory that is stored to."""
        return not isinstance(value.owner, LoadOp) or memory_of(value.owner.tensor) is not memory_of(self.store.tensor)

    def _along_rows(self, value: SSAValue, axes: Axes) -> bool:
        """Return whether a tile does not lie against the order of rows, and is not what the store changes."""
        owner, shape = value.owner, shape_of(value.type)
        if isinstance(owner, GatherOp):
            return memory_of(owner.tensor) is not memory_of(self.store.tensor)
        if isinstance(owner, LoadOp):
            if not self._elsewhere(value) and (axes != (0, 1) or not _same_box(owner, self.store)):
                return False
            strides = self.kernel.info_of(owner.tensor).strides
            unit = [strides[axis] == 1 for axis in owner.kept]
        elif _is_computed(value):
            return True
        else:
            unit = [axis == len(shape) - 1 for axis in range(len(shape))]
        down, across = (axis is not None and not unit[axis] for axis in axes)
        return down or not across or not self.squares or element_of(value.type) == i1


def _same_box(load: LoadOp, store: StoreOp) -> bool:
    """Return whether both are known to be one and the same part of a tensor."""
    places = [(op.tensor, *op.offsets) for op in (load, store)]
    return places[0] == places[1] and (load.size_list, load.kept) == (store.size_list, store.kept)


def _is_computed(value: SSAValue) -> bool:
    """Return whether a tile is not in memory but computed where it is used."""
    owner = value.owner
    if isinstance(owner, ReshapeOp):
        return unit_axes(shape_of(owner.source.type), shape_of(value.type)) is not None
    return isinstance(owner, (*_SAME_PLACE, SplatOp, ArangeOp, BroadcastOp, TransposeOp))


def _operands(value: SSAValue, axes: Axes) -> list[tuple[SSAValue, Axes]]:
    """Return the tiles that a tile is computed from where it is used, each with its axes."""
    owner = value.owner
    if isinstance(owner, (*_SAME_PLACE, GatherOp, LoadOp)):
        return [(operand, axes) for operand in owner.operands if isinstance(operand.type, TileType)]
    if isinstance(owner, TransposeOp):
        take: tuple[int | None, ...] = tuple(owner.permutation.index(axis) for axis in range(len(owner.permutation)))
    elif isinstance(owner, BroadcastOp):
        take = tuple(None if size == 1 else axis for axis, size in enumerate(shape_of(owner.source.type)))
    elif isinstance(owner, ReshapeOp) and _is_computed(value):
        take = unit_axes(shape_of(owner.source.type), shape_of(value.type)) or ()
    else:
        return []
    return [(owner.source, _taken(take, axes))]


def _taken(take: tuple[int | None, ...], axes: Axes) -> Axes:
    """Return the axes of a source whose axis `i` runs along axis `take[i]` of a tile with these axes."""
    down, across = (take.index(axis) if axis is not None and axis in take else None for axis in axes)
    return down, across
