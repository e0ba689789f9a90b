"""The state of shared buffers, stage by stage, and the errors of accesses that nothing orders.

The rules are those of `interp.shared`, without data: a copy's data arrive at the `wait_group` that covers it, and what
the threads wrote is theirs to read, and what they read theirs to overwrite, after a `barrier`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from enum import Enum
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation

from tessera.data import dataclass
from tessera.errors import LanguageError
from tessera.ir.locations import location_of
from tessera.ir.tile.atomics import SharedAtomicOp


class Access(NamedTuple):
    """An op that was run.

    Args:
        op: the op.
        turns: the loops around it, outermost first, each with the number of its iteration.
    """

    op: Operation
    turns: tuple[tuple[Operation, int], ...] = ()

    def is_of_later_turn(self, other: Access) -> bool:
        """Return whether an access before this one was made in an earlier iteration of a loop around both."""
        for (loop, turn), (others, before) in zip(self.turns, other.turns, strict=False):
            if loop is not others or turn != before:
                return loop is others
        return False


class State(Enum):
    """What a stage holds."""

    UNDEFINED = 0
    COPIED_TO = 1
    WRITTEN = 2


Mask = npt.NDArray[np.bool_]
Places = tuple[npt.NDArray[np.int64], ...]


@dataclass(eq=False, slots=True)
class Stage:
    """What is known of one stage, or of the elements of one that were accessed alike.

    Args:
        alloc: what made the buffer.
        where: which elements of the stage it is about.
        state: what it holds.
        writer: what wrote it last, or copies to it.
        written: how many barriers there had been when it was written, or when the copy arrived.
        reader: what read it last.
        read: how many barriers there had been then.
    """

    alloc: Access
    where: Mask
    state: State = State.UNDEFINED
    writer: Access | None = None
    written: int = -1
    reader: Access | None = None
    read: int = -1

    def alike(self, barriers: int) -> tuple[object, ...] | None:
        """Return what later accesses can tell it by, after so many barriers; None while it is copied to."""
        if self.state is State.COPIED_TO:
            return None
        writer = self.writer.op if self.writer is not None and self.written == barriers else None
        reader = self.reader.op if self.reader is not None and self.read == barriers else None
        return self.state, writer, reader


@dataclass(eq=False, slots=True)
class Buffer:
    """A shared buffer by its stages: all places along its leading dimensions, as far as views pick them.

    A stage of which parts were accessed is kept in as many. `lost` buffers were written at a place that depends on
    data: nothing is known of any stage.
    """

    stages: dict[tuple[int, ...], list[Stage]]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    lost: bool = False

    @classmethod
    def of(cls, alloc: Access, sizes: tuple[int, ...], shape: tuple[int, ...]) -> Buffer:
        """Return a buffer that holds nothing, of stages of a shape."""
        where = np.ones(shape, np.bool_)
        return cls({at: [Stage(alloc, where)] for at in product(*map(range, sizes))}, sizes, shape)

    def part(self, at: tuple[int, ...], wanted: Mask) -> Iterator[Stage]:
        """Return the wanted elements of a stage, which are taken apart from the others."""
        for stage in list(self.stages[at]):
            inside = stage.where & wanted
            if not inside.any():
                continue
            if (stage.where & ~wanted).any():
                self.stages[at].append(replace(stage, where=stage.where & ~wanted))
                stage.where = inside
            yield stage

    def join(self, barriers: int) -> None:
        """Put elements together that nothing tells apart any more."""
        for at, stages in self.stages.items():
            found: dict[tuple[object, ...], Stage] = {}
            for number, stage in enumerate(stages):
                first = found.setdefault(stage.alike(barriers) or (number,), stage)
                if first is not stage:
                    first.where = first.where | stage.where
            self.stages[at] = list(found.values())


class View(NamedTuple):
    """A buffer, or the part of it at `at` of its leading dimensions; None is a place that is not known."""

    buffer: Buffer
    at: tuple[int | None, ...] = ()

    def stages(self) -> Iterator[Stage]:
        """Return the stages it covers; none where it is not known which, or where there is none."""
        if None in self.at or self.buffer.lost:
            return
        rest = map(range, self.buffer.sizes[len(self.at) :])
        for places in product(*((at,) for at in self.at), *rest):
            yield from self.buffer.stages.get(tuple(place for place in places if place is not None), ())

    def elements(self, places: Places) -> Iterator[Stage]:
        """Return what it holds at some places, one along each of its dimensions as they are stored."""
        if None in self.at or self.buffer.lost:
            return
        known = [np.full(len(places[0]), at) for at in self.at if at is not None]
        every, leading = [*known, *places], len(self.buffer.sizes)
        numbers = np.stack(every[:leading], 1) if leading else np.zeros((len(places[0]), 0), np.int64)
        for at in np.unique(numbers, axis=0):
            here = (numbers == at).all(1)
            wanted = np.zeros(self.buffer.shape, np.bool_)
            wanted[tuple(each[here] for each in every[leading:])] = True
            if tuple(at.tolist()) in self.buffer.stages:
                yield from self.buffer.part(tuple(at.tolist()), wanted)


@dataclass(eq=False, slots=True)
class Group:
    """Copies that were committed together.

    Args:
        stages: what they copy to.
        left: the `pending` of the last `wait_group` that did not wait for them, if any.
    """

    stages: list[Stage]
    left: int | None = None


@dataclass(eq=False, slots=True)
class Memory:
    """The shared memory of one program.

    Args:
        barriers: how many there were.
        started: what is copied to and in no group yet.
        groups: committed groups that no wait has covered, oldest first.
    """

    barriers: int = 0
    started: list[Stage] = field(default_factory=list[Stage])
    groups: list[Group] = field(default_factory=list[Group])

    def read(self, view: View, access: Access) -> None:
        """Note a read of all of a view.

        Raises:
            LanguageError: `race` or `uninitialized-read`.
        """
        self._read(view.stages(), access)

    def read_elements(self, view: View, places: Places | None, access: Access) -> None:
        """Note a read of elements, which may be any where it is not known which.

        Raises:
            LanguageError: `race` or `uninitialized-read`.
        """
        if places is not None:
            self._read(view.elements(places), access)
            view.buffer.join(self.barriers)
            return
        stages = list(view.stages())
        written = [stage for stage in stages if stage.state is not State.UNDEFINED]
        self._read(written or stages, access)

    def _read(self, stages: Iterable[Stage], access: Access) -> None:
        for stage in stages:
            if stage.state is State.UNDEFINED:
                raise _fault(access, stage.alloc, *_NOTHING, code="uninitialized-read")
            self._check_settled(stage, access)
            stage.reader, stage.read = access, self.barriers

    def write(self, view: View, access: Access) -> None:
        """Note a store to all of a view, or to elements of it that may be any.

        Raises:
            LanguageError: `race`.
        """
        view.buffer.lost |= None in view.at
        self._write(view.stages(), access)

    def write_elements(self, view: View, places: Places | None, access: Access) -> None:
        """Note a store to elements, which may be any where it is not known which.

        Raises:
            LanguageError: `race`.
        """
        if places is None or None in view.at:
            self.write(view, access)
            return
        self._write(view.elements(places), access)
        view.buffer.join(self.barriers)

    def _write(self, stages: Iterable[Stage], access: Access) -> None:
        for stage in stages:
            self._check_unused(stage, access)
            stage.state, stage.writer, stage.written = State.WRITTEN, access, self.barriers

    def update(self, view: View, places: Places | None, access: Access, writes: bool) -> None:
        """Note an atomic of some elements, with which other atomics go together; of any where it is not known which.

        Raises:
            LanguageError: `race`.
        """
        view.buffer.lost |= writes and None in view.at
        for stage in view.stages() if places is None else view.elements(places):
            if stage.writer is None or not isinstance(stage.writer.op, SharedAtomicOp):
                self._check_settled(stage, access)
            if writes and stage.read == self.barriers and stage.reader is not None:
                message = "writes a shared buffer that was read after the last barrier"
                raise _fault(access, stage.reader, message, "read", _barrier(access, stage.reader))
            if writes:
                stage.state, stage.writer, stage.written = State.WRITTEN, access, self.barriers

    def _check_settled(self, stage: Stage, access: Access) -> None:
        if stage.state is State.COPIED_TO and stage.writer is not None:
            message = "reads a shared buffer while an asynchronous copy to it is under way"
            raise _fault(access, stage.writer, message, "copied to", self._wait_for(stage))
        if stage.written == self.barriers and stage.writer is not None:
            message = "reads a shared buffer that was written after the last barrier"
            raise _fault(access, stage.writer, message, "written", _barrier(access, stage.writer))

    def copy(self, view: View, access: Access) -> None:
        """Note the start of an asynchronous copy.

        Raises:
            LanguageError: `race`.
        """
        view.buffer.lost |= None in view.at
        for stage in view.stages():
            self._check_unused(stage, access)
            stage.state, stage.writer = State.COPIED_TO, access
            self.started.append(stage)

    def commit(self) -> None:
        """Close the group of copies."""
        self.groups.append(Group(self.started))
        self.started = []

    def wait(self, pending: int) -> None:
        """Let the copies of all but the newest `pending` groups arrive."""
        done = max(len(self.groups) - pending, 0)
        for stage in (stage for group in self.groups[:done] for stage in group.stages):
            stage.state, stage.written = State.WRITTEN, self.barriers
        del self.groups[:done]
        for group in self.groups:
            group.left = pending

    def _check_unused(self, stage: Stage, access: Access) -> None:
        if stage.state is State.COPIED_TO and stage.writer is not None:
            message = "writes a shared buffer while it is being copied to"
            raise _fault(access, stage.writer, message, "copied to", self._wait_for(stage))
        if stage.state is State.WRITTEN and stage.written == self.barriers and stage.writer is not None:
            message = "writes a shared buffer twice with no barrier between"
            raise _fault(access, stage.writer, message, "written", _barrier(access, stage.writer))
        if stage.read == self.barriers and stage.reader is not None:
            message = "writes a shared buffer that was read after the last barrier"
            raise _fault(access, stage.reader, message, "read", _barrier(access, stage.reader))

    def _wait_for(self, stage: Stage) -> str:
        """Say what lets the copy to a stage arrive."""
        if stage in self.started:
            return "call commit_group() after the copy, then wait_group(0) and barrier(), before this line"
        newer = next(at for at, group in enumerate(reversed(self.groups)) if stage in group.stages)
        left = self.groups[-1 - newer].left
        waited = "" if left is None else f"wait_group({left}) does not wait for it: "
        return f"{waited}call wait_group({newer}) and barrier() before this line"


_NOTHING = (
    "reads a shared buffer that nothing was written to",
    "allocated",
    "write it first, or copy to it and wait for the copy",
)


def _barrier(access: Access, other: Access) -> str:
    """Say where a barrier is missing between an access and one before it."""
    if access.turns == other.turns and location_of(access.op) == location_of(other.op):
        return "a buffer, or a view such as buffer.T, is read where it is used: load() it and call barrier() before"
    if access.is_of_later_turn(other):
        return "call barrier() between the two, such as at the end of the loop's body"
    return "call barrier() between the two lines"


def _fault(access: Access, other: Access, message: str, what: str, help: str, code: str = "race") -> LanguageError:
    """Return the error of an access that conflicts with an earlier one."""
    error = LanguageError(message, code=code, location=location_of(access.op), help=help)
    first = location_of(other.op)
    if first is not None:
        when = ", an iteration earlier" if access.is_of_later_turn(other) else ""
        error.related = ((f"{what} here{when}", first),)
    return error
