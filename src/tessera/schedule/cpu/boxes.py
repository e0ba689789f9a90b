"""Which tiles are boxes of tensors that lie there still where an op takes them.

A CPU's lowering computes a tile where it is used, so that a box is read where it is multiplied; unless it has been
copied before: because the memory is written in between, or because it is used so often that a copy is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.atomics import orders_accesses
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import element_of
from tessera.ir.tile.writes import Stores
from tessera.ir.types import dtype_of
from tessera.lower.boxes import stays_in_tensor
from tessera.lower.facts import divisor, nonnegative
from tessera.lower.launch import LaunchPlan
from tessera.lower.vector.context import STORE_COST
from tessera.lower.vector.liveness import Liveness
from tessera.lower.vector.nodes import NARROW_COST, SCATTERED_COST
from tessera.numerics.dtypes import widens


@dataclass(frozen=True)
class PlainBox:
    """A box of a tensor that a tile only converts or transposes.

    Args:
        load: the load of the box.
        axes: the dimension of the tensor that each axis of the tile is.
        unit: whether each axis of the tile has stride 1.
        converted: whether a conversion is among what leads to the tile.
        exact: whether the conversions keep every number.
        turned: whether a transpose is.
        forward: whether the box begins inside its tensor along the tile's axes.
        inside: whether it stays inside along the dimensions that the tile does not have.
    """

    load: LoadOp
    axes: tuple[int, int]
    unit: tuple[bool, bool]
    converted: bool
    exact: bool
    turned: bool
    forward: bool
    inside: bool


class Boxes:
    """Finds the boxes of one launch.

    Args:
        kernel: the kernel.
        unit: the grid, or the kernel itself where it is one program.
    """

    def __init__(self, kernel: KernelOp, unit: GridOp | KernelOp):
        self.kernel = kernel
        grid = unit if isinstance(unit, GridOp) else None
        self.liveness = Liveness(LaunchPlan("", [], grid, list(unit.body.block.ops)))
        self._divisors: dict[SSAValue, int] = {}

    def plain(self, value: SSAValue, user: Operation) -> PlainBox | None:
        """Return the box that a matrix is where an op takes it; None where it is none, or a copy of one."""
        chain, source = _chain(value), source_box(value)
        if source is None or self._copied(chain, source[0], user):
            return None
        load, dimensions = source
        casts = [part.owner for part in chain if isinstance(part.owner, CastOp)]
        strides = self.kernel.info_of(load.tensor).strides
        return PlainBox(
            load,
            dimensions,
            (strides[dimensions[0]] == 1, strides[dimensions[1]] == 1),
            bool(casts),
            all(widens(dtype_of(element_of(op.source.type)), dtype_of(element_of(op.result.type))) for op in casts),
            any(isinstance(part.owner, TransposeOp) for part in chain),
            all(nonnegative(load.offsets[axis]) or self._stays(load, axis) for axis in load.kept),
            all(self._stays(load, axis) for axis in load.dropped),
        )

    def _stays(self, load: LoadOp, axis: int) -> bool:
        return stays_in_tensor(self.kernel, load, axis, self._divisor)

    def _divisor(self, value: SSAValue) -> int:
        return divisor(self._divisors, self.kernel, value)

    def _copied(self, chain: list[SSAValue], load: LoadOp, user: Operation) -> bool:
        """Return whether one of the tiles that lead from a load to an op has been stored before it."""
        cost = SCATTERED_COST if load.kept and not self._unit(load) else 1
        costly: list[SSAValue] = []
        for part in reversed(chain):
            if isinstance(part.owner, TransposeOp):
                continue
            if isinstance(part.owner, CastOp):
                dtype = dtype_of(element_of(part.type))
                cost += NARROW_COST if dtype.is_float and dtype.bits < 32 else 2
            repeats = self.liveness.demand(part) - 1
            if repeats > 0 and cost > STORE_COST // repeats:
                return True
            costly += [part] if cost > STORE_COST else []
        memory = memory_of(load.tensor)
        return any(
            _writes(op, memory) or any(_views_used_in(op, part) for part in costly) for op in _between(load, user)
        )

    def _unit(self, load: LoadOp) -> bool:
        return self.kernel.info_of(load.tensor).strides[load.kept[-1]] == 1


def source_box(value: SSAValue) -> tuple[LoadOp, tuple[int, int]] | None:
    """Return the load of a box that a matrix only converts or transposes, and the dimension that each axis is in it.

    None where there is none.
    """
    chain = _chain(value)
    load = chain[-1].owner
    if not isinstance(load, LoadOp) or load.mask is not None or load.fill is not None:
        return None
    first, second = load.kept
    turned = sum(isinstance(part.owner, TransposeOp) for part in chain) % 2 == 1
    return load, (second, first) if turned else (first, second)


def _chain(value: SSAValue) -> list[SSAValue]:
    """Return the tiles that lead to a matrix by conversions and transposes alone, the first one last."""
    chain = [value]
    while isinstance(chain[-1].owner, CastOp | TransposeOp):
        chain.append(chain[-1].owner.source)
    return chain


def _between(first: Operation, last: Operation) -> Iterator[Operation]:
    """Yield the ops that run or begin after one op and before another, those around the second only included."""
    inner = last
    while inner.parent_block() is not first.parent_block():
        before = inner.prev_op
        while before is not None:
            yield before
            before = before.prev_op
        parent = inner.parent_op()
        assert parent is not None, "the first op comes before the second one"
        inner = parent
        yield inner
    before = inner.prev_op
    while before is not None and before is not first:
        yield before
        before = before.prev_op


def _writes(op: Operation, memory: SSAValue) -> bool:
    """Return whether an op writes a memory, or orders accesses to it."""
    return any(
        orders_accesses(inner) or (isinstance(inner, Stores) and memory_of(inner.tensor) is memory)
        for inner in op.walk()
    )


def _owner(value: SSAValue) -> Operation:
    owner = value.owner
    assert isinstance(owner, Operation)
    return owner


def _views_used_in(op: Operation, value: SSAValue) -> bool:
    """Return whether the regions of an op use a tile from outside, or another view of it."""
    if not op.regions or op.is_ancestor(_owner(value)):
        return False
    work = [value]
    while work:
        part = work.pop()
        for use in part.uses:
            if use.operation is not op and op.is_ancestor(use.operation):
                return True
            if isinstance(use.operation, BroadcastOp | TransposeOp | ReshapeOp):
                work += use.operation.results
    return False
