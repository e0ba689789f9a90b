"""Shares work among processes that are forked for it, and end with it.

A forked process has all that this one has, so that work need not be written down; what it changes stays in it, but for
files. What does not work there is left to be done again here.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from tessera.runtime.environment import number_from

_MOST = 16
"""Processes: each costs a fork, and few works have more long parts."""
_LIMIT = "/sys/fs/cgroup/cpu.max"
"""Microseconds of processors' time in each period, and the period."""
_LONGEST_S = 60.0
"""How long processes may go on after this one has nothing left to do; one that hangs is not waited for."""
_PLACE = struct.Struct("i")
_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of `linux/prctl.h`: the parent may be killed, too."""


def most_workers() -> int:
    """Return how many processes may share work, this one included; 1 where none can be forked.

    `TESSERA_COMPILE_PROCESSES` says how many; by default as many as there are processors for this process, of which
    the processes that `torchrun` starts have equal parts, and 16 at most.

    Raises:
        CallError: `bad-environment`.
    """
    chosen = number_from("TESSERA_COMPILE_PROCESSES", "a number of processes", least=1)
    if not sys.platform.startswith("linux"):  # other systems' libraries do not survive a fork
        return 1
    if chosen is not None:
        return chosen
    alike = os.environ.get("LOCAL_WORLD_SIZE", "1")
    processors = min(len(os.sched_getaffinity(0)), _granted())
    return max(1, min(_MOST, processors // max(1, int(alike) if alike.isdecimal() else 1)))


def _granted() -> int:
    """Return how many processors' time a container may use, as control groups (version 2) say."""
    try:
        with open(_LIMIT) as file:
            time_, period = file.read().split()
        return _MOST if time_ == "max" else max(1, int(time_) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return _MOST


def share(works: Sequence[Callable[[], object]], count: int) -> None:
    """Do works in several processes; a work that fails is left undone.

    Args:
        works: what to do, the longest first.
        count: how many processes, this one included.
    """
    queue, filled = os.pipe()
    os.set_blocking(queue, False)  # another thread may fork meanwhile, and its child hold the end that is written to
    try:
        with os.fdopen(filled, "wb") as file:
            file.write(b"".join(map(_PLACE.pack, range(len(works)))))
        _take_part(works, queue, min(count, len(works)))
    finally:
        os.close(queue)


def _take_part(works: Sequence[Callable[[], object]], queue: int, count: int) -> None:
    """Do works in this process and in others, of which each forks half, as a fork of much memory takes milliseconds."""
    children: list[int] = []
    try:
        while count > 1:
            with suppress(OSError):  # no memory, or too many processes: those that are there do it
                children.append(_forked(works, queue, count // 2))
            count -= count // 2
        _do(works, queue)
        _wait(children)
    finally:
        for child in children:
            _end(child)


def _do(works: Sequence[Callable[[], object]], queue: int) -> None:
    """Do works until no process has any left to take."""
    while data := _next(queue):
        with suppress(Exception):
            works[_PLACE.unpack(data)[0]]()


def _next(queue: int) -> bytes:
    with suppress(BlockingIOError):
        return os.read(queue, _PLACE.size)
    return b""


def _forked(works: Sequence[Callable[[], object]], queue: int, count: int) -> int:
    """Return a new process that does works until none is left, with others that it forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, of threads: `runtime.forking` waits for those that compile
        child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
        gc.disable()  # it would write to all that is shared
        if not _Child.is_one:
            os.setpgid(0, 0)  # the parent hears ctrl-C, and ends the group
        _Child.is_one = True
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        warnings.simplefilter("ignore")  # the parent says it
        _take_part(works, queue, count)
    finally:
        os._exit(0)  # nothing of the parent's may end: its files, its devices


class _Child:
    """Whether this process is one that was forked for work."""

    is_one = False


def _wait(children: list[int]) -> None:
    """Wait until processes have ended, and take those off that have."""
    last = time.monotonic() + _LONGEST_S
    pause = 1e-4
    while children and time.monotonic() < last:
        children[:] = [child for child in children if not _has_ended(child)]
        time.sleep(pause if children else 0)
        pause = min(2 * pause, 2e-3)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:  # somebody else has waited for it
        return True


def _end(child: int) -> None:
    """End a process, and those that it has forked."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
