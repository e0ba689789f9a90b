"""Tensor maps as the copy engine reads them: boxes of arrays, with zeros outside.

Source: PTX ISA 9.2, "Tensors"; CUDA Driver API, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.numerics.dtypes import dtype_named
from tessera.target.artifact import Parameter
from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.memory import Device

Array = Any

MAP_BYTES = 128
_SWIZZLED = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An array that boxes of are copied.

    Args:
        pointer: its address.
        sizes: of its dimensions, the contiguous one first.
        steps: bytes between elements of each.
        box: elements of a box along each.
        width: bytes of an element.
        rounds: whether f32 is rounded to tf32.
    """

    pointer: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    box: tuple[int, ...]
    width: int
    rounds: bool

    @property
    def swizzle(self) -> int:
        """The bytes of a row where rows are swizzled, else 0."""
        row = self.box[0] * self.width
        return row if row in _SWIZZLED else 0

    @property
    def bytes(self) -> int:
        """The bytes of a box."""
        return int(np.prod(self.box)) * self.width

    def places(self, first: Sequence[int]) -> tuple[Array, Array]:
        """Return the address of each element of a box at coordinates, and whether it lies in the array.

        Raises:
            Fault: a row of the box does not begin at a multiple of 16 bytes, an illegal instruction on an H200.
        """
        if first[0] * self.width % 16:
            raise Fault(f"a box of {self.width} bytes an element from place {first[0]} of a row on")
        address = np.full(1, self.pointer, np.int64)
        inside = np.ones(1, bool)
        for start, size, step, length in zip(first, self.sizes, self.steps, self.box, strict=True):
            at = start + np.arange(length)
            address = (address[None, :] + (at * step)[:, None]).reshape(-1)
            inside = (inside[None, :] & ((at >= 0) & (at < size))[:, None]).reshape(-1)
        return address, inside

    def load(self, device: Device, first: Sequence[int]) -> Array:
        """Return the bytes of a box: elements by bytes."""
        address, inside = self.places(first)
        found = np.zeros((len(address), self.width), np.uint8)
        at = device.offsets(address[inside].astype(np.uint64), self.width)
        found[inside] = device.bytes.data[at[:, None] + np.arange(self.width)]
        return _rounded(found) if self.rounds else found

    def store(self, device: Device, first: Sequence[int], values: Array) -> None:
        """Write a box: elements by bytes; what lies outside is left out, but for the last 16 bytes of a row.

        Raises:
            Fault: the box begins before the array, an illegal instruction on an H200.
        """
        if min(first) < 0:
            raise Fault(f"a bulk store of a box from {tuple(first)} on")
        whole = -(-self.sizes[0] * self.width // 16) * 16 // self.width
        address, inside = replace(self, sizes=(whole, *self.sizes[1:])).places(first)
        at = device.offsets(address[inside].astype(np.uint64), self.width)
        device.bytes.data[at[:, None] + np.arange(self.width)] = values[inside]

    def shared_places(self, start: int, offset: int) -> Array:
        """Return where the bytes of a box lie in shared memory: elements by bytes.

        Args:
            start: where the program's memory begins among all bytes.
            offset: the address in it, which decides the swizzle.
        """
        if offset % 128:
            raise Fault(f"a bulk copy at shared address {offset:#x}, which is no multiple of 128")
        linear = offset + np.arange(self.bytes)
        return (start + swizzled(linear, self.swizzle)).reshape(-1, self.width)


def swizzled(address: Array, row: int) -> Array:
    """Return addresses with 16-byte units exchanged as in rows of 128, 64 or 32 bytes; 0 leaves them."""
    if not row:
        return address
    return address ^ (address >> 7 & (row // 16 - 1)) << 4


def _rounded(found: Array) -> Array:
    """Return the bytes of f32 rounded to the nearest tf32, ties to even."""
    bits = np.ascontiguousarray(found).view(np.uint32)
    half = np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    special = bits & np.uint32(0x7F800000) == np.uint32(0x7F800000)
    return np.where(special, bits, (bits + half) & np.uint32(0xFFFFE000)).view(np.uint8)


class Maps:
    """The tensor maps of a launch. A descriptor holds the number of its map."""

    def __init__(self) -> None:
        self._all: list[TensorMap] = []

    def encode(self, param: Parameter, pointer: int, sizes: Sequence[int], strides: Sequence[int]) -> bytes:
        """Return the descriptor of an array."""
        dtype = dtype_named(param.dtype)
        dims = tuple(sizes[axis] for axis in param.order)
        steps = (dtype.bytes, *(strides[axis] * dtype.bytes for axis in param.order[1:]))
        if 0 in sizes:
            dims = (0,) * len(dims)
        for step, size in zip(steps[1:], dims[1:], strict=True):
            if size > 1 and (step % 16 or step <= 0):
                raise Fault(f"a tensor map of an array with a stride of {step} bytes")
        if pointer % 16:
            raise Fault(f"a tensor map of an array at {pointer:#x}")
        self._all.append(TensorMap(pointer, dims, steps, tuple(param.box), dtype.bytes, dtype.name == "tf32"))
        return (len(self._all) - 1).to_bytes(MAP_BYTES, "little")

    def decode(self, data: bytes) -> TensorMap:
        """Return the map of a descriptor.

        Raises:
            Fault: it is none.
        """
        number = int.from_bytes(data, "little")
        if len(data) != MAP_BYTES or number >= len(self._all):
            raise Fault("what is read as a tensor map is none")
        return self._all[number]
