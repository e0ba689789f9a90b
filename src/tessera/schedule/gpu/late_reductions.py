"""Reduces what a loop adds up once, behind the loop, instead of in every iteration.

A reduction combines registers, then lanes, then warps, which exchange their parts through shared memory: all threads
wait for each other, and for the loads before, in every iteration. A loop that carries whole tiles, or what their upper
parts give together, waits once.

Before::

    %sum = scf.for %k ... iter_args(%part = 0)
        %x = load %X[%k, %j] [64, 128]
        yield add(%part, reduce "sum" %x axis 0)

After::

    %sums = scf.for %k ... iter_args(%part = 0)
        %x = load %X[%k, %j] [64, 128]
        yield add(%part, reduce "sum" (reshape %x [4, 16, 128]) axis 0)
    %sum = reduce "sum" %sums axis 0

Sums, products, maxima, minima and operations on bits are reduced late, through several loops inside one another; under
`strict` those whose bits any order gives.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.carried_sums import combining_function, is_neutral, neutral
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.functions import COMBINE
from tessera.numerics.order import is_ordered
from tessera.schedule.gpu.warps import are_few_rows
from tessera.schedule.scheduled_pass import GridPass

LEAST = 2048
"""Elements of a carried tile, unless the loop reduces fewer: 8 in each of 256 threads."""
PARTS = 4
"""Parts of a larger tile that are combined in each iteration: threads hold 32 elements of it, 8 of them neighbours."""
MOST = 8192
"""Elements of a carried tile at most: 32 in each of 256 threads."""

_SHAPING = (ReshapeOp, BroadcastOp, SplatOp)


@dataclass(frozen=True)
class LateReductionsPass(GridPass):
    """Lets loops carry tiles instead of what they are reduced to."""

    name: ClassVar[str] = "late-reductions"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the loops of a launch, the inner ones first."""
        if any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        count = 0
        for loop in reversed([op for op in ops_in(grid) if isinstance(op, scf.ForOp)]):
            for late in _late_reductions(loop, kernel.profile.data):
                loop = late.carried_by(loop)
                count += 1
        if count:
            note(grid, "late_reductions", [f"{count} tiles that loops reduce are carried, and reduced at the end"])


@dataclass(frozen=True, slots=True)
class _Late:
    """A reduction that a loop adds to what it carries.

    Args:
        place: of the carried value.
        joined: adds to it.
        shaping: what is between the reduction and the addition, in order.
        reduction: of a tile.
        kept: size of the carried tile along the reduced dimension.
    """

    place: int
    joined: ElementwiseOp
    shaping: tuple[Operation, ...]
    reduction: ReduceOp
    kept: int

    def carried_by(self, loop: scf.ForOp) -> scf.ForOp:
        """Return the loop, which now carries a tile and is followed by the reduction."""
        block, end = loop.body.block, loop.body.block.last_op
        assert end is not None
        start = self._start(Inserter(InsertPoint.before(loop), loop))
        carried = block.insert_arg(start.type, self.place + 1)
        end.operands[self.place] = self._next(carried)
        initial = [start if place == self.place else value for place, value in enumerate(loop.iter_args)]
        Rewriter.erase_op(self.joined)
        for op in reversed(self.shaping):
            op.detach()
        self.reduction.detach()
        block.erase_arg(block.args[self.place + 2])
        new = scf.ForOp(loop.lb, loop.ub, loop.step, initial, loop.detach_region(0))
        new.location = loop.location
        new.attributes.update(loop.attributes)
        Rewriter.insert_op(new, InsertPoint.before(loop))
        for place, result in enumerate(new.results):
            total = self._total(new, loop) if place == self.place else result
            loop.results[place].replace_all_uses_with(total)
        Rewriter.erase_op(loop)
        return new

    def _start(self, insert: Inserter) -> SSAValue:
        """Return a tile that changes nothing."""
        shape = list(shape_of(self.reduction.source.type))
        shape[self.reduction.axis.data] = self.kept
        result = self.joined.result
        nothing = insert.number(neutral(self.joined.fn.data, result), element_of(result.type))
        return insert.value(SplatOp(nothing, shape))

    def _next(self, carried: SSAValue) -> SSAValue:
        """Return what the loop carries on."""
        insert, tile = Inserter(InsertPoint.before(self.joined), self.joined), self.reduction.source
        axis, shape = self.reduction.axis.data, list(shape_of(tile.type))
        parts = shape[axis] // self.kept
        if parts > 1:
            split = insert.value(ReshapeOp(tile, [*shape[:axis], parts, self.kept, *shape[axis + 1 :]]))
            tile = insert.value(ReduceOp(split, axis, self.reduction.fn.data))
        elif (inner := _only_starts(tile, self.joined.fn.data)) is not None:
            inner.operands[3 + inner.results.index(tile)] = carried
            return tile
        return insert.value(ElementwiseOp(self.joined.fn.data, [carried, tile]))

    def _total(self, new: scf.ForOp, loop: scf.ForOp) -> SSAValue:
        """Reduce what a loop carries to what it carried before."""
        insert = Inserter(InsertPoint.after(new), loop)
        value = new.results[self.place]
        for op in (self.reduction, *self.shaping):
            op.operands[0] = value
            value = insert.value(op)
        first, fn = loop.iter_args[self.place], self.joined.fn.data
        return value if is_neutral(fn, first) else insert.value(ElementwiseOp(fn, [first, value]))


def _only_starts(tile: SSAValue, fn: str) -> scf.ForOp | None:
    """Return the loop that a tile is the sum of, if it could just as well start from any other."""
    loop = tile.owner
    if not isinstance(loop, scf.ForOp) or tile.uses.get_length() > 1:
        return None
    place = loop.results.index(tile)
    if not is_neutral(fn, loop.iter_args[place]):
        return None
    try:
        return loop if combining_function(loop, place) == fn else None
    except Unfit:
        return None


def _late_reductions(loop: scf.ForOp, profile: str) -> list[_Late]:
    """Return the reductions that can be done behind a loop."""
    found = [_late_reduction(loop, place, profile) for place in range(len(loop.iter_args))]
    return [late for late in found if late is not None]


def _late_reduction(loop: scf.ForOp, place: int, profile: str) -> _Late | None:
    block, end = loop.body.block, loop.body.block.last_op
    assert end is not None
    carried, joined = block.args[place + 1], end.operands[place].owner
    if not isinstance(joined, ElementwiseOp) or len(joined.args) != 2 or carried not in joined.args:
        return None
    if joined.parent is not block or any(value.uses.get_length() != 1 for value in (carried, joined.result)):
        return None
    added = joined.args[1 - list(joined.args).index(carried)]
    shaping = list[Operation]()
    while isinstance(added.owner, _SHAPING) and _is_own(added, block):
        shaping.insert(0, added.owner)
        added = added.owner.operands[0]
    reduction = added.owner
    if not isinstance(reduction, ReduceOp) or not _is_own(added, block) or _is_of_parts(reduction):
        return None
    fn, dtype = reduction.fn.data, dtype_of(element_of(added.type))
    if COMBINE[fn] != joined.fn.data or is_ordered(profile, fn, dtype.is_float):
        return None
    kept = _kept(shape_of(reduction.source.type), reduction.axis.data)
    return None if kept is None else _Late(place, joined, tuple(shaping), reduction, kept)


def _is_of_parts(reduction: ReduceOp) -> bool:
    """Return whether a reduction combines the parts of a tile that a thread holds, as those of long rows do."""
    whole, shape, axis = reduction.source.owner, shape_of(reduction.source.type), reduction.axis.data
    together = (*shape[:axis], prod(shape[axis : axis + 2]), *shape[axis + 2 :])
    return isinstance(whole, ReshapeOp) and axis + 1 < len(shape) and shape_of(whole.source.type) == together


def _is_own(value: SSAValue, block: Block) -> bool:
    """Return whether a value is computed in a block, for one use."""
    return isinstance(value.owner, Operation) and value.owner.parent is block and value.uses.get_length() == 1


def _kept(shape: tuple[int, ...], axis: int) -> int | None:
    """Return how many elements of a reduced dimension the loop carries, None where that is not worth while."""
    size, elements = shape[axis], prod(shape)
    if axis + 1 < len(shape) and are_few_rows(shape):
        return None  # threads reduce them
    others = elements // size
    kept = max(LEAST, elements // PARTS) // others
    if kept >= size or size & (size - 1):
        return size if 1 < size <= MOST // others else None
    return 1 << kept.bit_length() - 1 if kept > 1 else None
