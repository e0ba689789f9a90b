"""Computes small programs several at a time, so that memory is always busy.

A program whose tiles have a few hundred elements keeps one warp, or a part of one, and a multiprocessor holds too few
of those to have enough bytes in flight. Neighbouring programs become one with larger tiles (`ir/batching.py`).

Before::

    grid(%rows) by [1]:   %x = load %X[%i, 0] [1, 256] drop [0]
                          %sum = reduce "sum" %x axis 0

After, eight rows together::

    grid(%rows) by [8]:   %x = load %X[%i, 0] [8, 256]
                          %sum = reduce "sum" %x axis 1

Sizes of several dimensions that are not known choose among launches, one for each that may be long.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.batching import Apart, batch_of, largest_tile, moved_bytes
from tessera.ir.inserter import Inserter
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.walking import ops_in
from tessera.schedule.gpu import gathers
from tessera.schedule.launch_guards import all_are, at_least
from tessera.schedule.scheduled_pass import GridPass

ELEMENTS = 2048
"""Of the largest tile of a block: 4 KB of bf16. On an H200 rows of 32 to 1024 elements then move at the rate of a copy;
with half as many they reach 0.82 of it, with twice as many no more."""
TILE_BYTES = 4096
"""Of the largest tile that is loaded or stored: twice as many are 1 to 4 % slower (exponentials, sums of a row, softmax
of f32 on an H200, 24 to 256 MB)."""
ELEMENTS_IN_LOOPS = 256
"""The same where programs loop over single elements: there may be few of them then, each with much to do; a warp has 16
bytes a thread."""
BYTES = 6144
"""That a block moves at least: an H200 starts one every 1.2 ns, in which its memory moves 5 KB."""
ENOUGH_GATHERED = 512
"""Elements of the largest tile of programs with many gathers, which have enough to do then."""
MOST_ELEMENTS = 8192
"""Of the largest tile of a block that takes more programs to move so many."""
PROGRAMS_PER_MULTIPROCESSOR = 2
"""As many are kept where the grid's size is known: too few large programs leave multiprocessors idle."""
MOST_LAUNCHES = 4
"""Of one that chooses by its sizes: each is compiled. The last of them is for the outermost dimension that may be long,
as a batch is."""


@dataclass(frozen=True)
class BatchProgramsPass(GridPass):
    """Makes the programs of a grid larger.

    Args:
        target: the GPU.
        knobs: `batch` forces how many programs become one.
    """

    name: ClassVar[str] = "batch-programs"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite a launch along the last dimension of the grid that has enough programs.

        Where sizes are not known, there is a launch for each dimension that may be the one.
        """
        if any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        largest = largest_tile(grid)
        if largest >= ENOUGH_GATHERED and gathers.are_many(ops_in(grid), largest) and not self.knobs.batch:
            return
        wanted = {axis: self.knobs.batch or self._programs(grid, axis) for axis in reversed(range(len(grid.extents)))}
        axes = [axis for axis, programs in wanted.items() if programs > 1]
        known = all(constant_value(extent) is not None for extent in grid.extents)
        if known:
            axes.sort(key=lambda axis: -wanted[axis])
        reasons, fitting = list[str](), dict[int, GridOp]()
        room = 1 if known or self.knobs.batch else MOST_LAUNCHES - (grid.guard is not None)
        while axes and len(fitting) < room:
            axis = axes.pop(-1 if 0 < len(fitting) == room - 1 else 0)
            try:
                fitting[axis] = batch_of(kernel, grid, axis, wanted[axis]).grid_of_batches()
            except Apart as reason:
                reasons.append(f"programs of dimension {axis} run apart: {reason}")
        if fitting:
            _replace(grid, fitting, wanted)
        elif reasons:
            note(grid, "batch", reasons)

    def _programs(self, grid: GridOp, axis: int) -> int:
        """Return how many programs become one along a dimension of the grid: a power of two."""
        loops, largest = any(map(_takes_single_steps, ops_in(grid))), largest_tile(grid)
        most = (ELEMENTS_IN_LOOPS if loops else ELEMENTS) // largest
        if not loops and (moved := moved_bytes(grid, axis)):
            enough = 1 << (-(-BYTES // sum(moved)) - 1).bit_length()
            most = min(most, TILE_BYTES // max(moved))
            most = max(most, min(enough, MOST_ELEMENTS // largest))
        counts = [_count(*sizes) for sizes in zip(grid.extents, grid.block_sizes, strict=True)]
        here = counts[axis]
        if here is not None:
            most = min(most, 1 << max(here - 1, 0).bit_length())
        if None not in counts:
            there = prod(count or 0 for count in counts)
            most = min(most, there // (PROGRAMS_PER_MULTIPROCESSOR * self.target.machine.units))
        return 1 << max(most, 1).bit_length() - 1


def _replace(grid: GridOp, batches: Mapping[int, GridOp], wanted: Mapping[int, int]) -> None:
    """Put launches of batches along dimensions in the place of one; those that never run are erased."""
    choices = _choices(grid, {axis: wanted[axis] for axis in batches})
    for axis in batches.keys() - choices.keys():
        batches[axis].erase(safe_erase=False)
    launches = [batches[axis] if guard is None else batches[axis].when(guard) for axis, guard in choices.items()]
    for new in launches:
        Rewriter.insert_op(new, InsertPoint.before(grid))
    note(
        launches[0],
        "batch",
        [f"{wanted[axis]} neighbouring programs of dimension {axis} of the grid run as one" for axis in choices],
    )
    Rewriter.erase_op(grid)


def _choices(grid: GridOp, wanted: Mapping[int, int]) -> dict[int, SSAValue | None]:
    """Return the dimensions along which a launch may run batches, each with when it does.

    That is the first one that fills more than half a batch, or the first of all: where it fills half, the other half of
    each program's threads would have nothing to do.
    """
    insert = Inserter(InsertPoint.before(grid), grid)
    long = {
        axis: at_least(insert, grid.extents[axis], grid.block_sizes[axis] * wanted[axis] // 2 + 1) for axis in wanted
    }
    first, *others = wanted
    guards = dict[int, SSAValue]()
    for place, axis in enumerate(others):
        shorter = [(long[before], False) for before in (first, *others[:place])]
        guard = all_are(insert, [*shorter, (long[axis], True)])
        if isinstance(guard, SSAValue):
            guards[axis] = guard if grid.guard is None else insert.binary("mul", guard, grid.guard)
        elif guard:
            return {axis: None}
    if not guards:
        return {first: None}
    rest: SSAValue = insert.constant(1) if grid.guard is None else grid.guard
    for guard in guards.values():
        rest = insert.binary("sub", rest, guard)
    return {first: rest, **guards}


def _takes_single_steps(op: Operation) -> bool:
    """Return whether an op is a loop over single elements: those over blocks may end after the first one."""
    return isinstance(op, scf.ForOp) and constant_value(op.step) in (None, 1)


def _count(extent: SSAValue, block: int) -> int | None:
    """Return how many programs a dimension of a grid has, None where that is not known."""
    size = constant_value(extent)
    return None if size is None else -(-int(size) // block)
