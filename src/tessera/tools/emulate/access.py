"""Loads, stores, atomics and asynchronous copies of threads.

Source: PTX ISA 9.2, "Data Movement and Conversion Instructions", "atom", "red", "cp.async".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tessera.tools.emulate.errors import Fault, Unknown
from tessera.tools.emulate.groups import Groups
from tessera.tools.emulate.machine import Array, Machine, Step
from tessera.tools.emulate.memory import GLOBAL_BASE, PARAM_BASE, POISON, Bytes
from tessera.tools.emulate.rounding import from_bf16, to_bf16
from tessera.tools.emulate.text import Address, Instruction, Operand, Register, Symbol
from tessera.tools.emulate.values import DTYPES, Read, handles, items, reader, type_of, writer

_PARTLY = "partly"
"""Stands in the parts of what `marked` marks."""

_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param")


def space_of(instruction: Instruction) -> str:
    """Return the state space that a mnemonic names; empty for generic addresses."""
    return next((part for part in instruction.parts if part in _SPACES), "")


def address_reader(operand: Operand) -> Read:
    """Return what reads the address of an operand in brackets, as 64 bits."""
    if not isinstance(operand, Address):
        raise Unknown(f"an address {operand}")
    base, offset = operand.base, np.uint64(operand.offset % (1 << 64))
    if isinstance(base, Register) and base.bits == 32:
        narrow, added = reader(base, "u32"), np.uint32(operand.offset % (1 << 32))
        return lambda machine: (narrow(machine) + added).astype(np.uint64)
    wide = reader(base, "u64")
    return lambda machine: wide(machine) + offset


def marked(code: Sequence[Instruction]) -> list[Instruction]:
    """Mark loads of which it is enough that one byte belongs to an array: what they read besides is not used.

    These are loads at the address of a compare-and-swap of 32 bits (atomics of 16 bits leave the other half of the word
    as it is), and loads that say `.weak`: aligned words that hold what lies anywhere.
    """
    swapped = {one.operands[1] for one in code if one.name == "atom" and one.has("cas") and one.parts[-1] == "b32"}
    return [
        replace(one, parts=(_PARTLY, *one.parts))
        if one.name == "ld" and (one.operands[1] in swapped or one.has("weak"))
        else one
        for one in code
    ]


def located(machine: Machine, space: str, addresses: Array, width: int, partly: bool = False) -> tuple[Bytes, Array]:
    """Return where the active lanes' addresses lie: the bytes, and offsets in them.

    Args:
        machine: the machine.
        space: the state space.
        addresses: of all lanes.
        width: bytes that are touched.
        partly: whether it is enough that one of these bytes may be.

    Raises:
        Fault: one lies outside of what may be touched.
    """
    lanes = machine.lanes_now()
    wanted = np.broadcast_to(addresses, (machine.lanes,))[lanes]
    if space.startswith("shared"):
        remote = space == "shared::cluster"
        return machine.shared.bytes, machine.shared.offsets(wanted, lanes, width, remote)
    if space == "local":
        return machine.local.bytes, machine.local.offsets(wanted, lanes, width)
    if not space and (wanted < GLOBAL_BASE).any():
        raise Unknown("generic addresses of other than device memory")
    return machine.device.bytes, machine.device.offsets(wanted, width, partly)


def _named(instruction: Instruction, fault: Fault) -> Fault:
    return Fault(f"line {instruction.line}, {instruction.mnemonic}: {fault}")


def _count(instruction: Instruction) -> int:
    return next((int(part[1:]) for part in instruction.parts if part in ("v2", "v4", "v8")), 1)


@handles("ld")
def _load(instruction: Instruction) -> Step:
    space, kind, count = space_of(instruction), type_of(instruction), _count(instruction)
    target, source = instruction.operands
    if space == "param":
        return _load_param(instruction)
    dtype = DTYPES[kind]
    width = dtype.itemsize
    address, writes = address_reader(source), [writer(item) for item in items(target)]

    def run(machine: Machine) -> None:
        try:
            memory, at = located(machine, space, address(machine), width * count, instruction.has(_PARTLY))
        except Fault as fault:
            raise _named(instruction, fault) from None
        if not instruction.has(_PARTLY):
            machine.touch(space, at, width * count, False)
        for number, write in enumerate(writes):
            found = memory.load(at + number * width, width).view(dtype)
            write(machine, _spread(machine, found))

    return run


def _spread(machine: Machine, found: Array) -> Array:
    """Return the values of the active lanes as those of all lanes."""
    if machine.full:
        return found
    result = np.zeros(machine.lanes, found.dtype)
    result[machine.active] = found
    return result


def _load_param(instruction: Instruction) -> Step:
    kind, count = type_of(instruction), _count(instruction)
    target, source = instruction.operands
    if not isinstance(source, Address) or not isinstance(source.base, Symbol):
        raise instruction.unknown()
    name, first, dtype = source.base.name, source.offset, DTYPES[kind]
    writes = [writer(item) for item in items(target)]

    def run(machine: Machine) -> None:
        end = first + count * dtype.itemsize
        if not machine.has(name):
            for number, write in enumerate(writes):
                at = first + number * dtype.itemsize
                found = _arguments(machine, name)[:, at : at + dtype.itemsize]
                write(machine, np.ascontiguousarray(found).view(dtype).reshape(-1))
            return
        data = machine.params[(int(machine.symbol(name)[0]) - PARAM_BASE) // 4096]
        if end > len(data):
            raise _named(instruction, Fault(f"beyond the {len(data)} bytes of {name}"))
        for write, value in zip(writes, np.frombuffer(data[first:end], dtype), strict=True):
            write(machine, np.array([value]))

    return run


_LARGEST = 256
"""Bytes of an argument or a result of a function."""


def _arguments(machine: Machine, name: str) -> Array:
    """Return the bytes of an argument or a result of a function: lanes by bytes."""
    known: dict[str, Array] = machine.units.setdefault("arguments", {})
    if name not in known:
        known[name] = np.full((machine.lanes, _LARGEST), POISON, np.uint8)
    return known[name]


def _store_param(instruction: Instruction) -> Step:
    target, source = instruction.operands
    if not isinstance(target, Address) or not isinstance(target.base, Symbol):
        raise instruction.unknown()
    name, first, width = target.base.name, target.offset, DTYPES[type_of(instruction)].itemsize
    reads = [reader(item, f"b{8 * width}") for item in items(source)]
    if first + width * len(reads) > _LARGEST:
        raise instruction.unknown()

    def run(machine: Machine) -> None:
        memory = _arguments(machine, name)
        for number, read in enumerate(reads):
            at = first + number * width
            values = np.ascontiguousarray(_wanted(machine, read(machine)))
            memory[machine.lanes_now(), at : at + width] = values.view(np.uint8).reshape(-1, width)

    return run


@handles("st")
def _store(instruction: Instruction) -> Step:
    space, kind, count = space_of(instruction), type_of(instruction), _count(instruction)
    target, source = instruction.operands
    if space == "param":
        return _store_param(instruction)
    width = DTYPES[kind].itemsize
    address, reads = address_reader(target), [reader(item, f"b{8 * width}") for item in items(source)]

    def run(machine: Machine) -> None:
        try:
            memory, at = located(machine, space, address(machine), width * count)
        except Fault as fault:
            raise _named(instruction, fault) from None
        values = [_wanted(machine, read(machine)) for read in reads]
        if machine.ordering is not None and space != "local":
            now = [memory.load(at + number * width, width) for number in range(count)]
            new = np.any([old != value for old, value in zip(now, values, strict=True)], axis=0)
            lanes, device = machine.lanes_now()[new], not space.startswith("shared")
            machine.ordering.touch(at[new], width * count, lanes, True, device=device)
        for number, value in enumerate(values):
            memory.store(at + number * width, value)
        machine.changes += 1

    return run


def _wanted(machine: Machine, value: Array) -> Array:
    return np.broadcast_to(value, (machine.lanes,))[machine.lanes_now()]


def _added(old: Any, new: Any) -> Any:
    return old + new


_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": _added,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "exch": lambda _old, new: new,
    "min": lambda old, new: np.fmin(old, new) if old.dtype.kind == "f" else np.minimum(old, new),
    "max": lambda old, new: np.fmax(old, new) if old.dtype.kind == "f" else np.maximum(old, new),
}


@handles("atom", "red")
def _atomic(instruction: Instruction) -> Step:
    space, kind = space_of(instruction), type_of(instruction)
    name = next((part for part in instruction.parts if part in (*_UPDATES, "cas")), "")
    if kind.endswith("x2") or not name:
        raise instruction.unknown()
    target, rest = (
        (instruction.operands[0], instruction.operands[1:])
        if instruction.name == "atom"
        else (
            Symbol("_"),
            instruction.operands,
        )
    )
    address, write = address_reader(rest[0]), writer(target)
    reads = [reader(operand, kind) for operand in rest[1:]]
    update = _one_update(name, kind)
    width = DTYPES[kind].itemsize

    def run(machine: Machine) -> None:
        try:
            memory, at = located(machine, space, address(machine), width, partly=True)
        except Fault as fault:
            raise _named(instruction, fault) from None
        machine.touch(space, at, width, True, atomic=True)
        places = memory.data.view(DTYPES[kind])
        values = [_wanted(machine, read(machine)) for read in reads]
        old = np.zeros(len(at), DTYPES[kind])
        for number, place in enumerate(at // width):
            old[number] = places[place]
            places[place] = update(places[place], *[value[number] for value in values])
        write(machine, _spread(machine, old))
        machine.changes += 1

    return run


def _exchanged(old: Any, expected: Any, new: Any) -> Any:
    return new if old == expected else old


def _one_update(name: str, kind: str) -> Callable[..., Any]:
    """Return what an atomic leaves in memory."""
    if name == "cas":
        return _exchanged
    update = _UPDATES[name]
    if kind != "bf16" or name == "exch":
        return update

    def rounded(old: Any, new: Any) -> Any:
        wide = [from_bf16(np.array([value])) for value in (old, new)]
        return to_bf16(update(*wide))[0]

    return rounded


def _copies(machine: Machine) -> Groups:
    return machine.units.setdefault("copies", Groups())


@handles("cp")
def _copy(instruction: Instruction) -> Step:
    if instruction.has("bulk"):
        from tessera.tools.emulate.bulk import bulk_copy

        return bulk_copy(instruction)
    if instruction.has("commit_group"):
        return lambda machine: _copies(machine).commit(machine.active)
    if instruction.has("wait_all"):
        return _wait_all
    if instruction.has("wait_group"):
        pending = reader(instruction.operands[0], "u32")
        return lambda machine: _copies(machine).wait(machine.active, int(pending(machine)[0]))
    return _start_copy(instruction)


def _wait_all(machine: Machine) -> None:
    copies = _copies(machine)
    copies.commit(machine.active)
    copies.wait(machine.active, 0)


def _start_copy(instruction: Instruction) -> Step:
    """Start a copy; it is done as late as it may be, when a lane waits for it."""
    target, source, *sizes = instruction.operands
    size = reader(sizes[0], "u32")
    to, from_ = address_reader(target), address_reader(source)
    given = reader(sizes[1], "u32") if len(sizes) > 1 else size
    if len(sizes) > 2:
        raise instruction.unknown()

    def run(machine: Machine) -> None:
        width = int(size(machine)[0])
        try:
            lanes = machine.lanes_now()
            counts = np.broadcast_to(given(machine), (machine.lanes,))[lanes]
            where = np.broadcast_to(to(machine), (machine.lanes,))[lanes]
            at = machine.shared.offsets(where, lanes, width)
            sources = np.broadcast_to(from_(machine), (machine.lanes,))[lanes]
            data = _source(machine, sources, counts, width)
        except Fault as fault:
            raise _named(instruction, fault) from None
        places = np.zeros(machine.lanes, np.int64)
        values = np.zeros((machine.lanes, width), np.uint8)
        places[lanes], values[lanes] = at, data

        def copy(now: Array) -> None:
            if machine.ordering is not None:
                new = (machine.shared.bytes.data[places[now][:, None] + np.arange(width)] != values[now]).any(1)
                machine.ordering.touch(places[now][new], width, np.nonzero(now)[0][new], True)
            machine.shared.bytes.data[places[now][:, None] + np.arange(width)] = values[now]

        _copies(machine).open.append((machine.active.copy(), copy))

    return run


def _source(machine: Machine, sources: Array, counts: Array, width: int) -> Array:
    """Return the bytes that copies bring: as many as they count, then zeros."""
    data = np.zeros((len(sources), width), np.uint8)
    if (counts > width).any():
        raise Fault(f"{int(counts.max())} bytes of a copy of {width}")
    for byte in range(width):
        wanted = counts > byte
        if wanted.any():
            at = machine.device.offsets(sources[wanted] + np.uint64(byte), 1)
            data[wanted, byte] = machine.device.bytes.data[at]
    if (sources[counts > 0] % np.uint64(width)).any():
        raise Fault(f"a copy of {width} bytes from an address that is no multiple")
    return data
