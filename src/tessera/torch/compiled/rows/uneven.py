"""Pools whose windows differ in size: window i of S along L elements is from i·L/S, rounded down, to (i+1)·L/S, up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from tessera.numerics.dtypes import computed_in, i32, i64
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown

MOST = 64
"""Elements of the largest window, and windows that share an element: each is read for itself."""


def _sizes(dims: Sequence[Dim], rank: int) -> list[int]:
    if not all(dim.is_static for dim in dims[-rank:]):
        raise Unknown("windows that are known when the graph runs")
    return [dim.scale for dim in dims[-rank:]]


def _are_small(own: Sequence[Dim], dims: Sequence[Dim], rank: int) -> bool:
    """Return whether windows are known, and have few elements, each of which is in few windows."""
    pairs = list(zip(own[-rank:], dims[-rank:], strict=True))
    if not all(long.is_static and short.is_static for long, short in pairs):
        return False
    known = [(long.scale, short.scale) for long, short in pairs]
    elements = [max(_end(at, *pair) - _start(at, *pair) for at in range(pair[1])) for pair in known]
    return max(prod(elements), prod(-(-short // long) + 1 for long, short in known)) <= MOST


def _start(at: int, long: int, short: int) -> int:
    return at * long // short


def _end(at: int, long: int, short: int) -> int:
    return -(-(at + 1) * long // short)


def _bounds(c: Converter, dims: Sequence[Dim], axis: int, long: Dim, short: Dim) -> tuple[Any, Any]:
    """Return where windows begin and end along a dimension."""
    dtype = i32 if long.is_static and short.is_static and long.scale * short.scale < 1 << 31 else i64
    at = c.w.apply("mul", c.w.iota(dims, axis, dtype), c.w.size(long, dtype))
    count = c.w.size(short, dtype)
    last = c.w.apply("add", at, c.w.size(long + short - 1, dtype))
    return c.w.apply("floordiv", at, count), c.w.apply("floordiv", last, count)


def _elements(c: Converter, own: Sequence[Dim], dims: Sequence[Dim], rank: int) -> Iterator[tuple[list[Any], Any]]:
    """Give places of the elements of windows, and whether they are in them, one after another."""
    pairs = list(zip(_sizes(own, rank), _sizes(dims, rank), strict=True))
    most = [max(_end(at, *pair) - _start(at, *pair) for at in range(pair[1])) for pair in pairs]
    if prod(most) > MOST:
        raise Unknown("large windows")
    first = len(dims) - rank
    bounds = [_bounds(c, dims, axis, own[axis], dims[axis]) for axis in range(first, len(dims))]
    for steps in product(*map(range, most)):
        yield _chosen(c, first, _moved(c, bounds, steps))


def _moved(c: Converter, ranges: Sequence[tuple[Any, Any]], steps: Sequence[int]) -> list[tuple[Any, Any]]:
    """Return places that are some steps behind the beginnings of ranges, and the ranges' ends."""
    return [(c.w.apply("add", at, step), end) for (at, end), step in zip(ranges, steps, strict=True)]


def _chosen(c: Converter, first: int, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """Return places along all dimensions, and whether those along the last ones are before an end."""
    inside: Any = None
    for place, end in pairs:
        here = c.w.apply("lt", place, end)
        inside = here if inside is None else c.w.apply("and", inside, here)
    return [*range(first), *(place for place, _ in pairs)], inside


def _covering(c: Converter, own: Sequence[Dim], dims: Sequence[Dim], rank: int) -> Iterator[tuple[list[Any], Any]]:
    """Give windows that have an element, and whether they have it, one after another."""
    pairs = list(zip(_sizes(own, rank), _sizes(dims, rank), strict=True))
    most = [
        max(sum(_start(at, *pair) <= place < _end(at, *pair) for at in range(pair[1])) for place in range(pair[0]))
        for pair in pairs
    ]
    if prod(most) > MOST:
        raise Unknown("elements in many windows")
    first = len(own) - rank
    ranges: list[tuple[Any, Any]] = []
    for axis, (long, short) in enumerate(pairs, first):
        place = c.w.iota(own, axis, i32)
        start = c.w.apply("floordiv", c.w.apply("mul", place, short), long)
        end = c.w.apply("floordiv", c.w.apply("add", c.w.apply("mul", place, short), short + long - 1), long)
        ranges.append((start, end))
    for steps in product(*map(range, most)):
        yield _chosen(c, first, _moved(c, ranges, steps))


def _counts(c: Converter, own: Sequence[Dim], dims: Sequence[Dim], rank: int) -> Any:
    total: Any = None
    for axis in range(len(dims) - rank, len(dims)):
        start, end = _bounds(c, dims, axis, own[axis], dims[axis])
        count = c.w.apply("sub", end, start)
        total = count if total is None else c.w.apply("mul", total, count)
    return total


def _summed(c: Converter, x: Any, dims: Sequence[Dim], rank: int, is_back: bool) -> Any:
    """Return the sum of each window's elements, or of each element's windows: along one dimension after another.

    Args:
        c: the converter.
        x: images, or a number for each window.
        dims: the result's shape.
        rank: along how many dimensions windows go.
        is_back: whether windows are added up.
    """
    for axis in range(len(dims) - rank, len(dims)):
        before = c.dims(x)
        shape = [*before[:axis], dims[axis], *before[axis:]]
        windows, elements = (axis + 1, axis) if is_back else (axis, axis + 1)
        start, end = _bounds(c, shape, windows, shape[elements], shape[windows])
        at = c.w.iota(shape, elements, c.w_dtype(start))
        inside = c.w.apply("and", c.w.apply("ge", at, start), c.w.apply("lt", at, end))
        part = c.w.apply("select", inside, c.w.with_ones(x, [axis]), 0.0, dtype=c.w_dtype(x))
        x = c.w.reduce("sum", part, [axis + 1])
    return x


def mean_of(c: Converter, x: Any, dims: Sequence[Dim], rank: int) -> Any:
    """Return the mean of each window of images.

    Args:
        c: the converter.
        x: images.
        dims: the result's shape.
        rank: along how many dimensions windows go.
    """
    wide = c.w.cast(x, computed_in(c.w_dtype(x)))
    if not _are_small(c.dims(x), dims, rank):
        counts = c.w.cast(_counts(c, c.dims(x), dims, rank), c.w_dtype(wide))
        return c.w.apply("div", _summed(c, wide, dims, rank, False), counts)
    total: Any = None
    for places, inside in _elements(c, c.dims(x), dims, rank):
        part = c.w.apply("select", inside, c.w.take(wide, places, dims), 0.0, dtype=c.w_dtype(wide))
        total = part if total is None else c.w.apply("add", total, part)
    return c.w.apply("div", total, c.w.cast(_counts(c, c.dims(x), dims, rank), c.w_dtype(wide)))


def mean_back(c: Converter, g: Any, own: Sequence[Dim], rank: int) -> Any:
    """Return the gradient of `mean_of`.

    Args:
        c: the converter.
        g: the result's gradient.
        own: the images' shape.
        rank: along how many dimensions windows go.
    """
    wide = c.w.cast(g, computed_in(c.w_dtype(g)))
    shares = c.w.apply("div", wide, c.w.cast(_counts(c, own, c.dims(g), rank), c.w_dtype(wide)))
    if not _are_small(own, c.dims(g), rank):
        return _summed(c, shares, own, rank, True)
    total: Any = None
    for places, inside in _covering(c, own, c.dims(g), rank):
        part = c.w.apply("select", inside, c.w.take(shares, places, own), 0.0, dtype=c.w_dtype(wide))
        total = part if total is None else c.w.apply("add", total, part)
    return total


@row("adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _largest(c: Converter, x: Any, _sizes_: Any) -> Any:
    rank, dims = 2 if "2d" in str(c.node.target) else 3, c.results_dims()[0]
    if not _are_small(c.dims(x), dims, rank):
        return _largest_of_all(c, x, dims, rank)
    best: Any = None
    number: Any = None
    for places, inside in _elements(c, c.dims(x), dims, rank):
        value = c.w.apply("select", inside, c.w.take(x, places, dims), float("-inf"), dtype=c.w_dtype(x))
        own = _number(c, c.dims(x), places[-rank:])
        if best is None:
            best, number = value, own
            continue
        better = c.w.apply("or", c.w.apply("gt", value, best), c.w.apply("isnan", value))
        number = c.w.apply("select", c.w.apply("and", better, inside), own, number)
        best = c.w.apply("maximum", best, value)
    return [best, number]


def _number(c: Converter, own: Sequence[Dim], places: Sequence[Any]) -> Any:
    """Return which element of an image is at places."""
    total: Any = None
    for place, size in zip(places, own[-len(places) :], strict=True):
        at = c.w.cast(place, i64)
        total = at if total is None else c.w.apply("add", c.w.apply("mul", total, c.w.size(size, i64)), at)
    return total


def _largest_of_all(c: Converter, x: Any, dims: Sequence[Dim], rank: int) -> list[Any]:
    """Return the largest element of each window, of any size, and which it is: the first one of equal ones."""
    own, first = c.dims(x), len(dims) - rank
    shape, axes = [*dims, *own[first:]], [*range(first + rank, first + 2 * rank)]
    inside: Any = None
    for axis in range(first, first + rank):
        start, end = _bounds(c, shape, axis, own[axis], dims[axis])
        at = c.w.iota(shape, axis + rank, c.w_dtype(start))
        here = c.w.apply("and", c.w.apply("ge", at, start), c.w.apply("lt", at, end))
        inside = here if inside is None else c.w.apply("and", inside, here)
    value = c.w.with_ones(x, [*range(first, first + rank)])
    value = c.w.apply("select", inside, value, float("-inf"), dtype=c.w_dtype(x))
    best = c.w.reduce("max", value, axes, True)
    is_best = c.w.apply("and", inside, c.w.apply("or", c.w.apply("eq", value, best), c.w.apply("isnan", value)))
    numbers = _number(c, own, [c.w.iota(shape, axis, i64) for axis in axes])
    numbers = c.w.apply("select", is_best, numbers, (1 << 63) - 1, dtype=i64)
    return [c.w.reshape(best, dims), c.w.reduce("min", numbers, axes)]


@row("adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default")
def _largest_back(c: Converter, g: Any, x: Any, numbers: Any) -> Any:
    rank, own = 2 if "2d" in str(c.node.target) else 3, c.dims(x)
    mine = _number(c, own, [c.w.iota(own, axis, i64) for axis in range(len(own) - rank, len(own))])
    wide = c.w.cast(g, computed_in(c.w_dtype(g)))
    if not _are_small(own, c.dims(g), rank):
        last = len(own) + rank
        given, which = (c.w.with_ones(one, [*range(len(own), last)]) for one in (wide, numbers))
        here = c.w.apply("eq", which, c.w.with_ones(mine, [*range(len(own) - rank, len(own))]))
        part = c.w.apply("select", here, given, 0.0, dtype=c.w_dtype(wide))
        return c.w.reduce("sum", part, [*range(len(own) - rank, len(own))])
    total: Any = None
    for places, inside in _covering(c, own, c.dims(g), rank):
        here = c.w.apply("and", inside, c.w.apply("eq", c.w.take(numbers, places, own), mine))
        part = c.w.apply("select", here, c.w.take(wide, places, own), 0.0, dtype=c.w_dtype(wide))
        total = part if total is None else c.w.apply("add", total, part)
    return total
