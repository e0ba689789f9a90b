"""SIMT lowering of accesses to tensors by where elements lie in memory."""

from __future__ import annotations

from math import gcd, prod

from xdsl.ir import SSAValue

from tessera.ir.target import memory as target
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.flat import GatherAtOp, LoadFlatOp, ScatterAtOp, StoreFlatOp
from tessera.ir.tile.structure import StrideOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.lower.boxes import CUT_BYTES, WORD_BYTES
from tessera.lower.launch import Parameters
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.memory import place_elements
from tessera.lower.simt.placement import LOADED, Placements, infers, padded_shape
from tessera.lower.simt.rules import lowers
from tessera.target.divisors import WIDEST


def flat_vector(params: Parameters, op: LoadFlatOp | StoreFlatOp, divisor: int) -> tuple[int, bool]:
    """Return how many elements an access moves, and whether the tensor may end within one.

    Args:
        params: the kernel's arguments.
        op: the access.
        divisor: what divides where it begins.
    """
    arg, tile = params.position(op.tensor), op.result if isinstance(op, LoadFlatOp) else op.value
    info, element_bytes = params.infos[arg], dtype_of(element_of(tile.type)).bytes
    limit = gcd(max(gcd(WIDEST, info.align) // element_bytes, 1), divisor, shape_of(tile.type)[0])
    known = [params.known_size(arg, axis) for axis in range(len(info.dim_div))]
    whole = gcd(limit, prod(div if size is None else size for div, size in zip(info.dim_div, known, strict=True)))
    cut = element_bytes <= WORD_BYTES and whole * element_bytes < min(limit * element_bytes, CUT_BYTES)
    return (limit, True) if cut else (whole, False)


Row = tuple[list[SSAValue], list[SSAValue], list[SSAValue]]
"""Offsets, strides and sizes of a box of one dimension."""


def _row(context: SimtContext, op: LoadFlatOp | StoreFlatOp) -> tuple[Row, int, bool]:
    """Return the box, the elements of an access, and whether the tensor may end within one."""
    params, scalars = context.params, context.scalars
    arg = params.position(op.tensor)
    total: SSAValue = scalars.constant(1)
    for axis in range(len(params.infos[arg].dim_div)):
        known = params.known_size(arg, axis)
        total = scalars.mul(total, params.size(arg, axis) if known is None else scalars.constant(known))
    vector, cut = flat_vector(params, op, context.divisor(op.offset))
    return ([context.scalar(op.offset)], [scalars.constant(1)], [total]), vector, cut


@lowers(StrideOp)
def _stride(context: SimtContext, op: StrideOp) -> None:
    arg, axis = context.params.position(op.tensor), op.axis.data
    known = context.params.known_stride(arg, axis)
    context.define(op.result, context.params.stride(arg, axis) if known is None else context.scalars.constant(known))


@infers(LoadFlatOp)
def _place_load(placements: Placements, op: LoadFlatOp) -> None:
    placements.place(op.result, placements.default(shape_of(op.result.type)), LOADED)


@lowers(LoadFlatOp)
def _load(context: SimtContext, op: LoadFlatOp) -> None:
    layout = context.layout_of(op.result)
    row, vector, cut = _row(context, op)
    result = FragmentType.of(element_of(op.result.type), layout)
    pointer = context.params.pointer(context.params.position(op.tensor))
    context.define(op.result, context.value(target.LoadOp(pointer, *row, result, (0,), (0,), vector, cut=cut)))


@lowers(StoreFlatOp)
def _store(context: SimtContext, op: StoreFlatOp) -> None:
    row, vector, cut = _row(context, op)
    layout = context.placements.default(padded_shape(shape_of(op.value.type)))
    pointer = context.params.pointer(context.params.position(op.tensor))
    context.emit(target.StoreOp(context.tile(op.value, layout), pointer, *row, (0,), (0,), vector, cut=cut))


@infers(GatherAtOp)
def _place_gather(placements: Placements, op: GatherAtOp) -> None:
    place_elements(placements, op, op.result)


@lowers(GatherAtOp)
def _gather(context: SimtContext, op: GatherAtOp) -> None:
    layout = context.layout_of(op.result)
    mask = None if op.mask is None else context.tile(op.mask, layout)
    pointer = context.params.pointer(context.params.position(op.tensor))
    distances = context.tile(op.distances, layout)
    context.define(op.result, context.value(target.GatherOp(pointer, distances, mask, None, ())))


@lowers(ScatterAtOp)
def _scatter(context: SimtContext, op: ScatterAtOp) -> None:
    layout = context.layout_of(op.value)
    mask = None if op.mask is None else context.tile(op.mask, layout)
    pointer = context.params.pointer(context.params.position(op.tensor))
    value, distances = context.tile(op.value, layout), context.tile(op.distances, layout)
    context.emit(target.ScatterOp(value, pointer, distances, mask, ()))
