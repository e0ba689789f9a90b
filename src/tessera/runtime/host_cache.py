"""Memory of large CPU arrays, kept when they die: fresh pages cost several times what a kernel does with them.

A block goes back to the cache when the last array over it is collected, and to the system when the cache is full, when
the machine (or the control group) runs short of memory, or when an allocation fails. `TESSERA_CPU_CACHE_MB` bounds
the cache; 0 turns it off.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.runtime.environment import number_from

LEAST_BYTES = 256 << 10
"""Smaller arrays come from NumPy: `malloc` keeps their pages."""
_DEFAULT_BYTES = 1 << 30
_DEFAULT_SHARE = 8
"""By default the cache holds a gibibyte, or an eighth of the memory if that is less."""
_STEPS = 8
"""Sizes are rounded up to eight steps for each power of two: at most an eighth is wasted."""
_HUGE_BYTES = 2 << 20
_LOOK_S = 0.5
_SHORT = 0.1
"""Memory is short when less than a tenth of it is available; looked at most every half second."""
_GROUP = Path("/sys/fs/cgroup")


def limit_bytes() -> int:
    """Return how much the cache may hold.

    Raises:
        CallError: `bad-environment` when `TESSERA_CPU_CACHE_MB` is not a number.
    """
    limit = number_from("TESSERA_CPU_CACHE_MB", "a number of MiB, 0 for no cache")
    if limit is None:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return min(_DEFAULT_BYTES, total // _DEFAULT_SHARE)
    return limit << 20


def size_class(size: int) -> int:
    """Return the bytes of the block for an array of `size` bytes."""
    step = max(1 << (size.bit_length() - 1) >> (_STEPS.bit_length() - 1), mmap.PAGESIZE)
    return -(-size // step) * step


def memory_is_short() -> bool:
    """Return whether the machine or this process's control group has little memory left."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        if kib["MemAvailable"] < _SHORT * kib["MemTotal"]:
            return True
    except (OSError, KeyError):  # no Linux, or an old one: allocations that fail are the only sign
        return False
    try:
        most, current = ((_GROUP / f"memory.{name}").read_text(encoding="utf-8") for name in ("max", "current"))
        return most.strip().isdecimal() and int(most) - int(current) < _SHORT * int(most)
    except OSError:  # no limit that we can see
        return False


class _Block:
    """Memory in use; given back when the last array over it dies.

    Args:
        cache: where it goes then.
        memory: the mapping.
    """

    __slots__ = ("_cache", "memory")

    def __init__(self, cache: HostCache, memory: mmap.mmap) -> None:
        self._cache = cache
        self.memory = memory

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # then the mapping goes with the process, and modules are gone, this one too
            self._cache.give_back(self.memory)


class HostCache:
    """Free blocks by size; the ones unused for longest go first when they are too many.

    Args:
        limit: most bytes of free blocks.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._returned: deque[mmap.mmap] = deque()
        self.renew_lock()
        self._number = 0
        self._looked = 0.0

    def renew_lock(self) -> None:
        """Begin with a free lock: in a forked child, whoever held it is no more."""
        self._lock = threading.Lock()

    def buffer(self, size: int) -> Any:
        """Return a buffer of at least `size` bytes, page-aligned, its contents not set.

        Raises:
            MemoryError: there is no memory, even without the cache.
        """
        wanted = size_class(size)
        memory = self._take(wanted)
        if memory is None:
            try:
                memory = _mapped(wanted)
            except (OSError, MemoryError):
                self.trim()
                memory = self._mapped_or_fail(wanted)
        block = _Block(self, memory)
        # The array keeps the buffer alive, the buffer its block; the address is taken without an export of the
        # mapping, which would make it impossible to close.
        found: Any = (ctypes.c_char * wanted).from_address(_address(memory))
        found._block = block
        return found

    def _mapped_or_fail(self, size: int) -> mmap.mmap:
        try:
            return _mapped(size)
        except OSError as error:
            raise MemoryError(f"no memory for an array of {size} bytes") from error

    def _take(self, size: int) -> mmap.mmap | None:
        with self._lock:
            self._sort()
            # The newest block of the size: its lines are the likeliest to be in a cache.
            key = next((key for key in reversed(self._free) if len(self._free[key]) == size), None)
            return None if key is None else self._free.pop(key)

    def give_back(self, memory: mmap.mmap) -> None:
        """Keep a block for later. Called by the garbage collector at any moment, even inside this class."""
        self._returned.append(memory)
        if self._lock.acquire(blocking=False):
            try:
                self._sort()
            finally:
                self._lock.release()

    def _sort(self) -> None:
        """Put what was given back among the free blocks, and let go what is too much."""
        while self._returned:
            self._number += 1
            self._free[self._number] = self._returned.popleft()
        allowed = 0 if self._free and self._is_short() else self.limit
        total = sum(map(len, self._free.values()))
        while total > allowed:
            _, memory = self._free.popitem(last=False)
            total -= len(memory)
            memory.close()

    def _is_short(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return memory_is_short()

    @property
    def cached_bytes(self) -> int:
        """Bytes of free blocks."""
        with self._lock:
            self._sort()
            return sum(map(len, self._free.values()))

    def trim(self) -> None:
        """Give all free blocks back to the system."""
        with self._lock:
            self._sort()
            while self._free:
                self._free.popitem()[1].close()


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return memory


def _address(memory: mmap.mmap) -> int:
    view = ctypes.c_char.from_buffer(memory)
    return ctypes.addressof(view)


_cache: HostCache | None = None


def _after_fork() -> None:
    if _cache is not None:
        _cache.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def host_cache() -> HostCache:
    """Return the cache of this process, made at first use."""
    global _cache
    if _cache is None:
        _cache = HostCache(limit_bytes())
    return _cache
