"""A pool of worker threads for compiled programs, which release the GIL while they run.

The calling thread takes part, so a job never waits for a worker to wake: late workers find it closed and
leave.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue

from tessera.errors import CallError, DeviceError

Body = Callable[[int, int], None]
"""Runs programs first … last-1; called on many threads at once."""

_CHUNKS_PER_THREAD = 8


def thread_count() -> int:
    """Return how many threads run programs: `TESSERA_NUM_THREADS`, else the CPUs this process may use.

    Raises:
        CallError: `bad-environment` when the variable is no positive number.
    """
    text = os.environ.get("TESSERA_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    if not text.isdecimal() or int(text) < 1:
        raise CallError(
            f"TESSERA_NUM_THREADS is {text!r}",
            code="bad-environment",
            help="set it to a number of threads, at least 1",
        )
    return int(text)


class _Job:
    """One launch: programs handed out in chunks to whoever asks."""

    def __init__(self, body: Body, programs: int, chunk: int) -> None:
        self._body = body
        self._programs = programs
        self._chunk = chunk
        self._tickets = count()
        self._state = threading.Lock()
        self._active = 0
        self._closed = False
        self._all_left = threading.Lock()
        self._all_left.acquire()
        self.broken = False

    def take_part(self) -> None:
        """Run chunks until there is none left (or another thread broke off)."""
        chunk, programs, body = self._chunk, self._programs, self._body
        finished = False
        try:
            for ticket in self._tickets:
                first = ticket * chunk
                if first >= programs or self.broken:
                    break
                body(first, min(first + chunk, programs))
            finished = True
        finally:
            if not finished:
                self.broken = True

    def help(self) -> None:
        """Take part as a worker, unless the caller has already closed the job."""
        with self._state:
            if self._closed:
                return
            self._active += 1
        try:
            self.take_part()
        finally:
            with self._state:
                self._active -= 1
                last = self._closed and self._active == 0
            if last:
                self._all_left.release()

    def close(self) -> None:
        """Let no more workers in and wait for those inside: no program runs after this."""
        with self._state:
            self._closed = True
            wait = self._active > 0
        if wait:
            self._all_left.acquire()


class WorkerPool:
    """Threads that wait for jobs.

    Args:
        threads: how many threads run a job, the calling one included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        for number in range(threads - 1):
            # Daemons: a worker waits for ever, and must not keep the interpreter from ending.
            threading.Thread(target=self._serve, name=f"tessera-{number}", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._jobs.get().help()

    def run(self, body: Body, programs: int) -> None:
        """Run programs 0 … programs-1 on all threads and return when all are done.

        Raises:
            DeviceError: `worker-failed` when a worker broke off.
        """
        chunk = max(1, programs // (self.threads * _CHUNKS_PER_THREAD))
        job = _Job(body, programs, chunk)
        for _ in range(min(self.threads - 1, -(-programs // chunk) - 1)):
            self._jobs.put(job)
        try:
            job.take_part()
        finally:
            job.close()
        if job.broken:
            raise DeviceError(
                "a worker thread broke off while it ran the kernel",
                code="worker-failed",
                help="its own message is above",
            )


_pool: WorkerPool | None = None
_making = threading.Lock()


def shared_pool() -> WorkerPool:
    """Return the pool of this process, made at first use."""
    global _pool
    if _pool is None:
        with _making:
            if _pool is None:
                _pool = WorkerPool(thread_count())
    return _pool


def _after_fork() -> None:
    """Threads do not survive a fork: the child makes its own pool when it needs one."""
    global _pool, _making
    _pool = None
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
