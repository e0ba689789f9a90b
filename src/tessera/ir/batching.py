"""Rewrites the body of a grid, or of a loop, so that it computes several neighbouring programs, or steps, at once.

What differs between the programs gets a dimension more, in front: a tile of shape `s` becomes one of `[programs, *s]`,
a scalar one of `[programs]`. What does not is computed once. Boxes of tensors that lie one after the other become one
box; those that start anywhere, such as the rows of an embedding, become elements at index tiles. What is left is the
same kernel with larger tiles, so all that is known about layouts, vectors and tails serves it.

Where a program's block is no power of two, several do not lie in registers as one does. Its tiles then stay what they
are and become longer, `[programs * n, *s]` of `[n, *s]`, if all it does is elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import (
    ArangeOp,
    BitcastOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    RoundTf32Op,
    SplatOp,
    constant_value,
)
from tessera.ir.tile.exchange import ExchangeOp, SortOp
from tessera.ir.tile.flat import LoadFlatOp, StoreFlatOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, Slice, StoreOp
from tessera.ir.tile.parts import PartOp, TakeOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.reduce import ReduceByOp, ReduceOp, ScanByOp, ScanOp, combiner_of
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in


class Apart(Exception):
    """Why programs cannot be computed together."""


class Batch:
    """Several programs of a grid, being rewritten to one.

    Args:
        kernel: the kernel.
        grid: the launch.
        axis: the dimension of the grid in which the programs are neighbours.
        programs: how many there are.

    `values` are the new values of old ones, and `varying` the old ones that differ between the programs. `starts` are
    scalars that count programs, `axis`'s offset plus something: their new values are the first program's.
    """

    def __init__(self, kernel: KernelOp, grid: GridOp, axis: int, programs: int) -> None:
        self.kernel, self.grid, self.axis, self.programs = kernel, grid, axis, programs
        self.step = grid.block_sizes[axis]
        self.values: dict[SSAValue, SSAValue] = {}
        self.varying = _varying(grid, grid.body.block.args[axis])
        self.starts: set[SSAValue] = {grid.body.block.args[axis]}
        self._blocks: list[Block] = []
        self._like: Operation = grid

    def grid_of_batches(self) -> GridOp:
        """Return the new launch, next to the old one; it is not inserted.

        Raises:
            Apart: something in the body has no meaning for several programs at once.
        """
        sizes = list(self.grid.block_sizes)
        sizes[self.axis] *= self.programs
        new = GridOp(list(self.grid.extents), sizes, self.grid.guard)
        new.location = self.grid.location
        new.attributes.update(self.grid.attributes)
        try:
            self.values.update(zip(self.grid.body.block.args, new.body.block.args, strict=True))
            self._fill(new.body.block, self.grid.body.block)
        except Apart:
            new.erase(safe_erase=False)
            raise
        return new

    # What handlers build with

    def add(self, op: Operation) -> Operation:
        """Add an op to the block that is being filled."""
        return Inserter(InsertPoint.at_end(self._blocks[-1]), self._like).add(op)

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        return self.add(op).results[0]

    def same(self, value: SSAValue, what: str = "an operand") -> SSAValue:
        """Return the new value of one that all programs share.

        Raises:
            Apart: they do not.
        """
        if value in self.varying:
            raise Apart(f"{what} differs between programs")
        return self.values.get(value, value)

    def tile(self, value: SSAValue) -> SSAValue:
        """Return the tile of what each program has for a value."""
        shape = shape_of(value.type)
        if value in self.starts:
            return self._places(self.values[value])
        new = self.values.get(value, value)
        if value in self.varying:
            return new
        if not shape:
            return self.value(SplatOp(new, [self.programs]))
        return self._repeated(self.value(ReshapeOp(new, [1, *shape])), shape)

    def _repeated(self, tile: SSAValue, shape: Sequence[int]) -> SSAValue:
        whole = [self.programs, *shape]
        return self.value(BroadcastOp(tile, whole)) if list(shape_of(tile.type)) != whole else tile

    def _places(self, first: SSAValue) -> SSAValue:
        """Return the offsets of all programs from that of the first one."""
        places = self.value(ArangeOp(self.programs, index))
        if self.step != 1:
            step = self.value(SplatOp(self.value(ConstantOp(self.step, index)), [self.programs]))
            places = self.value(ElementwiseOp("mul", [places, step]))
        return self.value(ElementwiseOp("add", [places, self.value(SplatOp(first, [self.programs]))]))

    def inside(self, shape: Sequence[int]) -> SSAValue:
        """Return which programs exist, as a condition on tiles of a shape."""
        return self._below(self.grid.body.block.args[self.axis], self.grid.extents[self.axis], shape)

    def _below(self, first: SSAValue, end: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Return which programs have numbers below an end, from the old value of the first one's."""
        places = self._places(self.values[first])
        extent = self.value(SplatOp(end, [self.programs]))
        exists = self.value(ElementwiseOp("lt", [places, extent]))
        return self._repeated(self.value(ReshapeOp(exists, [self.programs, *[1] * len(shape)])), shape)

    def type_of(self, type_: Attribute) -> TileType:
        """Return the type of what all programs have of a type."""
        return TileType.of([self.programs, *shape_of(type_)], element_of(type_))

    # Blocks

    def handler(self, op: Operation) -> _Handler | None:
        """Return what rewrites an op that differs between the programs; None where nothing does."""
        return _HANDLERS.get(type(op))

    def _fill(self, block: Block, old: Block) -> None:
        self._blocks.append(block)
        for op in old.ops:
            self._like = op
            self._rewrite(op)
        self._blocks.pop()

    def _rewrite(self, op: Operation) -> None:
        handler = self.handler(op)
        differs = any(value in self.varying for value in (*op.operands, *op.results))
        if isinstance(op, scf.ForOp):
            self._loop(op)
        elif isinstance(op, scf.IfOp):
            self._branch(op)
        elif isinstance(op, scf.YieldOp):
            self._end(op)
        elif not differs and (isinstance(op, ConstantOp | DimOp | ArangeOp) or type(op) in _HANDLERS):
            self._shared(op)
        elif handler is None:
            raise Apart(f"{op.name.removeprefix('tessera_tile.')} is each program's own")
        else:
            results = handler(self, op)
            self.values.update(zip(op.results, results, strict=True))

    def _shared(self, op: Operation) -> None:
        """Do what is the same in all programs once."""
        if isinstance(op, StoreOp | ScatterOp):
            raise Apart("all programs store to one place")
        clone = op.clone(dict(self.values))
        self.add(clone)
        self.values.update(zip(op.results, clone.results, strict=True))

    def _carried(self, values: Sequence[SSAValue], like: Sequence[SSAValue]) -> list[SSAValue]:
        """Return values as those are that they are carried to."""
        return [
            self.tile(value) if to in self.varying else self.same(value) for value, to in zip(values, like, strict=True)
        ]

    def _loop(self, op: scf.ForOp) -> None:
        """Carry tiles of all programs through a loop."""
        bounds = [self.same(bound, "the range of a loop") for bound in (op.lb, op.ub, op.step)]
        initial = self._carried(op.iter_args, op.results)
        old = op.body.block
        body = Block(arg_types=[old.args[0].type, *(value.type for value in initial)])
        new = scf.ForOp(bounds[0], bounds[1], bounds[2], initial, Region(body))
        new.attributes.update(op.attributes)
        self.add(new)
        self.values.update(zip(old.args, body.args, strict=True))
        self._fill(body, old)
        self.values.update(zip(op.results, new.results, strict=True))

    def _branch(self, op: scf.IfOp) -> None:
        """Take one branch in all programs."""
        condition = self.same(op.cond, "the condition of a branch")
        blocks = [Block() if region.blocks else None for region in (op.true_region, op.false_region)]
        regions = [Region(block) if block is not None else Region() for block in blocks]
        types = [self.type_of(r.type) if r in self.varying else r.type for r in op.results]
        new = scf.IfOp(condition, types, regions[0], regions[1])
        new.attributes.update(op.attributes)
        self.add(new)
        for block, region in zip(blocks, (op.true_region, op.false_region), strict=True):
            if block is not None:
                self._fill(block, region.block)
        self.values.update(zip(op.results, new.results, strict=True))

    def _end(self, op: scf.YieldOp) -> None:
        """End the body of a loop or a branch."""
        parent = op.parent_op()
        assert parent is not None
        self.add(scf.YieldOp(*self._carried(op.operands, parent.results)))


class LongBatch(Batch):
    """Several elementwise programs whose blocks are no power of two."""

    def handler(self, op: Operation) -> _Handler | None:
        """Return what rewrites an op; None where that is not elementwise."""
        return _HANDLERS.get(type(op)) if isinstance(op, (*_ELEMENTWISE, LoadOp, StoreOp)) else None

    def tile(self, value: SSAValue) -> SSAValue:
        """Return the tile of all programs: those of each, one after the other."""
        if value in self.varying and value not in self.starts:
            return self.values[value]
        if value in self.varying or not isinstance(value.owner, SplatOp):
            raise Apart("boxes that are no power of two do not lie in registers as one does")
        scalar = self.same(value.owner.value)
        return self.value(SplatOp(scalar, shape_of(self.type_of(value.type))))

    def type_of(self, type_: Attribute) -> TileType:
        """Return the type of what all programs have of a type.

        Raises:
            Apart: it is not a tile with the block's size in front.
        """
        shape = shape_of(type_)
        if not shape or shape[0] != self.step:
            raise Apart("boxes that are no power of two do not lie in registers as one does")
        return TileType.of([self.programs * self.step, *shape[1:]], element_of(type_))


class StepBatch(Batch):
    """Several steps of a loop, each of which adds a tile of its own to what the loop carries.

    Args:
        kernel: the kernel.
        loop: the loop, which counts by one and has no regions inside.
        steps: how many there are.
        left_out: ops of the loop of which nothing is wanted.
    """

    def __init__(self, kernel: KernelOp, loop: scf.ForOp, steps: int, left_out: Sequence[Operation]) -> None:
        self.kernel, self.loop, self.programs, self.step = kernel, loop, steps, 1
        self.values: dict[SSAValue, SSAValue] = {}
        self.varying = _varying(loop, loop.body.block.args[0])
        self.starts: set[SSAValue] = {loop.body.block.args[0]}
        self._blocks: list[Block] = []
        self._like: Operation = loop
        self._left_out = frozenset(left_out)

    def fill(self, body: Block, wanted: Sequence[SSAValue]) -> list[SSAValue]:
        """Do the steps in a block, whose first argument is the number of the first; return the tiles of all of them.

        Args:
            body: the block.
            wanted: values of the loop of which tiles are wanted.

        Raises:
            Apart: something in the loop has no meaning for several steps at once.
        """
        self.values[self.loop.body.block.args[0]] = body.args[0]
        self._fill(body, self.loop.body.block)
        self._blocks.append(body)
        return [self.tile(value) for value in wanted]

    def inside(self, shape: Sequence[int]) -> SSAValue:
        """Return which steps the loop does, as a condition on tiles of a shape."""
        return self._below(self.loop.body.block.args[0], self.loop.ub, shape)

    def _rewrite(self, op: Operation) -> None:
        if op not in self._left_out and not isinstance(op, scf.YieldOp):
            super()._rewrite(op)


_ELEMENTWISE = (ElementwiseOp, CastOp, BitcastOp, RoundTf32Op)


def batch_of(kernel: KernelOp, grid: GridOp, axis: int, programs: int) -> Batch:
    """Return programs that are neighbours along a dimension of a grid, to be rewritten to one.

    Args:
        kernel: the kernel.
        grid: the launch.
        axis: the dimension.
        programs: how many there are.
    """
    step = grid.block_sizes[axis]
    return (LongBatch if step & (step - 1) else Batch)(kernel, grid, axis, programs)


def _varying(root: Operation, number: SSAValue) -> set[SSAValue]:
    """Return what differs between programs, or steps, that are neighbours: what follows from their number."""
    found: set[SSAValue] = {number}
    count = 0
    while len(found) != count:
        count = len(found)
        for op in root.walk():
            if op is root:
                continue
            if isinstance(op, scf.YieldOp):
                parent = op.parent_op()
                assert parent is not None
                found.update(r for r, value in zip(parent.results, op.operands, strict=True) if value in found)
            elif isinstance(op, scf.ForOp):
                for given, inner, result in zip(op.iter_args, op.body.block.args[1:], op.results, strict=True):
                    if {given, result} & found:
                        found |= {inner, result}
            elif not isinstance(op, scf.IfOp) and any(operand in found for operand in op.operands):
                found.update(op.results)
    return found


# Ops

_Results = Sequence[SSAValue]
_Handler = Callable[[Batch, Any], _Results]
_HANDLERS: dict[type[Operation], _Handler] = {}
_H = TypeVar("_H", bound=_Handler)


def _handles(*ops: type[Operation]) -> Callable[[_H], _H]:
    def enter(handler: _H) -> _H:
        _HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return enter


@_handles(ElementwiseOp)
def _elementwise(batch: Batch, op: ElementwiseOp) -> _Results:
    fn, args = op.fn.data, list(op.args)
    moved = [arg for arg in args if arg in batch.varying]
    leads = fn == "add" or (fn == "sub" and args[0] in batch.varying)
    if len(moved) == 1 and moved[0] in batch.starts and leads:
        batch.starts.add(op.result)
        return [batch.value(ElementwiseOp(fn, [batch.values.get(arg, arg) for arg in args]))]
    return [batch.value(ElementwiseOp(fn, [batch.tile(arg) for arg in args]))]


@_handles(CastOp)
def _cast(batch: Batch, op: CastOp) -> _Results:
    return [batch.value(CastOp(batch.tile(op.source), element_of(op.result.type), op.saturate is not None))]


@_handles(BitcastOp)
def _bitcast(batch: Batch, op: BitcastOp) -> _Results:
    return [batch.value(BitcastOp(batch.tile(op.source), element_of(op.result.type)))]


@_handles(RoundTf32Op)
def _round(batch: Batch, op: RoundTf32Op) -> _Results:
    return [batch.value(RoundTf32Op(batch.tile(op.source)))]


@_handles(SplatOp)
def _splat(batch: Batch, op: SplatOp) -> _Results:
    shape = shape_of(op.result.type)
    column = batch.value(ReshapeOp(batch.tile(op.value), [batch.programs, *[1] * len(shape)]))
    return [batch.value(BroadcastOp(column, [batch.programs, *shape]))]


@_handles(BroadcastOp, ReshapeOp)
def _shaped(batch: Batch, op: BroadcastOp | ReshapeOp) -> _Results:
    return [batch.value(type(op)(batch.tile(op.source), [batch.programs, *shape_of(op.result.type)]))]


@_handles(TransposeOp)
def _transpose(batch: Batch, op: TransposeOp) -> _Results:
    return [batch.value(TransposeOp(batch.tile(op.source), [0, *(axis + 1 for axis in op.permutation)]))]


@_handles(SubtileOp)
def _subtile(batch: Batch, op: SubtileOp) -> _Results:
    shape = [batch.programs, *shape_of(op.result.type)]
    return [batch.value(SubtileOp(batch.tile(op.source), [0, *op.places], shape))]


@_handles(ReduceOp)
def _reduce(batch: Batch, op: ReduceOp) -> _Results:
    return [batch.value(ReduceOp(batch.tile(op.source), op.axis.data + 1, op.fn.data))]


@_handles(ScanOp)
def _scan(batch: Batch, op: ScanOp) -> _Results:
    return [batch.value(ScanOp(batch.tile(op.source), op.axis.data + 1, op.fn.data, op.reverse is not None))]


@_handles(ReduceByOp, ScanByOp)
def _combine(batch: Batch, op: ReduceByOp | ScanByOp) -> _Results:
    for inner in op.combiner.block.ops:
        for operand in inner.operands:
            batch.same(operand, "what a combiner reads")
    combiner = combiner_of(op, batch.values)
    sources = [batch.tile(source) for source in op.sources]
    if isinstance(op, ScanByOp):
        new = ScanByOp(sources, op.axis.data + 1, combiner, op.reverse is not None)
    else:
        new = ReduceByOp(sources, op.axis.data + 1, combiner)
    batch.add(new)
    return new.results


@_handles(ExchangeOp)
def _exchange(batch: Batch, op: ExchangeOp) -> _Results:
    return [batch.value(ExchangeOp(batch.tile(op.source), op.axis.data + 1, op.bits.data))]


@_handles(SortOp)
def _sort(batch: Batch, op: SortOp) -> _Results:
    sources = [batch.tile(source) for source in op.sources]
    new = SortOp(sources, op.axis.data + 1, op.descending is not None, op.merge is not None)
    batch.add(new)
    return new.outputs


@_handles(PartOp)
def _part(batch: Batch, op: PartOp) -> _Results:
    starts = [batch.same(start, "where a part starts") for start in op.starts]
    zero = batch.value(ConstantOp(0, index))
    part = PartOp(
        batch.tile(op.source),
        [zero, *starts],
        [batch.programs, *op.sizes],
        [1, *op.step_list],
        [axis + 1 for axis in op.wrapped],
    )
    found = batch.value(part)
    return [found if shape_of(op.result.type) else batch.value(ReshapeOp(found, [batch.programs]))]


@_handles(TakeOp)
def _take(batch: Batch, op: TakeOp) -> _Results:
    return [batch.value(TakeOp(batch.tile(op.source), batch.tile(op.index), op.axis.data + 1))]


@_handles(PhiloxOp)
def _random(batch: Batch, op: PhiloxOp) -> _Results:
    new = PhiloxOp(batch.same(op.seed, "a seed"), batch.tile(op.counter))
    batch.add(new)
    return new.results


@_handles(GatherOp)
def _gather(batch: Batch, op: GatherOp) -> _Results:
    mask = batch.tile(op.mask) if op.mask is not None else None
    fill = batch.same(op.fill, "a fill") if op.fill is not None else None
    return [batch.value(GatherOp(op.tensor, [batch.tile(one) for one in op.indices], mask, fill))]


@_handles(ScatterOp)
def _scatter(batch: Batch, op: ScatterOp) -> _Results:
    if not any(one in batch.varying for one in op.indices):
        raise Apart("all programs store to one place")
    _store_places(batch, op, [batch.tile(one) for one in op.indices])
    return []


# Boxes of tensors


class _Boxes:
    """The boxes of all programs as one, with what it takes from there to a tile of each program's and back.

    Args:
        batch: the programs.
        op: a load or a store.

    Raises:
        Apart: the boxes do not lie one after the other along the first dimension of more than one element.
    """

    def __init__(self, batch: Batch, op: Slice) -> None:
        self.batch, self.shape = batch, op.tile_shape
        offsets: list[SSAValue] = list(op.offsets)
        (self.axis,) = _moved_axes(batch, op)
        if op.size_list[self.axis] != batch.step:
            raise Apart("boxes of neighbouring programs overlap or lie apart")
        if any(size != 1 for size in op.size_list[: self.axis]):
            raise Apart("boxes lie side by side in memory, not one after the other")
        self.offsets = [batch.values.get(offset, offset) for offset in offsets]
        self.sizes = list(op.size_list)
        self.sizes[self.axis] *= batch.programs
        self.drop = [axis for axis in op.dropped if axis != self.axis]
        self.box = tuple(size for axis, size in enumerate(self.sizes) if axis not in self.drop)

    def apart(self, tile: SSAValue) -> SSAValue:
        """Return what each program has of what the box holds."""
        element = element_of(tile.type)
        shape = shape_of(self.batch.type_of(TileType.of(self.shape, element) if self.shape else element))
        return tile if shape_of(tile.type) == shape else self.batch.value(ReshapeOp(tile, shape))

    def together(self, tile: SSAValue) -> SSAValue:
        """Return what the box holds of what each program has."""
        return tile if shape_of(tile.type) == self.box else self.batch.value(ReshapeOp(tile, self.box))


class _Places:
    """The places of all elements of all programs' boxes, wherever each of the boxes starts.

    Args:
        batch: the programs.
        op: a load or a store.

    Raises:
        Apart: boxes have several elements along a dimension in which they start anywhere.
    """

    def __init__(self, batch: Batch, op: Slice) -> None:
        if isinstance(batch, LongBatch) or any(op.size_list[axis] != 1 for axis in _moved_axes(batch, op)):
            raise Apart("where a box starts does not follow from the program's number alone")
        self.batch, self.shape = batch, [batch.programs, *op.tile_shape]
        self.kept = op.kept
        self.indices = [
            self._index(axis, *place) for axis, place in enumerate(zip(op.offsets, op.size_list, strict=True))
        ]

    def _index(self, axis: int, offset: SSAValue, size: int) -> SSAValue:
        """Return the places of all elements along a dimension of the tensor."""
        batch = self.batch
        if offset in batch.varying:
            return self._along(0, batch.tile(offset))
        start = batch.same(offset)
        if axis not in self.kept:
            return batch.value(SplatOp(start, self.shape))
        places = batch.value(ArangeOp(size, index))
        if constant_value(start) != 0:
            places = batch.value(ElementwiseOp("add", [places, batch.value(SplatOp(start, [size]))]))
        return self._along(1 + self.kept.index(axis), places)

    def _along(self, axis: int, places: SSAValue) -> SSAValue:
        """Return places along a dimension of the tile of all programs, the same along the others."""
        batch = self.batch
        shape = [size if at == axis else 1 for at, size in enumerate(self.shape)]
        if len(shape) > 1:
            places = batch.value(ReshapeOp(places, shape))
        return places if shape == self.shape else batch.value(BroadcastOp(places, self.shape))


def _moved_axes(batch: Batch, op: Slice) -> list[int]:
    """Return the dimensions of a tensor along which boxes of different programs start at different places."""
    return [axis for axis, offset in enumerate(op.offsets) if offset in batch.varying]


def _in_a_row(batch: Batch, op: Slice) -> bool:
    """Return whether where boxes start follows from the number of the program."""
    moved = _moved_axes(batch, op)
    return len(moved) == 1 and op.offsets[moved[0]] in batch.starts


@_handles(LoadOp)
def _load(batch: Batch, op: LoadOp) -> _Results:
    if not any(offset in batch.varying for offset in op.offsets):
        raise Apart("a mask or a fill differs between programs that load one place")
    fill = batch.same(op.fill, "a fill") if op.fill is not None else None
    if not _in_a_row(batch, op):
        places = _Places(batch, op).indices
        mask = batch.tile(op.mask) if op.mask is not None else None
        return [batch.value(GatherOp(op.tensor, places, mask, fill))]
    boxes = _Boxes(batch, op)
    mask = boxes.together(batch.tile(op.mask)) if op.mask is not None else None
    return [boxes.apart(batch.value(LoadOp(op.tensor, boxes.offsets, boxes.sizes, boxes.drop, mask, fill)))]


@_handles(StoreOp)
def _store(batch: Batch, op: StoreOp) -> _Results:
    if not any(offset in batch.varying for offset in op.offsets):
        raise Apart("all programs store to one place")
    in_a_row = _in_a_row(batch, op)
    if not in_a_row or (batch.step == 1 and not _ends_with_grid(batch, op)):
        _store_places(batch, op, _Places(batch, op).indices)
        return []
    boxes = _Boxes(batch, op)
    if not _ends_with_grid(batch, op):
        raise Apart("a tensor goes on where the grid ends")
    mask = boxes.together(batch.tile(op.mask)) if op.mask is not None else None
    value = boxes.together(batch.tile(op.value))
    batch.add(StoreOp(value, op.tensor, boxes.offsets, boxes.sizes, boxes.drop, mask))
    return []


def _store_places(batch: Batch, op: StoreOp | ScatterOp, places: Sequence[SSAValue]) -> None:
    """Store what the programs that exist have, each to its own places."""
    mask = batch.inside(shape_of(op.value.type))
    if op.mask is not None:
        mask = batch.value(ElementwiseOp("and", [mask, batch.tile(op.mask)]))
    batch.add(ScatterOp(batch.tile(op.value), op.tensor, places, mask))


def _ends_with_grid(batch: Batch, op: StoreOp) -> bool:
    """Return whether a tensor ends where the grid does, so that no program beyond it could store."""
    (axis,) = _moved_axes(batch, op)
    if op.offsets[axis] is not batch.grid.body.block.args[batch.axis]:
        return False
    return names_size_of(batch.kernel, batch.grid.extents[batch.axis], op.tensor, axis)


def names_size_of(kernel: KernelOp, extent: SSAValue, tensor: SSAValue, axis: int) -> bool:
    """Return whether an index is written as the size of a tensor's dimension, or of one of its name."""
    size, owner = kernel.info_of(tensor).dims[axis], extent.owner
    if isinstance(owner, DimOp):
        return kernel.info_of(owner.tensor).dims[owner.axis.data] == size
    return isinstance(owner, ConstantOp) and size == str(owner.python_value)


def moved_bytes(grid: GridOp, axis: int) -> list[int]:
    """Return the bytes of each tile that a program loads or stores and that others along a grid's dimension do not."""
    varying = _varying(grid, grid.body.block.args[axis])
    moved: list[int] = []
    for op in grid.walk():
        if isinstance(op, LoadOp | LoadFlatOp | GatherOp | StoreOp | StoreFlatOp | ScatterOp):
            tile = op.result if isinstance(op, LoadOp | LoadFlatOp | GatherOp) else op.value
            if any(operand in varying for operand in op.operands):
                moved.append(prod(shape_of(tile.type)) * dtype_of(element_of(tile.type)).bytes)
    return moved


def largest_tile(grid: GridOp) -> int:
    """Return how many elements the largest tile of a program has."""
    types = [value.type for op in ops_in(grid) for value in (*op.operands, *op.results)]
    return max((prod(shape_of(type_)) for type_ in types if isinstance(type_, TileType)), default=1)
