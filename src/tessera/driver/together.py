"""Launches that were recorded, put together: they are started at once, on one piece of memory that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.data import dataclass
from tessera.driver.launch import table_of
from tessera.runtime.device import Device
from tessera.runtime.platforms import Again, Table
from tessera.runtime.recording import Launched

ALIGNED = 256
"""Where parts of the memory start: at multiples of so many bytes."""
_NOTHING, _MEMORY, _FIRST = 0, 1, 2
"""Places among a run's addresses: of arrays without memory, of the memory that launches share, of the first array."""


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """Launches that are started together.

    Args:
        table: the launches. It takes addresses: 0, that of their memory, and those of `owners`.
        owners: to what the addresses belong.
        bytes_: the size of the memory that they share.
    """

    table: Table
    owners: tuple[Any, ...]
    bytes_: int


def together(
    launches: Sequence[Launched], sizes: Mapping[Any, int], lives: Mapping[Any, range], device: Device
) -> Together:
    """Put launches together.

    Args:
        launches: each with what its pointers belong to, None for arrays without memory.
        sizes: the bytes of what lies in the memory that they share.
        lives: when each of these is needed.
        device: where they run.

    Raises:
        NotDirect: the driver lacks a function.
    """
    starts, whole = packed(sizes, lives)
    numbers = dict[Any, int]()
    again: list[Again] = []
    for one in launches:
        sources = [
            (_MEMORY, starts[owner] + after)
            if owner in starts
            else (_NOTHING if owner is None else numbers.setdefault(owner, _FIRST + len(numbers)), after)
            for owner, after in one.places
        ]
        again.append(Again(one.plan, tuple(sources), one.scalars))
    return Together(table_of(again, device), tuple(numbers), whole)


def packed(sizes: Mapping[Any, int], lives: Mapping[Any, range]) -> tuple[dict[Any, int], int]:
    """Place pieces of memory in one, the largest first; those that live at once lie apart.

    Args:
        sizes: their bytes.
        lives: when each is needed.

    Returns:
        Where each starts, and the bytes of all.
    """
    starts: dict[Any, int] = {}
    whole = 0
    for key in sorted(sizes, key=lambda one: -sizes[one]):
        size, life = -(-sizes[key] // ALIGNED) * ALIGNED, lives[key]
        beside = [one for one in starts if lives[one].start < life.stop and life.start < lives[one].stop]
        at = 0
        for one in sorted(beside, key=starts.__getitem__):
            if at + size <= starts[one]:
                break
            at = max(at, starts[one] + -(-sizes[one] // ALIGNED) * ALIGNED)
        starts[key] = at
        whole = max(whole, at + size)
    return starts, whole
