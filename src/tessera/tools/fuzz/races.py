"""Runs a function of TIR-T with the addresses of every thread, and finds elements that two threads touch unordered.

It knows nothing of how barriers were placed: scalars are computed, each access touches what its layout says, and a
barrier starts a new epoch. Within an epoch, an element that one thread writes no other thread may touch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout
from tessera.ir.target.arithmetic import CastOp, ConstantOp, ElementwiseOp
from tessera.ir.target.atomics import AtomicOp
from tessera.ir.target.memory import BarrierOp, GatherOp, LoadOp, MemcpyOp, ScatterOp, StoreOp
from tessera.ir.target.roles import BulkCopyOp, BulkStoreOp
from tessera.ir.target.structure import FuncOp, ProgramCountOp, ProgramIdOp
from tessera.ir.target.types import FragmentType

Array = Any
"""A NumPy array."""

NOBODY, MANY, ATOMIC = -1, -2, -3


class Unknown(Exception):
    """What a program touches, or whether it runs, depends on its data, or on ops that this machine does not know."""


def _select(condition: int, a: int, b: int) -> int:
    return a if condition else b


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


_FUNCTIONS: Final[dict[str, Callable[..., int]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "minimum": min,
    "maximum": max,
    "and": int.__and__,
    "or": int.__or__,
    "select": _select,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


@dataclass
class Race:
    """Two threads touched an element in one epoch, one of them to write it."""

    op: Any
    element: int


@dataclass
class Machine:
    """One program of a launch.

    Args:
        func: the function.
        sizes: shape of each tensor argument.
        program: the program's number.
        scalars: the scalar arguments.
        count: how many programs there are; 1 lets one of a persistent launch walk all tiles.

    `outside` are the accesses that reach past their tensor.
    """

    func: FuncOp
    sizes: dict[int, tuple[int, ...]]
    program: int = 0
    scalars: dict[int, int] = field(default_factory=dict[int, int])
    count: int = 1
    outside: list[Any] = field(default_factory=list[Any])
    races: list[Race] = field(default_factory=list[Race])
    barriers: int = 0

    def __post_init__(self) -> None:
        self.values: dict[SSAValue, int | None] = {}
        self.pointers: dict[SSAValue, int] = {}
        self.writer = {arg: np.full(prod(shape), NOBODY) for arg, shape in self.sizes.items()}
        self.reader = {arg: np.full(prod(shape), NOBODY) for arg, shape in self.sizes.items()}
        for value, record in zip(self.func.body.block.args, self.func.parameters, strict=True):
            if record.kind == "pointer":
                self.pointers[value] = record.arg
            elif record.kind == "size":
                self.values[value] = self.sizes[record.arg][record.axis]
            elif record.kind == "scalar":
                self.values[value] = self.scalars[record.arg]
            elif record.kind == "stride":
                self.values[value] = prod(self.sizes[record.arg][record.axis + 1 :])

    def run(self) -> list[Race]:
        """Run the program and return what it races on."""
        self._block(self.func.body.block)
        return self.races

    def _block(self, block: Block) -> list[int | None]:
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                return [self.values.get(value) for value in op.operands]
            self._op(op)
        return []

    def _op(self, op: Any) -> None:
        if isinstance(op, BarrierOp):
            self.barriers += 1
            for marks in (self.writer, self.reader):
                for found in marks.values():
                    found[:] = NOBODY
        elif isinstance(op, scf.ForOp):
            self._for(op)
        elif isinstance(op, scf.IfOp):
            self._if(op)
        elif isinstance(op, LoadOp | StoreOp | MemcpyOp):
            self._box(op)
        elif isinstance(op, GatherOp | ScatterOp | AtomicOp):
            self._anywhere(op)
        elif op.regions or isinstance(op, BulkCopyOp | BulkStoreOp):
            raise Unknown(op.name)
        else:
            self._scalar(op)

    def _scalar(self, op: Any) -> None:
        if isinstance(op, ConstantOp):
            number = op.python_value
            self.values[op.result] = None if isinstance(number, float) else int(number)
        elif isinstance(op, ProgramIdOp):
            self.values[op.result] = self.program
        elif isinstance(op, ProgramCountOp):
            self.values[op.result] = self.count
        elif isinstance(op, CastOp):
            self.values[op.result] = self.values.get(op.source)
        elif isinstance(op, ElementwiseOp):
            args = [self.values.get(arg) for arg in op.args]
            known = op.fn.data in _FUNCTIONS and None not in args
            self.values[op.result] = int(_FUNCTIONS[op.fn.data](*args)) if known else None

    def _number(self, value: SSAValue) -> int:
        number = self.values.get(value)
        if number is None:
            raise Unknown("a value depends on data")
        return number

    def _if(self, op: scf.IfOp) -> None:
        condition = self._number(op.cond)
        taken = op.true_region if condition else op.false_region
        results = self._block(taken.block) if taken.blocks else []
        self.values.update(zip(op.results, results, strict=False))

    def _for(self, op: scf.ForOp) -> None:
        low, high, step = (self._number(value) for value in (op.lb, op.ub, op.step))
        carried = [self.values.get(value) for value in op.iter_args]
        block = op.body.block
        for counter in range(low, high, step):
            self.values[block.args[0]] = counter
            self.values.update(zip(block.args[1:], carried, strict=True))
            carried = self._block(block)
        self.values.update(zip(op.results, carried, strict=True))

    def _anywhere(self, op: Any) -> None:
        if op.pointer not in self.pointers:
            return  # a shared buffer
        arg = self.pointers[op.pointer]
        everything = np.arange(self.writer[arg].size)
        if isinstance(op, GatherOp) or (isinstance(op, AtomicOp) and not op.writes):
            self._read(op, arg, everything, np.full(everything.size, MANY))
        else:
            self._write(op, arg, everything, ATOMIC if isinstance(op, AtomicOp) else MANY)

    def _box(self, op: Any) -> None:
        arg = self.pointers[op.pointer]
        tile = op.value.type if isinstance(op, StoreOp) else op.result.type if isinstance(op, LoadOp) else None
        threads = 32 * self.func.num_warps.data
        if isinstance(tile, FragmentType):
            who, coordinates = _places(tile.linear)
            if isinstance(op, StoreOp):
                masks = tile.linear.free_variable_masks()
                lane, warp = who & 31, who >> 5
                mine = ((lane & masks.get(LANE, 0)) | (warp & masks.get(WARP, 0))) == 0
                who, coordinates = who[mine], coordinates[mine]
        elif isinstance(op, MemcpyOp):
            buffer: Any = op.buffer.type
            shape: tuple[int, ...] = buffer.shape
            coordinates = np.stack([c.ravel() for c in np.indices(shape)], -1)
            who = np.full(len(coordinates), MANY)
        else:
            who = np.zeros(1, int) if isinstance(op, StoreOp) else np.arange(threads)
            coordinates = np.zeros((len(who), 0), int)
        offsets = [self._number(offset) for offset in op.offsets]
        at = np.zeros((len(who), len(offsets)), int) + np.array(offsets, int)
        for place, axis in enumerate(op.axis_list):
            at[:, axis] += coordinates[:, place]
        inside = np.ones(len(who), bool)
        for axis in op.checked_list:  # as they are compared: unsigned
            limit = self._number(op.sizes[axis])
            inside &= at[:, axis].astype(np.uint64) < np.uint64(limit % 2**64)
        if isinstance(op, LoadOp | StoreOp):
            for place, size in enumerate(op.tile):
                inside &= coordinates[:, place] < size.data
        valid = np.all((at >= 0) & (at < np.array(self.sizes[arg])), axis=1)
        if (inside & ~valid).any():
            self.outside.append(op)
        inside &= valid
        flat = np.ravel_multi_index(tuple(at[inside].T), self.sizes[arg]) if inside.any() else np.zeros(0, int)
        if isinstance(op, StoreOp):
            self._write(op, arg, flat, who[inside])
        else:
            self._read(op, arg, flat, who[inside])

    def _read(self, op: Any, arg: int, flat: Array, who: Array) -> None:
        writer, reader = self.writer[arg], self.reader[arg]
        self._complain(op, flat, (writer[flat] != NOBODY) & ((writer[flat] != who) | (who < 0)))
        low, high = np.full(reader.size, 1 << 40), np.full(reader.size, NOBODY - 9)
        np.minimum.at(low, flat, who)
        np.maximum.at(high, flat, who)
        touched = np.unique(flat)
        before = reader[touched]
        alone = (low[touched] == high[touched]) & ((before == NOBODY) | (before == low[touched]))
        reader[touched] = np.where(alone, low[touched], MANY)

    def _write(self, op: Any, arg: int, flat: Array, who: Any) -> None:
        who = np.broadcast_to(np.asarray(who), flat.shape)
        writer, reader = self.writer[arg], self.reader[arg]
        before = writer[flat]
        bad = (before != NOBODY) & ((before != who) | (who == MANY))
        bad |= (reader[flat] != NOBODY) & ((reader[flat] != who) | (who < 0))
        self._complain(op, flat, bad)
        writer[flat] = who

    def _complain(self, op: Any, flat: Array, bad: Array) -> None:
        if bad.any():
            self.races.append(Race(op, int(flat[bad][0])))


def _places(layout: LinearLayout) -> tuple[Array, Array]:
    """Return, for every register of every thread, the thread and the coordinates it holds."""
    count = {dim: layout.in_size(dim) for dim in (REGISTER, LANE, WARP)}
    grid = np.indices(tuple(count.values())).reshape(3, -1)
    flat = np.zeros(grid.shape[1], int)
    for dim, index in zip(count, grid, strict=True):
        for bit, column in enumerate(layout.columns(dim)):
            flat ^= np.where(index >> bit & 1, column, 0)
    coordinates = np.array([layout.unflatten(value) for value in range(layout.size)]).reshape(layout.size, -1)
    return grid[1] + 32 * grid[2], coordinates[flat]
