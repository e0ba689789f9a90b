"""What threads touch in shared memory, and what the copy engine and warpgroup products do there: two proxies.

Neither a barrier nor an arrival orders accesses of different proxies. Between them stands `fence.proxy.async`: in the
thread that touched the bytes, before what tells the one that starts the other access; or in that one, behind it.

Source: PTX ISA 9.2, "Proxies" and "Async proxy".
"""

from __future__ import annotations

import numpy as np

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.memory import Array

WARP = 32
_READ, _WRITTEN = 0, 1


class Proxies:
    """Which warp last touched each byte of shared memory, and of which fences each warp knows.

    Args:
        size: bytes.
        lanes: threads.
    """

    def __init__(self, size: int, lanes: int) -> None:
        warps = -(-lanes // WARP)
        self._by: Array = np.zeros((2, size), np.int32)
        self._when: Array = np.zeros((2, size), np.int64)
        self._known: Array = np.zeros((warps, warps), np.int64)
        self._told: dict[object, Array] = {}
        self._now = 0

    def touch(self, places: Array, lanes: Array, writes: bool) -> None:
        """Note what threads touch.

        Args:
            places: of bytes, a row for each lane.
            lanes: the threads.
            writes: whether they write.
        """
        self._now += 1
        by, when = self._by[int(writes)], self._when[int(writes)]
        by[places], when[places] = np.broadcast_to(lanes[:, None] // WARP, places.shape), self._now

    def fence(self, lanes: Array) -> None:
        """Note a fence of threads."""
        self._now += 1
        warps = np.unique(lanes // WARP)
        self._known[warps, warps] = self._now

    def tell(self, barrier: object, lanes: Array) -> None:
        """Note that threads arrive at a barrier."""
        most = self._known[np.unique(lanes // WARP)].max(0)
        self._told[barrier] = np.maximum(self._told.get(barrier, 0), most)

    def hear(self, barrier: object, lanes: Array) -> None:
        """Note that threads have waited for others at a barrier."""
        if barrier in self._told:
            warps = np.unique(lanes // WARP)
            self._known[warps] = np.maximum(self._known[warps], self._told[barrier])

    def check(self, places: Array, lane: int, writes: bool) -> None:
        """Check an access of the other proxy.

        Args:
            places: of bytes.
            lane: the thread that starts it.
            writes: whether it writes.

        Raises:
            Fault: no fence is between it and what threads read, if it writes, or have written.
        """
        known = self._known[lane // WARP]
        for kind in (_READ, _WRITTEN) if writes else (_WRITTEN,):
            when, by = self._when[kind][places], self._by[kind][places]
            if ((when > known[by]) & (when > known[lane // WARP])).any():
                done = "written" if kind == _WRITTEN else "read"
                theirs = "writes" if writes else "reads"
                raise Fault(f"no proxy fence is between what a thread has {done} and what another unit {theirs} there")
