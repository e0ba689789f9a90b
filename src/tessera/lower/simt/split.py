"""SIMT lowering of sums split over a cluster: partial sums wait in shared memory for the first program to read them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout
from tessera.ir.target import cluster as target
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.memory import BufferStoreOp
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.split import AllocLinksOp, PartialSendOp, PartialSumOp
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import ACCESS_BYTES, Placements, infers
from tessera.lower.simt.rules import lowers


@lowers(AllocLinksOp)
def _links(_context: SimtContext, _op: AllocLinksOp) -> None:
    """Nothing: the hardware has a barrier for each cluster."""


def _in_rows(layout: LinearLayout, element_bytes: int) -> LinearLayout:
    """Return a layout of the same registers in which every access of a thread is 16 bytes and lanes are neighbours."""
    registers, lanes, warps = (len(layout.in_bases(dim)) for dim in (REGISTER, LANE, WARP))
    width = min(registers, (ACCESS_BYTES // element_bytes).bit_length() - 1)
    rows = [(1 << bit, 0) for bit in range(registers - width + lanes + warps)]
    return LinearLayout.make(
        {
            REGISTER: [*((0, 1 << bit) for bit in range(width)), *rows[lanes + warps :]],
            LANE: rows[:lanes],
            WARP: rows[lanes : lanes + warps],
        },
        (1 << len(rows), 1 << width),
    )


def _exchanged(context: SimtContext, partial: SSAValue) -> tuple[SSAValue, FragmentType]:
    """Return a partial sum as it lies in the buffer, and its type.

    Both programs hold the same elements in the same threads, so that the places need not mean rows and columns.
    """
    fragment = context.tile(partial, context.layout_of(partial))
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    own = type_.linear
    if own.registers * own.lanes * own.warps != own.size:  # several threads hold an element
        return fragment, type_
    layout = _in_rows(own, type_.dtype.bytes).reshape(own.out_sizes)
    return context.relabel(fragment, layout), FragmentType.of(type_.element, layout)


@lowers(PartialSendOp)
def _send(context: SimtContext, op: PartialSendOp) -> None:
    for partial, buffer in zip(op.partials, op.buffers, strict=True):
        context.emit(BufferStoreOp(_exchanged(context, partial)[0], context.scalar(buffer)))
    context.emit(target.ClusterBarrierOp())
    context.emit(target.ClusterBarrierOp())  # the first program has read: the buffers may be freed


@infers(PartialSumOp)
def _place(placements: Placements, op: PartialSumOp) -> None:
    for partial, total in zip(op.partials, op.sums, strict=True):
        found = placements.of(partial)
        if found is not None:
            placements.place(total, found.layout, found.strength)


@lowers(PartialSumOp)
def _sum(context: SimtContext, op: PartialSumOp) -> None:
    context.emit(target.ClusterBarrierOp())
    others = [context.scalars.constant(rank) for rank in range(1, _ranks_of(op))]
    for partial, buffer, total in zip(op.partials, op.buffers, op.sums, strict=True):
        result, type_ = _exchanged(context, partial)
        for rank in others:
            part = context.value(target.ClusterLoadOp(context.scalar(buffer), rank, type_))
            result = context.value(ElementwiseOp("add", [result, part]))
        context.define(total, context.relabel(result, context.layout_of(partial)))
    context.emit(target.ClusterBarrierOp())


def _ranks_of(op: PartialSumOp) -> int:
    owner = op.links.owner
    assert isinstance(owner, AllocLinksOp)
    return owner.ranks.data
