"""Tables of launches on the CPU: parameters stay packed, addresses are put in for each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from tessera.data import dataclass
from tessera.runtime.packing import Block
from tessera.runtime.platforms import Again

if TYPE_CHECKING:
    from tessera.runtime.cpu import CpuPlan


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


class CpuTable:
    """Launches on the CPU.

    Args:
        launches: the launches, in order.
    """

    def __init__(self, launches: Sequence[Again]) -> None:
        self._lines = [_line(one) for one in launches]

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Run the kernels and return when they are done.

        Args:
            addresses: what the sources of the launches count from.
            stream: not used.

        Raises:
            DeviceError: `device-assert` when an assertion of a kernel failed.
        """
        for line in self._lines:
            slots = line.block.slots
            for place, (number, after) in enumerate(line.sources):
                slots[place] = addresses[number] + after
            line.plan.run(line.block, line.counts)


def _line(one: Again) -> _Line:
    plan = cast("CpuPlan", one.plan)
    block = plan.packing.held(one.scalars)
    return _Line(plan, block, plan.packing.counts(one.scalars), one.sources)
