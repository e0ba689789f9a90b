"""The explicit memory level: shared buffers with a state per element, asynchronous copies, barriers.

A copy's data arrive at the `wait_group` that covers it, and what any lane wrote is seen by the others only
after a `barrier`. Reading too early, and writing what is still being read or copied, is an error that names
the element. Where a program has several roles, what one did is settled for another once a barrier between them
orders it (`interp.roles`).
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tessera.interp.machine import Machine, handles
from tessera.interp.memory import check_collisions, read_box
from tessera.interp.values import Array, Copy, Shared, State, Tensor, dtype_at
from tessera.ir.locations import location_of
from tessera.ir.tile.atomics import SharedAtomicOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    ProxyFenceOp,
    SharedGatherOp,
    SharedLoadOp,
    SharedScatterOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)

Places = EllipsisType | tuple[Array, ...]
"""Elements of a buffer by their indices; `...` for all of them."""

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


def read_buffer(
    buffer: Shared, op: Operation, machine: Machine, places: Places = ..., *, ordered: bool = False
) -> Array:
    """Return a copy of a buffer's contents, or of some of its elements.

    Args:
        buffer: the buffer.
        op: what reads it.
        machine: the interpreter.
        places: the elements, `...` for all.
        ordered: whether the read comes after all that this role did before.

    Raises:
        DeviceError: `uninitialized-read` or `race`, when an element has no settled value.
    """
    if machine.checks:
        unsettled = ~np.isin(buffer.state[places], (State.DEFINED, State.OUTGOING))
        if unsettled.any():
            at = _first(unsettled, places)
            code, message, help = _WHY[State(int(buffer.state[at]))]
            raise machine.fault(op, code, message + _other(buffer.writer[at], machine), at, help)
        writers = buffer.writer[places]
        if ordered:
            writers = np.where(np.isin(writers, machine.program.own_accesses()), -1, writers)
        foreign = machine.program.unordered(writers)
        if foreign.any():
            at = _first(foreign, places)
            message = "reads a shared buffer without having waited for what was written to it"
            help = "wait for the barrier that the write or copy arrives at, before the read"
            raise machine.fault(op, "race", message + _other(buffer.writer[at], machine), at, help)
        # A product under way reads until it is waited for: later than whoever reads now.
        program = machine.program
        number: Any = program.number_of(op)
        if program.role.products:
            readers = buffer.reader[places]
            number = np.where(program.under_way(readers), readers, number)
        buffer.reader[places] = number
    return buffer.data[places].copy()


def _first(found: Array, places: Places) -> tuple[int, ...]:
    """Return the first element of a buffer of which something was found."""
    at = np.argwhere(found)[0]
    return tuple(map(int, at)) if places is ... else tuple(int(place[at[0]]) for place in places)


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


def write_buffer(buffer: Shared, state: State, op: Operation, machine: Machine, places: Places = ...) -> None:
    """Note that `op` writes the buffer, or some of its elements, which nobody may be using.

    Raises:
        DeviceError: `race`, naming the other access.
    """
    if not machine.checks:
        return
    states, writer, reader = buffer.state[places], buffer.writer[places], buffer.reader[places]
    in_flight, program = states == State.IN_FLIGHT, machine.program
    for conflict, who, message in (
        (in_flight, writer, "writes a shared buffer while it is being copied to"),
        (
            states == State.OUTGOING,
            reader,
            "writes a shared buffer that a bulk store still reads",
        ),
        (
            states == State.UNORDERED,
            writer,
            "writes a shared buffer twice with no barrier between",
        ),
        (
            program.unordered(reader),
            reader,
            "writes a shared buffer that was read after the last barrier",
        ),
        (
            program.unordered(writer) & ~in_flight,
            writer,
            "writes a shared buffer without having waited for what was written to it",
        ),
    ):
        if conflict.any():
            first, at = tuple(np.argwhere(conflict)[0]), _first(conflict, places)
            help = "call barrier(), after wait_group() for copies, before the write"
            if program.crew is not None:
                help = "wait for the barrier at which the other role arrives when it is done with the buffer"
            raise machine.fault(op, "race", message + _other(who[first], machine), at, help)
    buffer.state[places] = state
    buffer.writer[places] = machine.program.number_of(op)


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


def shared_elements(
    op: SharedGatherOp | SharedScatterOp | SharedAtomicOp, machine: Machine
) -> tuple[Shared, tuple[Array, ...], Array]:
    """Return a buffer, the places of the elements that are accessed, and which of those that are named they are.

    What lies outside the buffer or is masked off is not accessed.
    """
    buffer: Shared = machine.get(op.buffer)
    indices = [np.asarray(index).astype(np.int64) for index in machine.all(op.indices)]
    mask = machine.maybe(op.mask)
    active = np.ones(indices[0].shape, np.bool_) if mask is None else np.asarray(mask).copy()
    for index, size in zip(indices, buffer.data.shape, strict=True):
        active &= (index >= 0) & (index < size)
    return buffer, tuple(index[active] for index in indices), active


@handles(SharedGatherOp)
def _gather(op: SharedGatherOp, machine: Machine) -> Any:
    buffer, places, active = shared_elements(op, machine)
    found = np.zeros(active.shape, buffer.data.dtype)
    found[active] = read_buffer(buffer, op, machine, places)
    return found[()]


@handles(SharedScatterOp)
def _scatter(op: SharedScatterOp, machine: Machine) -> None:
    buffer, places, active = shared_elements(op, machine)
    values = np.asarray(machine.get(op.value))[active]
    if machine.checks:
        check_collisions(op, machine, Tensor("a shared buffer", buffer.data), places, values)
    write_buffer(buffer, State.UNORDERED, op, machine, places)
    if machine.turns is not None:
        machine.turns.note(buffer.data, places)
    buffer.data[places] = values


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
        if isinstance(access.op, SharedStoreOp | SharedScatterOp) and access.generation == program.role.generation:
            program.fenced.add(number)


def check_fences(buffer: Shared, op: Operation, machine: Machine) -> None:
    """Check that an instruction of the asynchronous proxy may read what threads stored.

    Raises:
        DeviceError: `race`, naming the store.
    """
    program = machine.program
    writers: list[int] = np.unique(buffer.writer).tolist() if machine.checks else []
    for number in writers:
        stored = number >= 0 and isinstance(program.accesses[number].op, SharedStoreOp | SharedScatterOp)
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
