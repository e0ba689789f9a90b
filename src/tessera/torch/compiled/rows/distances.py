"""Distances between all rows of two matrices."""

from __future__ import annotations

import math
from typing import Any

from tessera.numerics.dtypes import computed_in
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.powers import root
from tessera.torch.compiled.registry import row


def _apart(c: Converter, a: Any, b: Any) -> Any:
    """Return the difference of each row of one and each row of another: (..., P, R, M)."""
    wide = [c.w.cast(value, computed_in(c.w_dtype(value))) for value in (a, b)]
    ranks = [len(c.dims(value)) for value in (a, b)]
    return c.w.apply("sub", c.w.with_ones(wide[0], [ranks[0] - 1]), c.w.with_ones(wide[1], [ranks[1] - 2]))


@row("_cdist_forward.default")
def _distances(c: Converter, a: Any, b: Any, p: float, _mode: Any = None) -> Any:
    apart = _apart(c, a, b)
    axis = [len(c.dims(apart)) - 1]
    size = c.w.apply("abs", apart)
    if p == 2:
        return c.w.apply("sqrt", c.w.reduce("sum", c.w.apply("mul", apart, apart), axis))
    if p == 1:
        return c.w.reduce("sum", size, axis)
    if p == math.inf:
        return c.w.reduce("max", size, axis)
    if p == 0:
        return c.w.reduce("sum", c.w.cast(c.truth(apart), c.w_dtype(apart)), axis)
    return root(c, c.w.reduce("sum", root(c, size, float(p)), axis), 1 / p)


@row("_cdist_backward.default")
def _distances_back(c: Converter, g: Any, a: Any, b: Any, p: float, found: Any) -> Any:
    """Write the gradient by the first of the matrices."""
    if p == 0:
        return c.w.broadcast_to(c.w.full(0, c.w_dtype(a)), c.result_dims())
    apart = _apart(c, a, b)
    rank, dtype = len(c.dims(g)), c.w_dtype(apart)
    g, found = (c.w.with_ones(c.w.cast(value, dtype), [rank]) for value in (g, found))
    return c.w.reduce("sum", _slope(c, apart, g, found, float(p)), [rank - 1])


def _slope(c: Converter, apart: Any, g: Any, found: Any, p: float) -> Any:
    """Return the part of a gradient that each difference has: 0 where a distance is."""
    dtype = c.w_dtype(apart)
    sign = c.w.apply("sub", _as_float(c, "gt", apart), _as_float(c, "lt", apart))
    if p == 1:
        return c.w.apply("mul", sign, g)
    size = c.w.apply("abs", apart)
    if p == math.inf:
        is_largest = c.w.apply("eq", size, found)
        return c.w.apply("mul", sign, c.w.apply("select", is_largest, g, 0.0, dtype=dtype))
    if p == 2:
        none, ratio = c.w.apply("eq", found, 0.0), c.w.apply("mul", apart, c.w.apply("div", g, found))
    else:
        none = c.w.apply("eq", found if p > 1 else c.w.apply("minimum", found, size), 0.0)
        ratio = root(c, c.w.apply("div", size, found), p - 1)
        ratio = c.w.apply("mul", c.w.apply("mul", sign, ratio), g)
    return c.w.apply("select", none, 0.0, ratio, dtype=dtype)


def _as_float(c: Converter, fn: str, value: Any) -> Any:
    return c.w.cast(c.w.apply(fn, value, 0.0), c.w_dtype(value))
