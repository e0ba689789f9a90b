"""The memory of an emulated GPU: one block of bytes for device memory, and each program's shared and local memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.tools.emulate.errors import Fault

Array = Any
"""A NumPy array; of a register, one element a thread."""

where: Callable[..., Array] = np.where
"""NumPy's, of whose result nothing is said."""

GLOBAL_BASE = 0x7F40_0000_0000
PARAM_BASE = 0x1_0000_0000
SHARED_BASE = 1024
"""Where a program's shared memory begins: the driver keeps the first kilobyte from sm_80 on."""
LOCAL_BASE = 64
RANK_SHIFT = 24
"""In a cluster, the bits of a shared address from here on name the program."""

POISON = 0xCB
"""What memory holds that nothing wrote."""
NAN = 0xFF
"""What some of it holds: in every float dtype NaN, which shows where it is multiplied by zero, too."""
_APART = 512


class Bytes:
    """Bytes that are accessed as numbers of any width.

    Args:
        size: how many.
    """

    def __init__(self, size: int) -> None:
        self.data: Array = np.full(-(-max(size, 1) // 16) * 16, POISON, np.uint8)

    def load(self, at: Array, width: int) -> Array:
        """Return the unsigned numbers at byte offsets that are multiples of their width."""
        return self.data.view(f"u{width}")[at // width]

    def store(self, at: Array, values: Array) -> None:
        """Write numbers; of several for one place the last one stays."""
        width = values.dtype.itemsize
        self.data.view(f"u{width}")[at // width] = values


class Device:
    """Device memory: arrays far from each other, of which each byte may be touched or not."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Array, Array]] = []
        self._end = _APART
        self.bytes = Bytes(0)
        self._valid = Bytes(0)

    def add(self, data: Array, allowed: Array, phase: int = 0) -> int:
        """Make room for an array of bytes; return the address of its first one.

        Args:
            data: the bytes.
            allowed: which of them may be touched.
            phase: the address modulo 512, so that it is as aligned as it is elsewhere.
        """
        start = -(-self._end // _APART) * _APART + phase % _APART
        self._parts.append((start, data, allowed))
        self._end = start + len(data) + _APART
        return GLOBAL_BASE + start

    def build(self) -> None:
        """Put the arrays in place."""
        self.bytes, self._valid = Bytes(self._end), Bytes(self._end)
        self._valid.data[:] = 0
        for start, data, allowed in self._parts:
            self.bytes.data[start : start + len(data)] = data
            self._valid.data[start : start + len(data)] = np.where(allowed, 0xFF, 0).astype(np.uint8)

    def back(self, number: int) -> Array:
        """Return the bytes that an array has now."""
        start, data, _ = self._parts[number]
        return self.bytes.data[start : start + len(data)]

    def offsets(self, addresses: Array, width: int, partly: bool = False) -> Array:
        """Return where addresses lie.

        Args:
            addresses: of numbers.
            width: their bytes.
            partly: whether it is enough that one byte of each may be touched.

        Raises:
            Fault: one lies outside of all arrays, or is not a multiple of the width.
        """
        at = addresses.astype(np.int64) - GLOBAL_BASE
        outside = (at < 0) | (at > self._end - width)
        if outside.any():
            raise Fault(f"outside of all arrays: address {int(addresses[outside][0]):#x}")
        if (at % width).any():
            raise Fault(f"{width} bytes at address {int(addresses[at % width != 0][0]):#x}, which is no multiple")
        most = (1 << 8 * min(width, 8)) - 1
        parts = [self._valid.load(at + part, min(width, 8)) for part in range(0, width, 8)]
        allowed = np.any([valid > 0 for valid in parts], 0) if partly else np.all([valid == most for valid in parts], 0)
        if not allowed.all():
            raise Fault(f"outside of all arrays: address {int(addresses[~allowed][0]):#x}")
        return at


class Shared:
    """The shared memory of programs that run together.

    Args:
        programs: how many.
        size: bytes of each.
        threads: threads of each.
        cluster: how many of them reach each other's memory.
    """

    def __init__(self, programs: int, size: int, threads: int, cluster: int) -> None:
        self.size = size
        self._stride = -(-max(size, 1) // 1024) * 1024
        self.bytes = Bytes(programs * self._stride)
        self.bytes.data.reshape(programs, self._stride)[::2] = NAN  # of programs that run together, every second
        self._program: Array = np.repeat(np.arange(programs, dtype=np.int64), threads)
        self._cluster = cluster

    def offsets(self, addresses: Array, lanes: Array, width: int, remote: bool = False) -> Array:
        """Return where shared addresses of lanes lie.

        Raises:
            Fault: one lies outside of the memory, or is not a multiple of the width.
        """
        wide = addresses.astype(np.int64)
        rank, at = wide >> RANK_SHIFT, (wide & ((1 << RANK_SHIFT) - 1)) - SHARED_BASE
        wrong = (at < 0) | (at > self.size - width) | (rank >= self._cluster)
        own = self._program[lanes]
        if not remote:
            wrong |= rank != own % self._cluster
        if wrong.any():
            raise Fault(f"outside of shared memory: address {int(wide[wrong][0]):#x} of {self.size} bytes")
        if (at % width).any():
            raise Fault(f"{width} bytes at shared address {int(wide[at % width != 0][0]):#x}, which is no multiple")
        return (own - own % self._cluster + rank) * self._stride + at

    def place(self, program: int) -> int:
        """Return where a program's memory begins."""
        return program * self._stride


class Local:
    """The local memory of threads.

    Args:
        lanes: how many threads.
        size: bytes of each.
    """

    def __init__(self, lanes: int, size: int) -> None:
        self._size = -(-max(size, 1) // 16) * 16
        self.bytes = Bytes(lanes * self._size)

    def offsets(self, addresses: Array, lanes: Array, width: int) -> Array:
        """Return where local addresses of lanes lie; raises as `Shared.offsets`."""
        at = addresses.astype(np.int64) - LOCAL_BASE
        if ((at < 0) | (at > self._size - width) | (at % width != 0)).any():
            raise Fault("outside of local memory, or at no multiple of its width")
        return lanes * self._size + at
