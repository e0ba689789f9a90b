"""Records what work launches, with where each address comes from, so that it can be launched again on other arrays.

While work is recorded the compiled entry leaves all calls to Python, which tells the recorder of each launch and of all
memory that the work takes for itself. Arrays that are made meanwhile stay until the recording ends, so that an address
has one meaning.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tessera.data import dataclass
from tessera.numerics import profiles
from tessera.runtime.platforms import Plan

Place = tuple[Hashable, int]
"""What an address belongs to, and how many bytes after its start it is."""
NOWHERE: Place = (None, 0)
"""The address of arrays without memory."""


@dataclass(frozen=True, slots=True)
class Made:
    """Memory that work takes for itself.

    Args:
        number: which piece of it.
    """

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Memory that work may use.

    Args:
        place: where its start lies.
        start: address of its first byte.
        first: address of the first byte that belongs to it.
        end: address after the last one.
        axes: sizes and strides in bytes, None where all bytes between belong to it.
    """

    place: Place
    start: int
    first: int
    end: int
    axes: tuple[tuple[int, int], ...] | None = None

    def may_hold(self, pointer: int) -> bool:
        """Return whether an element may start at an address, or an address may be inside of one."""
        if not self.first <= pointer < self.end:
            return False
        if self.axes is None:
            return True
        after, below = pointer - self.start, 0
        for size, stride in sorted(self.axes, key=lambda axis: axis[1]):
            if stride <= below:
                return True  # elements of the other axes lie between: any address may be one
            below += (size - 1) * stride
        for size, stride in sorted(self.axes, key=lambda axis: -axis[1]):
            after -= min(after // stride, size - 1) * stride
        return not after


@dataclass(frozen=True, slots=True, eq=False)
class Launched:
    """A launch that can be started again.

    Args:
        plan: the launch.
        places: where each pointer lies.
        scalars: its other arguments.
    """

    plan: Plan
    places: tuple[Place, ...]
    scalars: tuple[Any, ...]


class Recorder:
    """What some work did.

    Args:
        known: memory that the work is given.
        exact: where the pointers of each launch lie, if that is known.
    """

    def __init__(self, known: Sequence[Range], exact: Sequence[Place] | None = None) -> None:
        self._known = list(known)
        self._exact = exact
        self._kept: list[object] = []
        self.made: list[int] = []
        """Bytes of each piece of memory that the work took; piece `n` is `Made(n)`."""
        self.launches: list[Launched] = []
        self.refused = ""
        """Why the work cannot be launched again, empty if it can."""
        self.changes = False
        """Whether PyTorch was told that the work changes tensors that it is given."""
        self.is_watching = False
        """Whether a mode of PyTorch tells what the work does there."""

    def take(self, start: int, size: int, owner: object = None) -> None:
        """Note memory that the work takes for itself."""
        if size:
            self._known.append(Range((Made(len(self.made)), 0), start, start, start + size))
        self.made.append(size)
        self._kept.append(owner)

    def launch(self, plan: Plan, pointers: Sequence[int], scalars: Sequence[Any], keep: Sequence[Any]) -> None:
        """Note a launch."""
        if any(hasattr(owner, "used_on") for owner in keep):
            self.refuse("an array follows the stream that uses it")
        places = tuple(map(self.place_of, pointers) if self._exact is None else self._exact)
        self.launches.append(Launched(plan, places, tuple(scalars)))

    def place_of(self, pointer: int) -> Place:
        """Return where an address lies; memory that was taken last comes first, as an address may be taken twice."""
        if not pointer:
            return NOWHERE
        found = [one for one in reversed(self._known) if one.may_hold(pointer)]
        made = [one for one in found if isinstance(one.place[0], Made)]
        places = {(one.place[0], one.place[1] + pointer - one.start) for one in made[:1] or found}
        if len(places) == 1:
            return places.pop()
        self.refuse("arguments share memory" if places else "memory from elsewhere is used")
        return NOWHERE

    def refuse(self, reason: str) -> None:
        """Note that the work does more than launches."""
        self.refused = self.refused or reason


_current: ContextVar[Recorder | None] = ContextVar("tessera_recorder", default=None)


def current() -> Recorder | None:
    """Return what records the work of this context, if anything does."""
    return _current.get()


@contextmanager
def recording(known: Sequence[Range], exact: Sequence[Place] | None = None) -> Generator[Recorder]:
    """Record what is launched inside.

    Args:
        known: memory that it may use.
        exact: where the pointers of each launch lie, if that is known.
    """
    made = Recorder(known, exact)
    token = _current.set(made)
    try:
        with calls_in_python():
            yield made
    finally:
        _current.reset(token)


@contextmanager
def calls_in_python() -> Generator[None]:
    """Let the compiled entry leave all calls to Python."""
    # It compares profiles by identity: an equal one of another identity makes it do so.
    apart: Any = profiles.current_profile().encode().decode()
    token = profiles.current.set(apart)
    try:
        yield
    finally:
        profiles.current.reset(token)
