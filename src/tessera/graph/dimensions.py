"""What NumPy's functions on traced arrays say of one dimension."""

from __future__ import annotations

from typing import Any

import numpy as _numpy

from tessera.graph.functions import own_axis, trace_of
from tessera.graph.traced import Array
from tessera.ir.graph.types import ONE, dims_of
from tessera.numerics import dtypes

np: Any = _numpy  # whose functions take traced arrays, too


def numbers(x: Array, axis: int) -> Array:
    """Return the numbers of elements along a dimension, which other dimensions repeat."""
    dims = [dim if at == axis else ONE for at, dim in enumerate(dims_of(x.ssa))]
    with x.tracing.at_caller() as writer:
        return Array(x.tracing, writer.iota(dims, axis, dtypes.i64))


def along(x: Any, axis: Any) -> tuple[Array, int]:
    """Return an array and one of its dimensions: all elements in row-major order where none is named."""
    found = trace_of(x).array(x)
    return (np.ravel(found), 0) if axis is None else (found, own_axis(found.ndim, axis))


def arrays_of(given: Any) -> list[Any]:
    """Return arrays, numbers and lists as arrays of the graph."""
    values = list(given)
    trace = trace_of(values)
    return [trace.array(one) for one in values]


def part(x: Array, axis: int, chosen: Any) -> Any:
    """Return a part of an array along a dimension, all of it along the others."""
    return x[tuple(chosen if at == axis else slice(None) for at in range(x.ndim))]


def reduced(found: Any, a: Any, axis: Any, keepdims: Any) -> Any:
    """Return what was found along a dimension, which has one element yet, of `a` in the shape that NumPy gives it."""
    if axis is None:
        return np.reshape(found, (1,) * trace_of(a).array(a).ndim if keepdims else ())
    return found if keepdims else np.squeeze(found, axis)
