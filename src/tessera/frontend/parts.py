"""Parts of tiles: what a subscript of a tile names, and the ops that read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.convert import operand, reshape_to, static_int, to_index
from tessera.frontend.values import AnyView, Scalar, Shared, Tile, show, wrap
from tessera.ir.locations import location_of
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.types import describe


@dataclass(frozen=True, slots=True)
class SliceValue:
    """An evaluated `lower:upper:step`."""

    lower: Any = None
    upper: Any = None
    step: Any = None

    @property
    def is_full(self) -> bool:
        """Whether it is a plain `:`."""
        return self.lower is None and self.upper is None and self.step is None


FULL = SliceValue()


@dataclass(frozen=True, slots=True)
class _Along:
    """What is read along one dimension.

    Args:
        start: the first place.
        size: how many elements.
        step: how far they are apart.
        kept: whether the result has the dimension.
    """

    start: int | SSAValue
    size: int
    step: int = 1
    kept: bool = True


def part(b: Builder, tile: Tile, starts: Sequence[int | SSAValue], shape: Sequence[int], **given: Any) -> Tile:
    """Return the part of a tile from `starts` on; see `PartOp`."""
    at = [b.index(start) if isinstance(start, int) else start for start in starts]
    return Tile(b.emit(PartOp(tile.ssa, at, shape, **given)).result, tile.policy)


def index_tile(b: Builder, tile: Tile, items: tuple[Any, ...]) -> Tile | Scalar:
    """Return `tile[items]`; `items` has one entry for each dimension, and None for each new one.

    Raises:
        TypeMismatchError: `bad-index` for a place that the tile does not have, or what is no index.
        LanguageError: `slice-extent` where the number of elements is not known at compile time, or is 0.
    """
    axes = [_along(b, tile, axis, item) for axis, item in enumerate(item for item in items if item is not None)]
    if all(_is_whole(each, size) for each, size in zip(axes, tile.shape, strict=True)):
        ssa = tile.ssa
    else:
        starts = [b.index(each.start) if isinstance(each.start, int) else each.start for each in axes]
        alone = None not in items and not any(each.kept for each in axes)
        sizes = [] if alone else [each.size for each in axes]
        ssa = b.emit(PartOp(tile.ssa, starts, sizes, [each.step for each in axes])).result
        if alone:
            return cast(Scalar, wrap(ssa, tile.policy))
    left, shape = iter(axes), list[int]()
    for item in items:
        each = None if item is None else next(left)
        if each is None or each.kept:
            shape.append(1 if each is None else each.size)
    return Tile(reshape_to(b, ssa, shape), tile.policy)


def _is_whole(each: _Along, size: int) -> bool:
    return each.kept and isinstance(each.start, int) and (each.start, each.size, each.step) == (0, size, 1)


def _along(b: Builder, tile: Tile, axis: int, item: Any) -> _Along:
    size = tile.shape[axis]
    if isinstance(item, SliceValue):
        return _span(b, tile, axis, item)
    if isinstance(item, AnyView | Shared):
        item = operand(b, item)
    if isinstance(item, Tile):
        raise TypeMismatchError(
            f"{describe(tile.type)} is indexed by {show(item)}",
            code="bad-index",
            help="pick elements with ts.tile.take(x, index, axis), or keep some with ts.tile.where",
        )
    if isinstance(item, int) and not isinstance(item, bool):
        if not -size <= item < size:
            raise _outside(tile, axis, item, f"its elements are {-size} to {size - 1}")
        return _Along(item % size, 1, kept=False)
    return _Along(to_index(b, item, f"index {axis} of {describe(tile.type)}"), 1, kept=False)


def _outside(tile: Tile, axis: int, place: int, help: str) -> TypeMismatchError:
    owner = tile.ssa.owner
    location = location_of(owner) if isinstance(owner, Operation) else None
    made = f"; the tile is made at {location.frame.short()}" if location is not None else ""
    return TypeMismatchError(
        f"{place} lies outside of {describe(tile.type)} along dimension {axis}, of size {tile.shape[axis]}",
        code="bad-index",
        help=help + made,
    )


def _span(b: Builder, tile: Tile, axis: int, item: SliceValue) -> _Along:
    where, size = f"the bounds of {describe(tile.type)}", tile.shape[axis]
    step = 1 if item.step is None else static_int(b, item.step, "the step of a slice")
    if step == 0:
        raise LanguageError("a slice with the step 0", code="slice-step", help="x[::2] takes every second element")
    lower, upper = (
        operand(b, bound, where) if isinstance(bound, AnyView) else bound for bound in (item.lower, item.upper)
    )
    constant = all(bound is None or isinstance(bound, int) for bound in (lower, upper))
    first = _bound(tile, axis, lower, 0 if step > 0 else size - 1, step)
    last = _bound(tile, axis, upper, size if step > 0 else -1, step, end=True)
    extent = last - first if constant else _extent(b, first, last, where)
    if extent is None:
        raise LanguageError(
            f"the extent of the slice of {describe(tile.type)}, dimension {axis}, is not known at compile time",
            code="slice-extent",
            help="write the upper bound as the lower one plus a constant: x[i:i+8]",
        )
    count = -(-extent // step)
    if count < 1:
        raise LanguageError(
            f"the slice along dimension {axis} of {describe(tile.type)} has no elements",
            code="slice-extent",
            help="the upper bound must be above the lower one, and below it where the step is negative",
        )
    return _Along(first if isinstance(first, int) else to_index(b, first, where, far=True), count, step)


def _bound(tile: Tile, axis: int, bound: Any, default: int, step: int, end: bool = False) -> Any:
    """Return a bound, a compile-time one counted from the start.

    Raises:
        TypeMismatchError: `bad-index` for a compile-time one that the tile does not have.
    """
    if bound is None:
        return default
    if not isinstance(bound, int) or isinstance(bound, bool):
        return bound
    size = tile.shape[axis]
    most = size if step > 0 or end else size - 1
    if not -size <= bound <= most:
        raise _outside(tile, axis, bound, f"bounds are {-size} to {most}, and nothing is cut off")
    return bound + size if bound < 0 else bound


def _extent(b: Builder, first: Any, last: Any, where: str) -> int | None:
    """Return how far apart bounds are where it is known, in the arithmetic of their type, which wraps."""
    lower, upper = to_index(b, first, where), to_index(b, last, where)
    if isinstance(first, Scalar) and isinstance(last, Scalar) and first.type == last.type:
        return b.static_difference(last.ssa, first.ssa)
    return b.static_difference(upper, lower)
