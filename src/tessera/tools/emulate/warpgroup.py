"""Matrix products of warpgroups, with operands in shared memory.

A matrix descriptor names a start, two strides and a swizzle: rows of 128, 64 or 32 bytes. Along K: rows, eight to a
block, blocks a stride apart. Along M or N: a row holds the elements of one k, eight to a block; blocks of k's are a
stride apart, blocks of elements a leading stride.

Source: PTX ISA 9.2, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.groups import Groups
from tessera.tools.emulate.machine import WARP, Array, Machine, Step
from tessera.tools.emulate.matrix import elements, rows_first
from tessera.tools.emulate.memory import SHARED_BASE
from tessera.tools.emulate.rounding import narrowed
from tessera.tools.emulate.tensor_maps import swizzled
from tessera.tools.emulate.text import Instruction, Number, Operand, Vector
from tessera.tools.emulate.values import handles, items, reader, writer

_GROUP = 4 * WARP
_ROW_BYTES = {1: 128, 2: 64, 3: 32}
"""Of swizzled rows, by what a descriptor says."""
_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}


@handles("wgmma")
def _warpgroup(instruction: Instruction) -> Step:
    kind = instruction.parts[0]
    if kind == "fence":
        return lambda machine: not machine.whole_warps()
    if kind == "wait_group":
        return _wait(instruction)
    if kind == "commit_group":
        return _commit
    return _product(instruction)


def _products(machine: Machine) -> Groups:
    return machine.units.setdefault("products", Groups())


def _commit(machine: Machine) -> bool | None:
    if not machine.whole_warps(_GROUP):
        return True
    _products(machine).commit(machine.active)
    return None


def _wait(instruction: Instruction) -> Step:
    pending = reader(instruction.operands[0], "u32")

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps(_GROUP):
            return True
        _products(machine).wait(machine.active, int(pending(machine)[0]))
        return None

    return run


def _product(instruction: Instruction) -> Step:
    parts = instruction.parts
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", parts[3]) if len(parts) == 7 else None
    if shape is None or parts[:3] != ("mma_async", "sync", "aligned"):
        raise instruction.unknown()
    columns, depth, (d, a, b) = int(shape[1]), int(shape[2]), parts[4:]
    target, left, right, keep, *signs = instruction.operands
    flags = [one.value for one in signs if isinstance(one, Number)]
    in_registers = isinstance(left, Vector)
    if d not in ("f32", "s32", "f16") or a not in _BITS or b not in _BITS:
        raise instruction.unknown()
    scales, turns = (flags[:2], flags[2:]) if d != "s32" else ([1, 1], [])
    turns = [0, *turns] if in_registers else turns
    turns = [*turns, 0, 0][:2]
    kept, registers = reader(keep, "pred"), items(target)
    writes = [writer(one) for one in registers]

    def compute(machine: Machine, given: list[Array], lanes: Array) -> None:
        before = machine.active, machine.full
        machine.active, machine.full = lanes, bool(lanes.all())
        first = _left(machine, given[0], a, depth, turns[0])
        second = _described(machine, given[1], b, columns, depth, turns[1])
        found = first @ np.swapaxes(second, 1, 2) * (scales[0] * scales[1])
        held = given[2][machine.active].reshape(-1, _GROUP)[:, 0]
        old = _accumulator(machine, registers, d, columns)
        found = np.where(held[:, None, None], old, 0) + found
        for write, value in zip(writes, _registers(found, d), strict=True):
            result = np.zeros(machine.lanes, value.dtype)
            result[machine.active] = value
            write(machine, result)
        machine.active, machine.full = before

    def run(machine: Machine) -> bool | None:
        if not machine.whole_warps(_GROUP):
            return True
        keeps = np.broadcast_to(kept(machine), (machine.lanes,))
        given = [_operand(machine, left), _operand(machine, right), keeps]
        _products(machine).open.append((machine.active, partial(compute, machine, given)))
        return None

    return run


def _active_groups(machine: Machine) -> Array:
    """Return the first lanes of the active warpgroups.

    Raises:
        Fault: a warpgroup is active in part.
    """
    groups = machine.active.reshape(-1, _GROUP)
    if (groups.any(1) != groups.all(1)).any():
        raise Fault("part of a warpgroup executes its product")
    return np.nonzero(groups.any(1))[0] * _GROUP


def _operand(machine: Machine, operand: Operand) -> Array:
    """Return what a product takes when it starts: descriptors, or the words of a fragment as registers by lanes."""
    if not isinstance(operand, Vector):
        return np.broadcast_to(reader(operand, "u64")(machine), (machine.lanes,))
    return np.stack([np.broadcast_to(reader(one, "b32")(machine), (machine.lanes,)) for one in operand.items])


def _left(machine: Machine, given: Array, kind: str, depth: int, turned: int) -> Array:
    """Return the left operand: groups, 64 rows, K."""
    firsts = _active_groups(machine)
    if given.ndim == 1:
        return _described(machine, given, kind, 64, depth, turned)
    gathered = np.stack([words[machine.active].reshape(-1, 8, 4) for words in given], axis=1)
    return rows_first(gathered, kind, 2).reshape(len(firsts), 64, depth)


def _described(machine: Machine, descriptors: Array, kind: str, rows: int, depth: int, turned: int) -> Array:
    """Return an operand in shared memory: groups, rows (of A, or columns of B), K."""
    firsts = _active_groups(machine)
    return np.stack([_read(machine, int(lane), int(descriptors[lane]), kind, rows, depth, turned) for lane in firsts])


def _read(machine: Machine, lane: int, descriptor: int, kind: str, rows: int, depth: int, turned: int) -> Array:
    start, leading, stride = ((descriptor >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    if descriptor >> 62 not in _ROW_BYTES or descriptor >> 49 & 7:
        raise Fault(f"a matrix descriptor without a swizzle, or with an offset in it: {descriptor:#x}")
    width, line_bytes = _BITS[kind] // 8, _ROW_BYTES[descriptor >> 62]
    row, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    if turned:
        line = line_bytes // width
        linear = row // line * leading + row % line * width + k // 8 * stride + k % 8 * line_bytes
    else:
        linear = row // 8 * stride + row % 8 * line_bytes + k * width
    address = swizzled(start + linear, line_bytes) - SHARED_BASE
    if address.min() < 0 or address.max() + width > machine.shared.size:
        raise Fault(f"a matrix outside of shared memory: descriptor {descriptor:#x}")
    places = machine.shared.place(lane // machine.grid.threads) + address
    bytes_ = places[..., None] + np.arange(width)
    if machine.ordering is not None:
        machine.ordering.start(bytes_, lane, False)
        machine.ordering.end(bytes_, lane)
    raw = machine.shared.bytes.data[bytes_]
    return elements(_words(raw, width), kind)[..., 0]


def _words(raw: Array, width: int) -> Array:
    return np.ascontiguousarray(raw).view(f"u{width}")


def _accumulator(machine: Machine, registers: tuple[Operand, ...], kind: str, columns: int) -> Array:
    """Return the accumulator: groups, 64 rows, columns."""
    values = [np.broadcast_to(reader(one, "b32")(machine), (machine.lanes,))[machine.active] for one in registers]
    words = np.stack(values, axis=-1)
    found = elements(np.ascontiguousarray(words), kind).reshape(-1, 4, 8, 4, columns // 8, 2, 2)
    return found.transpose(0, 1, 5, 2, 4, 3, 6).reshape(-1, 64, columns)


def _registers(matrix: Array, kind: str) -> list[Array]:
    """Return what each register holds in the active lanes."""
    groups, _, columns = matrix.shape
    split = matrix.reshape(groups, 4, 2, 8, columns // 8, 4, 2).transpose(0, 1, 3, 5, 4, 2, 6)
    typed = narrowed(split, kind) if kind != "s32" else split.astype(np.int64).astype(np.int32)
    words = np.ascontiguousarray(typed).reshape(groups * _GROUP, -1).view(np.uint32)
    return [words[:, number] for number in range(words.shape[1])]
