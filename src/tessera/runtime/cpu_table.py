"""Tables of launches on the CPU: parameters stay packed, addresses are put in for each run.

Once it is known what launches cost, machine code runs all that are not worth sharing out, one after the other.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from tessera.data import dataclass
from tessera.entry.layout import PATCH, WALK_LINE, WORD
from tessera.runtime.cpu import scratch_address, scratch_is_filled
from tessera.runtime.packing import Block
from tessera.runtime.platforms import Again

if TYPE_CHECKING:
    from tessera.runtime.cpu import CpuPlan

_LEARNED = 4
"""Runs after which it is known what launches cost."""
_Walk = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """A kernel of the table.

    Args:
        plan: its launch.
        block: its parameters, this table's own.
        counts: how many programs each of its grids has.
        sources: as `Again` has them.
    """

    plan: CpuPlan
    block: Block
    counts: list[int]
    sources: tuple[tuple[int, int], ...]

    def run(self, addresses: Sequence[int]) -> None:
        """Run the kernel."""
        slots = self.block.slots
        for place, (number, after) in enumerate(self.sources):
            slots[place] = addresses[number] + after
        self.plan.run(self.block, self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Kernels that machine code runs.

    Args:
        grids: the kernel of each grid.
        words: what the machine code reads.
        address: where the words are.
        keep: memory that they point at.
    """

    grids: list[_Line]
    words: Any
    address: int
    keep: list[Any]


class CpuTable:
    """Launches on the CPU.

    Args:
        launches: the launches, in order.
        walk: gives the address of `layout.WALKER`.
    """

    def __init__(self, launches: Sequence[Again], walk: Callable[[], int]) -> None:
        self._lines = [_line(one) for one in launches]
        self._walk_address, self._runs = walk, 0
        self._walk: Any = None
        self._parts: list[_Part | _Line] = []
        self._count = 1 + max((number for one in launches for number, _ in one.sources), default=0)
        self._given = (ctypes.c_int64 * (self._count + 1))()
        self._given_address = ctypes.addressof(self._given)
        self._pack = struct.Struct(f"={self._count + 1}Q").pack_into
        self._scratch = 0

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Run the kernels and return when they are done.

        Args:
            addresses: what the sources of the launches count from.
            stream: not used.

        Raises:
            DeviceError: `device-assert` when an assertion of a kernel failed.
        """
        if self._walk is None or scratch_is_filled():
            self._learn(addresses)
            return
        self._pack(self._given, 0, *addresses[: self._count], scratch_address(self._scratch) if self._scratch else 0)
        for part in self._parts:
            if isinstance(part, _Line):
                part.run(addresses)
                continue
            failed: int = self._walk(part.address, len(part.grids), self._given_address)
            if failed:
                line = part.grids[failed - 1]
                line.plan.check(line.block)

    def _learn(self, addresses: Sequence[int]) -> None:
        """Run the kernels one by one, and see what they cost."""
        for line in self._lines:
            line.run(addresses)
        self._runs += 1
        if self._runs >= _LEARNED and self._walk is None:
            self._settle()

    def _settle(self) -> None:
        """Put launches together that are not worth sharing out."""
        together: list[_Line] = []
        for line in self._lines:
            if line.plan.runs_inline(line.counts):
                together.append(line)
                continue
            if together:
                self._parts.append(self._part(together))
                together = []
            self._parts.append(line)
        if together:
            self._parts.append(self._part(together))
        self._walk = _Walk(self._walk_address())

    def _part(self, lines: Sequence[_Line]) -> _Part:
        words: list[int] = []
        grids: list[_Line] = []
        keep: list[Any] = []
        for line in lines:
            first = ctypes.addressof(line.block.slots)
            sources = enumerate(line.sources)
            patches = [(first + WORD * place, WORD * number, after) for place, (number, after) in sources]
            for goal, scratch in line.plan.scratches(line.block):
                patches.append((goal, WORD * self._count, 0))
                self._scratch = max(self._scratch, scratch)
            packed: list[int] = []
            for goal, number, after in patches:
                packed += _words(PATCH, goal=goal, number=number, after=after)
            memory = (ctypes.c_int64 * len(packed))(*packed)
            keep.append(memory)
            begin, count = ctypes.addressof(memory), len(patches)
            for function, params, programs in line.plan.grids(line.block, line.counts):
                words += _words(
                    WALK_LINE,
                    patch_count=count,
                    patches=begin,
                    function=function,
                    params=params,
                    programs=programs,
                    error=line.block.error_address,
                )
                grids.append(line)
                count = 0  # the first grid has put them
        table = (ctypes.c_int64 * len(words))(*words)
        return _Part(grids, table, ctypes.addressof(table), keep)


def _words(fields: dict[str, int], **values: int) -> list[int]:
    return [values[name] for name in fields]


def _line(one: Again) -> _Line:
    plan = cast("CpuPlan", one.plan)
    block = plan.packing.held(one.scalars)
    return _Line(plan, block, plan.packing.counts(one.scalars), one.sources)
