"""Rewrites the body of a grid so that dimensions of its tiles are cut into parts, each part a tile of its own.

Tiles lie in registers and in matrix instructions by powers of two. A dimension of 96 elements can be padded to 128, at
the price of a quarter of the work, or be computed as parts of 64 and of 32: no register, no byte of shared memory and
no product is spent on what is not there, and all that is known about layouts serves the parts as it serves any tile.

A dimension is one of all the tiles that share it: what an elementwise op combines, what a product sums over, what a
loop carries. `Dimensions` finds them, and why one cannot be cut; `Splitter` cuts. Of a dimension that groups of
consumers divide, it keeps one part, which begins at a place of each group's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.attributes import ints
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import (
    ArangeOp,
    BitcastOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    RoundTf32Op,
    SplatOp,
)
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.roles import RoleGroupOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import GridOp, profile_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.numerics.functions import COMBINE

Axis = tuple[SSAValue, int]
"""A dimension of one tile."""
Key = tuple[int, ...]
"""Which part of a tile: a number in each dimension."""


class Dimensions:
    """The dimensions of a launch's tiles.

    Args:
        grid: the launch.
    """

    def __init__(self, grid: GridOp) -> None:
        self._same: dict[Axis, Axis] = {}
        self._whole: dict[Axis, str] = {}
        for op in grid.walk():
            if op is not grid:
                _RELATIONS.get(type(op), _unknown)(self, op)

    def of(self, value: SSAValue, axis: int) -> Axis:
        """Return the dimension that an axis of a tile belongs to."""
        at = (value, axis)
        while at in self._same:
            at = self._same[at]
        return at

    def why_whole(self, dimension: Axis) -> str | None:
        """Return why a dimension cannot be cut, None where it can."""
        return self._whole.get(dimension)

    # What relations tell

    def same(self, value: SSAValue, axis: int, other: SSAValue, other_axis: int) -> None:
        """Say that two axes are of one dimension."""
        one, two = self.of(value, axis), self.of(other, other_axis)
        if one != two:
            self._same[one] = two
            if (reason := self._whole.pop(one, None)) is not None:
                self._whole.setdefault(two, reason)

    def alike(self, values: Sequence[SSAValue]) -> None:
        """Say that tiles of one shape have the same dimensions."""
        tiles = [value for value in values if isinstance(value.type, TileType)]
        for value in tiles[1:]:
            for axis in range(len(shape_of(value.type))):
                self.same(tiles[0], axis, value, axis)

    def whole(self, value: SSAValue, axis: int, reason: str) -> None:
        """Say that a dimension cannot be cut."""
        self._whole.setdefault(self.of(value, axis), reason)


class Splitter:
    """A launch whose dimensions are being cut.

    Args:
        dimensions: the dimensions of its tiles.
        cuts: the sizes of the parts of those that are cut; one part of another size changes a dimension's size.
        steps: the new steps of loops.
        shared: the dimensions of which groups of consumers have a part each, of the size that they are cut to.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        cuts: Mapping[Axis, Sequence[int]],
        steps: Mapping[scf.ForOp, int] | None = None,
        shared: Collection[Axis] = (),
    ) -> None:
        self._dimensions, self._cuts, self._steps, self._shared = dimensions, cuts, steps or {}, shared
        self._own: dict[Axis, SSAValue] = {}
        self._values: dict[SSAValue, SSAValue] = {}
        self._parts: dict[tuple[SSAValue, Key], SSAValue] = {}
        self._moved: dict[tuple[Block, SSAValue, int, SSAValue | None], SSAValue] = {}
        self._blocks: list[Block] = []
        self._like: Operation | None = None

    def grid_of_parts(self, grid: GridOp) -> GridOp:
        """Return the new launch; it is not inserted."""
        new = GridOp(list(grid.extents), list(grid.block_sizes), grid.guard)
        new.location = grid.location
        new.attributes.update(grid.attributes)
        self._values.update(zip(grid.body.block.args, new.body.block.args, strict=True))
        if self._shared:
            insert = Inserter(InsertPoint.at_end(new.body.block), grid)
            group = insert.value(RoleGroupOp())
            for axis in self._shared:
                self._own[axis] = insert.binary("mul", group, insert.constant(self._cuts[axis][0]))
        self._fill(new.body.block, grid.body.block)
        return new

    # What handlers build with

    def add(self, op: Operation) -> Operation:
        """Add an op to the block that is being filled."""
        assert self._like is not None
        return Inserter(InsertPoint.at_end(self._blocks[-1]), self._like).add(op)

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        return self.add(op).results[0]

    def sizes(self, value: SSAValue, axis: int) -> Sequence[int]:
        """Return the sizes of the parts of an axis: one where it is not cut."""
        return self._cuts.get(self._dimensions.of(value, axis), (shape_of(value.type)[axis],))

    def is_cut(self, value: SSAValue) -> bool:
        """Return whether a value is a tile with a dimension that is cut."""
        axes = range(len(shape_of(value.type))) if isinstance(value.type, TileType) else ()
        return any(self._dimensions.of(value, axis) in self._cuts for axis in axes)

    def keys(self, value: SSAValue) -> list[Key]:
        """Return the parts of a value, in order; a scalar has one."""
        axes = range(len(shape_of(value.type)))
        return list(product(*(range(len(self.sizes(value, axis))) for axis in axes)))

    def shape(self, value: SSAValue, key: Key) -> list[int]:
        """Return the shape of a part."""
        return [self.sizes(value, axis)[part] for axis, part in enumerate(key)]

    def start(self, value: SSAValue, axis: int, part: int) -> int:
        """Return where a part of an axis starts."""
        return sum(self.sizes(value, axis)[:part])

    def own(self, value: SSAValue, axis: int) -> SSAValue | None:
        """Return where the group's part of an axis begins, None where groups do not divide it."""
        return self._own.get(self._dimensions.of(value, axis))

    def type_of(self, value: SSAValue, key: Key) -> Attribute:
        """Return the type of a part."""
        shape = self.shape(value, key)
        return TileType.of(shape, element_of(value.type)) if shape else value.type

    def part(self, value: SSAValue, key: Key) -> SSAValue:
        """Return a part of a tile, or the new value of what is not cut."""
        return self._parts[value, key] if self.is_cut(value) else self._values.get(value, value)

    def define(self, value: SSAValue, key: Key, new: SSAValue) -> None:
        """Say what a part of a result is."""
        if self.is_cut(value):
            self._parts[value, key] = new
        else:
            self._values[value] = new

    def moved(self, offset: SSAValue, by: int, own: SSAValue | None = None) -> SSAValue:
        """Return an offset some elements further, and where a group's part begins: one value for each place in a block.

        Args:
            offset: the offset.
            by: the elements.
            own: where the part of the group begins, None for no such part.
        """
        new = self._values.get(offset, offset)
        at = (self._blocks[-1], new, by, own)
        if (by or own is not None) and at not in self._moved:
            assert self._like is not None
            insert = Inserter(InsertPoint.at_end(self._blocks[-1]), self._like)
            moved = insert.binary("add", new, insert.constant(by)) if by else new
            self._moved[at] = moved if own is None else insert.binary("add", moved, own)
        return self._moved.get(at, new)

    def again(self, op: Operation, operands: Sequence[SSAValue], results: Sequence[Attribute]) -> Operation:
        """Add an op like another one, of other operands and types."""
        new = type(op).create(
            operands=operands, result_types=results, properties=dict(op.properties), attributes=dict(op.attributes)
        )
        return self.add(new)

    # Blocks

    def _fill(self, block: Block, old: Block) -> None:
        self._blocks.append(block)
        for op in old.ops:
            self._like = op
            if isinstance(op, scf.ForOp):
                self._loop(op)
            elif isinstance(op, scf.IfOp):
                self._branch(op)
            elif isinstance(op, scf.YieldOp):
                self.add(scf.YieldOp(*self._all_parts(op.operands)))
            elif any(self.is_cut(value) for value in (*op.operands, *op.results)):
                _HANDLERS[type(op)](self, op)
            else:
                self._whole(op)
        self._blocks.pop()

    def _whole(self, op: Operation) -> None:
        """Do an op on what is not cut; its regions may use what is."""
        regions = [[Block(arg_types=[a.type for a in block.args]) for block in region.blocks] for region in op.regions]
        new = type(op).create(
            operands=[self._values.get(operand, operand) for operand in op.operands],
            result_types=[result.type for result in op.results],
            properties=dict(op.properties),
            attributes=dict(op.attributes),
            regions=[Region(blocks) for blocks in regions],
        )
        self.add(new)
        for blocks, region in zip(regions, op.regions, strict=True):
            for block, old in zip(blocks, region.blocks, strict=True):
                self._values.update(zip(old.args, block.args, strict=True))
                self._fill(block, old)
        self._values.update(zip(op.results, new.results, strict=True))

    def _all_parts(self, values: Sequence[SSAValue]) -> list[SSAValue]:
        return [self.part(value, key) for value in values for key in self.keys(value)]

    def _define_all(self, values: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        places = [(value, key) for value in values for key in self.keys(value)]
        for (value, key), part in zip(places, new, strict=True):
            self.define(value, key, part)

    def _loop(self, op: scf.ForOp) -> None:
        bounds = [self.part(bound, ()) for bound in (op.lb, op.ub, op.step)]
        if op in self._steps:
            bounds[2] = self.value(ConstantOp(self._steps[op], index))
        initial, old = self._all_parts(op.iter_args), op.body.block
        body = Block(arg_types=[old.args[0].type, *(value.type for value in initial)])
        new = scf.ForOp(bounds[0], bounds[1], bounds[2], initial, Region(body))
        new.attributes.update(op.attributes)
        self.add(new)
        self._define_all(old.args, body.args)
        self._fill(body, old)
        self._define_all(op.results, new.results)

    def _branch(self, op: scf.IfOp) -> None:
        blocks = [Block() if region.blocks else None for region in (op.true_region, op.false_region)]
        regions = [Region(block) if block is not None else Region() for block in blocks]
        types = [self.type_of(result, key) for result in op.results for key in self.keys(result)]
        new = scf.IfOp(self.part(op.cond, ()), types, regions[0], regions[1])
        new.attributes.update(op.attributes)
        self.add(new)
        for block, region in zip(blocks, (op.true_region, op.false_region), strict=True):
            if block is not None:
                self._fill(block, region.block)
        self._define_all(op.results, new.results)


# Ops: which dimensions they share, and how they are computed part by part

_Relation = Callable[[Dimensions, Any], None]
_Handler = Callable[[Splitter, Any], None]
_RELATIONS: dict[type[Operation], _Relation] = {}
_HANDLERS: dict[type[Operation], _Handler] = {}
_R = TypeVar("_R", bound=_Relation)
_H = TypeVar("_H", bound=_Handler)


def _relates(*ops: type[Operation]) -> Callable[[_R], _R]:
    def enter(relation: _R) -> _R:
        _RELATIONS.update(dict.fromkeys(ops, relation))
        return relation

    return enter


def _handles(*ops: type[Operation]) -> Callable[[_H], _H]:
    def enter(handler: _H) -> _H:
        _HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return enter


def _unknown(dims: Dimensions, op: Operation) -> None:
    """Keep all that an op touches whole, and all that the regions inside of it carry."""
    name = op.name.removeprefix("tessera_tile.").removeprefix("scf.")
    inside = [value for region in op.regions for block in region.blocks for value in block.args]
    for value in (*op.operands, *op.results, *inside):
        for axis in range(len(shape_of(value.type)) if isinstance(value.type, TileType) else 0):
            dims.whole(value, axis, f"{name} takes all of it")


@_relates(scf.ForOp)
def _carries(dims: Dimensions, op: scf.ForOp) -> None:
    for values in zip(op.iter_args, op.body.block.args[1:], op.results, strict=True):
        dims.alike(values)


@_relates(scf.IfOp)
def _branches(_dims: Dimensions, _op: scf.IfOp) -> None:
    """Its yields relate what it gives."""


@_relates(scf.YieldOp)
def _yields(dims: Dimensions, op: scf.YieldOp) -> None:
    parent = op.parent_op()
    if isinstance(parent, scf.ForOp | scf.IfOp):
        for values in zip(op.operands, parent.results, strict=True):
            dims.alike(values)
    else:
        _unknown(dims, op)


_POINTWISE = (ElementwiseOp, BitcastOp, RoundTf32Op, SplatOp, PhiloxOp, GatherOp, ScatterOp)


@_relates(CastOp, *_POINTWISE)
def _same_places(dims: Dimensions, op: Operation) -> None:
    dims.alike([*op.operands, *op.results])


@_handles(*_POINTWISE)
def _pointwise(split: Splitter, op: Operation) -> None:
    like = next(value for value in (*op.results, *op.operands) if isinstance(value.type, TileType))
    for key in split.keys(like):
        operands = [split.part(o, key if isinstance(o.type, TileType) else ()) for o in op.operands]
        new = split.again(op, operands, [split.type_of(result, key) for result in op.results])
        for result, part in zip(op.results, new.results, strict=True):
            split.define(result, key, part)


@_relates(ArangeOp)
def _counts(_dims: Dimensions, _op: ArangeOp) -> None:
    """Its dimension is its own."""


@_handles(ArangeOp)
def _arange(split: Splitter, op: ArangeOp) -> None:
    _count(split, op, op.result)


@_handles(CastOp)
def _cast(split: Splitter, op: CastOp) -> None:
    """Cast a tile; of numbers of elements, those of a part, to which where it begins is added in the wider type."""
    source, element = op.source.owner, element_of(op.result.type)
    if isinstance(source, ArangeOp) and _is_widened(element_of(source.result.type), element):
        _count(split, source, op.result)
    else:
        _pointwise(split, op)


def _is_widened(source: Attribute, result: Attribute) -> bool:
    """Return whether a type holds all integers of another one."""
    if source == index or result == index:
        return result == index
    narrow, wide = dtype_of(source), dtype_of(result)
    return narrow.kind == wide.kind and narrow.is_int and wide.bits >= narrow.bits


def _count(split: Splitter, op: ArangeOp, result: SSAValue) -> None:
    """Define a result as the numbers of elements, in its own type."""
    own, element = element_of(op.result.type), element_of(result.type)
    for key in split.keys(result):
        (size,), first = split.shape(result, key), split.start(result, 0, key[0])
        part = split.value(ArangeOp(size, own))
        part = part if element == own else split.value(CastOp(part, element))
        starts = [split.value(ConstantOp(first, element))] if first else []
        if (begin := split.own(result, 0)) is not None:
            starts.append(begin if element == index else split.value(CastOp(begin, element)))
        for start in starts:
            part = split.value(ElementwiseOp("add", [part, split.value(SplatOp(start, [size]))]))
        split.define(result, key, part)


@_relates(BroadcastOp)
def _grows(dims: Dimensions, op: BroadcastOp) -> None:
    for axis, size in enumerate(shape_of(op.source.type)):
        if size != 1 or shape_of(op.result.type)[axis] == 1:
            dims.same(op.source, axis, op.result, axis)


@_handles(BroadcastOp)
def _broadcast(split: Splitter, op: BroadcastOp) -> None:
    small = shape_of(op.source.type)
    for key in split.keys(op.result):
        source = split.part(op.source, tuple(0 if small[axis] == 1 else part for axis, part in enumerate(key)))
        split.define(op.result, key, split.value(BroadcastOp(source, split.shape(op.result, key))))


@_relates(TransposeOp)
def _turns(dims: Dimensions, op: TransposeOp) -> None:
    for axis, source in enumerate(op.permutation):
        dims.same(op.source, source, op.result, axis)


@_handles(TransposeOp)
def _transpose(split: Splitter, op: TransposeOp) -> None:
    for key in split.keys(op.source):
        new = split.value(TransposeOp(split.part(op.source, key), op.permutation))
        split.define(op.result, tuple(key[axis] for axis in op.permutation), new)


def _kept_axes(op: ReshapeOp) -> list[tuple[int, int]]:
    """Return which axes of more than one element stay what they are: as many elements lie before and along both."""
    ends = [_by_elements_before(shape_of(value.type)) for value in (op.source, op.result)]
    return [(axis, ends[1][at]) for at, axis in ends[0].items() if at in ends[1]]


def _by_elements_before(shape: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return the axes of more than one element by how many of all before they have, and how many of their own."""
    return {(prod(shape[:axis]), size): axis for axis, size in enumerate(shape) if size != 1}


@_relates(ReshapeOp)
def _reshapes(dims: Dimensions, op: ReshapeOp) -> None:
    pairs = _kept_axes(op)
    kept = {(value, axis) for pair in pairs for value, axis in zip((op.source, op.result), pair, strict=True)}
    for value in (op.source, op.result):
        for axis, size in enumerate(shape_of(value.type)):
            if size != 1 and (value, axis) not in kept:
                dims.whole(value, axis, "reshape takes all of it")
    for source, result in pairs:
        dims.same(op.source, source, op.result, result)


@_handles(ReshapeOp)
def _reshape(split: Splitter, op: ReshapeOp) -> None:
    for key in split.keys(op.result):
        source = [0] * len(shape_of(op.source.type))
        for axis, at in _kept_axes(op):
            source[axis] = key[at]
        new = ReshapeOp(split.part(op.source, tuple(source)), split.shape(op.result, key))
        split.define(op.result, key, split.value(new))


@_relates(ReduceOp)
def _reduces(dims: Dimensions, op: ReduceOp) -> None:
    axis = op.axis.data
    others = [at for at in range(len(shape_of(op.source.type))) if at != axis]
    for at, source in enumerate(others):
        dims.same(op.source, source, op.result, at)
    ordered = dtype_of(element_of(op.source.type)).is_float and op.fn.data in ("sum", "prod")
    if ordered and profile_of(op) == "strict":
        dims.whole(op.source, axis, "strict gives the order of its sum")


@_handles(ReduceOp)
def _reduce(split: Splitter, op: ReduceOp) -> None:
    axis = op.axis.data
    for key in split.keys(op.result):
        total: SSAValue | None = None
        for part in range(len(split.sizes(op.source, axis))):
            source = split.part(op.source, (*key[:axis], part, *key[axis:]))
            one = split.value(ReduceOp(source, axis, op.fn.data))
            total = one if total is None else split.value(ElementwiseOp(COMBINE[op.fn.data], [total, one]))
        assert total is not None
        split.define(op.result, key, total)


@_relates(MmaOp)
def _multiplies(dims: Dimensions, op: MmaOp) -> None:
    if any(not isinstance(v.type, TileType) or v.type.rank != 2 for v in (op.a, op.b, op.acc)):
        _unknown(dims, op)
        return
    dims.alike([op.acc, op.result])
    dims.same(op.a, 0, op.acc, 0)
    dims.same(op.a, 1, op.b, 0)
    dims.same(op.b, 1, op.acc, 1)


@_handles(MmaOp)
def _multiply(split: Splitter, op: MmaOp) -> None:
    for row, column in split.keys(op.result):
        total = split.part(op.acc, (row, column))
        for k in range(len(split.sizes(op.a, 1))):
            a, b = split.part(op.a, (row, k)), split.part(op.b, (k, column))
            total = split.again(op, [a, b, total], [total.type]).results[0]
        split.define(op.result, (row, column), total)


@_relates(LoadOp, StoreOp)
def _boxes(dims: Dimensions, op: LoadOp | StoreOp) -> None:
    tile = op.result if isinstance(op, LoadOp) else op.value
    dims.alike([tile, *([op.mask] if op.mask is not None else [])])


def _part_boxes(split: Splitter, op: LoadOp | StoreOp, tile: SSAValue) -> Iterator[tuple[Key, list[SSAValue], Any]]:
    """Yield each part of a box: its key, its offsets, and the properties that an op on it has."""
    for key in split.keys(tile):
        offsets, sizes = [split.part(offset, ()) for offset in op.offsets], list(op.size_list)
        for axis, (at, part) in enumerate(zip(op.kept, key, strict=True)):
            offsets[at] = split.moved(op.offsets[at], split.start(tile, axis, part), split.own(tile, axis))
            sizes[at] = split.sizes(tile, axis)[part]
        yield key, offsets, {**op.properties, "sizes": ints(sizes)}


@_handles(LoadOp)
def _load(split: Splitter, op: LoadOp) -> None:
    for key, offsets, properties in _part_boxes(split, op, op.result):
        rest = [split.part(op.mask, key)] if op.mask is not None else []
        rest += [split.part(op.fill, ())] if op.fill is not None else []
        new = LoadOp.create(
            operands=[split.part(op.tensor, ()), *offsets, *rest],
            result_types=[split.type_of(op.result, key)],
            properties=properties,
            attributes=dict(op.attributes),
        )
        split.define(op.result, key, split.value(new))


@_handles(StoreOp)
def _store(split: Splitter, op: StoreOp) -> None:
    for key, offsets, properties in _part_boxes(split, op, op.value):
        mask = [split.part(op.mask, key)] if op.mask is not None else []
        operands = [split.part(op.value, key), split.part(op.tensor, ()), *offsets, *mask]
        split.add(StoreOp.create(operands=operands, properties=properties, attributes=dict(op.attributes)))
