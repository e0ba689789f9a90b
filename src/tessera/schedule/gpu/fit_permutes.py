"""Gives programs that permute dimensions blocks with whole runs of memory where they read and where they write.

Memory moves by sectors of 32 bytes, and best in runs of several. A program that reads rows of a block
and writes its columns touches as much of each as its block is long along either, whatever was in the mind of whoever
wrote it. Where each element depends on its own place alone, blocks of other sizes compute the same
(`ir/regridding.py`).

Before::

    grid(%A, %B, %C) by [8, 8, 8] { %x = load X[...] [8, 8, 8]; store %x, Y[...] [8, 8, 8] }

After, where X has its neighbours along A and Y along C, in bf16::

    grid(%A, %B, %C) by [64, 1, 64] when <A and C are long> { ... }
    grid(%A, %B, %C) by [64, 8, 8] when <A is long, C is not> { ... }
    grid(%A, %B, %C) by [8, 8, 64] when <C is long, A is not> { ... }
    grid(%A, %B, %C) by [8, 8, 8] when <neither is> { ... }

Each launch decides from its sizes; where they are known, one is left. Blocks that have such runs, and elements of 2
bytes, are written in runs of 256 bytes where there is enough to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.batching import largest_tile
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.regridding import Regrid
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import shape_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import nearest
from tessera.schedule.launch_guards import all_are, at_least
from tessera.schedule.scheduled_pass import GridPass

RUN_BYTES, LONGEST_RUN = 128, 64
"""A block's run of neighbours has so many bytes, or elements, where it has less than half as written: two sectors."""
WRITTEN, WRITTEN_BYTES = 128, 2
"""Elements of 2 bytes of a run that is written, in launches with elements for as many programs as keep memory busy
(transposes of bf16 matrices in blocks of 64 x 64 and 128 x 64 on an H200, parts of a copy's rate: 4097 x 4099 0.68 and
0.80, 98297 x 631 0.58 and 0.72, 4100 x 4100 0.75 and 0.89; with runs of 128 that are read 0.68, 0.59 and 0.76)."""
BUSY_ELEMENTS = 1 << 22
MOST_ELEMENTS = 4096
"""Of a block that is changed, as long as dimensions without runs have some to give."""


@dataclass(frozen=True)
class FitPermutesPass(GridPass):
    """Changes the blocks of launches that read along one dimension and write along another.

    Args:
        target: the GPU.
        knobs: `batch` and `num_warps` belong to blocks as they are written.
    """

    name: ClassVar[str] = "fit-permutes"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Change the blocks of a launch whose runs are short."""
        asked = self.knobs.batch or self.knobs.num_warps
        if asked or any(isinstance(op, MmaOp | ReduceOp) for op in ops_in(grid)):
            return
        runs, least = _runs(kernel, grid), 1
        short = [number for number, run in runs.items() if grid.block_sizes[number] < run // 2]
        if len(runs) != 2:
            return
        if not short:
            short, least = _written(kernel, grid), BUSY_ELEMENTS
            runs.update(dict.fromkeys(short, WRITTEN))
        if not short:
            return
        try:
            regrid = Regrid(kernel, grid)
        except Unfit:
            return
        if not any(number in regrid.fixed for number in runs):
            _replace(regrid, runs, short, least)


def _runs(kernel: KernelOp, grid: GridOp) -> dict[int, int]:
    """Return the dimensions of a grid along which tiles have neighbours in memory, with how many a run has."""
    runs = dict[int, int]()
    for op, number in _accesses(kernel, grid):
        run = min(LONGEST_RUN, RUN_BYTES // op.element_bytes)
        runs[number] = max(run, runs.get(number, 1))
    return runs


def _written(kernel: KernelOp, grid: GridOp) -> list[int]:
    """Return the dimensions along which tiles of 2 bytes an element are written in shorter runs than `WRITTEN`."""
    stores = [(op, number) for op, number in _accesses(kernel, grid) if isinstance(op, StoreOp)]
    found = dict.fromkeys(number for op, number in stores if op.element_bytes == WRITTEN_BYTES)
    return [number for number in found if grid.block_sizes[number] < WRITTEN]


def _accesses(kernel: KernelOp, grid: GridOp) -> Iterator[tuple[LoadOp | StoreOp, int]]:
    """Yield loads and stores of the largest tiles, each with the dimension along which it has neighbours in memory."""
    places, largest = list[SSAValue](grid.body.block.args), largest_tile(grid)
    for op in grid.walk():
        if not isinstance(op, LoadOp | StoreOp):
            continue
        tile = op.result if isinstance(op, LoadOp) else op.value
        starts = [op.offsets[op.kept[axis]] for axis in nearest(kernel, op)[:1]]
        if prod(shape_of(tile.type)) == largest and starts and starts[0] in places:
            yield op, places.index(starts[0])


def _replace(regrid: Regrid, runs: Mapping[int, int], short: Sequence[int], least: int) -> None:
    """Put launches with longer runs in the place of one, and leave it for the sizes that have none.

    Args:
        regrid: the launch.
        runs: how long they are to be, by dimension.
        short: the dimensions along which they are shorter.
        least: elements of all programs together that it takes.
    """
    grid, written = regrid.grid, list(regrid.grid.block_sizes)
    insert = Inserter(InsertPoint.before(grid), grid)
    choices = list[tuple[list[int], SSAValue | None]]()
    busy = _have(insert, grid.extents, least)
    long = {number: _most_of(insert, grid.extents[number], runs[number], busy) for number in short}
    for taken in product((True, False), repeat=len(short)):
        conditions = [(long[number], wanted) for number, wanted in zip(short, taken, strict=True)]
        guard = all_are(insert, [*conditions, *([] if grid.guard is None else [(grid.guard, True)])])
        if guard != 0:
            changed = [number for number, wanted in zip(short, taken, strict=True) if wanted]
            blocks = _blocks(written, runs, changed, regrid.fixed)
            choices.append((blocks, guard if isinstance(guard, SSAValue) else None))
    if [blocks for blocks, _ in choices] == [written]:
        return
    launches = [_with_blocks(regrid, blocks, guard) for blocks, guard in choices]
    for new in launches:
        Rewriter.insert_op(new, InsertPoint.before(grid))
    names = " or ".join("x".join(map(str, blocks)) for blocks, _ in choices)
    by_sizes = ", as the sizes of a launch say" if len(choices) > 1 else ""
    note(launches[0], "permutes", [f"blocks of {'x'.join(map(str, written))} are moved as {names}{by_sizes}"])
    Rewriter.erase_op(grid)


def _have(insert: Inserter, extents: Sequence[SSAValue], least: int) -> SSAValue | bool:
    """Return whether programs have so many elements together, as 1 or 0 where only a launch knows."""
    if least == 1:
        return True
    known = [constant_value(extent) for extent in extents]
    if None not in known:
        return prod(int(size or 0) for size in known) >= least
    return at_least(insert, reduce(lambda a, b: insert.binary("mul", a, b), extents), least)


def _most_of(insert: Inserter, extent: SSAValue, run: int, busy: SSAValue | bool) -> SSAValue | bool:
    """Return whether a dimension has most of a run, and programs keep memory busy."""
    both = all_are(insert, [(at_least(insert, extent, run - run // 4), True), (busy, True)])
    return both if isinstance(both, SSAValue) else both == 1


def _with_blocks(regrid: Regrid, blocks: Sequence[int], guard: SSAValue | None) -> GridOp:
    changed = {n: size for n, size in enumerate(blocks) if size != regrid.grid.block_sizes[n]}
    return regrid.with_blocks(changed, guard)


def _blocks(
    written: Sequence[int], runs: Mapping[int, int], changed: Sequence[int], fixed: Collection[int]
) -> list[int]:
    """Return the blocks of a program with longer runs along some dimensions, and less of what has none."""
    if not changed:
        return list(written)
    blocks = [runs[number] if number in changed else size for number, size in enumerate(written)]
    while prod(blocks) > MOST_ELEMENTS:
        spare = [n for n, size in enumerate(blocks) if size > runs.get(n, 1) and n not in fixed]
        if not spare:
            break
        widest = max(spare, key=lambda number: blocks[number])  # the first of equals: later ones often lie nearer
        blocks[widest] = max((blocks[widest] + 1) // 2, runs.get(widest, 1))
    return blocks
