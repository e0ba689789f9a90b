"""What a fork means to compilation: it waits until no other thread compiles, so that the child can.

A child has one thread, and every lock that another thread held stays locked in it: those of kernels, of the compiler's
own data and of LLVM. There is no way to free them in the child, since what they guard may be half done.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tessera.collecting import collector_paused

_LONGEST_S = 60.0
"""A fork waits no longer, as what compiles may itself wait for something that the forking thread holds."""


class _Gate:
    """Counts the threads that compile, and closes while one forks."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._active: dict[int, int] = {}
        self._forking = 0
        self._llvm: Any = None

    def enter(self) -> None:
        """Note that this thread begins to compile, after a fork that is under way."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: not self._forking or me in self._active)
            self._active[me] = self._active.get(me, 0) + 1

    def leave(self) -> None:
        """Note that this thread has compiled."""
        me = threading.get_ident()
        with self._changed:
            self._active[me] -= 1
            if not self._active[me]:
                del self._active[me]
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait for the other threads, and for what else uses LLVM."""
        me = threading.get_ident()
        with self._changed:
            self._forking += 1
            alone = self._changed.wait_for(lambda: self._active.keys() <= {me}, _LONGEST_S)
        # By name: only backends import llvmlite, whose lock every call of LLVM takes, by whatever library.
        library = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
        self._llvm = getattr(library, "_lock", None) if alone else None
        if self._llvm is not None:
            self._llvm.__enter__()

    def after_in_parent(self) -> None:
        """Let compilations go on."""
        if self._llvm is not None:
            self._llvm.__exit__(None, None, None)
        with self._changed:
            self._forking -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Be as new: no other thread is left."""
        if self._llvm is not None:
            self._llvm.__exit__(None, None, None)
        me = threading.get_ident()
        self._changed = threading.Condition()
        self._active = {me: self._active[me]} if me in self._active else {}
        self._forking = 0


_gate = _Gate()


@contextmanager
def compiling() -> Generator[None]:
    """Keep other threads from forking meanwhile, and the collector from running.

    Entered before any lock that is held while compiling.
    """
    _gate.enter()
    try:
        with collector_paused():
            yield
    finally:
        _gate.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_gate.before_fork,
        after_in_parent=_gate.after_in_parent,
        after_in_child=_gate.after_in_child,
    )
