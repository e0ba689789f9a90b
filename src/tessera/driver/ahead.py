"""Compiles the kernels that some work is going to launch: all at once, in several processes.

Work is first gone through without launches (`wanting`): each call of a kernel says which code it needs. What is neither
in memory nor on disk is then compiled by forked processes, which leave it in the disk cache.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from tessera.driver.cache import disk_cache
from tessera.driver.settings import settings
from tessera.driver.variants import Variant, Wanted
from tessera.runtime.forking import compiling
from tessera.runtime.recording import calls_in_python


class Wants:
    """The codes that some work needs and that are not there yet."""

    def __init__(self) -> None:
        self._found: dict[Hashable, Wanted] = {}

    def add(self, wanted: Wanted | None) -> None:
        """Note code that is needed, None for code that is there."""
        if wanted is not None:
            self._found.setdefault(wanted.key(), wanted)

    def compile(self) -> None:
        """Compile all, if there are several, in several processes; what fails is left to the call that needs it."""
        from tessera.runtime.workers import most_workers  # a process that finds its kernels forks none

        found, count = [*self._found.values()], most_workers()
        if len(found) <= count:
            _compile(found, count)
            return
        # Most sizes are not fixed in the code: one call of each kind tells which are.
        firsts = {one.kind: one for one in reversed(found)}
        _compile([one for one in found if firsts[one.kind] is one], count)
        fixed = {kind: one.found.fixed for kind, one in firsts.items() if one.found is not None}
        others = {one.key(fixed.get(one.kind, ())): one for one in found if firsts[one.kind] is not one}
        done = {one.key(fixed.get(one.kind, ())) for one in firsts.values()}
        _compile([one for key, one in others.items() if key not in done], count)


def _compile(wanted: Sequence[Wanted], count: int) -> None:
    """Compile codes in several processes, and take them from the disk."""
    from tessera.runtime.workers import share

    if len(wanted) > 1:
        share([partial(_find, one) for one in wanted], count)
    for one in wanted:
        with suppress(Exception):
            one.found = _find(one)
            one.found.origin = "compiled"  # by another process, for this one


def _find(one: Wanted) -> Variant:
    with compiling():  # not around the forks, for which other threads wait
        return one.find()


_current: ContextVar[Wants | None] = ContextVar("tessera_wants", default=None)


def current() -> Wants | None:
    """Return what notes the code that this context's calls need instead of making them, if anything does."""
    return _current.get()


def can() -> bool:
    """Return whether several processes may compile, and leave their code where this one finds it."""
    from tessera.runtime.workers import most_workers

    plain = not settings().interpret and not os.environ.get("TESSERA_DUMP_DIR")
    return plain and most_workers() > 1 and disk_cache() is not None


@contextmanager
def wanting() -> Generator[Wants]:
    """Launch nothing inside: calls of kernels note which code they need."""
    wants = Wants()
    token = _current.set(wants)
    try:
        with calls_in_python():
            yield wants
    finally:
        _current.reset(token)
