"""Groups of asynchronous work, which is done as late as it may be: when a lane waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

Work = Callable[[Array], None]
"""Does what was started, for some of its lanes."""


class Groups:
    """What lanes started and did not wait for yet: works or products, and groups of them with the lanes they are of."""

    def __init__(self) -> None:
        self.open: list[tuple[Array, Work]] = []
        self.groups: list[tuple[Array, list[tuple[Array, Work]]]] = []

    def commit(self, lanes: Array) -> None:
        """Make a group of what lanes started since the last one."""
        mine = [(mask & lanes, work) for mask, work in self.open if (mask & lanes).any()]
        self.open = [(mask & ~lanes, work) for mask, work in self.open if (mask & ~lanes).any()]
        self.groups.append((lanes, mine))

    def wait(self, lanes: Array, pending: int) -> None:
        """Do what all but the last groups of each lane hold."""
        later: Array = np.zeros(len(lanes), np.int64)
        due: list[tuple[Array, list[tuple[Array, Work]]]] = []
        for number in range(len(self.groups) - 1, -1, -1):
            mask, works = self.groups[number]
            now = mask & lanes & (later >= pending)
            later += mask
            if now.any():
                due.append((now, works))
                self.groups[number] = (mask & ~now, [(part & ~now, work) for part, work in works])
        for now, works in reversed(due):
            for mask, work in works:
                if (wanted := mask & now).any():
                    work(wanted)
        self.groups = [(mask, works) for mask, works in self.groups if mask.any()]
