"""Maps of what is reshaped are computed before it is: they join the kernel that computes it.

    %r = tessera_graph.reshape %x : [N, 8, 8, 3136] -> [N, 64, 56, 56]
    %b = tessera_graph.broadcast %w [1] : [64] -> [N, 64, 56, 56]
    %y = tessera_graph.map "mul"(%r, %b)

becomes::

    %v = tessera_graph.reshape %w : [64] -> [1, 8, 8, 1]
    %b = tessera_graph.broadcast %v [0, 1, 2, 3] : [1, 8, 8, 1] -> [N, 8, 8, 3136]
    %z = tessera_graph.map "mul"(%x, %b)
    %y = tessera_graph.reshape %z : [N, 8, 8, 3136] -> [N, 64, 56, 56]

Other operands are reshaped alike, repeat along all that a few dimensions become or along nothing of it, or follow from
memory, which is read in the other shape. Sizes are known.

What is read from memory is reshaped there, before it is cast to a wider dtype: nobody writes the wider numbers down::

    %c = tessera_graph.cast %x : bf16 -> f32                  %r = tessera_graph.reshape %x
    %r = tessera_graph.reshape %c                       →     %c = tessera_graph.cast %r : bf16 -> f32

So are maps of memory whose reshaped results are reduced (`x.sigmoid().flatten(1).sum(1)`) or permuted: one kernel
computes and reduces, or permutes them.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.sums import ReduceOp
from tessera.ir.graph.types import ONE, array_type, dims_of
from tessera.ir.graph.views import BroadcastOp, ConcatOp, ReshapeOp, TransposeOp
from tessera.schedule.fuse.places import LIBRARY, LOOSE, PLACED, insert, is_view, root_of
from tessera.schedule.fuse.selection import of_others
from tessera.schedule.fuse.transposes import runs_of
from tessera.target.dims import Dim

Dims = tuple[Dim, ...]
_MOST_MAPS = 16
"""Maps that are computed in another shape together."""
Segment = tuple[list[int], list[int]]
"""Dimensions before a reshape, and those that they become."""


def compute_before_reshapes(graph: GraphOp) -> None:
    """Rewrite the maps of a graph, and casts that widen what is in memory."""
    for op in list(graph.body.block.ops):
        if isinstance(op, ReshapeOp) and not is_view(op):
            if _is_taken_on(op.result):
                _map_after(op)
            else:
                _cast_after(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, MapOp | CastOp):
            _rewrite(op)
    for op in list(graph.body.block.ops):
        if isinstance(op, ReshapeOp) and not is_view(op):
            _cast_after(op, True)  # no map behind it has joined what it reshapes


def _cast_after(op: ReshapeOp, of_computed: bool = False) -> None:
    """Let a reshape be computed before the cast of its operand, where that is the wider form of what memory has.

    Args:
        op: the reshape.
        of_computed: whether it may be the wider form of what is computed, which is then written down as it is.
    """
    cast = op.source.owner
    if not isinstance(cast, CastOp) or (isinstance(root_of(cast.source).owner, PLACED) and not of_computed):
        return
    wide = array_type(cast.result)
    if array_type(cast.source).dtype.bits >= wide.dtype.bits:
        return
    inner = ReshapeOp(cast.source, dims_of(op.result))
    outer = CastOp(inner.result, wide.dtype)
    insert([inner, outer], op)
    op.result.replace_all_uses_with(outer.result)
    op.detach()
    op.erase()


def _is_taken_on(value: SSAValue) -> bool:
    """Return whether a value, or what a few maps make of it, is reduced, or copied in another order."""
    work, seen = [value], set[SSAValue]()
    while work and len(seen) < _MOST_MAPS:
        one = work.pop()
        if one in seen:
            continue
        seen.add(one)
        users = [use.operation for use in one.uses]
        if any(isinstance(user, ReduceOp | TransposeOp) for user in users):
            return True
        work += [user.result for user in users if isinstance(user, MapOp | CastOp)]
    return False


def _map_after(op: ReshapeOp) -> None:
    """Let a reshape be computed before the maps that made its operand of memory, where nothing else needs them."""
    if not isinstance(op.source.owner, MapOp | CastOp):
        return
    made: list[Operation] = []
    shapes = _Shapes.of(dims_of(op.result), dims_of(op.source))
    found = _reshaped(op.source, dims_of(op.result), shapes, made, 0)
    if found is None:
        _forget(made)
        return
    insert(made, op)
    op.result.replace_all_uses_with(found)
    op.detach()
    op.erase()


def _forget(made: list[Operation]) -> None:
    """Drop ops that are not inserted."""
    for one in reversed(made):
        one.erase()


def _reshaped(
    value: SSAValue, dims: Dims, shapes: _Shapes | None, made: list[Operation], depth: int
) -> SSAValue | None:
    """Return a value in another shape, computed of memory that is read so; None where that is not possible.

    Args:
        value: the value.
        dims: the shape.
        shapes: how its dimensions become these, None where all become all of them.
        made: gets the ops that compute it.
        depth: how many maps there are behind it.
    """
    op = value.owner
    match op:
        case MapOp() | CastOp() if depth < _MOST_MAPS and value.has_one_use():
            operands = [_reshaped(one, dims, shapes, made, depth + 1) for one in op.operands]
            if any(one is None for one in operands):
                return None
            made.append(of_others(op, [one for one in operands if one is not None]))
        case BroadcastOp() if not dims_of(op.source):
            made.append(BroadcastOp(op.source, dims, ()))
        case BroadcastOp():
            found = None if shapes is None else shapes.before(value)
            if found is None:
                return None
            made += found[1]
            return found[0]
        case Operation() if not isinstance(op, LIBRARY):
            return None
        case _:
            made.append(ReshapeOp(value, dims))
    return made[-1].results[0]


def _rewrite(op: MapOp | CastOp) -> None:
    reshape = next((value.owner for value in op.operands if _is_of_computed(value.owner)), None)
    if not isinstance(reshape, ReshapeOp):
        return
    shapes = _Shapes.of(dims_of(reshape.source), dims_of(op.result))
    if shapes is None:
        return
    made: list[Operation] = []
    operands: list[SSAValue] = []
    for value in op.operands:
        found = shapes.before(value)
        if found is None:
            read = _reshaped(value, shapes.inner, shapes, made, 0)
            if read is None:
                _forget(made)  # an op reads its operands before it is inserted
                return
            operands.append(read)
            continue
        made += found[1]
        operands.append(found[0])
    inner = of_others(op, operands)
    outer = ReshapeOp(inner.result, shapes.outer)
    insert([*made, inner, outer], op)
    op.result.replace_all_uses_with(outer.result)
    op.detach()
    op.erase()


def _is_of_computed(owner: object) -> bool:
    """Return whether an op reshapes what a kernel of a group computes, by more than ones."""
    return (
        isinstance(owner, ReshapeOp)
        and not is_view(owner)
        and _is_computed(owner.source)
        and all(dim.is_static for dim in (*dims_of(owner.source), *dims_of(owner.result)))
    )


def _is_computed(value: SSAValue) -> bool:
    """Return whether kernels of groups compute a value, or all parts of it."""
    owner = root_of(value).owner
    return all(map(_is_computed, owner.sources)) if isinstance(owner, ConcatOp) else isinstance(owner, PLACED)


@dataclass(frozen=True, slots=True)
class _Shapes:
    """A reshape.

    Args:
        inner: the dimensions before it.
        outer: those after it.
        segments: which become which.
    """

    inner: Dims
    outer: Dims
    segments: list[Segment]

    @classmethod
    def of(cls, inner: Dims, outer: Dims) -> _Shapes | None:
        """Return a reshape, None where all dimensions become all others together, or there are no elements."""
        segments = runs_of(inner, outer) or []
        return cls(inner, outer, segments) if len(segments) > 1 else None

    def before(self, value: SSAValue) -> tuple[SSAValue, list[Operation]] | None:
        """Return an operand as it is before the reshape, with the ops that make it so; None where it is not."""
        owner = value.owner
        if isinstance(owner, ReshapeOp):
            return (owner.source, []) if dims_of(owner.source) == self.inner else None
        if not isinstance(owner, BroadcastOp):
            return None
        own = dict(zip(owner.places, dims_of(owner.source), strict=True))
        dims = [ONE] * len(self.inner)
        for inner, outer in self.segments:
            there = [own.get(axis, ONE) for axis in outer]
            if all(dim == ONE for dim in there):
                continue
            if there != [self.outer[axis] for axis in outer]:
                return None
            for axis in inner:
                dims[axis] = self.inner[axis]
        thin = ReshapeOp(owner.source, dims)
        if not is_view(thin) and isinstance(root_of(owner.source).owner, (*PLACED, *LOOSE)):
            thin.erase()
            return None
        wide = BroadcastOp(thin.result, self.inner, range(len(dims)))
        return wide.result, [thin, wide]
