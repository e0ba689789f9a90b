"""Ops that move no number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.ir.graph.types import ONE, ZERO
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import dim_of


@row("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "unsqueeze.default")
def _reshaped(c: Converter, x: Any, _sizes: Any) -> Any:
    return c.w.reshape(x, c.result_dims())


@row("squeeze.dims", "squeeze.dim", "squeeze.default")
def _squeezed(c: Converter, x: Any, _dims: Any = None) -> Any:
    return c.w.reshape(x, c.result_dims())


@row("permute.default")
def _permuted(c: Converter, x: Any, perm: Sequence[int]) -> Any:
    return c.w.transpose(x, [axis % len(perm) for axis in perm])


@row("transpose.int")
def _transposed(c: Converter, x: Any, first: int, second: int) -> Any:
    order = list(range(len(c.dims(x))))
    order[first], order[second] = order[second], order[first]
    return c.w.transpose(x, order)


@row("t.default")
def _flipped(c: Converter, x: Any) -> Any:
    return c.w.transpose(x, list(reversed(range(len(c.dims(x))))))


@row("expand.default")
def _expanded(c: Converter, x: Any, _sizes: Any, implicit: bool = False) -> Any:
    return c.w.broadcast_to(x, c.result_dims())


@row("select.int")
def _selected(c: Converter, x: Any, axis: int, index: Any) -> Any:
    dims = list(c.dims(x))
    axis %= len(dims)
    start = _start(index, dims[axis])
    dims[axis] = ONE
    starts = [start if other == axis else ZERO for other in range(len(dims))]
    return c.w.without(c.w.slice(x, starts, [1] * len(dims), dims), [axis])


def _start(index: Any, size: Dim) -> Dim:
    """Return where a slice starts."""
    if not isinstance(index, int):
        return dim_of(index)
    if index < 0:
        return size + index if not size.is_static else Dim((), max(index + size.scale, 0))
    return Dim((), min(index, size.scale) if size.is_static else index)


@row("slice.Tensor")
def _sliced(c: Converter, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dims, wanted = list(c.dims(x)), c.result_dims()
    axis %= len(dims)
    if wanted[axis] == dims[axis] and step == 1:
        return x
    at = _start(0 if start is None else start, dims[axis])
    dims[axis] = wanted[axis]
    starts = [at if other == axis else ZERO for other in range(len(dims))]
    return c.w.slice(x, starts, [step if other == axis else 1 for other in range(len(dims))], dims)


@row("split_with_sizes.default", "split.Tensor")
def _split(c: Converter, x: Any, _sizes: Any, axis: int = 0) -> Any:
    dims = list(c.dims(x))
    axis %= len(dims)
    parts: list[Any] = []
    start = ZERO
    for shape in c.results_dims():
        starts = [start if other == axis else ZERO for other in range(len(dims))]
        parts.append(c.w.slice(x, starts, [1] * len(dims), shape))
        start = start + shape[axis]
    return parts


@row("unbind.int")
def _unbound(c: Converter, x: Any, axis: int = 0) -> Any:
    return [_selected(c, x, axis, index) for index in range(len(c.results_dims()))]


@row("cat.default")
def _joined(c: Converter, tensors: Sequence[Any], axis: int = 0) -> Any:
    dtype = c.result_dtype()
    given = [c.w.cast(one, dtype) for one in tensors]
    return c.w.concat(given, axis % len(c.dims(given[0])))
