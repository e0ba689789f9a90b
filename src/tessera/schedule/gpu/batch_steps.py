"""Adds up several steps of a loop over single rows at a time, so that memory is always busy.

The statistics of a channel are sums over images and over the elements of each. A program for each channel that walks
all images loads a short row a step: with few channels, and many images, hardly a byte is in flight. Steps that are
neighbours become one with larger tiles (`ir/batching.py`), which the loop adds up as they are; what reduced a row in
each step reduces their sum behind the loop.

Before::

    %sum = scf.for %a = 0 to %images step 1 iter_args(%part = %first) {
      %x = load %X[%a, %b, 0] [1, 1, 8] drop [0, 1]
      yield add(%part, reduce "sum" %x axis 0)
    }

After, of a launch for many images and few channels, beside the one for others::

    %sums = scf.for %a = 0 to %images step 512 iter_args(%part = 0) {
      %x = load %X[%a, %b, 0] [512, 1, 8] drop [1]
      yield add(%part, where %a + arange < %images, %x, else 0)
    }
    %sum = add(%first, reduce "sum" (reduce "sum" %sums axis 0) axis 0)

Programs that are neighbours along a dimension behind the one of the loop read what lies side by side: where there are
enough of those, and each reads less than a line of the cache, they are batched instead (`batch_programs`). Sums,
products, maxima, minima and, of conditions, `&` and `|` are rewritten; under `strict` those whose bits any order gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.batching import Apart, StepBatch
from tessera.ir.carried_sums import combining_function, is_in_order, is_neutral, neutral, reduction_of
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in
from tessera.numerics.functions import COMBINE
from tessera.schedule.gpu.steps import only_reads
from tessera.schedule.launch_guards import all_are, at_least, put_beside
from tessera.schedule.scheduled_pass import GridPass

BYTES = 8192
"""That the steps which are done at once load of their largest tile, at most: 64 in each of 128 threads."""
LEAST = 8
"""Steps that are worth it."""
PROGRAMS, LINE_BYTES = 64, 128
"""That are neighbours along a dimension behind the loop's, from which on they are batched, and not the steps: where the
rows of each are shorter than a line of the cache."""

_SHAPING = (ReshapeOp, BroadcastOp, SplatOp)


@dataclass(frozen=True)
class BatchStepsPass(GridPass):
    """Makes the steps of loops that add up short rows larger.

    Args:
        target: the GPU.
        knobs: a `batch` that is asked for leaves loops as they are.
    """

    name: ClassVar[str] = "batch-steps"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Leave a launch for calls with many steps and few programs beside the one for others."""
        ops, profile = ops_in(grid), kernel.profile.data
        loops = [op for op in ops if isinstance(op, scf.ForOp)]
        if self.knobs.batch or grid.guard is not None or len(loops) != 1 or any(isinstance(op, MmaOp) for op in ops):
            return
        try:
            _sums_of(loops[0], profile)
            steps = _steps(loops[0])
            copy = grid.clone()
            (loop,) = (op for op in ops_in(copy) if isinstance(op, scf.ForOp))
            _batched(kernel, loop, profile)
        except (Apart, Unfit):
            return
        guard = _guard(grid, loops[0], steps)
        if isinstance(guard, SSAValue):
            copy = _beside(grid, copy, guard)
        elif guard:
            Rewriter.replace_op(grid, copy)
        else:
            copy.erase(safe_erase=False)
            return
        note(copy, "batch", [f"{steps} steps of the loop over single elements run as one"])


@dataclass(frozen=True, slots=True)
class _Sum:
    """What a loop carries, and adds to in each step.

    Args:
        place: of the carried value.
        joined: adds to it.
        after: what reduces and shapes the tile that is added, in order.
        tile: what that begins with.
    """

    place: int
    joined: ElementwiseOp
    after: tuple[Operation, ...]
    tile: SSAValue

    @property
    def fn(self) -> str:
        """What adds."""
        return self.joined.fn.data

    def neutral(self, insert: Inserter, shape: Sequence[int]) -> SSAValue:
        """Return a tile that changes nothing."""
        return insert.value(SplatOp(insert.number(neutral(self.fn, self.tile), element_of(self.tile.type)), shape))

    def total(self, insert: Inserter, sums: SSAValue, first: SSAValue) -> SSAValue:
        """Return what the loop carried before, from the sums of all steps that were done at once."""
        value = insert.value(ReduceOp(sums, 0, reduction_of(self.fn, sums.type)))
        for op in self.after:
            value = insert.value(op.clone({op.operands[0]: value}))
        return value if is_neutral(self.fn, first) else insert.value(ElementwiseOp(self.fn, [first, value]))


def _sums_of(loop: scf.ForOp, profile: str) -> list[_Sum]:
    """Return what a loop over single elements adds up.

    Raises:
        Unfit: it does something else.
    """
    body = list(loop.body.block.ops)[:-1]
    if constant_value(loop.step) != 1 or constant_value(loop.lb) != 0 or not all(map(only_reads, body)):
        raise Unfit("the loop does more than to add up, or does not count by one")
    return [_sum_of(loop, place, profile) for place in range(len(loop.iter_args))]


def _sum_of(loop: scf.ForOp, place: int, profile: str) -> _Sum:
    block, end = loop.body.block, loop.body.block.last_op
    assert end is not None
    carried, joined = block.args[place + 1], end.operands[place].owner
    fn = combining_function(loop, place)
    if not isinstance(joined, ElementwiseOp) or joined.fn.data != fn or carried not in joined.args:
        raise Unfit("what is added is not added at once")
    if is_in_order(fn, joined.result.type, profile):
        raise Unfit("the profile gives the order of the sum")
    reduction_of(fn, joined.result.type)
    added = joined.args[1 - list(joined.args).index(carried)]
    after, tile = list[Operation](), added
    while isinstance(op := tile.owner, (*_SHAPING, ReduceOp)) and op.parent is block and tile.uses.get_length() == 1:
        if isinstance(op, ReduceOp) and COMBINE[op.fn.data] != fn:
            break
        after.insert(0, op)
        tile = op.operands[0]
    reduces = any(isinstance(op, ReduceOp) for op in after)
    return _Sum(place, joined, tuple(after), tile) if reduces else _Sum(place, joined, (), added)


def _steps(loop: scf.ForOp) -> int:
    """Return how many steps are done at once.

    Raises:
        Unfit: too few.
    """
    tiles = [value.type for op in loop.body.block.ops for value in op.results if isinstance(value.type, TileType)]
    bytes_ = [dtype_of(element_of(op.result.type)).bytes for op in loop.body.block.ops if isinstance(op, LoadOp)]
    if not bytes_:
        raise Unfit("the loop loads nothing")
    largest = max((prod(1 << (size - 1).bit_length() for size in shape_of(type_)) for type_ in tiles), default=1)
    steps = BYTES // (min(bytes_) * largest)
    if steps < LEAST:
        raise Unfit("the steps are large as they are")
    return 1 << steps.bit_length() - 1


def _guard(grid: GridOp, loop: scf.ForOp, steps: int) -> SSAValue | int:
    """Return when a launch has many steps, and few programs that read what lies behind each other's: 0 for never."""
    if loop.parent is not grid.body.block or not isinstance(loop.ub.owner, DimOp | ConstantOp):
        return 0
    insert = Inserter(InsertPoint.before(grid), grid)
    conditions = [(at_least(insert, loop.ub, steps // 2), True)]
    for axis in _behind(grid, loop) if _shortest_row(loop) < LINE_BYTES else ():
        conditions.append((at_least(insert, grid.extents[axis], PROGRAMS * grid.block_sizes[axis]), False))
    return all_are(insert, conditions)


def _shortest_row(loop: scf.ForOp) -> int:
    """Return the bytes that the smallest tile takes that a step loads at its own place."""
    loads = [op for op in loop.body.block.ops if isinstance(op, LoadOp) and loop.body.block.args[0] in op.offsets]
    rows = [prod(op.size_list) * dtype_of(element_of(op.result.type)).bytes for op in loads if prod(op.size_list) > 1]
    return min(rows, default=0)


def _behind(grid: GridOp, loop: scf.ForOp) -> list[int]:
    """Return the dimensions of a grid along which programs load neighbours of what a step loads, nearer than others."""
    found = set[int]()
    for op in loop.body.block.ops:
        if isinstance(op, LoadOp) and loop.body.block.args[0] in op.offsets:
            here = list(op.offsets).index(loop.body.block.args[0])
            later = op.offsets[here + 1 :]
            found |= {axis for axis, number in enumerate(grid.body.block.args) if number in later}
    return sorted(found)


def _batched(kernel: KernelOp, loop: scf.ForOp, profile: str) -> None:
    """Let a loop do several steps at once.

    Raises:
        Apart: something in it has no meaning for several steps.
    """
    sums, steps = _sums_of(loop, profile), _steps(loop)
    insert = Inserter(InsertPoint.before(loop), loop)
    shapes = [shape_of(each.tile.type) for each in sums]
    initial = [each.neutral(insert, [steps, *shape]) for each, shape in zip(sums, shapes, strict=True)]
    body = Block(arg_types=[index, *(value.type for value in initial)])
    batch = StepBatch(kernel, loop, steps, [op for each in sums for op in (each.joined, *each.after)])
    tiles = batch.fill(body, [each.tile for each in sums])
    carried: list[SSAValue] = []
    for each, tile, shape, nothing, before in zip(sums, tiles, shapes, initial, body.args[1:], strict=True):
        some = batch.value(ElementwiseOp("select", [batch.inside(shape), tile, nothing]))
        carried.append(batch.value(ElementwiseOp(each.fn, [before, some])))
    batch.add(scf.YieldOp(*carried))
    new = scf.ForOp(loop.lb, loop.ub, insert.constant(steps), initial, Region(body))
    new.attributes.update(loop.attributes)
    insert.add(new)
    for each, result, first, old in zip(sums, new.results, loop.iter_args, loop.results, strict=True):
        old.replace_all_uses_with(each.total(insert, result, first))
    Rewriter.erase_op(loop)


def _beside(grid: GridOp, copy: GridOp, guard: SSAValue) -> GridOp:
    """Put two launches in the place of one: a copy, returned, where a condition holds, and what it was where not."""
    insert = Inserter(InsertPoint.before(grid), grid)
    first = copy.when(guard)
    put_beside(grid, first, insert.binary("sub", insert.constant(1), guard))
    return first
