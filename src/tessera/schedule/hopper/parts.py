"""Computes a tile part by part, each from parts of the tile's inputs (epilogue sub-tiling).

A tile of 128 x 256 is 128 registers a thread; an epilogue that works on all of it at once holds several such tiles.
"""

from __future__ import annotations

from dataclasses import field

from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.roles import BulkStoreOp
from tessera.ir.tile.shape import BroadcastOp, SubtileOp, TransposeOp
from tessera.ir.tile.structure import memory_of
from tessera.ir.tile.types import TileType, element_of
from tessera.ir.tile.writes import Stores


@dataclass
class Parts:
    """The columns of a matrix, a part at a time.

    Args:
        matrix: the matrix.
        width: columns of a part.
        around: ops between the matrix and its inputs that are done for each part; found by `of`.
    """

    matrix: SSAValue
    width: int
    around: frozenset[Operation] = field(default=frozenset())

    @classmethod
    def of(cls, matrix: SSAValue, width: int, store: StoreOp) -> Parts:
        """Find what leads to a matrix and to nothing else but the store that the parts replace."""
        block = matrix.owner.parent if isinstance(matrix.owner, Operation) else None
        found = _leading_to(matrix, block) if block is not None else set[Operation]()
        turned = any(isinstance(op, TransposeOp) for op in found)
        found = {op for op in found if not isinstance(op, LoadOp) or _unchanged(op, store, turned)}
        while True:
            # What has other uses is computed as a whole, and so is everything before it.
            outside = {
                op
                for op in found
                for result in op.results
                for use in result.uses
                if use.operation not in found and use.operation is not store and result is not matrix
            }
            if not outside:
                return cls(matrix, width, frozenset(found))
            found -= outside

    def at(self, insert: Inserter, column: int) -> SSAValue:
        """Add the ops that give the part that starts at a column."""
        return _Part(self, insert, column).value(self.matrix)


def _leading_to(value: SSAValue, block: Block) -> set[Operation]:
    found: set[Operation] = set()
    todo = [value]
    while todo:
        owner = todo.pop().owner
        if isinstance(owner, Operation) and owner.parent is block and owner not in found and _divisible(owner):
            found.add(owner)
            todo += [operand for operand in owner.operands if isinstance(operand.type, TileType)]
    return found


def _unchanged(load: LoadOp, store: StoreOp, turned: bool) -> bool:
    """Return whether a part of a load reads the same data after earlier parts of the store.

    Args:
        load: the load; in the memory that is stored to, it reads exactly the box of the store.
        store: the store.
        turned: whether a part of the load may differ from the part that is stored.
    """
    op, memory = load.next_op, memory_of(load.tensor)
    if turned and memory is memory_of(store.tensor):
        return False
    while op is not None and op is not store:
        for inner in op.walk():
            writes = isinstance(inner, Stores | BulkStoreOp)
            if writes and memory_of(inner.tensor) is memory:
                return False
        op = op.next_op
    return True


def _divisible(op: Operation) -> bool:
    """Return whether a part of an op's results depends on parts of its operands alone."""
    if not all(isinstance(result.type, TileType) and result.type.rank == 2 for result in op.results):
        return False
    if isinstance(op, LoadOp):
        return op.mask is None and op.fill is None
    return isinstance(op, ElementwiseOp | CastOp | BroadcastOp | PhiloxOp | TransposeOp)


@dataclass
class _Part:
    """One part under construction: the part of each value so far, by the axis it is cut along."""

    parts: Parts
    insert: Inserter
    column: int
    made: dict[tuple[SSAValue, int], SSAValue] = field(default_factory=dict[tuple[SSAValue, int], SSAValue])

    def value(self, whole: SSAValue, axis: int = 1) -> SSAValue:
        """Return the part of a value along an axis; scalars and values that do not run along it are whole."""
        if (whole, axis) in self.made:
            return self.made[whole, axis]
        type_, owner = whole.type, whole.owner
        if not isinstance(type_, TileType) or type_.shape[axis] == 1:
            return whole
        # A splat costs nothing, whatever else uses the whole one.
        if isinstance(owner, Operation) and (isinstance(owner, SplatOp) or owner in self.parts.around):
            results = self._again(owner, axis)
            self.made.update(zip(((result, axis) for result in owner.results), results, strict=True))
        else:
            part = SubtileOp(whole, [self.column if at == axis else 0 for at in (0, 1)], self._shape(type_, axis))
            self.made[whole, axis] = self.insert.value(part)
        return self.made[whole, axis]

    def _shape(self, whole: TileType, axis: int) -> tuple[int, ...]:
        return tuple(self.parts.width if at == axis else size for at, size in enumerate(whole.shape))

    def _again(self, op: Operation, axis: int) -> list[SSAValue]:
        type_ = op.results[0].type
        assert isinstance(type_, TileType)
        shape = self._shape(type_, axis)
        if isinstance(op, LoadOp):
            moved = op.kept[axis]
            offsets, sizes = list(op.offsets), list(op.size_list)
            if self.column:
                offsets[moved] = self.insert.binary("add", offsets[moved], self.insert.constant(self.column))
            sizes[moved] = self.parts.width
            return [self.insert.value(LoadOp(op.tensor, offsets, sizes, op.dropped))]
        if isinstance(op, SplatOp):
            return [self.insert.value(SplatOp(op.value, shape))]
        if isinstance(op, TransposeOp):
            return [self.insert.value(TransposeOp(self.value(op.source, 1 - axis), op.permutation))]
        operands = [self.value(operand, axis) for operand in op.operands]
        if isinstance(op, BroadcastOp):
            return [self.insert.value(BroadcastOp(operands[0], shape))]
        if isinstance(op, CastOp):
            return [self.insert.value(CastOp(operands[0], element_of(type_), op.saturate is not None))]
        if isinstance(op, PhiloxOp):
            return list(self.insert.add(PhiloxOp(operands[0], operands[1])).results)
        assert isinstance(op, ElementwiseOp)
        return [self.insert.value(ElementwiseOp(op.fn.data, operands))]
