"""Programs of a grid in turns, so that one can wait in a `while` loop for what another one stores.

Only grids with such a loop are run so: one that looks at a tensor to which the grid stores. Each program has a thread,
of which one runs at a time. It hands over at the end of an iteration of such a loop, now and then, or at once where the
iteration changed nothing: it will go on so until memory changes. Where all programs wait so, there is a deadlock. With
a seed they hand over at random, also before atomics; the order is a function of the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import field
from threading import Semaphore, Thread
from typing import Any

import numpy as np
from xdsl.dialects.scf import WhileOp
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import DeviceError
from tessera.interp.machine import Machine
from tessera.interp.values import Array, Program
from tessera.ir.locations import location_of
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.writes import Stores
from tessera.ir.walking import ops_in

_PATIENCE = 16
"""Iterations after which a program lets others run, though each of them changed something."""
_MOST_NOTES = 32
"""Writes after which a program looks whether they changed anything."""
_SHOWN = 4
"""How many programs of a deadlock a message names."""


def waiting_loops(inner: Sequence[Operation]) -> frozenset[WhileOp]:
    """Return, of the ops of a grid, the `while` loops that look at what its programs store."""
    loops = [loop for loop in inner if isinstance(loop, WhileOp)]
    if not loops:
        return frozenset()
    stored = {one.tensor for one in inner if isinstance(one, Stores)}

    def looks(op: Operation) -> bool:
        return isinstance(op, LoadOp | GatherOp | AtomicOp) and op.tensor in stored

    return frozenset(loop for loop in loops if any(looks(op) for op in ops_in(loop)))


def run_program(op: GridOp, machine: Machine) -> None:
    """Run the machine's program of a grid."""
    machine.run(op.body.block, [np.int64(offset) for offset in machine.program.offsets])


class _Abandoned(BaseException):
    """Unwinds a program after another one failed."""


@dataclass(eq=False, slots=True)
class _Member:
    """A program that was started.

    Args:
        program: its state.
        values: what it has computed.
        turn: given to it when it may go on.
        waits: the loop, or the op, in which it waits for a change of memory.
        seen: how many changes there had been then.
        marks: how many there had been at the end of the last iteration of each loop.
        finished: whether it has ended.
        error: what it raised.
    """

    program: Program
    values: dict[SSAValue, Any]
    turn: Semaphore = field(default_factory=lambda: Semaphore(0))
    waits: Operation | None = None
    seen: int = 0
    marks: dict[WhileOp, int] = field(default_factory=dict[WhileOp, int])
    finished: bool = False
    error: Exception | None = None


@dataclass(eq=False, slots=True)
class Turns:
    """The programs of a grid, one of which runs at a time.

    Args:
        machine: the machine.
        loops: the loops in which a program may wait.
        meets: whether programs of clusters wait for each other: those that have started go on before others start.
        members: the programs that have started and not ended, the one that has waited longest for its turn first.
        current: the one that has the turn.
        changes: how often memory has changed.
        notes: what was written of late: memory, its part, and what was there before.
    """

    machine: Machine
    loops: frozenset[WhileOp]
    meets: bool = False
    members: list[_Member] = field(default_factory=list[_Member])
    current: _Member | None = None
    changes: int = 0
    notes: list[tuple[Array, Any, Array]] = field(default_factory=list[tuple[Array, Any, Array]])
    _back: Semaphore = field(default_factory=lambda: Semaphore(0))
    _abandoned: bool = False

    def run(self, op: GridOp, programs: Iterator[Program]) -> None:
        """Run all programs to their end.

        Raises:
            DeviceError: what a program raised, or `deadlock`.
        """
        machine = self.machine
        values, outer = machine.values, machine.program
        try:
            self._direct(op, programs, values)
        finally:
            self._abandoned = True
            for member in self.members:
                member.turn.release()
            machine.values, machine.program = values, outer

    def _direct(self, op: GridOp, programs: Iterator[Program], values: dict[SSAValue, Any]) -> None:
        """Give the turn to one program after the other."""
        upcoming = next(programs, None)
        while self.members or upcoming is not None:
            ready = [m for m in self.members if m.waits is None or m.seen != self.changes]
            if not ready and upcoming is None:
                raise self._deadlock()
            member = self._choice(ready, upcoming is not None)
            if member is None:
                assert upcoming is not None
                member = self._started(op, upcoming, dict(values))
                upcoming = next(programs, None)
            self._give(member)
            if member.error is not None:
                raise member.error

    def _choice(self, ready: Sequence[_Member], more: bool) -> _Member | None:
        """Return the program that goes on, None for one that has not started."""
        order = self.machine.order
        if order is not None:
            at = int(order.integers(len(ready) + more))
            return ready[at] if at < len(ready) else None
        return None if more and not (self.meets and ready) else ready[0]

    def _started(self, op: GridOp, program: Program, values: dict[SSAValue, Any]) -> _Member:
        member = _Member(program, values)
        self.members.append(member)
        Thread(target=copy_context().run, args=(self._play, member, op), daemon=True).start()
        return member

    def _play(self, member: _Member, op: GridOp) -> None:
        """Run a program in its thread."""
        member.turn.acquire()
        try:
            if not self._abandoned:
                run_program(op, self.machine)
        except _Abandoned:
            pass
        except Exception as error:  # raised again by the thread that directs
            member.error = error
        member.finished = True
        self._back.release()

    def _give(self, member: _Member) -> None:
        """Let a program run until it hands over or ends."""
        self.current = member
        self.machine.values, self.machine.program = member.values, member.program
        member.turn.release()
        self._back.acquire()
        self._count_changes()
        self.members.remove(member)
        if not member.finished:
            self.members.append(member)

    def _hand_over(self, waits: Operation | None = None) -> None:
        """Let other programs run; called by the one that has the turn."""
        member = self.current
        assert member is not None
        self._count_changes()
        member.waits, member.seen = waits, self.changes
        self._back.release()
        member.turn.acquire()
        if self._abandoned:
            raise _Abandoned
        member.waits = None

    def wait(self, op: Operation) -> None:
        """Let other programs run, as the one that has the turn waits for them at an op."""
        self._hand_over(op)

    def note(self, memory: Array, at: Any) -> None:
        """Note that a part of memory is about to be written."""
        if len(self.notes) >= _MOST_NOTES:
            self._count_changes()
        self.notes.append((memory, at, np.array(memory[at])))

    def _count_changes(self) -> None:
        self.changes += any(not _same(memory[at], held) for memory, at, held in self.notes)
        self.notes.clear()

    def before_atomic(self) -> None:
        """Perhaps let other programs run."""
        if self.machine.order is not None and self.machine.order.integers(2):
            self._hand_over()

    def after_iteration(self, loop: WhileOp, turn: int, before: Sequence[Any], after: Sequence[Any]) -> None:
        """Let other programs run after an iteration of a loop, which they may change the course of.

        Args:
            loop: the loop.
            turn: which iteration it was.
            before: what the loop carried into it.
            after: what it carries into the next.
        """
        member = self.current
        if loop not in self.loops or member is None:
            return
        self._count_changes()
        changed = turn == 0 or self.changes != member.marks[loop]
        member.marks[loop] = self.changes
        if not changed and all(_same(a, b) for a, b in zip(before, after, strict=True)):
            self._hand_over(loop)
        elif turn % _PATIENCE == _PATIENCE - 1 if self.machine.order is None else self.machine.order.integers(2):
            self._hand_over()

    def _deadlock(self) -> DeviceError:
        """Return the error of programs that wait for each other, with the lines at which they do."""
        machine = self.machine
        places: dict[Operation, list[Program]] = {}
        for member in sorted(self.members, key=lambda member: member.program.number):
            if member.waits is not None:
                places.setdefault(member.waits, []).append(member.program)
        (loop, programs), *others = places.items()
        machine.program = programs[0]
        error = machine.fault(
            loop,
            "deadlock",
            f"no program can go on: here {_names(programs)}, for memory to change",
            help="what a program waits for is stored by another one before that waits itself",
        )
        found = ((f"here {_names(programs)}", location_of(loop)) for loop, programs in others)
        error.related = tuple((text, place) for text, place in found if place is not None)
        return error


def _names(programs: Sequence[Program]) -> str:
    """Say which programs wait."""
    names = [f"({', '.join(str(int(offset)) for offset in program.offsets)})" for program in programs[:_SHOWN]]
    more = f" and {len(programs) - _SHOWN} others" if len(programs) > _SHOWN else ""
    if len(programs) == 1:
        return f"waits the program at {names[0]}"
    return f"wait the programs at {', '.join(names)}{more}"


def _same(a: Any, b: Any) -> bool:
    """Return whether two scalars or tiles have the same bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.tobytes() == b.tobytes()
