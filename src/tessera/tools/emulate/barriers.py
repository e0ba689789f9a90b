"""Barriers in shared memory (mbarrier): phases of arrivals and of bytes that asynchronous copies bring.

Source: PTX ISA 9.2, "mbarrier".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.tools.emulate.access import address_reader, space_of
from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.text import Instruction, Symbol
from tessera.tools.emulate.values import handles, reader, writer


@dataclass(slots=True)
class Phase:
    """The state of a barrier.

    Args:
        expected: arrivals of each phase.
        left: arrivals that the phase still waits for.
        bytes: bytes that it still waits for.
        number: how many phases have ended.
    """

    expected: int
    left: int
    bytes: int = 0
    number: int = 0

    def settle(self) -> None:
        """End the phase if all have arrived."""
        if self.left == 0 and self.bytes == 0:
            self.number += 1
            self.left = self.expected


def phases(machine: Machine) -> dict[int, Phase]:
    """Return the barriers by where they lie."""
    return machine.units.setdefault("phases", {})


def barrier_at(machine: Machine, place: int) -> Phase:
    """Return the barrier at a place.

    Raises:
        Fault: nobody has made one there.
    """
    found = phases(machine).get(place)
    if found is None:
        raise Fault("no barrier was initialised there")
    return found


def _places(machine: Machine, instruction: Instruction, addresses: Array) -> Array:
    lanes = machine.lanes_now()
    wanted = np.broadcast_to(addresses, (machine.lanes,))[lanes]
    try:
        return machine.shared.offsets(wanted, lanes, 8, space_of(instruction) == "shared::cluster")
    except Fault as fault:
        raise Fault(f"line {instruction.line}, {instruction.mnemonic}: {fault}") from None


@handles("mbarrier")
def _mbarrier(instruction: Instruction) -> Step:
    kinds = {
        "init": _init,
        "inval": _invalidate,
        "arrive": _arrive,
        "complete_tx": _complete,
        "try_wait": _wait,
        "test_wait": _wait,
    }
    kind = kinds.get(instruction.parts[0])
    if kind is None:
        raise instruction.unknown()
    return kind(instruction)


def _init(instruction: Instruction) -> Step:
    where, count = address_reader(instruction.operands[0]), reader(instruction.operands[1], "u32")

    def run(machine: Machine) -> None:
        counts = np.broadcast_to(count(machine), (machine.lanes,))[machine.lanes_now()]
        for place, number in zip(_places(machine, instruction, where(machine)), counts, strict=True):
            phases(machine)[int(place)] = Phase(int(number), int(number))
        machine.changes += 1

    return run


def _invalidate(instruction: Instruction) -> Step:
    where = address_reader(instruction.operands[0])

    def run(machine: Machine) -> None:
        for place in _places(machine, instruction, where(machine)):
            phases(machine).pop(int(place), None)

    return run


def _arrive(instruction: Instruction) -> Step:
    target, place, *rest = instruction.operands
    if target != Symbol("_") or instruction.has("noComplete"):
        raise instruction.unknown()
    where = address_reader(place)
    number = reader(rest[0], "u32") if rest else None
    announces = instruction.has("expect_tx")

    def run(machine: Machine) -> None:
        lanes = machine.lanes_now()
        given: Any = np.broadcast_to(np.ones(1) if number is None else number(machine), (machine.lanes,))[lanes]
        for at, one in enumerate(_places(machine, instruction, where(machine))):
            barrier = barrier_at(machine, int(one))
            if machine.ordering is not None:
                machine.ordering.tell(int(one), lanes[at : at + 1])
            if announces:
                barrier.bytes += int(given[at])
            barrier.left -= 1 if announces else int(given[at])
            if barrier.left < 0:
                raise Fault(f"line {instruction.line}: more arrive at a barrier than the {barrier.expected} it counts")
            barrier.settle()
        machine.changes += 1

    return run


def _complete(instruction: Instruction) -> Step:
    """Count bytes as brought, of a copy that is left out."""
    where, number = address_reader(instruction.operands[0]), reader(instruction.operands[1], "u32")

    def run(machine: Machine) -> None:
        given: Any = np.broadcast_to(number(machine), (machine.lanes,))[machine.lanes_now()]
        for place, size in zip(_places(machine, instruction, where(machine)), given, strict=True):
            barrier = barrier_at(machine, int(place))
            barrier.bytes -= int(size)
            barrier.settle()
        machine.changes += 1

    return run


def _wait(instruction: Instruction) -> Step:
    """Lanes whose phase has not ended try again when nothing else can go on."""
    if not instruction.has("parity"):
        raise instruction.unknown()
    target, place, phase = instruction.operands[:3]
    write, where, parity = writer(target), address_reader(place), reader(phase, "u32")

    def run(machine: Machine) -> bool | None:
        lanes = machine.lanes_now()
        wanted = np.broadcast_to(parity(machine), (machine.lanes,))[lanes]
        places = _places(machine, instruction, where(machine))
        done = np.zeros(machine.lanes, bool)
        for lane, one, bit in zip(lanes, places, wanted, strict=True):
            done[lane] = barrier_at(machine, int(one)).number % 2 != bit % 2
            if done[lane] and machine.ordering is not None:
                machine.ordering.hear(int(one), np.array([lane]))
        waiting = machine.active & ~done
        go = machine.active & done
        if not waiting.any():
            write(machine, done)
            return None
        machine.sleep(machine.here, waiting)
        if go.any():
            machine.active, machine.full = go, False
            write(machine, done)
            machine.go(machine.here + 1, go)
        return True

    return run
