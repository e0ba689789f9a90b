"""The arrays of a program: what they hold, how they lie in memory, and the guards around them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.numerics.dtypes import BY_NAME
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.meaning_values import FORMATS, Array
from tessera.tools.fuzz.types import Shape, elements, int_range, is_float

GUARD = 128
"""Bytes before and after an array that nobody may write."""


def contents(tensor: tree.Tensor, seed: int) -> Array:
    """Return what an array holds at the start, drawn from the seed and the tensor's name alone."""
    rng = random.Random(f"{seed}:{tensor.name}")
    count, kind = elements(tensor.shape), tensor.contents
    numpy = BY_NAME[tensor.dtype].numpy()
    raw = np.frombuffer(rng.randbytes(8 * count), np.uint64)
    if kind.kind == "perm":
        last = tensor.shape[-1] if tensor.shape else 1
        order = np.argsort(raw.reshape(-1, max(last, 1)), axis=1, kind="stable")
        return order.reshape(tensor.shape).astype(numpy)
    if tensor.dtype == "bool":
        return (raw % np.uint64(2) == 1).reshape(tensor.shape)
    if kind.kind == "wide":
        return _wide(tensor.dtype, raw).reshape(tensor.shape).astype(numpy)
    span = kind.high - kind.low + 1
    values = (raw % np.uint64(span)).astype(np.int64) + kind.low
    if kind.kind == "quarters":
        return (values / 4).reshape(tensor.shape).astype(np.float32).astype(numpy)
    result = values.reshape(tensor.shape).astype(numpy)
    if kind.kind == "special" and count:
        _specials(tensor.dtype, result, raw)
    return result


def _wide(dtype: str, raw: Array) -> Array:
    if not is_float(dtype):
        return raw.astype(BY_NAME[dtype].numpy())
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    scale = np.ldexp(1.0, (raw % np.uint64(5)).astype(np.int64) - 2)
    return ((unit * 2 - 1) * scale).astype(np.float32 if dtype != "f64" else np.float64)


def _specials(dtype: str, result: Array, raw: Array) -> None:
    """Put extreme values at about an eighth of the places."""
    values: list[float] | list[int]
    if is_float(dtype):
        form = FORMATS[dtype]
        values = [0.0, -0.0, form.largest, -form.largest, form.normal, 1.0 + 2 * form.unit]
        if form.overflow != "max":
            values.append(float("nan"))
        if form.overflow == "inf":
            values += [float("inf"), float("-inf")]
    else:
        low, high = int_range(dtype)
        values = [low, high, 0, 1, high - 1]
    flat, choice = result.reshape(-1), (raw >> np.uint64(8)) % np.uint64(8 * len(values))
    for number, value in enumerate(values):
        flat[choice == number] = np.asarray(value).astype(result.dtype)


@dataclass(frozen=True, slots=True)
class Guarded:
    """An array inside a larger block of memory.

    Args:
        base: the whole block, as elements.
        view: the array.
        free: which elements of the block are not the array's.
        before: the block as it was made.
    """

    base: Array
    view: Array
    free: Array
    before: Array

    def overrun(self) -> int:
        """Return how many bytes outside the array changed."""
        raw = self.base.view(np.uint8).reshape(len(self.base), -1)
        was = self.before.view(np.uint8).reshape(len(self.base), -1)
        return int(((raw != was).any(1) & self.free).sum())


def placed(values: Array, layout: tree.Layout) -> Guarded:
    """Return a copy of `values` that lies in memory as the layout says, with poison all around."""
    strides, start, length = offsets(values.shape, layout)
    item = values.dtype.itemsize
    guard = GUARD // item
    block = np.full((length + 2 * guard + layout.offset) * item + 64, 0xA5, np.uint8)
    skip = -block.ctypes.data % 64
    base = block[skip : skip + (length + 2 * guard + layout.offset) * item].view(values.dtype)
    first = guard + layout.offset + start
    view = _view(base[first:] if values.size else base[:0], values.shape, strides, item)
    free = np.ones(len(base), np.bool_)
    if values.size:
        _view(free[first:], values.shape, strides, 1)[...] = False
    view[...] = values
    return Guarded(base, view, free, base.copy())


def offsets(shape: Shape, layout: tree.Layout) -> tuple[tuple[int, ...], int, int]:
    """Return strides in elements, the first element's place and the number of elements spanned."""
    strides = [0] * len(shape)
    dense = 1
    for axis in reversed(layout.order):
        step = abs(layout.steps[axis])
        strides[axis] = dense * step
        dense *= max(shape[axis], 1) * step
        if axis == layout.order[-1]:
            dense = -(-dense // layout.pitch) * layout.pitch
    start = 0
    for axis, step in enumerate(layout.steps):
        if step < 0:
            start += strides[axis] * max(shape[axis] - 1, 0)
            strides[axis] = -strides[axis]
    return tuple(strides), start, dense


def _view(flat: Array, shape: Shape, strides: tuple[int, ...], item: int) -> Array:
    # From here on, strides may run backwards: `as_strided` does not look at where the memory ends.
    # It does not know the narrow float types either.
    make: Any = np.lib.stride_tricks.as_strided
    raw = make(flat.view(f"u{item}"), shape, tuple(stride * item for stride in strides))
    return raw.view(flat.dtype)
