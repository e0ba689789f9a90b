"""Elements put at places that tensors say, or added to what is there: in the order of what is put, in every run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from tessera.ir.graph.points import CastOp, FullOp
from tessera.ir.graph.types import ONE, ZERO, ArrayType, array_type, ordered
from tessera.ir.graph.views import BroadcastOp, ReshapeOp
from tessera.numerics import dtypes
from tessera.numerics.functions import identity_of
from tessera.ops.counting.steps import COUNT
from tessera.ops.lookup.scatter_steps import SCATTER
from tessera.ops.lookup.steps import BACKWARD
from tessera.runtime.device import CPU
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, is_value
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows import masks
from tessera.torch.compiled.sizes import Unknown

_INDICES = ("i32", "i64")
_MOST_ROWS = 2**31 - 1


def _product(dims: Sequence[Dim]) -> Dim:
    return prod(dims, start=ONE)


def _check(c: Converter, x: Any, index: Any) -> None:
    if c.w_dtype(index).name not in _INDICES:
        raise Unknown("an index that is a mask")
    if c.w_dtype(x).name not in ("f64", "f32", "bf16", "f16", "i8", "u8", "i16", "i32", "i64", "bool"):
        raise Unknown("a dtype that the library's op has not")


def _rows_put(c: Converter, x: Any, index: Any, source: Any, kind: str) -> Any:
    """Return rows `(V, N)` with those of a source `(L, N)` put at or added to the rows `(L,)` of an index."""
    count = c.dims(x)[0]
    if count.is_static and count.scale > _MOST_ROWS:
        raise Unknown("more rows than are numbered")
    if c.w_dtype(x).kind == "bool":  # a sum of truth values is whether any of them is true
        bits = [c.w.cast(c.w.cast(one, dtypes.boolean), dtypes.u8) for one in (x, source)]
        return c.w.cast(_rows_put(c, bits[0], index, bits[1], "max" if kind == "sum" else kind), c.w_dtype(x))
    source = c.w.cast(source, c.w_dtype(x))
    if kind == "sum" and c.device.type == CPU.kind and _is_zero(x) and c.dims(source)[0] == c.dims(index)[0]:
        return c.library(partial(_summed, -1), [source, index], [array_type(x)], [count])[0]
    in_order = torch.are_deterministic_algorithms_enabled()
    return c.library(partial(_scattered, kind, in_order), [x, index, source], [array_type(x)])[0]


def _is_zero(x: Any) -> bool:
    """Return whether an array is zeros, which a sum on a CPU need not read."""
    while isinstance(x.owner, BroadcastOp | ReshapeOp | CastOp):
        x = x.owner.operands[0]
    return isinstance(x.owner, FullOp) and x.owner.number == 0


def _scattered(kind: str, in_order: bool, x: Any, index: Any, source: Any) -> Any:
    return SCATTER.fresh(x, index, source, kind, in_order)


@row("embedding_dense_backward.default")
def _embedding_gradient(c: Converter, grad: Any, index: Any, count: Any, padding: Any, by_frequency: bool) -> Any:
    _check(c, grad, index)
    dims, rows = c.dims(grad), c.result_dims()[0]
    if not c.is_float(grad) or not isinstance(padding, int):
        raise Unknown("a gradient of integers")
    tokens = _product(c.dims(index))
    grad, index = c.w.reshape(grad, [tokens, dims[-1]]), c.w.reshape(index, [tokens])
    if by_frequency:
        grad = c.w.apply("div", grad, c.w.cast(_frequency(c, index, rows), c.w_dtype(grad)))
    return c.library(partial(_summed, padding), [grad, index], sizes=[rows])[0]


def _frequency(c: Converter, index: Any, rows: Dim) -> Any:
    """Return how often each row of an index `(L,)` is in it, `(L, 1)`."""
    tokens = c.dims(index)[0]
    none, one = (c.w.broadcast_to(c.w.full(n, dtypes.i64), [size, ONE]) for n, size in ((0, rows), (1, tokens)))
    return c.w.take(_rows_put(c, none, index, one, "sum"), [c.w.with_ones(index, [1]), 1], [tokens, ONE])


def _summed(padding: int, count: int, grad: Any, index: Any) -> Any:
    return BACKWARD.fresh(grad, index, count, padding)


@row("put.default")
def _put(c: Converter, x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    _check(c, x, index)
    size, count = _product(c.dims(x)), _product(c.dims(index))
    place = _linear(c, [c.w.reshape(index, [count])], [size])
    kind = "sum" if accumulate else "put"
    found = _rows_put(c, c.w.reshape(x, [size, ONE]), place, c.w.reshape(source, [count, ONE]), kind)
    return c.w.reshape(found, c.dims(x))


@row("index_put.default", "_unsafe_index_put.default")
def _index_put(c: Converter, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if len(given) == 1:
        ((axis, index),) = given.items()
        if c.is_bool(index):
            return masks.put(c, x, axis, index, values, accumulate)
    for index in given.values():
        _check(c, x, index)
    dims, axes = list(c.dims(x)), list(given)
    left = [axis for axis in range(len(dims)) if axis not in given]
    lead = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    shared = list(c.w.broadcast_dims([c.dims(index) for index in given.values()], "indices"))
    sizes, others = [dims[axis] for axis in axes], [dims[axis] for axis in left]
    each = [ONE] * len(shared) if _repeats(c, values, shared, len(others) - lead) else shared
    source = c.w.broadcast_to(values, [*others[:lead], *each, *others[lead:]])
    place = _linear(c, [c.w.broadcast_to(given[axis], shared) for axis in axes], sizes)
    # What is indexed comes first; the rest is a row.
    first, inner = [*axes, *left], range(lead, lead + len(shared))
    turned = [*inner, *(axis for axis in range(len(others) + len(shared)) if axis not in inner)]
    found = _rows_put(
        c,
        c.w.reshape(c.w.transpose(x, first), [_product(sizes), _product(others)]),
        c.w.reshape(place, [_product(shared)]),
        c.w.reshape(c.w.transpose(source, turned), [_product(each), _product(others)]),
        "sum" if accumulate else "put",
    )
    back = c.w.reshape(found, [*sizes, *others])
    order = [first.index(axis) for axis in range(len(dims))]
    return back if order == sorted(order) else c.copied(c.w.transpose(back, order))


def _repeats(c: Converter, values: Any, shared: Sequence[Dim], after: int) -> bool:
    """Return whether all places get the same row, which is written once on a CPU.

    Args:
        c: the converter.
        values: what is put, as long as it is not broadcast.
        shared: the sizes of the places.
        after: how many dimensions follow those of the places.
    """
    dims = c.dims(values)
    own = dims[max(len(dims) - after - len(shared), 0) : max(len(dims) - after, 0)]
    return c.device.type == CPU.kind and all(dim == ONE for dim in own)


def _linear(c: Converter, places: Sequence[Any], sizes: Sequence[Dim]) -> Any:
    """Return one number for places along several dimensions, of which negative ones count from the end; -1 for none."""
    found = inside = None
    for place, size in zip(places, sizes, strict=True):
        own = c.w.from_start(c.w.cast(place, dtypes.i64), size)
        within = c.w.apply("and", c.w.apply("ge", own, 0), c.w.apply("lt", own, c.w.size(size, dtypes.i64)))
        inside = within if inside is None else c.w.apply("and", inside, within)
        found = own if found is None else c.w.apply("add", c.w.apply("mul", found, c.w.size(size, dtypes.i64)), own)
    if found is None or inside is None:
        raise Unknown("places along no dimension")
    found = c.w.apply("select", inside, found, -1, dtype=dtypes.i64)
    whole = _product(sizes)
    return c.w.cast(found, dtypes.i32) if whole.is_static and whole.scale <= _MOST_ROWS else found


def scattered(c: Converter, x: Any, axis: int, index: Any, source: Any, kind: str) -> Any:
    """Return an array with elements of a source put at places along a dimension, or combined with what is there.

    Args:
        c: the converter.
        x: the array.
        axis: the dimension.
        index: the places; in the other dimensions its elements lie as those of the array do.
        source: a number, or an array of no smaller sizes than the index.
        kind: how they are combined: `put`, `sum`, `prod`, `max` or `min`.
    """
    _check(c, x, index)
    dims, thin = c.dims(x), c.dims(index)
    if not is_value(source):
        each = [ONE] * len(thin) if _repeats(c, x, [], 0) else thin
        source = c.w.broadcast_to(c.w.as_array(c.ready(source, c.w_dtype(x)), c.w_dtype(x)), each)
    elif list(map(ordered, c.dims(source))) != list(map(ordered, thin)):
        source = c.w.slice(source, [ZERO] * len(thin), [1] * len(thin), thin)
    places = [index if at == axis else c.w.iota(thin, at, dtypes.i64) for at in range(len(dims))]
    tokens, whole = _product(thin), _product(dims)
    flat = c.w.reshape(_linear(c, places, dims), [tokens])
    found = _rows_put(c, c.w.reshape(x, [whole, ONE]), flat, c.w.reshape(source, [_product(c.dims(source)), ONE]), kind)
    return c.w.reshape(found, dims)


@row("histc.default")
def _histogram(c: Converter, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Write how many elements are in each of some bins of one width; without bounds, between the extremes."""
    dtype = c.w_dtype(x)
    if not dtype.is_float:
        raise Unknown("a histogram of integers")
    x = c.w.reshape(x, [_product(c.dims(x))])
    if min == max:
        low, high = (c.w.reduce(fn, x, [0]) for fn in ("min", "max"))
        alike = c.w.apply("eq", low, high)
        low, high = (c.w.apply(fn, one, c.w.cast(alike, dtype)) for fn, one in (("sub", low), ("add", high)))
    else:
        low, high = float(min), float(max)
    width = c.w.apply("sub", high, low, dtype=dtype)
    place = c.w.apply("div", c.w.apply("mul", c.w.apply("sub", x, low), float(bins)), width)
    place = c.w.apply("minimum", c.w.cast(place, dtypes.i64), bins - 1)
    inside = c.w.apply("and", c.w.apply("ge", x, low), c.w.apply("le", x, high))
    place = c.w.apply("select", inside, place, bins, dtype=dtypes.i64)
    count = partial(_counted, bins)
    (found,) = c.library(count, [place], [ArrayType.of(c.result_dims(), dtypes.i64)])
    return c.w.cast(found, dtype)


def _counted(bins: int, place: Any) -> Any:
    return COUNT.fresh(place, bins)


_KINDS = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}


@row("scatter_reduce.two")
def _reduced(c: Converter, x: Any, axis: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    dims, dtype = c.dims(x), c.w_dtype(x)
    if not dims or (reduce == "mean" and not dtype.is_float) or dtype.kind == "bool":
        raise Unknown("a number, or a mean of integers")
    axis, kind = axis % len(dims), _KINDS[reduce]
    if include_self and reduce != "mean":
        return scattered(c, x, axis, index, source, kind)
    wide = dtypes.i64 if reduce != "mean" else dtypes.f64 if dtype.name == "f64" else dtypes.f32
    zeros = c.w.broadcast_to(c.w.full(0, wide), dims)
    count = scattered(c, zeros, axis, index, 1, "sum")
    start = x
    if not include_self:
        neutral = c.w.full(identity_of(kind, dtype), dtype)
        start = c.w.apply("select", c.w.apply("gt", count, 0), neutral, x, dtype=dtype)
    found = scattered(c, start, axis, index, source, kind)
    if reduce != "mean":
        return found
    more = c.w.apply("add", count, 1.0) if include_self else c.w.apply("maximum", count, 1.0)
    return c.w.apply("div", c.w.cast(found, wide), more)


@row("index_reduce.default")
def _reduced_along(
    c: Converter, x: Any, axis: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    dims = c.dims(source)
    if not c.dims(x) or len(c.dims(index)) != 1:
        raise Unknown("a number")
    axis %= len(dims)
    wide = c.w.broadcast_to(c.w.with_ones(index, [at for at in range(len(dims)) if at != axis]), dims)
    return _reduced(c, x, axis, wide, source, reduce, include_self)
