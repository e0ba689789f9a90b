"""Races between the programs of a grid on tensors: two that touch an element, of which one writes, with no order.

Every element remembers who wrote it last and who has read it, or updated it by an atomic, since. Programs have vector
clocks: an atomic that releases leaves its program's clock with the elements that it updates, and one that acquires
takes what was left there. Atomics never race with each other. Programs run one at a time, but what is found depends
only on what orders them: on their own order only as far as that decides what atomics read.

Tensors that a grid does not store to cost nothing, as do grids of one program.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np
from xdsl.ir import Operation

from tessera.data import dataclass
from tessera.errors import DeviceError
from tessera.interp.machine import Machine
from tessera.interp.values import Array, Program, Tensor, merge
from tessera.ir.atomics import acquires, releases
from tessera.ir.locations import location_of
from tessera.ir.tile.atomics import AtomicOp, FenceOp
from tessera.ir.tile.roles import BulkStoreOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.writes import Stores

_NOBODY, _SEVERAL = -1, -2


class _Access(NamedTuple):
    """What a program did at a time of its clock."""

    op: Operation
    program: int
    time: int
    offsets: tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Marks:
    """Which programs did something to each element since it was written last.

    Args:
        shape: the tensor's.
        used: whether any program did; nothing else is there before.
        who: the number of the program, `_NOBODY`, or `_SEVERAL`.
        which: the number of the set of accesses (`_Launch.sets`).
    """

    shape: tuple[int, ...]
    used: bool = False
    who: Array = field(init=False)
    which: Array = field(init=False)

    def use(self) -> None:
        """Make room for marks."""
        if not self.used:
            self.who, self.which = (np.full(self.shape, _NOBODY, np.int32) for _ in range(2))
            self.used = True


@dataclass(eq=False, slots=True)
class _Launch:
    """All programs of a grid: their accesses, and the sets of accesses that elements remember, by number."""

    sets: list[dict[int, _Access]] = field(default_factory=list[dict[int, _Access]])
    numbers: dict[frozenset[_Access], int] = field(default_factory=dict[frozenset[_Access], int])

    def number_of(self, accesses: dict[int, _Access]) -> int:
        """Return the number of a set with the last access of each program."""
        key = frozenset(accesses.values())
        number = self.numbers.setdefault(key, len(self.sets))
        if number == len(self.sets):
            self.sets.append(accesses)
        return number


@dataclass(eq=False, slots=True)
class Watch:
    """What is known of the elements of a tensor that the programs of a grid may share.

    Args:
        launch: what all tensors of the grid share.
        writes: who wrote an element last.
        reads: who has read it since.
        updates: who has updated it by atomics since.
        looks: who has read it by atomics since.
        left: the clocks that releases have left with elements, by number.
    """

    launch: _Launch
    writes: _Marks
    reads: _Marks
    updates: _Marks
    looks: _Marks
    left: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])


@contextmanager
def watched(op: GridOp, inner: Sequence[Operation], machine: Machine, programs: int) -> Generator[None]:
    """Watch the tensors that a grid of several programs, whose ops are `inner`, stores to while it runs."""
    tensors: list[Tensor] = []
    if machine.checks and programs > 1:
        stores = (one for one in inner if isinstance(one, Stores | BulkStoreOp))
        stored = {_memory_of(machine.get(tensor)) for tensor in {store.tensor for store in stores}}
        arguments = [machine.values.get(value) for value in op.parent.args] if op.parent is not None else []
        tensors = [value for value in arguments if isinstance(value, Tensor) and _memory_of(value) in stored]
    launch = _Launch()
    memories: dict[Any, Watch] = {}
    for tensor in tensors:
        memory = _memory_of(tensor)
        if memory not in memories:
            writes, reads, updates, looks = (_Marks(tensor.array.shape or (1,)) for _ in range(4))
            memories[memory] = Watch(launch, writes, reads, updates, looks)
        tensor.watch = memories[memory]
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.watch = None


def _memory_of(tensor: Tensor) -> Any:
    """Return what tensors share that have one address for each element."""
    return tensor.array.ctypes.data, tensor.array.shape, tensor.array.strides


def reads(tensor: Tensor, at: Any, op: Operation, machine: Machine, where: Any = True) -> None:
    """Note that a program reads elements, and check that no other one writes them.

    Args:
        tensor: the tensor.
        at: slices or index arrays.
        op: the op.
        machine: the machine.
        where: which of the elements.

    Raises:
        DeviceError: `race`, with both places.
    """
    watch = tensor.watch
    if watch is not None:
        for marks, did in ((watch.writes, "writes"), (watch.updates, "updates")):
            _check(marks, tensor, at, where, op, machine, "reads", did)
        _join(watch, watch.reads, at, where, op, machine.program)


def writes(tensor: Tensor, at: Any, op: Operation, machine: Machine, where: Any = True) -> None:
    """Note that a program writes elements, and check that no other one touches them; as `reads`.

    Raises:
        DeviceError: `race`, with both places.
    """
    watch = tensor.watch
    if machine.turns is not None:
        machine.turns.note(tensor.array, at)
    if watch is None:
        return
    kinds = ((watch.writes, "writes"), (watch.reads, "reads"), (watch.updates, "updates"), (watch.looks, "reads"))
    for marks, did in kinds:
        _check(marks, tensor, at, where, op, machine, "writes", did)
    program = machine.program
    watch.writes.use()
    alone = watch.launch.number_of({program.number: _access(op, program)})
    _mark(watch.writes, at, where, program.number, alone)
    for marks in (watch.reads, watch.updates, watch.looks):
        if marks.used:
            _mark(marks, at, where, _NOBODY, _NOBODY)


def atomically(tensor: Tensor, at: tuple[Array, ...], op: AtomicOp, machine: Machine) -> None:
    """Note an atomic access, and check that no other program reads or writes its elements plainly.

    Raises:
        DeviceError: `race`, with both places.
    """
    watch, looks = tensor.watch, op.fn.data == "load"
    if machine.turns is not None:
        machine.turns.before_atomic()
        machine.turns.note(tensor.array, at)
    if watch is None:
        return
    if op.scope.data != "group":
        _pass_on(watch, np.ravel_multi_index(at, tensor.array.shape), op, machine.program)
    _check(watch.writes, tensor, at, True, op, machine, "reads" if looks else "updates", "writes")
    if not looks:
        _check(watch.reads, tensor, at, True, op, machine, "updates", "reads")
    _join(watch, watch.looks if looks else watch.updates, at, True, op, machine.program)
    if releases(op.fn.data, op.order.data):
        machine.program.time += 1


def fenced(op: FenceOp, machine: Machine) -> None:
    """Let the atomics after a fence release what is before it, and what those before it have read be acquired."""
    program, order = machine.program, op.order.data
    if op.scope.data == "group":
        return
    if acquires("fence", order):
        merge(program.known, program.offered)
    if releases("fence", order):
        program.released = {**program.known, program.number: program.time}
        program.time += 1


def _pass_on(watch: Watch, elements: Array, op: AtomicOp, program: Program) -> None:
    """Take over the clocks that releases left with elements, and leave the program's own there."""
    fn, order = op.fn.data, op.order.data
    if order == "relaxed" and not (program.released or watch.left):
        return
    touched: list[int] = np.unique(elements).tolist()
    for element in touched:
        left = watch.left.get(element, {})
        if fn == "store":  # what it replaces is not read any more
            watch.left.pop(element, None)
        else:
            merge(program.offered, left)
        if acquires(fn, order):
            merge(program.known, left)
    own = {**program.known, program.number: program.time} if releases(fn, order) else program.released
    for element in touched if own and fn != "load" else ():
        merge(watch.left.setdefault(element, {}), own)


def _access(op: Operation, program: Program) -> _Access:
    return _Access(op, program.number, program.time, program.offsets)


def _part(array: Array, at: Any, where: Any) -> Array:
    part = np.asarray(array[at])
    return part if where is True else part[where]


def _mark(marks: _Marks, at: Any, where: Any, who: int, which: Any) -> None:
    for array, value in ((marks.who, who), (marks.which, which)):
        if where is True:
            array[at] = value
        else:
            array[at][where] = value


def _join(watch: Watch, marks: _Marks, at: Any, where: Any, op: Operation, program: Program) -> None:
    """Add a program's access to those of others."""
    marks.use()
    launch, mine = watch.launch, {program.number: _access(op, program)}
    who = _part(marks.who, at, where)
    if not ((who != _NOBODY) & (who != program.number)).any():
        _mark(marks, at, where, program.number, launch.number_of(mine))
        return
    before, places = np.unique(_part(marks.which, at, where), return_inverse=True)
    joined = [launch.number_of({**(launch.sets[number] if number >= 0 else {}), **mine}) for number in before]
    _mark(marks, at, where, _SEVERAL, np.array(joined, np.int32)[places].reshape(who.shape))


def _check(
    marks: _Marks, tensor: Tensor, at: Any, where: Any, op: Operation, machine: Machine, does: str, did: str
) -> None:
    program, watch = machine.program, tensor.watch
    if not marks.used:
        return
    who = _part(marks.who, at, where)
    foreign = (who != _NOBODY) & (who != program.number)
    if watch is None or not foreign.any():
        return
    which = _part(marks.which, at, where)
    numbers: list[int] = np.unique(which[foreign]).tolist()
    for number in numbers:
        for access in watch.launch.sets[number].values():
            if access.program != program.number and program.known.get(access.program, 0) < access.time:
                elements = _part(np.arange(tensor.array.size).reshape(marks.shape), at, where)
                place = int(elements[foreign & (which == number)][0])
                raise _fault(tensor, place, op, access, machine, does, did)


def _fault(
    tensor: Tensor, place: int, op: Operation, access: _Access, machine: Machine, does: str, did: str
) -> DeviceError:
    element = ", ".join(str(int(i)) for i in np.unravel_index(place, tensor.array.shape))
    other = f"the program at ({', '.join(str(int(offset)) for offset in access.offsets)})"
    error = machine.fault(
        op,
        "race",
        f"{does} {tensor.name}[{element}], which {other} {did}, and nothing orders the two",
        help="let one program alone touch it, or use atomics; to wait for another program, release after the one "
        "access and acquire before the other",
    )
    location = location_of(access.op)
    if location is not None:
        error.related = ((f"{other} {did} it here", location),)
    return error
