"""Lowers TIR-H to TIR-T for GPUs: tiles become fragments spread over the threads of a block."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tessera.errors import CompilerFault
from tessera.ir.target.structure import ProgramCountOp, ProgramIdOp, ReturnOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, TileType, element_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.lower.launch import LaunchPlan, Parameters, new_function, plan_launches, schedule_value
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import Placements, padded_shape, place_block
from tessera.lower.simt.prefer import prefer_consumers
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.target.records import TargetRecord

DEFAULT_WARPS = 4


@cache
def _load_rules() -> None:
    """Import every file of this folder, so that their rules are registered."""
    for info in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{info.name}")


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
    num_warps = schedule_value(plan.grid or kernel, "num_warps", DEFAULT_WARPS)
    func = new_function(kernel, plan, num_warps)
    params = Parameters(kernel, func)
    placements = Placements(target, num_warps, _narrowest(plan))
    place_block(placements, plan.body)
    prefer_consumers(placements, plan.body)
    context = SimtContext(target, params, placements)
    for arg, value in enumerate(kernel.body.block.args):
        if not isinstance(value.type, TensorType) and value.uses.get_length():
            context.define(value, params.scalar(arg))
    context.asynchronous_reads = any(
        "tessera_schedule.warpgroup" in op.attributes for top in plan.body for op in top.walk()
    )
    if not any(isinstance(op, RolesOp) for op in plan.body):  # roles wait once their barriers are set up
        context.wait_for_launch()
    context.lower_block(plan.prologue)
    if plan.grid is not None and schedule_value(plan.grid, "persistent", 0):
        _persistent(context, plan.grid, plan.body)
    else:
        if plan.grid is not None:
            context.location = plan.grid.location
            cluster = schedule_value(plan.grid, "cluster", 1)
            program = context.scalars.binary("floordiv", context.value(ProgramIdOp()), cluster)
            _decompose(context, plan.grid, program)
        context.lower_block(plan.body)
    context.emit(ReturnOp())
    return func


def _persistent(context: SimtContext, grid: GridOp, body: list[Operation]) -> None:
    """Lower a grid whose programs take many tiles: what depends on the tile goes into a loop in each role."""
    context.location = grid.location
    moving: set[SSAValue] = set(grid.body.block.args)
    inner: list[Operation] = []
    for op in body:
        if not isinstance(op, RolesOp) and any(operand in moving for operand in op.operands):
            moving.update(op.results)
            inner.append(op)
    cluster = schedule_value(grid, "cluster", 1)
    first = context.scalars.binary("floordiv", context.value(ProgramIdOp()), cluster)
    stride = context.scalars.binary("floordiv", context.value(ProgramCountOp()), cluster)
    count = context.scalars.constant(1)
    for extent, block in zip(grid.extents, grid.block_sizes, strict=True):
        count = context.scalars.mul(count, context.scalars.ceildiv(context.scalar(extent), block))

    def tiles(run: Callable[[Sequence[SSAValue]], list[SSAValue]], state: Sequence[SSAValue]) -> None:
        loop = Block(arg_types=[index, *(value.type for value in state)])
        with context.into(loop):
            context.location = grid.location
            _decompose(context, grid, loop.args[0])
            context.lower_block(inner)
            after = run(loop.args[1:])
            context.emit(scf.YieldOp(*after))
        context.emit(scf.ForOp(first, count, stride, list(state), Region(loop)))

    context.tiles = tiles
    context.lower_block([op for op in body if op not in inner])


def _narrowest(plan: LaunchPlan) -> dict[tuple[int, ...], int]:
    """Return, for each tile shape, the bytes of the narrowest element moved to or from global memory."""
    found: dict[tuple[int, ...], int] = {}
    for top in plan.body:
        for op in top.walk():
            if isinstance(op, LoadOp | StoreOp):
                tile = op.result if isinstance(op, LoadOp) else op.value
                if isinstance(tile.type, TileType):
                    shape = padded_shape(tile.type.shape)
                    element_bytes = dtype_of(element_of(tile.type)).bytes
                    found[shape] = min(found.get(shape, 16), element_bytes)
    return found


@lowers(DimOp)
def _dim(context: SimtContext, op: DimOp) -> None:
    arg = context.params.position(op.tensor)
    known = context.params.known_size(arg, op.axis.data)
    context.define(
        op.result,
        context.scalars.constant(known) if known is not None else context.params.size(arg, op.axis.data),
    )


def _decompose(context: SimtContext, grid: GridOp, program: SSAValue) -> None:
    """Turn the number of a tile into the offset of its tile in each dimension.

    Two-dimensional grids are walked in groups of `tessera_schedule.group` rows of tiles, so that programs that run
    together share operands in the L2 cache; others in row-major order. The arithmetic is 32-bit unsigned, as
    64-bit division is slow on GPUs and a launch has fewer than 2^31 programs.
    """
    u32 = element_type(dtypes.u32)
    scalars = context.scalars
    number = scalars.cast(program, u32)
    counts = [
        scalars.cast(scalars.ceildiv(context.scalar(extent), block), u32)
        for extent, block in zip(grid.extents, grid.block_sizes, strict=True)
    ]
    group = schedule_value(grid, "group", 1)
    if len(counts) == 2 and group > 1:
        places = _grouped(context, number, counts, group)
    else:
        places: list[SSAValue] = []
        for count in reversed(counts[1:]):
            places.append(scalars.binary("mod", number, count, u32))
            number = scalars.binary("floordiv", number, count, u32)
        places = [*([number] if counts else []), *reversed(places)]
    for argument, place, block in zip(grid.body.block.args, places, grid.block_sizes, strict=True):
        context.define(argument, scalars.mul(scalars.cast(place, index), block))


def _grouped(context: SimtContext, number: SSAValue, counts: list[SSAValue], group: int) -> list[SSAValue]:
    u32 = element_type(dtypes.u32)
    scalars = context.scalars
    rows, columns = counts
    width = scalars.binary("mul", columns, group, u32)
    first = scalars.binary("mul", scalars.binary("floordiv", number, width, u32), group, u32)
    height = scalars.binary("minimum", scalars.binary("sub", rows, first, u32), group, u32)
    inside = scalars.binary("mod", number, width, u32)
    row = scalars.binary("add", first, scalars.binary("mod", inside, height, u32), u32)
    return [row, scalars.binary("floordiv", inside, height, u32)]
