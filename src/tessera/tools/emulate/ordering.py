"""In which order warps, the copy engine and matrix units touch memory, by what they tell each other.

A warp knows of what another one did before it arrived at a barrier that the first has waited for; of two accesses to
one place, of which one writes, the later must know of the earlier. The copy engine and warpgroup products access memory
through another proxy: neither a barrier nor an arrival orders these and what threads did. Between them stands
`fence.proxy.async` as well: in the thread that touched the place, before what tells the one that starts the other
access; or in that one, behind it.

Of device memory, what the warps of one program do is looked at: programs are ordered by nothing.

Of what was read since the last write, the last reader is kept. Within a warp everything is in order. A store of what is
there already is none: threads that hold copies of a tile store all of them.

Source: PTX ISA 9.2, "Memory Consistency Model", "Proxies" and "Async proxy".
"""

from __future__ import annotations

import numpy as np

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.memory import Array

WARP = 32
_READ, _WRITTEN, _UNIT_READ = range(3)
_DONE = ("read", "written", "read by a matrix unit or the copy engine")


class _Places:
    """Who last touched each place of a memory.

    Args:
        size: bytes.
        unit: bytes of a place.
    """

    def __init__(self, size: int, unit: int) -> None:
        self.unit = unit
        self.by: Array = np.zeros((3, size // unit + 1), np.int32)
        self.when: Array = np.zeros((3, size // unit + 1), np.int64)
        self.atomic: Array = np.zeros(size // unit + 1, bool)


class Ordering:
    """Who last touched each place of shared and device memory, and what each warp knows of the others.

    Args:
        size: bytes of shared memory.
        lanes: threads.
        unit: bytes of a place: no access of threads is narrower.
        device: bytes and unit of device memory.
        warps: of each program.
    """

    def __init__(self, size: int, lanes: int, unit: int = 1, device: tuple[int, int] = (0, 1), warps: int = 1) -> None:
        self._shared, self._device, self._program = _Places(size, unit), _Places(*device), warps
        self._engine = -(-lanes // WARP)
        agents = self._engine + 1
        self._seen: Array = np.zeros((agents, agents), np.int64)
        self._fenced: Array = np.zeros((agents, agents), np.int64)
        self._at_fence: Array = np.zeros((agents, agents), np.int64)
        self._told: dict[object, tuple[Array, Array]] = {}
        self._now = 0

    def touch(
        self, at: Array, width: int, lanes: Array, writes: bool, atomic: bool = False, device: bool = False
    ) -> None:
        """Note what threads touch.

        Args:
            at: where each lane's bytes begin.
            width: how many bytes.
            lanes: the threads.
            writes: whether they write.
            atomic: whether that is one atomic update.
            device: whether it is device memory.

        Raises:
            Fault: another warp has touched them, and nothing is between.
        """
        table = self._device if device else self._shared
        places = at[:, None] // table.unit + np.arange(-(-width // table.unit))
        warps = np.broadcast_to(lanes[:, None] // WARP, places.shape)
        for kind in (_READ, _WRITTEN, _UNIT_READ) if writes else (_WRITTEN,):
            when, by = table.when[kind][places], table.by[kind][places]
            unordered = (when > self._seen[warps, by]) & (by != warps)
            if device:
                unordered &= by // self._program == warps // self._program
            if atomic and kind == _WRITTEN:
                unordered &= ~table.atomic[places]
            if unordered.any():
                done = "written" if writes else "read"
                raise Fault(f"memory is {done} that another warp has {_DONE[kind]}, and nothing orders the two")
        self._note(table, int(writes), places, warps)
        if writes:
            table.atomic[places] = atomic

    def _note(self, table: _Places, kind: int, places: Array, agents: Array | int) -> None:
        self._now += 1
        table.by[kind][places], table.when[kind][places] = agents, self._now

    def fence(self, lanes: Array) -> None:
        """Note a fence of threads between the proxies."""
        self._now += 1
        warps = np.unique(lanes // WARP)
        self._fenced[warps, warps] = self._now
        self._at_fence[warps] = self._seen[warps]

    def tell(self, barrier: object, lanes: Array) -> None:
        """Note that threads arrive at a barrier."""
        self._tell(barrier, np.unique(lanes // WARP))

    def _tell(self, barrier: object, agents: Array) -> None:
        self._now += 1
        self._seen[agents, agents] = self._now
        seen, fenced = self._told.get(barrier, (0, 0))
        most = np.maximum(self._seen[agents].max(0), seen), np.maximum(self._fenced[agents].max(0), fenced)
        self._told[barrier] = most

    def hear(self, barrier: object, lanes: Array) -> None:
        """Note that threads have waited for others at a barrier."""
        if barrier in self._told:
            warps, (seen, fenced) = np.unique(lanes // WARP), self._told[barrier]
            self._seen[warps] = np.maximum(self._seen[warps], seen)
            self._fenced[warps] = np.maximum(self._fenced[warps], fenced)

    def start(self, bytes_: Array, lane: int, writes: bool) -> None:
        """Check an access of the copy engine or a matrix unit when it starts.

        Args:
            bytes_: the places of its bytes, the last axis without gaps.
            lane: the thread that starts it.
            writes: whether it writes.

        Raises:
            Fault: the thread does not know of what was done there, or no fence is between.
        """
        places, warp = self._places(bytes_), lane // WARP
        seen, fenced = self._seen[warp], self._fenced[warp]
        for kind in (_READ, _WRITTEN, _UNIT_READ) if writes else (_WRITTEN,):
            when, by = self._shared.when[kind][places], self._shared.by[kind][places]
            known = (when <= seen[by]) | (by == warp)
            if kind != _UNIT_READ:
                known &= (by == self._engine) | (when <= fenced[by]) | (when <= self._at_fence[warp][by])
            if writes and kind == _WRITTEN:
                known |= by == self._engine
            if not known.all():
                theirs = "written" if writes else "read"
                raise Fault(
                    f"shared memory is {theirs} by a matrix unit or the copy engine that was {_DONE[kind]} before: "
                    "no arrival and proxy fence are between"
                )

    def end(self, bytes_: Array, lane: int) -> None:
        """Note that the copy engine or a matrix unit has read for a thread, which has waited for that."""
        self._note(self._shared, _UNIT_READ, self._places(bytes_), lane // WARP)

    def arrive(self, bytes_: Array, barrier: object) -> None:
        """Note that the copy engine has written, and tells a barrier."""
        self._note(self._shared, _WRITTEN, self._places(bytes_), self._engine)
        self._tell(barrier, np.array([self._engine]))

    def _places(self, bytes_: Array) -> Array:
        unit = self._shared.unit
        return bytes_[..., :: min(unit, bytes_.shape[-1])].reshape(-1) // unit
