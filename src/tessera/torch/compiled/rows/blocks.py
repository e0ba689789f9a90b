"""Blocks of images as columns of a matrix (`F.unfold`), and sums of such blocks (`F.fold`).

What lies outside of an array is taken as 0: the padding of images, and blocks or elements of them that there are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

from tessera.numerics.dtypes import computed_in, i64
from tessera.target.dims import Dim
from tessera.torch.compiled.convert import Converter
from tessera.torch.compiled.registry import row
from tessera.torch.compiled.sizes import Unknown, fixed

MOST = 32
"""Blocks that an element may be in: each is read for itself."""
_RANK = 2


def _blocks(sizes: Sequence[Dim], kernel: Sequence[int], dilation: Any, padding: Any, stride: Any) -> list[Dim]:
    """Return how many blocks there are along each dimension of images."""
    given = zip(sizes, kernel, dilation, padding, stride, strict=True)
    return [(size + (2 * pad - apart * (each - 1) - 1)) // step + 1 for size, each, apart, pad, step in given]


def _fixed(*given: Sequence[Any]) -> list[list[int]]:
    return [[fixed(one) for one in each] for each in given]


@row("im2col.default")
def _columns(c: Converter, x: Any, *given: Sequence[Any]) -> Any:
    kernel, dilation, padding, stride = _fixed(*given)
    own = list(c.dims(x))
    first = len(own) - _RANK
    counts = _blocks(own[first:], kernel, dilation, padding, stride)
    dims = [*own[:first], *(Dim((), each) for each in kernel), *counts]
    places: list[Any] = list(range(len(own)))
    for axis in range(_RANK):
        start = c.w.apply("mul", c.w.iota(dims, len(own) + axis, i64), stride[axis])
        inner = c.w.apply("mul", c.w.iota(dims, first + axis, i64), dilation[axis])
        places[first + axis] = c.w.apply("sub", c.w.apply("add", start, inner), padding[axis])
    return c.w.reshape(c.w.take(x, places, dims), c.result_dims())


@row("col2im.default")
def _image(c: Converter, x: Any, _size: Any, *given: Sequence[Any]) -> Any:
    """Write a sum of blocks: each element takes what it has of every block that it can be in.

    Raises:
        Unknown: it can be in too many.
    """
    kernel, dilation, padding, stride = _fixed(*given)
    dims = list(c.result_dims())
    first = len(dims) - _RANK
    counts = _blocks(dims[first:], kernel, dilation, padding, stride)
    shape = [*dims[:first], *(Dim((), each) for each in kernel), *counts]
    source = c.w.cast(c.w.reshape(x, shape), computed_in(c.w_dtype(x)))
    spans = [(each - 1) * apart + 1 for each, apart in zip(kernel, dilation, strict=True)]
    shares = [-(-span // step) for span, step in zip(spans, stride, strict=True)]
    if prod(shares) > MOST:
        raise Unknown("elements in many blocks")
    parts: list[Any] = []
    for back in product(*map(range, shares)):
        inner, blocks = list[Any](), list[Any]()
        for axis, less in enumerate(back):
            at = c.w.apply("add", c.w.iota(dims, first + axis, i64), padding[axis])
            block = c.w.apply("sub", c.w.apply("floordiv", at, stride[axis]), less)
            place = c.w.apply("sub", at, c.w.apply("mul", block, stride[axis]))
            inner.append(_element(c, place, dilation[axis]))
            blocks.append(block)
        parts.append(c.w.take(source, [*range(first), *inner, *blocks], dims))
    return reduce(partial(c.w.apply, "add"), parts)


def _element(c: Converter, place: Any, apart: int) -> Any:
    """Return which element of a block a place is, -1 for a gap between two."""
    if apart == 1:
        return place
    here = c.w.apply("eq", c.w.apply("mod", place, apart), 0)
    return c.w.apply("select", here, c.w.apply("floordiv", place, apart), -1, dtype=i64)
