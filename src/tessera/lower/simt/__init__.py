"""Lowers TIR-H to TIR-T for GPUs: tiles become fragments spread over the threads of a block."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir import decisions
from tessera.ir.target.arithmetic import ElementwiseOp, constant_value
from tessera.ir.target.structure import ProgramCountOp, ProgramIdOp, ReturnOp
from tessera.ir.tile.elementwise import CastOp
from tessera.ir.tile.flat import GatherAtOp, LoadFlatOp, StoreFlatOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.stream import ShareOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, TileType, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.ir.walking import ops_in
from tessera.lower.bounds import Bounds
from tessera.lower.boxes import access_elements
from tessera.lower.facts import divisor, nearest
from tessera.lower.launch import LaunchPlan, Parameters, new_function, plan_launches
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.flat import flat_vector
from tessera.lower.simt.neighbours import Known, neighbours_of
from tessera.lower.simt.order import mark_tile_loop, order_accesses
from tessera.lower.simt.placement import (
    ACCESS_BYTES,
    COMBINED_SEGMENT,
    SEGMENT,
    Placements,
    padded_shape,
    place_block,
)
from tessera.lower.simt.prefer import prefer_consumers
from tessera.lower.simt.rules import lowers
from tessera.lower.simt.stream import divide, share_out
from tessera.lower.simt.turns import take_back_turns
from tessera.numerics import dtypes
from tessera.target.records import TargetRecord

DEFAULT_WARPS = 4

TileRun = Callable[[Sequence[SSAValue]], list[SSAValue]]
"""Lowers the ops of one tile, from a state to the next."""


@cache
def _load_rules() -> None:
    """Import every file of this folder, so that their rules are registered."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")


LONG = 16384
"""Elements of the shortest tile of which groups of neighbours are reduced in a thread, however they are loaded."""
LEAST_SHARING = 4
"""Programs at least that share what tiles of other dimensions have in the L2 cache: causal attention over 16384
positions has 0.93 of cuDNN's speed on an H200 where 2 share a head (64 heads), and 1.10 where 8 do (16 heads)."""
MOST_GROUPED = 8
"""Neighbours of such a group at most."""


def lower_to_simt(module: ModuleOp, target: TargetRecord) -> ModuleOp:
    """Return the TIR-T of a scheduled TIR-H module: one function per grid.

    Args:
        module: holds one kernel.
        target: a GPU.

    Raises:
        LanguageError: the kernel does what a GPU launch cannot (`grid-extent`, `statement-outside-grid`).
    """
    _load_rules()
    kernel = next((op for op in module.ops if isinstance(op, KernelOp)), None)
    if kernel is None:
        raise CompilerFault("the module holds no kernel", code="invalid-ir")
    return ModuleOp([_lower_launch(kernel, plan, target) for plan in plan_launches(kernel)])


def _lower_launch(kernel: KernelOp, plan: LaunchPlan, target: TargetRecord) -> Operation:
    num_warps = decisions.NUM_WARPS.of(plan.grid or kernel) or DEFAULT_WARPS
    func = new_function(kernel, plan, num_warps)
    params = Parameters(kernel, func)
    placements = Placements(target, num_warps, *_moved(plan, params), _reduced(plan))
    place_block(placements, plan.body)
    prefer_consumers(placements, plan.body)
    context = SimtContext(target, params, placements)
    for arg, value in enumerate(kernel.body.block.args):
        if not isinstance(value.type, TensorType) and value.uses.get_length():
            context.define(value, params.scalar(arg))
    context.asynchronous_reads = any(decisions.WARPGROUP.on(op) for top in plan.body for op in ops_in(top))
    if not any(isinstance(op, RolesOp) for op in plan.body) or _loads_for_roles(plan):
        context.wait_for_launch()  # else roles wait once their barriers are set up
    context.lower_block(plan.prologue)
    if plan.grid is not None and decisions.PERSISTENT.on(plan.grid):
        _persistent(context, plan.grid, plan.body)
    else:
        if plan.grid is not None:
            context.location = plan.grid.location
            cluster = decisions.CLUSTER.of(plan.grid) or 1
            program = context.scalars.binary("floordiv", context.value(ProgramIdOp()), cluster)
            if (most := decisions.SPLIT_SUMS.of(plan.grid)) is not None:
                program = divide(context, plan.grid, most)
            _decompose(context, plan.grid, program)
        context.lower_block(plan.body)
    context.emit(ReturnOp())
    order_accesses(func, params.memory)
    take_back_turns(func)
    return func


def _loads_for_roles(plan: LaunchPlan) -> bool:
    """Return whether something is loaded before roles part: in a persistent launch each role does it for its tiles."""
    persistent = plan.grid is not None and decisions.PERSISTENT.on(plan.grid)
    return not persistent and any(isinstance(op, LoadOp) for op in plan.body)


def _persistent(context: SimtContext, grid: GridOp, body: list[Operation]) -> None:
    """Lower a grid whose programs take many tiles: what depends on the tile goes into a loop in each role.

    With P programs, program p takes tile r * P + p in round r; several consumer groups take the rounds in turn. Where
    tiles differ in length, the order of the programs is reversed after each round, so that no program always takes the
    longer ones; where the later ones are longer, tiles are taken from the last to the first, so that short ones fill up
    the last round. Where they differ along one dimension, those of a round are of the same place along it.
    """
    context.location = grid.location
    inner = _inner(grid, body)
    walk = _Walk.of(context, grid, inner)
    share = next((op for op in inner if isinstance(op, ShareOp)), None)
    if share is not None:
        share_out(context, grid, share, walk.stride, walk.count, walk.one_tile)
    else:
        context.tiles = walk.there_and_back if decisions.UNEVEN.on(grid) else walk.one_way
    context.lower_block([op for op in body if op not in inner])


@dataclass(frozen=True, slots=True)
class _Walk:
    """What a program of a persistent launch goes through.

    Args:
        context: the lowering.
        grid: the launch.
        inner: the ops that depend on the tile.
        first: the first tile of the program.
        stride: tiles of a round.
        count: all tiles.
    """

    context: SimtContext
    grid: GridOp
    inner: list[Operation]
    first: SSAValue
    stride: SSAValue
    count: SSAValue

    @classmethod
    def of(cls, context: SimtContext, grid: GridOp, inner: list[Operation]) -> _Walk:
        """Compute where a program begins."""
        cluster = decisions.CLUSTER.of(grid) or 1
        first = context.scalars.binary("floordiv", context.value(ProgramIdOp()), cluster)
        stride = context.scalars.binary("floordiv", context.value(ProgramCountOp()), cluster)
        count = context.scalars.constant(1)
        for extent, block in zip(grid.extents, grid.block_sizes, strict=True):
            count = context.scalars.mul(count, context.scalars.ceildiv(context.scalar(extent), block))
        return cls(context, grid, inner, first, stride, count)

    def one_tile(self, number: SSAValue, run: TileRun, state: Sequence[SSAValue]) -> None:
        """Write what is done of one tile, at the end of a block."""
        self.context.location = self.grid.location
        _decompose(self.context, self.grid, number, self.stride)
        self.context.lower_block(self.inner)
        self.context.emit(scf.YieldOp(*run(state)))

    def one_way(self, run: TileRun, state: Sequence[SSAValue]) -> None:
        """Write the loop over tiles for one role: in each round the same place of it."""
        context, start, step = self.context, self.first, self.stride
        loop = Block(arg_types=[index, *(value.type for value in state)])
        if context.group is not None and context.in_turn:
            start = context.scalars.binary("add", start, context.scalars.mul(context.group, step))
            step = context.scalars.mul(step, context.groups)
        with context.into(loop):
            self.one_tile(loop.args[0], run, loop.args[1:])
        mark_tile_loop(context.emit(scf.ForOp(start, self.count, step, list(state), Region(loop))))

    def there_and_back(self, run: TileRun, state: Sequence[SSAValue]) -> None:
        """Write the loop over tiles for one role: in every other round its place counts from the end."""
        context, stride = self.context, self.stride
        zero, last = context.scalars.constant(0), context.scalars.binary("sub", stride, 1)
        types = [value.type for value in state]
        loop, then = Block(arg_types=[index, *types, index]), Block()
        with context.into(loop):
            before, place = loop.args[1:-1], loop.args[-1]
            number = context.scalars.binary("add", loop.args[0], place)
            exists = context.value(ElementwiseOp("lt", [number, self.count]))
            with context.into(then):
                if decisions.UNEVEN.of(self.grid) == decisions.LAST_FIRST:
                    number = context.scalars.binary("sub", context.scalars.binary("sub", self.count, 1), number)
                self.one_tile(number, run, before)
            regions = (Region(then), Region(Block([scf.YieldOp(*before)])))
            branch = context.emit(scf.IfOp(exists, types, *regions))
            context.emit(scf.YieldOp(*branch.results, context.scalars.binary("sub", last, place)))
        mark_tile_loop(context.emit(scf.ForOp(zero, self.count, stride, [*state, self.first], Region(loop))))


def _inner(grid: GridOp, body: list[Operation]) -> list[Operation]:
    """Return the ops that depend on the tile, and what is loaded: the launch before has to have ended."""
    moving: set[SSAValue] = set(grid.body.block.args)
    inner: list[Operation] = []
    for op in body:
        if isinstance(op, ShareOp | LoadOp) or (
            not isinstance(op, RolesOp) and any(operand in moving for operand in op.operands)
        ):
            moving.update(op.results)
            inner.append(op)
    return inner


def _moved(plan: LaunchPlan, params: Parameters) -> tuple[dict[tuple[int, ...], int], dict[tuple[int, ...], int]]:
    """Return, for each shape of tiles in global memory, bytes of the narrowest element and elements of an access."""
    narrowest = dict[tuple[int, ...], int]()
    accesses = dict[tuple[int, ...], dict[int, list[Moved]]]()
    known = Known(params, Bounds(params.kernel), partial(divisor, {}, params.kernel))
    for top in plan.body:
        for op in ops_in(top):
            if isinstance(op, GatherAtOp):  # lanes follow one another along the first axis, threads hold the last one
                shape, bytes_ = padded_shape(shape_of(op.result.type)), dtype_of(element_of(op.result.type)).bytes
                narrowest[shape] = min(narrowest.get(shape, 16), bytes_)
                accesses.setdefault(shape, {}).setdefault(len(shape) - 1, []).append(Moved(shape[-1], bytes_, False))
            if isinstance(op, LoadOp | StoreOp | GatherOp | ScatterOp | LoadFlatOp | StoreFlatOp):
                tile = op.result if isinstance(op, LoadOp | GatherOp | LoadFlatOp) else op.value
                if isinstance(tile.type, TileType):
                    shape = padded_shape(tile.type.shape)
                    element_bytes = dtype_of(element_of(tile.type)).bytes
                    narrowest[shape] = min(narrowest.get(shape, 16), element_bytes)
                    found = _moved_at_once(known, op, shape)
                    if found is not None:
                        axis, at_once = found
                        moved = Moved(at_once, element_bytes, isinstance(op, StoreOp | StoreFlatOp | ScatterOp))
                        accesses.setdefault(shape, {}).setdefault(axis, []).append(moved)
    vectors, grouped = dict[tuple[int, ...], int](), _reduced_together(plan)
    for shape in narrowest:
        along = accesses.get(shape, {}).values()
        vectors[shape] = max(map(_best_vector, along), default=1)
        if not any(moved.stored for each in along for moved in each):
            vectors[shape] = max(vectors[shape], grouped.get(prod(shape), 1))
    return narrowest, vectors


def _reduced_together(plan: LaunchPlan) -> dict[int, int]:
    """Return, for sizes of long tiles of which few neighbours each are reduced, how many these are.

    A thread has them then: between lanes each of its many elements would be exchanged.
    """
    found = dict[int, int]()
    for top in plan.body:
        for op in ops_in(top):
            if isinstance(op, ReduceOp):
                shape = padded_shape(shape_of(op.source.type))
                if op.axis.data == len(shape) - 1 and shape[-1] <= MOST_GROUPED and prod(shape) >= LONG:
                    found[prod(shape)] = max(found.get(prod(shape), 1), shape[-1])
    return found


@dataclass(frozen=True, slots=True)
class Moved:
    """How an access could move a tile.

    Args:
        at_once: elements that it moves at once at most.
        bytes: of an element.
        stored: whether it is a store.
    """

    at_once: int
    bytes: int
    stored: bool


def _best_vector(accesses: Sequence[Moved]) -> int:
    """Return how many neighbours a thread has of a tile: as many as the widest access moves, if stores move 16 bytes.

    A store of fewer sends each sector to the L2 cache again for each part of a thread's neighbours: those of single
    elements of bf16 that lie 8 apart reach a fifth of the memory's rate. Loads find theirs in the L1 cache.
    """

    def cost(vector: int) -> float:
        total = 0.0
        for access in accesses:
            each = min(vector, access.at_once)
            apart = access.stored and each * access.bytes < ACCESS_BYTES
            total += (vector // each if apart else 1) / each
        return total

    return min(sorted({access.at_once for access in accesses}, reverse=True), key=cost)


def _moved_at_once(
    known: Known, op: LoadOp | StoreOp | GatherOp | ScatterOp | LoadFlatOp | StoreFlatOp, shape: tuple[int, ...]
) -> tuple[int, int] | None:
    """Return along which axis elements lie nearest, and how many are moved at once; None where they lie anywhere."""
    if isinstance(op, LoadFlatOp | StoreFlatOp):
        return 0, flat_vector(known.params, op, known.divisor(op.offset))[0]
    if isinstance(op, LoadOp | StoreOp):
        return nearest(known.params.kernel, op)[0], access_elements(known.params, op, known.divisor, shape)
    return neighbours_of(known, op)


LEAST_SHARED = 128
"""Elements of rows that share what was loaded up to which each has fewer lanes all the same: these load more of it, and
exchange less (LayerNorm of 6.4 million rows of 37 of bf16 on an H200: 0.44 of a copy's rate, and 0.62)."""


def _reduced(plan: LaunchPlan) -> dict[tuple[tuple[int, ...], int], int]:
    """Return the shapes of tiles that are reduced, each with the axis, unless their rows share what was loaded.

    With each are the bytes that the lanes of a row access together.
    """
    found, shared = dict[tuple[tuple[int, ...], int], int](), set[tuple[tuple[int, ...], int]]()
    stored = set[tuple[int, ...]]()
    for top in plan.body:
        for op in ops_in(top):
            if isinstance(op, ReduceOp | ReduceByOp):
                segment = COMBINED_SEGMENT if isinstance(op, ReduceByOp) else SEGMENT
                shapes = [(padded_shape(shape_of(source.type)), op.axis.data) for source in op.operands]
                found.update(dict.fromkeys((*shapes, *_in_parts(op)), segment))
            elif isinstance(op, StoreOp):
                stored.add(padded_shape(shape_of(op.value.type)))
            elif isinstance(op, BroadcastOp) and _is_loaded(op.source):
                shape = shape_of(op.result.type)
                kept = [
                    axis for axis, size in enumerate(shape_of(op.source.type)) if LEAST_SHARED < size == shape[axis]
                ]
                shared.update((padded_shape(shape), axis) for axis in kept)
    return {row: SEGMENT if row[0] in stored else segment for row, segment in found.items() if row not in shared}


def _in_parts(op: ReduceOp | ReduceByOp) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the shapes of tiles of which a reduction combines parts along a dimension that is not the last."""
    axis = op.axis.data
    for source in op.operands:
        shape, whole = shape_of(source.type), source.owner
        if isinstance(whole, ReshapeOp) and axis + 2 < len(shape):
            together = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            if shape_of(whole.source.type) == together:
                yield padded_shape(together), axis


def _is_loaded(value: SSAValue) -> bool:
    """Return whether a tile, maybe converted or reshaped, comes from memory."""
    while isinstance(value.owner, CastOp | ReshapeOp):
        value = value.owner.source
    return isinstance(value.owner, LoadOp | GatherOp)


@lowers(DimOp)
def _dim(context: SimtContext, op: DimOp) -> None:
    arg = context.params.position(op.tensor)
    known = context.params.known_size(arg, op.axis.data)
    context.define(
        op.result,
        context.scalars.constant(known) if known is not None else context.params.size(arg, op.axis.data),
    )


def _decompose(context: SimtContext, grid: GridOp, program: SSAValue, together: SSAValue | None = None) -> None:
    """Turn the number of a tile into the offset of its tile in each dimension.

    Where tiles take different numbers of steps along one dimension, it is walked outermost, unless that left fewer than
    `LEAST_SHARING` of the programs that run `together` for each place along the others: they share what these have in
    the L2 cache. Other grids of two dimensions are walked in groups of `tessera_schedule.group` rows of tiles, so that
    programs that run together share operands there; all others in row-major order. The arithmetic is 32-bit unsigned,
    as 64-bit division is slow on GPUs and a launch has fewer than 2^31 programs.
    """
    u32 = element_type(dtypes.u32)
    scalars = context.scalars
    number = scalars.cast(program, u32)
    counts = [
        scalars.cast(scalars.ceildiv(context.scalar(extent), block), u32)
        for extent, block in zip(grid.extents, grid.block_sizes, strict=True)
    ]
    group, axis = decisions.GROUP.of(grid) or 1, decisions.UNEVEN_AXIS.of(grid)
    if len(counts) == 2 and group > 1 and axis in (None, 0):
        places = _grouped(context, number, counts, group)
    else:
        places = _row_major(context, number, counts)
        if together is not None and axis is not None and len(counts) > 1:
            turned = _outermost(context, number, counts, axis)
            sharing = scalars.constant(LEAST_SHARING, u32)
            for count in (*counts[:axis], *counts[axis + 1 :]):
                sharing = scalars.binary("mul", sharing, count, u32)
            few = context.value(ElementwiseOp("le", [sharing, scalars.cast(together, u32)]))
            pairs = zip(turned, places, strict=True)
            places = [context.value(ElementwiseOp("select", [few, *pair])) for pair in pairs]
    for argument, place, block in zip(grid.body.block.args, places, grid.block_sizes, strict=True):
        context.define(argument, scalars.mul(scalars.cast(place, index), block))


def _row_major(context: SimtContext, number: SSAValue, counts: Sequence[SSAValue]) -> list[SSAValue]:
    """Return where a tile lies in each dimension, whose numbers of tiles are given, the last one running fastest."""
    u32, scalars = element_type(dtypes.u32), context.scalars
    places: list[SSAValue] = []
    for count in reversed(counts[1:]):
        places.append(scalars.binary("mod", number, count, u32))
        number = scalars.binary("floordiv", number, count, u32)
    return [*([number] if counts else []), *reversed(places)]


def _outermost(context: SimtContext, number: SSAValue, counts: Sequence[SSAValue], axis: int) -> list[SSAValue]:
    """Return the same with a dimension that runs slowest."""
    first, *rest = _row_major(context, number, [counts[axis], *counts[:axis], *counts[axis + 1 :]])
    return [*rest[:axis], first, *rest[axis:]]


def _grouped(context: SimtContext, number: SSAValue, counts: list[SSAValue], group: int) -> list[SSAValue]:
    u32 = element_type(dtypes.u32)
    scalars = context.scalars
    rows, columns = counts
    together: SSAValue | int = group
    known = constant_value(columns)
    if known is None or int(known) * group >= 1 << 31:  # tiles of more rows than there are may not fit 32 bits
        together = scalars.binary("minimum", rows, group, u32)
    width = scalars.binary("mul", columns, together, u32)
    first = scalars.binary("mul", scalars.binary("floordiv", number, width, u32), together, u32)
    height = scalars.binary("minimum", scalars.binary("sub", rows, first, u32), together, u32)
    inside = scalars.binary("mod", number, width, u32)
    row = scalars.binary("add", first, scalars.binary("mod", inside, height, u32), u32)
    return [row, scalars.binary("floordiv", inside, height, u32)]
