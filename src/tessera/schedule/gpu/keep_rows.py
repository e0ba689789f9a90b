"""Keeps long rows that are needed again after their sums in shared memory.

A program that normalises a row waits for the sum of all of it, and holds the row meanwhile: in registers, which leave a
multiprocessor no room for another program that would keep the memory busy. Shared memory has room for several. What is
computed of the row element by element is computed again from there.

Before::

    %x = load %X[%i, 0] [1, 16384] drop [0]
    %sum = reduce "sum" %x axis 0
    %y = elementwise "div"(%x, splat %sum)

After::

    %row = alloc_shared; cp_async %X[%i, 0] [1, 16384] drop [0] into %row; commit_group; wait_group 0; barrier
    %x = shared_load %row
    %sum = reduce "sum" %x axis 0
    %again = shared_load %row
    %y = elementwise "div"(%again, splat %sum)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.notes import note
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, CommitGroupOp, CpAsyncOp, SharedLoadOp, WaitGroupOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.lower.simt.placement import ACCESS_BYTES
from tessera.schedule.gpu.chunk_tiles import ELEMENTS, moved_bytes
from tessera.schedule.scheduled_pass import GridPass

WARPS = 16
"""Of a program: a thread has 32 elements at most, and no need to hold them."""
LEAST = 2
"""Rows that are needed again: of one, registers leave room for a second program."""
PROGRAMS = 3
"""That a multiprocessor has at least, so that others load while one waits."""
_ALIKE = (ElementwiseOp, CastOp, BitcastOp, SplatOp)


@dataclass(frozen=True)
class KeepRowsPass(GridPass):
    """Keeps rows of which more is needed after their sums in shared memory.

    Args:
        target: the GPU.
        knobs: `chunk` says how long tiles are computed, and leaves rows as they are.
    """

    name: ClassVar[str] = "keep-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the rows of a launch whose programs have one each."""
        if self.knobs.chunk is not None:
            return
        rows = _Rows(kernel, grid)
        kept = rows.kept()
        padded = 1 << (rows.size - 1).bit_length() if kept else 0
        needed = padded * sum(dtype_of(element_of(op.result.type)).bytes for op in kept)
        if kept and needed * PROGRAMS <= self.target.shared_bytes:
            rows.keep(kept)
            decisions.NUM_WARPS.write(grid, WARPS)
            note(
                grid,
                "rows",
                [f"{len(kept)} rows of {rows.size} elements are kept in shared memory for after their sums"],
            )


class _Rows:
    """The rows of a launch.

    Args:
        kernel: the kernel.
        grid: the launch.
    """

    def __init__(self, kernel: KernelOp, grid: GridOp) -> None:
        self.kernel = kernel
        self.block = grid.body.block
        self.ops = list(self.block.ops)
        self.size = max((size for op in self.ops for value in op.results if (size := _length(value))), default=0)
        self.sections = dict[Operation, int]()
        for op in self.ops:
            before = self.sections[op.prev_op] if op.prev_op is not None else 0
            self.sections[op] = before + (op.prev_op is not None and self._ends(op.prev_op))
        self._again: dict[tuple[SSAValue, int], SSAValue] = {}
        self._buffers: dict[Operation, SSAValue] = {}
        self._written = {memory_of(op.tensor) for op in self.ops if isinstance(op, StoreOp)}

    def _ends(self, op: Operation) -> bool:
        return isinstance(op, ReduceOp) and _length(op.operands[0]) == self.size

    def kept(self) -> list[LoadOp]:
        """Return the loads of rows that are needed behind the sum as well, none where these are too few or others."""
        if not ELEMENTS // 2 < self.size <= ELEMENTS:
            return []
        if any(op.regions or isinstance(op, AllocSharedOp) for op in self.ops):
            return []
        again = [
            op
            for op in self.ops
            if isinstance(op, LoadOp) and _length(op.result) == self.size and self._lives_on(op.result)
        ]
        sums = [op for op in self.ops if self._ends(op)]
        if len(sums) != 1 or len(again) < LEAST or not all(map(self._may_be_copied, again)):
            return []
        if not self._are_first(again):
            return []
        stores = [op for op in self.ops if isinstance(op, StoreOp) and self.sections[op]]
        return again if any(_length(op.value) == self.size for op in stores) else []

    def _lives_on(self, value: SSAValue) -> bool:
        """Return whether a row, or what is computed of it, is needed behind a sum that it is computed before."""
        owner = value.owner
        assert isinstance(owner, Operation)
        for use in value.uses:
            user = use.operation
            if self.sections.get(user, 0) > self.sections[owner]:
                return True
            if isinstance(user, _ALIKE) and self._lives_on(user.results[0]):
                return True
        return False

    def _may_be_copied(self, op: LoadOp) -> bool:
        """Return whether copies of 16 bytes load a row, which is the program's own."""
        is_own = any(constant_value(offset) is None for offset in op.offsets)
        return is_own and op.mask is None and op.fill is None and moved_bytes(self.kernel, op) >= ACCESS_BYTES

    def _are_first(self, loads: Sequence[LoadOp]) -> bool:
        """Return whether rows may all be loaded where the first of them is."""
        place = self.ops.index(loads[0])
        between = self.ops[place : self.ops.index(loads[-1])]
        if any(isinstance(op, StoreOp) for op in between):
            return False
        early = set(self.ops[:place])
        return all(
            not isinstance(owner := value.owner, Operation)
            or owner.parent is not self.block
            or owner in early
            or isinstance(owner, ConstantOp)
            for op in loads
            for value in op.operands
        )

    def keep(self, loads: Sequence[LoadOp]) -> None:
        """Copy rows to shared memory, and compute again from there what is needed behind sums."""
        self._copy(loads)
        for op in self.ops:
            section = self.sections[op]
            insert = Inserter(InsertPoint.before(op), op)
            for number, value in enumerate(op.operands):
                if isinstance(value.owner, Operation) and self.sections.get(value.owner, section) < section:
                    op.operands[number] = self._computed_again(value, section, insert)
        for op in loads:
            insert = Inserter(InsertPoint.before(op), op)
            Rewriter.replace_op(op, [], [insert.value(SharedLoadOp(self._buffers[op]))])

    def _copy(self, loads: Sequence[LoadOp]) -> None:
        first = loads[0]
        insert = Inserter(InsertPoint.before(first), first)
        for op in loads:
            offsets = [
                insert.constant(int(constant)) if (constant := constant_value(offset)) is not None else offset
                for offset in op.offsets
            ]
            self._buffers[op] = insert.value(AllocSharedOp(shape_of(op.result.type), element_of(op.result.type)))
            insert.add(CpAsyncOp(self._buffers[op], op.tensor, offsets, op.size_list, op.dropped))
        for op in (CommitGroupOp(), WaitGroupOp(0), BarrierOp()):
            insert.add(op)

    def _computed_again(self, value: SSAValue, section: int, insert: Inserter) -> SSAValue:
        """Return a row, or what is computed of one, as it is computed again in a section; other values as they are."""
        owner = value.owner
        if _length(value) != self.size or not isinstance(owner, Operation) or owner.parent is not self.block:
            return value
        if self.sections.get(owner, section) == section:
            return value
        key = value, section
        if key not in self._again:
            self._again[key] = self._made_again(owner, value, section, insert)
        return self._again[key]

    def _made_again(self, owner: Operation, value: SSAValue, section: int, insert: Inserter) -> SSAValue:
        if owner in self._buffers:
            return insert.value(SharedLoadOp(self._buffers[owner]))
        if isinstance(owner, LoadOp) and memory_of(owner.tensor) not in self._written:
            return insert.value(owner.clone())
        if not isinstance(owner, _ALIKE):
            return value
        operands = {each: self._computed_again(each, section, insert) for each in owner.operands}
        return insert.value(owner.clone(operands))


def _length(value: SSAValue) -> int:
    """Return the elements of a tile of one dimension, 0 for another value."""
    type_ = value.type
    return type_.shape[0] if isinstance(type_, TileType) and len(type_.shape) == 1 else 0
