"""Finds the tiles that are long along one dimension, and in which passes over chunks of it a program can compute them.

One pass computes all that depends on no reduction along the dimension, and these reductions; the next one computes what
depends on their results, and so on. A pass loads and computes again what it needs of what the passes before had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeGuard

from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import IsTerminator

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ElementwiseOp, RoundTf32Op, SplatOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.reduce import REDUCING, ReduceByOp, ReduceOp, ScanByOp, ScanOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import memory_of, profile_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.traits import has_trait
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.order import is_ordered

ACCESSES = (LoadOp, StoreOp, GatherOp, ScatterOp)
STORES = (StoreOp, ScatterOp)
SCANS = (ScanOp, ScanByOp)

_ALIKE = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op, PhiloxOp, SplatOp, ArangeOp, *SCANS, *ACCESSES)
"""Ops whose tiles all have one shape."""

Place = tuple[SSAValue, int]
"""A tile, and which of its dimensions is long."""


CARRIED = "loops or branches carry them"


class Whole(Exception):
    """Why tiles are not computed chunk by chunk."""


@dataclass(frozen=True)
class Passes:
    """Long tiles of a block, and the passes in which they can be computed.

    Args:
        block: the block.
        size: how long they are.
        axes: the long dimension of each of them.
        ops: all ops on them, in program order.
        loops: the ops that each pass needs, in program order.
        between: the other ops from the first to the last of `ops`, each with the pass that it has to come before.
    """

    block: Block
    size: int
    axes: Mapping[SSAValue, int]
    ops: Sequence[Operation]
    loops: Sequence[Sequence[Operation]]
    between: Sequence[tuple[Operation, int]]

    def reduced(self, op: Operation) -> TypeGuard[ReduceOp | ReduceByOp]:
        """Return whether an op is a reduction along the long dimension."""
        return _is_reduction(op, self.axes)

    def scanned(self, op: Operation) -> TypeGuard[ScanOp | ScanByOp]:
        """Return whether an op is a scan along the long dimension."""
        return _is_scan(op, self.axes)


def _is_reduction(op: Operation, axes: Mapping[SSAValue, int]) -> bool:
    """Return whether an op is a reduction along the long dimension."""
    return isinstance(op, ReduceOp | ReduceByOp) and op.operands[0] in axes and op.results[0] not in axes


def _is_scan(op: Operation, axes: Mapping[SSAValue, int]) -> bool:
    """Return whether an op is a scan along the long dimension."""
    return isinstance(op, SCANS) and op.results[0] in axes and op.axis.data == axes[op.results[0]]


def passes_over(tile: SSAValue, axis: int) -> Passes:
    """Return the passes that compute a tile, and all that goes with it, chunk by chunk along a dimension.

    Raises:
        Whole: there are none; the text says why.
    """
    size, axes = shape_of(tile.type)[axis], _connected(tile, axis)
    on_them = {op: None for value in axes for op in _around(value)}
    block = tile.owner.parent_block() if isinstance(tile.owner, Operation) else None
    if block is None or any(op.parent_block() is not block for op in on_them):
        raise Whole("branches or loops use them")
    ops = [op for op in block.ops if op in on_them]
    _check_order(ops, axes)
    region = _from_to(ops[0], ops[-1])
    levels = _levels(region, axes)
    last = max(levels[op] for op in ops)
    chosen: Sequence[Sequence[Operation]] = ()
    for place in (levels, {op: last if isinstance(op, STORES) else level for op, level in levels.items()}):
        chosen = [_needed(ops, axes, place, number) for number in range(last + 1)]
        reason = _conflict(region, chosen, levels, axes)
        if not reason:
            break
    else:
        raise Whole(reason)
    between = [(op, levels[op]) for op in region if op not in on_them]
    return Passes(block, size, axes, ops, chosen, between)


# Which tiles


def _around(value: SSAValue) -> Iterator[Operation]:
    if isinstance(value.owner, Operation):
        yield value.owner
    yield from (use.operation for use in value.uses)


def _connected(tile: SSAValue, axis: int) -> dict[SSAValue, int]:
    """Return the tiles that have to be computed in the same chunks, and the dimension of each of them."""
    axes, work = {tile: axis}, [tile]
    while work:
        value = work.pop()
        if isinstance(value.owner, Block):
            raise Whole(CARRIED)
        for op in _around(value):
            for other, place in _linked(op, value, axes[value]):
                if other not in axes:
                    axes[other] = place
                    work.append(other)
                elif axes[other] != place:
                    raise Whole("one dimension of a tile is another one of the same tile")
    return axes


def _linked(op: Operation, value: SSAValue, axis: int) -> Iterable[Place]:
    """Return which dimensions of an op's other tiles are that of one of its tiles."""
    if isinstance(op, _ALIKE):
        return [(tile, axis) for tile in (*op.operands, *op.results) if isinstance(tile.type, TileType)]
    if isinstance(op, BroadcastOp):
        return [(tile, axis) for tile in (op.source, op.result) if shape_of(tile.type)[axis] != 1]
    if isinstance(op, ReduceOp | ReduceByOp):
        return _of_reduction(op, value, axis)
    if isinstance(op, TransposeOp):
        order = op.permutation
        first, second = (axis, order.index(axis)) if value is op.source else (order[axis], axis)
        return [(op.source, first), (op.result, second)]
    if isinstance(op, ReshapeOp):
        return [(op.source, _same_place(value, axis, op.source)), (op.result, _same_place(value, axis, op.result))]
    raise Whole(CARRIED if op.name.startswith("scf.") else f"{op.name.split('.')[-1]} takes or gives all of one")


def _of_reduction(op: ReduceOp | ReduceByOp, value: SSAValue, axis: int) -> list[Place]:
    along = op.axis.data
    if value in op.results:
        axis += axis >= along
    places = [(tile, axis) for tile in op.operands]
    return places if axis == along else [*places, *((tile, axis - (axis > along)) for tile in op.results)]


def _same_place(value: SSAValue, axis: int, other: SSAValue) -> int:
    """Return which dimension of a tile's other shape a dimension is."""
    before, after = shape_of(value.type), shape_of(other.type)
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            return place
    raise Whole("a change of shape splits or merges their dimension")


# In which passes


def _from_to(first: Operation, last: Operation) -> list[Operation]:
    found = [first]
    while found[-1] is not last:
        after = found[-1].next_op
        assert after is not None
        found.append(after)
    return found


def _check_order(ops: Sequence[Operation], axes: Mapping[SSAValue, int]) -> None:
    """Check that the profile leaves the order of reductions and scans along the dimension open."""
    for op in ops:
        if not isinstance(op, REDUCING) or op.axis.data != axes[op.operands[0]]:
            continue
        by = isinstance(op, ReduceByOp | ScanByOp)
        profile, element = profile_of(op), element_of(op.operands[0].type)
        if (profile == "strict" and by) or (not by and is_ordered(profile, op.fn.data, dtype_of(element).is_float)):
            raise Whole("strict gives the order in which they are combined")


def _levels(region: Sequence[Operation], axes: Mapping[SSAValue, int]) -> dict[Operation, int]:
    """Return the first pass in which each op can be computed; ops that are none of a pass come just before it."""
    levels, ready, latest = dict[Operation, int](), dict[SSAValue, int](), dict[SSAValue, int]()
    others = [op for op in region if not any(value in axes for value in (*op.operands, *op.results))]
    stored = {memory for op in others for memory, stores in _accessed(op) if stores}
    for op in region:
        values = [value for inner in ops_in(op) for value in inner.operands]
        level = max((ready.get(value, 0) for value in values), default=0)
        if op in others:  # what they store comes in program order
            memories = [memory for memory, _ in _accessed(op) if memory in stored]
            level = max([level, *(latest.get(memory, 0) for memory in memories)])
            latest.update(dict.fromkeys(memories, level))
        levels[op] = level
        ready.update(dict.fromkeys(op.results, level + _is_reduction(op, axes)))
    return levels


def _accessed(op: Operation) -> list[tuple[SSAValue, bool]]:
    """Return the memories that an op, or one in it, accesses, each with whether it stores."""
    return [(memory_of(each.tensor), isinstance(each, STORES)) for each in ops_in(op) if isinstance(each, ACCESSES)]


def _needed(
    ops: Sequence[Operation], axes: Mapping[SSAValue, int], levels: Mapping[Operation, int], number: int
) -> list[Operation]:
    """Return the ops that a pass needs for its stores and reductions."""
    found = set[Operation]()
    for op in reversed(ops):
        ends = isinstance(op, STORES) or _is_reduction(op, axes)
        if ends and levels[op] == number:
            found.add(op)
        if op in found:
            found.update(value.owner for value in op.operands if value in axes and isinstance(value.owner, Operation))
    needed = [op for op in ops if op in found]
    if len({op.reverse is not None for op in needed if isinstance(op, SCANS) and _is_scan(op, axes)}) > 1:
        raise Whole("scans from both ends meet")
    return needed


def _conflict(
    region: Sequence[Operation],
    loops: Sequence[Sequence[Operation]],
    levels: Mapping[Operation, int],
    axes: Mapping[SSAValue, int],
) -> str:
    """Return what accesses would not come in program order, empty where all do."""
    when = dict[Operation, list[int]]()
    for number, ops in enumerate(loops):
        for op in ops:
            when.setdefault(op, []).append(number)
    accesses = dict[SSAValue, list[_Access]]()
    for op in region:
        for inner in [op] if op in when else ops_in(op):
            if isinstance(inner, ACCESSES):
                access = _Access(inner, when.get(op, [levels[op]]), op in when)
                accesses.setdefault(memory_of(inner.tensor), []).append(access)
            elif not (inner.regions or has_trait(inner, IsTerminator) or effect_of(inner) <= Effect.RANDOM):
                return f"{inner.name.split('.')[-1]} stands between them"
    for found in accesses.values():
        if not all(_in_order(a, b, axes) for place, a in enumerate(found) for b in found[place + 1 :]):
            return "a tensor that they are stored to is accessed in other passes or places"
    return ""


@dataclass(frozen=True)
class _Access:
    """An access to memory.

    Args:
        op: the access.
        passes: in which passes it is done; or the one that it comes before.
        long: whether it is done in passes.
    """

    op: Operation
    passes: Sequence[int]
    long: bool


def _in_order(before: _Access, after: _Access, axes: Mapping[SSAValue, int]) -> bool:
    """Return whether two accesses of one memory come in the order of the program where one is a store."""
    if not isinstance(before.op, STORES) and not isinstance(after.op, STORES):
        return True
    first, second = max(before.passes), min(after.passes)
    if before.long != after.long:
        return False
    return first < second or (first == second and (not before.long or _one_box(before.op, after.op, axes)))


def _one_box(before: Operation, after: Operation, axes: Mapping[SSAValue, int]) -> bool:
    """Return whether two accesses are of one box, cut along one dimension: then different chunks lie apart."""
    return (
        isinstance(before, LoadOp | StoreOp)
        and isinstance(after, LoadOp | StoreOp)
        and before.tensor is after.tensor
        and list(before.offsets) == list(after.offsets)
        and before.size_list == after.size_list
        and _cut(before, axes) == _cut(after, axes)
    )


def is_whole(op: Operation, passes: Passes) -> bool:
    """Return whether an access is of a box with all of its tensor's elements along the long dimension."""
    if not isinstance(op, LoadOp | StoreOp):
        return False
    axis = _cut(op, passes.axes)
    return op.tensor.type.shape[axis] == passes.size and constant_value(op.offsets[axis]) == 0


def _cut(op: LoadOp | StoreOp, axes: Mapping[SSAValue, int]) -> int:
    """Return which dimension of a tensor the chunks of a box lie along."""
    return op.kept[axes[op.result if isinstance(op, LoadOp) else op.value]]
