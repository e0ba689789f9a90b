"""What an array is, whichever library's: shape, strides, dtype, device; and how one kind of array is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.runtime.device import Device

Traits = tuple[Any, ...]
"""Raw, hashable facts of an array: equal traits mean an equal launch."""


@dataclass(frozen=True, slots=True)
class ArrayView:
    """What traits mean.

    Args:
        shape: size of each dimension.
        strides: step of each dimension, in elements.
        dtype: element type.
        device: where the memory is.
        readonly: whether a kernel must not store to it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    readonly: bool

    def span(self) -> tuple[int, int]:
        """Return where the memory of the elements begins and ends, in bytes from the first one; nothing for none."""
        if 0 in self.shape:
            return 0, 0
        steps = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        low, high = sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
        return low * self.dtype.bytes, (high + 1) * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class Reader:
    """How one kind of array is read.

    Args:
        read: gives address of the first element, traits, and an object that keeps the memory alive (or None).
        decode: gives the meaning of the traits; raises CallError.
        facts: gives what tells one plan of a library's op from another, in less time than `read`: dtype, shape,
            strides, device, and the address modulo 16 where that counts. None where nothing is faster.
        place: gives what of a result tells one plan from another: its dtype, and where its rows begin if that counts.
    """

    read: Callable[[Any], tuple[int, Traits, object]]
    decode: Callable[[Traits], ArrayView]
    facts: Callable[[Any], Traits] | None = None
    place: Callable[[Any], Traits] | None = None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)
