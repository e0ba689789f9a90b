"""Ops that make tensors of numbers, or of places."""

from __future__ import annotations

from typing import Any

from tessera.numerics.dtypes import i64
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown


def _full(c: Converter, value: Any) -> Any:
    if not isinstance(value, int | float):
        raise Unknown("a number that is known when the graph runs")
    return c.w.broadcast_to(c.w.full(value, c.result_dtype()), c.result_dims())


@row("full.default", "full_like.default", "new_full.default")
def _filled(c: Converter, _like: Any, *rest: Any, **_where: Any) -> Any:
    return _full(c, rest[-1])


@row("scalar_tensor.default")
def _one(c: Converter, value: Any, **_where: Any) -> Any:
    return _full(c, value)


@row("empty.memory_format", "empty_like.default", "new_empty.default", "new_empty_strided.default")
@row("zeros.default", "zeros_like.default", "new_zeros.default")
def _zeros(c: Converter, *_like: Any, **_where: Any) -> Any:
    return _full(c, 0)


@row("ones.default", "ones_like.default", "new_ones.default")
def _ones(c: Converter, *_like: Any, **_where: Any) -> Any:
    return _full(c, 1)


@row("arange.start_step", "arange.default", "arange.start")
def _arange(c: Converter, *bounds: Any, **_where: Any) -> Any:
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    dtype = c.result_dtype()
    if not isinstance(start, int) or not isinstance(step, int):
        raise Unknown("places that are no whole numbers")
    found = c.w.iota(c.result_dims(), 0, dtype if dtype.is_int else i64)
    found = found if step == 1 else c.w.apply("mul", found, step)
    found = found if start == 0 else c.w.apply("add", found, start)
    return c.w.cast(found, dtype)
