"""What parts of tiles mean, and elements of tiles that indices pick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tessera.tools.fuzz.meaning_values import Array, Val

FAR = 1 << 40
"""Beyond this a start is outside of every tile, whatever is added to it."""


def part(value: Val, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Val:
    """Return the elements from `starts` on, `steps` apart; zeros outside. A size of 0 takes one, without its dimension.

    Args:
        value: the tile.
        starts: the first place along each dimension.
        sizes: how many elements.
        steps: how far they are apart.
    """
    rows = zip(starts, sizes, steps, strict=True)
    places = [max(min(start, FAR), -FAR) + step * np.arange(max(size, 1)) for start, size, step in rows]
    picked = _picked(value, np.meshgrid(*places, indexing="ij"), np.zeros((), value.data.dtype))
    return picked.moved(lambda data: data.reshape([size for size in sizes if size]))


def take(value: Val, index: Val, axis: int | None, fill: Array, along: bool) -> Val:
    """Return slices, or `along` a dimension elements, at the places in an index.

    Args:
        value: the tile.
        index: the places.
        axis: the dimension; None counts elements in row-major order.
        fill: what is picked outside.
        along: whether the index has the tile's other dimensions.
    """
    if axis is None:
        value, axis = value.moved(lambda data: data.reshape(-1)), 0
    shape, wanted = value.shape, index.data.astype(object)
    if along:
        others = list(np.indices(index.shape))
        others[axis] = wanted
        found, known = _picked(value, others, fill), index.mask()
    else:
        before, after = shape[:axis], shape[axis + 1 :]
        result = (*before, *index.shape, *after)
        free = list(np.indices(result))
        free[axis : axis + index.data.ndim] = [_spread(wanted, len(before), result)]
        found, known = _picked(value, free, fill), _spread(index.mask(), len(before), result)
    return replace(found, known=found.mask() & known)


def _spread(array: Array, first: int, shape: tuple[int, ...]) -> Array:
    """Repeat an array whose dimensions are those of a shape from `first` on."""
    after = len(shape) - first - array.ndim
    return np.broadcast_to(array.reshape(*([1] * first), *array.shape, *([1] * after)), shape)


def _picked(value: Val, places: Sequence[Array], fill: Array) -> Val:
    """Return the elements at places, an array of them for each dimension; `fill` outside."""
    inside = np.ones(places[0].shape, bool)
    for at, size in zip(places, value.shape, strict=True):
        inside &= ((at >= 0) & (at < size)).astype(bool)
    safe = tuple(np.where(inside, at, 0).astype(np.int64) for at in places)
    err, terms = (
        None if part is None else np.where(inside, np.broadcast_to(part, value.shape)[safe], 0.0)
        for part in (value.err, value.terms)
    )
    data, known = np.where(inside, value.data[safe], fill), value.mask()[safe] | ~inside
    return Val(value.dtype, data, err, known, terms=terms)
