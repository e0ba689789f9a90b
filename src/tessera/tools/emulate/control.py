"""Branches, ends, barriers of programs, calls, and what has no effect here.

Source: PTX ISA 9.2, "Control Flow Instructions", "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.text import Instruction, Number, Symbol
from tessera.tools.emulate.values import handles, reader


@handles("bra")
def _branch(instruction: Instruction) -> Step:
    (target,) = instruction.operands
    assert isinstance(target, Number)
    place = target.value
    guard = None if instruction.guard is None else reader(instruction.guard, "pred")

    def run(machine: Machine) -> bool:
        taken = machine.active if guard is None else machine.active & guard(machine)
        if taken.any():
            machine.go(place, taken)
            rest = machine.active & ~taken
            if guard is None or not rest.any():
                return True
            machine.part(taken, rest)
            machine.go(machine.here + 1, rest)
            return True
        return False

    return run


@handles("ret", "exit")
def _end(_instruction: Instruction) -> Step:
    def run(machine: Machine) -> bool:
        machine.leave(machine.active)
        return True

    return run


@handles("trap")
def _trap(instruction: Instruction) -> Step:
    def run(machine: Machine) -> None:
        raise Fault(f"a trap in line {instruction.line}: an assertion failed")

    return run


@handles("fence", "membar", "griddepcontrol", "prefetch", "setmaxnreg", "discard", "applypriority")
def _nothing(instruction: Instruction) -> Step:
    return _fence if instruction.has("proxy") and instruction.has("async") else lambda _machine: None


def _fence(machine: Machine) -> None:
    if machine.ordering is not None:
        machine.ordering.fence(machine.lanes_now())


@handles("nanosleep")
def _sleep(_instruction: Instruction) -> Step:
    """Let others go on first."""

    def run(machine: Machine) -> bool:
        machine.sleep(machine.here + 1, machine.active, nap=True)
        return True

    return run


@handles("call")
def _call(instruction: Instruction) -> Step:
    if not any(operand == Symbol("vprintf") for operand in instruction.operands):
        raise instruction.unknown()
    return lambda _machine: None


class _Barrier:
    """One of the barriers that each program has."""

    def __init__(self, machine: Machine) -> None:
        self._arrived: Array = np.zeros(machine.grid.count, np.int64)
        self._waiting: list[tuple[int, Array]] = []

    def arrive(self, machine: Machine, count: Array, waits: bool) -> None:
        """Count the active lanes; let lanes go on whose program has as many as are counted.

        Args:
            machine: the machine.
            count: how many lanes, for each program.
            waits: whether the active lanes wait.
        """
        grid = machine.grid
        self._arrived += machine.active.reshape(grid.count, grid.threads).sum(1)
        if waits:
            self._waiting.append((machine.here + 1, machine.active))
        machine.tell(self, machine.active)
        full = self._arrived >= count
        if (self._arrived > count).any():
            raise Fault(f"more lanes than {count.max()} arrive at a barrier")
        if not full.any():
            return
        self._arrived[full] = 0
        lanes = np.repeat(full, grid.threads)
        waiting, self._waiting = self._waiting, []
        for place, mask in waiting:
            if (go := mask & lanes).any():
                machine.hear(self, go)
                machine.go(place, go)
            if (stay := mask & ~lanes).any():
                self._waiting.append((place, stay))


def _same(machine: Machine, value: Array) -> int:
    """Return what an operand is in all active lanes.

    Raises:
        Fault: it differs.
    """
    values = np.broadcast_to(value, (machine.lanes,))[machine.active]
    if (values != values[0]).any():
        raise Fault("lanes name different barriers in one instruction")
    return int(values[0])


def _barriers(machine: Machine) -> dict[int, _Barrier]:
    return machine.units.setdefault("barriers", {})


@handles("bar", "barrier")
def _barrier(instruction: Instruction) -> Step:
    if instruction.has("warp"):
        return _warp_barrier(instruction)
    if instruction.has("cluster"):
        return _cluster_barrier(instruction)
    waits = instruction.has("sync")
    if not waits and not instruction.has("arrive"):
        raise instruction.unknown()
    numbers = [reader(operand, "u32") for operand in instruction.operands]

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        taken = machine.active
        for number in np.unique(np.broadcast_to(numbers[0](machine), (machine.lanes,))[taken]):
            machine.active = taken & (numbers[0](machine) == number)
            known = _barriers(machine)
            barrier = known.setdefault(int(number), _Barrier(machine))
            barrier.arrive(machine, _needed(machine, numbers), waits)
        machine.active = taken
        return True if waits else None

    return run


def _needed(machine: Machine, numbers: list[Any]) -> Array:
    """Return how many lanes of each program a barrier counts: as many as it says, or all that have not ended."""
    grid = machine.grid
    if len(numbers) > 1:
        return np.full(grid.count, _same(machine, numbers[1](machine)))
    return grid.threads - machine.gone.reshape(grid.count, grid.threads).sum(1)


def _warp_barrier(_instruction: Instruction) -> Step:
    return lambda machine: not machine.whole_warps()


class _ClusterBarrier:
    """The barrier of each cluster: lanes that arrived, and those that wait."""

    def __init__(self, machine: Machine) -> None:
        self.arrived: Array = np.zeros(machine.lanes, bool)
        self.passed: Array = np.zeros(machine.lanes, bool)

    def complete(self, machine: Machine) -> None:
        """Let lanes of clusters pass in which all have arrived that have not ended."""
        size = machine.grid.cluster * machine.grid.threads
        here: Array = self.arrived | machine.gone
        full = np.repeat(here.reshape(-1, size).all(1), size) & self.arrived
        self.passed |= full
        self.arrived &= ~full


def _cluster_state(machine: Machine) -> _ClusterBarrier:
    return machine.units.setdefault("cluster", _ClusterBarrier(machine))


def _cluster_barrier(instruction: Instruction) -> Step:
    def arrive(machine: Machine) -> bool | None:
        state = _cluster_state(machine)
        if (state.arrived & machine.active).any():
            raise Fault("lanes arrive at the cluster's barrier twice")
        state.arrived = state.arrived | machine.active
        if machine.ordering is not None:
            machine.ordering.tell("cluster", machine.lanes_now())
        state.complete(machine)
        machine.changes += 1
        return None

    def wait(machine: Machine) -> bool | None:
        state = _cluster_state(machine)
        state.complete(machine)
        waiting = machine.active & ~state.passed
        if machine.ordering is not None:
            machine.ordering.hear("cluster", machine.index[machine.active & state.passed])
        if not waiting.any():
            state.passed = state.passed & ~machine.active
            return None
        machine.sleep(machine.here, waiting)
        go = machine.active & state.passed
        state.passed = state.passed & ~go
        if go.any():
            machine.go(machine.here + 1, go)
        return True

    if instruction.has("arrive"):
        return arrive
    if instruction.has("wait"):
        return wait
    raise instruction.unknown()
