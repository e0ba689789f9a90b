"""narrow-parts: reads parts of tiles where the tiles are made, so that no more is made than is read.

    %v = tessera_tile.load %X[%m, %k] [64, 64] : … -> !tessera_tile.tile<64x64xf32>
    %w = tessera_tile.elementwise "exp"(%v) : …
    %p = tessera_tile.part %w[%c8, %c0] steps [1, 1] : … -> !tessera_tile.tile<8x64xf32>
  becomes
    %o = tessera_tile.elementwise "add"(%m, %c8) : (index, index) -> index
    %v = tessera_tile.load %X[%o, %k] [8, 64] : … -> !tessera_tile.tile<8x64xf32>
    %p = tessera_tile.elementwise "exp"(%v) : …

A part of a part, of a shape change, of a constant or of positions is one of what these are made of, and a part of tiles
side by side is one of the tile that it lies in. Arithmetic moves behind a part where its operands are cheap to make in
parts, or where nothing else reads its result and one operand alone is not. What may lie outside of a tile stays: it is
zero, and no function of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern
from xdsl.rewriter import InsertPoint

from tessera.canonicalize.matching import dtype_of_value, known, splat_source
from tessera.data import dataclass
from tessera.interp.elementwise import apply
from tessera.ir.passes import PatternPass
from tessera.ir.rewriting import matches_type
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import index
from tessera.lower.parts import constant_starts, is_whole, stays_inside
from tessera.numerics.functions import record_of

DEPTH = 6
"""Operations back that are looked at to find what a tile is made of."""

CHEAP = 4
"""Vector instructions of a function that may be computed twice: for a tile, and for a part of it."""

MOST_ELEMENTS = 1 << 14
"""Elements of a condition that are worked out at compile time."""


ShapeOp = BroadcastOp | ReshapeOp | TransposeOp


@dataclass(frozen=True)
class _Box:
    """Where a part lies, all of it inside.

    Args:
        starts: the first place along each dimension, a number where it is known.
        sizes: how many elements.
        steps: how far they are apart.
    """

    starts: tuple[int | SSAValue, ...]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...] | None:
        """The starts where all are known."""
        known_ = tuple(start for start in self.starts if isinstance(start, int))
        return known_ if len(known_) == len(self.starts) else None

    def of(self, source: SSAValue, alone: bool) -> tuple[list[Operation], SSAValue]:
        """Return the ops that read the box of a tile, and their result: a scalar when it is `alone`."""
        fixed = [ConstantOp(start, index) for start in self.starts if isinstance(start, int)]
        given = iter(fixed)
        starts = [next(given).result if isinstance(start, int) else start for start in self.starts]
        part = PartOp(source, starts, () if alone else self.sizes, self.steps)
        return [*fixed, part], part.result

    def along(self, axes: Sequence[int | None]) -> _Box:
        """Return the box of a tile whose dimensions are these; None stands for one of size 1."""
        return _Box(
            tuple(0 if axis is None else self.starts[axis] for axis in axes),
            tuple(1 if axis is None else self.sizes[axis] for axis in axes),
            tuple(1 if axis is None else self.steps[axis] for axis in axes),
        )


def _box(op: PartOp) -> _Box | None:
    """Return where a part lies, None where that may be outside or wrap around."""
    starts, sizes, whole = constant_starts(op), op.sizes, shape_of(op.source.type)
    for axis, start in enumerate(starts):
        reaches = axis in op.wrapped and (start is None or start + sizes[axis] > whole[axis])
        if reaches or not stays_inside(op, axis):
            return None
    at = tuple(op.starts[axis] if start is None else start for axis, start in enumerate(starts))
    return _Box(at, sizes, op.step_list)


def _alone(op: PartOp) -> bool:
    return not shape_of(op.result.type)


class _Whole(RewritePattern):
    """All of a tile in its order is the tile."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        if not _alone(op) and all(is_whole(op, axis) for axis in range(len(op.sizes))):
            rewriter.replace(op, [], [op.source])


class _NoWrap(RewritePattern):
    """What starts at a known place and ends before the tile does wraps nowhere."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        box = _box(op) if op.wrapped else None
        if box is not None:
            ops, result = box.of(op.source, _alone(op))
            rewriter.replace(op, ops, [result])


class _OfSplat(RewritePattern):
    """A part of a splat is a smaller one, or its scalar."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        value = splat_source(op.source)
        if value is None or not all(stays_inside(op, axis) for axis in range(len(op.sizes))):
            return
        if _alone(op):
            rewriter.replace(op, [], [value])
        else:
            rewriter.replace(op, SplatOp(value, op.sizes))


class _OfPart(RewritePattern):
    """A part of a part is one of the whole."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        inner, box = op.source.owner, _box(op)
        if not isinstance(inner, PartOp) or box is None or inner.wrapped:
            return
        starts: list[int | SSAValue] = []
        for axis, (first, step) in enumerate(zip(constant_starts(inner), inner.step_list, strict=True)):
            by = box.starts[axis]
            if first is not None and isinstance(by, int):
                starts.append(first + step * by)
            elif by == 0:
                starts.append(inner.starts[axis])
            else:
                return
        steps = [a * b for a, b in zip(inner.step_list, box.steps, strict=True)]
        ops, result = _Box(tuple(starts), box.sizes, tuple(steps)).of(inner.source, _alone(op))
        rewriter.replace(op, ops, [result])


class _OfLoad(RewritePattern):
    """A part of a loaded tile, of neighbours at known places, is a smaller load at the same moment."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        load, box = op.source.owner, _box(op)
        if not isinstance(load, LoadOp) or box is None or not _narrows(load, box):
            return
        offsets, sizes, ops = list(load.offsets), list(load.size_list), list[Operation]()
        for start, size, axis in zip(box.places or (), box.sizes, load.kept, strict=True):
            sizes[axis] = size
            if start:
                by = ConstantOp(start, index)
                moved = ElementwiseOp("add", [offsets[axis], by.result])
                ops += [by, moved]
                offsets[axis] = moved.result
        drop = range(len(sizes)) if _alone(op) else load.dropped
        narrow = LoadOp(load.tensor, offsets, sizes, drop, fill=load.fill)
        rewriter.insert([*ops, narrow], InsertPoint.before(load))
        rewriter.replace(op, [], [narrow.result])


def _narrows(load: LoadOp, box: _Box) -> bool:
    return load.mask is None and box.places is not None and all(step == 1 for step in box.steps)


class _OfArithmetic(RewritePattern):
    """A part of what is computed element by element is computed of parts."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        made, box = op.source.owner, _box(op)
        if not isinstance(made, ElementwiseOp | CastOp | BitcastOp) or box is None:
            return
        args = list(dict.fromkeys(made.operands))
        heavy = [arg for arg in args if not _is_light(arg, box, DEPTH)]
        often = any(use.operation is not op for use in made.result.uses)
        if len(heavy) > 1 or (often and (heavy or _cost(made) > CHEAP)):
            return
        ops, parts = list[Operation](), dict[SSAValue, SSAValue]()
        for arg in args:
            more, parts[arg] = box.of(arg, _alone(op))
            ops += more
        last = _again(made, [parts[arg] for arg in made.operands], element_of(op.result.type))
        rewriter.replace(op, [*ops, last])


def _again(made: ElementwiseOp | CastOp | BitcastOp, args: Sequence[SSAValue], element: Attribute) -> Operation:
    if isinstance(made, ElementwiseOp):
        return ElementwiseOp(made.fn.data, args)
    if isinstance(made, CastOp):
        return CastOp(args[0], element, made.saturate is not None)
    return BitcastOp(args[0], element)


def _cost(made: ElementwiseOp | CastOp | BitcastOp) -> int:
    return record_of(made.fn.data).cost if isinstance(made, ElementwiseOp) else 1


def _is_light(value: SSAValue, box: _Box, depth: int) -> bool:
    """Return whether a part of a tile takes no more than making it: no tile is kept to read it from."""
    owner = value.owner
    if isinstance(owner, SplatOp | ArangeOp):
        return True
    if isinstance(owner, LoadOp):
        return _narrows(owner, box)
    if depth == 0:
        return False
    if isinstance(owner, CastOp | BitcastOp):
        return _is_light(owner.source, box, depth - 1)
    if isinstance(owner, ElementwiseOp):
        return _cost(owner) <= CHEAP and all(_is_light(arg, box, depth - 1) for arg in owner.args)
    if not isinstance(owner, ShapeOp):
        return False
    inner = _before(owner, box)
    return inner is not None and _is_light(owner.source, inner, depth - 1)


class _OfShape(RewritePattern):
    """A part of a repeated, transposed or reshaped tile is a part of the tile, repeated, transposed or reshaped."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        made, box = op.source.owner, _box(op)
        inner = _before(made, box) if isinstance(made, ShapeOp) and box is not None else None
        if inner is None:
            return
        assert isinstance(made, ShapeOp)
        ops, part = inner.of(made.source, _alone(op))
        if not _alone(op) and (isinstance(made, TransposeOp) or part.type != op.result.type):
            ops.append(_changed(made, part, op.sizes))
            part = ops[-1].results[0]
        rewriter.replace(op, ops, [part])


def _changed(made: ShapeOp, part: SSAValue, shape: Sequence[int]) -> Operation:
    if isinstance(made, TransposeOp):
        return TransposeOp(part, made.permutation)
    return ReshapeOp(part, shape) if isinstance(made, ReshapeOp) else BroadcastOp(part, shape)


def _before(op: ShapeOp, box: _Box) -> _Box | None:
    """Return the box of a tile that a box of it in another shape is, None where it is none."""
    if isinstance(op, ReshapeOp):
        return _regrouped(op, box)
    before, after = shape_of(op.source.type), shape_of(op.result.type)
    if isinstance(op, TransposeOp):
        return box.along([op.permutation.index(axis) for axis in range(len(before))])
    return box.along([axis if a == b else None for axis, (a, b) in enumerate(zip(before, after, strict=True))])


def _regrouped(op: ReshapeOp, box: _Box) -> _Box | None:
    """Return the box of a tile that a box of its other shape is, None where it is none."""
    before, after = shape_of(op.source.type), shape_of(op.result.type)
    starts, sizes, steps = list[int | SSAValue](), list[int](), list[int]()
    for old, new in _groups(before, after):
        found = _group([before[axis] for axis in old], [(axis, after[axis]) for axis in new], box)
        if found is None:
            return None
        starts += found.starts
        sizes += found.sizes
        steps += found.steps
    return _Box(tuple(starts), tuple(sizes), tuple(steps))


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the dimensions of two shapes in groups of as many elements, the smallest that there are."""
    groups: list[tuple[list[int], list[int]]] = []
    old, new = list(range(len(before))), list(range(len(after)))
    while old or new:
        left, right = old[:1], new[:1]
        del old[:1], new[:1]
        while prod(before[a] for a in left) != prod(after[a] for a in right):
            short = prod(before[a] for a in left) < prod(after[a] for a in right)
            mine, rest = (left, old) if short else (right, new)
            mine.append(rest.pop(0))
        groups.append((left, right))
    return groups


def _group(before: Sequence[int], after: Sequence[tuple[int, int]], box: _Box) -> _Box | None:
    """Return the box of one group of dimensions: sizes before, and each dimension with its size after."""
    longer = [axis for axis, size in after if size > 1]
    wide = [number for number, size in enumerate(before) if size > 1]
    if len(wide) == len(longer) <= 1:  # ones come and go
        chosen = [longer[0] if number in wide else None for number in range(len(before))]
        return box.along(chosen)
    if all(box.starts[axis] == 0 and (box.sizes[axis], box.steps[axis]) == (size, 1) for axis, size in after):
        return _Box((0,) * len(before), tuple(before), (1,) * len(before))
    if len(longer) == 1:
        return _of_merged(before, longer[0], box)
    return _of_split(before, wide[0], after, box) if len(wide) == 1 else None


def _of_merged(before: Sequence[int], axis: int, box: _Box) -> _Box | None:
    """Return the box of dimensions that one stands for: rows of the first one, or a part of one row."""
    start, size, step = box.starts[axis], box.sizes[axis], box.steps[axis]
    outer, *rest = before
    row = prod(rest)
    if not isinstance(start, int):
        return None
    if step == 1 and not start % row and not size % row:
        return _Box((start // row, *(0 for _ in rest)), (size // row, *rest), (1,) * len(before))
    last = start + step * (size - 1)
    if start // row != last // row or not rest:
        return None
    inside = _Box((start % row,), (size,), (step,))
    inner = inside if len(rest) == 1 else _of_merged(rest, 0, inside)
    if inner is None or outer == row == 1:
        return None
    return _Box((start // row, *inner.starts), (1, *inner.sizes), (1, *inner.steps))


def _of_split(before: Sequence[int], wide: int, after: Sequence[tuple[int, int]], box: _Box) -> _Box | None:
    """Return the box of a dimension that several are made of: neighbours, as all after the first long one is whole."""
    first, place = 0, 0
    for number, (axis, size) in enumerate(after):
        start, count, step = box.starts[axis], box.sizes[axis], box.steps[axis]
        if not isinstance(start, int) or (count > 1 and step != 1):
            return None
        place = place * size + start
        if count < size:
            first = number
    if any(box.sizes[axis] > 1 for axis, _ in after[:first]):
        return None
    count = prod(box.sizes[axis] for axis, _ in after)
    starts = tuple(place if number == wide else 0 for number in range(len(before)))
    return _Box(starts, tuple(count if number == wide else 1 for number in range(len(before))), (1,) * len(before))


class _OfArange(RewritePattern):
    """A part of positions is computed."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        box = _box(op)
        if not isinstance(op.source.owner, ArangeOp) or box is None:
            return
        element = element_of(op.result.type)
        start = ConstantOp(box.starts[0], index) if isinstance(box.starts[0], int) else None
        first = CastOp(start.result if start else op.starts[0], element)
        ops: list[Operation] = [*([start] if start else []), first]
        if _alone(op):
            rewriter.replace(op, ops, [first.result])
            return
        by = CastOp(ConstantOp(box.steps[0], index).result, element)
        assert isinstance(by.source.owner, Operation)
        numbers, steps, firsts = (
            ArangeOp(op.sizes[0], element),
            SplatOp(by.result, op.sizes),
            SplatOp(first.result, op.sizes),
        )
        scaled = ElementwiseOp("mul", [numbers.result, steps.result])
        ops += [by.source.owner, by, numbers, steps, firsts, scaled]
        rewriter.replace(op, [*ops, ElementwiseOp("add", [scaled.result, firsts.result])])


class _OfChoice(RewritePattern):
    """A part of `select(condition, a, b)` is one of `a` or `b` where the condition is known to be one there."""

    @matches_type
    def match_and_rewrite(self, op: PartOp, rewriter: PatternRewriter, /) -> None:
        made, box = op.source.owner, _box(op)
        if not isinstance(made, ElementwiseOp) or made.fn.data != "select" or box is None or box.places is None:
            return
        condition = _numbers(made.args[0], DEPTH)
        if condition is None:
            return
        rows = zip(box.places, box.steps, box.sizes, strict=True)
        there = condition[np.ix_(*(start + step * np.arange(size) for start, step, size in rows))]
        if there.all() or not there.any():
            ops, result = box.of(made.args[1 if there.all() else 2], _alone(op))
            rewriter.replace(op, ops, [result])


def _numbers(value: SSAValue, depth: int) -> np.ndarray | None:
    """Return the elements of a tile of integers or bools that are known at compile time."""
    owner, shape = value.owner, shape_of(value.type)
    if dtype_of_value(value).is_float or prod(shape) > MOST_ELEMENTS or depth == 0:
        return None
    if isinstance(owner, SplatOp) and (number := known(value)) is not None:
        return np.full(shape, number, dtype_of_value(value).numpy())
    if isinstance(owner, ArangeOp):
        return np.arange(shape[0]).astype(dtype_of_value(value).numpy())
    if isinstance(owner, ReshapeOp | BroadcastOp | TransposeOp):
        source = _numbers(owner.source, depth - 1)
        if source is None:
            return None
        if isinstance(owner, TransposeOp):
            return source.transpose(owner.permutation)
        return source.reshape(shape) if isinstance(owner, ReshapeOp) else np.broadcast_to(source, shape)
    if isinstance(owner, ElementwiseOp):
        parts = [_numbers(arg, depth - 1) for arg in owner.args]
        args = [part for part in parts if part is not None]
        return apply(owner.fn.data, tuple(args), dtype_of_value(owner.args[-1])) if len(args) == len(parts) else None
    return None


@dataclass(frozen=True)
class NarrowPartsPass(PatternPass):
    """Reads parts of tiles where the tiles are made."""

    name = "narrow-parts"

    def patterns(self) -> Sequence[RewritePattern]:
        """Return the patterns."""
        return [
            _Whole(),
            _NoWrap(),
            _OfSplat(),
            _OfPart(),
            _OfLoad(),
            _OfShape(),
            _OfArange(),
            _OfChoice(),
            _OfArithmetic(),
        ]
