"""NumPy's functions on traced arrays that others make up, and those that the library's ops compute.

Each is written as a user could write it, so that gradients, fusion and sizes at run time come with what it is made of.
Functions that count elements in Python (`flip`, `roll`, `split`) fix the sizes of this call: calls with others are
traced anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as _numpy

from tessera import ops
from tessera.errors import TypeMismatchError, caller_location, shown
from tessera.graph.functions import numpy, own_axes, own_axis, refused, several, trace_of, written
from tessera.graph.traced import Array
from tessera.ir.graph.types import ONE, array_type, dims_of
from tessera.numerics import dtypes

np: Any = _numpy  # whose functions take traced arrays, too

# Where elements are: numbered along a dimension


def _numbers(x: Array, axis: int) -> Array:
    """Return the numbers of elements along a dimension, which other dimensions repeat."""
    dims = [dim if at == axis else ONE for at, dim in enumerate(dims_of(x.ssa))]
    with x.trace.at_caller() as writer:
        return Array(x.trace, writer.iota(dims, axis, dtypes.i64))


def _along(x: Any, axis: Any) -> tuple[Array, int]:
    """Return an array and one of its dimensions: all elements in row-major order where none is named."""
    found = trace_of(x).array(x)
    return (np.ravel(found), 0) if axis is None else (found, own_axis(found.ndim, axis))


def _part(x: Array, axis: int, part: Any) -> Any:
    return x[tuple(part if at == axis else slice(None) for at in range(x.ndim))]


def _reduced(found: Any, a: Any, axis: Any, keepdims: Any) -> Any:
    """Return what was found along a dimension, which has one element yet, of `a` in the shape that NumPy gives it."""
    if axis is None:
        return np.reshape(found, (1,) * trace_of(a).array(a).ndim if keepdims else ())
    return found if keepdims else np.squeeze(found, axis)


def _place_of(fn: str) -> Callable[..., Any]:
    def place(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        x, at = _along(a, axis)
        extreme = (np.max if fn == "max" else np.min)(x, axis=at, keepdims=True)
        hits = np.logical_or(x == extreme, x != x)  # NaN is the extreme, and the first one counts
        count = trace_of(x).array(x.shape[at])
        found = np.min(np.where(hits, _numbers(x, at), count.astype(np.int64)), axis=at, keepdims=True)
        return _reduced(found, a, axis, keepdims)

    return place


numpy(np.argmax)(_place_of("max"))
numpy(np.argmin)(_place_of("min"))


# Orders and running sums: the library's


def _running(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        x, at = _along(a, axis)
        kind = array_type(x.ssa).dtype
        wanted = np.dtype(dtype) if dtype is not None else None if kind.is_float else np.dtype(np.int64)
        return op(x if wanted is None else x.astype(wanted), at)

    return run


numpy(np.cumsum)(_running(ops.cumsum))
numpy(np.cumprod)(_running(ops.cumprod))


@numpy(np.sort)
def sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """Return elements in order along a dimension; NaN is the largest."""
    x, at = _along(a, axis)
    return ops.sort(x, at).values


@numpy(np.argsort)
def argsort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, *, stable: Any = None) -> Any:
    """Return where the elements of `sort` come from; equal ones keep their order."""
    x, at = _along(a, axis)
    return ops.sort(x, at).indices


def _quantile(scale: float) -> Callable[..., Any]:
    def quantile(
        a: Any, q: Any, axis: Any = None, out: Any = None, *, method: Any = "linear", keepdims: Any = False
    ) -> Any:
        if not isinstance(q, int | float) or method != "linear":
            raise refused("quantile of several shares, or by another method")
        if not 0 <= q * scale <= 1:
            raise TypeMismatchError(f"{shown(q)} is no share", code="bad-argument", location=caller_location())
        x, at = _along(a, axis)
        x = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
        ordered, end = sort(x, at), index(x.shape[at]) - 1
        place = end * q * scale
        low = int(place)
        first, second, last = (_part(ordered, at, slice(n, n + 1)) for n in (low, min(low + 1, end), end))
        return _reduced(np.where(last != last, last, first + (second - first) * (place - low)), a, axis, keepdims)

    return quantile


numpy(np.quantile)(_quantile(1))
numpy(np.percentile)(_quantile(0.01))


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


@numpy(np.median)
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: Any = False, keepdims: Any = False) -> Any:
    """Return the middle of the elements in order, the mean of two middle ones."""
    return np.quantile(a, 0.5, axis, keepdims=keepdims)


# Other places for elements


@numpy(np.flip)
def flip(m: Any, axis: Any = None) -> Any:
    """Return elements from the last to the first along dimensions, all by default."""
    for at in own_axes(m, axis):
        m = _part(m, at, slice(None, None, -1))
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
            a = np.concatenate([_part(a, at, slice(start, None)), _part(a, at, slice(0, start))], at)
    return a


@numpy(np.repeat)
def repeat(a: Any, repeats: int, axis: Any = None) -> Any:
    """Return each element so many times, one after the other."""
    x, at = _along(a, axis)
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
    return [_part(ary, at, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


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
        found = [np.expand_dims(x, tuple(range(rank - x.ndim))) if x.ndim < rank else x for x in arys]
        return found[0] if len(found) == 1 else tuple(found)

    return view


numpy(np.atleast_1d)(_at_least(1))
numpy(np.atleast_2d)(_at_least(2))


@numpy(np.hstack)
def hstack(tup: Any) -> Any:
    """Return arrays side by side: along the second dimension, the only one of vectors."""
    given = [_at_least(1)(x) for x in tup]
    return np.concatenate(given, 0 if given[0].ndim == 1 else 1)


@numpy(np.vstack)
def vstack(tup: Any) -> Any:
    """Return arrays below each other; vectors are rows."""
    return np.concatenate([_at_least(2)(x) for x in tup], 0)


@numpy(np.column_stack)
def column_stack(tup: Any) -> Any:
    """Return arrays side by side; vectors are columns."""
    return np.concatenate([np.expand_dims(x, 1) if x.ndim == 1 else x for x in tup], 1)


@numpy(np.dstack)
def dstack(tup: Any) -> Any:
    """Return arrays along a third dimension."""
    return np.concatenate([np.expand_dims(x, 2) if (x := _at_least(2)(one)).ndim == 2 else x for one in tup], 2)


@numpy(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    """Return one array after another; all elements of both where no dimension is named."""
    given = (arr, values) if axis is not None else (np.ravel(arr), np.ravel(values))
    return np.concatenate(given, axis or 0)


@numpy(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Any:
    """Return an array with a number before and behind it along each dimension."""
    if mode != "constant" or not isinstance(constant_values, int | float):
        raise refused(f"pad(mode={mode!r})")
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2))
    for at, (before, behind) in enumerate(widths.tolist()):
        sizes = [(*array.shape[:at], count, *array.shape[at + 1 :]) for count in (before, behind)]
        first, last = (np.full_like(array, constant_values, shape=shape) for shape in sizes)
        parts = [part for part, count in ((first, before), (array, 1), (last, behind)) if count]
        array = np.concatenate(parts, at) if len(parts) > 1 else array
    return array


@numpy(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: Any = False) -> Any:
    """Return arrays repeated to one shape."""
    trace = trace_of(args)
    given = [trace.array(one) for one in args]
    with trace.at_caller() as writer:
        dims = writer.broadcast_dims([dims_of(one.ssa) for one in given], "broadcast_arrays")
        return tuple(one.view(writer.broadcast_to(one.ssa, dims)) for one in given)


@numpy(np.meshgrid)
def meshgrid(*xi: Any, copy: Any = True, sparse: Any = False, indexing: Any = "xy") -> Any:
    """Return vectors along dimensions of their own, the first two exchanged for `xy`."""
    trace, count = trace_of(xi), len(xi)
    order = [1, 0, *range(2, count)] if indexing == "xy" and count > 1 else list(range(count))
    found = [np.expand_dims(trace.array(x), tuple(set(range(count)) - {at})) for x, at in zip(xi, order, strict=True)]
    return list(found if sparse else broadcast_arrays(*found))


# Matrices


def _below(x: Array, k: int) -> Array:
    """Return where a matrix is on or below one of its diagonals."""
    return _numbers(x, x.ndim - 1) <= _numbers(x, x.ndim - 2) + k


@numpy(np.tril)
def tril(m: Any, k: int = 0) -> Any:
    """Return the elements on and below a diagonal of matrices, zeros above."""
    return np.where(_below(m, index(k)), m, np.zeros_like(m))


@numpy(np.triu)
def triu(m: Any, k: int = 0) -> Any:
    """Return the elements on and above a diagonal of matrices, zeros below."""
    return np.where(_below(m, index(k) - 1), np.zeros_like(m), m)


@numpy(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the diagonal of matrices along two dimensions, as the last one."""
    x = np.moveaxis(a, (axis1, axis2), (-2, -1))
    rows, columns = (index(size) for size in x.shape[-2:])
    first = (max(-offset, 0), max(offset, 0))
    count = max(min(rows - first[0], columns - first[1]), 0)
    flat = np.reshape(x, (*x.shape[:-2], rows * columns))
    return np.take(flat, first[0] * columns + first[1] + np.arange(count) * (columns + 1), -1)


@numpy(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    """Return the diagonal of a matrix, or a matrix with a vector as its diagonal."""
    if v.ndim == 2:
        return diagonal(v, k)
    size = index(v.shape[0])
    wide = np.pad(v, ((max(k, 0), max(-k, 0)),))
    found = np.where(_numbers(np.expand_dims(wide, 0), 1) == _numbers(np.expand_dims(wide, 1), 0) + k, wide, 0)
    return found.astype(v.dtype) if size else found


@numpy(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """Return the sums of diagonals."""
    return np.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@numpy(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the products of two arrays, summed over pairs of dimensions."""
    space = trace_of(a, b)
    a, b = space.array(a), space.array(b)
    given = ([*range(a.ndim - axes, a.ndim)], [*range(axes)]) if isinstance(axes, int) else axes
    left, right = ([own_axis(x.ndim, at) for at in several(each)] for x, each in zip((a, b), given, strict=True))
    rows, columns = ([at for at in range(x.ndim) if at not in each] for x, each in ((a, left), (b, right)))
    first = np.transpose(a, [*rows, *left])
    second = np.transpose(b, [*right, *columns])
    shape = (*first.shape[: len(rows)], *second.shape[len(right) :])
    inner = _product_of(first.shape[len(rows) :])
    found = np.matmul(
        np.reshape(first, (_product_of(first.shape[: len(rows)]), inner)),
        np.reshape(second, (inner, _product_of(second.shape[len(right) :]))),
    )
    return np.reshape(found, shape)


@numpy(np.einsum)
def einsum(subscripts: str, *operands: Any, optimize: Any = False) -> Any:
    """Return sums of products by Einstein's convention; no dimension stands twice in an operand, none is `...`."""
    space = trace_of(operands)
    given, _, wanted = subscripts.replace(" ", "").partition("->")
    names = given.split(",")
    letters = "".join(names)
    if "->" not in subscripts:
        wanted = "".join(sorted(one for one in {*letters} if letters.count(one) == 1))
    arrays = [space.array(one) for one in operands]
    ranks = [len(each) == x.ndim for each, x in zip(names, arrays, strict=True)]
    if "." in letters or any(len({*each}) < len(each) for each in (*names, wanted)) or not all(ranks):
        raise refused(f"einsum({subscripts!r})")
    while len(arrays) > 1:
        later = {*wanted, *"".join(names[2:])}
        arrays[:2], names[:2] = _contracted(arrays[:2], names[:2], later)
    ((x,), (own,)) = arrays, names
    x = np.sum(x, axis=tuple(at for at, one in enumerate(own) if one not in wanted)) if {*own} - {*wanted} else x
    own = [one for one in own if one in wanted]
    return np.transpose(x, [own.index(one) for one in wanted])


def _contracted(arrays: Sequence[Any], names: Sequence[str], later: set[str]) -> tuple[list[Any], list[str]]:
    """Return the product of two arrays, summed over the dimensions that nothing needs later, and its dimensions."""
    one, other = names
    both = [letter for letter in one if letter in other]
    kept, summed = ([letter for letter in both if (letter in later) is needed] for needed in (True, False))
    rest = [[letter for letter in each if letter not in both] for each in names]
    first, second = (
        np.transpose(x, [each.index(letter) for letter in order])
        for x, each, order in zip(arrays, names, ([*kept, *rest[0], *summed], [*kept, *summed, *rest[1]]), strict=True)
    )
    batch = first.shape[: len(kept)]
    left = first.shape[len(kept) : first.ndim - len(summed)]
    right = second.shape[len(kept) + len(summed) :]
    inner = _product_of(first.shape[first.ndim - len(summed) :])
    found = np.matmul(
        np.reshape(first, (*batch, _product_of(left), inner)), np.reshape(second, (*batch, inner, _product_of(right)))
    )
    return [np.reshape(found, (*batch, *left, *right))], ["".join([*kept, *rest[0], *rest[1]])]


@numpy(np.kron)
def kron(a: Any, b: Any) -> Any:
    """Return the products of all elements of matrices, a block of the second for each of the first."""
    if a.ndim != 2 or b.ndim != 2:
        raise refused("kron of other arrays than matrices")
    wide = np.expand_dims(a, (1, 3)) * np.expand_dims(b, (0, 2))
    return np.reshape(wide, tuple(one * other for one, other in zip(a.shape, b.shape, strict=True)))


def _product_of(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total


@numpy(np.inner)
def inner(a: Any, b: Any) -> Any:
    """Return the sums of products along the last dimensions."""
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return tensordot(a, b, ((-1,), (-1,)))


@numpy(np.vdot)
def vdot(a: Any, b: Any) -> Any:
    """Return the sum of the products of all elements."""
    return np.sum(np.ravel(a) * np.ravel(b))


@numpy(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """Return the norm of vectors: of all elements where neither is given. Of matrices, the Frobenius norm alone."""
    x = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
    if ord in (None, "fro") or (ord == 2 and (isinstance(axis, int) or x.ndim == 1)):
        return np.sqrt(np.sum(x * x, axis=axis, keepdims=keepdims))
    if not (isinstance(axis, int) or x.ndim == 1):
        raise refused(f"linalg.norm(ord={ord!r}) of matrices")
    size = np.absolute(x)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis=axis, keepdims=keepdims)
    total = np.sum(size if ord == 1 else size**ord, axis=axis, keepdims=keepdims)
    return total if ord == 1 else total ** (1 / ord)


# Statistics


@numpy(np.ptp)
def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    """Return the largest less the smallest element."""
    return np.max(a, axis=axis, keepdims=keepdims) - np.min(a, axis=axis, keepdims=keepdims)


@numpy(np.average)
def average(a: Any, axis: Any = None, weights: Any = None) -> Any:
    """Return a mean, weighted where there are weights."""
    if weights is None:
        return np.mean(a, axis=axis)
    if axis is not None and np.ndim(weights) == 1:
        at = own_axis(a.ndim, axis)
        weights = np.reshape(weights, tuple(-1 if one == at else 1 for one in range(a.ndim)))
    return np.sum(a * weights, axis=axis) / np.sum(np.ones_like(a) * weights, axis=axis)


@numpy(np.count_nonzero)
def count_nonzero(a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
    """Return how many elements are not zero."""
    return np.sum((a != 0).astype(np.int64), axis=axis, keepdims=keepdims)


def _without_nan(fn: Callable[..., Any], instead: float) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Any:
        return fn(np.where(a != a, np.asarray(instead, a.dtype), a), axis=axis, keepdims=keepdims)

    return reduce


numpy(np.nansum)(_without_nan(np.sum, 0.0))
numpy(np.nanprod)(_without_nan(np.prod, 1.0))
numpy(np.nanmax)(_without_nan(np.max, -np.inf))
numpy(np.nanmin)(_without_nan(np.min, np.inf))


@numpy(np.nanmean)
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Any:
    """Return the mean of what is no NaN."""
    total = np.sum(np.where(a != a, np.zeros_like(a), a), axis=axis, dtype=dtype, keepdims=keepdims)
    return total / np.sum((a == a).astype(total.dtype), axis=axis, keepdims=keepdims)


@numpy(np.nan_to_num)
def nan_to_num(x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """Return finite numbers in place of NaN and infinities."""
    dtype = array_type(x.ssa).dtype
    if not dtype.is_float:
        return np.copy(x)
    bounds = np.finfo(np.float64 if dtype.bits == 64 else np.float32)
    high, low = (bounds.max if posinf is None else posinf), (bounds.min if neginf is None else neginf)
    return np.where(x != x, nan, np.where(x == np.inf, high, np.where(x == -np.inf, low, x)))


@numpy(np.diff)
def diff(a: Any, n: int = 1, axis: int = -1) -> Any:
    """Return the differences of neighbours along a dimension, n times over."""
    at = own_axis(a.ndim, axis)
    for _ in range(n):
        after, before = _part(a, at, slice(1, None)), _part(a, at, slice(0, index(a.shape[at]) - 1))
        a = after != before if array_type(a.ssa).dtype.kind == "bool" else after - before
    return a


_trapezoid: Any = getattr(np, "trapezoid", None) or np.trapz  # pyright: ignore[reportAttributeAccessIssue]


@numpy(_trapezoid)
def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """Return integrals along a dimension by the trapezoidal rule."""
    at, size = own_axis(y.ndim, axis), index(y.shape[axis])
    means = (_part(y, at, slice(1, None)) + _part(y, at, slice(0, size - 1))) / 2
    if x is None:
        return np.sum(means * dx, axis=at)
    steps = np.diff(x, axis=-1)
    shape = tuple(-1 if one == at else 1 for one in range(y.ndim))
    return np.sum(means * (steps if np.ndim(x) == y.ndim else np.reshape(steps, shape)), axis=at)


@numpy(np.cov)
def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None) -> Any:
    """Return the covariances of rows."""
    if y is not None:
        raise refused("cov of two arrays")
    x = np.atleast_2d(m) if rowvar or m.ndim == 1 else np.transpose(m)
    x = x.astype(np.float64)
    apart = x - np.mean(x, axis=1, keepdims=True)
    less = (0 if bias else 1) if ddof is None else ddof
    found = np.matmul(apart, np.transpose(apart)) / (index(x.shape[1]) - less)
    return np.reshape(found, ()) if index(x.shape[0]) == 1 else found


@numpy(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """Return the correlations of rows."""
    found = cov(x, y, rowvar)
    if found.ndim == 0:
        return found / found
    spread = np.sqrt(diagonal(found))
    return np.clip(found / np.expand_dims(spread, 1) / np.expand_dims(spread, 0), -1, 1)


@numpy(np.gradient)
def gradient(f: Any, spacing: float = 1.0, *, axis: Any = None, edge_order: int = 1) -> Any:
    """Return central differences along one dimension, at the ends those of two neighbours."""
    axes = own_axes(f, axis)
    if len(axes) != 1 or edge_order != 1 or np.ndim(spacing):
        raise refused("gradient along several dimensions, or of uneven steps")
    (at,) = axes
    size = index(f.shape[at])
    inside = (_part(f, at, slice(2, None)) - _part(f, at, slice(0, size - 2))) / (2 * spacing)
    ends = [np.diff(_part(f, at, slice(first, first + 2)), axis=at) / spacing for first in (0, size - 2)]
    return np.concatenate([ends[0], inside, ends[1]], at)


# Elements


@numpy(np.isclose)
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Any:
    """Return whether elements are equal but for a tolerance."""
    near = np.logical_and(np.isfinite(b), np.absolute(a - b) <= atol + rtol * np.absolute(b))
    near = np.logical_or(near, a == b)
    return np.logical_or(near, np.logical_and(a != a, b != b)) if equal_nan else near


@numpy(np.select)
def select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """Return elements of the first choice whose condition holds."""
    found = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        found = np.where(condition, choice, found)
    return found


@numpy(np.sinc)
def sinc(x: Any) -> Any:
    """Return sin(pi x) / (pi x), 1 at 0."""
    y = np.pi * np.where(x == 0, 1e-20, x)
    return np.sin(y) / y


@numpy(np.round)
def round_(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Return numbers rounded to so many digits, halves to even ones."""
    if not array_type(a.ssa).dtype.is_float:
        if decimals >= 0:
            return np.copy(a)
        raise refused("round of integers to tens")
    scale = 10.0 ** abs(decimals)
    return np.rint(a) if not decimals else np.rint(a * scale) / scale if decimals > 0 else np.rint(a / scale) * scale


numpy(np.around)(round_)


@numpy(np.fix)
def fix(x: Any, out: Any = None) -> Any:
    """Return numbers without their fractions."""
    return np.trunc(x)


@numpy(np.cross)
def cross(a: Any, b: Any, axis: int = -1) -> Any:
    """Return the vector products of vectors of three elements along a dimension."""
    at = own_axis(a.ndim, axis)
    if index(a.shape[at]) != 3 or index(b.shape[at]) != 3:
        raise refused("cross of vectors of two elements")
    return np.roll(a, -1, at) * np.roll(b, -2, at) - np.roll(a, -2, at) * np.roll(b, -1, at)


@written(np.float_power)
def _float_power(x: Any, y: Any) -> Any:
    return trace_of(x, y).array(x).astype(np.float64) ** y


@written(np.heaviside)
def _heaviside(x: Any, half: Any) -> Any:
    return np.where(x != x, x, np.where(x == 0, half, (x > 0) * 1.0))


@written(np.logaddexp2)
def _logaddexp2(x: Any, y: Any) -> Any:
    apart = np.where(x == y, 0.0, -np.absolute(x - y))  # infinities of one sign are not apart
    return np.maximum(x, y) + np.log1p(np.exp2(apart)) * (1 / np.log(2.0))


@written(np.divmod)
def _divmod(x: Any, y: Any) -> Any:
    return x // y, x % y


@written(np.signbit)
def _signbit(x: Any) -> Any:
    return np.copysign(1.0, x) < 0


def call_method(ufunc: Any, method: str) -> Callable[..., Any] | None:
    """Return what a method of one of NumPy's functions of elements is, as `np.add.reduce`; None where it is none."""
    return _OVER.get((ufunc, method))


def _extremes(op: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = 0) -> Any:
        x, at = _along(a, axis)
        return op(x, at).values

    return run


def _first_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, axis: Any = 0, **options: Any) -> Any:
        return function(a, axis=axis, **options)

    return run


_OVER = {
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
_NAMES = ("argmax", "argmin", "cumsum", "cumprod", "argsort", "repeat", "round", "diagonal")
METHODS = {name: getattr(np, name) for name in _NAMES}
"""Methods of arrays by name: functions of which the array is the first argument."""
