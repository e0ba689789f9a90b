"""NumPy's functions on traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from xdsl.ir import SSAValue

from tessera.errors import LanguageError, TypeMismatchError, caller_location, shown
from tessera.graph.traced import Array, Size, Trace, dims_from, dtype_of
from tessera.graph.trees import flatten
from tessera.ir.graph.types import ONE, array_type, dims_of, ordered, product
from tessera.numerics.dtypes import DType, accumulator_of, f32
from tessera.target.dims import Dim

UFUNCS: dict[Any, str] = {
    **{getattr(np, name): name for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin")},
    **{getattr(np, name): name for name in ("cos", "tan", "tanh", "floor", "ceil", "trunc", "cbrt", "hypot", "isnan")},
    **{getattr(np, name): name for name in ("isinf", "isfinite", "maximum", "minimum", "copysign")},
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.floor_divide: "floordiv",
    np.remainder: "mod",
    np.power: "pow",
    np.negative: "neg",
    np.absolute: "abs",
    np.rint: "round",
    np.arcsin: "asin",
    np.arccos: "acos",
    np.arctan: "atan",
    np.arctan2: "atan2",
    np.less: "lt",
    np.less_equal: "le",
    np.greater: "gt",
    np.greater_equal: "ge",
    np.equal: "eq",
    np.not_equal: "ne",
    np.bitwise_and: "and",
    np.bitwise_or: "or",
    np.bitwise_xor: "xor",
    np.invert: "not",
    np.left_shift: "shl",
    np.right_shift: "shr",
}
WRITTEN: dict[Any, Callable[..., Any]] = {np.fabs: np.absolute, np.positive: np.copy}
"""Functions of elements that others make up."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
_choice: Any = np.where


def numpy(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what one of NumPy's functions is on traced arrays."""

    def register(ours: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function] = ours
        return ours

    return register


def written(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what others make up one of NumPy's functions of elements."""

    def register(ours: Callable[..., Any]) -> Callable[..., Any]:
        WRITTEN[function] = ours
        return ours

    return register


def _true(x: Any) -> Any:
    """Return whether numbers are not zero."""
    is_truth = isinstance(x, bool) or getattr(x, "dtype", None) == np.bool_
    return x if is_truth else np.not_equal(x, 0)


@written(np.logical_not)
def _logical_not(x: Any) -> Any:
    return np.invert(_true(x))


def _logical(bitwise: Any) -> Callable[..., Any]:
    def write(x: Any, y: Any) -> Any:
        return bitwise(_true(x), _true(y))

    return write


written(np.logical_and)(_logical(np.bitwise_and))
written(np.logical_or)(_logical(np.bitwise_or))
written(np.logical_xor)(_logical(np.bitwise_xor))


@written(np.square)
def _square(x: Any) -> Any:
    return x * x


@written(np.reciprocal)
def _reciprocal(x: Any) -> Any:
    return 1 / x


@written(np.sign)
def _sign(x: Any) -> Any:
    return _choice(x > 0, 1, 0 - _choice(x < 0, 1, x * 0))  # -1 is no unsigned number


@written(np.fmax)
def _fmax(x: Any, y: Any) -> Any:
    return _choice(x != x, y, _choice(y != y, x, np.maximum(x, y)))


@written(np.fmin)
def _fmin(x: Any, y: Any) -> Any:
    return _choice(x != x, y, _choice(y != y, x, np.minimum(x, y)))


@written(np.logaddexp)
def _logaddexp(x: Any, y: Any) -> Any:
    apart = np.where(x == y, 0.0, -np.absolute(x - y))  # infinities of one sign are not apart
    return np.maximum(x, y) + np.log1p(np.exp(apart))


@written(np.deg2rad)
def _deg2rad(x: Any) -> Any:
    return x * (np.pi / 180)


@written(np.rad2deg)
def _rad2deg(x: Any) -> Any:
    return x * (180 / np.pi)


def refused(name: str) -> LanguageError:
    """Return the error about a function, or a form of one, that is not here."""
    return LanguageError(
        f"ts.jit has no np.{name}",
        code="not-traceable",
        location=caller_location(),
        help="write it with functions that it has (docs/graphs.md), or call it outside",
    )


def trace_of(*values: Any) -> Trace:
    """Return the tracing that some values take part in."""
    leaves, _ = flatten(list(values))
    return next(leaf.trace for leaf in leaves if isinstance(leaf, Array))


def is_traced(*values: Any) -> bool:
    """Return whether a traced array is among some values."""
    return any(isinstance(leaf, Array) for leaf in flatten(list(values))[0])


def own_axes(x: Array, axis: Any) -> list[int]:
    """Return dimensions of an array in order, all for None.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    found = sorted(own_axis(x.ndim, one) for one in (range(x.ndim) if axis is None else several(axis)))
    if len({*found}) < len(found):
        raise _bad_axis(x.ndim, axis)
    return found


def several(value: Any) -> Sequence[Any]:
    """Return what is given as one or several."""
    return cast("Sequence[Any]", value) if isinstance(value, tuple | list) else (value,)


def own_axis(rank: int, axis: Any) -> int:
    """Return a dimension, counted from the first.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise _bad_axis(rank, axis)
    return axis % rank


def _bad_axis(rank: int, axis: Any) -> TypeMismatchError:
    return TypeMismatchError(
        f"{shown(axis)} names no dimensions of an array of rank {rank}, once each",
        code="bad-axis",
        location=caller_location(),
    )


def _accumulated(x: Array, dtype: Any) -> tuple[DType, DType]:
    """Return the dtypes that elements are added up in, and that of the sum."""
    own = array_type(x.ssa).dtype
    wide = accumulator_of(own)
    result = dtype_of(dtype) if dtype is not None else own if own.is_float else wide
    return (wide if result.is_float and result.bits < 32 else result), result


def _reduction(fn: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Array:
        trace = trace_of(x)
        if out is not None:
            raise refused(f"{fn}(out=...)")
        with trace.at_caller() as writer:
            wide, result = _accumulated(x, dtype)
            found = writer.reduce(fn, writer.cast(x.ssa, wide), own_axes(x, axis), bool(keepdims))
            return Array(trace, writer.cast(found, result))

    return reduce


def _extreme(fn: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Array:
        trace = trace_of(x)
        if out is not None:
            raise refused(f"{fn}(out=...)")
        with trace.at_caller() as writer:
            return Array(trace, writer.reduce(fn, x.ssa, own_axes(x, axis), bool(keepdims)))

    return reduce


def _truth(fn: str) -> Callable[..., Any]:
    def reduce(x: Any, axis: Any = None, out: Any = None, keepdims: Any = False) -> Array:
        trace = trace_of(x)
        with trace.at_caller() as writer:
            found = x.ssa if array_type(x.ssa).dtype.kind == "bool" else writer.apply("ne", x.ssa, 0)
            return Array(trace, writer.reduce(fn, found, own_axes(x, axis), bool(keepdims)))

    return reduce


numpy(np.sum)(_reduction("sum"))
numpy(np.prod)(_reduction("prod"))
numpy(np.max)(_extreme("max"))
numpy(np.amax)(_extreme("max"))
numpy(np.min)(_extreme("min"))
numpy(np.amin)(_extreme("min"))
numpy(np.any)(_truth("any"))
numpy(np.all)(_truth("all"))


@numpy(np.mean)
def mean(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False) -> Array:
    """Return the mean along dimensions; that of integers is f32."""
    trace = trace_of(x)
    with trace.at_caller() as writer:
        own = array_type(x.ssa).dtype
        result = dtype_of(dtype) if dtype is not None else own if own.is_float else f32
        wide = accumulator_of(result)
        axes = own_axes(x, axis)
        total = writer.reduce("sum", writer.cast(x.ssa, wide), axes, bool(keepdims))
        count = writer.size(writer.count(x.ssa, axes), wide)
        return Array(trace, writer.cast(writer.apply("div", total, count), result))


@numpy(np.var)
def var(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False) -> Any:
    """Return the variance along dimensions."""
    apart = x - mean(x, axis, dtype, None, True)
    total = np.sum(apart * apart, axis=axis, keepdims=keepdims)
    trace = trace_of(x)
    count = Size(trace, trace.writer.count(x.ssa, own_axes(x, axis)))
    return total / trace.array(count - ddof).astype(total.dtype)


@numpy(np.std)
def std(x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False) -> Any:
    """Return the standard deviation along dimensions."""
    return np.sqrt(var(x, axis, dtype, out, ddof, keepdims))


@numpy(np.where)
def where(condition: Any, x: Any, y: Any) -> Array:
    """Return elements of one of two arrays, as a condition says."""
    trace = trace_of(condition, x, y)
    with trace.at_caller():
        return trace.elementwise("select", (x, y), (condition,))


@numpy(np.clip)
def clip(x: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
    """Return elements between two bounds."""
    if a_min is None and a_max is None:
        return np.copy(x)
    x = x if a_min is None else np.maximum(x, a_min)
    return x if a_max is None else np.minimum(x, a_max)


@numpy(np.reshape)
def reshape(x: Any, shape: Any, order: Any = "C") -> Array:
    """Return elements, in row-major order, as another shape; one size may be -1."""
    trace, wanted = x.trace, several(shape)
    with trace.at_caller() as writer:
        if order != "C":
            raise refused("reshape(order=...)")
        dims = list(dims_from(wanted))
        own = product(dims_of(x.ssa))
        if Dim((), -1) in dims:
            at = dims.index(Dim((), -1))
            dims[at] = _quotient(dims_of(x.ssa), dims[:at] + dims[at + 1 :])
        if not writer.same(own, product(dims)):
            raise TypeMismatchError(
                f"{x!r} has no shape ({', '.join(map(str, wanted))})",
                code="shape-mismatch",
                help="the number of elements stays",
            )
        return x.view(writer.reshape(x.ssa, dims))


def _quotient(dims: Sequence[Dim], others: Sequence[Dim]) -> Dim:
    """Return the size that is left over: equal factors are dropped before the rest is divided."""
    left, rest = list(map(ordered, dims)), list(map(ordered, others))
    for dim in list(rest):
        if dim in left:
            left.remove(dim)
            rest.remove(dim)
    return product(left) // product(rest)


@numpy(np.transpose)
def transpose(x: Any, axes: Any = None) -> Array:
    """Return an array with its dimensions permuted, by default in the opposite order."""
    order = list(reversed(range(x.ndim))) if axes is None else [own_axis(x.ndim, axis) for axis in axes]
    if sorted(order) != list(range(x.ndim)):
        raise _bad_axis(x.ndim, axes)
    with x.trace.at_caller() as writer:
        return x.view(writer.transpose(x.ssa, order))


@numpy(np.swapaxes)
def swapaxes(x: Any, axis1: int, axis2: int) -> Array:
    """Return an array with two dimensions exchanged."""
    order = list(range(x.ndim))
    first, second = own_axis(x.ndim, axis1), own_axis(x.ndim, axis2)
    order[first], order[second] = second, first
    return transpose(x, order)


@numpy(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Array:
    """Return an array with dimensions at other places, the rest in order."""
    places = [[own_axis(a.ndim, axis) for axis in several(given)] for given in (source, destination)]
    if any(len({*each}) < len(each) for each in places) or len(places[0]) != len(places[1]):
        raise _bad_axis(a.ndim, source)
    order = [axis for axis in range(a.ndim) if axis not in places[0]]
    for to, axis in sorted(zip(places[1], places[0], strict=True)):
        order.insert(to, axis)
    return transpose(a, order)


@numpy(np.ravel)
def ravel(a: Any, order: Any = "C") -> Array:
    """Return elements, in row-major order, along one dimension."""
    return reshape(a, (-1,), order)


@numpy(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    """Return the products of the elements of two arrays with each other."""
    return np.reshape(a, (-1, 1)) * np.reshape(b, (1, -1))


@numpy(np.expand_dims)
def expand_dims(x: Any, axis: Any) -> Array:
    """Return an array with dimensions of one element."""
    given = several(axis)
    axes = [own_axis(x.ndim + len(given), one) for one in given]
    with x.trace.at_caller() as writer:
        return x.view(writer.with_ones(x.ssa, axes))


@numpy(np.squeeze)
def squeeze(x: Any, axis: Any = None) -> Array:
    """Return an array without dimensions of one element."""
    dims = dims_of(x.ssa)
    axes = [at for at, dim in enumerate(dims) if dim == ONE] if axis is None else own_axes(x, axis)
    if any(dims[at] != ONE for at in axes):
        raise _bad_axis(x.ndim, axis)
    with x.trace.at_caller() as writer:
        return x.view(writer.without(x.ssa, axes))


@numpy(np.broadcast_to)
def broadcast_to(x: Any, shape: Any) -> Array:
    """Return an array repeated to a shape."""
    with x.trace.at_caller() as writer:
        dims = dims_from(shape)
        if writer.broadcast_dims([dims_of(x.ssa), dims], "broadcast_to") != tuple(map(ordered, dims)):
            raise TypeMismatchError(f"{x!r} does not broadcast to {shape}", code="shape-mismatch")
        return x.view(writer.broadcast_to(x.ssa, dims))


def _made(trace: Trace, value: Any, shape: Any, kind: DType) -> Array:
    """Return a number as often as a shape has elements, as an array of its own."""
    with trace.at_caller() as writer:
        one = (
            writer.cast(writer.full(value, f32), kind) if kind.is_float and kind.bits < 16 else writer.full(value, kind)
        )
        made = writer.broadcast_to(one, dims_from(several(shape)))
        return Array(trace, made, is_own=True)


def _made_like(value: float) -> Callable[..., Array]:
    def like(
        x: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
    ) -> Array:
        kind = array_type(x.ssa).dtype if dtype is None else dtype_of(dtype)
        return _made(x.trace, value, x.shape if shape is None else shape, kind)

    return like


@numpy(np.copy)
def copy(a: Any, order: Any = "K", subok: Any = False) -> Array:
    """Return an array of its own with the same elements."""
    with a.trace.at_caller() as writer:
        return Array(a.trace, writer.copy(a.ssa))


numpy(np.zeros_like)(_made_like(0))
numpy(np.empty_like)(_made_like(0))
numpy(np.ones_like)(_made_like(1))


@numpy(np.full_like)
def full_like(
    x: Any, fill_value: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None
) -> Any:
    """Return a number as often as an array, or a shape, has elements."""
    return _made_like(fill_value)(x, dtype, order, subok, shape)


def create(trace: Trace, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Array:
    """Return what one of NumPy's functions that take `like=` makes: `np.empty(shape, dtype, like=x)`.

    Raises:
        LanguageError: `not-traceable`.
    """
    value = CREATED[function]
    given = list(args)
    shape = given.pop(0) if given else kwargs["shape"]
    if value is None:
        value = given.pop(0) if given else kwargs["fill_value"]
    dtype = given.pop(0) if given else kwargs.get("dtype")
    if dtype is None:
        dtype = np.asarray(value).dtype if function is np.full else np.float64
    return _made(trace, value, shape, dtype_of(dtype))


CREATED: dict[Any, Any] = {np.empty: 0, np.zeros: 0, np.ones: 1, np.full: None}


@numpy(np.concatenate)
def concatenate(arrays: Any, axis: int = 0) -> Array:
    """Return arrays one after another along a dimension."""
    trace = trace_of(arrays)
    with trace.at_caller() as writer:
        values = trace.operands(arrays)
        dtype = writer.common(values)
        found = [writer.as_array(value, dtype) for value in values]
        return Array(trace, writer.concat(found, own_axis(array_type(found[0]).rank, axis)))


@numpy(np.stack)
def stack(arrays: Any, axis: int = 0) -> Array:
    """Return arrays side by side along a new dimension."""
    trace = trace_of(arrays)
    values = trace.operands(arrays)
    dtype = trace.writer.common(values)
    given = [Array(trace, trace.writer.as_array(value, dtype)) for value in values]
    return concatenate([expand_dims(one, axis) for one in given], axis)


@numpy(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Array:
    """Return elements at places along a dimension, by default of all elements in row-major order."""
    if out is not None or mode != "raise":
        raise refused("take(out=..., mode=...)")
    trace = trace_of(a, indices)
    x = trace.array(a)
    x = reshape(x, -1) if axis is None else x
    at = 0 if axis is None else own_axis(x.ndim, axis)
    with trace.at_caller() as writer:
        return Array(trace, writer.index(x.ssa, {at: _places(trace, indices)}))


@numpy(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Array:
    """Return elements at places along a dimension, for each row its own."""
    trace = trace_of(arr, indices)
    x, index = trace.array(arr), _places(trace, indices)
    if axis is None or len(dims_of(index)) != x.ndim:
        raise refused("take_along_axis of arrays of different ranks")
    at = own_axis(x.ndim, axis)
    with trace.at_caller() as writer:
        shapes = [[ONE if d == at else dim for d, dim in enumerate(dims_of(value))] for value in (x.ssa, index)]
        dims = list(writer.broadcast_dims(shapes, "take_along_axis"))
        whole = [dims_of(x.ssa)[at] if d == at else dim for d, dim in enumerate(dims)]
        dims[at] = dims_of(index)[at]
        place = writer.from_start(index, dims_of(x.ssa)[at])
        source = writer.broadcast_to(x.ssa, whole)
        return Array(trace, writer.take(source, [place if d == at else d for d in range(x.ndim)], dims))


def _places(trace: Trace, indices: Any) -> SSAValue:
    """Return places as an array of integers."""
    given = np.asarray(cast(Any, indices)) if isinstance(indices, list | tuple) else indices
    found = trace.array(given).ssa
    if not array_type(found).dtype.is_int:
        raise refused(f"an index of {array_type(found).dtype}")
    return found


@numpy(np.dot)
def dot(a: Any, b: Any) -> Array:
    """Return the product of two matrices or vectors."""
    return matmul(a, b)


def matmul(a: Any, b: Any) -> Array:
    """Return a product with NumPy's rules: vectors lose their dimension, batches are broadcast."""
    trace = trace_of(a, b)
    with trace.at_caller() as writer:
        left, right = (trace.array(value).ssa for value in (a, b))
        dtype = writer.common([left, right])
        left, right = writer.cast(left, dtype), writer.cast(right, dtype)
        if not dtype.is_float and dtype.bits != 8:
            raise TypeMismatchError(
                f"matmul of {dtype}",
                code="dtype-mismatch",
                help="cast to a float, which holds products exactly up to 2**24 (f32) or 2**53 (f64)",
            )
        if not dims_of(left) or not dims_of(right):
            raise TypeMismatchError("matmul of a number", code="rank-mismatch", help="multiply numbers with *")
        return Array(trace, _product(writer, left, right))


def _product(writer: Any, left: SSAValue, right: SSAValue) -> SSAValue:
    drop = [-2] * (len(dims_of(left)) == 1) + [-1] * (len(dims_of(right)) == 1)
    left = writer.with_ones(left, [0]) if len(dims_of(left)) == 1 else left
    right = writer.with_ones(right, [1]) if len(dims_of(right)) == 1 else right
    one, other = dims_of(left), dims_of(right)
    if not writer.same(one[-1], other[-2]):
        raise TypeMismatchError(
            f"matmul of ({', '.join(map(str, one))}) and ({', '.join(map(str, other))})",
            code="shape-mismatch",
            help="the last size of the first is the last but one of the second",
        )
    batch = writer.broadcast_dims([one[:-2], other[:-2]], "matmul")
    left = writer.broadcast_to(left, (*batch, *one[-2:]))
    right = writer.broadcast_to(right, (*batch, one[-1], other[-1]))
    found = writer.contract(left, right)
    rank = len(dims_of(found))
    return writer.without(found, [rank + axis for axis in drop])


def indexed(x: Array, key: Any) -> Array:
    """Return a part of an array: numbers, slices, `None` and `...`, or arrays of integers.

    Raises:
        LanguageError: `not-traceable` for an index that is a mask, or an array beside `None`.
        TypeMismatchError: `bad-index`.
    """
    items: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    apart = any(isinstance(item, Array | list | np.ndarray) for item in items)
    if any(isinstance(item, bool) or (apart and item is None) for item in items):
        raise refused("ndarray.__getitem__ of masks, or of arrays beside None")
    given = sum(item is not None and item is not ... for item in items)
    if given > x.ndim or sum(item is ... for item in items) > 1:
        raise _bad_index(x, key)
    at = next((place for place, item in enumerate(items) if item is ...), len(items))
    items[at : at + 1] = [slice(None)] * (x.ndim - given)
    x = _turned(x, items)
    with x.trace.at_caller() as writer:
        if apart:
            parts = [item if type(item) is slice else slice(None) for item in items]
            places = {axis: _places(x.trace, item) for axis, item in enumerate(items) if type(item) is not slice}
            return Array(x.trace, writer.index(_part(writer, x, parts, key), places))
        return x.view(_part(writer, x, items, key))


def _turned(x: Array, items: list[Any]) -> Array:
    """Return an array with what slices that go backwards take, in place of which all of it is taken then."""
    axis = 0
    for number, item in enumerate(items):
        if type(item) is slice and isinstance(item.step, int) and item.step < 0:
            x = take(x, np.asarray(range(*item.indices(x.shape[axis].__index__()))), axis)
            items[number] = slice(None)
        axis += item is not None
    return x


def _bad_index(x: Array, key: Any) -> TypeMismatchError:
    return TypeMismatchError(
        f"{x!r} has no part [{shown(key)}]",
        code="bad-index",
        location=caller_location(),
        help="numbers inside, slices, None and ...",
    )


def _part(writer: Any, x: Array, items: Sequence[Any], key: Any) -> SSAValue:
    sizes = iter(zip(x.shape, dims_of(x.ssa), strict=True))
    starts: list[Dim] = []
    steps: list[int] = []
    dims: list[Dim] = []
    shape: list[Dim] = []
    for item in items:
        if item is None:
            shape.append(ONE)
            continue
        size, dim = next(sizes)
        start, step, count = _extent(item, size, dim, x, key)
        starts.append(Dim((), start))
        steps.append(step)
        dims.append(count)
        shape += [count] if type(item) is slice else []
    found = x.ssa if dims == list(dims_of(x.ssa)) else writer.slice(x.ssa, starts, steps, dims)
    return writer.reshape(found, shape)


def _extent(item: Any, size: Any, dim: Dim, x: Array, key: Any) -> tuple[int, int, Dim]:
    """Return where a part of a dimension starts, its step, and how many elements it has."""
    is_slice = type(item) is slice
    if is_slice and item == slice(None):
        return 0, 1, dim
    if is_slice and isinstance(size, Size) and _is_tail(item):
        if size < item.start:
            return 0, 1, Dim((), 0)
        return item.start, 1, ordered(dim - item.start)
    length = size if isinstance(size, int) else size.__index__()
    if is_slice:
        start, stop, step = item.indices(length)
        return start, step, Dim((), len(range(start, stop, step)))
    number = item.__index__() if hasattr(item, "__index__") else None
    if number is None or not -length <= number < length:
        raise _bad_index(x, key)
    return number % length, 1, ONE


def _is_tail(item: Any) -> bool:
    return isinstance(item.start, int) and item.start > 0 and item.stop is None and item.step in (None, 1)
