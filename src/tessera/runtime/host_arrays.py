"""NumPy arrays: new ones, 64-byte aligned, and those over memory that somebody else owns."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tessera.entry import layout
from tessera.entry.tables import ArrayGuard
from tessera.errors import CallError
from tessera.numerics.dtypes import DType
from tessera.runtime.host_cache import LEAST_BYTES, host_cache
from tessera.runtime.shortage import memory_for
from tessera.runtime.views import ArrayView

_ALIGNMENT = 64
_MOST_DIMENSIONS = 64  # NumPy's


def aligned(shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a new array whose elements are not set.

    Raises:
        CallError: `bad-shape`.
        ResourceError: `out-of-memory`.
    """
    numpy_dtype = dtype.numpy()
    size = numpy_dtype.itemsize
    for extent in shape:
        size *= extent or 1  # as NumPy counts
    if len(shape) > _MOST_DIMENSIONS or max((*shape, size)) >= 2**62:
        raise CallError(
            f"an array of shape {shape!r:.80} is larger than memory",
            code="bad-shape",
            help="use a smaller one",
        )
    size = 0 if 0 in shape else size
    with memory_for(shape):
        if size >= LEAST_BYTES and host_cache().limit:
            return np.ndarray(shape, numpy_dtype, host_cache().buffer(size))
        memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(numpy_dtype).reshape(shape)


def over_memory(pointer: int, view: ArrayView, owner: object) -> Any:
    """Return a NumPy array over CPU memory that `owner` keeps alive."""
    step = view.dtype.bytes
    low = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True) if stride < 0)
    high = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True) if stride > 0)
    if 0 in view.shape:
        return np.empty(view.shape, view.dtype.numpy())
    buffer: Any = (ctypes.c_char * ((high - low + 1) * step)).from_address(pointer + low * step)
    buffer._owner = owner  # NumPy keeps the buffer alive, the buffer its owner
    strides = tuple(stride * step for stride in view.strides)
    array = np.ndarray(view.shape, view.dtype.numpy(), buffer, offset=-low * step, strides=strides)
    array.flags.writeable = not view.readonly
    return array


def borrow(source: Any, pointer: int, view: ArrayView, keep: object) -> Any:
    """Return `source` if it is a NumPy array, else one over its memory."""
    return cast(Any, source) if isinstance(source, np.ndarray) else over_memory(pointer, view, (source, keep))


def guard_of(array: Any) -> ArrayGuard | None:
    """Return what the compiled entry checks of a NumPy array, None for other arrays and for subclasses."""
    if type(array) is not np.ndarray:
        return None
    return ArrayGuard(
        kind=layout.NUMPY,
        types=(id(np.ndarray),),
        dtype=id(array.dtype),
        shift=array.dtype.itemsize.bit_length() - 1,
        keep=(array.dtype,),
    )


class InPlace:
    """Arrays of the host as they are: what is stored is stored.

    Args:
        pointers: their addresses.
        views: what lies there.
        keep: what keeps the memory alive.
    """

    def __init__(self, pointers: Sequence[int], views: Sequence[ArrayView], keep: Sequence[object]) -> None:
        owner = tuple(keep)
        self.arrays = [over_memory(p, view, owner) for p, view in zip(pointers, views, strict=True)]

    def write_back(self) -> None:
        """Do nothing."""
