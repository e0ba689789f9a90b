"""Distances between all rows of two matrices."""

from __future__ import annotations

import math
from typing import Any

from tessera.numerics.dtypes import computed_in
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.powers import root
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown


def _apart(c: Converter, a: Any, b: Any) -> Any:
    """Return the difference of each row of one and each row of another: (..., P, R, M)."""
    wide = [c.w.cast(value, computed_in(c.w_dtype(value))) for value in (a, b)]
    rank = len(c.dims(a))
    return c.w.apply("sub", c.w.with_ones(wide[0], [rank - 1]), c.w.with_ones(wide[1], [rank - 2]))


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
    if p not in (1, 2):
        raise Unknown("a gradient of other distances")
    apart = _apart(c, a, b)
    rank = len(c.dims(g))
    slope = c.w.apply("sub", _as_float(c, "gt", apart), _as_float(c, "lt", apart)) if p == 1 else apart
    g, found = (c.w.cast(value, c.w_dtype(apart)) for value in (g, found))
    if p == 2:
        g = c.w.apply("select", c.w.apply("eq", found, 0.0), 0.0, c.w.apply("div", g, found), dtype=c.w_dtype(apart))
    return c.w.reduce("sum", c.w.apply("mul", slope, c.w.with_ones(g, [rank])), [rank - 1])


def _as_float(c: Converter, fn: str, value: Any) -> Any:
    return c.w.cast(c.w.apply(fn, value, 0.0), c.w_dtype(value))
