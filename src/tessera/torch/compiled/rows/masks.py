"""Elements put where a mask is true."""

from __future__ import annotations

from functools import partial
from typing import Any

from tessera.ir.graph.types import ONE, ArrayType, product
from tessera.numerics import dtypes
from tessera.ops.running.steps import CUMSUM
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row


@row("masked_scatter.default")
def _filled(c: Converter, x: Any, mask: Any, source: Any) -> Any:
    """Write elements of a source in order where a mask is true."""
    dims = c.result_dims()
    here, x = c.w.broadcast_to(mask, dims), c.w.broadcast_to(x, dims)
    values = c.w.reshape(source, [product(c.dims(source))])
    found = c.w.take(values, [_number(c, here)], dims)
    return c.w.apply("select", here, found, x, dtype=c.w_dtype(x))


def _number(c: Converter, mask: Any) -> Any:
    """Return the number of each place of a mask among those where it is true, from 0."""
    dims = c.dims(mask)
    size = product(dims)
    wide = dtypes.i32 if size.is_static and size.scale < 2**31 else dtypes.i64
    flat = c.copied(c.w.reshape(c.w.cast(mask, dtypes.u8), [size]))
    (count,) = c.library(partial(_counted, wide.name), [flat], [ArrayType.of([size], wide)])
    return c.w.apply("sub", c.w.reshape(count, dims), 1)


def _counted(wide: str, x: Any) -> Any:
    return CUMSUM.fresh(x.reshape(1, -1), wide)[0].reshape(-1)


def put(c: Converter, x: Any, axis: int, mask: Any, values: Any, accumulate: bool) -> Any:
    """Return an array with values put where a mask is true, or added to what is there.

    Args:
        c: the converter.
        x: the array.
        axis: the first of the array's dimensions that the mask has.
        mask: truth values.
        values: what broadcasts to the selected elements, which have one dimension for all of the mask's.
        accumulate: whether values are added.
    """
    dims, dtype, covered = c.dims(x), c.w_dtype(x), len(c.dims(mask))
    after = len(dims) - axis - covered
    here = c.w.with_ones(mask, range(covered, covered + after))
    found = _spread(c, dims, axis, mask, c.w.cast(values, dtype))
    if accumulate:
        found = c.w.apply("or" if dtype.kind == "bool" else "add", x, found)
    return c.w.apply("select", here, found, x, dtype=dtype)


def _spread(c: Converter, dims: Any, axis: int, mask: Any, values: Any) -> Any:
    """Return values at the places of an array for which they are; others have any numbers."""
    own, covered = c.dims(values), len(c.dims(mask))
    after = len(dims) - axis - covered
    at = len(own) - after - 1  # their dimension for what the mask selects
    if at < 0:
        return values
    if own[at] == ONE:
        return c.w.reshape(values, [*own[:at], *[ONE] * covered, *own[at + 1 :]])
    values = c.w.broadcast_to(values, [*dims[:axis], own[at], *dims[axis + covered :]])
    number = c.w.with_ones(_number(c, mask), range(covered, covered + after))
    return c.w.take(values, [*range(axis), number, *range(axis + covered, len(dims))], dims)
