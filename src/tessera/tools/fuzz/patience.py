"""Tells whether a process that runs a program hangs, on machines that many processes share.

Seconds on the wall say little there: a process that gets a tenth of a processor takes ten times as long. So a program
hangs when its process has worked for so long as well, or does not work any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

_IDLE_SHARE = 1e-3
"""A process that waits for ever takes less of a processor than this; one that works more, however busy others are."""

_PER_PROCESS_CLOCK = 2
"""The kind of clock in a clock's number: of all that a process has worked (Linux, `include/linux/posix-timers.h`)."""


@dataclass
class Patience:
    """Watches one process.

    Args:
        pid: its number.
    """

    pid: int

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin to count for a new program."""
        self._wall = self._looked = time.monotonic()
        self._work = self._seen = worked(self.pid)

    def is_over(self, timeout: float) -> bool:
        """Return whether the program has taken so many seconds, and has worked for as many or for none of the last."""
        now, work = time.monotonic(), worked(self.pid)
        if now - self._wall <= timeout:
            return False
        if work is None or self._work is None or self._seen is None or work - self._work > timeout:
            return True
        if now - self._looked <= timeout:
            return False
        idle = work - self._seen < _IDLE_SHARE * (now - self._looked)
        self._looked, self._seen = now, work
        return idle


def worked(pid: int) -> float | None:
    """Return the seconds that all threads of a process have worked; None where the system does not say."""
    try:
        return time.clock_gettime((~pid << 3) | _PER_PROCESS_CLOCK)
    except (OSError, AttributeError, OverflowError):
        return None
