"""Warp roles side by side, with the phase barriers and bulk copies between them.

Every role runs in a thread of its own, but only one runs at a time: it hands over when it has to wait, or, when
the order is shuffled, at any op on a barrier. So a run is deterministic, and its interleaving a function of the
seed. Races are found whatever the interleaving: barriers carry vector clocks (`values.Role`), and an access that no
barrier orders after a conflicting one is an error. A copy's data arrive as late as can be, when a role waits for
its barrier.

Groups of consumers are roles of their own. Then a program has several tiles: the producer goes through all of them, a
group through its own, each from tile to tile with the state that the last one left.

An element remembers its last reader only: of two roles that read a buffer, a write may miss a race with the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import field
from threading import Semaphore
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import DeviceError
from tessera.interp.between import writes
from tessera.interp.casts import tf32
from tessera.interp.machine import Machine, handles
from tessera.interp.memory import box_of, read_box
from tessera.interp.shared import read_buffer, settle, write_buffer
from tessera.interp.values import Access, Array, BulkStore, Role, Shared, State, merge
from tessera.ir.locations import location_of
from tessera.ir.tile.roles import (
    AllocBarriersOp,
    BarrierArriveOp,
    BarrierExpectOp,
    BarriersType,
    BarrierWaitOp,
    BulkCopyOp,
    BulkStoreOp,
    BulkWaitOp,
    RoleEndOp,
    RoleGroupOp,
    RolesOp,
)


@dataclass(eq=False, slots=True)
class BulkCopy:
    """A copy under way: the op that started it, the destination and the data that will arrive."""

    op: BulkCopyOp
    target: Shared
    data: Array


@dataclass(eq=False, slots=True)
class PhaseBarrier:
    """One barrier.

    Args:
        number: stands for the deliverer of its copies among the roles of the program.
        arrivals: arrivals that end a phase.
        phase: the current phase; those before it have ended.
        arrived: the ops that arrived in it.
        missing: bytes expected in it that have not been delivered; negative when there were too many.
        copies: copies under way, oldest first.
        taken: what those who arrived in it were ordered after.
        given: what all phases that have ended order a wait after.
    """

    number: int
    arrivals: int
    phase: int = 0
    arrived: list[Operation] = field(default_factory=list[Operation])
    missing: int = 0
    copies: list[BulkCopy] = field(default_factory=list[BulkCopy])
    taken: dict[int, int] = field(default_factory=dict[int, int])
    given: dict[int, int] = field(default_factory=dict[int, int])

    def has_ended(self, parity: int) -> bool:
        """Return whether the phase of a parity has ended: the one before the first has odd parity and has."""
        return self.phase % 2 != parity

    def end_if_complete(self) -> None:
        """End the phase if everything it waits for has come."""
        if len(self.arrived) < self.arrivals or self.missing:
            return
        self.phase += 1
        merge(self.given, self.taken)
        self.given[self.number] = self.phase
        self.arrived, self.taken = [], {}

    def deliver(self, machine: Machine) -> None:
        """Let the data of one copy arrive."""
        at = 0 if machine.order is None else int(machine.order.integers(len(self.copies)))
        copy = self.copies.pop(at)
        program = machine.program
        copy.target.data[...] = copy.data
        copy.target.state[...] = State.DEFINED
        copy.target.writer[...] = program.note(Access(copy.op, self.number, self.phase + 1, 0))
        self.missing -= copy.data.nbytes
        self.end_if_complete()

    def passes(self, parity: int, machine: Machine) -> bool:
        """Return whether a wait for a parity returns, after as many deliveries as it takes."""
        while not self.has_ended(parity) and self.copies:
            self.deliver(machine)
        return self.has_ended(parity)


@dataclass(eq=False, slots=True)
class _Wait:
    """What a role waits for."""

    op: BarrierWaitOp
    barrier: PhaseBarrier
    at: int
    parity: int

    def describe(self) -> str:
        barrier = self.barrier
        place = location_of(self.op)
        needs: list[str] = []
        if late := barrier.arrivals - len(barrier.arrived):
            needs.append(f"{late} more arrival{'s' if late > 1 else ''}")
        if barrier.missing:
            needs.append(f"{abs(barrier.missing)} bytes {'more' if barrier.missing > 0 else 'fewer'}")
        return (
            f"waits{f' at {place}' if place else ''} for the end of phase {barrier.phase} (parity {self.parity}) "
            f"of barrier {self.at}, which needs {' and '.join(needs)}"
        )


class _Abandoned(BaseException):
    """Unwinds a role after another one failed."""


@dataclass(eq=False, slots=True)
class _Member:
    """A role that runs in a thread, when it has the turn: its tiles one after the other, with values of its own."""

    role: Role
    block: Block
    state: Sequence[Any]
    tiles: Sequence[tuple[int, ...]]
    values: dict[SSAValue, Any]
    offsets: tuple[int, ...] = ()
    turn: Semaphore = field(default_factory=lambda: Semaphore(0))
    wait: _Wait | None = None
    finished: bool = False
    failed: bool = False


@dataclass(eq=False, slots=True)
class Crew:
    """The roles that run side by side, one at a time."""

    machine: Machine
    members: list[_Member]
    current: _Member = field(init=False)
    handed_back: Semaphore = field(default_factory=lambda: Semaphore(0))
    abandoned: bool = False

    def __post_init__(self) -> None:
        self.current = self.members[0]

    def run(self, op: RolesOp) -> None:
        """Run every role to its end.

        Raises:
            DeviceError: what a role raised, or `deadlock`.
        """
        with ThreadPoolExecutor(len(self.members)) as pool:
            played = [pool.submit(copy_context().run, self._play, member) for member in self.members]
            try:
                self._direct(op)
            finally:
                self.abandoned = True
                for member in self.members:
                    member.turn.release()
        for future in played:
            future.result()

    def _play(self, member: _Member) -> None:
        """Run a role in its thread."""
        member.turn.acquire()
        try:
            if not self.abandoned:
                with suppress(_Abandoned):
                    self._work(member)
            member.finished = True
        finally:
            member.failed = not member.finished
            self.handed_back.release()

    def _work(self, member: _Member) -> None:
        """Run a role for each of its tiles, and wait for its stores."""
        machine, state = self.machine, member.state
        for offsets in member.tiles:
            member.offsets = machine.program.offsets = offsets
            if len(machine.program.tiles) > 1:
                _move_to(machine, member.block, offsets)
            machine.run(member.block, state)
            end = member.block.last_op
            assert isinstance(end, RoleEndOp)
            state = machine.all(end.state)
        for store in member.role.stores:
            store.finish()

    def _direct(self, op: RolesOp) -> None:
        """Give the turn to one role after the other until all have finished or one has failed."""
        machine = self.machine
        program, order = machine.program, machine.order
        outside, values = program.role, machine.values
        while unfinished := [member for member in self.members if not member.finished]:
            ready = [member for member in unfinished if self._is_ready(member)]
            if not ready:
                program.role, machine.values = outside, values
                raise self._deadlock(op, unfinished)
            if order is not None:
                self.current = ready[int(order.integers(len(ready)))]
            elif self.current not in ready:
                self.current = ready[0]
            program.role, program.offsets = self.current.role, self.current.offsets
            machine.values = self.current.values
            self.current.turn.release()
            self.handed_back.acquire()
            if self.current.failed:
                return

    def _is_ready(self, member: _Member) -> bool:
        wait = member.wait
        return wait is None or wait.barrier.passes(wait.parity, self.machine)

    def _deadlock(self, op: RolesOp, stuck: Sequence[_Member]) -> DeviceError:
        waits = [(member.role.name, member.wait) for member in stuck if member.wait is not None]
        finished = [f"the {m.role.name} has finished" for m in self.members if m.finished]
        text = "; ".join([*(f"the {name} {wait.describe()}" for name, wait in waits), *finished])
        return self.machine.fault(
            waits[0][1].op,
            "deadlock",
            f"no role can go on: {text}",
            help="every phase waited for needs its arrivals and the bytes expected in it",
        )

    def hand_over(self, wait: _Wait | None = None) -> None:
        """Let other roles run, and return when `wait` is over; called by the role that has the turn."""
        if wait is None and self.machine.order is None:
            return
        member = self.current
        member.wait = wait
        self.handed_back.release()
        member.turn.acquire()
        if self.abandoned:
            raise _Abandoned
        member.wait = None


@handles(RolesOp)
def _roles(op: RolesOp, machine: Machine) -> None:
    program = machine.program
    outside, around = program.role, program.crew
    past = outside.release()
    members: list[_Member] = []
    state, values, tiles = machine.all(op.state), machine.values, program.tiles or [()]
    groups = op.groups.data

    def add(name: str, block: Block, group: int, tiles: Sequence[tuple[int, ...]]) -> None:
        number = program.new_role()
        role = Role(number, name, {**past, number: 1}, group=group)
        members.append(_Member(role, block, state, tiles, dict(values) if groups > 1 else values))

    add("producer", op.producer.block, 0, tiles)
    for group in range(groups):
        name = f"consumer {group}" if groups > 1 else "consumer"
        add(name, op.consumer.block, group, tiles if op.together is not None else tiles[group::groups])
    program.crew = Crew(machine, members)
    program.crew.run(op)
    program.role, program.crew, program.offsets, machine.values = outside, around, tiles[0], values
    for member in members:
        outside.acquire(member.role.clock)


def _move_to(machine: Machine, block: Block, offsets: tuple[int, ...]) -> None:
    """Compute anew what depends on a program's tile: scalars of the grid, which roles use."""
    roles = block.parent_op()
    assert roles is not None
    around = roles.parent
    assert around is not None
    machine.values.update(zip(around.args, map(np.int64, offsets), strict=True))
    moving: set[SSAValue] = set(around.args)
    for op in around.ops:
        if op is not roles and any(operand in moving for operand in op.operands):
            moving.update(op.results)
            machine.step(op)


@handles(RoleGroupOp)
def _group(_op: RoleGroupOp, machine: Machine) -> Any:
    return np.int64(machine.program.role.group)


@handles(AllocBarriersOp)
def _alloc(op: AllocBarriersOp, machine: Machine) -> Any:
    assert isinstance(op.result.type, BarriersType)
    numbers = [machine.program.new_role() for _ in range(op.result.type.count.data)]
    return [PhaseBarrier(number, op.arrivals.data) for number in numbers]


def _barrier_of(
    op: BarrierExpectOp | BarrierArriveOp | BarrierWaitOp | BulkCopyOp, machine: Machine
) -> tuple[PhaseBarrier, int]:
    barriers: list[PhaseBarrier] = machine.get(op.barriers)
    at = int(machine.get(op.at))
    if not 0 <= at < len(barriers):
        message = f"barrier {at} does not exist in a row of {len(barriers)}"
        raise machine.fault(op, "out-of-bounds", message)
    return barriers[at], at


def _hand_over(machine: Machine) -> None:
    if machine.program.crew is not None:
        machine.program.crew.hand_over()


def _arrive_at(op: BarrierExpectOp | BarrierArriveOp, machine: Machine, expected: int) -> None:
    barrier, at = _barrier_of(op, machine)
    _hand_over(machine)
    if len(barrier.arrived) == barrier.arrivals:
        other = location_of(barrier.arrived[-1])
        message = f"arrives at barrier {at}, whose phase {barrier.phase} has all its arrivals already"
        help = "wait, before arriving again, for what shows that the phase has ended"
        raise machine.fault(op, "race", message + (f", the last at {other}" if other else ""), help=help)
    barrier.arrived.append(op)
    barrier.missing += expected
    merge(barrier.taken, machine.program.role.release())
    barrier.end_if_complete()


@handles(BarrierExpectOp)
def _expect(op: BarrierExpectOp, machine: Machine) -> None:
    _arrive_at(op, machine, op.bytes.data)


@handles(BarrierArriveOp)
def _arrive(op: BarrierArriveOp, machine: Machine) -> None:
    if op.when is None or machine.get(op.when):
        _arrive_at(op, machine, 0)


@handles(BarrierWaitOp)
def _wait(op: BarrierWaitOp, machine: Machine) -> None:
    barrier, at = _barrier_of(op, machine)
    parity = int(machine.get(op.parity))
    if parity not in (0, 1):
        raise machine.fault(op, "out-of-bounds", f"a parity is 0 or 1, got {parity}")
    wait = _Wait(op, barrier, at, parity)
    crew = machine.program.crew
    if crew is not None:
        crew.hand_over(wait)
    elif not barrier.passes(parity, machine):
        raise machine.fault(op, "deadlock", f"the program {wait.describe()}")
    machine.program.role.acquire(barrier.given)


@handles(BulkCopyOp)
def _copy(op: BulkCopyOp, machine: Machine) -> None:
    barrier, _ = _barrier_of(op, machine)
    _hand_over(machine)
    buffer: Shared = machine.get(op.buffer)
    write_buffer(buffer, State.IN_FLIGHT, op, machine)
    data = read_box(op, machine, np.zeros((), buffer.data.dtype)[()])
    if op.loose is not None:
        _spoil(op, machine, data)
    barrier.copies.append(BulkCopy(op, buffer, data if op.tf32 is None else tf32(data)))


def _spoil(op: BulkCopyOp, machine: Machine, data: Array) -> None:
    """Overwrite what a copy has past a tensor's end where nobody needs it, so that whoever does is found out."""
    assert op.loose is not None
    tensor, offsets, *_ = box_of(op, machine)
    axis = op.loose.data
    inside = max(tensor.array.shape[axis] - offsets[axis], 0)
    past = np.moveaxis(data, op.kept.index(axis), 0)[inside:]
    past[...] = np.iinfo(data.dtype).max if data.dtype.kind in "iu" else np.asarray(np.nan, data.dtype)


@handles(BulkStoreOp)
def _bulk_store(op: BulkStoreOp, machine: Machine) -> None:
    buffer: Shared = machine.get(op.buffer)
    settle(buffer, machine.program.own_accesses(), machine)
    read_buffer(buffer, op, machine, ordered=True)
    buffer.state[...] = State.OUTGOING
    tensor, _, inside, within = box_of(op, machine)
    writes(tensor, inside, op, machine)
    machine.program.role.stores.append(BulkStore(buffer, tensor, inside, within, op.size_list))


@handles(BulkWaitOp)
def _bulk_wait(op: BulkWaitOp, machine: Machine) -> None:
    role = machine.program.role
    done = max(len(role.stores) - op.pending.data, 0)
    for store in role.stores[:done]:
        store.finish()
    del role.stores[:done]


@handles(RoleEndOp)
def _end(_op: RoleEndOp, _machine: Machine) -> None:
    """Leave the state to the role's next tile."""
