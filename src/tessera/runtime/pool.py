"""The worker pool of this process: native threads that run the programs of a launch.

The threads are machine code made by `entry/code/pool.py`; here is what makes one, and what a fork and the end of
the process mean to it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tessera.entry.layout import (
    POOL,
    POOL_BYTES,
    POOL_RESET,
    POOL_RUN,
    POOL_STOP,
    POOL_WORDS,
    WORD,
)
from tessera.runtime.environment import number_from
from tessera.runtime.forking import compiling
from tessera.runtime.platforms import LoadedCode, host_platform

_RUN = ctypes.PYFUNCTYPE(
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def thread_count() -> int:
    """Return how many threads run programs: `TESSERA_NUM_THREADS`, else the CPUs this process may use.

    Raises:
        CallError: `bad-environment` when the variable is not a positive number.
    """
    threads = number_from("TESSERA_NUM_THREADS", "a number of threads, at least 1", least=1)
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return threads


class WorkerPool:
    """Threads that wait for jobs; they start when a job first wants them.

    Args:
        code: the pool's machine code, loaded.
    """

    def __init__(self, code: LoadedCode) -> None:
        self._memory = (ctypes.c_char * (POOL_BYTES + 64))()
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        for name, value in _functions().items():
            ctypes.c_int64.from_address(self.address + POOL[name]).value = value
        self._code = code
        self.run_address = code.address(POOL_RUN)
        self._run = _RUN(self.run_address)
        self._stop = _STOP(code.address(POOL_STOP))

    def run(
        self,
        threads: int,
        function: int,
        params: int,
        count: int,
        scratch: int,
        first: int,
        last: int,
        cost: int,
    ) -> None:
        """Run programs `first` … `last - 1` and return when all are done.

        Args:
            threads: how many threads may run them, the calling one included.
            function: address of an entry point (see `target.artifact.Launch`).
            params: address of its `count` parameters.
            count: how many there are.
            scratch: bytes of scratch memory of each thread; the last parameter but one names the caller's.
            first: the first program.
            last: the one after the last.
            cost: nanoseconds that they take on one thread.

        Raises:
            KeyboardInterrupt: or what else a signal handler raises; no program runs any more then.
        """
        self._run(self.address, threads, function, params, count, scratch, first, last, cost)

    def fill_scratch(self, byte: int | None) -> None:
        """Let workers fill their scratch memory with a byte from 1 on before each job they take part in, or not."""
        word = 0 if byte is None else int.from_bytes(bytes([byte]) * WORD, "little")
        ctypes.c_uint64.from_address(self.address + POOL["unwritten"]).value = word

    @property
    def started(self) -> int:
        """How many threads it has beside the callers'."""
        return ctypes.c_int64.from_address(self.address + POOL["started"]).value

    def stop(self) -> None:
        """End the threads; later jobs run on their callers."""
        self._stop(self.address)

    def forget_threads(self) -> None:
        """Be as new: a forked child has none of its parent's threads, and no job under way."""
        ctypes.memset(self.address, 0, POOL_RESET)


def _functions() -> dict[str, int]:
    """Return the addresses that the pool calls, and its constants, by their names in `layout.POOL`."""
    import signal  # defines enumerations, for a process that may have no use for a pool

    system: Any = ctypes.CDLL(None)
    python: Any = ctypes.pythonapi
    found = {
        "create": system.pthread_create,
        "join": system.pthread_join,
        "lock": system.pthread_mutex_lock,
        "unlock": system.pthread_mutex_unlock,
        "wait": system.pthread_cond_wait,
        "broadcast": system.pthread_cond_broadcast,
        "sigmask": system.pthread_sigmask,
        "clock": system.clock_gettime,
        "memalign": system.posix_memalign,
        "free": system.free,
        "save": python.PyEval_SaveThread,
        "restore": python.PyEval_RestoreThread,
        "check": python.PyErr_CheckSignals,
    }
    # Linux only; elsewhere the system places threads by itself.
    places = {"cpu": "sched_getcpu", "affinity": "sched_getaffinity", "set_affinity": "sched_setaffinity"}
    if all(hasattr(system, function) for function in places.values()):
        found |= {name: getattr(system, function) for name, function in places.items()}
    addresses = {name: ctypes.cast(value, ctypes.c_void_p).value or 0 for name, value in found.items()}
    return {**addresses, "setmask": int(signal.SIG_SETMASK), "clock_kind": time.CLOCK_MONOTONIC}


def _compiled() -> LoadedCode:
    host = host_platform()
    return host.load(host.native_code("pool"))


_source: Callable[[], LoadedCode] = _compiled
_pool: WorkerPool | None = None
_making = threading.Lock()
words: Any = (ctypes.c_int64 * len(POOL_WORDS))()
"""What `layout.POOL_WORDS` names, for the compiled entry."""


def load_from(source: Callable[[], LoadedCode]) -> None:
    """Say where the pool's code comes from: a cache, rather than a compilation in each process."""
    global _source
    _source = source


def shared_pool() -> WorkerPool:
    """Return the pool of this process, made at first use."""
    global _pool
    if _pool is None:
        with compiling(), _making:
            if _pool is None:
                _pool = WorkerPool(_source())
                # Before the code goes away with the interpreter, and the memory that the workers look at.
                atexit.register(_pool.stop)
                words[POOL_WORDS["pool"] // WORD] = _pool.address
                words[POOL_WORDS["run"] // WORD] = _pool.run_address
    return _pool


def _after_fork() -> None:
    global _making
    _making = threading.Lock()
    if _pool is not None:
        _pool.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
