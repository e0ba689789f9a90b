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

from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from tessera.canonicalize.matching import constant_like, dtype_of_value, splat_source
from tessera.data import dataclass
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import DimOp, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType, shape_of
from tessera.ir.types import index
from tessera.lower.bounds import Bounds


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


def _same_numbers(bounds: Bounds, value: SSAValue) -> SSAValue:
    """Skip casts that keep every number."""
    while isinstance(value.owner, CastOp) and bounds.keeps_numbers(value.owner):
        value = value.owner.source
    return value


@dataclass(frozen=True)
class _Counting:
    """A tile that counts up by one.

    Args:
        scalars: their sum is the first number.
        wraps: the tile itself where the last of its numbers may be too large for its dtype: those are negative then.
    """

    scalars: tuple[SSAValue, ...] = ()
    wraps: SSAValue | None = None


def _counting(bounds: Bounds, value: SSAValue) -> _Counting | None:
    """Return a tile as scalars plus 0, 1, 2, …, None when it does not count up by one.

    Only in signed types: numbers that wrap there are negative, so no index, but unsigned ones restart at 0.
    """
    value = _same_numbers(bounds, value)
    if dtype_of_value(value).kind != "int":
        return None
    if isinstance(value.owner, ArangeOp):
        fits = shape_of(value.type)[0] <= 1 << dtype_of_value(value).bits - 1
        return _Counting() if fits else None
    add = _elementwise(value, "add")
    if add is None:
        return None
    for inner, splat in ((add.args[0], add.args[1]), (add.args[1], add.args[0])):
        scalar, rest = splat_source(_same_numbers(bounds, splat)), _counting(bounds, inner)
        if scalar is None or rest is None or rest.wraps is not None:
            continue
        scalars = (scalar, *rest.scalars)
        if dtype_of_value(value).bits == 64 or bounds.is_exact(add):  # offsets have 64 bits and wrap alike
            return _Counting(scalars)
        return _Counting(scalars, value) if bounds.interval(inner).low >= 0 else None
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


def _slice(op: GatherOp | ScatterOp, shape: tuple[int, ...]) -> _Slice | None:
    """Return the box that the indices cover, or None when they do not cover one."""
    if len(shape) != 1:
        return None
    bounds = Bounds(_kernel_of(op))
    counts = [_counting(bounds, at) for at in op.indices]
    found = [axis for axis, count in enumerate(counts) if count is not None]
    if len(found) != 1:
        return None
    axis, ops, offsets, sizes = found[0], list[Operation](), list[SSAValue](), list[int]()
    for at, count in zip(op.indices, counts, strict=True):
        scalar = splat_source(_same_numbers(bounds, at))
        if count is not None:
            offsets.append(_sum(list(count.scalars), ops))
        elif scalar is None:
            return None
        else:
            offsets.append(_to_index(scalar, ops))
        sizes.append(1 if count is None else shape[0])
    mask, _ = _without_bound(op.mask, op.indices[axis], op.tensor, axis)
    count = counts[axis]
    if count is not None and count.wraps is not None:
        mask = _and_not_negative(mask, count.wraps, ops)
    return _Slice(ops, offsets, sizes, [a for a in range(len(op.indices)) if a != axis], mask)


def _kernel_of(op: Operation) -> KernelOp:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, KernelOp):
        parent = parent.parent_op()
    assert parent is not None
    return parent


def _and_not_negative(mask: SSAValue | None, numbers: SSAValue, ops: list[Operation]) -> SSAValue:
    """Return a mask without negative numbers."""
    zero = constant_like(0, numbers.type)
    ops += [*zero, ElementwiseOp("ge", [numbers, zero[-1].results[0]])]
    if mask is not None:
        ops.append(ElementwiseOp("and", [mask, ops[-1].results[0]]))
    return ops[-1].results[0]


class _Gather(RewritePattern):
    """A gather of counting indices becomes a load."""

    @matches_type
    def match_and_rewrite(self, op: GatherOp, rewriter: PatternRewriter, /) -> None:
        box = _slice(op, shape_of(op.result.type))
        if box is not None:
            load = LoadOp(op.tensor, box.offsets, box.sizes, box.drop, mask=box.mask, fill=op.fill)
            rewriter.replace(op, [*box.ops, load])


class _Scatter(RewritePattern):
    """A scatter to counting indices becomes a store."""

    @matches_type
    def match_and_rewrite(self, op: ScatterOp, rewriter: PatternRewriter, /) -> None:
        box = _slice(op, shape_of(op.value.type))
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
