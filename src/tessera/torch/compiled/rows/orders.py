"""Running sums, products and extremes, and what is found in order: kernels of the library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tessera import ops
from tessera.ir.graph.types import ONE, ZERO, ArrayType, array_type
from tessera.numerics.dtypes import i64
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown

_FLOATS = ("f64", "f32", "bf16", "f16")
_NUMBERS = (*_FLOATS, "i8", "u8", "i16", "i32", "i64")
MOST = 32768
"""Elements of the longest rows that are put in order on any device."""


def _check(c: Converter, value: Any, names: tuple[str, ...]) -> None:
    if not c.dims(value) or c.w_dtype(value).name not in names:
        raise Unknown("a number, or a dtype that the library's op has not")


def _along(function: Callable[..., Any], axis: int, x: Any) -> Any:
    return function(x, axis)


@row("cumsum.default", "cumprod.default")
def _running(c: Converter, x: Any, axis: int, dtype: Any = None) -> Any:
    x = c.w.cast(x, c.result_dtype())
    _check(c, x, (*_FLOATS, "i64"))
    function = ops.cumsum if "cumsum" in str(c.node.target) else ops.cumprod
    return c.library(partial(_along, function, axis), [x])[0]


@row("cummax.default", "cummin.default")
def _running_extreme(c: Converter, x: Any, axis: int) -> Any:
    _check(c, x, _NUMBERS)
    function = ops.cummax if "cummax" in str(c.node.target) else ops.cummin
    return c.library(partial(_along, function, axis), [x])


def _check_length(c: Converter, x: Any, axis: int) -> None:
    _check(c, x, _NUMBERS)
    size = c.dims(x)[axis]
    if not size.is_static or size.scale > MOST:
        raise Unknown("long rows, or rows of any size, in order")


def _in_order(axis: int, descending: bool, x: Any) -> Any:
    return ops.sort(x, axis, descending)


@row("kthvalue.default")
def _kth(c: Converter, x: Any, place: Any, axis: int = -1, keepdim: bool = False) -> Any:
    _check_length(c, x, axis)
    if not isinstance(place, int):
        raise Unknown("a place that is known when the graph runs")
    return _at(c, x, place - 1, axis, keepdim)


@row("median.dim", "nanmedian.dim")
def _median(c: Converter, x: Any, axis: int = -1, keepdim: bool = False) -> Any:
    _check_length(c, x, axis)
    if c.is_float(x):
        raise Unknown("a median where there may be NaN")
    return _at(c, x, (c.dims(x)[axis].scale - 1) // 2, axis, keepdim)


def _at(c: Converter, x: Any, place: int, axis: int, keepdim: bool) -> Any:
    """Return what is at a place in order along a dimension, and where it comes from."""
    dims, axis = list(c.dims(x)), axis % len(c.dims(x))
    found = c.library(partial(_in_order, axis, False), [x], [array_type(x), ArrayType.of(dims, i64)])
    dims[axis] = ONE
    starts = [Dim((), place) if other == axis else ZERO for other in range(len(dims))]
    parts = [c.w.slice(one, starts, [1] * len(dims), dims) for one in found]
    return parts if keepdim else [c.w.without(one, [axis]) for one in parts]


@row("bucketize.Tensor")
def _bucket(c: Converter, x: Any, bounds: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _place_among(c, bounds, x, right)


@row("searchsorted.Tensor")
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
        raise Unknown("bounds in another order")
    return _place_among(c, bounds, x, right or side == "right")


def _place_among(c: Converter, bounds: Any, x: Any, right: bool) -> Any:
    """Return between which bounds elements are, by PyTorch's own steps: of NaN they decide what is found."""
    size, dims = c.dims(bounds)[-1], c.dims(x)
    if not size.is_static or size.scale == 0:
        raise Unknown("bounds of any number, or none")
    fn = "gt" if right else "ge"
    outer = list(range(len(c.dims(bounds)) - 1))
    low = c.w.broadcast_to(c.w.full(0, i64), dims)
    high = c.w.broadcast_to(c.w.full(size.scale, i64), dims)
    for _ in range(size.scale.bit_length()):
        middle = c.w.apply("shr", c.w.apply("add", low, high), 1)
        bound = c.w.take(bounds, [*outer, c.w.apply("minimum", middle, size.scale - 1)], dims)
        after = c.elementwise(lambda f, b, v: f(fn, b, v), (bound, x), "ALWAYS_BOOL")
        before = c.w.apply("not", after)
        is_open = c.w.apply("lt", low, high)
        first = c.w.apply("and", is_open, before)
        low = c.w.apply("select", first, c.w.apply("add", middle, 1), low)
        high = c.w.apply("select", c.w.apply("and", is_open, after), middle, high)
    return low
