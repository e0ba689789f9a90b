"""Elements at places that tensors say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir.graph.types import ONE, ZERO, ordered
from tessera.numerics import dtypes
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter, is_value
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.rows.scatters import scattered
from tessera.torch.compiled.sizes import Unknown


def _check_index(c: Converter, index: Any) -> None:
    if c.w_dtype(index).name not in ("i32", "i64"):
        raise Unknown("an index that is a mask")


@row("gather.default")
def _gathered(c: Converter, x: Any, axis: int, index: Any, sparse_grad: bool = False) -> Any:
    _check_index(c, index)
    x, index = _with_axis(c, x), _with_axis(c, index)
    dims = c.dims(index)
    if len(dims) != len(c.dims(x)):
        raise Unknown("an index of another rank")
    axis %= len(dims)
    x = _cut(c, x, dims, axis)
    return c.w.take(x, [index if at == axis else at for at in range(len(dims))], dims)


def _with_axis(c: Converter, x: Any) -> Any:
    """Return a number as the one element of a row, anything else as it is."""
    return x if c.dims(x) else c.w.reshape(x, [ONE])


def _cut(c: Converter, x: Any, dims: Sequence[Dim], axis: int) -> Any:
    """Return a tensor with the first elements only, along all dimensions but one, so that it has given sizes there."""
    own = c.dims(x)
    wanted = [own[at] if at == axis else dim for at, dim in enumerate(dims)]
    if list(map(ordered, own)) == list(map(ordered, wanted)):
        return x
    return c.w.slice(x, [ZERO] * len(own), [1] * len(own), wanted)


@row("index_select.default")
def taken_along(c: Converter, x: Any, axis: int, index: Any) -> Any:
    """Return the parts at places along a dimension, which an index of one dimension names."""
    _check_index(c, index)
    dims = c.result_dims()
    if not c.dims(x) or not c.dims(index):
        raise Unknown("elements of a number")
    return c.w.take(x, _along(c, len(dims), axis % len(dims), index), dims)


def _along(c: Converter, rank: int, axis: int, index: Any) -> list[Any]:
    """Return the places of what an index of one dimension takes along a dimension."""
    thin = [ONE] * rank
    thin[axis] = c.dims(index)[0]
    return [c.w.reshape(index, thin) if at == axis else at for at in range(rank)]


@row("embedding.default")
def _embedded(c: Converter, weight: Any, index: Any, *_how: Any) -> Any:
    _check_index(c, index)
    dims = c.result_dims()
    return c.w.take(weight, [c.w.with_ones(index, [len(dims) - 1]), len(dims) - 1], dims)


@row("index.Tensor", "_unsafe_index.Tensor")
def indexed(c: Converter, x: Any, indices: Sequence[Any]) -> Any:
    """Return elements at places along some dimensions."""
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    for index in given.values():
        _check_index(c, index)
    return c.w.index(x, given)


@row("scatter.value", "scatter.src", "scatter_add.default")
def _scattered(c: Converter, x: Any, axis: int, index: Any, source: Any) -> Any:
    _check_index(c, index)
    x, index = _with_axis(c, x), _with_axis(c, index)
    source = _with_axis(c, source) if is_value(source) else source
    dims = c.dims(x)
    if len(c.dims(index)) != len(dims):
        raise Unknown("an index of another rank")
    axis %= len(dims)
    thin = [ONE if at == axis else dim for at, dim in enumerate(dims)]
    if list(map(ordered, thin)) != list(map(ordered, c.dims(index))):
        return scattered(c, x, axis, index, source, "sum" if "add" in str(c.node.target) else "put")
    if not is_value(source):
        source = c.ready(source, c.w_dtype(x))
    else:
        own = c.dims(source)
        source = c.w.slice(source, [ZERO] * len(own), [1] * len(own), thin)
    here = c.w.apply("eq", c.w.iota(dims, axis, dtypes.i64), c.w.cast(index, dtypes.i64))
    added = (
        c.elementwise(lambda f, a, b: f("add", a, b), (x, source), "DEFAULT") if "add" in str(c.node.target) else source
    )
    return c.w.apply("select", here, added, x, dtype=c.w_dtype(x))
