"""Where values lie in a group: for each dimension of a value the axis of the group that it goes along."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from xdsl.ir import Operation, SSAValue

from tessera.ir.graph.points import CastOp, FullOp, IotaOp, MapOp, SizeOp
from tessera.ir.graph.structure import CallOp
from tessera.ir.graph.sums import ContractOp, PartsOp, ReduceOp
from tessera.ir.graph.takes import AddRowsOp, TakeOp
from tessera.ir.graph.types import ONE, dims_of
from tessera.ir.graph.views import BroadcastOp, ReshapeOp, TransposeOp
from tessera.target.dims import Dim

Place = tuple[int, ...]
"""The axis of each dimension; `NONE` for a dimension of size 1."""
NONE = -1
AT = "at"
"""The attribute of an op in a group that says at which place it works: a reduction, that of its operand."""
PLACED = (MapOp, CastOp, ReduceOp, PartsOp, TakeOp)
"""Ops that compute something, each once in a group."""
LOOSE = (FullOp, SizeOp, IotaOp)
"""Ops without operands, which each reader has for itself."""
LIBRARY = (CallOp, ContractOp, AddRowsOp)
"""Ops with code of their own, which read and write arrays in memory."""


def own_place(dims: Sequence[Dim]) -> Place:
    """Return the place of a value whose dimensions, other than ones, are all axes of a group, in order."""
    numbers = count()
    return tuple(NONE if dim == ONE else next(numbers) for dim in dims)


def after(op: Operation, at: Place) -> Place:
    """Return the place of an op's result from the place that it works at: a reduction's dimensions disappear."""
    reduced = op.reduced if isinstance(op, ReduceOp) else ()
    return tuple(axis for number, axis in enumerate(at) if number not in reduced)


def attribute_at(op: Operation) -> Place | None:
    """Return the place that an op in a group works at, None for one that each reader has at a place of its own."""
    found: Any = op.attributes.get(AT)
    return None if found is None else tuple(found.get_values())


def result_at(op: Operation) -> Place | None:
    """Return the place of an op's result in a group, None likewise."""
    at = attribute_at(op)
    return None if at is None else after(op, at)


def is_view(op: Operation | object) -> bool:
    """Return whether an op only says which elements of its source are meant, by permuted, new and left out axes."""
    return isinstance(op, BroadcastOp | TransposeOp) or (isinstance(op, ReshapeOp) and op.places is not None)


def source_place(view: Operation, place: Place) -> Place:
    """Return the place of a view's source from that of its result."""
    assert isinstance(view, BroadcastOp | TransposeOp | ReshapeOp), "a view"
    dims = dims_of(view.source)
    found = [NONE] * len(dims)
    for axis, of in _pairs(view):
        found[of] = place[axis]
    return tuple(NONE if dim == ONE else at for dim, at in zip(dims, found, strict=True))


def result_place(view: Operation, place: Place, new: Sequence[int] = ()) -> Place:
    """Return the place of a view's result from that of its source.

    Args:
        view: the view.
        place: that of its source.
        new: the axes of the dimensions that a broadcast adds or repeats, other than ones, in order.
    """
    assert isinstance(view, BroadcastOp | TransposeOp | ReshapeOp), "a view"
    dims, of, fresh = dims_of(view.result), dict(_pairs(view)), iter(new)
    known = [place[of[axis]] if axis in of else NONE for axis in range(len(dims))]
    return tuple(NONE if dim == ONE else at if at != NONE else next(fresh) for dim, at in zip(dims, known, strict=True))


def _pairs(view: BroadcastOp | TransposeOp | ReshapeOp) -> list[tuple[int, int]]:
    """Return dimensions of the result, each with the dimension of the source that it is."""
    if isinstance(view, BroadcastOp):
        return [(axis, of) for of, axis in enumerate(view.places)]
    if isinstance(view, TransposeOp):
        return list(enumerate(view.permutation))
    places = view.places
    assert places is not None, "only ones come and go"
    return [(axis, of) for axis, of in enumerate(places) if of is not None]


def new_axes(view: Operation) -> tuple[int, ...]:
    """Return the dimensions of a view's result that are not 1 and that its source lacks, or has as 1."""
    if not isinstance(view, BroadcastOp):
        return ()
    source, of = dims_of(view.source), dict(_pairs(view))
    dims = enumerate(dims_of(view.result))
    return tuple(axis for axis, dim in dims if dim != ONE and (axis not in of or source[of[axis]] == ONE))


def root_of(value: SSAValue) -> SSAValue:
    """Return what a chain of views is a view of."""
    while isinstance(value.owner, Operation) and is_view(value.owner):
        value = value.owner.operands[0]
    return value


def origin_of(value: SSAValue) -> SSAValue:
    """Return what a value repeats, or has in another dtype."""
    value = root_of(value)
    while isinstance(value.owner, CastOp):
        value = root_of(value.owner.source)
    return value


def insert(made: list[Operation], before: Operation) -> None:
    """Put ops before another, with its place in the source."""
    block = before.parent_block()
    assert block is not None, "an op of a graph is in its block"
    for one in made:
        one.location = before.location
        block.insert_op_before(one, before)


def is_spread(value: SSAValue) -> bool:
    """Return whether maps of a value are repeated along more dimensions."""
    work, seen = [value], set[SSAValue]()
    while work:
        one = work.pop()
        if one in seen:
            continue
        seen.add(one)
        users = [use.operation for use in one.uses]
        if any(isinstance(user, BroadcastOp) for user in users):
            return True
        work += [user.results[0] for user in users if isinstance(user, MapOp | CastOp | ReshapeOp | TransposeOp)]
    return False
