"""Running sums, products and extremes, and what is found in order: kernels of the library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tessera import ops
from tessera.ir.graph.types import ONE, ArrayType, array_type, product
from tessera.numerics.dtypes import f32, i64
from tessera.ops.running.logarithms import logcumsumexp
from tessera.runtime.device import CPU
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, is_value
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.reversing import cumsum_from_the_end
from tessera.torch.compiled.sizes import Unknown, dim_of, fixed

_FLOATS = ("f64", "f32", "bf16", "f16")
_NUMBERS = (*_FLOATS, "i8", "u8", "i16", "i32", "i64")
MOST = 32768
"""Elements of the longest rows that are put in order on any device."""


def _check(c: Converter, value: Any, names: tuple[str, ...]) -> None:
    if not c.dims(value) or c.w_dtype(value).name not in names:
        raise Unknown("a number, or a dtype that the library's op has not")


def _along(function: Callable[..., Any], axis: int, x: Any) -> Any:
    return function(x, axis)


@row("cumsum.default", "cumprod.default", cumsum_from_the_end)
def _running(c: Converter, x: Any, axis: int, dtype: Any = None) -> Any:
    x = c.w.cast(x, c.result_dtype())
    _check(c, x, (*_FLOATS, "i64"))
    function = ops.cumprod if "cumprod" in str(c.node.target) else ops.cumsum
    run = partial(_from_the_end if c.node.target is cumsum_from_the_end else _along, function, axis)
    return c.library(run, [x])[0]


def _from_the_end(function: Any, axis: int, x: Any) -> Any:
    """Return sums that run from the end: the gradient of those that run from the start."""
    return function.backward(x, x, axis)["input"]


@row("cummax.default", "cummin.default")
def _running_extreme(c: Converter, x: Any, axis: int) -> Any:
    _check(c, x, _NUMBERS)
    function = ops.cummax if "cummax" in str(c.node.target) else ops.cummin
    return c.library(partial(_along, function, axis), [x])


def _check_length(c: Converter, x: Any, axis: int) -> Dim:
    """Return the size of a dimension whose elements are put in order."""
    _check(c, x, _NUMBERS)
    size = c.dims(x)[axis]
    length = size.value(c.w.hints)
    if length is None or length > MOST:
        raise Unknown("long rows, or rows of any size, in order")
    return size


def _in_order(axis: int, descending: bool, x: Any) -> Any:
    return ops.sort(x, axis, descending)


@row("kthvalue.default")
def _kth(c: Converter, x: Any, place: Any, axis: int = -1, keepdim: bool = False) -> Any:
    _check_length(c, x, axis)
    return _at(c, x, c.w.size(dim_of(place) - 1, i64), axis, keepdim)


@row("median.dim", "nanmedian.dim")
def _median(c: Converter, x: Any, axis: int = -1, keepdim: bool = False) -> Any:
    return _at(c, x, _middle(c, x, axis), axis, keepdim)


@row("median.default", "nanmedian.default")
def _median_of_all(c: Converter, x: Any) -> Any:
    flat = c.w.reshape(x, [product(c.dims(x))])
    return _at(c, flat, _middle(c, flat, 0), 0, False)[0]


def _middle(c: Converter, x: Any, axis: int) -> Any:
    """Return where the median is among elements in order: the lower of two; NaN come last, and the first is taken."""
    size = c.w.size(_check_length(c, x, axis), i64)
    middle = c.w.apply("shr", c.w.apply("sub", size, 1), 1)
    if not c.is_float(x):
        return middle
    count = c.w.reduce("sum", c.w.cast(c.w.apply("not", c.w.apply("isnan", x)), i64), [axis % len(c.dims(x))], True)
    if "nan" in str(c.node.target):
        return c.w.apply("shr", c.w.apply("maximum", c.w.apply("sub", count, 1), 0), 1)
    return c.w.apply("select", c.w.apply("lt", count, size), count, middle)


def _at(c: Converter, x: Any, place: Any, axis: int, keepdim: bool) -> list[Any]:
    """Return what is at a place in order along a dimension, and where it comes from."""
    dims, axis = list(c.dims(x)), axis % len(c.dims(x))
    found = _by_rows(c, x, axis)
    dims[axis] = ONE
    places: list[Any] = [place if other == axis else other for other in range(len(dims))]
    parts = [c.w.take(one, places, dims) for one in found]
    return parts if keepdim else [c.w.without(one, [axis]) for one in parts]


LONG = 64
"""Elements from which on a CPU puts columns in order as rows of a copy: their own are a line of the cache apart."""


def _by_rows(c: Converter, x: Any, axis: int) -> list[Any]:
    """Return elements in order along a dimension, and where they come from."""
    dims = c.dims(x)
    order = [*(at for at in range(len(dims)) if at != axis), axis]
    length = dims[axis].value(c.w.hints)
    if order == sorted(order) or c.device.type != CPU.kind or length is None or length < LONG:
        return c.library(partial(_in_order, axis, False), [x], [array_type(x), ArrayType.of(dims, i64)])
    x = c.copied(c.w.transpose(x, order))
    found = c.library(partial(_in_order, -1, False), [x], [array_type(x), ArrayType.of(c.dims(x), i64)])
    return [c.w.transpose(one, [order.index(at) for at in range(len(dims))]) for one in found]


@row("mode.default")
def _most_frequent(c: Converter, x: Any, axis: int = -1, keepdim: bool = False) -> list[Any]:
    """Write what comes most often, the least of such: the end of the longest run of equal elements in order."""
    _check_length(c, x, axis)
    dims, axis = list(c.dims(x)), axis % len(c.dims(x))
    whole = ArrayType.of(dims, i64)
    found = c.library(partial(_in_order, axis, False), [x], [array_type(x), whole])
    place = c.w.iota(dims, axis, i64)
    before = c.w.apply("maximum", c.w.apply("sub", place, 1), 0)
    before = c.w.take(found[0], [before if other == axis else other for other in range(len(dims))], dims)
    is_new = c.w.apply("or", c.w.apply("eq", place, 0), c.w.apply("ne", found[0], before))
    first, _ = c.library(partial(_along, ops.cummax, axis), [c.w.apply("select", is_new, place, 0)], [whole, whole])
    dims[axis] = ONE
    (last,) = c.library(partial(_longest, axis), [c.w.apply("sub", place, first)], [ArrayType.of(dims, i64)])
    parts = [c.w.take(one, [last if other == axis else other for other in range(len(dims))], dims) for one in found]
    return parts if keepdim else [c.w.without(one, [axis]) for one in parts]


def _longest(axis: int, counts: Any) -> Any:
    return ops.reduce.argmax(counts, axis, True)


@row("logcumsumexp.default")
def _running_logarithm(c: Converter, x: Any, axis: int) -> Any:
    _check(c, x, _FLOATS)
    return c.library(partial(_along, logcumsumexp, axis), [x])[0]


@row("bucketize.Tensor", "bucketize.Scalar")
def _bucket(c: Converter, x: Any, bounds: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _place_among(c, bounds, x, right)


@row("searchsorted.Tensor", "searchsorted.Scalar")
def _searched(
    c: Converter,
    bounds: Any,
    x: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    if sorter is not None:
        dims = c.dims(bounds)
        bounds = c.w.take(bounds, [*range(len(dims) - 1), sorter], dims)
    return _place_among(c, bounds, x, right or side == "right")


FEWEST_STEPS = 12
"""Steps of a search among bounds whose number may change: some thousands."""


def _steps(size: Any, fewest: int = FEWEST_STEPS) -> int:
    """Return how often a size can be halved; calls have to have one of no more steps, if it may change.

    Raises:
        Unknown: it is 0, or only the graph's run tells it.
    """
    if isinstance(size, int):
        if not size:
            raise Unknown("no elements")
        return size.bit_length()
    if size.node.hint is None:
        raise Unknown("a size that is known when the graph runs")
    steps = max(fewest, int(size.node.hint).bit_length() + 1)
    return steps if bool(size < 1 << steps) else fixed(size).bit_length()


def _place_among(c: Converter, bounds: Any, x: Any, right: bool) -> Any:
    """Return between which bounds elements are, by PyTorch's own steps: of NaN they decide what is found."""
    if not is_value(x):
        dtype = c.w_dtype(bounds) if c.is_float(bounds) or isinstance(x, int) else f32
        x = c.w.as_array(c.ready(x, dtype), dtype)
    size, dims = c.dims(bounds)[-1], c.dims(x)
    steps = _steps(c.node.args[1 if "bucketize" in str(c.node.target) else 0].meta["val"].shape[-1])
    last = c.w.size(size - 1, i64)
    fn = "gt" if right else "ge"
    outer = list(range(len(c.dims(bounds)) - 1))
    low = c.w.broadcast_to(c.w.full(0, i64), dims)
    high = c.w.broadcast_to(c.w.size(size, i64), dims)
    for _ in range(steps):
        middle = c.w.apply("shr", c.w.apply("add", low, high), 1)
        bound = c.w.take(bounds, [*outer, c.w.apply("minimum", middle, last)], dims)
        after = c.elementwise(lambda f, b, v: f(fn, b, v), (bound, x), "ALWAYS_BOOL")
        before = c.w.apply("not", after)
        is_open = c.w.apply("lt", low, high)
        first = c.w.apply("and", is_open, before)
        low = c.w.apply("select", first, c.w.apply("add", middle, 1), low)
        high = c.w.apply("select", c.w.apply("and", is_open, after), middle, high)
    return low
