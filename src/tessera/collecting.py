"""Keeps Python's cycle collector from running while a kernel is compiled, or the package imported.

A compilation makes hundreds of thousands of objects, most of which live until its end, and the collector would go
through all of them again and again: a sixth of a kernel's time, and more of a long one's.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_MODULES = 50_000
"""Objects: the compiler's import makes more, a call from the cache fewer."""


class _Pauses:
    """How many are under way, and whether the collector was on before them."""

    count = 0
    was_on = False
    settled = False


@contextmanager
def collector_paused(*, keep: bool = False) -> Generator[None]:
    """Collect no cycles meanwhile; threads may overlap, and the last one to leave turns the collector on again.

    Args:
        keep: whether what is made meanwhile stays, as modules do: then the collector need not look through it soon.
    """
    with _lock:
        if not _Pauses.count:
            _Pauses.was_on = gc.isenabled()
            gc.disable()
        _Pauses.count += 1
    try:
        yield
    finally:
        with _lock:
            _Pauses.count -= 1
            if not _Pauses.count and _Pauses.was_on:
                if keep or _are_modules():
                    _settle()
                gc.enable()


def _are_modules() -> bool:
    """Whether the first many objects are new: they are the compiler's modules.

    Later ones are left to the collector: what a compilation drops is to be found early.
    """
    if _Pauses.settled or gc.get_count()[0] < _MODULES:
        return False
    _Pauses.settled = True
    return True


def _settle() -> None:
    """Call all objects old; the collector would go through them twice before it did."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()  # to the oldest generation, wherever they were


def _after_fork() -> None:
    """The threads that compiled are not in the child: nothing is under way there."""
    global _lock
    _lock = threading.Lock()
    if _Pauses.count and _Pauses.was_on:
        gc.enable()
    _Pauses.count = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
