"""What the kernel of a group reads and writes, along which axes, and how many elements of each a program takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from xdsl.ir import BlockArgument, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.graph.points import FullOp, IotaOp, SizeOp
from tessera.ir.graph.structure import GroupOp
from tessera.ir.graph.sums import PartsOp, ReduceOp
from tessera.ir.graph.takes import TakeOp
from tessera.ir.graph.types import array_type, dim_of, dims_of, ordered, product
from tessera.schedule.fuse.outside import columns_beside, power_of_two
from tessera.schedule.fuse.places import NONE, Place, attribute_at, is_view, own_place, result_at, source_place
from tessera.schedule.fuse.writing import AXES, ROWS
from tessera.target.dims import Dim

PROGRAM, FEW = 4096, 1024
"""Elements that a program takes: of large arrays that differ in their inner axis, and of others. What a thread of a GPU
has of more is code that is loaded once for each launch, from cold caches."""
LARGE = 1 << 22
SQUARE = 64
"""Elements along each of two axes where arrays differ in which of them is the inner one."""


@dataclass(frozen=True, slots=True)
class Access:
    """One array as a kernel's parameter.

    Args:
        number: its place among the group's operands, or results.
        is_result: which of them.
        place: the axis of each dimension of the array.
        part: the axis along which a result has one element for each program, `NONE` where it has all.
        rank: of an array of which elements are taken, the number of its dimensions; 0 of others.
    """

    number: int
    is_result: bool
    place: Place
    part: int = NONE
    rank: int = 0

    def position(self, axis: int) -> int | None:
        """Return the dimension that goes along an axis."""
        return self.place.index(axis) if axis in self.place else None


@dataclass(frozen=True, slots=True)
class Axis:
    """Neighbouring axes of a group that are one axis of its kernel.

    Args:
        parts: the group's axes.
        block: elements of one program; 0 for the whole axis.
        size: its elements, where no parameter says how many there are.
    """

    parts: tuple[int, ...]
    block: int
    size: Dim | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a group's kernel.

    Args:
        accesses: what it reads, then what it writes.
        axes: its axes.
        sizes: the sizes that it is given as numbers.
    """

    accesses: tuple[Access, ...]
    axes: tuple[Axis, ...]
    sizes: tuple[Dim, ...]

    def along(self, access: Access) -> tuple[int, ...]:
        """Return the kernel's axis of each dimension of a parameter, in the array's order."""
        found = [self._axis_of(at) for at in access.place if at != NONE]
        return tuple(dict.fromkeys(found))

    def whole_along(self, access: Access) -> tuple[int, ...]:
        """Return those of its axes along which a parameter has all elements."""
        return tuple(axis for axis in self.along(access) if access.part not in self.axes[axis].parts)

    def at(self, sizes: Mapping[str, int]) -> Shape:
        """Return the form for sizes of symbols, which are compiled in where a program takes all of an axis unseen."""
        fixed = [
            axis if axis.size is None or axis.block else replace(axis, size=Dim((), axis.size.value(sizes) or 0))
            for axis in self.axes
        ]
        return replace(self, axes=tuple(fixed))

    def as_data(self) -> tuple[Any, ...]:
        """Return it as tuples of numbers and texts."""
        accesses = tuple((one.number, one.is_result, one.place, one.part, one.rank) for one in self.accesses)
        axes = tuple((axis.parts, axis.block, None if axis.size is None else str(axis.size)) for axis in self.axes)
        return accesses, axes, tuple(map(str, self.sizes))

    @classmethod
    def from_data(cls, data: Any) -> Shape:
        """Return the form that `as_data` was given; lists may stand for tuples."""
        accesses, axes, sizes = data
        read = tuple(Access(number, is_result, tuple(place), *rest) for number, is_result, place, *rest in accesses)
        along = tuple(Axis(tuple(parts), block, None if size is None else dim_of(size)) for parts, block, size in axes)
        return cls(read, along, tuple(map(dim_of, sizes)))

    def _axis_of(self, part: int) -> int:
        return next(number for number, axis in enumerate(self.axes) if part in axis.parts)


Strides = tuple[Dim, ...]
"""How far elements are apart along each dimension of an array."""


def row_major(dims: Sequence[Dim]) -> Strides:
    """Return the strides of an array whose elements lie side by side, in order."""
    return tuple(product(dims[axis + 1 :]) for axis in range(len(dims)))


def shape_of(
    group: GroupOp,
    inputs: Sequence[Strides | None],
    outputs: Sequence[Strides],
    hints: Mapping[str, int],
) -> Shape:
    """Return the form of a group's kernel.

    Args:
        group: the group.
        inputs: the strides of each operand, None where a call's say.
        outputs: the strides of each result.
        hints: sizes of the symbols at the first call, by which blocks are chosen; any others are right, too.
    """
    demand = _Demand(group)
    accesses = tuple(demand.accesses)
    whole: Any = group.attributes[AXES]
    dims = [dim_of(size.data) for size in whole.data]
    along: Any = group.attributes[ROWS]
    rows = {*along.get_values()}
    strides = [(outputs if access.is_result else inputs)[access.number] for access in accesses]
    fixed = demand.parts
    parts: list[list[int]] = [[0]] if dims else []
    for first, second in pairwise(range(len(dims))):
        together = (first in rows) == (second in rows) and not {first, second} & demand.counted
        if together and all(
            _is_one(*each, first, second, dims[second]) for each in zip(accesses, strides, strict=True)
        ):
            parts[-1].append(second)
        else:
            parts.append([second])
    sizes = [dim.value(hints) for dim in dims]
    known = [prod(FEW if (size := sizes[part]) is None else size for part in each) for each in parts]
    inner = [_inner(access, parts) for access in accesses if sum(at != NONE for at in access.place) > 1]
    blocks = _blocks(known, [each[0] in rows for each in parts], inner, [fixed.get(each[0], 0) for each in parts])
    axes = tuple(Axis(tuple(each), block) for each, block in zip(parts, blocks, strict=True))
    plain = Shape(accesses, axes, ())
    seen = {axis for access in accesses for axis in plain.whole_along(access)}
    axes = tuple(
        axis if number in seen else replace(axis, size=product(dims[part] for part in axis.parts))
        for number, axis in enumerate(axes)
    )
    asked = [axis.size for axis in axes if axis.size is not None and axis.block]
    return Shape(accesses, axes, tuple(dict.fromkeys((*demand.sizes, *asked))))


def _is_one(access: Access, strides: Strides | None, first: int, second: int, size: Dim) -> bool:
    """Return whether two axes are one for an array: a step along the first is all of the second, or it has neither."""
    before, after = access.position(first), access.position(second)
    if before is None or after is None:
        return before is after
    between = access.place[before + 1 : after]
    apart = before < after and all(at == NONE for at in between)
    return apart and strides is not None and strides[before] == ordered(size * strides[after])


def _inner(access: Access, parts: Sequence[Sequence[int]]) -> int | None:
    """Return the axis along which an array's elements are neighbours."""
    last = next((at for at in reversed(access.place) if at != NONE), None)
    return next((number for number, each in enumerate(parts) if last in each), None)


def _blocks(sizes: Sequence[int], rows: Sequence[bool], inner: Sequence[int | None], fixed: Sequence[int]) -> list[int]:
    """Return how many elements along each axis a program takes: rows whole, else as many as are neighbours."""
    if any(rows):
        blocks = [0 if row else block or 1 for row, block in zip(rows, fixed, strict=True)]
        if not rows[-1]:
            held = prod(size for size, row in zip(sizes, rows, strict=True) if row)
            blocks[-1] = min(power_of_two(sizes[-1]), columns_beside(held))
        return blocks
    if any(fixed):
        return _around(sizes, fixed)
    blocks = [1] * len(sizes)
    others = {axis for axis in inner if axis is not None and axis != len(sizes) - 1}
    left = PROGRAM if others and prod(sizes) >= LARGE else FEW
    square = SQUARE if left == PROGRAM else SQUARE // 2
    for axis in [len(sizes) - 1, *sorted(others)[-1:]] if others else []:
        blocks[axis] = min(power_of_two(sizes[axis]), square)
        left //= blocks[axis]
    for axis in reversed(range(len(sizes))):
        if left > 1 and (blocks[axis] == 1 or not others):
            blocks[axis] = min(power_of_two(sizes[axis]), left)
            left //= blocks[axis]
    return blocks


def _around(sizes: Sequence[int], fixed: Sequence[int]) -> list[int]:
    """Return blocks of which some are given."""
    blocks = [block or 1 for block in fixed]
    left = PROGRAM // max(fixed)
    for axis in reversed(range(len(sizes))):
        if not fixed[axis]:
            blocks[axis] = min(power_of_two(sizes[axis]), left)
            left //= blocks[axis]
    return blocks


class _Demand:
    """Walks from what a group writes to all that it reads.

    Args:
        group: the group.
    """

    def __init__(self, group: GroupOp) -> None:
        self.accesses: dict[Access, None] = {}
        self.counted: set[int] = set()
        """Axes whose places are asked for."""
        self.parts: dict[int, int] = {}
        """How many neighbours are combined along an axis."""
        self.sizes: list[Dim] = []
        self._seen: set[tuple[SSAValue, Place]] = set()
        end = group.body.block.last_op
        assert end is not None, "a group ends with its yield"
        places = [yielded_place(value) for value in end.operands]
        for value, place in zip(end.operands, places, strict=True):
            self._walk(value, place)
        results = enumerate(zip(end.operands, places, strict=True))
        self.accesses |= {Access(number, True, place, _part(value, place)): None for number, (value, place) in results}

    def _walk(self, value: SSAValue, place: Place) -> None:
        if (value, place) in self._seen:
            return
        self._seen.add((value, place))
        op = value.owner
        if isinstance(value, BlockArgument) or not isinstance(op, Operation):
            assert isinstance(value, BlockArgument), "operands of a group are its block's arguments"
            self.accesses[Access(value.index, False, place)] = None
        elif isinstance(op, IotaOp):
            self.counted |= {place[op.axis.data]} - {NONE}
        elif isinstance(op, SizeOp):
            self.sizes.append(op.dim)
        elif is_view(op):
            self._walk(op.operands[0], source_place(op, place))
        elif isinstance(op, TakeOp):
            self._walk_taken(op, place)
        elif not isinstance(op, FullOp):
            if isinstance(op, PartsOp):
                self.parts[place[op.axis.data]] = op.count.data
                self.counted.add(place[op.axis.data])
            for operand in op.operands:
                self._walk(operand, operand_place(op, place))

    def _walk_taken(self, op: TakeOp, place: Place) -> None:
        self.accesses[taken_access(op)] = None
        for at in op.places:
            if isinstance(at, int):
                self.counted |= {place[at]} - {NONE}
            else:
                self._walk(at, place)


def taken_access(op: TakeOp) -> Access:
    """Return the parameter of which elements are taken: it has all dimensions of the array."""
    assert isinstance(op.source, BlockArgument), "elements are taken of an operand of the group"
    return Access(op.source.index, False, (), rank=array_type(op.source).rank)


def _part(value: SSAValue, place: Place) -> int:
    """Return the axis along which a result has one element for each program."""
    return place[value.owner.axis.data] if isinstance(value.owner, PartsOp) else NONE


def yielded_place(value: SSAValue) -> Place:
    """Return the place of what a group writes: an operand that is only copied goes along the axes in order."""
    op = value.owner
    at = result_at(op) if isinstance(op, Operation) else None
    return own_place(dims_of(value)) if at is None else at


def operand_place(op: Operation, place: Place) -> Place:
    """Return the place of the operands of an op that computes something at a place."""
    at = attribute_at(op)
    return at if isinstance(op, ReduceOp) and at is not None else place
