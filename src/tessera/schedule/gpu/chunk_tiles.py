"""Computes tiles that are too large for registers chunk by chunk, in as many passes as their reductions ask for.

A tile lies in the registers of a program's threads. A row of 100 000 elements does not fit: registers spill, and one
program fills a multiprocessor, which is then idle while the row is loaded and again while it is stored. In loops over
chunks (`ir/chunking.py`) elements are loaded again for each pass, from caches that hold the row.

Before::

    %x = load %X[%i, 0] [1, 65536] drop [0]
    %sum = reduce "sum" %x axis 0
    %y = elementwise "div"(%x, splat %sum)
    store %y, %Y[%i, 0] [1, 65536] drop [0]

After::

    %sums = for %k = 0 to 65536 step 16384 iter_args(%part = 0)
        %x = load %X[%i, %k] [1, 16384] drop [0]
        yield add(%part, reduce "sum" (reshape %x [4, 4096]) axis 0)
    %sum = reduce "sum" %sums axis 0
    for %k = 0 to 65536 step 16384
        %x = load %X[%i, %k] [1, 16384] drop [0]
        store elementwise "div"(%x, splat %sum), %Y[%i, %k] [1, 16384] drop [0]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.chunking import Aligned, compute_in_chunks, first_multiple, held_rest, last_multiple
from tessera.ir.extremes import lacks_neutral
from tessera.ir.inserter import Inserter
from tessera.ir.live_tiles import live_registers
from tessera.ir.long_tiles import ACCESSES, SCANS, STORES, Passes, Whole, is_whole, passes_over
from tessera.ir.merged_reductions import split_merged_reduction
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.memory import LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, CommitGroupOp, CpAsyncOp, SharedViewOp, WaitGroupOp
from tessera.ir.tile.structure import GridOp, KernelOp, MisalignmentOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.simt.placement import ACCESS_BYTES
from tessera.numerics.assembly import is_assembly
from tessera.numerics.functions import record_of
from tessera.schedule.scheduled_pass import GridPass
from tessera.target import gpu_rates

ELEMENTS = 16384
"""Of a chunk, and of the largest tile that stays whole: 32 of each of 512 threads, 64 bytes of bf16 in flight. Scans of
several tiles together have shorter chunks of each."""

LONG_ELEMENTS = 2 * ELEMENTS
"""Of a chunk of longer rows whose accesses move several elements: a program alone on a multiprocessor finds its row in
the L1 cache, where two would evict each other's, and does without half of the waits (softmax of 64 KB to 192 KB a row
on an H100: 0.50 to 0.61 of a copy's rate with chunks half as long, 0.72 to 0.97 with these)."""
LONG_LIVE = 53248
"""Registers of tiles that such a program may hold: 104 for each of its 512 threads."""
SCANNED_ELEMENTS = ELEMENTS // 2
"""Of a chunk of rows that are scanned: their elements wait for each other, so that several programs have to run."""

VECTOR_BYTES = 8
"""That an access of several elements moves at least."""
AGAIN = 1.5
"""Most elements that long chunks of rows that begin anywhere may compute, as a multiple of those of the row."""
PADDED = 1.25
"""How far the next power of two may exceed rows that stay whole though nothing reduces them."""
WORD_BYTES = 4
"""Rows that begin anywhere are loaded as words that are shifted into place."""

LIVE = 20480
"""Registers of tiles that a program with 512 threads may hold for two of them to run at a time: 64 for each thread,
less 24 for addresses and temporaries."""


@dataclass(frozen=True)
class ChunkTilesPass(GridPass):
    """Rewrites tiles that are too large for registers to loops over chunks of them.

    Args:
        target: the GPU.
        knobs: `chunk` is how large a tile may be, and a chunk of a larger one is.
    """

    name: ClassVar[str] = "chunk-tiles"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the large tiles of a launch, or note why they stay whole."""
        most = self.knobs.chunk
        if most == 0 or decisions.CLUSTER.on(grid) or any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        if most is None and self._hold(kernel, grid):
            return
        most = most or _most(kernel, grid)
        for op in list(ops_in(grid)):
            if isinstance(op, ReduceOp | ReduceByOp) and _elements(op.operands[0]) > most:
                split_merged_reduction(op)
        notes, kept = list[str](), set[SSAValue]()
        while (tile := _largest(grid, kept)) is not None and _elements(tile) > most:
            try:
                passes, length = _best(tile, most)
            except Whole as reason:
                notes.append(f"tiles of {prod(shape_of(tile.type))} elements stay whole: {reason}")
                kept.add(tile)
                continue
            aligned = _aligned(kernel, passes, length)
            notes.append(_told(tile, passes, length, aligned))
            compute_in_chunks(passes, length, aligned)
        if notes:
            note(grid, "chunk", list(dict.fromkeys(notes)))

    def _hold(self, kernel: KernelOp, grid: GridOp) -> bool:
        """Compute rows that several passes need from shared memory, if a multiprocessor has room for a few programs."""
        programs, tile = self.knobs.hold_rows, _largest(grid, set())
        if programs == 0 or tile is None or not self.target.has("cp_async"):
            return False
        shape = shape_of(tile.type)
        try:
            passes = passes_over(tile, shape.index(max(shape)))
        except Whole:
            return False
        if passes.size <= HELD_CHUNK or any(isinstance(op, SCANS) for op in ops_in(grid)):
            return False
        rows = _needed_again(passes)
        wide = [row for row in rows if moved_bytes(kernel, row[0]) >= ACCESS_BYTES]
        aligned = None if wide else _aligned(kernel, passes, HELD_CHUNK)
        if aligned is not None:
            wide = [row for row in rows if aligned.boxes.get(row[0]) == 1 and aligned.again]
        plan = _Held(passes, wide, aligned)
        room = int(self.target.shared_bytes // (plan.bytes + gpu_rates.OF_A_PROGRAM_BYTES))
        fits = wide and plan.count and room >= (programs or HOLDING)
        if not fits or (programs is None and not plan.is_worth_it):
            return False
        compute_in_chunks(passes, HELD_CHUNK, aligned, plan.copied())
        decisions.NUM_WARPS.write(grid, HELD_WARPS)
        decisions.RESIDENT.write(grid, min(room, HELD_RESIDENT))
        note(grid, "chunk", [f"rows of {passes.size} elements stay in shared memory for {len(passes.loops)} passes"])
        return True


HELD_CHUNK = 8192
HELD_WARPS = 8
"""Elements of a chunk of rows that shared memory holds, and warps that compute them: of each part that reductions
combine first a thread has 16 bytes of bf16 (chunks of half as many reach a third less of a copy's rate)."""
HOLDING = 2
"""Programs that a multiprocessor has room for at least, so that one loads while another computes."""
HELD_RESIDENT = 4
"""Programs whose threads have registers at the same time, at most."""
HELD_BYTES = 24576
"""Of rows that are held, at least: shorter ones have enough programs at a time in registers."""
KEPT_ELEMENTS = ELEMENTS + ELEMENTS // 2
"""Of the longest rows that registers keep as a whole for exponentials that are not computed again."""


def repeats_dear(passes: Passes) -> bool:
    """Return whether several passes compute a dear function of the same elements."""
    return any(is_dear(op) and sum(op in ops for ops in passes.loops) > 1 for op in passes.ops)


CHEAP = 4
"""Instructions of a function up to which it is computed again, and registers for its terms do not count: a division."""


def is_dear(op: Operation) -> bool:
    """Return whether an op is a function of floats, and of more than a few instructions, of a tile."""
    if not isinstance(op, ElementwiseOp) or not isinstance(op.result.type, TileType):
        return False
    name = op.fn.data
    return is_assembly(name) or (record_of(name).domain == "float" and record_of(name).cost > CHEAP)


def _needed_again(passes: Passes) -> list[list[LoadOp]]:
    """Return rows of a program's own that several passes need, each with all loads of it."""
    found, stored = dict[tuple[object, ...], list[LoadOp]](), set[SSAValue]()
    for op in passes.ops:
        if isinstance(op, StoreOp):
            stored.add(memory_of(op.tensor))
        if not isinstance(op, LoadOp) or op.mask is not None or op.fill is not None or memory_of(op.tensor) in stored:
            continue
        places = [constant_value(offset) for offset in op.offsets]
        if prod(op.size_list) == passes.size and places[op.kept[passes.axes[op.result]]] == 0 and None in places:
            box = (offset if place is None else place for offset, place in zip(op.offsets, places, strict=True))
            found.setdefault((op.tensor, *box), []).append(op)
    return [ops for ops in found.values() if sum(any(op in loop for op in ops) for loop in passes.loops) > 1]


@dataclass(frozen=True)
class _Held:
    """Rows that shared memory is to hold.

    Args:
        passes: what is computed of them.
        rows: the loads of each.
        aligned: where chunks begin, of rows that begin anywhere.
    """

    passes: Passes
    rows: Sequence[Sequence[LoadOp]]
    aligned: Aligned | None

    @property
    def count(self) -> int:
        """Chunks of a row."""
        return (self.passes.size - (self.aligned.step if self.aligned else 0)) // HELD_CHUNK

    @property
    def rest(self) -> int:
        """Elements of what they leave, and of the chunk before it."""
        if self.aligned is not None:
            return held_rest(self.passes.size, HELD_CHUNK, self.aligned.step)
        return self.passes.size % HELD_CHUNK

    @property
    def bytes(self) -> int:
        """Shared memory that they take."""
        each = self.count * HELD_CHUNK + (1 << (self.rest - 1).bit_length() if self.rest else 0)
        return each * sum(loads[0].element_bytes for loads in self.rows)

    @property
    def is_worth_it(self) -> bool:
        """Whether passes over rows in shared memory are faster than rows in registers.

        They are if nothing dear is computed again in each: exponentials of a softmax are better kept (of 24576 elements
        of bf16 on an H200: 0.96 of a copy's rate, and 0.93) while rows fit into registers well (of 25800: 0.67, and
        0.86). Rows that begin anywhere fit only if they are shorter: each load of them takes several registers more.
        """
        if self.aligned is not None:
            return self.passes.size > ELEMENTS
        bytes_ = self.passes.size * sum(loads[0].element_bytes for loads in self.rows)
        return bytes_ >= HELD_BYTES and (self.passes.size > KEPT_ELEMENTS or not repeats_dear(self.passes))

    def copied(self) -> dict[Operation, list[SSAValue]]:
        """Copy rows to shared memory before the first pass, and wait for them; return where they are."""
        insert = Inserter(InsertPoint.before(self.passes.ops[0]), self.rows[-1][0])
        starts = self._starts(insert)
        found = dict[Operation, list[SSAValue]]()
        for op, *others in self.rows:
            element, axis = element_of(op.tensor.type), op.kept[self.passes.axes[op.result]]
            every = insert.value(AllocSharedOp([self.count, 1, HELD_CHUNK], element))  # the last two are rounded up
            zero = insert.constant(0)
            parts = [insert.value(SharedViewOp(every, insert.constant(number))) for number in range(self.count)]
            parts = [insert.value(SharedViewOp(part, zero)) for part in parts]
            rest = [insert.value(AllocSharedOp([self.rest], element))] if self.rest else []
            found.update({load: [every, *rest] for load in (op, *others)})
            for buffer, start in zip([*parts, *rest], starts, strict=True):
                offsets, sizes = list[SSAValue](op.offsets), list(op.size_list)
                offsets[axis], (sizes[axis],) = start, shape_of(buffer.type)
                copy = CpAsyncOp(buffer, op.tensor, offsets, sizes, op.dropped)
                if self.aligned is not None:
                    decisions.INSIDE.write(copy, 1 << axis)
                    decisions.ALIGNED.write(copy, 1)
                insert.add(copy)
        for op in (CommitGroupOp(), WaitGroupOp(0), BarrierOp()):
            insert.add(op)
        return found

    def _starts(self, insert: Inserter) -> list[SSAValue]:
        """Return where chunks begin, and what they leave."""
        places = [insert.constant(number * HELD_CHUNK) for number in range(self.count)]
        if self.aligned is None:
            return [*places, *([insert.constant(self.count * HELD_CHUNK)] if self.rest else [])]
        first, end = first_multiple(insert, self.aligned), last_multiple(insert, self.passes, self.aligned)
        return [
            *(insert.binary("add", first, place) for place in places),
            insert.binary("sub", end, insert.constant(self.rest)),
        ]


def _most(kernel: KernelOp, grid: GridOp) -> int:
    """Return how large a chunk is, and a tile may be.

    While a reduction waits for the last element of a row, another program has to keep the memory busy. There is no room
    for one beside 512 threads that hold a row and its weights, or compute them as one long chunk and a short one behind
    it. Half as long chunks, two or three of them, leave room. Rows of many chunks are better off with few long ones.
    Where nothing is reduced, short chunks have the least beyond the end of a row.
    """
    tile = _largest(grid, set())
    if tile is None or (elements := _elements(tile)) <= ELEMENTS // 2:
        return ELEMENTS
    size = prod(shape_of(tile.type))
    # Of several rows each is read once, and they are cut between rows; elements of 8 bytes have two registers each.
    is_row = max(shape_of(tile.type)) == size == elements
    if is_row and any(isinstance(op, SCANS) and _is_as_long(op, size) for op in ops_in(grid)):
        return SCANNED_ELEMENTS
    if not any(isinstance(op, ReduceOp | ReduceByOp) for op in ops_in(grid)):
        padded = 1 << (elements - 1).bit_length()
        return ELEMENTS // 4 if is_row and PADDED * elements < padded <= ELEMENTS else ELEMENTS
    by = any(map(lacks_neutral, ops_in(grid)))
    live, anywhere = live_registers(grid.body.block), is_row and not by and _lie_anywhere(kernel, grid, size)
    if elements < (2 * ELEMENTS if anywhere else ELEMENTS + ELEMENTS // 2):
        return ELEMENTS // 2 if min(ELEMENTS / elements, 1.0) * live > LIVE else ELEMENTS
    held = min(LONG_ELEMENTS / elements, 1.0) * live
    again = is_row and held <= LONG_LIVE and _is_rewritten(kernel, grid, size, anywhere)
    if anywhere:  # the last chunk has elements of the one before it again
        again = again and -(-elements // LONG_ELEMENTS) * LONG_ELEMENTS <= AGAIN * elements
    return LONG_ELEMENTS if again else ELEMENTS


def _lie_anywhere(kernel: KernelOp, grid: GridOp, size: int) -> bool:
    """Return whether some rows are loaded as words that are shifted into place."""
    boxes = [op for op in ops_in(grid) if isinstance(op, LoadOp | StoreOp)]
    return any(_is_row(kernel, op, size) and moved_bytes(kernel, op) < ACCESS_BYTES for op in boxes)


def _is_as_long(op: Operation, size: int) -> bool:
    """Return whether the first operand of an op has so many elements."""
    return prod(shape_of(op.operands[0].type)) == size


def _is_rewritten(kernel: KernelOp, grid: GridOp, elements: int, anywhere: bool) -> bool:
    """Return whether rows are stored that are as long as those read, by accesses of several elements and 8 bytes.

    Args:
        kernel: the kernel.
        grid: the launch.
        elements: of a row.
        anywhere: whether chunks of rows that begin at any element begin where such accesses do.
    """
    long = [op for op in ops_in(grid) if isinstance(op, LoadOp | StoreOp) and prod(op.size_list) >= elements]
    wide = (
        moved_bytes(kernel, op) >= max(VECTOR_BYTES, 2 * op.element_bytes)
        or (anywhere and _is_row(kernel, op, elements))
        for op in long
    )
    return any(isinstance(op, StoreOp) for op in long) and all(wide)


def moved_bytes(kernel: KernelOp, op: LoadOp | StoreOp) -> int:
    """Return a power of two of bytes that an access of a slice from its first column on can move at once."""
    info, width = kernel.info_of(op.tensor), dtype_of(element_of(op.tensor.type)).bytes
    inner = next((axis for axis in op.kept if info.strides[axis] == 1), None)
    if inner is None or constant_value(op.offsets[inner]) != 0:
        return width
    steps = [info.stride_divisor(axis) * width for axis in range(len(info.strides)) if axis != inner]
    return gcd(ACCESS_BYTES, info.align, *steps)


def _aligned(kernel: KernelOp, passes: Passes, length: int) -> Aligned | None:
    """Return where chunks of rows begin that may begin at any element; None where that is of no use."""
    aligned = aligned_of(kernel, passes)
    if aligned is None or passes.size < 2 * aligned.step or length < aligned.step:  # chunks are whole accesses
        return None
    return aligned


def aligned_of(kernel: KernelOp, passes: Passes) -> Aligned | None:
    """Return where accesses of rows are aligned that may begin at any element; None where that is of no use.

    It is where what is loaded first is aligned, or where each row begins if most are aligned there. Rows of one width
    lie alike in all tensors that hold nothing else: the launch looks whether others are aligned there too, loads words
    that it shifts into place where they are not, and stores single elements.

    The head and the tail reach out of the tiles. Only where whole dimensions are loaded and stored are there no
    elements around them, which other programs may own.
    """
    first = leading_row(kernel, passes)
    if first is None:
        return None
    begin, step, boxes = passes.ops[0], ACCESS_BYTES // first.element_bytes, _rows_of(kernel, passes)
    insert = Inserter(InsertPoint.before(begin), first)
    if moved_bytes(kernel, first) == ACCESS_BYTES:
        wide = [op for op in boxes if moved_bytes(kernel, op) == ACCESS_BYTES]
        behind, lies_so = insert.constant(0), {op for op in wide if op.element_bytes >= first.element_bytes}
    else:
        offsets = [
            each if _is_there(each, begin) else insert.constant(int(constant_value(each) or 0))
            for each in first.offsets
        ]
        behind = insert.value(MisalignmentOp(first.tensor, offsets))
        lies_so = {op for op in boxes if op.tensor is first.tensor and list(op.offsets) == list(first.offsets)}
    known: dict[Operation, int] = {op: 1 if op in lies_so else decisions.LOOKED_AT for op in boxes}
    return Aligned(behind, step, known, again=not is_in_place(passes))


def leading_row(kernel: KernelOp, passes: Passes) -> LoadOp | StoreOp | None:
    """Return the access that says where those of all rows begin; None where rows lie as accesses do, or cannot move."""
    if not all(is_whole(op, passes) for op in passes.ops if isinstance(op, ACCESSES)):
        return None
    if any(passes.scanned(op) or (passes.reduced(op) and lacks_neutral(op)) for op in passes.ops):
        return None
    begin = passes.ops[0]
    rows = [op for op in _rows_of(kernel, passes) if any(constant_value(offset) is None for offset in op.offsets)]
    apart = [op for op in rows if moved_bytes(kernel, op) < ACCESS_BYTES]
    if not apart:
        return None
    # As most of them lie.
    alike = apart if 2 * len(apart) > len(rows) else [op for op in rows if op not in apart]
    leading = [
        op for op in alike if all(_is_there(each, begin) or constant_value(each) is not None for each in op.offsets)
    ]
    return min(leading, key=lambda op: (op.element_bytes, isinstance(op, StoreOp)), default=None)


def _rows_of(kernel: KernelOp, passes: Passes) -> list[LoadOp | StoreOp]:
    """Return the accesses that move whole rows of their tensors."""
    return [op for op in passes.ops if isinstance(op, LoadOp | StoreOp) and _is_row(kernel, op, passes.size)]


def _is_there(value: SSAValue, op: Operation) -> bool:
    """Return whether a value that an op's block sees has been computed before the op."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.parent is not op.parent or owner.is_before_in_block(op)


def is_in_place(passes: Passes) -> bool:
    """Return whether an element may be computed from what was stored, so that it is not the same the next time."""
    accesses = [op for op in passes.ops if isinstance(op, ACCESSES)]
    stored = {memory_of(op.tensor) for op in accesses if isinstance(op, STORES)}
    loaded = {memory_of(op.tensor) for op in accesses if not isinstance(op, STORES)}
    return bool(stored & loaded) or any(isinstance(op, ScatterOp) for op in accesses)


def _is_row(kernel: KernelOp, op: LoadOp | StoreOp, size: int) -> bool:
    """Return whether a box is one row of its tensor, of elements that words hold, and moved as a whole."""
    if prod(op.size_list) != size:
        return False
    strides = kernel.info_of(op.tensor).strides
    along = (axis for axis in op.kept if op.tensor.type.shape[axis] == size and constant_value(op.offsets[axis]) == 0)
    return op.mask is None and op.element_bytes <= WORD_BYTES and any(strides[axis] == 1 for axis in along)


def _told(tile: SSAValue, passes: Passes, length: int, aligned: Aligned | None) -> str:
    """Return the sentence about tiles that are computed in passes."""
    size, times = prod(shape_of(tile.type)), len(passes.loops)
    chunk, each = size // passes.size * length, "one pass" if times == 1 else f"{times} passes"
    where = ", which begin where accesses are aligned" if aligned else ""
    return f"tiles of {size} elements are computed in {each} over chunks of {chunk}{where}"


def _elements(tile: SSAValue) -> int:
    """Return how many registers of 4 bytes a tile takes."""
    type_ = tile.type
    assert isinstance(type_, TileType)
    return prod(type_.shape) * max(type_.dtype.bytes // 4, 1)


def _largest(grid: GridOp, kept: set[SSAValue]) -> SSAValue | None:
    """Return the largest tile of a launch that is none of some."""
    tiles = [value for op in ops_in(grid) for value in op.results if isinstance(value.type, TileType)]
    return max((tile for tile in tiles if tile not in kept), key=_elements, default=None)


def _best(tile: SSAValue, most: int) -> tuple[Passes, int]:
    """Return the passes along the dimension that needs fewest of them, and how long a chunk is.

    Raises:
        Whole: there are none.
    """
    found, reasons = list[tuple[Passes, int]](), list[Whole]()
    for axis, length in _chunks(tile, most):
        try:
            passes = passes_over(tile, axis)
            tiles = max((len(op.operands) for op in passes.ops if passes.scanned(op)), default=1)
            found.append((passes, max(length >> (tiles - 1).bit_length(), 1)))
        except Whole as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0] if reasons else Whole("they have no long dimension")
    return min(found, key=lambda each: len(each[0].loops))


def _chunks(tile: SSAValue, most: int) -> Iterator[tuple[int, int]]:
    """Yield the dimensions along which a tile can be computed in chunks, the longest first, and a chunk's length."""
    shape, size = shape_of(tile.type), _elements(tile)
    for axis in sorted(range(len(shape)), key=lambda axis: -shape[axis]):
        others = size // shape[axis]
        length = 1 << max(most // others, 1).bit_length() - 1
        if length < shape[axis]:
            yield axis, length
