"""NumPy's functions on traced arrays that others make up, and those that the library's ops compute.

Each is written as a user could write it, so that gradients, fusion and sizes at run time come with what it is made of.
Functions that count elements in Python (`flip`, `roll`, `split`) fix the sizes of this call: calls with others are
traced anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, cast

import numpy as _numpy

from tessera import ops
from tessera.errors import TypeMismatchError, caller_location, shown
from tessera.graph.assigning import add_at
from tessera.graph.dimensions import along, arrays_of, numbers, part, reduced
from tessera.graph.functions import is_traced, numpy, own_axes, own_axis, refused, several, size_needed, trace_of
from tessera.ir.graph.types import array_type, dims_of

np: Any = _numpy  # whose functions take traced arrays, too

# Places along a dimension


def _place_of(fn: str) -> Callable[..., Any]:
    def place(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        x, at = along(a, axis)
        extreme = (np.max if fn == "max" else np.min)(x, axis=at, keepdims=True)
        hits = np.logical_or(x == extreme, x != x)  # NaN is the extreme, and the first one counts
        count = trace_of(x).array(x.shape[at])
        found = np.min(np.where(hits, numbers(x, at), count.astype(np.int64)), axis=at, keepdims=True)
        return reduced(found, a, axis, keepdims)

    return place


numpy(np.argmax)(_place_of("max"))
numpy(np.argmin)(_place_of("min"))


# Orders and running sums: the library's


def _running(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x, at = along(a, axis)
        kind = array_type(x.ssa).dtype
        if dtype is None and kind.is_float:
            return op(x, at)
        wanted = np.dtype(dtype) if dtype is not None else np.dtype(np.uint64 if kind.kind == "uint" else np.int64)
        return op(x.astype(np.int64 if wanted.kind == "u" else wanted), at).astype(wanted)

    return run


numpy(np.cumsum)(_running(ops.cumsum))
numpy(np.cumprod)(_running(ops.cumprod))


@numpy(np.sort)
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """Return elements in order along a dimension; NaN is the largest."""
    x, at = along(a, axis)
    is_truth = array_type(x.ssa).dtype.kind == "bool"
    found = ops.sort(x.astype(np.uint8) if is_truth else x, at).values
    return found.astype(np.bool_) if is_truth else found


@numpy(np.argsort)
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """Return where the elements of `sort` come from; equal ones keep their order."""
    x, at = along(a, axis)
    return ops.sort(x.astype(np.uint8) if array_type(x.ssa).dtype.kind == "bool" else x, at).indices


@numpy(np.lexsort)
def lexsort(keys: Any, axis: Any = -1) -> Any:
    """Return the order of elements by several keys, of which the last counts first."""
    given = list(keys)
    found = np.argsort(given[0], axis=axis)
    for key in given[1:]:
        sorted_so_far = np.take_along_axis(key, found, axis)
        found = np.take_along_axis(found, np.argsort(sorted_so_far, axis=axis), axis)
    return found


def _cumulative(fn: Any, first: int) -> Callable[..., Any]:
    def run(x: Any, /, *, axis: Any = None, dtype: Any = None, out: Any = None, include_initial: bool = False) -> Any:
        if axis is None and x.ndim != 1:
            raise TypeMismatchError(
                f"{x!r} has several dimensions",
                code="bad-axis",
                location=caller_location(),
                help="name one of them: axis=-1",
            )
        at = 0 if axis is None else own_axis(x.ndim, axis)
        found = fn(x, axis=at, dtype=dtype)
        if not include_initial:
            return found
        thin = tuple(1 if one == at else size for one, size in enumerate(x.shape))
        return np.concatenate([np.full_like(found, first, shape=thin), found], at)

    return run


if hasattr(np, "cumulative_sum"):
    numpy(np.cumulative_sum)(_cumulative(np.cumsum, 0))
    numpy(np.cumulative_prod)(_cumulative(np.cumprod, 1))


@numpy(np.partition)
def partition(a: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """Return elements with the `kth` at its place, smaller ones before it: all of them are in order."""
    return sort(a, axis)


@numpy(np.argpartition)
def argpartition(a: Any, kth: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
    """Return where the elements of `partition` come from."""
    return argsort(a, axis)


@numpy(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """Return an array with a dimension in front of another one."""
    at = own_axis(a.ndim, axis)
    to = start + a.ndim if start < 0 else start
    return np.moveaxis(a, at, to - 1 if to > at else to)


# Other places for elements


@numpy(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Return elements from the last to the first along dimensions, all by default."""
    for at in own_axes(m, axis):
        m = part(m, at, slice(None, None, -1))
    return m


@numpy(np.fliplr)
def fliplr(m: Any) -> Any:
    """Return columns from the last to the first."""
    return flip(m, 1)


@numpy(np.flipud)
def flipud(m: Any) -> Any:
    """Return rows from the last to the first."""
    return flip(m, 0)


@numpy(np.rot90)
def rot90(m: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Any:
    """Return a matrix turned by so many quarters, from the first dimension towards the second."""
    first, second = (own_axis(m.ndim, axis) for axis in axes)
    if k % 4 == 2:
        return flip(m, (first, second))
    if k % 4:
        return np.swapaxes(flip(m, second if k % 4 == 1 else first), first, second)
    return np.copy(m)


@numpy(np.roll)
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """Return elements moved on along dimensions, those behind the end at the start."""
    if axis is None:
        return np.reshape(roll(np.ravel(a), shift, 0), a.shape)
    axes, by = [*several(axis)], [*several(shift)]
    for one, at in zip(by * len(axes) if len(by) == 1 else by, axes, strict=True):
        at = own_axis(a.ndim, at)
        size = index(a.shape[at])
        start = (-one) % size if size else 0
        if start:
            a = np.concatenate([part(a, at, slice(start, None)), part(a, at, slice(0, start))], at)
    return a


@numpy(np.repeat)
def repeat(a: Any, repeats: Any, axis: Any = None) -> Any:
    """Return each element so many times, one after the other; of several counts each is that of one element."""
    x, at = along(a, axis)
    if is_traced(repeats):
        raise size_needed("np.repeat", "counts that are known give a known size")
    if np.ndim(repeats):
        return np.take(x, np.repeat(np.arange(index(x.shape[at])), repeats), at)
    wide = np.broadcast_to(np.expand_dims(x, at + 1), (*x.shape[: at + 1], index(repeats), *x.shape[at + 1 :]))
    return np.reshape(wide, (*x.shape[:at], x.shape[at] * index(repeats), *x.shape[at + 1 :]))


@numpy(np.tile)
def tile(A: Any, reps: Any) -> Any:
    """Return an array so many times along each dimension."""
    times = [index(one) for one in several(reps)]
    times = [1] * (A.ndim - len(times)) + times
    x = np.reshape(A, (1,) * (len(times) - A.ndim) + tuple(A.shape))
    thin = [size for extent in x.shape for size in (1, extent)]
    wide = [size for pair in zip(times, x.shape, strict=True) for size in pair]
    sizes = [count * extent for count, extent in zip(times, x.shape, strict=True)]
    return np.reshape(np.broadcast_to(np.reshape(x, tuple(thin)), tuple(wide)), tuple(sizes))


@numpy(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return the parts of an array along a dimension: so many, or between places."""
    at, given = own_axis(ary.ndim, axis), indices_or_sections
    size = index(ary.shape[at])
    if isinstance(given, int):
        each, longer = divmod(size, given)
        lengths = [each + (number < longer) for number in range(given)]
        ends = list(np.cumsum(lengths))
    else:
        ends = [*given, size]
    return [part(ary, at, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


@numpy(np.split)
def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Return parts of an array along a dimension, all of one size where they are counted."""
    size = index(ary.shape[own_axis(ary.ndim, axis)])
    if isinstance(indices_or_sections, int) and size % indices_or_sections:
        raise TypeMismatchError(
            f"{size} elements have no {indices_or_sections} parts of one size",
            code="shape-mismatch",
            location=caller_location(),
            help="np.array_split gives parts of two sizes",
        )
    return array_split(ary, indices_or_sections, axis)


def _at_least(rank: int) -> Callable[..., Any]:
    def view(*arys: Any) -> Any:
        given = [trace_of(arys).array(x) for x in arys]
        found = [np.expand_dims(x, tuple(range(rank - x.ndim))) if x.ndim < rank else x for x in given]
        return found[0] if len(found) == 1 else tuple(found)

    return view


numpy(np.atleast_1d)(_at_least(1))
numpy(np.atleast_2d)(_at_least(2))


@numpy(np.atleast_3d)
def atleast_3d(*arys: Any) -> Any:
    """Return arrays with three dimensions at least: rows have one of 1 in front, and matrices one behind."""
    given = [np.atleast_1d(trace_of(arys).array(x)) for x in arys]
    rows = [np.expand_dims(x, 0) if x.ndim == 1 else x for x in given]
    found = [np.expand_dims(x, 2) if x.ndim == 2 else x for x in rows]
    return found[0] if len(found) == 1 else tuple(found)


@numpy(np.hstack)
def hstack(tup: Any) -> Any:
    """Return arrays side by side: along the second dimension, the only one of vectors."""
    given = [_at_least(1)(x) for x in arrays_of(tup)]
    return np.concatenate(given, 0 if given[0].ndim == 1 else 1)


@numpy(np.vstack)
def vstack(tup: Any) -> Any:
    """Return arrays below each other; vectors are rows."""
    return np.concatenate([_at_least(2)(x) for x in arrays_of(tup)], 0)


@numpy(np.column_stack)
def column_stack(tup: Any) -> Any:
    """Return arrays side by side; vectors are columns."""
    return np.concatenate([np.expand_dims(x, 1) if x.ndim == 1 else x for x in arrays_of(tup)], 1)


@numpy(np.dstack)
def dstack(tup: Any) -> Any:
    """Return arrays along a third dimension."""
    given = [_at_least(2)(one) for one in arrays_of(tup)]
    return np.concatenate([np.expand_dims(x, 2) if x.ndim == 2 else x for x in given], 2)


@numpy(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """Return one array after another; all elements of both where no dimension is named."""
    given = arrays_of((arr, values))
    return np.concatenate(given if axis is not None else [np.ravel(one) for one in given], axis or 0)


@numpy(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """Return an array with others before and behind it along each dimension: numbers, or its own elements."""
    if mode not in ("constant", "edge", "reflect", "symmetric", "wrap") or is_traced(pad_width, constant_values):
        raise refused(f"pad(mode={mode!r})")
    if isinstance(pad_width, dict):
        widths_of = cast(Any, pad_width)
        named: Any = {own_axis(array.ndim, axis): widths_of[axis] for axis in widths_of}
        pad_width = [named.get(axis, 0) for axis in range(array.ndim)]
        pad_width = [(one, one) if isinstance(one, int) else one for one in pad_width]
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    values = np.broadcast_to(np.asarray(constant_values), (array.ndim, 2)).tolist()
    for at, (width, ends) in enumerate(zip(widths, values, strict=True)):
        if min(width) < 0:
            raise TypeMismatchError(
                f"pad by {shown(width)}",
                code="bad-argument",
                location=caller_location(),
                help="widths are 0 or more; slices cut elements off",
            )
        array = _padded(array, at, width, ends) if mode == "constant" else _repeated(array, at, width, mode)
    return array


def _padded(x: Any, at: int, width: Sequence[int], ends: Sequence[Any]) -> Any:
    sizes = [(*x.shape[:at], count, *x.shape[at + 1 :]) for count in width]
    first, last = (np.full_like(x, end, shape=shape) for shape, end in zip(sizes, ends, strict=True))
    parts = [one for one, count in ((first, width[0]), (x, 1), (last, width[1])) if count]
    return np.concatenate(parts, at) if len(parts) > 1 else x


def _repeated(x: Any, at: int, width: Sequence[int], mode: str) -> Any:
    """Return an array with its own elements before and behind it, those that NumPy finds for their numbers."""
    if not any(width):
        return x
    size = index(x.shape[at])
    if not size:
        raise TypeMismatchError(
            f"pad of no elements: mode={mode!r}",
            code="bad-argument",
            location=caller_location(),
            help="pad by a constant, or give the array elements along this dimension",
        )
    return np.take(x, np.pad(np.arange(size), tuple(width), mode=mode), at)  # pyright: ignore


@numpy(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: Any = False) -> Any:
    """Return arrays repeated to one shape."""
    trace = trace_of(args)
    given = [trace.array(one) for one in args]
    with trace.at_caller() as writer:
        dims = writer.broadcast_dims([dims_of(one.ssa) for one in given], "broadcast_arrays")
        return tuple(one.viewed(lambda one: writer.broadcast_to(one.ssa, dims)) for one in given)


@numpy(np.meshgrid)
def meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> Any:
    """Return vectors along dimensions of their own, the first two exchanged for `xy`."""
    trace, count = trace_of(xi), len(xi)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    found = [
        np.expand_dims(np.ravel(trace.array(x)), tuple(set(range(count)) - {at}))
        for x, at in zip(xi, order, strict=True)
    ]
    return list(found if sparse else broadcast_arrays(*found))


# Shapes and parts


@numpy(np.shape)
def shape(a: Any) -> Any:
    """Return the sizes."""
    return trace_of(a).array(a).shape


@numpy(np.ndim)
def ndim(a: Any) -> Any:
    """Return the number of dimensions."""
    return trace_of(a).array(a).ndim


@numpy(np.size)
def size(a: Any, axis: Any = None) -> Any:
    """Return the number of elements, of all or along dimensions."""
    x = trace_of(a).array(a)
    total: Any = 1
    for at in own_axes(x, axis):
        total = x.shape[at] * total
    return total


if hasattr(np, "astype"):

    @numpy(np.astype)
    def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
        """Return the elements in another dtype."""
        return x.astype(dtype)


def _split_along(rank: int, at: int) -> Callable[..., Any]:
    def view(ary: Any, indices_or_sections: Any) -> Any:
        if ary.ndim < rank:
            raise TypeMismatchError(
                f"{ary!r} has too few dimensions",
                code="bad-axis",
                location=caller_location(),
                help="name another one: np.split(x, parts, axis=0)",
            )
        return np.split(ary, indices_or_sections, 0 if at == 1 and ary.ndim == 1 else at)

    return view


numpy(np.vsplit)(_split_along(2, 0))
numpy(np.hsplit)(_split_along(1, 1))
numpy(np.dsplit)(_split_along(3, 2))
if hasattr(np, "unstack"):

    @numpy(np.unstack)
    def unstack(x: Any, /, *, axis: int = 0) -> Any:
        """Return the parts of one element along a dimension, without it."""
        at = own_axis(x.ndim, axis)
        return tuple(np.squeeze(part(x, at, slice(n, n + 1)), at) for n in range(index(x.shape[at])))


@numpy(np.block)
def block(arrays: Any) -> Any:
    """Return nested lists of arrays as one: the innermost side by side, others along the dimensions before."""
    trace, depth = trace_of(arrays), _depth(arrays)

    def joined(given: Any, level: int) -> Any:
        if not isinstance(given, list):
            x = trace.array(given)
            return np.expand_dims(x, tuple(range(depth - x.ndim))) if x.ndim < depth else x
        parts = [joined(one, level + 1) for one in cast("list[Any]", given)]
        return np.concatenate(parts, level - depth)

    return joined(arrays, 0)


def _depth(arrays: Any) -> int:
    return 1 + max(map(_depth, cast("list[Any]", arrays))) if isinstance(arrays, list) else 0


@numpy(np.resize)
def resize(a: Any, new_shape: Any) -> Any:
    """Return the elements as another shape, from the first on again where there are more."""
    flat, sizes = np.ravel(a), [index(one) for one in several(new_shape)]
    count, own = math.prod(sizes), index(flat.shape[0])
    found = flat if own == count or not own else np.tile(flat, -(-count // own))[:count]
    return np.reshape(found, tuple(sizes)) if own else np.zeros_like(flat, shape=tuple(sizes))


@numpy(np.diagflat)
def diagflat(v: Any, k: int = 0) -> Any:
    """Return a matrix with all elements as its diagonal."""
    return np.diag(np.ravel(v), k)


@numpy(np.unravel_index)
def unravel_index(indices: Any, shape: Any, order: str = "C") -> Any:
    """Return the places along each dimension of elements by their numbers in row-major order."""
    found: list[Any] = []
    rest = indices
    for one in reversed(several(shape)) if order == "C" else several(shape):
        found.append(rest % one)
        rest = rest // one
    return tuple(found[::-1] if order == "C" else found)


@numpy(np.ravel_multi_index)
def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """Return the numbers of elements in row-major order by their places along each dimension."""
    if mode != "raise" or order != "C":
        raise refused("ravel_multi_index(mode=..., order=...)")
    total: Any = 0
    for place, one in zip(multi_index, several(dims), strict=True):
        total = total * one + place
    return total


@numpy(np.apply_over_axes)
def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """Return a reduction along one dimension after another, which stay as ones of one element."""
    for axis in several(axes):
        found = func(a, axis)
        a = found if found.ndim == a.ndim else np.expand_dims(found, axis)
    return a


def call_method(ufunc: Any, method: str) -> Callable[..., Any] | None:
    """Return what a method of one of NumPy's functions of elements is, as `np.add.reduce`; None where it is none."""
    return _OVER.get((ufunc, method))


def _extremes(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = 0) -> Any:
        x, at = along(a, axis)
        return op(x, at).values

    return run


def _first_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = 0, **options: Any) -> Any:
        return function(a, axis=axis, **options)

    return run


_OVER = {
    (np.add, "at"): add_at,
    (np.add, "reduce"): _first_axis(np.sum),
    (np.multiply, "reduce"): _first_axis(np.prod),
    (np.maximum, "reduce"): _first_axis(np.max),
    (np.minimum, "reduce"): _first_axis(np.min),
    (np.logical_and, "reduce"): _first_axis(np.all),
    (np.logical_or, "reduce"): _first_axis(np.any),
    (np.add, "accumulate"): _first_axis(np.cumsum),
    (np.multiply, "accumulate"): _first_axis(np.cumprod),
    (np.maximum, "accumulate"): _extremes(ops.cummax),
    (np.minimum, "accumulate"): _extremes(ops.cummin),
}
_NAMES = (
    *("sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "clip", "argmax", "argmin", "cumsum", "cumprod"),
    *("argsort", "argpartition", "repeat", "round", "diagonal", "trace", "conj", "choose", "searchsorted", "nonzero"),
)
METHODS = {name: getattr(np, name) for name in _NAMES}
"""Methods of arrays by name: functions of which the array is the first argument."""
