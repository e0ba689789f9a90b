"""Compiles `grid`, `range`, `static_range`, `linear_id` and `context`."""

from __future__ import annotations

from typing import Any, cast

from tessera.errors import LanguageError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, cast_to, static_int, to_index
from tessera.frontend.counting import RangeSpec, counted
from tessera.frontend.ops.debug import check
from tessera.frontend.registry import compiles
from tessera.frontend.values import ContextValue, GridSpec, Scalar, StaticRangeSpec, Tile, show
from tessera.ir.tile.elementwise import ArangeOp
from tessera.ir.types import element_type
from tessera.numerics import dtypes

MAX_UNROLLED = 4096
MAX_BLOCK = 2**63 - 1


@compiles(tile.grid)
def _grid(b: Builder, dims: tuple[Any, ...], order: Any) -> GridSpec:
    if not dims:
        raise LanguageError("grid without dimensions", code="bad-grid", help="write ts.tile.grid((M, 64), (N, 64))")
    extents: list[Any] = []
    blocks: list[int] = []
    for dim in dims:
        pair = cast(tuple[Any, ...], dim)
        if not isinstance(dim, tuple) or len(pair) != 2:
            raise LanguageError(
                f"grid: {show(dim)} is not an (extent, block) pair",
                code="bad-grid",
                help="write ts.tile.grid((M, 64), (N, 64))",
            )
        extents.append(to_index(b, pair[0], "grid: an extent", far=True))
        blocks.append(static_int(b, pair[1], "grid: a block"))
    if min(blocks) < 1:
        raise LanguageError(f"grid: the block {min(blocks)}", code="bad-grid", help="a block has at least one element")
    if max(blocks) > MAX_BLOCK:
        raise LanguageError(
            f"grid: the block {max(blocks)}", code="bad-grid", help=f"a block has at most {MAX_BLOCK} elements"
        )
    return GridSpec(tuple(extents), tuple(blocks), _order_of(b, order, len(dims)))


def _order_of(b: Builder, order: Any, count: int) -> tuple[int, ...]:
    """Return the dimensions of a grid from the slowest to the fastest."""
    if order is None:
        return tuple(range(count))
    given = cast(tuple[Any, ...], order) if isinstance(order, tuple) else (order,)
    places = tuple(static_int(b, dim, "grid: order") for dim in given)
    if sorted(places) != list(range(count)):
        raise LanguageError(
            f"grid: order {show(order)} does not name each of {count} dimensions once",
            code="bad-grid",
            help=f"name the slowest first, such as order={tuple(reversed(range(count)))}",
        )
    return places


@compiles(tile.range)
def _range(b: Builder, bounds: tuple[Any, ...]) -> RangeSpec:
    lower, upper, step = _bounds(bounds, "range")
    known = b.static(step) if not isinstance(step, Scalar) else None
    if known is not None and known < 1:
        raise LanguageError(
            f"range: the step {known} is not positive",
            code="bad-range",
            help="count up, and compute hi - 1 - i",
        )
    if known is None and b.in_program:
        positive = apply(b, "gt", Scalar(to_index(b, step, "range: the step", far=True)), 0)
        check(b, positive, "the step of ts.tile.range is positive")
    return counted(b, lower, upper, step)


def _bounds(bounds: tuple[Any, ...], name: str) -> tuple[Any, Any, Any]:
    if len(bounds) == 1:
        return 0, bounds[0], 1
    if len(bounds) in (2, 3):
        return bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else 1
    raise LanguageError(
        f"{name} with {len(bounds)} arguments",
        code="bad-range",
        help=f"{name}(hi), {name}(lo, hi) or {name}(lo, hi, step)",
    )


@compiles(tile.static_range)
def _static_range(b: Builder, bounds: tuple[Any, ...]) -> StaticRangeSpec:
    lower, upper, step = (static_int(b, bound, "static_range: a bound") for bound in _bounds(bounds, "static_range"))
    if step == 0:
        raise LanguageError("static_range: the step is 0", code="bad-range", help="use another step")
    values = range(lower, upper, step)
    times = max(-((lower - upper) // step), 0)
    if times > MAX_UNROLLED:
        raise LanguageError(
            f"static_range repeats its body {times} times",
            code="bad-range",
            help=f"at most {MAX_UNROLLED} times; use ts.tile.range for a loop at run time",
        )
    return StaticRangeSpec(values)


@compiles(tile.linear_id)
def _linear_id(b: Builder) -> Tile:
    if b.linear_offset is None:
        raise LanguageError(
            "linear_id in a kernel that declares a grid",
            code="linear-id-in-grid",
            help="compute element numbers from the grid's offsets: m + ts.tile.arange(BM)",
        )
    b.uses_linear_id = True
    element = element_type(dtypes.i64)
    lanes = Tile(b.emit(ArangeOp(b.spec.linear_block, element)).result)
    return cast(Tile, apply(b, "add", lanes, Scalar(cast_to(b, b.linear_offset, element))))


@compiles(tile.context)
def _context(b: Builder) -> ContextValue:
    return ContextValue()
