"""NumPy's functions on traced arrays that look numbers up in vectors, count them, or put elements between others.

What gives as many elements as values say (`np.unique`, `np.nonzero`) is refused with what to use.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as _numpy

from tessera.errors import TypeMismatchError, caller_location, shown
from tessera.graph.dimensions import along, part
from tessera.graph.functions import is_traced, numpy, size_needed, trace_of
from tessera.graph.sizes import is_whole
from tessera.graph.traced import Array
from tessera.ir.graph.types import array_type
from tessera.target.dims import Dim

np: Any = _numpy  # whose functions take traced arrays, too


def _wrong(message: str, help: str | None = None) -> TypeMismatchError:
    return TypeMismatchError(message, code="bad-argument", location=caller_location(), help=help)


def _vector(x: Any, name: str) -> Array:
    if x.ndim != 1:
        raise TypeMismatchError(
            f"{name} is {x!r}, no vector",
            code="rank-mismatch",
            location=caller_location(),
            help="reshape it: x.reshape(-1)",
        )
    return x


# Between which numbers


def _is_before(x: Any, y: Any) -> Any:
    """Return whether numbers come before others in order: NaN is last."""
    if array_type((x if isinstance(x, Array) else y).ssa).dtype.is_float:
        return np.logical_or(x < y, np.logical_and(y != y, x == x))
    return x < y


@numpy(np.searchsorted)
def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return before how many of the numbers in order others go, in front of equal ones or behind them."""
    if side not in ("left", "right"):
        raise _wrong(f"side={shown(side)}", "it is 'left' or 'right'")
    trace = trace_of(a, v, sorter)
    bounds, value = _vector(trace.array(a), "a"), trace.array(v)
    bounds = bounds if sorter is None else bounds[sorter]
    size = index(bounds.shape[0])
    found: Any = np.zeros_like(value, dtype=np.int64)
    if not size:
        return found
    for bit in reversed(range(size.bit_length())):
        more = found + (1 << bit)
        bound = np.take(bounds, np.minimum(more, size) - 1)
        goes_on = _is_before(bound, value) if side == "left" else np.logical_not(_is_before(value, bound))
        found = np.where(np.logical_and(more <= size, goes_on), more, found)
    return found


@numpy(np.digitize)
def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """Return in which of the ranges between numbers, which grow or fall, others are."""
    trace = trace_of(x, bins)
    bounds = _vector(trace.array(bins), "bins")
    if index(bounds.shape[0]) == 0:
        return np.zeros_like(trace.array(x), dtype=np.int64)
    side = "left" if right else "right"
    if not is_traced(bins):
        steps = np.diff(np.asarray(bins))
        if not ((steps >= 0).all() or (steps <= 0).all()):
            raise _wrong("bins neither grow nor fall")
        if (steps >= 0).all():
            return searchsorted(bounds, x, side)
        return _from_end(bounds, x, side)
    return np.where(bounds[-1] >= bounds[0], searchsorted(bounds, x, side), _from_end(bounds, x, side))


def _from_end(bounds: Any, x: Any, side: str) -> Any:
    return index(bounds.shape[0]) - searchsorted(bounds[::-1], x, side)


@numpy(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Return the values at places of lines through points, whose places grow; outside those of the ends."""
    trace = trace_of(x, xp, fp)
    at, places, values = (trace.array(one).astype(np.float64) for one in (x, xp, fp))
    count = index(_vector(places, "xp").shape[0])
    if count == 0 or count != index(_vector(values, "fp").shape[0]):
        raise _wrong("interp takes as many values as places, and not none")
    if period is not None:
        at, places, values, count = _around(at, places, values, abs(period))
        left = right = None
    low = np.clip(searchsorted(places, at, "right") - 1, 0, max(count - 2, 0))
    high = np.minimum(low + 1, count - 1)
    (x0, x1), (y0, y1) = ((np.take(one, low), np.take(one, high)) for one in (places, values))
    width = x1 - x0
    is_point = width == 0
    slope = np.where(is_point, 0.0, (y1 - y0) / np.where(is_point, 1.0, width))
    found = y0 if count == 1 else slope * (at - x0) + y0
    found = np.where(at < places[0], values[0] if left is None else left, found)
    found = np.where(at >= places[-1], values[-1], found)
    found = np.where(at > places[-1], values[-1] if right is None else right, found)
    return found if count == 1 else np.where(at != at, at, found)


def _around(at: Any, places: Any, values: Any, period: Any) -> tuple[Any, Any, Any, int]:
    """Return places within a period in order, with the last and the first one once more at the other end."""
    places = np.remainder(places, period)
    order = np.argsort(places)
    places, values = places[order], values[order]
    places = np.concatenate([places[-1:] - period, places, places[:1] + period])
    values = np.concatenate([values[-1:], values, values[:1]])
    return np.remainder(at, period), places, values, index(places.shape[0])


# Counts


@numpy(np.histogram_bin_edges)
def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """Return the ends of ranges of one width, from the smallest to the largest element by default."""
    if isinstance(bins, str):
        raise size_needed(f"np.histogram(bins={bins!r})", "a number of bins, or their ends, gives a known size")
    trace = trace_of(a, bins, range)
    x = np.ravel(trace.array(a))
    if not is_whole(bins):
        return trace.array(bins)
    if bins < 1:
        raise _wrong(f"bins is {bins}", "it is 1 or more")
    floats = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
    if range is not None and not is_traced(range):
        if not range[0] <= range[1]:
            raise _wrong(f"range={shown(range)}", "its second end is not below the first")
        return trace.array(np.histogram_bin_edges(np.zeros(0), bins, range)).astype(floats.dtype)
    if range is None and index(x.shape[0]) == 0:
        return trace.array(np.linspace(0.0, 1.0, bins + 1)).astype(floats.dtype)
    low, high = (np.min(floats), np.max(floats)) if range is None else (trace.array(one) for one in range)
    is_point = low == high
    low, high = np.where(is_point, low - 0.5, low), np.where(is_point, high + 0.5, high)
    step = (high - low) / bins
    return np.concatenate([low + np.arange(bins) * step, np.reshape(high, (1,))]).astype(floats.dtype)


@numpy(np.histogram)
def histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    """Return how many elements are in each of some ranges, or the sums of their weights, and the ends of the ranges."""
    trace = trace_of(a, bins, range, weights)
    x = np.ravel(trace.array(a))
    ends = histogram_bin_edges(x, bins, range)
    wide = np.promote_types(x.dtype, ends.dtype)
    x, bounds = x.astype(wide), ends.astype(wide)
    if weights is None:
        ordered = np.sort(x)
        places = [searchsorted(ordered, bounds[:-1], "left"), searchsorted(ordered, bounds[-1:], "right")]
        counts = np.diff(np.concatenate(places))
    else:
        counts = _weights_in(x, bounds, np.ravel(trace.array(weights)))
    if density:
        counts = counts / np.diff(ends) / np.sum(counts)
    return counts, ends


def _weights_in(x: Any, bounds: Any, weights: Any) -> Any:
    """Return the sums of the weights of the elements in each range."""
    bins = index(bounds.shape[0]) - 1
    number = searchsorted(bounds, x, "right") - 1
    number = np.where(x == bounds[-1], bins - 1, number)
    number = np.where(np.logical_and(x >= bounds[0], x <= bounds[-1]), number, -1)
    return _added_up(weights, number, bins)


def _added_up(weights: Any, number: Any, count: int) -> Any:
    """Return `count` sums of the weights of equal numbers."""
    number = np.broadcast_to(number, weights.shape)
    if not array_type(weights.ssa).dtype.is_float:
        return _added_up(weights.astype(np.float64), number, count).astype(np.int64)
    with weights.tracing.at_caller() as writer:
        found = writer.add_rows(writer.with_ones(weights.ssa, [1]), number.ssa, Dim((), count))
        return Array(weights.tracing, writer.without(found, [1]))


@numpy(np.bincount)
def bincount(x: Any, /, weights: Any = None, minlength: int = 0) -> Any:
    """Return the sums of the weights of equal numbers, which are known: their size is that of the largest one."""
    if is_traced(x):
        raise size_needed("np.bincount", "np.histogram(x, n, (0, n)) counts the integers below n")
    trace = trace_of(weights)
    places = np.asarray(x)
    if places.ndim != 1 or places.dtype.kind not in "iu" or (places.size and places.min() < 0):
        raise _wrong(f"bincount of {shown(x)}", "it takes a vector of integers from 0 on")
    count = max(int(places.max(initial=-1)) + 1, index(minlength))
    given = trace.array(weights).astype(np.float64)
    return _added_up(given, trace.array(places.astype(np.int64)), count)


# Elements between others


def _places(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function of places gives, which NumPy checks.

    Raises:
        TypeMismatchError: `bad-index`.
    """
    try:
        return function(*given)
    except (IndexError, ValueError, TypeError) as error:
        raise TypeMismatchError(
            str(error),
            code="bad-index",
            location=caller_location(),
            help="index inside of the array, with places of whole numbers",
        ) from None


def _known(obj: Any, what: str) -> Any:
    """Return places that are no traced array.

    Raises:
        LanguageError: `value-needed`.
    """
    if is_traced(obj):
        raise size_needed(f"{what} at traced places", "places that are known, or np.where, keep the size")
    return obj


def _taken(x: Any, axis: int, places: Any) -> Any:
    """Return slices along a dimension, at known places: runs of neighbours are slices."""
    ends = np.flatnonzero(np.diff(places) != 1) + 1
    runs = [run for run in np.split(places, ends) if run.size]
    if len(runs) > _MOST_RUNS:
        return np.take(x, places, axis)
    if not runs:
        return part(x, axis, slice(0, 0))
    parts = [part(x, axis, slice(int(run[0]), int(run[-1]) + 1)) for run in runs]
    return np.concatenate(parts, axis) if len(parts) > 1 else parts[0]


_MOST_RUNS = 8
"""Beyond, elements are taken one by one."""


@numpy(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    """Return an array without the elements, or the slices along a dimension, at known places."""
    x, at = along(arr, axis)
    own = np.arange(index(x.shape[at]))
    return _taken(x, at, _places(np.delete, own, _known(obj, "np.delete")))


@numpy(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    """Return an array with other elements, or slices along a dimension, in front of known places."""
    trace = trace_of(arr, values)
    x, at = along(trace.array(arr), axis)
    added, size = trace.array(values).astype(x.dtype), index(x.shape[at])
    given = _known(obj, "np.insert")
    is_one = not isinstance(given, slice) and np.ndim(given) == 0
    added = np.expand_dims(added, tuple(range(x.ndim - added.ndim))) if added.ndim < x.ndim else added
    added = np.moveaxis(added, 0, at) if is_one else added
    count = _how_many(given, size, index(added.shape[at]), is_one)
    shape = tuple(count if axis == at else n for axis, n in enumerate(x.shape))
    added = np.broadcast_to(added, shape)
    places = _places(np.insert, np.arange(size), given, size + np.arange(count))
    return _taken(np.concatenate([x, added], at), at, places)


def _how_many(places: Any, size: int, values: int, is_one: bool) -> int:
    """Return how many slices are inserted: as many as there are places, at one place as many as there are values."""
    if is_one:
        return values
    given = np.arange(size)[places] if isinstance(places, slice) else np.asarray(places)
    found = int(given.sum()) if given.dtype == bool else given.size
    return values if found == 1 else found


# Sums of products at every distance


def _convolved(a: Any, v: Any, mode: Any) -> Any:
    trace = trace_of(a, v)
    x, kernel = _vector(trace.array(a), "a"), _vector(trace.array(v), "v")
    if mode not in ("full", "same", "valid"):
        raise _wrong(f"mode={shown(mode)}", "it is 'full', 'same' or 'valid'")
    if index(x.shape[0]) < index(kernel.shape[0]):
        x, kernel = kernel, x
    size, length = index(x.shape[0]), index(kernel.shape[0])
    if not length:
        raise _wrong("an array of no elements is convolved")
    before = {"full": length - 1, "same": length // 2, "valid": 0}[mode]
    behind = {"full": length - 1, "same": (length - 1) // 2, "valid": 0}[mode]
    wide = np.pad(x, (before, behind)) if before + behind else x
    count = size + before + behind - length + 1
    if length > _SHORT:
        return _by_blocks(wide, kernel, count)
    parts = [kernel[at] * wide[length - 1 - at : length - 1 - at + count] for at in range(length)]
    return sum(parts[1:], start=parts[0])


_SHORT = 16
"""Kernels of up to so many elements are written out."""


def _by_blocks(x: Any, kernel: Any, count: int) -> Any:
    """Return sums of products as one product of matrices: blocks with what follows them, and the kernel's shifts."""
    length = index(kernel.shape[0])
    blocks = -(-count // length)
    x = np.pad(x, (0, (blocks + 1) * length - index(x.shape[0])))
    rows = np.reshape(x, (blocks + 1, length))
    both = np.concatenate([rows[:-1], rows[1:]], 1)
    row = np.pad(kernel[::-1], (0, length + 1))
    shifts = np.ravel(np.broadcast_to(row, (length, 2 * length + 1)))[: 2 * length * length]
    found = np.matmul(both, np.transpose(np.reshape(shifts, (length, 2 * length))))
    return np.ravel(found)[:count]


@numpy(np.convolve)
def convolve(a: Any, v: Any, mode: Any = "full") -> Any:
    """Return the convolution of two vectors."""
    return _convolved(a, v, mode)


@numpy(np.correlate)
def correlate(a: Any, v: Any, mode: Any = "valid") -> Any:
    """Return the sums of products of two vectors, the second at every place of the first."""
    return _convolved(a, trace_of(a, v).array(v)[::-1], mode)


# As many as values say

_KEPT = "np.where(mask, x, 0) keeps the shape, np.sum(x, where=mask) adds up"
_SORTED = "np.sort(x), in which equal ones are neighbours, has a known size"
_BY_VALUE = {
    **dict.fromkeys(("nonzero", "flatnonzero", "argwhere", "extract"), _KEPT),
    **dict.fromkeys(("unique", "unique_values", "unique_counts", "unique_inverse", "unique_all"), _SORTED),
    **dict.fromkeys(("union1d", "intersect1d", "setdiff1d", "setxor1d"), "np.isin(x, y) has a known size"),
    "trim_zeros": _KEPT,
}


def _refusing(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*_given: Any, **_options: Any) -> Any:
        raise size_needed(f"np.{name}", instead)

    return refuse


for _name, _instead in _BY_VALUE.items():
    if hasattr(np, _name):
        numpy(getattr(np, _name))(_refusing(_name, _instead))


@numpy(np.compress)
def compress(condition: Any, a: Any, axis: Any = None, out: Any = None) -> Any:
    """Return slices along a dimension where a known condition holds."""
    if is_traced(condition):
        raise size_needed("np.compress", _KEPT)
    x, at = along(a, axis)
    places = np.flatnonzero(np.asarray(condition))
    if places.size and places[-1] >= index(x.shape[at]):
        raise TypeMismatchError(
            f"a condition of {places[-1] + 1} elements for {x!r}",
            code="bad-index",
            location=caller_location(),
            help="a condition has at most as many elements as the dimension",
        )
    return _taken(x, at, places)


@numpy(np.isin)
def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    """Return which elements are among others."""
    trace = trace_of(element, test_elements)
    x, others = trace.array(element), np.ravel(trace.array(test_elements))
    found = np.any(np.expand_dims(x, -1) == others, axis=-1)
    return np.logical_not(found) if invert else found
