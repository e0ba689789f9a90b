"""SIMT lowering of reductions (registers, then lanes, then warps) and scans (through shared memory)."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.errors import CompilerFault
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, Reduction, reduction
from tessera.ir.target.arithmetic import ElementwiseOp, ExtractOp, ReduceLanesOp, ReduceRegistersOp
from tessera.ir.target.memory import BarrierOp, BufferLoadOp, BufferStoreOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.tile.reduce import ReduceOp, ScanOp
from tessera.ir.types import dtype_of
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.placement import Placements, follow, infers, reduced_placement
from tessera.lower.simt.rules import lowers
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import COMBINE


def identity_of(fn: str, dtype: DType) -> float:
    """Return the value that a reduction ignores."""
    if fn in ("sum", "any"):
        return 0
    if fn in ("prod", "all"):
        return 1
    if dtype.is_float:
        return float("-inf") if fn == "max" else float("inf")
    low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
    high = (1 << dtype.bits - (dtype.kind == "int")) - 1
    return low if fn == "max" else high


@infers(ReduceOp)
def _place_reduce(placements: Placements, op: ReduceOp) -> None:
    if is_tile(op.result):
        placement = reduced_placement(placements, op.source, op.axis.data)
        placements.place(op.result, placement.layout, placement.strength)


infers(ScanOp)(follow)


@lowers(ReduceOp)
def _reduce(context: SimtContext, op: ReduceOp) -> None:
    layout = context.layout_of(op.source).unique_registers()
    fragment = context.tile(op.source, layout)
    dtype = dtype_of(element_of(fragment.type))
    fragment = context.fill_outside(fragment, tile_shape(op.source), identity_of(op.fn.data, dtype))
    result = reduce_fragment(context, fragment, layout, op.axis.data, op.fn.data)
    if not is_tile(op.result):
        result = context.value(ExtractOp(result))
    context.define(op.result, result)


def reduce_fragment(context: SimtContext, fragment: SSAValue, layout: LinearLayout, axis: int, fn: str) -> SSAValue:
    """Combine a fragment along an axis; every thread that holds a part gets the whole result."""
    plan = reduction(layout, axis)
    element = element_of(fragment.type)
    result = context.value(ReduceRegistersOp(fragment, axis, fn, FragmentType.of(element, plan.result)))
    for register, lane in plan.shuffles:
        if register:
            raise CompilerFault("a reduction exchanges registers between lanes")
        result = context.value(ReduceLanesOp(result, lane, fn))
    return _across_warps(context, result, plan, fn) if plan.warps else result


def _across_warps(context: SimtContext, partial: SSAValue, plan: Reduction, fn: str) -> SSAValue:
    """Combine partial results of several warps: each stores its own, all read all and combine in one order."""
    parts = 1 << len(plan.warps)
    where = {warp: number for number, (_register, _lane, warp) in enumerate(plan.warps)}
    if any(register or lane for register, lane, _ in plan.warps):
        raise CompilerFault("a reduction exchanges registers between warps")
    layout = plan.result

    def widened(dim: str) -> list[list[int]]:
        vectors = layout.in_bases(dim)
        return [
            [1 << where[1 << bit] if dim == WARP and 1 << bit in where else 0, *vector]
            for bit, vector in enumerate(vectors)
        ]

    sizes = (parts, *layout.out_sizes)
    stored = LinearLayout.make({dim: widened(dim) for dim in (REGISTER, LANE, WARP)}, sizes)
    bits = [[1 << bit, *[0] * layout.rank] for bit in range(len(plan.warps))]
    read = LinearLayout.make(
        {
            REGISTER: [*bits, *([0, *v] for v in layout.in_bases(REGISTER))],
            LANE: [[0, *v] for v in layout.in_bases(LANE)],
            WARP: [[0, *v] for v in layout.in_bases(WARP)],
        },
        sizes,
    )
    element = element_of(partial.type)
    buffer = context.transient(BufferType.of(sizes, element, "shared"))
    context.emit(BufferStoreOp(context.relabel(partial, stored), buffer))
    context.emit(BarrierOp())
    everything = context.value(BufferLoadOp(buffer, FragmentType.of(element, read)))
    return context.value(ReduceRegistersOp(everything, 0, fn, FragmentType.of(element, layout)))


@lowers(ScanOp)
def _scan(context: SimtContext, op: ScanOp) -> None:
    """Hillis and Steele's scan: in step s every element combines with the one 2^s before it."""
    layout = context.layout_of(op.source).unique_registers()
    current = context.tile(op.source, layout)
    dtype = dtype_of(element_of(current.type))
    axis, fn = op.axis.data, op.fn.data
    identity = identity_of(fn, dtype)
    current = context.fill_outside(current, tile_shape(op.source), identity)
    fill = context.constant(identity, element_of(current.type))
    zero = context.scalars.constant(0)
    step = 1
    while step < layout.out_sizes[axis]:
        shift = context.scalars.constant(step if op.reverse is not None else -step)
        offsets = [shift if a == axis else zero for a in range(layout.rank)]
        buffer = context.transient(BufferType.of(layout.out_sizes, element_of(current.type), "shared"))
        context.emit(BufferStoreOp(current, buffer))
        context.emit(BarrierOp())
        other = context.value(
            BufferLoadOp(buffer, FragmentType.of(element_of(current.type), layout), offsets, fill=fill)
        )
        current = context.value(ElementwiseOp(COMBINE[fn], [other, current]))
        step *= 2
    context.define(op.result, context.convert(current, context.layout_of(op.result)))
