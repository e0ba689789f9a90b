"""Elements of traced arrays that are set: `x[key] = value`, and NumPy's functions that put elements into arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, cast

import numpy as _numpy

from tessera.errors import CallError, TypeMismatchError, caller_location
from tessera.graph.dimensions import numbers
from tessera.graph.functions import indexed, is_traced, numpy, own_axis, refused, size_needed, trace_of
from tessera.graph.traced import Array
from tessera.ir.graph.types import dims_of
from tessera.target.dims import Dim

np: Any = _numpy  # whose functions take traced arrays, too


def assign(x: Array, key: Any, value: Any) -> None:
    """Let an array become one with some of its elements set.

    Raises:
        CallError: `written-argument` for arguments of what is differentiated, and for what may be a view or a copy.
        LanguageError: `value-needed` for places that depend on values and are no mask.
        TypeMismatchError: `bad-index` or `shape-mismatch`.
    """
    if x.is_differentiated and x.is_view:
        raise CallError(
            "elements of an argument are set in what is differentiated",
            code="written-argument",
            location=caller_location(),
            help="set elements of a copy: y = np.copy(x)",
        )
    x.become(_assigned(x, key, x.tracing.array(value).astype(x.dtype)))


def _assigned(x: Array, key: Any, value: Array) -> Array:
    items: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    if len(items) == 1 and getattr(items[0], "dtype", None) == np.bool_ and isinstance(items[0], Array):
        return _where_true(x, items[0], value)
    if is_traced(items):
        return _at_traced(x, items, value)
    if any(isinstance(item, list | np.ndarray | bool) for item in items):
        return _at_known(x, tuple(items), value)
    return with_part(x, key, value)


def _where_true(x: Any, mask: Any, value: Any) -> Any:
    """Return an array with a number, or what is alike in all places, where a mask is true."""
    if mask.ndim > x.ndim or value.ndim > x.ndim - mask.ndim:
        raise size_needed("x[mask] = values", "np.where(mask, values, x) takes values of the shape of x")
    return np.where(np.expand_dims(mask, tuple(range(mask.ndim, x.ndim))), value, x)


def _at_traced(x: Any, items: Sequence[Any], value: Any) -> Any:
    """Return an array with what is at one traced place along its first dimension set."""
    place = items[0]
    if len(items) > 1 or not isinstance(place, Array) or place.ndim:
        raise size_needed("x[places] = values", "np.where(np.arange(n)[:, None] == places, value, x) sets elements")
    with x.tracing.at_caller() as writer:
        own = Array(x.tracing, writer.from_start(place.ssa, dims_of(x.ssa)[0]))
    return np.where(numbers(x, 0) == own, value, x)


def _at_known(x: Any, key: Any, value: Any) -> Any:
    """Return an array with elements at known places set; of equal places the last one counts."""
    shape = tuple(map(index, x.shape))
    count = int(np.prod(shape))
    try:
        places = np.arange(count).reshape(shape)[key]
    except IndexError as error:
        raise TypeMismatchError(
            str(error),
            code="bad-index",
            location=caller_location(),
            help="index inside of the array, with at most as many indices as it has dimensions",
        ) from None
    source = np.ravel(np.broadcast_to(value, places.shape))
    owner = np.full(count, -1)
    for number, place in enumerate(places.ravel().tolist()):
        owner[place] = number
    if not places.size:
        return x
    owner = owner.reshape(shape)
    return np.where(owner >= 0, np.take(source, np.maximum(owner, 0)), x)


def with_part(x: Any, key: Any, value: Any) -> Any:
    """Return an array with a part set that numbers, slices, `None` and `...` say."""
    items: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    target = indexed(x, key)
    wide = np.broadcast_to(value, target.shape)
    given = sum(item is not None and item is not ... for item in items)
    at = next((place for place, item in enumerate(items) if item is ...), len(items))
    kept = [*items[:at], *[slice(None)] * (x.ndim - given), *items[at + 1 :]]
    kept = [item for item in kept if item is not None]
    parts = [_extent(item, size) for item, size in zip(kept, x.shape, strict=True)]
    counts = [size if one is None else len(one) for one, size in zip(parts, x.shape, strict=True)]
    wide = np.reshape(wide, tuple(counts))
    turned = tuple(axis for axis, one in enumerate(parts) if one is not None and one.step < 0)
    wide = np.flip(wide, turned) if turned else wide
    ordered = [one[::-1] if one is not None and one.step < 0 else one for one in parts]
    if all(one is None for one in ordered):
        return wide
    inside: Any = True
    for axis, one in enumerate(ordered):
        if one is not None:
            place = numbers(x, axis)
            here = np.logical_and(place >= one.start, place < one.stop)
            inside = np.logical_and(inside, np.logical_and(here, (place - one.start) % one.step == 0))
    with x.tracing.at_caller() as writer:
        starts = [Dim((), one.start if one else 0) for one in ordered]
        steps = [one.step if one else 1 for one in ordered]
        if any(one is not None and not one for one in ordered):
            return x
        return np.where(inside, Array(x.tracing, writer.place(wide.ssa, dims_of(x.ssa), starts, steps)), x)


def _extent(item: Any, size: Any) -> range | None:
    """Return the places along a dimension that an index takes, None for all of them."""
    if isinstance(item, slice):
        return None if item == slice(None) else range(*item.indices(index(size)))
    place = index(item) % index(size)
    return range(place, place + 1)


def _target(a: Any, name: str) -> Array:
    if not isinstance(a, Array):
        raise refused(f"{name} into an array of the program around")
    return a


@numpy(np.copyto)
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    """Set elements to those of another array, where a condition holds."""
    target, trace = _target(dst, "copyto"), trace_of(dst)
    value = np.broadcast_to(trace.array(src).astype(target.dtype), target.shape)
    target.become(value if where is True else np.where(where, value, target))


@numpy(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Set elements where a mask is true to a number, or to those of an array of the same shape."""
    target = _target(a, "putmask")
    value = target.tracing.array(values)
    if value.ndim not in (0, target.ndim):
        raise refused("putmask of values that are repeated")
    copyto(target, value, where=mask)


@numpy(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Set elements at known places in row-major order."""
    target = _target(a, "put")
    if is_traced(ind) or mode != "raise":
        raise refused("put at traced places, or with a mode")
    places = np.ravel(np.asarray(ind))
    value = np.ravel(target.tracing.array(v))
    count = index(value.shape[0])
    value = np.take(value, np.arange(places.size) % max(count, 1))
    flat = _at_known(np.ravel(target), places, value.astype(target.dtype))
    target.become(np.reshape(flat, target.shape))


def add_at(a: Any, indices: Any, b: Any) -> None:
    """Add to slices along the first dimension, at places that may be equal: what `np.add.at` does."""
    target = _target(a, "add.at")
    if isinstance(indices, tuple | slice):
        raise refused("add.at along several dimensions")
    trace = target.tracing
    place = trace.array(np.asarray(indices) if isinstance(indices, list) else indices)
    shape = (*place.shape, *target.shape[1:])
    rows = np.broadcast_to(trace.array(b).astype(target.dtype), shape)
    if not target.element.is_float or not target.ndim:
        raise refused("add.at of integers")
    rest = math.prod(target.shape[1:])
    with trace.at_caller() as writer:
        count = dims_of(target.ssa)[0]
        number = Array(trace, writer.from_start(place.ssa, count)).reshape(-1)
        found = writer.add_rows(np.reshape(rows, (number.shape[0], rest)).ssa, number.ssa, count)
    target.become(target + np.reshape(Array(trace, found), target.shape))


@numpy(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any = -1) -> None:
    """Set elements at known places along a dimension, for each row its own."""
    target = _target(arr, "put_along_axis")
    if is_traced(indices):
        raise refused("put_along_axis at traced places")
    at, places = own_axis(target.ndim, axis), np.asarray(indices)
    shape = tuple(map(index, target.shape))
    thin = tuple(places.shape[at] if d == at else size for d, size in enumerate(shape))
    grid = list(np.indices(thin, sparse=True))
    grid[at] = np.broadcast_to(places, thin)
    target.become(_at_known(target, tuple(grid), target.tracing.array(values).astype(target.dtype)))


@numpy(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Set the diagonal of a matrix to a number."""
    target = _target(a, "fill_diagonal")
    value = target.tracing.array(val)
    if target.ndim != 2 or value.ndim or wrap:
        raise refused("fill_diagonal of other arrays than matrices, or with other values than a number")
    own = numbers(target, 0) == numbers(target, 1)
    target.become(np.where(own, value.astype(target.dtype), target))
