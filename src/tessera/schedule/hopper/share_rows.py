"""Lets the programs of a cluster share a long row that is reduced (Hopper).

A row of 25 000 elements takes all registers of a multiprocessor, which then waits while the row is loaded, again while
its elements are added up, and while it is stored; a longer one is read again for each pass. Where programs of a cluster
have a part of it each, several of them run on a multiprocessor, of different rows, and no row is read twice. They put
what their parts are reduced to into each other's shared memory, and each of them reduces all of it in the order of the
parts, so that all have the same bits. Rows that begin at any element are shared from their first aligned access on.

Before::

    %x = load %X[%i, 0] [1, 32768] drop [0]
    %sum = reduce "sum" %x axis 0
    store div(%x, splat %sum), %Y[%i, 0] [1, 32768] drop [0]

After, with four programs::

    %buffer = alloc_shared [4]; %at = cluster_rank * 8192; cluster_arrive
    %x = load %X[%i, %at] [1, 8192] drop [0]
    %part = reduce "sum" %x axis 0
    cluster_wait; cluster_put %part to %buffer; cluster_arrive; cluster_wait
    %parts = shared_load %buffer [4]; %sum = reduce "sum" %parts axis 0
    store div(%x, splat %sum), %Y[%i, %at] [1, 8192] drop [0]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.chunking import Aligned, Chunk, first_multiple
from tessera.ir.effects import Effect, effect_of
from tessera.ir.extremes import lacks_neutral
from tessera.ir.inserter import Inserter
from tessera.ir.long_tiles import ACCESSES, SCANS, STORES, Passes, Whole, is_whole, passes_over
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.cluster import MOST_PROGRAMS, ClusterArriveOp, ClusterPutOp, ClusterRankOp, ClusterWaitOp
from tessera.ir.tile.elementwise import CastOp, SplatOp, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp
from tessera.ir.tile.shared import AllocSharedOp, SharedLoadOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.traits import has_trait
from tessera.ir.types import dtype_of, element_type
from tessera.ir.walking import ops_in
from tessera.lower.simt.placement import ACCESS_BYTES, padded
from tessera.numerics import dtypes
from tessera.schedule.gpu.chunk_tiles import (
    ELEMENTS,
    HOLDING,
    KEPT_ELEMENTS,
    LONG_ELEMENTS,
    VECTOR_BYTES,
    aligned_of,
    is_in_place,
    leading_row,
    moved_bytes,
    repeats_dear,
)
from tessera.schedule.launch_guards import at_least, put_beside
from tessera.schedule.scheduled_pass import GridPass

PART = 8192
"""Elements of a part, padded to a power of two, of which a multiprocessor runs enough programs at once."""
OTHER_PARTS = 1.1
"""How much more elements count of longer parts."""
SMALL_PARTS = 1.2
"""The same of shorter parts (softmax of 528 rows of 24740: 0.70 of a copy's rate in eight parts, 0.83 in four)."""
MASKED = 1.02
"""The same of parts that do not divide a row: what lies past its end is masked."""
FEW_ROWS, FEW_ROWS_OF_NORMS = 6, 3
"""For each multiprocessor, below which the longest rows that stay in registers or shared memory are shared, by whether
passes need exponentials: a few programs do not keep memory busy, and the last ones run alone (rows of 24740 of bf16 on
an H200, of a copy's rate: softmax of 66 rows 0.83, and 0.99 in four parts, of 291 0.70 and 0.88, of 528 0.77 and 0.83,
of 1056 0.77 both; LayerNorm of 291 rows 0.67 and 0.75)."""
FEW_LONG_ROWS = 0.5
"""The same of longer rows, which are read again for each pass where they are not shared."""
RUN, LEAST_RUNS = 32, 8
"""Accesses of a warp to rows that begin anywhere, of which longer parts have a whole number: lanes pass on what lies
across the beginnings of accesses."""
ELEMENTS_OF_WARP = 2048
"""Elements that a warp computes: with half as many there are too few programs at a time (softmax of 448 rows of 37376:
0.71 of a copy's rate for 0.76)."""
WORD_BYTES = 4


@dataclass(frozen=True)
class ShareRowsPass(GridPass):
    """Divides long rows among the programs of clusters.

    Args:
        target: the GPU.
        knobs: `share_rows` is how many programs share a row; 1 leaves rows whole. `chunk` does, too.
    """

    name: ClassVar[str] = "share-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Divide the rows of a launch, or note why they stay whole if that was asked for."""
        asked = self.knobs.share_rows
        if asked == 1 or self.knobs.chunk is not None or not self.target.has("clusters"):
            return
        tile = longest_row(grid)
        if any(isinstance(op, SCANS) for op in ops_in(grid)):
            return  # `scan-rows` divides what is scanned
        if tile is None or (asked is None and prod(shape_of(tile.type)) <= KEPT_ELEMENTS):
            return
        try:
            passes = _passes(kernel, grid, tile)
            programs, part = _parts(passes, asked, anywhere=_begin_anywhere(kernel, passes))
        except (Unfit, Whole) as reason:
            if asked is not None:
                note(grid, "share_rows", [f"share_rows={asked} is ignored: {reason}"])
            return
        if asked is not None or (passes.size > LONG_ELEMENTS and self._is_worth_it(kernel, passes)):
            self._share(kernel, grid, passes, programs, part)
        elif (shared := self._for_few(grid, passes)) is not None:
            self._share(kernel, shared, _passes(kernel, shared, _only_row(shared)), programs, part)

    def _for_few(self, grid: GridOp, passes: Passes) -> GridOp | None:
        """Return a launch for calls with few rows, where these may be few: one beside the launch, or itself."""
        each = FEW_ROWS if repeats_dear(passes) else FEW_ROWS_OF_NORMS
        if passes.size > LONG_ELEMENTS:
            each = FEW_LONG_ROWS
        return launch_for_few(grid, int(each * self.target.machine.units))

    def _share(self, kernel: KernelOp, grid: GridOp, passes: Passes, programs: int, part: int) -> None:
        """Divide the rows of a launch."""
        aligned = aligned_of(kernel, passes) if _begin_anywhere(kernel, passes) else None
        _Shared(passes, programs, part, aligned).write()
        decisions.CLUSTER.write(grid, programs)
        decisions.NUM_WARPS.write(grid, self.knobs.num_warps or max(padded(part) // ELEMENTS_OF_WARP, 1))
        note(grid, "share_rows", [f"{programs} programs share a row of {passes.size} elements, {part} each"])

    def _is_worth_it(self, kernel: KernelOp, passes: Passes) -> bool:
        """Return whether programs that wait for each other are faster than one.

        They are if it would compute exponentials again for each pass over a row that shared memory does not hold
        (softmax of 1024 rows of 100352 of bf16 on an H200: 0.59 of a copy's rate, and 0.72), or that begins anywhere
        (7104 rows of 33792: 0.54, and 0.69). Waiting costs more than reading rows of a norm again does.
        """
        if _begin_anywhere(kernel, passes):
            return repeats_dear(passes)
        bytes_ = passes.size * max(op.element_bytes for op in passes.ops if isinstance(op, LoadOp))
        return repeats_dear(passes) and HOLDING * bytes_ > self.target.shared_bytes


def launch_for_few(grid: GridOp, most: int) -> GridOp | None:
    """Return a launch for calls with fewer programs than a number: one beside the launch, or itself; None for none."""
    known = [constant_value(extent) for extent in grid.extents]
    if None not in known:
        return grid if prod(int(size or 0) for size in known) < most else None
    if grid.guard is not None:
        return None
    insert = Inserter(InsertPoint.before(grid), grid)
    count = insert.constant(1)
    for extent in grid.extents:
        count = insert.binary("mul", count, extent)
    many = at_least(insert, count, most)
    assert isinstance(many, SSAValue), "some size is not known"
    few = grid.clone().when(insert.binary("sub", insert.constant(1), many))
    put_beside(grid, few, many)
    return few


def _only_row(grid: GridOp) -> SSAValue:
    """Return the longest tile of a launch that has one."""
    tile = longest_row(grid)
    assert tile is not None
    return tile


def longest_row(grid: GridOp) -> SSAValue | None:
    """Return the longest tile of a launch, if it is one row."""
    tiles = [value for op in grid.body.block.ops for value in op.results if isinstance(value.type, TileType)]
    tile = max(tiles, key=lambda value: prod(shape_of(value.type)), default=None)
    return tile if tile is not None and max(shape_of(tile.type)) == prod(shape_of(tile.type)) else None


def _passes(kernel: KernelOp, grid: GridOp, tile: SSAValue) -> Passes:
    """Return what a launch computes of its rows.

    Raises:
        Unfit: it cannot be divided.
        Whole: the same.
    """
    if any(isinstance(op, MmaOp) for op in ops_in(grid)) or decisions.CLUSTER.on(grid):
        raise Unfit("the launch has products, or clusters already")
    shape = shape_of(tile.type)
    passes = passes_over(tile, shape.index(max(shape)))
    if passes.block is not grid.body.block:
        raise Unfit("branches or loops use it")
    reductions = [op for op in passes.ops if passes.reduced(op)]
    stores = [op for op in passes.ops if isinstance(op, STORES)]
    if not reductions or not all(isinstance(op, StoreOp) for op in stores) or not stores:
        raise Unfit("rows are not both reduced and stored")
    if not all(_is_shared(value) for op in reductions for value in op.results):
        raise Unfit("a reduction does not come to one number")
    boxes = [op for op in passes.ops if isinstance(op, LoadOp | StoreOp)]
    if len(boxes) != sum(isinstance(op, ACCESSES) for op in passes.ops):
        raise Unfit("elements are gathered")
    if _begin_anywhere(kernel, passes) and (leading_row(kernel, passes) is None or is_in_place(passes)):
        raise Unfit("rows begin anywhere")
    check_others(grid, passes)
    return passes


def _begin_anywhere(kernel: KernelOp, passes: Passes) -> bool:
    """Return whether accesses from the beginning of some rows on move single elements."""
    boxes = [op for op in passes.ops if isinstance(op, LoadOp | StoreOp)]
    rows = [op for op in boxes if any(constant_value(offset) is None for offset in op.offsets)]
    return any(moved_bytes(kernel, op) < max(VECTOR_BYTES, 2 * op.element_bytes) for op in rows)


def _is_shared(value: SSAValue) -> bool:
    """Return whether a value is a number that programs can tell each other."""
    return not isinstance(value.type, TileType) and dtype_of(value.type) is not dtypes.boolean


def check_others(grid: GridOp, passes: Passes) -> None:
    """Check that all programs of a cluster may do what else a program does, and that stores meet no other access.

    Raises:
        Unfit: they may not.
    """
    long, stored, accessed = set(passes.ops), set[SSAValue](), list[tuple[SSAValue, Operation]]()
    for op in grid.body.block.ops:
        if op.regions:
            raise Unfit("the launch has loops or branches")
        if isinstance(op, LoadOp | StoreOp):
            accessed.append((memory_of(op.tensor), op))
            stored.update([memory_of(op.tensor)] if isinstance(op, StoreOp) else [])
        elif op not in long and not has_trait(op, IsTerminator) and effect_of(op) > Effect.RANDOM:
            raise Unfit(f"each program would do {op.name.split('.')[-1]}")
        if op not in long and any(value.uses.get_length() and _size(value) > PART for value in op.results):
            raise Unfit("there are other long tiles")
    for memory in stored:
        ops = [op for each, op in accessed if each is memory]
        if len(ops) > 1 and not (all(op in long for op in ops) and len({_box(op, passes) for op in ops}) == 1):
            raise Unfit("a tensor is stored to and accessed elsewhere")


def _size(value: SSAValue) -> int:
    return prod(shape_of(value.type)) if isinstance(value.type, TileType) else 0


def _box(op: Operation, passes: Passes) -> tuple[object, ...]:
    """Return what is the same of accesses of one box that are divided alike."""
    assert isinstance(op, LoadOp | StoreOp)
    axis = op.kept[passes.axes[op.result if isinstance(op, LoadOp) else op.value]]
    return op.tensor, tuple(op.offsets), tuple(op.size_list), axis


def _parts(passes: Passes, asked: int | None, *, anywhere: bool) -> tuple[int, int]:
    """Return how many programs share a row, and how many elements each of them has.

    Args:
        passes: what is computed of the row.
        asked: how many programs are to share it.
        anywhere: whether rows begin at any element, so that parts begin where accesses are aligned.

    Raises:
        Unfit: parts would be too long, or reach where other elements are.
    """
    boxes = [op for op in passes.ops if isinstance(op, LoadOp | StoreOp)]
    step = max(ACCESS_BYTES // op.element_bytes for op in boxes)
    whole = all(is_whole(op, passes) for op in boxes)
    maskable = whole and not any(passes.reduced(op) and lacks_neutral(op) for op in passes.ops)
    most = ELEMENTS if passes.size <= MOST_PROGRAMS * ELEMENTS else LONG_ELEMENTS
    found = list[tuple[float, int, int]]()
    for programs in range(2, MOST_PROGRAMS + 1) if asked is None else (asked,):
        part = (_part_between if anywhere else _part_of)(passes.size, programs, step)
        divides, registers = anywhere or part * programs == passes.size, padded(max(part, 1))
        if not 0 < part <= most or part * (programs - 1) >= passes.size or not (divides or maskable):
            continue
        other = 1.0 if registers == PART else OTHER_PARTS if registers > PART else SMALL_PARTS
        cost = programs * registers * other * (1.0 if divides else MASKED)
        cost += programs * (passes.size - programs * part) if anywhere else 0
        found.append((cost if registers <= ELEMENTS else part, programs, part))
    if not found:
        raise Unfit("there are no parts of a size that fits")
    _, programs, part = min(found)
    return programs, part


def _part_of(size: int, programs: int, step: int) -> int:
    """Return the elements of each part of a row, whole accesses of which the last part may have fewer.

    Args:
        size: elements of the row.
        programs: that share it.
        step: elements of an access.
    """
    return -(-size // (step * programs)) * step


def _part_between(size: int, programs: int, step: int) -> int:
    """Return the same where a row begins anywhere: what is left over is computed by all."""
    left = size - step
    run = step * (RUN if left >= LEAST_RUNS * RUN * step * programs else 1)
    return left // (run * programs) * run


class _Shared:
    """A row being divided.

    Where rows begin anywhere, parts begin where accesses are aligned, and are made of whole ones. All programs compute
    what stands before the first part and behind the last one; the first of them adds it up and stores it.

    Args:
        passes: what is computed of it.
        programs: that share it.
        part: elements of each.
        aligned: where parts begin, of rows that begin anywhere.
    """

    def __init__(self, passes: Passes, programs: int, part: int, aligned: Aligned | None) -> None:
        self.passes, self.programs, self.part = passes, programs, part
        first = passes.block.first_op
        assert first is not None
        self.start = Inserter(InsertPoint.before(first), first)
        self.rank = self.start.value(ClusterRankOp())
        at, point = self.start.binary("mul", self.rank, self.start.constant(part)), InsertPoint.before(first)
        self.least, self.ends = self.start.constant(0), list[Chunk]()
        self.chunk = self._aligned(aligned, at) if aligned is not None else Chunk(passes, point, at, part)
        self.put: list[tuple[ReduceOp | ReduceByOp, Sequence[SSAValue]]] = []
        self.runs = False
        self.written = set[Operation]()

    def _aligned(self, aligned: Aligned, at: SSAValue) -> Chunk:
        """Return the chunk of a part that begins where accesses are aligned, and set those around the parts."""
        begin, size, step = self.passes.ops[0], self.passes.size, aligned.step
        insert, shared = Inserter(InsertPoint.before(begin), begin), self.programs * self.part
        first = first_multiple(insert, aligned)
        # No program but the first adds up what lies around the parts.
        self.least = insert.binary(
            "mul", insert.binary("minimum", self.rank, insert.constant(1)), insert.constant(size)
        )
        before = insert.binary("sub", insert.constant(0), aligned.behind)
        behind = insert.binary("add", first, insert.constant(shared))
        for place, length in ((before, step), (behind, -(-(size - shared) // step) * step)):
            self.ends.append(Chunk(self.passes, insert.point, place, length))
        return Chunk(self.passes, insert.point, insert.binary("add", first, at), self.part, aligned.boxes)

    def write(self) -> None:
        """Rewrite the block."""
        op: Operation | None = self.start.like
        self.start.point = InsertPoint.before(self.start.add(ClusterArriveOp()))
        chunk, long, awaited = self.chunk, set(self.passes.ops), set[SSAValue]()
        while op is not None:
            if any(value in awaited for value in op.operands):
                self._meet(op)
                awaited.clear()
            for each in (chunk, *self.ends):
                each.point = InsertPoint.before(op)
            if op in long:
                if self.passes.reduced(op):
                    self._put(op)
                    awaited.update(op.results)
                else:
                    chunk.write(op)
                    self.written.update([op.prev_op] if isinstance(op.prev_op, StoreOp) else [])
                    for end in self.ends:
                        end.write(op)
            op = op.next_op
        if awaited:
            last = self.passes.block.last_op
            assert last is not None
            self._meet(last)
        for op in reversed(self.passes.ops):
            Rewriter.erase_op(op)
        self._store_once()
        for op in list(self.passes.block.ops):
            if isinstance(op, SplatOp) and not op.result.uses.get_length():
                Rewriter.erase_op(op)  # or it would be taken for a long tile that is computed

    def _store_once(self) -> None:
        """Let the first program store what is no row."""
        stores = [op for op in self.passes.block.ops if isinstance(op, StoreOp) and op not in self.written]
        if not stores:
            return
        insert = Inserter(InsertPoint.at_end(self.passes.block), stores[0])
        first = insert.binary("eq", self.rank, insert.constant(0))
        for op in stores:
            op.detach()
        insert.add(scf.IfOp(first, [], Region(Block([*stores, scf.YieldOp()]))))

    def _put(self, op: ReduceOp | ReduceByOp) -> None:
        """Reduce a part, and tell the other programs what it comes to."""
        chunk = self.chunk
        exact = self.ends or self.part * self.programs == self.passes.size
        parts = chunk.reduced(op) if exact else chunk.reduce(op, chunk.inside(op), op.axis.data)
        for end in self.ends:
            parts = chunk.combine(op, parts, chunk.reduce(op, end.inside(op, self.least), op.axis.data))
        insert = Inserter(chunk.point, op)
        if not self.runs:
            insert.add(ClusterWaitOp())
            self.runs = True
        buffers = list[SSAValue]()
        for part in parts:
            word = word_of(part.type)
            value = part if word == part.type else insert.value(CastOp(part, word))
            buffers.append(self.start.value(AllocSharedOp([self.programs], word)))
            insert.add(ClusterPutOp(value, buffers[-1]))
        self.put.append((op, buffers))

    def _meet(self, before: Operation) -> None:
        """Reduce what all programs have put, before an op that needs it."""
        insert = Inserter(InsertPoint.before(before), before)
        insert.add(ClusterArriveOp())
        insert.add(ClusterWaitOp())
        for op, buffers in self.put:
            tiles = [insert.value(SharedLoadOp(buffer)) for buffer in buffers]
            elements = [value.type for value in op.results]
            tiles = [
                tile if element_of(tile.type) == element else insert.value(CastOp(tile, element))
                for tile, element in zip(tiles, elements, strict=True)
            ]
            self.chunk.point, self.chunk.like = InsertPoint.before(before), op
            for old, new in zip(op.results, self.chunk.reduce(op, tiles, 0), strict=True):
                old.replace_all_uses_with(new)
        self.put.clear()


def word_of(element: Attribute) -> Attribute:
    """Return the type as which a number is put: its own, or a wider one that holds it."""
    dtype = dtype_of(element)
    if dtype.bytes >= WORD_BYTES:
        return element
    return element_type(dtypes.f32 if dtype.is_float else dtypes.i32)
