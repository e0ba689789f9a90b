"""Bulk copies of boxes between arrays and shared memory.

Source: PTX ISA 9.2, "cp.async.bulk.tensor".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tessera.tools.emulate.barriers import barrier_at
from tessera.tools.emulate.errors import Fault, Unknown
from tessera.tools.emulate.machine import Machine, Step
from tessera.tools.emulate.memory import PARAM_BASE, RANK_SHIFT, SHARED_BASE
from tessera.tools.emulate.tensor_maps import TensorMap
from tessera.tools.emulate.text import Address, Instruction, Operand
from tessera.tools.emulate.values import Read, reader


def bulk_copy(instruction: Instruction) -> Step:
    """Return the step of a bulk copy, or of what groups and waits for them.

    Raises:
        Unknown: a form that is not known.
    """
    if instruction.has("commit_group"):
        return _commit
    if instruction.has("wait_group"):
        return _wait(instruction)
    if not instruction.has("tensor"):
        raise instruction.unknown()
    if instruction.has("bulk_group"):
        return _store(instruction)
    if instruction.has("mbarrier::complete_tx::bytes"):
        return _load(instruction)
    raise instruction.unknown()


def _map_of(operand: Operand) -> Callable[[Machine, int], TensorMap]:
    if not isinstance(operand, Address):
        raise Unknown(f"a tensor map {operand}")
    read = reader(operand.base, "u64")

    def find(machine: Machine, lane: int) -> TensorMap:
        number, rest = divmod(_of(machine, read, lane) - PARAM_BASE, 4096)
        if rest or not 0 <= number < len(machine.params):
            raise Fault("a tensor map that is no parameter")
        return machine.units["maps"].decode(machine.params[number])

    return find


def _of(machine: Machine, read: Read, lane: int) -> int:
    """Return what a lane reads."""
    return int(np.broadcast_to(read(machine), (machine.lanes,))[lane])


def _coordinates(operand: Operand) -> list[Read]:
    assert isinstance(operand, Address)
    return [reader(one, "s32") for one in operand.coordinates]


def _shared(operand: Operand) -> Read:
    if not isinstance(operand, Address):
        raise Unknown(f"a place in shared memory {operand}")
    read, offset = reader(operand.base, "u32"), np.uint32(operand.offset)
    return lambda machine: read(machine) + offset


def _own(machine: Machine, lane: int, address: int) -> tuple[int, int]:
    """Return where the memory that a shared address lies in begins, and the place in it.

    Raises:
        Fault: the address lies outside of it.
    """
    program, cluster = lane // machine.grid.threads, machine.grid.cluster
    rank, offset = address >> RANK_SHIFT, (address & ((1 << RANK_SHIFT) - 1)) - SHARED_BASE
    if not 0 <= offset < machine.shared.size or rank >= cluster:
        raise Fault(f"a bulk copy outside of shared memory: {address:#x}")
    return machine.shared.place(program - program % cluster + rank), offset


def _load(instruction: Instruction) -> Step:
    target, source, barrier, *rest = instruction.operands
    to, find, signal, first = _shared(target), _map_of(source), _shared(barrier), _coordinates(source)
    mask = reader(rest[0], "u16") if instruction.has("multicast::cluster") else None

    def run(machine: Machine) -> None:
        for lane in machine.lanes_now():
            where = [_of(machine, one, lane) for one in first]
            begin, offset = _own(machine, lane, _of(machine, to, lane))
            end, notice = _own(machine, lane, _of(machine, signal, lane))
            starts = [(begin, end)] if mask is None else _named(machine, lane, _of(machine, mask, lane))
            for start, barrier in starts:
                map_ = find(machine, lane)
                _check_order(machine, map_, start, offset, lane, True)
                work = partial(_arrived, machine, map_, where, start, offset, barrier + notice)
                if machine.turns is None:
                    machine.pending.append(work)
                else:
                    work()
                    machine.changes += 1

    return run


def _check_order(machine: Machine, map_: TensorMap, start: int, offset: int, lane: int, writes: bool) -> None:
    """Check that a fence is between what threads did with a box in shared memory, and a copy that starts."""
    if machine.ordering is not None and offset + map_.bytes <= machine.shared.size:
        machine.ordering.start(map_.shared_places(start, offset), lane, writes)


def _named(machine: Machine, lane: int, mask: int) -> list[tuple[int, int]]:
    """Return where the memory of each program of the cluster begins that a mask names: of the data, of the barrier."""
    program, cluster = lane // machine.grid.threads, machine.grid.cluster
    places = [machine.shared.place(program - program % cluster + rank) for rank in range(cluster) if mask >> rank & 1]
    return list(zip(places, places, strict=True))


def _arrived(machine: Machine, map_: TensorMap, where: list[int], start: int, offset: int, barrier: int) -> None:
    """Write a box to shared memory, and tell the barrier."""
    if offset + map_.bytes > machine.shared.size:
        raise Fault(f"a bulk copy of {map_.bytes} bytes to place {offset} of {machine.shared.size} shared bytes")
    places = map_.shared_places(start, offset)
    machine.shared.bytes.data[places] = map_.load(machine.device, where)
    if machine.ordering is not None:
        machine.ordering.arrive(places, barrier)
    phase = barrier_at(machine, barrier)
    phase.bytes -= map_.bytes
    phase.settle()


class _Stores:
    """Bulk stores of lanes: those that are in no group yet, and the groups."""

    def __init__(self) -> None:
        self.open: dict[int, list[Callable[[], None]]] = {}
        self.groups: dict[int, list[list[Callable[[], None]]]] = {}


def _stores(machine: Machine) -> _Stores:
    return machine.units.setdefault("stores", _Stores())


def _store(instruction: Instruction) -> Step:
    target, source = instruction.operands[:2]
    find, from_, first = _map_of(target), _shared(source), _coordinates(target)

    def run(machine: Machine) -> None:
        stores = _stores(machine)
        for lane in machine.lanes_now():
            where = [_of(machine, one, lane) for one in first]
            start, offset = _own(machine, lane, _of(machine, from_, lane))
            _check_order(machine, map_ := find(machine, lane), start, offset, lane, False)
            work = partial(_stored, machine, map_, where, start, offset, int(lane))
            stores.open.setdefault(int(lane), []).append(work)

    return run


def _stored(machine: Machine, map_: TensorMap, where: list[int], start: int, offset: int, lane: int) -> None:
    """Read a box of shared memory, as late as that may be, and write it."""
    places = map_.shared_places(start, offset)
    map_.store(machine.device, where, machine.shared.bytes.data[places])
    if machine.ordering is not None:
        machine.ordering.end(places, lane)


def _commit(machine: Machine) -> None:
    stores = _stores(machine)
    for lane in machine.lanes_now():
        stores.groups.setdefault(int(lane), []).append(stores.open.pop(int(lane), []))


def _wait(instruction: Instruction) -> Step:
    count = reader(instruction.operands[0], "u32")

    def run(machine: Machine) -> None:
        stores, pending = _stores(machine), int(count(machine)[0])
        for lane in machine.lanes_now():
            groups = stores.groups.get(int(lane), [])
            while len(groups) > pending:
                for work in groups.pop(0):
                    work()
                    machine.changes += 1

    return run


def finish(machine: Machine) -> None:
    """Do the stores that nobody waited for, as happens when programs end."""
    stores = _stores(machine)
    for groups in stores.groups.values():
        for group in groups:
            for work in group:
                work()
    if any(stores.open.values()):
        raise Fault("bulk stores that belong to no group")
