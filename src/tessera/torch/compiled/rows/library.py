"""Ops that Tessera's library has: they run as its kernels between those of groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tessera import ops
from tessera.ir.graph.types import ONE, ArrayType
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.powers import root
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows.sums import summed_in
from tessera.torch.compiled.sizes import Unknown, dim_of, fixed

_NUMBERS = ("f64", "f32", "bf16", "f16")


def _check(c: Converter, value: Any, also: Sequence[str] = ()) -> None:
    if c.w_dtype(value).name not in (*_NUMBERS, *also):
        raise Unknown("a dtype that the library's op has not")


def _found(function: Callable[..., Any], axis: Any, keepdim: bool, x: Any) -> Any:
    return function(x, axis, keepdim)


@row("argmax.default", "argmin.default")
def _place(c: Converter, x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    _check(c, x, ("i8", "u8", "i16", "i32", "i64"))
    found = ops.reduce.argmax if "argmax" in str(c.node.target) else ops.reduce.argmin
    if not c.dims(x):
        raise Unknown("the place of a number")
    return c.library(partial(_found, found, axis, keepdim), [x])[0]


@row("max.dim", "min.dim")
def _extreme(c: Converter, x: Any, axis: int, keepdim: bool = False) -> Any:
    _check(c, x, ("bool", "i8", "u8", "i16", "i32", "i64"))
    found = ops.reduce.max if ".max" in str(c.node.target) else ops.reduce.min
    if not c.dims(x):
        return [c.copied(x), c.w.full(0, dtypes.i64)]
    if all(user.args[1] == 0 for user in c.node.users):  # no places are asked for
        fn = "max" if ".max" in str(c.node.target) else "min"
        value = c.w.reduce(fn, c.w.cast(x, _held(c, x)), [axis % len(c.dims(x))], keepdim)
        nothing = c.w.broadcast_to(c.w.full(0, dtypes.i64), c.results_dims()[1])
        return [c.truth(value) if c.is_bool(x) else value, nothing]
    types = [ArrayType.of(dims, dtype) for dims, dtype in zip(c.results_dims(), (_held(c, x), dtypes.i64), strict=True)]
    value, place = c.library(partial(_found, found, axis, keepdim), [c.w.cast(x, _held(c, x))], types)
    return [c.truth(value) if c.is_bool(x) else value, place]


def _held(c: Converter, x: Any) -> DType:
    """Return the dtype of the library's op: truth values are numbers there."""
    return dtypes.u8 if c.is_bool(x) else c.w_dtype(x)


_LONGEST = 1 << 15
"""Elements of a row that is put in order."""


def _check_row(c: Converter, x: Any, axis: int) -> int:
    """Return the dimension, along which all elements fit into a program, when the graph was traced at least."""
    _check(c, x, ("i8", "u8", "i16", "i32", "i64"))
    dims = c.dims(x)
    length = dims[axis].value(c.w.hints) if dims else None
    if length is None or length > _LONGEST:
        raise Unknown("rows that are too long to be put in order")
    return axis % len(dims)


@row("topk.default")
def _largest(c: Converter, x: Any, count: Any, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    many = fixed(count)
    if many == 0:
        raise Unknown("a count of 0")
    return c.library(partial(_topk, many, _check_row(c, x, axis), largest), [x])


def _topk(count: int, axis: int, largest: bool, x: Any) -> Any:
    return tuple(ops.topk(x, count, axis, largest))


@row("sort.default")
def _sorted(c: Converter, x: Any, axis: int = -1, descending: bool = False) -> Any:
    if not c.is_bool(x):
        return c.library(partial(_in_order, _check_row(c, x, axis), descending), [x])
    bits = c.w.cast(x, _held(c, x))
    types = [ArrayType.of(c.dims(x), dtype) for dtype in (_held(c, x), dtypes.i64)]
    found, place = c.library(partial(_in_order, _check_row(c, bits, axis), descending), [bits], types)
    return [c.truth(found), place]


@row("sort.stable")
def _stable(c: Converter, x: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    return _sorted(c, x, dim, descending)


def _in_order(axis: int, descending: bool, x: Any) -> Any:
    return tuple(ops.sort(x, axis, descending))


@row("linalg_vector_norm.default")
def norm_of(c: Converter, x: Any, order: Any = 2, axes: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return norms along dimensions, of all elements where none are named."""
    _check(c, x)
    rank = len(c.dims(x))
    along = list(range(rank)) if axes is None or axes == [] else [axis % rank for axis in axes] if rank else []
    wide = c.w.cast(x, summed_in(c, x, along, c.result_dtype()))
    if order == 2:
        return c.w.apply("sqrt", c.w.reduce("sum", c.w.apply("mul", wide, wide), along, keepdim))
    size = c.w.apply("abs", wide)
    if order in (math.inf, -math.inf):
        return c.w.reduce("max" if order > 0 else "min", size, along, keepdim)
    if order == 0:
        return c.w.reduce("sum", c.w.cast(c.truth(wide), c.w_dtype(wide)), along, keepdim)
    if order == 1:
        return c.w.reduce("sum", size, along, keepdim)
    total = c.w.reduce("sum", root(c, size, float(order)), along, keepdim)
    return root(c, total, 1.0 / order)


@row("repeat.default")
def repeated(c: Converter, x: Any, counts: Sequence[Any]) -> Any:
    """Return a tensor several times along each dimension."""
    times = [dim_of(count) for count in counts]
    own = [ONE] * (len(counts) - len(c.dims(x))) + list(c.dims(x))
    thin = [dim for size in own for dim in (ONE, size)]
    wide = [dim for size, count in zip(own, times, strict=True) for dim in (count, size)]
    return c.w.reshape(c.copied(c.w.broadcast_to(c.w.reshape(x, thin), wide)), c.result_dims())
