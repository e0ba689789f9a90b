"""The explicit memory level: shared buffers with a state per element, asynchronous copies, barriers.

A copy's data arrive at the `wait_group` that covers it, and what any lane wrote is seen by the others only
after a `barrier`. Reading too early, and writing what is still being read or copied, is an error that names
the element. Where a program has several roles, what one did is settled for another once a barrier between them
orders it (`interp.roles`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import Operation

from tessera.interp.machine import Machine, handles
from tessera.interp.memory import read_box
from tessera.interp.values import Array, Copy, Shared, State, dtype_at
from tessera.ir.locations import location_of
from tessera.ir.tile.atomics import SharedAtomicOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    ProxyFenceOp,
    SharedLoadOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)

_WHY = {
    State.UNDEFINED: (
        "uninitialized-read",
        "reads a shared buffer that nothing was written to",
        "write it first",
    ),
    State.IN_FLIGHT: (
        "race",
        "reads a shared buffer while an asynchronous copy to it is under way",
        "call commit_group(), wait_group(0) and barrier() between the copy and the read",
    ),
    State.UNORDERED: (
        "race",
        "reads a shared buffer that was written after the last barrier",
        "call barrier() between the write and the read",
    ),
}


_READ = (
    "race",
    "writes a shared buffer that was read after the last barrier",
    "call barrier() between the read and the write",
)


def read_buffer(buffer: Shared, op: Operation, machine: Machine, *, ordered: bool = False) -> Array:
    """Return a copy of a buffer's contents; `ordered` if the read comes after all that this role did before.

    Raises:
        DeviceError: `uninitialized-read` or `race`, when an element has no settled value.
    """
    if machine.checks:
        unsettled = ~np.isin(buffer.state, (State.DEFINED, State.OUTGOING))
        if unsettled.any():
            at = tuple(np.argwhere(unsettled)[0])
            code, message, help = _WHY[State(int(buffer.state[at]))]
            raise machine.fault(op, code, message + _other(buffer.writer[at], machine), at, help)
        writers = buffer.writer
        if ordered:
            writers = np.where(np.isin(writers, machine.program.own_accesses()), -1, writers)
        foreign = machine.program.unordered(writers)
        if foreign.any():
            at = tuple(np.argwhere(foreign)[0])
            message = "reads a shared buffer without having waited for what was written to it"
            help = "wait for the barrier that the write or copy arrives at, before the read"
            raise machine.fault(op, "race", message + _other(buffer.writer[at], machine), at, help)
        # A product under way reads until it is waited for: later than whoever reads now.
        program = machine.program
        done = ~program.under_way(buffer.reader) if program.role.products else ...
        buffer.reader[done] = program.number_of(op)
    return buffer.data.copy()


def read_until_waited(buffer: Shared, op: Operation, machine: Machine) -> None:
    """Note that `op` has started reading the buffer and may go on until `end_reading`.

    Raises:
        DeviceError: as `read_buffer`.
    """
    read_buffer(buffer, op, machine)
    if machine.checks:
        buffer.reader[...] = machine.program.number_under_way(op)


def end_reading(buffer: Shared, op: Operation, machine: Machine) -> Array:
    """Return a buffer's contents as `op`, which started reading earlier, sees them last.

    Raises:
        DeviceError: as `read_buffer`.
    """
    if machine.checks:
        program = machine.program
        buffer.reader[buffer.reader == program.number_under_way(op)] = program.number_of(op)
    return read_buffer(buffer, op, machine)


def _other(number: Any, machine: Machine) -> str:
    """Name the place of the access that conflicts, for the end of a message."""
    if number < 0:
        return ""
    other = machine.program.accesses[int(number)].op
    location = location_of(other)
    return f", by {other.name.rsplit('.', 1)[-1]}" + (f" at {location}" if location else "")


def write_buffer(buffer: Shared, state: State, op: Operation, machine: Machine) -> None:
    """Note that `op` writes the buffer, which nobody may be using.

    Raises:
        DeviceError: `race`, naming the other access.
    """
    if not machine.checks:
        return
    in_flight, program = buffer.state == State.IN_FLIGHT, machine.program
    for conflict, who, message in (
        (in_flight, buffer.writer, "writes a shared buffer while it is being copied to"),
        (
            buffer.state == State.OUTGOING,
            buffer.reader,
            "writes a shared buffer that a bulk store still reads",
        ),
        (
            buffer.state == State.UNORDERED,
            buffer.writer,
            "writes a shared buffer twice with no barrier between",
        ),
        (
            program.unordered(buffer.reader),
            buffer.reader,
            "writes a shared buffer that was read after the last barrier",
        ),
        (
            program.unordered(buffer.writer) & ~in_flight,
            buffer.writer,
            "writes a shared buffer without having waited for what was written to it",
        ),
    ):
        if conflict.any():
            at = tuple(np.argwhere(conflict)[0])
            help = "call barrier(), after wait_group() for copies, before the write"
            if program.crew is not None:
                help = "wait for the barrier at which the other role arrives when it is done with the buffer"
            raise machine.fault(op, "race", message + _other(who[at], machine), at, help)
    buffer.state[...] = state
    buffer.writer[...] = machine.program.number_of(op)


def check_atomic(buffer: Shared, places: tuple[Array, ...], op: SharedAtomicOp, machine: Machine) -> None:
    """Note that `op` accesses elements; other atomics may do so at the same time, and nothing else.

    Raises:
        DeviceError: `uninitialized-read` or `race`, naming the other access.
    """
    if not machine.checks:
        return
    program = machine.program
    atomics = [n for n, access in enumerate(program.accesses) if isinstance(access.op, SharedAtomicOp)]
    state, writer, reader = buffer.state[places], buffer.writer[places], buffer.reader[places]
    plain, read = ~np.isin(writer, atomics), ~np.isin(reader, atomics)
    reads = op.fn.data != "store"
    for conflict, who, (code, message, help) in (
        ((state == State.UNDEFINED) & reads, writer, _WHY[State.UNDEFINED]),
        (state == State.IN_FLIGHT, writer, _WHY[State.IN_FLIGHT]),
        ((state == State.UNORDERED) & plain, writer, _WHY[State.UNORDERED]),
        (program.unordered(writer) & plain, writer, _WHY[State.UNORDERED]),
        (program.unordered(reader) & read & op.writes, reader, _READ),
        ((state == State.OUTGOING) & op.writes, reader, _READ),
    ):
        if conflict.any():
            at = int(np.argmax(conflict))
            where = tuple(int(place[at]) for place in places)
            raise machine.fault(op, code, message + _other(who[at], machine), where, help)
    number = program.number_of(op)
    buffer.reader[places] = number
    if op.writes:
        buffer.state[places], buffer.writer[places] = State.UNORDERED, number


@handles(AllocSharedOp)
def _alloc(op: AllocSharedOp, machine: Machine) -> Any:
    buffer = Shared.of(op.result.type.shape, dtype_at(op.result.type).numpy())
    machine.program.buffers.append(buffer)
    return buffer


@handles(SharedViewOp)
def _view(op: SharedViewOp, machine: Machine) -> Any:
    buffer: Shared = machine.get(op.source)
    at, size = int(machine.get(op.index)), len(buffer.data)
    if not 0 <= at < size:
        raise machine.fault(op, "out-of-bounds", f"stage {at} does not exist in a buffer of {size} stages")
    return buffer.at(at)


@handles(SharedTransposeOp)
def _transpose(op: SharedTransposeOp, machine: Machine) -> Any:
    return machine.get(op.source).transposed([axis.data for axis in op.perm.data])


@handles(SharedLoadOp)
def _load(op: SharedLoadOp, machine: Machine) -> Any:
    return read_buffer(machine.get(op.buffer), op, machine)


@handles(SharedStoreOp)
def _store(op: SharedStoreOp, machine: Machine) -> None:
    buffer: Shared = machine.get(op.buffer)
    write_buffer(buffer, State.UNORDERED, op, machine)
    if machine.turns is not None:
        machine.turns.note(buffer.data, ...)
    buffer.data[...] = machine.get(op.value)


@handles(CpAsyncOp)
def _cp_async(op: CpAsyncOp, machine: Machine) -> None:
    buffer: Shared = machine.get(op.buffer)
    write_buffer(buffer, State.IN_FLIGHT, op, machine)
    machine.program.started.append(Copy(buffer, read_box(op, machine, np.zeros((), buffer.data.dtype)[()])))


@handles(CommitGroupOp)
def _commit(op: CommitGroupOp, machine: Machine) -> None:
    program = machine.program
    program.groups.append(program.started)
    program.started = []


@handles(WaitGroupOp)
def _wait(op: WaitGroupOp, machine: Machine) -> None:
    groups = machine.program.groups
    done = max(len(groups) - op.pending.data, 0)
    for copy in (copy for group in groups[:done] for copy in group):
        copy.target.data[...] = copy.data
        copy.target.state[...] = State.UNORDERED
    del groups[:done]


@handles(ProxyFenceOp)
def _fence(op: ProxyFenceOp, machine: Machine) -> None:
    """Note the role's stores since its last barrier: a fence before that barrier is what orders them."""
    program = machine.program
    for number in program.own_accesses():
        access = program.accesses[number]
        if isinstance(access.op, SharedStoreOp) and access.generation == program.role.generation:
            program.fenced.add(number)


def check_fences(buffer: Shared, op: Operation, machine: Machine) -> None:
    """Check that an instruction of the asynchronous proxy may read what threads stored.

    Raises:
        DeviceError: `race`, naming the store.
    """
    program = machine.program
    writers: list[int] = np.unique(buffer.writer).tolist() if machine.checks else []
    for number in writers:
        stored = number >= 0 and isinstance(program.accesses[number].op, SharedStoreOp)
        if stored and number not in program.fenced:
            message = "reads, by a warpgroup's product, what threads stored with no proxy fence after it"
            at = tuple(np.argwhere(buffer.writer == number)[0])
            help = "call proxy_fence() between the store and the barrier before the product"
            raise machine.fault(op, "race", message + _other(number, machine), at, help)


@handles(BarrierOp)
def _barrier(op: BarrierOp, machine: Machine) -> None:
    mine = machine.program.own_accesses()
    for buffer in machine.program.buffers:
        settle(buffer, mine, machine)
    machine.program.role.generation += 1


def settle(buffer: Shared, mine: list[int], machine: Machine) -> None:
    """Let the lanes of this role see what they wrote (`mine`); what another role wrote is not its to settle."""
    program = machine.program
    settled = buffer.state == State.UNORDERED
    if program.roles > 1:
        settled &= np.isin(buffer.writer, mine)
    buffer.state[settled] = State.DEFINED
