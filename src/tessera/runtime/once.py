"""What a process makes once, whichever of its threads asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, TypeVarTuple

A = TypeVarTuple("A")
R = TypeVar("R")


class once(Generic[*A, R]):
    """Decorates a function whose result is made once for each arguments and then kept.

    `functools.cache` lets two threads make it at the same time and drops one of the two: wrong for what is only alive
    while it is kept, such as loaded code whose address somebody has.

    Args:
        make: the function, of hashable arguments.
    """

    def __init__(self, make: Callable[[*A], R]) -> None:
        self._make, self._lock = make, threading.RLock()
        self._made: dict[tuple[*A], R] = {}
        self.__doc__ = make.__doc__

    def __call__(self, *args: *A) -> R:
        """Return the result, made now if nobody has asked before."""
        if args not in self._made:
            with self._lock:
                if args not in self._made:
                    # A signal's handler may ask on this very thread meanwhile: the first one that is made stays.
                    self._made.setdefault(args, self._make(*args))
        return self._made[args]

    def cache_clear(self) -> None:
        """Forget the results."""
        self._made.clear()
