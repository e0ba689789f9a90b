"""Chooses warps per program, how products spread over them, and the raster order of the grid.

Rules: a matrix kernel gets one warp per 4096 accumulator elements (128 registers a thread), so that a warp's tile
is as near to 64x64 as can be; others one warp per 1024 elements of the largest tile (32 a thread, 64 bytes of bf16
in flight: measured best for several short rows), and one per 4 KB of a long row that is reduced, as fewer warps have
less to combine (bf16 rows of 2000 to 12000 on an H200: softmax 0.77 to 1.01 of a copy's rate, argmax 0.53 to 0.87).
What a loop loads in one round counts together: sums of two arrays by one warp per 4 KB of each took all registers.
The columns of few rows take a warp per 4 KB, so that threads reduce them without others, those of more rows one per
2048 elements, or 8 KB of all that is loaded: fewer warps meet at the end, which pays where loops are short (32 rows of
bf16 on an H200: 0.50 to 0.9 of a copy's rate; twice as many elements a warp: 0.97, but 0.69 for 0.74 of 20000 rows).
Where rows are reduced or a product feeds another, warps split rows only,
so that neither crosses warps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.live_tiles import live_registers
from tessera.ir.tile.elementwise import (
    ArangeOp,
    BitcastOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    SplatOp,
    constant_value,
)
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import REDUCING, ReduceOp, ScanByOp, ScanOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.shared import AllocSharedOp, CpAsyncOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.functions import record_of
from tessera.schedule.gpu import chunk_tiles, gathers
from tessera.schedule.gpu.instructions import by_threads
from tessera.schedule.knobs import KNOBS, Knobs
from tessera.schedule.products import SUMS_PER_WARP
from tessera.schedule.scheduled_pass import ScheduledPass, launches
from tessera.target import gpu_rates
from tessera.target.records import TargetRecord

ELEMENTS_PER_WARP = 1024
VECTOR_BYTES = 16
"""That a thread of a program without reductions loads or stores at a time. With more of each tile in fewer threads such
programs are 1 to 4 % slower (exponentials, sums with a row on an H200, f32 and bf16)."""
ROW_BYTES_PER_WARP = 4096
COLUMN_BYTES_PER_WARP = 8192
MOST_ELEMENTS_PER_WARP = 2048
"""Of rows of bytes: 64 registers a thread hold them as f32."""
DEAR_COST, DEAR_ELEMENTS_PER_WARP = 20, 512
"""Instructions of functions for an element from which on rows that are only reduced have more warps, and what a warp
has of them (a sum of focal losses, 4096 elements of bf16 a program on an H200: 46 microseconds, and 53 by two warps,
whose code is four times as long: 0.3 seconds to compile, and 2.1)."""
GATHERED_ELEMENTS_PER_WARP, OF_MANY_GATHERS = 256, 8
"""Of programs with so many gathers at most, whose code is as long as a thread has elements; those with more have half.

Images enlarged by 4 gathers took 100 microseconds on an H200, and 126 with half as many elements; by 16: 368 and 324.
"""
STRIDED_ACCESSES = 32
"""Of a thread to elements that are no neighbours in memory, each an instruction, where a program computes each element
on its own: pools of volumes by 2 x 2 x 2 took 14.2 microseconds on an H200 with 16 elements a thread, and 9.7 with 4;
sines of places, with two loads and two stores of an element, 56 with 16 elements a thread, 49 with 8, and 61 with 4."""
MOST_WARPS = 16
BUSY_THREADS = 1024
"""Of a multiprocessor, each with 64 registers: with their loads under way memory is busy."""
BUSY_LIVE = 80
"""Most registers of a thread that tiles take, as `live_tiles` counts them, for 64 to hold all."""
_POINT_TO_POINT = (
    ArangeOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConstantOp,
    DimOp,
    ElementwiseOp,
    LoadOp,
    ReshapeOp,
    SplatOp,
    StoreOp,
)
"""What programs are made of that compute each element of neighbours in memory on its own."""
_REDUCING_LOOPS = (
    scf.ForOp,
    scf.YieldOp,
    ArangeOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    ReduceOp,
    ReshapeOp,
    SplatOp,
)
"""What loops that reduce are made of, beside loads."""
MOST_LIVE = 200
"""Registers of a thread that tiles take, as `live_tiles` counts them, without any in memory (gradients of LayerNorm of
rows of 8192 with the sums for weights and bias on an H200: 0.47 of a copy's rate with 288, 0.71 with 144 and 72)."""
HELD_LEAST, HELD_MOST = 24, 112
"""Registers of a thread that hold parts of rows, where the assembler is told how many programs are to run at once."""
BESIDE_ROWS = 16
REGISTERS_TOGETHER = 8
"""Registers that a thread needs beside them, and that are given out at once."""
MANY_CARRIED = 3
"""Tiles that a loop carries, from which on they take 64 registers of a thread at most."""
ROWS_PER_WARP = 16
FEW_ROWS = 8
LEAST_COLUMNS = 256
"""Rows of tiles that one warp or more take, of which each thread has a part of all."""


FEW_PROGRAMS = 8
"""Programs of a launch that leave a GPU idle whatever they do."""


@dataclass(frozen=True)
class ChooseWarpsPass(ScheduledPass):
    """Writes `tessera_schedule.num_warps`, `.rows_only` and `.group` on grids and products.

    Args:
        target: the GPU.
        knobs: `num_warps` and `group_m` force the choice.
    """

    name: ClassVar[str] = "choose-warps"

    def apply(self, module: ModuleOp) -> None:
        """Annotate every kernel of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for unit in launches(kernel):
                _schedule_launch(kernel, unit, self.target, self.knobs)


def _schedule_launch(kernel: KernelOp, unit: Operation, target: TargetRecord, knobs: Knobs) -> None:
    ops = [op for op in ops_in(unit) if op is not unit]
    products = [op for op in ops if isinstance(op, MmaOp)]
    rows_only = any(_feeds_rows(op.result, set()) for op in products)
    chosen = decisions.NUM_WARPS.of(unit)  # by warp-specialize
    shared = decisions.SPLIT_SUMS.on(unit)
    warps = chosen or knobs.num_warps or _warps(kernel, ops, products, rows_only, shared, target)
    if not products and not (chosen or knobs.num_warps):
        warps = _with_room(unit, max(warps, _alone(unit, ops, target)), target)
    decisions.NUM_WARPS.write(unit, warps)
    for op in products:
        decisions.ROWS_ONLY.write(op, int(rows_only))
    if products and isinstance(unit, GridOp) and len(unit.block_sizes) == 2:
        decisions.GROUP.write(unit, knobs.group_m or int(KNOBS["group_m"].default))
    if isinstance(unit, GridOp) and (resident := _resident(unit, products, warps, target)) > 1:
        decisions.RESIDENT.write(unit, resident)


def _resident(grid: GridOp, products: list[MmaOp], warps: int, target: TargetRecord) -> int:
    """Return how many programs of a launch are to run at once, 1 where that is the assembler's to decide.

    Of programs whose loops only reduce what they load as many as have `BUSY_THREADS`: the assembler would give their
    threads 70 to 100 registers, and too few then wait for memory (sums of 67 rows of bf16 on an H200: 0.74 of a copy's
    rate, and 0.82).
    """
    if products:
        return _resident_products(grid, products, warps, target)
    if _only_reduces(grid) and live_registers(grid.body.block) <= BUSY_LIVE * target.warp_size * warps:
        return BUSY_THREADS // (target.warp_size * warps)
    return _resident_rows(grid, warps, target)


def _resident_products(grid: GridOp, products: list[MmaOp], warps: int, target: TargetRecord) -> int:
    """Return how many programs run at once that do nothing but add products by multiply-adds.

    Copies of many steps ahead, and addresses of rows that begin anywhere, take registers, of which the assembler would
    give threads more than leave room for as many programs as plans count on (f32 tiles of 128x32 on an H200: more than
    168 a thread, so that two programs of four warps run at once where three were meant to).
    """
    loop = products[0].parent_op()  # of a tile in parts as well, whose sides are no powers of two
    if not isinstance(loop, scf.ForOp) or any(op.acc not in loop.body.block.args for op in products):
        return 1
    copied = any(isinstance(op, CpAsyncOp) for op in ops_in(grid))
    if not copied or not target.has("cp_async") or not all(by_threads(target, op) for op in products):
        return 1
    held = sum(prod(shape_of(op.acc.type)) * dtype_of(element_of(op.acc.type)).bytes / 4 for op in products)
    threads = target.warp_size * warps
    sums = max(held, live_registers(grid.body.block)) / threads
    buffers = [op.result.type for op in ops_in(grid) if isinstance(op, AllocSharedOp)]
    bytes_ = sum(prod(type_.shape) * type_.dtype.bytes for type_ in buffers) + gpu_rates.OF_A_PROGRAM_BYTES
    return int(min(gpu_rates.resident(sums, warps), target.shared_bytes / bytes_))


def _only_reduces(grid: GridOp) -> bool:
    """Return whether a launch has loops, which load and reduce and do nothing else."""
    loops = [op for op in ops_in(grid) if isinstance(op, scf.ForOp)]
    inner = {type(op) for loop in loops for op in ops_in(loop) if op is not loop}
    return LoadOp in inner and inner <= {LoadOp, *_REDUCING_LOOPS}


def _resident_rows(grid: GridOp, warps: int, target: TargetRecord) -> int:
    """Return how many programs of a launch run at once whose threads hold parts of rows that they reduce.

    The assembler would compute all of a row's functions before it adds up the first two, in as many registers again:
    one program of rows of 16384 then waits for memory alone (log_softmax on an H200: 0.60 of a copy's rate).
    """
    held = live_registers(grid.body.block) / (target.warp_size * warps)
    ops = list(ops_in(grid))
    reducing = [op for op in ops if isinstance(op, REDUCING)]
    if not HELD_LEAST <= held <= HELD_MOST or not reducing or not all(isinstance(op, ReduceOp) for op in reducing):
        return 1
    loops = [op for op in ops if isinstance(op, scf.ForOp)]
    # A loop that loads a round ahead takes registers that are not known yet, and one that only adds up has enough.
    if any(map(_reduces_in, loops)) or (loops and not any(map(chunk_tiles.is_dear, ops))):
        return 1
    registers = -(-(held + BESIDE_ROWS) // REGISTERS_TOGETHER) * REGISTERS_TOGETHER
    return int(gpu_rates.REGISTERS // registers // warps)


def _reduces_in(loop: Operation) -> bool:
    """Return whether a loop reduces tiles."""
    return any(isinstance(op, REDUCING) for op in ops_in(loop))


def _alone(unit: Operation, ops: Sequence[Operation], target: TargetRecord) -> int:
    """Return the warps of programs that are few enough to wait for memory alone: as many as threads have an access.

    The sum of a function of 4096 elements takes 6.8 microseconds by 2 warps on an H200, and 5.2 by 16.
    """
    if not isinstance(unit, GridOp):
        return 1
    counts = [constant_value(extent) for extent in unit.extents]
    programs = prod(-(-int(count) // size) for count, size in zip(counts, unit.block_sizes, strict=True) if count)
    if None in counts or programs > FEW_PROGRAMS:
        return 1
    loaded = max((op.element_bytes * _elements(op.result.type) for op in ops if isinstance(op, LoadOp)), default=0)
    return _power_of_two(loaded / (target.warp_size * VECTOR_BYTES), 1, MOST_WARPS)


def _with_room(unit: Operation, warps: int, target: TargetRecord) -> int:
    """Return at least so many warps, and as many more as it takes for tiles to stay in registers."""
    live = live_registers(unit.body.block) if isinstance(unit, GridOp) else 0.0
    while live > MOST_LIVE * target.warp_size * warps and warps < MOST_WARPS:
        warps *= 2
    return warps


def _elements(type_: object) -> int:
    return prod(type_.shape) if isinstance(type_, TileType) else 0


def _power_of_two(value: float, low: int, high: int) -> int:
    power = 1
    while power < value:
        power *= 2
    return max(low, min(power, high))


def _warps(
    kernel: KernelOp,
    ops: Sequence[Operation],
    products: list[MmaOp],
    rows_only: bool,
    shared: bool,
    target: TargetRecord,
) -> int:
    most = target.max_threads // target.warp_size
    if products:
        total = sum(_elements(op.acc.type) for op in products)
        # What others leave of a shared tile comes by registers, beside the sums.
        full = not shared and not all(by_threads(target, op) for op in products)
        each = SUMS_PER_WARP if full else SUMS_PER_WARP // 2
        wanted = _power_of_two(total / each, 4, min(8, most))
        rows = min(op.acc.type.shape[0] for op in products if isinstance(op.acc.type, TileType))
        return min(wanted, max(1, _power_of_two(rows / ROWS_PER_WARP, 1, most))) if rows_only else wanted
    largest = max((_elements(result.type) for op in ops for result in op.results), default=1)
    reduces = any(isinstance(op, REDUCING) for op in ops)
    each = _of_reductions(ops, largest) if reduces else ELEMENTS_PER_WARP
    if all(isinstance(op, _POINT_TO_POINT) for op in ops):
        if bytes_ := _neighbours(kernel, ops):
            each = min(each, target.warp_size * VECTOR_BYTES // bytes_)
        if strided := _strided(kernel, ops):
            each = min(each, target.warp_size * _power_of_two(STRIDED_ACCESSES // strided, 2, each))
    if (together := gathers.most_together(ops, largest)) >= gathers.MANY:
        each = min(each, GATHERED_ELEMENTS_PER_WARP // (1 if together <= OF_MANY_GATHERS else 2))
    if reduces and (carried := _carried(ops, largest)) >= MANY_CARRIED:
        each = min(each, MOST_ELEMENTS_PER_WARP // carried)
    # Two programs of fewer warps would evict each other's rows, which are read again, from the L1 cache (LayerNorm of
    # 75890 in bf16 on an H100: 0.51 to 0.69 of a copy's rate).
    if largest >= chunk_tiles.ELEMENTS and any(map(_stores_chunks, ops)):
        each = ELEMENTS_PER_WARP
    # More programs of fewer warps run at a time (sums of rows of 12000 in f32: 0.77 to 0.97).
    if largest == chunk_tiles.SCANNED_ELEMENTS and any(map(_scans_row, ops)):
        each = MOST_ELEMENTS_PER_WARP
    return _power_of_two(largest / each, 4 if not reduces else 1, min(MOST_WARPS, most))


def _of_reductions(ops: Sequence[Operation], elements: int) -> int:
    """Return how many elements a warp takes of a program that reduces its largest tiles."""
    if _reduces_dear_rows(ops, elements):
        return DEAR_ELEMENTS_PER_WARP
    return max(ELEMENTS_PER_WARP, _of_rows(ops, elements), _of_columns(ops, elements))


def _reduces_dear_rows(ops: Sequence[Operation], elements: int) -> bool:
    """Return whether functions of each element of rows take long that a program reduces at once, and does not store."""
    if not _loaded_rows(ops, elements) or any(isinstance(op, scf.ForOp) for op in ops):
        return False
    if any(isinstance(op, StoreOp) and _elements(op.value.type) == elements for op in ops):
        return False
    together = Counter[Block | None]()  # of branches one runs
    for op in ops:
        if isinstance(op, ElementwiseOp) and chunk_tiles.is_dear(op) and _elements(op.result.type) == elements:
            together[op.parent_block()] += record_of(op.fn.data).cost
    return max(together.values(), default=0) >= DEAR_COST


def _loaded_rows(ops: Iterable[Operation], elements: int) -> list[TileType]:
    """Return the types of the rows among the largest tiles that are loaded."""
    loaded = [op.result.type for op in ops if isinstance(op, LoadOp) and _elements(op.result.type) == elements]
    return [type_ for type_ in loaded if isinstance(type_, TileType) and max(type_.shape) == elements]


def _neighbours(kernel: KernelOp, ops: Iterable[Operation]) -> int:
    """Return the bytes of the widest elements that are loaded or stored, 0 where rows are no neighbours in memory.

    Nor where sizes are no powers of two: what lies outside is left out of fewer threads, and not of some of many.
    """
    moves = [op for op in ops if isinstance(op, LoadOp | StoreOp) and op.kept]
    if any(kernel.info_of(op.tensor).strides[op.kept[-1]] != 1 for op in moves):
        return 0
    if any(size.data & (size.data - 1) for op in moves for size in op.sizes):
        return 0
    return max((op.element_bytes for op in moves), default=0)


def _strided(kernel: KernelOp, ops: Iterable[Operation]) -> int:
    """Return how many loads and stores of a program have no dimension whose elements are neighbours in memory."""
    moves = [op for op in ops if isinstance(op, LoadOp | StoreOp) and op.kept]
    return sum(all(kernel.info_of(op.tensor).strides[at] != 1 for at in op.kept) for op in moves)


def _stores_chunks(op: Operation) -> bool:
    """Return whether an op stores a part of a longer row in each round of a loop."""
    return isinstance(op, StoreOp) and isinstance(op.parent_op(), scf.ForOp)


def _scans_row(op: Operation) -> bool:
    """Return whether an op scans a long chunk of one row, of at most 4 bytes an element."""
    if not isinstance(op, ScanOp | ScanByOp):
        return False
    return all(
        max(shape_of(part.type)) == chunk_tiles.SCANNED_ELEMENTS == _elements(part.type)
        and dtype_of(element_of(part.type)).bytes <= 4
        for part in op.operands
    )


def _of_rows(ops: Iterable[Operation], elements: int) -> int:
    """Return how many elements of a row a warp takes where a program reduces a single one, else 0.

    Args:
        ops: of the program.
        elements: of its largest tile.
    """
    rows = _loaded_rows(ops, elements)
    if not rows:
        return 0
    carried = MOST_ELEMENTS_PER_WARP // _carried(ops, elements)
    most = min(ROW_BYTES_PER_WARP // type_.dtype.bytes for type_ in rows)
    return min(carried, most, ROW_BYTES_PER_WARP // _loaded_a_round(ops, elements))


def _carried(ops: Iterable[Operation], elements: int) -> int:
    """Return how many of the largest tiles a loop carries, which take registers beside what it loads; 1 for none.

    Loops that reduce tiles do not count: their warps wait for one another in every round.
    """
    loops = [op for op in ops if isinstance(op, scf.ForOp) and not _reduces_in(op)]
    return max((sum(_elements(one.type) == elements for one in op.iter_args) for op in loops), default=0) or 1


def _loaded_a_round(ops: Iterable[Operation], elements: int) -> int:
    """Return the bytes that a round of a loop loads for each element of the largest tiles, 1 without such a loop."""
    together = Counter[Block | None]()
    for op in ops:
        if isinstance(op, LoadOp) and _elements(op.result.type) == elements and isinstance(op.parent_op(), scf.ForOp):
            together[op.parent_block()] += dtype_of(element_of(op.result.type)).bytes
    return max(together.values(), default=1)


def _of_columns(ops: Iterable[Operation], elements: int) -> int:
    """Return how many elements a warp takes where a program reduces columns, else 0.

    Args:
        ops: of the program.
        elements: of its largest tile.
    """
    loads = [op for op in ops if isinstance(op, LoadOp) and _elements(op.result.type) == elements]
    loaded = [op.result.type for op in loads if isinstance(op.result.type, TileType)]
    wide = [type_ for type_ in loaded if are_few_rows(type_.shape)]
    along = [op.axis.data + 1 < len(shape_of(op.source.type)) for op in ops if isinstance(op, ReduceOp)]
    if not any(along):
        return 0
    if wide:
        return min(MOST_ELEMENTS_PER_WARP, *(ROW_BYTES_PER_WARP // type_.dtype.bytes for type_ in wide))
    if not all(along) or any(isinstance(op, StoreOp) and _elements(op.value.type) == elements for op in ops):
        return 0  # rows are reduced too, or a thread keeps what it has loaded
    together = Counter[Block | None]()  # a branch or loop for whole boxes repeats the loads of another one
    for op in loads:
        together[op.parent_block()] += dtype_of(element_of(op.result.type)).bytes
    return min(COLUMN_BYTES_PER_WARP // max(together.values(), default=1), MOST_ELEMENTS_PER_WARP)


def are_few_rows(shape: Sequence[int]) -> bool:
    """Return whether a tile has rows so few and long that a thread can hold a part of each."""
    return len(shape) > 1 and shape[-1] >= LEAST_COLUMNS and 1 < prod(shape[:-1]) <= FEW_ROWS


def _feeds_rows(value: SSAValue, seen: set[SSAValue]) -> bool:
    """Return whether a product's result is, after arithmetic, reduced along rows or the left operand of a product."""
    if value in seen:
        return False
    seen.add(value)
    for use in value.uses:
        op = use.operation
        if isinstance(op, ReduceOp) and op.axis.data == 1:
            return True
        if isinstance(op, MmaOp) and use.index == 0:
            return True
        if isinstance(op, ElementwiseOp | CastOp) and _feeds_rows(op.result, seen):
            return True
    return False
