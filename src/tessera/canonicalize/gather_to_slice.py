"""gather-to-slice: turns an index tile that counts up by one into a bounded slice.

    %r = tessera_tile.arange : !tessera_tile.tile<1024xindex>
    %o = tessera_tile.splat %offset : index -> !tessera_tile.tile<1024xindex>
    %i = tessera_tile.elementwise "add"(%o, %r) : (…) -> !tessera_tile.tile<1024xindex>
    %n = tessera_tile.splat %dim : index -> !tessera_tile.tile<1024xindex>
    %m = tessera_tile.elementwise "lt"(%i, %n) : (…) -> !tessera_tile.tile<1024xi1>
    %x = tessera_tile.gather %X[%i] mask %m : …
  becomes, when %dim is the size of %X (or of another tensor's dimension of the same name),
    %x = tessera_tile.load %X[%offset] [1024] : …

A slice is read and written in whole vectors, and its bound is one comparison for all of them. The other
indices of a tensor of several dimensions must be splats. Parts of the mask other than the bound stay a mask.
Gathers and slices treat what lies outside the tensor alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from tessera.canonicalize.matching import dtype_of_value, splat_source
from tessera.ir.passes import PatternPass
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import DimOp, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType, shape_of
from tessera.ir.types import index


def _elementwise(value: SSAValue, fn: str) -> ElementwiseOp | None:
    op = value.owner
    return op if isinstance(op, ElementwiseOp) and op.fn.data == fn else None


def _without_casts(value: SSAValue) -> SSAValue:
    """Skip casts to integers at least as wide; what they change is negative or huge, so no index."""
    while isinstance(value.owner, CastOp):
        source, target = dtype_of_value(value.owner.source), dtype_of_value(value)
        if not (source.is_int and target.is_int and source.bits <= target.bits):
            break
        value = value.owner.source
    return value


def _offsets(value: SSAValue) -> list[SSAValue] | None:
    """Return scalars whose sum plus 0, 1, 2, … is `value`, or None when it does not count up by one.

    Only in signed types: where those wrap the index is negative and so outside, but unsigned ones start anew.
    """
    value = _without_casts(value)
    if dtype_of_value(value).kind != "int":
        return None
    if isinstance(value.owner, ArangeOp):
        return []
    add = _elementwise(value, "add")
    if add is None:
        return None
    for counting, splat in ((add.args[0], add.args[1]), (add.args[1], add.args[0])):
        scalar, rest = splat_source(_without_casts(splat)), _offsets(counting)
        if scalar is not None and rest is not None:
            return [scalar, *rest]
    return None


def _is_size(value: SSAValue, tensor: SSAValue, axis: int) -> bool:
    assert isinstance(tensor.type, TensorType)
    value = _without_casts(value)
    size = tensor.type.shape[axis]
    if size != DYNAMIC:
        return constant_value(value) == size
    op = value.owner
    if not isinstance(op, DimOp):
        return False
    if op.tensor is tensor:
        return op.axis.data == axis
    name = _dim_name(tensor, axis)
    return name != "" and name == _dim_name(op.tensor, op.axis.data)


def _dim_name(tensor: SSAValue, axis: int) -> str:
    """Return the name of a parameter's dimension, "" where it has none; a call gives a name one size."""
    if not isinstance(tensor, BlockArgument):
        return ""
    kernel = tensor.block.parent_op()
    if not isinstance(kernel, KernelOp):
        return ""
    dims = kernel.infos[tensor.index].dims
    return dims[axis] if axis < len(dims) else ""


def _is_bound(mask: SSAValue, counting: SSAValue, tensor: SSAValue, axis: int) -> bool:
    """Return whether `mask` is `counting < size` of the tensor's dimension."""
    for fn, left in (("lt", 0), ("gt", 1)):
        compare = _elementwise(mask, fn)
        if compare is None or _without_casts(compare.args[left]) is not _without_casts(counting):
            continue
        limit = splat_source(_without_casts(compare.args[1 - left]))
        if limit is not None and _is_size(limit, tensor, axis):
            return True
    return False


def _without_bound(
    mask: SSAValue | None, counting: SSAValue, tensor: SSAValue, axis: int
) -> tuple[SSAValue | None, bool]:
    """Return what is left of a mask without the bound, and whether the bound was there."""
    if mask is None or _is_bound(mask, counting, tensor, axis):
        return None, mask is not None
    both = _elementwise(mask, "and")
    if both is not None:
        for part, other in ((both.args[0], both.args[1]), (both.args[1], both.args[0])):
            if _is_bound(part, counting, tensor, axis):
                return other, True
    return mask, False


@dataclass(frozen=True)
class _Slice:
    """A box of a tensor: the new ops that compute its offsets, and its shape."""

    ops: list[Operation]
    offsets: list[SSAValue]
    sizes: list[int]
    drop: list[int]
    mask: SSAValue | None


def _to_index(scalar: SSAValue, ops: list[Operation]) -> SSAValue:
    if scalar.type == index:
        return scalar
    ops.append(CastOp(scalar, index))
    return ops[-1].results[0]


def _sum(scalars: list[SSAValue], ops: list[Operation]) -> SSAValue:
    if not scalars:
        ops.append(ConstantOp(0, index))
        return ops[-1].results[0]
    total = _to_index(scalars[0], ops)
    for scalar in scalars[1:]:
        ops.append(ElementwiseOp("add", [total, _to_index(scalar, ops)]))
        total = ops[-1].results[0]
    return total


def _slice(
    tensor: SSAValue, indices: Sequence[SSAValue], mask: SSAValue | None, shape: tuple[int, ...]
) -> _Slice | None:
    """Return the box that the indices cover, or None when they do not cover one."""
    if len(shape) != 1:
        return None
    counting = [axis for axis, at in enumerate(indices) if _offsets(at) is not None]
    if len(counting) != 1:
        return None
    axis, ops, offsets, sizes = counting[0], list[Operation](), list[SSAValue](), list[int]()
    for position, at in enumerate(indices):
        scalar = splat_source(_without_casts(at))
        if position == axis:
            offsets.append(_sum(_offsets(at) or [], ops))
        elif scalar is None:
            return None
        else:
            offsets.append(_to_index(scalar, ops))
        sizes.append(shape[0] if position == axis else 1)
    rest, _ = _without_bound(mask, indices[axis], tensor, axis)
    return _Slice(ops, offsets, sizes, [a for a in range(len(indices)) if a != axis], rest)


class _Gather(RewritePattern):
    """A gather of counting indices becomes a load."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter, /) -> None:
        box = _slice(op.tensor, list(op.indices), op.mask, shape_of(op.result.type))
        if box is not None:
            load = LoadOp(op.tensor, box.offsets, box.sizes, box.drop, mask=box.mask, fill=op.fill)
            rewriter.replace(op, [*box.ops, load])


class _Scatter(RewritePattern):
    """A scatter to counting indices becomes a store."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ScatterOp, rewriter: PatternRewriter, /) -> None:
        box = _slice(op.tensor, list(op.indices), op.mask, shape_of(op.value.type))
        if box is not None:
            store = StoreOp(op.value, op.tensor, box.offsets, box.sizes, box.drop, mask=box.mask)
            rewriter.replace(op, [*box.ops, store])


@dataclass(frozen=True)
class GatherToSlicePass(PatternPass):
    """Turns an index tile that counts up by one into a bounded slice."""

    name = "gather-to-slice"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [_Gather(), _Scatter()]
