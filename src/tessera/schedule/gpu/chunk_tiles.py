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

from collections.abc import Iterator
from math import gcd, prod
from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.chunking import Aligned, compute_in_chunks
from tessera.ir.extremes import lacks_neutral
from tessera.ir.inserter import Inserter
from tessera.ir.live_tiles import live_registers
from tessera.ir.long_tiles import ACCESSES, SCANS, STORES, Passes, Whole, passes_over
from tessera.ir.merged_reductions import split_merged_reduction
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp
from tessera.ir.tile.structure import GridOp, KernelOp, MisalignmentOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.simt.placement import ACCESS_BYTES
from tessera.schedule.scheduled_pass import GridPass

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
        if most == 0 or any(isinstance(op, MmaOp) for op in ops_in(grid)):
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
        moved_bytes(kernel, op) >= max(VECTOR_BYTES, 2 * _element_bytes(op))
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
    """Return where chunks of rows begin that may begin at any element; None where that is of no use.

    They begin where what is loaded first is aligned. Rows of one width lie alike in all tensors that hold nothing else:
    the launch looks whether others are aligned there too, loads words that it shifts into place where they are not, and
    stores single elements.

    The head and the tail reach out of the tiles. Only where whole dimensions are loaded and stored are there no
    elements around them, which other programs may own.
    """
    if not all(_is_whole(op, passes) for op in passes.ops if isinstance(op, ACCESSES)):
        return None
    boxes = [op for op in passes.ops if isinstance(op, LoadOp | StoreOp) and _is_row(kernel, op, passes.size)]
    if any(passes.scanned(op) or (passes.reduced(op) and lacks_neutral(op)) for op in passes.ops):
        return None
    rows = [op for op in boxes if any(constant_value(offset) is None for offset in op.offsets)]
    apart = [op for op in rows if moved_bytes(kernel, op) < ACCESS_BYTES]
    begin = passes.ops[0]
    leading = [
        op for op in apart if all(_is_there(each, begin) or constant_value(each) is not None for each in op.offsets)
    ]
    if 2 * len(apart) <= len(rows) or not leading:
        return None
    first = min(leading, key=lambda op: (_element_bytes(op), isinstance(op, StoreOp)))
    step = ACCESS_BYTES // _element_bytes(first)
    if passes.size < 2 * step or length < step:  # chunks are whole numbers of accesses
        return None
    insert = Inserter(InsertPoint.before(begin), first)
    offsets = [
        each if _is_there(each, begin) else insert.constant(int(constant_value(each) or 0)) for each in first.offsets
    ]
    behind = insert.value(MisalignmentOp(first.tensor, offsets))
    known = dict[Operation, int]()
    for op in boxes:
        known[op] = 1 if op.tensor is first.tensor and list(op.offsets) == list(first.offsets) else decisions.LOOKED_AT
    return Aligned(behind, step, known, again=not _is_in_place(passes))


def _is_whole(op: Operation, passes: Passes) -> bool:
    """Return whether an access is of a box with all of its tensor's elements along the long dimension."""
    if not isinstance(op, LoadOp | StoreOp):
        return False
    axis = op.kept[passes.axes[op.result if isinstance(op, LoadOp) else op.value]]
    return op.tensor.type.shape[axis] == passes.size and constant_value(op.offsets[axis]) == 0


def _is_there(value: SSAValue, op: Operation) -> bool:
    """Return whether a value that an op's block sees has been computed before the op."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.parent is not op.parent or owner.is_before_in_block(op)


def _is_in_place(passes: Passes) -> bool:
    """Return whether an element may be computed from what was stored, so that it is not the same the next time."""
    accesses = [op for op in passes.ops if isinstance(op, ACCESSES)]
    stored = {memory_of(op.tensor) for op in accesses if isinstance(op, STORES)}
    loaded = {memory_of(op.tensor) for op in accesses if not isinstance(op, STORES)}
    return bool(stored & loaded) or any(isinstance(op, ScatterOp) for op in accesses)


def _element_bytes(op: LoadOp | StoreOp) -> int:
    return dtype_of(element_of(op.tensor.type)).bytes


def _is_row(kernel: KernelOp, op: LoadOp | StoreOp, size: int) -> bool:
    """Return whether a box is one row of its tensor, of elements that words hold, and moved as a whole."""
    if prod(op.size_list) != size:
        return False
    strides = kernel.info_of(op.tensor).strides
    along = (axis for axis in op.kept if op.tensor.type.shape[axis] == size and constant_value(op.offsets[axis]) == 0)
    return op.mask is None and _element_bytes(op) <= WORD_BYTES and any(strides[axis] == 1 for axis in along)


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
