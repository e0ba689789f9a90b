"""Ops that make tensors of numbers, or of places."""

from __future__ import annotations

from typing import Any

from tessera.numerics.dtypes import f32, f64, i64
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row


def _full(c: Converter, value: Any) -> Any:
    dtype = c.result_dtype()
    number = c.ready(value, dtype)
    return c.w.broadcast_to(c.w.as_array(number, dtype), c.result_dims())


@row("full.default", "full_like.default", "new_full.default")
def _filled(c: Converter, _like: Any, *rest: Any, **_where: Any) -> Any:
    return _full(c, rest[-1])


@row("scalar_tensor.default")
def _one(c: Converter, value: Any, **_where: Any) -> Any:
    return _full(c, value)


@row(
    "empty.memory_format",
    "empty_permuted.default",
    "empty_like.default",
    "new_empty.default",
    "new_empty_strided.default",
)
@row("zeros.default", "zeros_like.default", "new_zeros.default", "_new_zeros_with_same_feature_meta.default")
def _zeros(c: Converter, *_like: Any, **_where: Any) -> Any:
    return _full(c, 0)


@row("ones.default", "ones_like.default", "new_ones.default")
def _ones(c: Converter, *_like: Any, **_where: Any) -> Any:
    return _full(c, 1)


@row("arange.start_step", "arange.default", "arange.start")
def _arange(c: Converter, *bounds: Any, **_where: Any) -> Any:
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    dtype = c.result_dtype()
    inner = dtype if dtype.is_int else i64
    if dtype.is_int:
        start, step = (int(one) if isinstance(one, float) else one for one in (start, step))
    if not all(isinstance(one, int) for one in (start, step)):
        inner = f32 if dtype.bits < 32 else f64
    found = c.w.cast(c.w.iota(c.result_dims(), 0, dtype if dtype.is_int else i64), inner)
    start, step = c.ready(start, inner), c.ready(step, inner)
    found = found if step == 1 else c.w.apply("mul", found, step)
    found = found if start == 0 else c.w.apply("add", found, start)
    return c.w.cast(found, dtype)
