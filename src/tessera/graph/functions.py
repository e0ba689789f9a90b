"""NumPy's functions on traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from xdsl.ir import SSAValue

from tessera.errors import LanguageError, TypeMismatchError, caller_location, shown
from tessera.graph.floats import Number
from tessera.graph.sizes import Size
from tessera.graph.traced import Array, Trace, dims_from, dtype_of
from tessera.graph.trees import flatten
from tessera.ir.graph.types import ONE, array_type, dims_of, ordered, product
from tessera.numerics.dtypes import DType, f32
from tessera.target.dims import Dim

UFUNCS: dict[Any, str] = {
    **{getattr(np, name): name for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin")},
    **{getattr(np, name): name for name in ("cos", "tan", "tanh", "cbrt", "hypot", "isnan")},
    **{getattr(np, name): name for name in ("isinf", "isfinite", "maximum", "minimum", "copysign")},
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.floor_divide: "floordiv",
    np.remainder: "mod",
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
WRITTEN: dict[Any, Callable[..., Any]] = {}
"""Functions of elements that others make up."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {}


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
    return next(leaf.tracing for leaf in leaves if isinstance(leaf, Array | Number))


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
        help=f"dimensions are 0 to {rank - 1}, or from -{rank} to -1"
        if rank
        else "it has no dimensions: leave axis out",
    )


def size_needed(what: str, instead: str) -> LanguageError:
    """Return the error about a function that gives as many elements as the values of a traced array say."""
    return LanguageError(
        f"how many elements {what} gives depends on the values of a traced array",
        code="value-needed",
        location=caller_location(),
        help=f"{instead}; or call it outside of ts.jit",
    )


@numpy(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> Array:
    """Return elements of one of two arrays, as a condition says."""
    if x is None or y is None:
        raise size_needed("np.where(condition)", "np.where(condition, x, y) chooses between two arrays")
    trace = trace_of(condition, x, y)
    with trace.at_caller():
        return trace.elementwise("select", (x, y), (condition,))


def _bound(x: Array, bound: Any) -> Any:
    """Return a bound of integers as a number that their dtype holds."""
    if not isinstance(bound, int) or isinstance(bound, bool) or x.dtype.kind not in "iu":
        return bound
    limits = np.iinfo(x.dtype)
    return min(max(bound, limits.min), limits.max)


@numpy(np.clip)
def clip(a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None) -> Any:
    """Return elements between two bounds."""
    x = trace_of(a, a_min, a_max, min, max).array(a)
    low, high = (_bound(x, one) for one in (a_min if min is None else min, a_max if max is None else max))
    if low is None and high is None:
        return np.copy(cast(Any, x))
    found = x if low is None else np.maximum(x, low)
    return found if high is None else np.minimum(found, high)


@numpy(np.reshape)
def reshape(a: Any, shape: Any, order: Any = "C", *, copy: Any = None) -> Array:
    """Return elements, in row-major order, as another shape; one size may be -1."""
    x: Array = a
    wanted = several(shape)
    if order == "F":
        return transpose(reshape(transpose(x), tuple(reversed(wanted))))
    trace = x.tracing
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
        return x.viewed(lambda x: writer.reshape(x.ssa, dims), _shaped_back, may_be_copy=not _is_dense(x))


def _shaped_back(whole: Array, changed: Array) -> Array:
    return reshape(changed, whole.shape)


def _is_dense(x: Array) -> bool:
    """Return whether elements follow one another in NumPy's array for sure."""
    return not x.is_view and (not x.is_part or x.back is _shaped_back)


def _quotient(dims: Sequence[Dim], others: Sequence[Dim]) -> Dim:
    """Return the size that is left over: equal factors are dropped before the rest is divided."""
    left, rest = list(map(ordered, dims)), list(map(ordered, others))
    for dim in list(rest):
        if dim in left:
            left.remove(dim)
            rest.remove(dim)
    return product(left) // product(rest)


@numpy(np.transpose)
def transpose(a: Any, axes: Any = None) -> Array:
    """Return an array with its dimensions permuted, by default in the opposite order."""
    order = list(reversed(range(a.ndim))) if axes is None else [own_axis(a.ndim, axis) for axis in axes]
    if sorted(order) != list(range(a.ndim)):
        raise _bad_axis(a.ndim, axes)
    with a.tracing.at_caller() as writer:
        turned = sorted(range(len(order)), key=order.__getitem__)
        return cast(Array, a).viewed(lambda a: writer.transpose(a.ssa, order), partial(_turned_back, turned))


def _turned_back(order: Sequence[int], _whole: Array, changed: Array) -> Array:
    return transpose(changed, order)


@numpy(np.swapaxes)
def swapaxes(a: Any, axis1: int, axis2: int) -> Array:
    """Return an array with two dimensions exchanged."""
    order = list(range(a.ndim))
    first, second = own_axis(a.ndim, axis1), own_axis(a.ndim, axis2)
    order[first], order[second] = second, first
    return transpose(a, order)


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
def expand_dims(a: Any, axis: Any) -> Array:
    """Return an array with dimensions of one element."""
    given = several(axis)
    axes = [own_axis(a.ndim + len(given), one) for one in given]
    with a.tracing.at_caller() as writer:
        return cast(Array, a).viewed(lambda a: writer.with_ones(a.ssa, axes), _shaped_back)


@numpy(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Array:
    """Return an array without dimensions of one element."""
    dims = dims_of(a.ssa)
    axes = [at for at, dim in enumerate(dims) if dim == ONE] if axis is None else own_axes(a, axis)
    if any(dims[at] != ONE for at in axes):
        raise _bad_axis(a.ndim, axis)
    with a.tracing.at_caller() as writer:
        return cast(Array, a).viewed(lambda a: writer.without(a.ssa, axes), _shaped_back)


@numpy(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: Any = False) -> Array:
    """Return an array repeated to a shape."""
    trace = trace_of(array, shape)
    x = trace.array(array)
    with trace.at_caller() as writer:
        dims = dims_from(several(shape))
        found = writer.broadcast_dims([dims_of(x.ssa), dims], "broadcast_to")
        if len(found) != len(dims) or not all(map(writer.same, found, dims)):
            raise TypeMismatchError(
                f"{x!r} does not broadcast to {shape}",
                code="shape-mismatch",
                help="sizes are equal or 1, from the last dimension on",
            )
        return x.viewed(lambda x: writer.broadcast_to(x.ssa, dims))


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
        a: Any, dtype: Any = None, order: Any = "K", subok: Any = True, shape: Any = None, *, device: Any = None
    ) -> Array:
        kind = array_type(a.ssa).dtype if dtype is None else dtype_of(dtype)
        return _made(a.tracing, value, a.shape if shape is None else shape, kind)

    return like


@numpy(np.copy)
def copy(a: Any, order: Any = "K", subok: Any = False) -> Array:
    """Return an array of its own with the same elements."""
    with a.tracing.at_caller() as writer:
        return Array(a.tracing, writer.copy(a.ssa))


numpy(np.zeros_like)(_made_like(0))


@numpy(np.empty_like)
def empty_like(prototype: Any, *given: Any, **options: Any) -> Array:
    """Return zeros like an array; takes what `np.zeros_like` takes."""
    return _made_like(0)(prototype, *given, **options)


numpy(np.ones_like)(_made_like(1))


@numpy(np.full_like)
def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: Any = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Return a number as often as an array, or a shape, has elements."""
    if is_traced(fill_value) or np.ndim(fill_value):
        value = a.tracing.array(fill_value).astype(a.dtype if dtype is None else dtype)
        return copy(broadcast_to(value, a.shape if shape is None else shape))
    return _made_like(fill_value)(a, dtype, order, subok, shape)


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
def concatenate(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: Any = None) -> Array:
    """Return arrays one after another along a dimension; all elements where it is None."""
    trace = trace_of(arrays)
    if axis is None:
        arrays, axis = [np.ravel(cast(Any, trace.array(one))) for one in arrays], 0
    if dtype is not None:
        arrays = [trace.array(one).astype(dtype) for one in arrays]
    with trace.at_caller() as writer:
        values = trace.operands(arrays)
        dtype = writer.common(values)
        found = [writer.as_array(value, dtype) for value in values]
        return Array(trace, writer.concat(found, own_axis(array_type(found[0]).rank, axis)))


@numpy(np.stack)
def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Any = None) -> Array:
    """Return arrays side by side along a new dimension."""
    arrays = list(arrays)
    trace = trace_of(arrays)
    values = trace.operands(arrays)
    dtype = trace.writer.common(values)
    given = [Array(trace, trace.writer.as_array(value, dtype)) for value in values]
    return concatenate([expand_dims(one, axis) for one in given], axis, dtype=dtype)


@numpy(np.take)
def take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Array:
    """Return elements at places along a dimension, by default of all elements in row-major order."""
    trace = trace_of(a, indices)
    x = trace.array(a)
    x = reshape(x, -1) if axis is None else x
    at = 0 if axis is None else own_axis(x.ndim, axis)
    if mode != "raise":
        count, place = x.shape[at], Array(trace, _places(trace, indices))
        place = place.astype(np.int64)
        last = trace.array(count).astype(np.int64) - 1
        indices = clip(place, 0, last) if mode == "clip" else place % (last + 1)
    with trace.at_caller() as writer:
        return Array(trace, writer.index(x.ssa, {at: _places(trace, indices)}))


@numpy(np.take_along_axis)
def take_along_axis(arr: Any, indices: Any, axis: Any = -1) -> Array:
    """Return elements at places along a dimension, for each row its own."""
    trace = trace_of(arr, indices)
    x, index = trace.array(arr), _places(trace, indices)
    x, axis = (reshape(x, -1), 0) if axis is None else (x, axis)
    if len(dims_of(index)) != x.ndim:
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


def matmul(a: Any, b: Any) -> Array:
    """Return a product with NumPy's rules: vectors lose their dimension, batches are broadcast."""
    trace = trace_of(a, b)
    with trace.at_caller() as writer:
        left, right = (trace.array(value).ssa for value in (a, b))
        dtype = writer.common([left, right])
        left, right = writer.cast(left, dtype), writer.cast(right, dtype)
        if not dims_of(left) or not dims_of(right):
            raise TypeMismatchError("matmul of a number", code="rank-mismatch", help="multiply numbers with *")
        if not dtype.is_float and dtype.bits != 8:
            return _product_of_integers(Array(trace, left), Array(trace, right))
        return Array(trace, _product(writer, left, right))


def _product(writer: Any, left: SSAValue, right: SSAValue) -> SSAValue:
    drop = [-2] * (len(dims_of(left)) == 1) + [-1] * (len(dims_of(right)) == 1)
    left = writer.with_ones(left, [0]) if len(dims_of(left)) == 1 else left
    right = writer.with_ones(right, [1]) if len(dims_of(right)) == 1 else right
    one, other = dims_of(left), dims_of(right)
    _check_inner(writer, one, other)
    batch = writer.broadcast_dims([one[:-2], other[:-2]], "matmul")
    left = writer.broadcast_to(left, (*batch, *one[-2:]))
    right = writer.broadcast_to(right, (*batch, one[-1], other[-1]))
    found = writer.contract(left, right)
    rank = len(dims_of(found))
    return writer.without(found, [rank + axis for axis in drop])


def _product_of_integers(left: Array, right: Array) -> Array:
    """Return a product of integers, which keep their low bits, or of truth values, as a sum along rows."""
    first = expand_dims(left, -2) if left.ndim > 1 and right.ndim > 1 else left
    second = right if right.ndim == 1 else swapaxes(right, -1, -2)
    second = expand_dims(second, -3) if left.ndim > 1 and right.ndim > 1 else second
    _check_inner(left.tracing.writer, dims_of(left.ssa), dims_of(right.ssa))
    products = first * second
    if left.dtype == np.bool_:
        return cast(Array, np.any(products, axis=-1))
    return cast(Array, np.sum(products, axis=-1, dtype=left.dtype))


def _check_inner(writer: Any, one: Sequence[Dim], other: Sequence[Dim]) -> None:
    if not writer.same(one[-1], other[-min(2, len(other))]):
        raise TypeMismatchError(
            f"matmul of ({', '.join(map(str, one))}) and ({', '.join(map(str, other))})",
            code="shape-mismatch",
            help="the last size of the first is the last but one of the second",
        )


def indexed(x: Array, key: Any) -> Array:
    """Return a part of an array: numbers, slices, `None` and `...`, or arrays of integers.

    Raises:
        LanguageError: `value-needed` for a traced mask, `not-traceable` for True and False.
        TypeMismatchError: `bad-index`.
    """
    items: list[Any] = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    items = [place for item in items for place in _mask_places(item)]
    apart = any(isinstance(item, Array | list | np.ndarray) for item in items)
    if any(isinstance(item, bool | np.bool_) for item in items):
        raise refused("ndarray.__getitem__ of True and False")
    given = sum(item is not None and item is not ... for item in items)
    if given > x.ndim or sum(item is ... for item in items) > 1:
        raise _bad_index(x, key)
    at = next((place for place, item in enumerate(items) if item is ...), len(items))
    items[at : at + 1] = [slice(None)] * (x.ndim - given)
    with x.tracing.at_caller() as writer:
        if not apart:
            return x.viewed(lambda x: _part(writer, *_turned(x, items), key), partial(_part_set, key))
        x, items = _turned(x, items)
        added = [axis for axis, item in enumerate(items) if item is None]
        x = Array(x.tracing, writer.with_ones(x.ssa, added))
        items = [slice(None) if item is None else item for item in items]
        parts = [item if type(item) is slice else slice(None) for item in items]
        places = {axis: _places(x.tracing, item) for axis, item in enumerate(items) if type(item) is not slice}
        return Array(x.tracing, writer.index(_part(writer, x, parts, key), places))


def _part_set(key: Any, whole: Array, changed: Array) -> Array:
    from tessera.graph.assigning import with_part

    return with_part(whole, key, changed)


def _mask_places(item: Any) -> Sequence[Any]:
    """Return what stands for one index: for a mask the places where it is true, along each of its dimensions."""
    if isinstance(item, Array):
        if item.dtype == np.bool_:
            raise size_needed("x[mask]", "np.where(mask, x, 0) keeps the shape, np.sum(x, where=mask) adds up")
        return (item,)
    if isinstance(item, list | np.ndarray):
        given = np.asarray(cast(Any, item))
        if given.dtype == np.bool_ and given.ndim:
            return np.nonzero(given)
    return (cast(Any, item),)


def _turned(x: Array, items: Sequence[Any]) -> tuple[Array, list[Any]]:
    """Return an array with what slices that go backwards take, in place of which all of it is taken then."""
    axis, left = 0, list(items)
    for number, item in enumerate(items):
        if type(item) is slice and isinstance(item.step, int) and item.step < 0:
            x = take(x, np.arange(*item.indices(x.shape[axis].__index__()), dtype=np.int64), axis)
            left[number] = slice(None)
        axis += item is not None
    return x, left


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
