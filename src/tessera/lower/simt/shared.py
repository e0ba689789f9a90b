"""SIMT lowering of shared buffers, asynchronous copies and barriers."""

from __future__ import annotations

from xdsl.ir import SSAValue, Use

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir.layouts import LinearLayout, ldmatrix
from tessera.ir.target import memory as target
from tessera.ir.target import roles
from tessera.ir.target.arithmetic import ElementwiseOp as TargetElementwiseOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp, RoundTf32Op
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    ProxyFenceOp,
    SharedGatherOp,
    SharedLoadOp,
    SharedScatterOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
    allocation_of,
    views_of,
)
from tessera.ir.tile.types import SharedType, element_of, shape_of
from tessera.ir.tile.warpgroup import MmaStartOp
from tessera.ir.types import dtype_of
from tessera.lower.boxes import BoxOperands
from tessera.lower.simt.context import SimtContext, is_tile, tile_shape
from tessera.lower.simt.memory import U32, box_of, buffer_offsets, place_elements
from tessera.lower.simt.mma import register_operand
from tessera.lower.simt.placement import DEFAULT, MATRIX, Placement, Placements, infers, padded
from tessera.lower.simt.rules import lowers


@dataclass(frozen=True)
class _Accesses:
    """How the memory of a buffer is accessed, by whatever view.

    Args:
        whole: whether three dimensions or more are, as one tile.
        by_rows: whether rows of a matrix are, as stages.
    """

    whole: bool
    by_rows: bool


def _accesses(buffer: SSAValue) -> _Accesses:
    whole = by_rows = False
    for view, _ in views_of(allocation_of(buffer)):
        rank = len(shape_of(view.type))
        for user in (use.operation for use in view.uses):
            by_rows = by_rows or (rank == 2 and isinstance(user, SharedViewOp))
            whole = whole or (rank > 2 and isinstance(user, SharedLoadOp | SharedStoreOp | CpAsyncOp))
    return _Accesses(whole, by_rows)


def buffer_type(buffer: SSAValue) -> BufferType:
    """Return the TIR-T type of a shared buffer, the sizes of its last two stored axes rounded up to powers of two.

    All sizes are where a tile has as many dimensions. Rows that are accessed by themselves are not swizzled: their
    order would depend on their number.
    """
    type_ = buffer.type
    assert isinstance(type_, SharedType)
    accesses, rank = _accesses(buffer), len(type_.shape)
    shape = [
        padded(size) if accesses.whole or axis >= rank - 2 else size
        for size, axis in zip(type_.shape, type_.permutation, strict=True)
    ]
    swizzle = "none" if accesses.by_rows and type_.swizzle.data == "xor" else type_.swizzle.data
    return BufferType.of(shape, type_.element, "shared", swizzle, perm=type_.permutation)


@lowers(AllocSharedOp)
def _alloc(context: SimtContext, op: AllocSharedOp) -> None:
    context.define(op.result, context.value(target.AllocOp(buffer_type(op.result))))


@lowers(SharedViewOp)
def _view(context: SimtContext, op: SharedViewOp) -> None:
    source, at, type_ = context.scalar(op.source), context.scalar(op.index), buffer_type(op.result)
    if type_.swizzle.data == "panels" and type_.size_bytes % type_.swizzle_bytes:
        raise CompilerFault(f"a stage of {type_.size_bytes} bytes starts within a swizzle")
    context.define(op.result, context.value(target.ViewOp(source, type_, at)))


@lowers(SharedTransposeOp)
def _transpose(context: SimtContext, op: SharedTransposeOp) -> None:
    source = context.scalar(op.source)
    context.define(op.result, context.value(target.ViewOp(source, buffer_type(op.result))))


@infers(SharedLoadOp)
def _place_load(placements: Placements, op: SharedLoadOp) -> None:
    if placements.of(op.result) is None:
        default = Placement(placements.default(tile_shape(op.result)), DEFAULT)
        placements.found[op.result] = _wanted(placements, op.result, _fastest(op.buffer)) or default


def _fastest(buffer: SSAValue) -> int:
    """Return the axis of a buffer along which its elements are neighbours."""
    assert isinstance(buffer.type, SharedType)
    return buffer.type.permutation.index(len(buffer.type.permutation) - 1)


def _wanted(placements: Placements, value: SSAValue, fastest: int) -> Placement | None:
    """Return where the first product, or store to shared memory, that a tile reaches element by element wants it.

    Args:
        placements: the placements so far.
        value: the tile.
        fastest: its axis along which neighbours were neighbours in the buffer that it was loaded from.
    """
    order = tuple(range(len(shape_of(value.type))))
    seen, work = {value}, [(value, order)]
    while work:
        tile, axes = work.pop()
        following: list[tuple[SSAValue, tuple[int, ...]]] = []
        for use in tile.uses:
            user = use.operation
            if isinstance(user, ElementwiseOp | CastOp | BitcastOp | RoundTf32Op):
                following.append((user.result, axes))
            elif isinstance(user, TransposeOp):
                following.append((user.result, tuple(axes[axis] for axis in user.permutation)))
            else:
                found = _wanted_by(placements, use, axes.index(fastest))
                if found is not None:
                    inverse = [axes.index(axis) for axis in order]
                    return Placement(found.layout.transpose(inverse), found.strength)
        work += reversed([each for each in following if each[0] not in seen])
        seen.update(result for result, _ in following)
    return None


def _wanted_by(placements: Placements, use: Use, fastest: int) -> Placement | None:
    """Return where a product, or a store to shared memory, wants a tile."""
    user = use.operation
    if isinstance(user, MmaOp | MmaStartOp) and use.index == 0:
        layout = register_operand(placements, user)
        return None if layout is None else Placement(layout, MATRIX)
    if isinstance(user, SharedStoreOp):
        return Placement(_rows_of(placements, user, fastest), DEFAULT)
    return None


def _rows_of(placements: Placements, op: SharedStoreOp, loaded: int) -> LinearLayout:
    """Return the layout whose threads store 16 bytes in a row of a buffer.

    Lanes lie side by side along the axis `loaded` of the buffer that the elements come from: where that is the other
    axis, a warp reads whole rows there, and what it stores lies in different banks.
    """
    assert isinstance(op.buffer.type, SharedType)
    stored = _fastest(op.buffer)
    element_bytes = dtype_of(op.buffer.type.element).bytes
    return placements.default(op.buffer.type.shape, stored, element_bytes, across=loaded != stored)


@lowers(SharedLoadOp)
def _load(context: SimtContext, op: SharedLoadOp) -> None:
    buffer = context.scalar(op.buffer)
    type_ = buffer.type
    assert isinstance(type_, BufferType)
    layout = context.layout_of(op.result)
    result = FragmentType.of(type_.element, layout)
    matrix = context.target.has("ldmatrix") and len(type_.shape) == 2
    found = ldmatrix(layout, type_.shared_layout(), type_.dtype.bytes) if matrix else None
    if found is not None:
        context.define(op.result, context.value(target.LdmatrixOp(buffer, result, found.trans)))
    else:
        context.define(op.result, context.value(target.BufferLoadOp(buffer, result)))


@lowers(SharedStoreOp)
def _store(context: SimtContext, op: SharedStoreOp) -> None:
    value = context.tile(op.value, context.layout_of(op.value))
    value = context.fill_outside(value, shape_of(op.value.type), 0)  # products add the padding along K
    context.emit(target.BufferStoreOp(value, context.scalar(op.buffer)))


@infers(SharedGatherOp)
def _place_gather(placements: Placements, op: SharedGatherOp) -> None:
    place_elements(placements, op, op.result)


@lowers(SharedGatherOp)
def _gather(context: SimtContext, op: SharedGatherOp) -> None:
    layout, buffer = context.layout_of(op.result) if is_tile(op.result) else None, context.scalar(op.buffer)
    offsets, mask = buffer_offsets(context, op, buffer, layout, U32)

    def spread(scalar: SSAValue) -> SSAValue:
        return context.splat(scalar, layout) if layout is not None else scalar

    if mask is None:
        context.define(op.result, context.value(target.BufferGatherOp(buffer, offsets)))
        return
    safe = context.value(TargetElementwiseOp("select", [mask, offsets, spread(context.scalars.constant(0, U32))]))
    values, zero = context.value(target.BufferGatherOp(buffer, safe)), context.constant(0, element_of(op.result.type))
    context.define(op.result, context.value(TargetElementwiseOp("select", [mask, values, spread(zero)])))


@lowers(SharedScatterOp)
def _scatter(context: SimtContext, op: SharedScatterOp) -> None:
    layout, buffer = context.layout_of(op.value) if is_tile(op.value) else None, context.scalar(op.buffer)
    offsets, mask = buffer_offsets(context, op, buffer, layout, U32)
    value = context.tile(op.value, layout) if layout is not None else context.scalar(op.value)
    context.emit(target.BufferScatterOp(value, buffer, offsets, mask))


@lowers(CpAsyncOp)
def _copy(context: SimtContext, op: CpAsyncOp) -> None:
    buffer = context.scalar(op.buffer)
    assert isinstance(buffer.type, BufferType)
    box = box_of(context, op, buffer.type.shape)
    stored_last = buffer.type.permutation.index(len(buffer.type.shape) - 1)
    vector = min(box.vector, buffer.type.shape[stored_last]) if box.unit_axis == stored_last else 1
    vector_bytes = vector * dtype_of(buffer.type.element).bytes
    asynchronous = context.target.has("cp_async") and vector_bytes in (4, 8, 16)
    if not asynchronous:
        context.note("copies", _why_plain(context, op, box, vector_bytes, stored_last))
    context.emit(
        target.MemcpyOp(
            buffer,
            box.pointer,
            box.offsets,
            box.strides,
            box.sizes,
            box.axes,
            box.checked,
            vector,
            "cp.async" if asynchronous else "plain",
        )
    )


@lowers(CommitGroupOp)
def _commit(context: SimtContext, _op: CommitGroupOp) -> None:
    context.emit(target.CommitOp())


@lowers(WaitGroupOp)
def _wait(context: SimtContext, op: WaitGroupOp) -> None:
    context.emit(target.WaitOp(op.pending.data))
    if context.asynchronous_reads:
        context.emit(roles.ProxyFenceOp())


@lowers(ProxyFenceOp)
def _fence(context: SimtContext, _op: ProxyFenceOp) -> None:
    context.emit(roles.ProxyFenceOp())


@lowers(BarrierOp)
def _barrier(context: SimtContext, _op: BarrierOp) -> None:
    context.emit(target.BarrierOp())


def _why_plain(context: SimtContext, op: CpAsyncOp, box: BoxOperands, vector_bytes: int, stored_last: int) -> str:
    """Say why a copy goes through registers."""
    name = context.params.infos[context.params.position(op.tensor)].name
    if not context.target.has("cp_async"):
        return f"{name}: {context.target.name} has no cp.async"
    if box.unit_axis != stored_last:
        return f"{name}: no dimension of the tile has stride 1 in memory and in the buffer"
    return f"{name}: known alignment, strides and sizes allow {vector_bytes} bytes at a time, cp.async needs 4"
