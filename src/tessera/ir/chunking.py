"""Rewrites long tiles to loops over chunks of them, so that no more than a chunk of each is there at a time.

Reductions add up chunks element by element, in a tile of a part of a chunk, and combine its elements behind the loop.
Scans carry their last elements from chunk to chunk. What is left where the chunks do not divide the size is a chunk of
its own, of just that size.

Every other pass goes from the last chunk to the first, unless the order matters: what a pass has read last is what
caches still have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.extremes import extreme_of, lacks_neutral
from tessera.ir.inserter import Inserter
from tessera.ir.long_tiles import SCANS, Passes
from tessera.ir.tile.elementwise import (
    ArangeOp,
    BitcastOp,
    CastOp,
    ElementwiseOp,
    RoundTf32Op,
    SplatOp,
    constant_value,
)
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, Slice, StoreOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.reduce import CombinedOp, ReduceByOp, ReduceOp, ScanByOp, ScanOp, combiner_of
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp
from tessera.ir.tile.shared import SharedLoadOp, SharedViewOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, i1, index
from tessera.numerics import dtypes
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL

_MOST_I32 = 1 << 30
"""Tiles of fewer elements number them, and those around them, by i32."""
SHORTEST = 4096
"""Elements of the shortest chunk that is made of what a loop over aligned chunks leaves: 8 of each of 512 threads."""
PIECES = 4
"""Most parts of a chunk that reductions combine before they add to their sums: so many of a thread's elements."""

Values = Sequence[SSAValue]
Combining = ReduceOp | ReduceByOp | ScanOp | ScanByOp


@dataclass(frozen=True)
class Aligned:
    """Chunks that begin where accesses are aligned: a head of up to `step` elements comes before the first.

    Args:
        behind: how far the first element of the tiles lies behind a multiple of `step`.
        step: elements of the widest access.
        boxes: what is known of the boxes of loads and stores of whole rows along these chunks (`decisions.ALIGNED`).
        again: whether elements may be computed and stored twice.
    """

    behind: SSAValue
    step: int
    boxes: Mapping[Operation, int]
    again: bool


Held = Mapping[Operation, Sequence[SSAValue]]
"""Shared buffers that hold what loads of long tiles load: one `[chunks, 1, length]`, and one of what is left."""


def compute_in_chunks(passes: Passes, length: int, aligned: Aligned | None = None, held: Held | None = None) -> None:
    """Rewrite the block that holds long tiles.

    Args:
        passes: the tiles, and how they are computed.
        length: size of a chunk along their long dimension, a power of two.
        aligned: where chunks begin; with the tiles where it is left out. Nothing is scanned then, or combined by a
            combiner whose neutral elements are not known.
        held: what lies in shared memory before the first pass; with aligned chunks only where these may come twice.
    """
    after = passes.ops[-1].next_op
    point = InsertPoint.before(after) if after is not None else InsertPoint.at_end(passes.block)
    for number in range(len(passes.loops) + 1):
        for op, level in passes.between:
            if level == number:
                op.detach()
                Rewriter.insert_op(op, point)
        if number < len(passes.loops) and passes.loops[number]:
            if aligned is None:
                _Pass(passes, length, passes.loops[number], point, held).write()
            else:
                _AlignedPass(passes, length, passes.loops[number], point, aligned, held).write()
    for op in reversed(passes.ops):
        Rewriter.erase_op(op)


def without(shape: Sequence[int], axis: int) -> list[int]:
    """Return a shape without a dimension."""
    return [size for place, size in enumerate(shape) if place != axis]


class _Writer:
    """Adds ops at a point, with the location of one that they stand for."""

    def __init__(self, point: InsertPoint, like: Operation) -> None:
        self.point, self.like = point, like

    def add(self, op: Operation) -> Operation:
        """Add an op."""
        return Inserter(self.point, self.like).add(op)

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        return self.add(op).results[0]

    def constant(self, value: float, element: Attribute = index) -> SSAValue:
        """Add a constant."""
        return Inserter(self.point, self.like).number(value, element)

    def plus(self, a: SSAValue, b: SSAValue | int) -> SSAValue:
        """Add up offsets; those that are known become constants."""
        known = [constant_value(a), b if isinstance(b, int) else constant_value(b)]
        if None not in known:
            return self.constant(int(known[0] or 0) + int(known[1] or 0))
        if known[1] == 0:
            return a
        other = self.constant(b) if isinstance(b, int) else b
        return other if known[0] == 0 else self.value(ElementwiseOp("add", [a, other]))

    def full(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Repeat a scalar, or leave it one."""
        return self.value(SplatOp(value, shape)) if shape else value

    def spread(self, value: SSAValue, shape: Sequence[int], axis: int) -> SSAValue:
        """Repeat what a reduction along a dimension gave."""
        if not isinstance(value.type, TileType):
            return self.value(SplatOp(value, shape))
        column = self.value(ReshapeOp(value, [1 if place == axis else size for place, size in enumerate(shape)]))
        return self.value(BroadcastOp(column, shape))

    def combine(self, op: Combining, first: Values, second: Values) -> list[SSAValue]:
        """Combine elements, each with another one, as a reduction or scan does."""
        if isinstance(op, ReduceOp | ScanOp):
            return [self.value(ElementwiseOp(COMBINE[op.fn.data], [*first, *second]))]
        block, type_ = op.combiner.block, first[0].type
        shape = type_.shape if isinstance(type_, TileType) else ()
        known: dict[SSAValue, SSAValue] = dict(zip(block.args, (*first, *second), strict=True))

        def alike(values: Sequence[SSAValue]) -> list[SSAValue]:
            found = [known.get(value, value) for value in values]
            if not any(isinstance(value.type, TileType) for value in found):
                return found
            return [v if isinstance(v.type, TileType) else self.full(v, shape) for v in found]

        for inner in block.ops:
            match inner:
                case ElementwiseOp():
                    known[inner.result] = self.value(ElementwiseOp(inner.fn.data, alike(inner.args)))
                case CastOp():
                    (source,) = alike([inner.source])
                    saturate = inner.saturate is not None
                    known[inner.result] = self.value(CastOp(source, element_of(inner.result.type), saturate))
                case CombinedOp():
                    ends = [known.get(value, value) for value in inner.values]
                    return [v if isinstance(v.type, TileType) else self.full(v, shape) for v in ends]
                case _:
                    known[inner.results[0]] = self.value(inner.clone())
        raise AssertionError("a combiner ends by tessera_tile.combined")

    def neutral(self, op: Combining) -> list[SSAValue]:
        """Return what changes nothing that is combined with it; nothing where no such elements are known."""
        elements = [element_of(source.type) for source in op.operands]
        if isinstance(op, ReduceByOp | ScanByOp):
            extreme = extreme_of(op) if isinstance(op, ReduceByOp) else None
            return [] if extreme is None else list(map(self.constant, extreme.neutral, elements))
        dtype, fn = dtype_of(elements[0]), op.fn.data
        whole = NEUTRAL[fn] if dtype.is_float and fn in NEUTRAL else identity_of(fn, dtype)
        return [self.constant(whole, elements[0])]

    def reduce(self, op: ReduceOp | ReduceByOp, sources: Values, axis: int) -> list[SSAValue]:
        """Reduce other tiles as a reduction does its own."""
        if isinstance(op, ReduceOp):
            return [self.value(ReduceOp(sources[0], axis, op.fn.data))]
        return list(self.add(ReduceByOp(sources, axis, combiner_of(op))).results)


def pieces_of(passes: Passes, length: int) -> int:
    """Return how many parts of a chunk reductions combine first: as many as no two threads access, 16 bytes each."""
    bytes_ = [dtype_of(op.tensor.type.element).bytes for op in passes.ops if isinstance(op, LoadOp | StoreOp)]
    return min(PIECES, 2 * min(bytes_, default=PIECES), length)


State = Mapping[Operation, Values]
"""What reductions and scans have come to after some chunks; without those that have nothing to start from."""


class _Pass(_Writer):
    """Writes one pass.

    Args:
        passes: the tiles.
        length: of a chunk.
        ops: what the pass does.
        point: where it is written.
        held: what lies in shared memory.
    """

    def __init__(
        self,
        passes: Passes,
        length: int,
        ops: Sequence[Operation],
        point: InsertPoint,
        held: Held | None = None,
    ) -> None:
        super().__init__(point, ops[0])
        self.passes, self.length, self.ops, self.held = passes, length, ops, held
        self.count, self.rest = divmod(passes.size, length)
        self.combining: list[Any] = [op for op in ops if passes.reduced(op) or passes.scanned(op)]
        self.backwards = any(isinstance(op, SCANS) and op.reverse is not None for op in self.combining)
        ordered = any(isinstance(op, SCANS) or lacks_neutral(op) for op in self.combining)
        self.from_end = self.backwards if ordered else passes.loops.index(ops) % 2 == 1

    def write(self) -> None:
        """Write the loop with what stands before and behind it, and replace the results of reductions."""
        state, rest, first = self._start(), dict[Operation, Values](), 0
        if self.backwards and self.rest:
            state, rest = self._rest(state)
        if len(state) < len(self.combining):
            state, first = self._chunk(self.point, self._number(0), self._at(0), state), 1
        if self.count - first > 1:
            state = self._loop(first, state)
        elif self.count > first:
            state = self._chunk(self.point, self._number(first), self._at(first), state)
        if not self.backwards and self.rest:
            state, rest = self._rest(state)
        for op in self.combining:
            if self.passes.reduced(op):
                self._finish(op, state[op], [rest[op]] if op in rest else [])

    def _axis(self, op: Operation) -> int:
        return self.passes.axes[op.operands[0]]

    def _start(self) -> dict[Operation, Values]:
        """Return what changes nothing, for what has such an element."""
        found = dict[Operation, Values]()
        for op in self.combining:
            neutral = self.neutral(op)
            if neutral:
                self.like = op
                shape = list(shape_of(op.operands[0].type))
                if isinstance(op, ReduceOp | ReduceByOp):
                    shape[self._axis(op)] = self.length // pieces_of(self.passes, self.length)
                else:
                    shape = without(shape, self._axis(op))
                found[op] = [self.full(each, shape) for each in neutral]
        return found

    def _at(self, number: int) -> SSAValue:
        """Return where a chunk starts."""
        return self.constant(self._place(number) * self.length)

    def _place(self, number: int) -> int:
        return self.count - 1 - number if self.from_end else number

    def _number(self, number: int) -> SSAValue | None:
        """Return which of the held chunks a chunk is."""
        return self.constant(self._place(number)) if self.held else None

    def _loop(self, first: int, state: State) -> State:
        """Write the loop over chunks from a number on."""
        bounds = [self.constant(value) for value in (first * self.length, self.count * self.length, self.length)]
        carried = [value for values in state.values() for value in values]
        body = Block(arg_types=[index, *(value.type for value in carried)])
        loop = scf.ForOp(bounds[0], bounds[1], bounds[2], carried, Region(body))
        self.add(loop)
        inner, at = _Writer(InsertPoint.at_end(body), self.like), body.args[0]
        if self.from_end:
            last = inner.constant((self.count - 1) * self.length)
            at = inner.value(ElementwiseOp("sub", [last, at]))
        number = inner.value(ElementwiseOp("floordiv", [at, inner.constant(self.length)])) if self.held else None
        new = self._chunk(inner.point, number, self._begin(inner, at), _like(state, body.args[1:]))
        inner.add(scf.YieldOp(*(value for op in state for value in new[op])))
        return _like(state, loop.results)

    def _begin(self, _writer: _Writer, at: SSAValue) -> SSAValue:
        """Return where the chunk of a number times the length begins."""
        return at

    def _whole(self, point: InsertPoint, at: SSAValue) -> Chunk:
        return Chunk(self.passes, point, at, self.length, held=self.held)

    def _chunk(
        self,
        point: InsertPoint,
        number: SSAValue | None,
        at: SSAValue,
        state: State,
        least: SSAValue | None = None,
    ) -> State:
        """Compute a chunk, and return what reductions, of elements from a place on, and scans come to with it."""
        chunk = self._whole(point, at)
        chunk.number = number
        new = dict[Operation, Values]()
        for op in self.ops:
            if self.passes.reduced(op):
                new[op] = chunk.added(op, state.get(op), least)
            elif self.passes.scanned(op):
                new[op] = chunk.scanned(op, state.get(op))
            else:
                chunk.write(op)
        return {op: new[op] for op in self.combining}

    def _rest(self, state: State) -> tuple[dict[Operation, Values], dict[Operation, Values]]:
        """Compute what is left of the tiles; return the state with it, and what it is of reductions alone."""
        chunk = Chunk(self.passes, self.point, self.constant(self.count * self.length), self.rest, held=self.held)
        new, rest = dict(state), dict[Operation, Values]()
        for op in self.ops:
            if self.passes.reduced(op):
                rest[op] = chunk.reduced(op)
            elif self.passes.scanned(op):
                new[op] = chunk.scanned(op, state.get(op))
            else:
                chunk.write(op)
        return new, rest

    def _finish(self, op: ReduceOp | ReduceByOp, sums: Values, rests: Sequence[Values]) -> None:
        self.like = op
        results = self.reduce(op, sums, self._axis(op))
        for rest in rests:
            results = self.combine(op, results, rest)
        for old, new in zip(op.results, results, strict=True):
            old.replace_all_uses_with(new)


class _AlignedPass(_Pass):
    """Writes one pass whose chunks begin where accesses are aligned.

    A head of `step` elements begins before the tiles, or with them, and a tail of as many ends behind them: bounds cut
    what is loaded and stored, a mask what is reduced. The last chunk ends before the tail, and has elements of the one
    before it once more, which a mask leaves out of reductions. In place these would be computed from what was stored:
    there shorter chunks follow, each half as long as the one before it at most, and the tail has what is left then.

    Args:
        passes: the tiles.
        length: of a chunk.
        ops: what the pass does.
        point: where it is written.
        aligned: where chunks begin.
        held: what lies in shared memory.
    """

    def __init__(
        self,
        passes: Passes,
        length: int,
        ops: Sequence[Operation],
        point: InsertPoint,
        aligned: Aligned,
        held: Held | None = None,
    ) -> None:
        super().__init__(passes, length, ops, point, held)
        self.aligned = aligned
        self.count, self.rest = divmod(passes.size - aligned.step, length)

    def write(self) -> None:
        """Write head, loop, last chunk and tail, and replace the results of reductions."""
        before = self.value(ElementwiseOp("sub", [self.constant(0), self.aligned.behind]))
        state, ends = self._start(), [self._end(before, self.aligned.step)]
        if self.count > 1:
            state = self._loop(0, state)
        elif self.count:
            state = self._chunk(self.point, self._number(0), self._begin(self, self._at(0)), state)
        left = self._begin(self, self.constant(self.count * self.length))
        if self.held or (self.count and self.aligned.again):
            end = last_multiple(self, self.passes, self.aligned)
            if self.held:
                state = self._last(end, left, state)
            else:
                first = self.value(ElementwiseOp("sub", [end, self.constant(self.length)]))
                state = self._chunk(self.point, None, first, state, left)
            ends.append(self._end(end, self.aligned.step))
        else:
            ends += self._shorter()
        for op in self.combining:
            self._finish(op, state[op], [end[op] for end in ends])

    def _last(self, end: SSAValue, left: SSAValue, state: State) -> State:
        """Compute what the loop leaves, from a place on up to an end, with elements before it once more."""
        size, aligned = held_rest(self.passes.size, self.length, self.aligned.step), self.aligned
        first = self.value(ElementwiseOp("sub", [end, self.constant(size)]))
        chunk, new = Chunk(self.passes, self.point, first, size, aligned.boxes, self.held), dict[Operation, Values]()
        pieces = size * pieces_of(self.passes, self.length) // self.length
        for op in self.ops:
            if self.passes.reduced(op):
                new[op] = chunk.added(op, state.get(op), left, pieces)
            else:
                chunk.write(op)
        return {op: new[op] for op in self.combining}

    def _shorter(self) -> Iterator[dict[Operation, Values]]:
        """Compute what the loop leaves, without an element twice; yield what the reductions of each part come to."""
        at, left, size = self.count * self.length, self.rest, self.length // 2
        while size >= SHORTEST:
            if left >= size:
                yield self._end(self._begin(self, self.constant(at)), size, self.aligned.boxes)
                at, left = at + size, left - size
            size //= 2
        step = self.aligned.step  # all elements of one behind the last multiple, but one
        yield self._end(self._begin(self, self.constant(at)), -(-(left + step - 1) // step) * step)

    def _begin(self, writer: _Writer, at: SSAValue) -> SSAValue:
        return writer.plus(first_multiple(writer, self.aligned), at)

    def _whole(self, point: InsertPoint, at: SSAValue) -> Chunk:
        return Chunk(self.passes, point, at, self.length, self.aligned.boxes, self.held)

    def _end(self, at: SSAValue, size: int, boxes: Mapping[Operation, int] | None = None) -> dict[Operation, Values]:
        """Compute what of a chunk lies in the tiles, all of it with `boxes`; return what its reductions come to."""
        chunk, found = Chunk(self.passes, self.point, at, size, boxes), dict[Operation, Values]()
        for op in self.ops:
            if self.passes.reduced(op):
                found[op] = chunk.reduced(op) if boxes else self.reduce(op, chunk.inside(op), op.axis.data)
            else:
                chunk.write(op)
        return found


def first_multiple(insert: Inserter | _Writer, aligned: Aligned) -> SSAValue:
    """Return where the first aligned chunk begins: behind the head."""
    return insert.value(ElementwiseOp("sub", [insert.constant(aligned.step), aligned.behind]))


def last_multiple(insert: Inserter | _Writer, passes: Passes, aligned: Aligned) -> SSAValue:
    """Return where the last aligned access of all ends."""
    size, step = insert.constant(passes.size), insert.constant(aligned.step)
    reached = insert.value(ElementwiseOp("add", [size, aligned.behind]))
    return insert.value(ElementwiseOp("sub", [size, insert.value(ElementwiseOp("mod", [reached, step]))]))


def held_rest(size: int, length: int, step: int) -> int:
    """Return the size of the last chunk of held rows that begin anywhere: at least what the others leave.

    Args:
        size: of a row.
        length: of a chunk.
        step: elements of the widest access.
    """
    rest = (size - step) % length
    return min(max(1 << (rest + step - 1).bit_length(), SHORTEST), length)


def _like(state: State, values: Values) -> dict[Operation, Values]:
    """Give each reduction and scan its part of the carried values."""
    found, place = dict[Operation, Values](), 0
    for op, old in state.items():
        found[op] = values[place : place + len(old)]
        place += len(old)
    return found


class Chunk(_Writer):
    """A chunk of long tiles, being computed.

    Args:
        passes: the tiles.
        point: where its ops are added.
        at: where it starts.
        size: how long it is.
        boxes: what is known of its boxes (`decisions.ALIGNED`), if it is known to lie in the tiles.
        held: what lies in shared memory.
        early: how many elements before the tiles it begins at most, if it has all of them; `boxes` hold there.
    """

    def __init__(
        self,
        passes: Passes,
        point: InsertPoint,
        at: SSAValue,
        size: int,
        boxes: Mapping[Operation, int] | None = None,
        held: Held | None = None,
        early: int = 0,
    ) -> None:
        super().__init__(point, passes.ops[0])
        self.passes, self.at, self.size, self.boxes, self.held = passes, at, size, boxes, held or {}
        self.early = early
        self.number: SSAValue | None = None  # of the held chunks; none of what is left
        self.values: dict[SSAValue, SSAValue] = {}

    def of(self, value: SSAValue) -> SSAValue:
        """Return the chunk of a value."""
        return self.values.get(value, value)

    def shape(self, value: SSAValue) -> list[int]:
        """Return the shape of the chunk of a tile."""
        axis = self.passes.axes[value]
        return [self.size if place == axis else size for place, size in enumerate(shape_of(value.type))]

    def write(self, op: Operation) -> None:
        """Compute the chunk of what an op gives."""
        self.like = op
        self.values.update(zip(op.results, _HANDLERS[type(op)](self, op), strict=True))

    def reduced(self, op: ReduceOp | ReduceByOp) -> list[SSAValue]:
        """Return a reduction of the chunk."""
        self.like = op
        return self.reduce(op, [self.of(source) for source in op.operands], op.axis.data)

    def inside(self, op: Combining, least: SSAValue | None = None) -> list[SSAValue]:
        """Return what a reduction or scan combines: neutral elements before a place, or the tile, and behind it."""
        self.like = op
        sources, axis = [self.of(source) for source in op.operands], op.axis.data
        number = element_type(dtypes.i32 if self.passes.size < _MOST_I32 else dtypes.i64)
        shape, place = shape_of(sources[0].type), self.value(ArangeOp(self.size, number))
        ends = [self.constant(0) if least is None else least, self.constant(self.passes.size)]
        if self.early:  # of most elements it is known that they lie between such ends
            ends = [self.value(ElementwiseOp("sub", [end, self.at])) for end in ends]
        else:
            first = self.value(SplatOp(self.value(CastOp(self.at, number)), [self.size]))
            place = self.value(ElementwiseOp("add", [place, first]))
        ends = [self.value(CastOp(end, number)) for end in ends]
        compared = zip(("ge", "lt"), (self.value(SplatOp(end, [self.size])) for end in ends), strict=True)
        tests = [self.value(ElementwiseOp(fn, [place, end])) for fn, end in compared]
        inside = self.value(ElementwiseOp("and", tests))
        row = [size if at == axis else 1 for at, size in enumerate(shape)]
        if row != [self.size]:
            inside = self.value(ReshapeOp(inside, row))
        if row != list(shape):
            inside = self.value(BroadcastOp(inside, shape))
        return [
            self.value(ElementwiseOp("select", [inside, source, self.full(neutral, shape)]))
            for source, neutral in zip(sources, self.neutral(op), strict=True)
        ]

    def added(
        self,
        op: ReduceOp | ReduceByOp,
        before: Values | None,
        least: SSAValue | None = None,
        pieces: int | None = None,
    ) -> list[SSAValue]:
        """Return a reduction's tiles of sums with the chunk, or what of it lies from a place on."""
        self.like = op
        axis, pieces = op.axis.data, pieces or pieces_of(self.passes, self.size)
        given = [self.of(source) for source in op.operands] if least is None else self.inside(op, least)
        sources = list[SSAValue]()
        for source, part in zip(op.operands, given, strict=True):
            shape = self.shape(source)
            split = [*shape[:axis], pieces, shape[axis] // pieces, *shape[axis + 1 :]]
            sources.append(self.value(ReshapeOp(part, split)))
        parts = self.reduce(op, sources, axis)
        return parts if before is None else self.combine(op, before, parts)

    def scanned(self, op: ScanOp | ScanByOp, before: Values | None) -> list[SSAValue]:
        """Compute the chunk of a scan, and return its last elements."""
        self.like = op
        axis, sources, backwards = op.axis.data, [self.of(source) for source in op.operands], op.reverse is not None
        if isinstance(op, ScanOp):
            results = [self.value(ScanOp(sources[0], axis, op.fn.data, backwards))]
        else:
            results = list(self.add(ScanByOp(sources, axis, combiner_of(op), backwards)).results)
        ends = [self._end(result, axis, 0 if backwards else self.size - 1) for result in results]
        if before is not None:
            spread = [self.spread(value, shape_of(r.type), axis) for value, r in zip(before, results, strict=True)]
            results, ends = self.combine(op, spread, results), self.combine(op, before, ends)
        self.values.update(zip(op.results, results, strict=True))
        return ends

    def _end(self, tile: SSAValue, axis: int, place: int) -> SSAValue:
        """Return the last element of a scan's tile along a dimension, which every thread has behind the scan."""
        element, rank = element_of(tile.type), len(shape_of(tile.type))
        sizes = [1 if a == axis else size for a, size in enumerate(shape_of(tile.type))]
        end = self.value(SubtileOp(tile, [place if a == axis else 0 for a in range(rank)], sizes))
        wide = _summed(element)
        if wide != element:
            end = self.value(CastOp(end, wide))
        found = self.value(ReduceOp(end, axis, "any" if wide == i1 else "sum"))
        return found if wide == element else self.value(CastOp(found, element))


def _summed(element: Attribute) -> Attribute:
    """Return a type that holds all values of an element's and has sums."""
    dtype = dtype_of(element)
    if dtype.is_float:
        return element_type(dtypes.f32) if dtype.bits < 32 else element
    return element_type(dtypes.i32) if 1 < dtype.bits < 32 else element


# Ops

_Handler = Callable[[Chunk, Any], Values]
_HANDLERS: dict[type[Operation], _Handler] = {}
_H = TypeVar("_H", bound=_Handler)


def _handles(*ops: type[Operation]) -> Callable[[_H], _H]:
    def enter(handler: _H) -> _H:
        _HANDLERS.update(dict.fromkeys(ops, handler))
        return handler

    return enter


@_handles(ElementwiseOp, CastOp, BitcastOp, RoundTf32Op, PhiloxOp, GatherOp, ScatterOp, TransposeOp, ScanOp)
def _same(chunk: Chunk, op: Operation) -> Values:
    """Do to a chunk what an op does to a tile."""
    types = [TileType.of(chunk.shape(result), element_of(result.type)) for result in op.results]
    operands = [chunk.of(operand) for operand in op.operands]
    return chunk.add(type(op).create(operands=operands, result_types=types, properties=op.properties)).results


@_handles(ScanByOp)
def _scan_by(chunk: Chunk, op: ScanByOp) -> Values:
    sources = [chunk.of(source) for source in op.sources]
    return chunk.add(ScanByOp(sources, op.axis.data, combiner_of(op), op.reverse is not None)).results


@_handles(SplatOp)
def _splat(chunk: Chunk, op: SplatOp) -> Values:
    return [chunk.value(SplatOp(op.value, chunk.shape(op.result)))]


@_handles(ArangeOp)
def _arange(chunk: Chunk, op: ArangeOp) -> Values:
    element = element_of(op.result.type)
    first = chunk.at if element == index else chunk.value(CastOp(chunk.at, element))
    places = chunk.value(ArangeOp(chunk.size, element))
    return [chunk.value(ElementwiseOp("add", [places, chunk.value(SplatOp(first, [chunk.size]))]))]


@_handles(BroadcastOp, ReshapeOp)
def _shaped(chunk: Chunk, op: BroadcastOp | ReshapeOp) -> Values:
    return [chunk.value(type(op)(chunk.of(op.source), chunk.shape(op.result)))]


@_handles(ReduceOp, ReduceByOp)
def _across(chunk: Chunk, op: ReduceOp | ReduceByOp) -> Values:
    return chunk.reduced(op)


def _box(chunk: Chunk, op: Slice, axis: int) -> tuple[list[SSAValue], list[int]]:
    """Return where the chunk of a box starts, and its sizes."""
    offsets, sizes = list[SSAValue](op.offsets), list(op.size_list)
    place = op.kept[axis]
    offsets[place], sizes[place] = chunk.plus(offsets[place], chunk.at), chunk.size
    return offsets, sizes


@_handles(LoadOp)
def _load(chunk: Chunk, op: LoadOp) -> Values:
    if op in chunk.held:
        return [chunk.value(SharedLoadOp(_part(chunk, chunk.held[op])))]
    offsets, sizes = _box(chunk, op, chunk.passes.axes[op.result])
    mask = chunk.of(op.mask) if op.mask is not None else None
    return [_told(chunk, op, LoadOp(op.tensor, offsets, sizes, op.dropped, mask, op.fill)).results[0]]


@_handles(StoreOp)
def _store(chunk: Chunk, op: StoreOp) -> Values:
    offsets, sizes = _box(chunk, op, chunk.passes.axes[op.value])
    mask = chunk.of(op.mask) if op.mask is not None else None
    _told(chunk, op, StoreOp(chunk.of(op.value), op.tensor, offsets, sizes, op.dropped, mask))
    return []


def _part(chunk: Chunk, buffers: Sequence[SSAValue]) -> SSAValue:
    """Return the buffer that holds a chunk: one of all of them, or what is left."""
    every, *rest = buffers
    if chunk.number is None:
        return rest[0]
    return chunk.value(SharedViewOp(chunk.value(SharedViewOp(every, chunk.number)), chunk.constant(0)))


def _told(chunk: Chunk, op: LoadOp | StoreOp, part: LoadOp | StoreOp) -> Operation:
    """Add the part of a box, with what is known of it."""
    if chunk.boxes is not None and op in chunk.boxes:
        along = op.kept[chunk.passes.axes[op.result if isinstance(op, LoadOp) else op.value]]
        if chunk.early:
            decisions.EARLY.write(part, chunk.early)
        else:
            decisions.INSIDE.write(part, 1 << along)
        decisions.ALIGNED.write(part, chunk.boxes[op])
    return chunk.add(part)
