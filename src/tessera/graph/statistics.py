"""NumPy's statistics of traced arrays that others make up."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as _numpy

from tessera.errors import TypeMismatchError, caller_location, shown
from tessera.graph.dimensions import along, part, reduced
from tessera.graph.functions import (
    is_traced,
    numpy,
    own_axes,
    own_axis,
    refused,
    several,
    trace_of,
)
from tessera.ir.graph.types import array_type

np: Any = _numpy  # whose functions take traced arrays, too


def _quantile(scale: float, skips_nan: bool = False) -> Callable[..., Any]:
    def quantile(
        a: Any,
        q: Any,
        axis: Any = None,
        out: Any = None,
        overwrite_input: bool = False,
        method: str = "linear",
        keepdims: Any = False,
    ) -> Any:
        if is_traced(q) or method not in _BETWEEN:
            raise refused(f"quantile(method={method!r})" if method not in _BETWEEN else "quantile of traced shares")
        shares = np.asarray(q, np.float64) * scale
        if not ((shares >= 0) & (shares <= 1)).all():
            raise TypeMismatchError(
                f"{shown(q)} is no share",
                code="bad-argument",
                location=caller_location(),
                help="quantiles are from 0 to 1, percentiles from 0 to 100",
            )
        x, at = _rows(trace_of(a).array(a), axis)
        x = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
        ordered = np.sort(x, axis=at)
        one = _share_without_nan if skips_nan else _share
        found = [_shaped(one(ordered, at, float(share), method), a, axis, keepdims) for share in shares.flat]
        return np.reshape(np.stack(found), (*shares.shape, *found[0].shape)) if shares.ndim else found[0]

    return quantile


_BETWEEN: dict[str, Callable[[Any], Any]] = {
    "linear": lambda part: part,
    "lower": lambda part: part * 0,
    "higher": np.ceil,
    "midpoint": lambda part: np.ceil(part) / 2,
    "nearest": np.rint,
}
"""By method, at which part of the way from one element to the next a share between them lies."""


def _rows(x: Any, axis: Any) -> tuple[Any, int]:
    """Return an array with those of its dimensions that are reduced as one, and which one that is."""
    if axis is None or isinstance(axis, int):
        return along(x, axis)
    axes = own_axes(x, axis)
    rest = tuple(size for at, size in enumerate(x.shape) if at not in axes)
    return np.reshape(np.moveaxis(x, axes, [*range(-len(axes), 0)]), (*rest, -1)), len(rest)


def _shaped(found: Any, a: Any, axis: Any, keepdims: Any) -> Any:
    """Return what was found along the dimension of `_rows` in the shape that NumPy gives it."""
    if axis is None or isinstance(axis, int):
        return reduced(found, a, axis, keepdims)
    found = np.squeeze(found, -1)
    return np.expand_dims(found, tuple(own_axes(a, axis))) if keepdims else found


def _share(ordered: Any, at: int, share: float, method: str) -> Any:
    """Return what lies at a share of the way through elements in order; NaN where one of them is."""
    end = index(ordered.shape[at]) - 1
    if end < 0:
        raise TypeMismatchError(
            "quantile of no elements",
            code="empty-reduction",
            location=caller_location(),
            help="give the array elements along this dimension",
        )
    place = end * share
    low = int(place)
    if method == "nearest":
        place = float(np.rint(place))
        low = int(place)
    first, second, last = (part(ordered, at, slice(n, n + 1)) for n in (low, min(low + 1, end), end))
    rest = float(_BETWEEN[method](place - low))
    between = first if rest == 0 else second if rest == 1 else first + (second - first) * rest
    return np.where(last != last, last, between)


def _share_without_nan(ordered: Any, at: int, share: float, method: str) -> Any:
    """Return what lies at a share of the way through the elements that are no NaN, which come first."""
    if index(ordered.shape[at]) == 0:
        raise TypeMismatchError(
            "quantile of no elements",
            code="empty-reduction",
            location=caller_location(),
            help="give the array elements along this dimension",
        )
    count = np.sum(ordered == ordered, axis=at, keepdims=True)
    end = np.maximum(count - 1, 0)
    place = end.astype(np.float64) * share
    place = np.rint(place) if method == "nearest" else place
    low = np.floor(place)
    first = np.take_along_axis(ordered, low.astype(np.int64), at)
    second = np.take_along_axis(ordered, np.minimum(low.astype(np.int64) + 1, end), at)
    rest = _BETWEEN[method](place - low).astype(ordered.dtype)
    between = np.where(rest == 0, first, first + (second - first) * rest)
    return np.where(count == 0, np.asarray(np.nan, ordered.dtype), between)


numpy(np.quantile)(_quantile(1))
numpy(np.percentile)(_quantile(0.01))
numpy(np.nanquantile)(_quantile(1, skips_nan=True))
numpy(np.nanpercentile)(_quantile(0.01, skips_nan=True))


@numpy(np.median)
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False) -> Any:
    """Return the middle of the elements in order, the mean of two middle ones."""
    return np.quantile(a, 0.5, axis, keepdims=keepdims)


@numpy(np.nanmedian)
def nanmedian(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False) -> Any:
    """Return the middle of the elements that are no NaN."""
    return np.nanquantile(a, 0.5, axis, keepdims=keepdims)


@numpy(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    """Return the largest less the smallest element."""
    return np.max(a, axis=axis, keepdims=keepdims) - np.min(a, axis=axis, keepdims=keepdims)


@numpy(np.average)
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False) -> Any:
    """Return a mean, weighted where there are weights; also the sum of the weights where that is wanted."""
    trace = trace_of(a, weights)
    x = trace.array(a)
    scale = np.ones_like(x) if weights is None else trace.array(weights)
    if axis is not None and isinstance(axis, int) and scale.ndim == 1 and x.ndim > 1:
        at = own_axis(x.ndim, axis)
        scale = np.reshape(scale, tuple(-1 if one == at else 1 for one in range(x.ndim)))
    total = np.sum(np.broadcast_arrays(scale, x)[0], axis=axis, keepdims=keepdims)
    if weights is None:
        found = np.mean(x, axis=axis, keepdims=keepdims)
    else:
        found = np.sum(x * scale, axis=axis, keepdims=keepdims) / total
    return (found, total.astype(found.dtype)) if returned else found


@numpy(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Return how many elements are not zero."""
    return np.sum(a != 0, axis=axis, keepdims=keepdims)


# Without NaN


def _without_nan(x: Any, instead: float) -> Any:
    return np.where(x != x, np.asarray(instead, x.dtype), x) if array_type(x.ssa).dtype.is_float else x


def _sum_without_nan(fn: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, **more: Any) -> Any:
        return fn(_without_nan(a, instead), axis=axis, dtype=dtype, keepdims=keepdims, **more)

    return reduce


def _extreme_without_nan(fn: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, **more: Any) -> Any:
        found = fn(_without_nan(a, instead), axis=axis, keepdims=keepdims, **more)
        if not array_type(a.ssa).dtype.is_float or more:
            return found
        return np.where(np.all(a != a, axis=axis, keepdims=keepdims), np.asarray(np.nan, a.dtype), found)

    return reduce


def _running_without_nan(fn: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def run(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        return fn(_without_nan(a, instead), axis=axis, dtype=dtype)

    return run


def _place_without_nan(fn: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def place(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
        return fn(_without_nan(a, instead), axis=axis, keepdims=keepdims)

    return place


numpy(np.nansum)(_sum_without_nan(np.sum, 0.0))
numpy(np.nanprod)(_sum_without_nan(np.prod, 1.0))
numpy(np.nanmax)(_extreme_without_nan(np.max, -np.inf))
numpy(np.nanmin)(_extreme_without_nan(np.min, np.inf))
numpy(np.nancumsum)(_running_without_nan(np.cumsum, 0.0))
numpy(np.nancumprod)(_running_without_nan(np.cumprod, 1.0))
numpy(np.nanargmax)(_place_without_nan(np.argmax, -np.inf))
numpy(np.nanargmin)(_place_without_nan(np.argmin, np.inf))


def _moment_without_nan(fn: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, *args: Any, **more: Any) -> Any:
        return fn(a, axis, dtype, None, *args, where=a == a, **more)

    return reduce


numpy(np.nanmean)(_moment_without_nan(np.mean))
numpy(np.nanvar)(_moment_without_nan(np.var))
numpy(np.nanstd)(_moment_without_nan(np.std))


@numpy(np.nan_to_num)
def nan_to_num(x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Return finite numbers in place of NaN and infinities."""
    dtype = array_type(x.ssa).dtype
    if not dtype.is_float:
        return np.copy(x)
    most = (2 - 2.0**-dtype.mantissa) * 2.0 ** (2 ** (dtype.bits - dtype.mantissa - 2) - 1)
    high, low = (most if posinf is None else posinf), (-most if neginf is None else neginf)
    return np.where(x != x, nan, np.where(x == np.inf, high, np.where(x == -np.inf, low, x)))


# Differences


@numpy(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Return the differences of neighbours along a dimension, n times over."""
    trace = trace_of(a, prepend, append)
    x = trace.array(a)
    at = own_axis(x.ndim, axis)
    ends = [None if one is None else _beside(trace.array(one), x, at) for one in (prepend, append)]
    parts = [one for one in (ends[0], x, ends[1]) if one is not None]
    x = np.concatenate(parts, at) if len(parts) > 1 and n else x
    for _ in range(n):
        after, before = part(x, at, slice(1, None)), part(x, at, slice(0, max(index(x.shape[at]) - 1, 0)))
        x = after != before if array_type(x.ssa).dtype.kind == "bool" else after - before
    return x


def _beside(one: Any, x: Any, axis: int) -> Any:
    """Return what stands beside an array: a number as one element of each row."""
    return one if one.ndim else np.broadcast_to(one, tuple(1 if at == axis else n for at, n in enumerate(x.shape)))


@numpy(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Return the differences of neighbours among all elements, with others before and behind them."""
    trace = trace_of(ary, to_end, to_begin)
    found = np.diff(np.ravel(trace.array(ary)))
    ends = [None if one is None else np.ravel(trace.array(one)).astype(found.dtype) for one in (to_begin, to_end)]
    parts = [one for one in (ends[0], found, ends[1]) if one is not None]
    return np.concatenate(parts) if len(parts) > 1 else found


_trapezoid: Any = getattr(np, "trapezoid", None) or np.trapz  # pyright: ignore[reportAttributeAccessIssue]


@numpy(_trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """Return integrals along a dimension by the trapezoidal rule."""
    trace = trace_of(y, x, dx)
    values = trace.array(y)
    at = own_axis(values.ndim, axis)
    steps: Any = dx
    if x is not None:
        places = trace.array(x)
        steps = np.diff(places, axis=at if places.ndim == values.ndim else -1)
        if places.ndim == 1:
            steps = np.reshape(steps, tuple(-1 if one == at else 1 for one in range(values.ndim)))
    before = slice(0, max(index(values.shape[at]) - 1, 0))
    return np.sum((part(values, at, slice(1, None)) + part(values, at, before)) / 2 * steps, axis=at)


@numpy(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Return central differences along dimensions, and at the ends those of two or three neighbours."""
    trace = trace_of(f, varargs)
    x = trace.array(f)
    axes = range(x.ndim) if axis is None else [own_axis(x.ndim, one) for one in several(axis)]
    steps = list(varargs) or [1.0]
    steps = steps * len(axes) if len(steps) == 1 else steps
    if len(steps) != len(axes) or edge_order not in (1, 2):
        raise TypeMismatchError(
            f"gradient along {len(axes)} dimensions with {len(steps)} steps, edge_order={edge_order}",
            code="bad-argument",
            location=caller_location(),
            help="give one step, or one for each dimension; edge_order is 1 or 2",
        )
    x = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
    found = [_slopes(x, at, step, edge_order) for at, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(x: Any, at: int, step: Any, edge_order: int) -> Any:
    size = index(x.shape[at])
    if size < edge_order + 1:
        raise TypeMismatchError(
            f"gradient along {size} elements, of which edge_order={edge_order} needs {edge_order + 1}",
            code="bad-argument",
            location=caller_location(),
            help="give more elements, or edge_order=1",
        )
    places = x.tracing.array(step)
    if places.ndim:
        apart = np.reshape(np.diff(places), tuple(-1 if one == at else 1 for one in range(x.ndim)))
    else:
        apart = np.broadcast_to(places, tuple(size - 1 if one == at else 1 for one in range(x.ndim)))
    slope = np.diff(x, axis=at) / apart
    before, after = (slice(0, size - 2), slice(1, None))
    left, right = part(apart, at, before), part(apart, at, after)
    inside = (part(slope, at, before) * right + part(slope, at, after) * left) / (left + right)
    ends = [part(slope, at, slice(0, 1)), part(slope, at, slice(size - 2, None))]
    if edge_order == 2:
        ends = [_end(ends[0], slope, apart, at, 0, 1), _end(ends[1], slope, apart, at, size - 2, size - 3)]
    return np.concatenate([ends[0], inside, ends[1]], at).astype(x.dtype)


def _end(end: Any, slope: Any, apart: Any, axis: int, own: int, next: int) -> Any:
    """Return the slope at an end of the parabola through it and its two neighbours."""
    other = part(slope, axis, slice(next, next + 1))
    near, far = (part(apart, axis, slice(at, at + 1)) for at in (own, next))
    return end + (end - other) * near / (near + far)


@numpy(np.unwrap)
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Any:
    """Return angles without steps of more than half a period, by adding whole periods."""
    x = p if array_type(p.ssa).dtype.is_float else p.astype(np.float64)
    at = own_axis(x.ndim, axis)
    steps, half = np.diff(x, axis=at), period / 2
    near = np.remainder(steps + half, period) - half
    near = np.where(np.logical_and(near == -half, steps > 0), half, near)
    limit = half if discont is None else max(discont, half)
    more = np.cumsum(np.where(np.absolute(steps) < limit, 0.0, near - steps).astype(x.dtype), axis=at)
    return np.concatenate([part(x, at, slice(0, 1)), part(x, at, slice(1, None)) + more], at)


# Moments of rows


@numpy(np.cov)
def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    """Return the covariances of rows, of two arrays one after another."""
    if fweights is not None or aweights is not None:
        raise refused("cov of weighted elements")
    trace = trace_of(m, y)
    given = [trace.array(one) for one in (m, y) if one is not None]
    given = [np.atleast_2d(one) if rowvar or one.ndim == 1 else np.transpose(one) for one in given]
    x = (np.concatenate(given, 0) if len(given) > 1 else given[0]).astype(np.float64 if dtype is None else dtype)
    apart = x - np.mean(x, axis=1, keepdims=True)
    less = (0 if bias else 1) if ddof is None else ddof
    found = np.matmul(apart, np.transpose(apart)) / max(index(x.shape[1]) - less, 0)
    return np.reshape(found, ()) if index(x.shape[0]) == 1 else found


@numpy(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """Return the correlations of rows."""
    found = cov(x, y, rowvar, dtype=dtype)
    if found.ndim == 0:
        return found / found
    spread = np.sqrt(np.diagonal(found))
    return np.clip(found / np.expand_dims(spread, 1) / np.expand_dims(spread, 0), -1, 1)
