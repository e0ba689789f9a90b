"""What the lanes of a warp do together: shuffles, votes, and loads and stores of 8x8 matrices.

Source: PTX ISA 9.2, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "ldmatrix", "stmatrix".
"""

from __future__ import annotations

import numpy as np

from tessera.tools.emulate.access import address_reader, space_of
from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.machine import WARP, Array, Machine, Step
from tessera.tools.emulate.memory import where
from tessera.tools.emulate.text import Instruction, Pair
from tessera.tools.emulate.values import Read, handles, items, reader, type_of, writer


@handles("shfl")
def _shuffle(instruction: Instruction) -> Step:
    target, value, by, clamp = instruction.operands[:4]
    read, amount, limits = reader(value, "b32"), reader(by, "u32"), reader(clamp, "u32")
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    write, flag = writer(first), None if second is None else writer(second)
    mode = instruction.parts[1]

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        lane = machine.thread % WARP
        source, valid = _source_lane(mode, lane, amount(machine).astype(np.int64), limits(machine).astype(np.int64))
        source = where(valid, source, lane)
        given = np.broadcast_to(read(machine), (machine.lanes,))
        write(machine, given[machine.index - lane + source])
        if flag is not None:
            flag(machine, np.broadcast_to(valid, (machine.lanes,)))
        return None

    return run


def _source_lane(mode: str, lane: Array, by: Array, limits: Array) -> tuple[Array, Array]:
    """Return the lane that each lane takes a value from, and whether it is in range."""
    by, segment, clamp = by & 31, limits >> 8 & 31, limits & 31
    least, most = lane & segment, lane & segment | clamp & ~segment
    if mode == "up":
        return lane - by, lane - by >= most
    if mode == "down":
        return lane + by, lane + by <= most
    if mode == "bfly":
        return lane ^ by, (lane ^ by) <= most
    found = least | by & ~segment
    return found, found <= most


@handles("vote")
def _vote(instruction: Instruction) -> Step:
    target, source = instruction.operands[:2]
    read, write, mode = reader(source, "pred"), writer(target), instruction.parts[1]
    if mode not in ("any", "all", "uni", "ballot"):
        raise instruction.unknown()

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        votes = np.broadcast_to(read(machine), (machine.lanes,)).reshape(-1, WARP)
        if mode == "ballot":
            found = (votes.astype(np.uint32) << np.arange(WARP, dtype=np.uint32)).sum(1, dtype=np.uint32)
        else:
            found = {"any": votes.any(1), "all": votes.all(1), "uni": votes.all(1) | ~votes.any(1)}[mode]
        write(machine, np.repeat(found, WARP))
        return None

    return run


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@handles("redux")
def _reduce(instruction: Instruction) -> Step:
    kind = type_of(instruction)
    target, source = instruction.operands[:2]
    read, write, combine = reader(source, kind), writer(target), _REDUCE.get(instruction.parts[1])
    if combine is None or kind[0] not in "sub":
        raise instruction.unknown()

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        values = np.broadcast_to(read(machine), (machine.lanes,)).reshape(-1, WARP)
        write(machine, np.repeat(combine.reduce(values, axis=1, dtype=values.dtype), WARP))
        return None

    return run


@handles("activemask")
def _active_mask(instruction: Instruction) -> Step:
    raise instruction.unknown()  # which lanes are together is not promised


def _rows(machine: Machine, addresses: Array, matrices: int) -> tuple[Array, Array]:
    """Return where the bytes of each warp's matrices lie, warps, matrices, rows, 16; and which lanes say so."""
    lanes = machine.lanes_now()
    used = lanes[lanes % WARP < 8 * matrices]
    given = np.broadcast_to(addresses, (machine.lanes,))[used]
    at = machine.shared.offsets(given, used, 16)
    return at.reshape(-1, matrices, 8)[..., None] + np.arange(16), used


def _matrices(instruction: Instruction) -> int:
    if not instruction.has("m8n8") or not instruction.has("b16"):
        raise instruction.unknown()
    return next(int(part[1:]) for part in instruction.parts if part in ("x1", "x2", "x4"))


@handles("ldmatrix")
def _load_matrix(instruction: Instruction) -> Step:
    target, source = instruction.operands
    count, trans = _matrices(instruction), instruction.has("trans")
    address, writes = address_reader(source), [writer(item) for item in items(target)]

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        try:
            at, used = _rows(machine, address(machine), count)
            if machine.ordering is not None:
                machine.ordering.touch(at[..., 0].reshape(-1), 16, used, False)
        except Fault as fault:
            raise Fault(f"line {instruction.line}, {instruction.mnemonic}: {fault}") from None
        elements = machine.shared.bytes.data[at].view(np.uint16)
        if trans:
            elements = np.swapaxes(elements, -1, -2)
        words = np.ascontiguousarray(elements).view(np.uint32)
        for number, write in enumerate(writes):
            result = np.zeros(machine.lanes, np.uint32)
            result[machine.active] = words[:, number].reshape(-1)
            write(machine, result)
        return None

    return run


def _matrix(machine: Machine, read: Read, trans: bool) -> Array:
    """Return the bytes of the matrix that the lanes of each warp hold: warps, rows, 16."""
    words = np.ascontiguousarray(read(machine)[machine.active]).reshape(-1, 8, 4)
    elements = words.view(np.uint16)
    if trans:
        elements = np.ascontiguousarray(np.swapaxes(elements, -1, -2))
    return elements.view(np.uint8).reshape(-1, 8, 16)


@handles("stmatrix")
def _store_matrix(instruction: Instruction) -> Step:
    target, source = instruction.operands
    count, trans = _matrices(instruction), instruction.has("trans")
    address, reads = address_reader(target), [reader(item, "b32") for item in items(source)]
    if not space_of(instruction).startswith("shared"):
        raise instruction.unknown()

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps():
            return True
        try:
            at, used = _rows(machine, address(machine), count)
            new = np.stack([_matrix(machine, read, trans) for read in reads], axis=1)
            if machine.ordering is not None:
                changed = (machine.shared.bytes.data[at] != new).any(-1).reshape(-1)
                machine.ordering.touch(at[..., 0].reshape(-1)[changed], 16, used[changed], True)
        except Fault as fault:
            raise Fault(f"line {instruction.line}, {instruction.mnemonic}: {fault}") from None
        machine.shared.bytes.data[at] = new
        machine.changes += 1
        return None

    return run
