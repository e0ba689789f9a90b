"""Executes an entry for the threads of several programs at once, each register an array over all of them.

Threads that stand at one instruction go on together; of several groups the one that stands first does, so that they
meet again where branches join, and now and then the one that has waited longest, so that threads can spin until others
have stored something. Instructions of a whole warp wait for its lanes, barriers for all they count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.tools.emulate.errors import Fault, TooLong
from tessera.tools.emulate.memory import (
    LOCAL_BASE,
    PARAM_BASE,
    POISON,
    RANK_SHIFT,
    SHARED_BASE,
    Device,
    Local,
    Shared,
    where,
)
from tessera.tools.emulate.ordering import WARP, Ordering
from tessera.tools.emulate.regions import check_meetings
from tessera.tools.emulate.text import Entry, Module, Storage

Array = Any

Step = Callable[["Machine"], Any]
"""What an instruction does; true when its threads have gone somewhere else than to the next one."""

_MOST_NAPS = 1000
"""How often threads sleep one after the other while nothing changes, before they are taken to wait in vain."""

_PASSED_OVER = 64
"""Of so many choices among groups of threads, one takes the group that has waited longest: others may spin for it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How many programs there are, and which of them run together.

    Args:
        programs: the size of the grid.
        first: the first of those that run.
        count: how many run.
        threads: threads of each.
        cluster: programs of a cluster.
        shared_bytes: dynamic shared memory of each.
    """

    programs: int
    first: int
    count: int
    threads: int
    cluster: int
    shared_bytes: int


def _narrowest(entry: Entry, space: str) -> int:
    """Return the bytes of the narrowest access of threads to a space, at most 16."""
    accesses = [one for one in entry.code if one.name in ("ld", "st", "atom", "red")]
    others = ("local", "param", "shared" if space == "global" else "global")
    kinds = [one.parts[-1] for one in accesses if not any(part.startswith(others) for part in one.parts)]
    widths = [int("".join(filter(str.isdigit, kind))) // 8 for kind in kinds]
    copies = [4 for one in entry.code if one.name == "cp" and not one.has("bulk")]
    return min([*widths, *copies, 16])


class Machine:
    """Threads, their registers and what they can reach.

    Args:
        module: the text.
        entry: the kernel.
        grid: which programs run.
        device: device memory.
        params: the bytes of each parameter.
        globals_: address of each array of the module in device memory.
        budget: instructions times threads that may be executed.
        turns: by lane, who goes on first until it waits; None for all together.
    """

    def __init__(
        self,
        module: Module,
        entry: Entry,
        grid: Grid,
        device: Device,
        params: list[bytes],
        globals_: dict[str, int],
        budget: int,
        turns: Array | None = None,
    ) -> None:
        self.turns = turns
        self.entry, self.grid, self.device, self.params = entry, grid, device, params
        self.lanes = grid.count * grid.threads
        self.index: Array = np.arange(self.lanes)
        self.program: Array = self.index // grid.threads
        self.thread: Array = self.index % grid.threads
        self._symbols = dict(globals_)
        self.shared = self._shared_memory(module)
        self.ordering = self._ordering() if grid.threads > WARP else None
        self.local = Local(self.lanes, self._place(entry.arrays, "local", LOCAL_BASE))
        for number, param in enumerate(entry.params):
            self._symbols[param.name] = PARAM_BASE + 4096 * number
        self.regs: list[Array] = [self._unset(bits) for bits in entry.registers]
        self.everyone: Array = np.ones(self.lanes, bool)
        self.active, self.full = self.everyone, True
        self.gone: Array = np.zeros(self.lanes, bool)
        self._ready: dict[int, Array] = {}
        self._since: dict[int, int] = {}
        self._choices = 0
        self.held: dict[int, Array] = {}
        self.asleep: dict[int, Array] = {}
        self.napping: dict[int, Array] = {}
        self.changes = 0
        self._seen = -1
        self._naps = 0
        self.here = 0
        self.parted: set[int] = set()
        self.units: dict[str, Any] = {}
        self.pending: list[Callable[[], None]] = []
        self.budget = budget

    def _ordering(self) -> Ordering:
        shared, device = (_narrowest(self.entry, space) for space in ("shared", "global"))
        sizes = self.shared.bytes.data.size, self.device.bytes.data.size
        return Ordering(sizes[0], self.lanes, shared, (sizes[1], device), -(-self.grid.threads // WARP))

    def _shared_memory(self, module: Module) -> Shared:
        fixed = self._place({**module.arrays, **self.entry.arrays}, "shared", SHARED_BASE)
        grid = self.grid
        return Shared(grid.count, fixed + grid.shared_bytes, grid.threads, grid.cluster)

    def _place(self, arrays: dict[str, Storage], space: str, base: int) -> int:
        """Give addresses to the arrays of a space, dynamic ones last; return their bytes."""
        used = 0
        for name, array in sorted(arrays.items(), key=lambda item: item[1].size == 0):
            if array.space == space:
                used = -(-used // array.align) * array.align
                self._symbols[name] = base + used
                used += array.size
        return used

    def _unset(self, bits: int) -> Array:
        if bits == 1:
            return np.zeros(self.lanes, bool)
        return np.full(self.lanes * bits // 8, POISON, np.uint8).view(f"u{bits // 8}")

    def has(self, name: str) -> bool:
        """Return whether a name stands for an array or a parameter of the entry."""
        return name in self._symbols

    def symbol(self, name: str) -> Array:
        """Return the address that a name stands for, for each lane.

        Raises:
            Fault: nothing has the name.
        """
        if name not in self._symbols:
            raise Fault(f"nothing is called {name}")
        address = np.full(self.lanes, self._symbols[name], np.uint64)
        if SHARED_BASE <= self._symbols[name] < PARAM_BASE and self.grid.cluster > 1:
            address += (self.program % self.grid.cluster).astype(np.uint64) << np.uint64(RANK_SHIFT)
        return address

    def lanes_now(self) -> Array:
        """Return the numbers of the active lanes."""
        return self.index if self.full else np.nonzero(self.active)[0]

    def touch(self, space: str, at: Array, width: int, writes: bool, atomic: bool = False) -> None:
        """Note that the active lanes touch memory, but their own; raises a Fault where nothing orders them."""
        if self.ordering is not None and space != "local":
            device = not space.startswith("shared")
            self.ordering.touch(at, width, self.lanes_now(), writes, atomic, device)

    def tell(self, barrier: object, mask: Array) -> None:
        """Note that lanes arrive at a barrier, each program at its own."""
        if self.ordering is not None:
            for program, lanes in self._by_program(mask):
                self.ordering.tell((barrier, program), lanes)

    def hear(self, barrier: object, mask: Array) -> None:
        """Note that lanes have waited for others at a barrier."""
        if self.ordering is not None:
            for program, lanes in self._by_program(mask):
                self.ordering.hear((barrier, program), lanes)

    def _by_program(self, mask: Array) -> Iterator[tuple[int, Array]]:
        """Yield the programs of lanes, with those of each."""
        for program in np.unique(self.program[mask]):
            yield int(program), self.index[mask & (self.program == program)]

    def write(self, register: int, value: Array) -> None:
        """Give a register new values in the active lanes."""
        if not self.full:
            value = where(self.active, value, self.regs[register])
        elif len(value) != self.lanes:
            value = np.broadcast_to(value, (self.lanes,))
        self.regs[register] = value

    def put(self, register: int, lanes: Array, value: Array) -> None:
        """Give a register new values in some lanes."""
        new = self.regs[register].copy()
        new[lanes] = value
        self.regs[register] = new

    def go(self, place: int, mask: Array) -> None:
        """Let lanes go on at an instruction."""
        known = self._ready.get(place)
        self._ready[place] = mask if known is None else known | mask
        self._since.setdefault(place, self._choices)

    def part(self, taken: Array, rest: Array) -> None:
        """Note that this branch is one at which threads of a warp part, if they do."""
        if self.here in self.parted:
            return
        warps = [mask.reshape(-1, WARP).any(1) for mask in (taken, rest)]
        if (warps[0] & warps[1]).any():
            self.parted.add(self.here)

    def sleep(self, place: int, mask: Array, nap: bool = False) -> None:
        """Let lanes try an instruction again when nothing else can go on.

        Args:
            place: the instruction.
            mask: the lanes.
            nap: whether they go on in any case, else when something has changed.
        """
        lanes = self.napping if nap else self.asleep
        known = lanes.get(place)
        lanes[place] = mask if known is None else known | mask

    def leave(self, mask: Array) -> None:
        """End lanes."""
        self.gone = self.gone | mask

    def whole_warps(self, size: int = WARP) -> bool:
        """Hold back active lanes whose warp is not all here; return whether any lane goes on.

        A warp is here when all of its lanes are that have not ended.

        Args:
            size: lanes of a warp, or of a warpgroup.
        """
        if self.full:
            return True
        waiting = self.held.pop(self.here, None)
        if waiting is not None:
            self.active = self.active | waiting
        here = (self.active | self.gone).reshape(-1, size).all(1)
        together = self.active & np.repeat(here, size)
        apart = self.active & ~together
        if apart.any():
            self.held[self.here] = apart
        self.active = together
        self.full = bool(together.all())
        return bool(together.any())

    def run(self, program: list[Step]) -> None:
        """Run until all lanes have ended.

        Args:
            program: what each instruction does.

        Raises:
            Fault: as a GPU stops at, or lanes wait for each other in vain.
            TooLong: more is done than the budget allows.
        """
        self.go(0, self.everyone)
        leaders = set(self.entry.labels.values())
        while self._ready or self._wake():
            place = self._chosen()
            self.full = bool(self.active.all())
            self._straight(program, place, leaders)
        check_meetings(self.entry.code, self.parted)

    def _chosen(self) -> int:
        """Choose the lanes that go on; return where they stand."""
        self._choices += 1
        longest = None
        if self._choices % _PASSED_OVER == 0:
            longest = min(self._ready, key=self._since.__getitem__)
        place = self._together(longest) if self.turns is None else self._next_turn(self.turns, longest)
        if place not in self._ready:
            del self._since[place]
        return place

    def _together(self, longest: int | None) -> int:
        """Choose the lanes that stand first, or at a given place; return where."""
        place = min(self._ready) if longest is None else longest
        self.active = self._ready.pop(place)
        return place

    def _next_turn(self, turns: Array, longest: int | None) -> int:
        """Choose the lanes of one turn that stand first, or of one that stands at a given place; return where."""
        waiting = self._ready.values() if longest is None else [self._ready[longest]]
        mine = turns == min(int(turns[mask].min()) for mask in waiting)
        place = min(place for place, mask in self._ready.items() if (mask & mine).any())
        mask = self._ready.pop(place)
        if (rest := mask & ~mine).any():
            self._ready[place] = rest
            self._since[place] = self._choices
        self.active = mask & mine
        return place

    def _straight(self, program: list[Step], place: int, leaders: set[int]) -> None:
        """Execute up to the next branch, or to a place where other lanes may join."""
        end, start = len(program), place
        while place < end:
            if place in leaders and place != start and not self.full:
                self.go(place, self.active)
                break
            self.here = place
            if program[place](self):
                break
            place += 1
        else:
            self.leave(self.active)
        self.budget -= (place - start + 1) * self.lanes
        if self.budget < 0:
            raise TooLong

    def _wake(self) -> bool:
        """Do what is pending and let sleeping lanes try again; return whether any lane goes on."""
        for work in self.pending:
            work()
            self.changes += 1
        self.pending = []
        if self._ready:
            return True
        changed = self.changes != self._seen
        if (self.asleep and changed) or (self.napping and (changed or self._naps < _MOST_NAPS)):
            self._seen, self._naps = self.changes, 0 if changed else self._naps + 1
            for place, mask in [*self.napping.items(), *(self.asleep.items() if changed else ())]:
                self.go(place, mask)
            self.napping, self.asleep = {}, {} if changed else self.asleep
            return True
        if not self.gone.all():
            place = min([*self.asleep, *self.napping, *self.held], default=-1)
            where = f"line {self.entry.code[place].line}" if place >= 0 else "a barrier"
            raise Fault(f"deadlock: lanes wait at {where} for others that do not come")
        return False
