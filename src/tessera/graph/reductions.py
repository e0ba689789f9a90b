"""NumPy's reductions of traced arrays along dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from tessera.errors import TypeMismatchError, caller_location
from tessera.graph.functions import concatenate, numpy, own_axes, reshape, trace_of, transpose
from tessera.graph.sizes import size
from tessera.graph.traced import Array, dtype_of
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of
from tessera.numerics.dtypes import DType, accumulator_of, f32, i64, u64


def _accumulated(x: Array, dtype: Any) -> tuple[DType, DType]:
    """Return the dtypes that elements are added up in, and that of the sum: 64 bits for integers, as in NumPy."""
    own = array_type(x.ssa).dtype
    wide = accumulator_of(own) if own.is_float else u64 if own.kind == "uint" else i64
    result = dtype_of(dtype) if dtype is not None else own if own.is_float else wide
    return (wide if result.is_float and result.bits < 32 else result), result


def _chosen(x: Array, where: Any, instead: Any) -> Array:
    """Return elements where a condition holds, a number of their dtype elsewhere; all of them without one."""
    if where is None or where is True:
        return x
    return x.tracing.elementwise("select", (x, np.asarray(instead, x.dtype)), (where,))


def _reduction(fn: str) -> Callable[..., Any]:
    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = None,
        where: Any = None,
    ) -> Array:
        trace = trace_of(a, where)
        with trace.at_caller() as writer:
            x = _chosen(trace.array(a), where, 0 if fn == "sum" else 1)
            wide, result = _accumulated(x, dtype)
            if fn == "prod" and x.is_differentiated and wide.is_float:
                found = _product_by_halves(x.astype(wide), own_axes(x, axis), bool(keepdims)).ssa
            else:
                found = writer.reduce(fn, writer.cast(x.ssa, wide), own_axes(x, axis), bool(keepdims))
            if initial is not None:
                found = writer.apply("add" if fn == "sum" else "mul", found, trace.operand(initial), dtype=wide)
            return Array(trace, writer.cast(found, result))

    return reduce


def _product_by_halves(x: Array, axes: Sequence[int], keepdims: bool) -> Array:
    """Return products along dimensions as products of elements, which have derivatives where some of them are 0."""
    kept = [at for at in range(x.ndim) if at not in axes]
    thin = [1 if at in axes else size for at, size in enumerate(x.shape)]
    found = reshape(transpose(x, [*kept, *axes]), (*(x.shape[at] for at in kept), -1))
    size = found.shape[-1].__index__()
    if not size:
        found, size = np.ones_like(found, shape=(*found.shape[:-1], 1)), 1
    while size > 1:
        half = size // 2
        pairs = found[..., :half] * found[..., half : 2 * half]
        found = concatenate([pairs, found[..., 2 * half :]], -1) if size % 2 else pairs
        size -= half
    return reshape(found, tuple(thin) if keepdims else tuple(x.shape[at] for at in kept))


def _extreme(fn: str) -> Callable[..., Any]:
    def reduce(
        a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None
    ) -> Array:
        trace = trace_of(a, where)
        if initial is None and not (where is None or where is True):
            raise TypeMismatchError(
                f"{fn} of the elements where a condition holds, which may be none",
                code="empty-reduction",
                location=caller_location(),
                help="give a first one: initial=",
            )
        with trace.at_caller() as writer:
            x = _chosen(trace.array(a), where, initial)
            axes = own_axes(x, axis)
            if initial is None:
                return Array(trace, writer.reduce(fn, x.ssa, axes, bool(keepdims)))
            first = writer.as_array(trace.operand(initial), array_type(x.ssa).dtype)
            if any(dims_of(x.ssa)[at] == ZERO for at in axes):
                thin = [ONE if at in axes else dim for at, dim in enumerate(dims_of(x.ssa))]
                found = writer.broadcast_to(first, thin)
                return Array(trace, found if keepdims else writer.without(found, axes))
            found = writer.reduce(fn, x.ssa, axes, bool(keepdims))
            return trace.elementwise(f"{fn}imum", [Array(trace, found), Array(trace, first)])

    return reduce


def _truth(fn: str) -> Callable[..., Any]:
    def reduce(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None) -> Array:
        trace = trace_of(a, where)
        with trace.at_caller() as writer:
            x = trace.array(a).ssa
            found = Array(trace, x if array_type(x).dtype.kind == "bool" else writer.apply("ne", x, 0))
            found = _chosen(found, where, fn == "all")
            return Array(trace, writer.reduce(fn, found.ssa, own_axes(found, axis), bool(keepdims)))

    return reduce


numpy(np.sum)(_reduction("sum"))
numpy(np.prod)(_reduction("prod"))
numpy(np.max)(_extreme("max"))
numpy(np.amax)(_extreme("max"))
numpy(np.min)(_extreme("min"))
numpy(np.amin)(_extreme("min"))
numpy(np.any)(_truth("any"))
numpy(np.all)(_truth("all"))


def _count(x: Any, axis: Any, keepdims: Any, where: Any, dtype: Any) -> Any:
    """Return how many elements a reduction along dimensions combines."""
    if where is None or where is True:
        writer = x.tracing.writer
        return Array(x.tracing, writer.size(writer.count(x.ssa, own_axes(x, axis)), dtype_of(dtype)))
    counted = np.broadcast_to(x.tracing.array(where), x.shape)
    return np.sum(counted.astype(dtype), axis=axis, keepdims=keepdims)


@numpy(np.mean)
def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None
) -> Array:
    """Return the mean along dimensions; that of integers is f32."""
    trace = trace_of(a, where)
    x = trace.array(a)
    with trace.at_caller():
        own = array_type(x.ssa).dtype
        result = dtype_of(dtype) if dtype is not None else own if own.is_float else f32
        wide = accumulator_of(result)
        total = np.sum(cast(Any, x.astype(wide)), axis=axis, keepdims=keepdims, where=where)
        return (total / _count(x, axis, keepdims, where, wide)).astype(result)


def _degrees(x: Any, axis: Any, keepdims: Any, where: Any, less: Any) -> Any:
    """Return how many elements a reduction along dimensions combines, less a number; none where those are fewer."""
    if where is None or where is True:
        left = size(x.tracing, x.tracing.writer.count(x.ssa, own_axes(x, axis))) - less
        return x.tracing.array(left if left > 0 else 0)
    return np.maximum(_count(x, axis, keepdims, where, np.float64) - less, 0)


def _spread(is_root: bool) -> Callable[..., Any]:
    def reduce(
        a: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = None,
        ddof: Any = 0,
        keepdims: Any = False,
        *,
        where: Any = None,
        mean: Any = None,
        correction: Any = None,
    ) -> Any:
        x = trace_of(a, where).array(a)
        middle = np.mean(cast(Any, x), axis=axis, dtype=dtype, keepdims=True, where=where) if mean is None else mean
        apart = x - middle
        total = np.sum(apart * apart, axis=axis, keepdims=keepdims, where=where)
        less = ddof if correction is None else correction
        found = total / _degrees(x, axis, keepdims, where, less).astype(total.dtype)
        return np.sqrt(found) if is_root else found

    return reduce


numpy(np.var)(_spread(False))
numpy(np.std)(_spread(True))
