"""Estimates how many registers the tiles take that a launch holds at one time."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.tile.elementwise import ArangeOp, CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import GatherOp, LoadOp
from tessera.ir.tile.reduce import REDUCING
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.types import TileType

_SAME_ELEMENTS = (ReshapeOp, BroadcastOp)
"""Ops that give the registers of their operand another shape."""


def live_registers(block: Block) -> float:
    """Return the most registers of 4 bytes that tiles take at one point of a block, or of the blocks in it.

    The points are those at which threads wait: loads, whose results count, and reductions and scans. What is computed
    element by element between them takes no registers of its own. Neither do constants and places.
    """
    return _Block(block).most()


class _Block:
    """The tiles of one block.

    Args:
        block: the block.
    """

    def __init__(self, block: Block) -> None:
        self._order = {op: number for number, op in enumerate(block.ops)}
        self._block = block
        self._registers = dict[SSAValue, float]()
        self._spans = self._lives()

    def most(self) -> float:
        """Return the most registers that tiles take at one point."""
        return max((self._at(op) for op in self._order), default=0.0)

    def _at(self, op: Operation) -> float:
        number = self._order[op]
        if op.regions:
            inner = max((live_registers(block) for region in op.regions for block in region.blocks), default=0.0)
            return inner + self._held(lambda first, last: first < number <= last)
        if isinstance(op, LoadOp | GatherOp):
            return self._held(lambda first, last: first <= number < last)
        return self._held(lambda first, last: first < number < last) if isinstance(op, REDUCING) else 0.0

    def _held(self, is_live: Callable[[int, int], bool]) -> float:
        return sum(self._registers[value] for value, (first, last) in self._spans.items() if is_live(first, last))

    def _lives(self) -> dict[SSAValue, tuple[int, int]]:
        """Return which op of the block makes each tile, and the last one that uses it."""
        spans = dict[SSAValue, tuple[int, int]]()
        made = [(value, -1) for value in self._block.args]
        made += [(value, number) for op, number in self._order.items() for value in op.results]
        for value, number in made:
            if not isinstance(value.type, TileType):
                continue
            root = _root(value)
            if root is value:
                spans[value], self._registers[value] = (number, number), self._taken(value)
            if root in spans:
                first, before = spans[root]
                uses = [self._order[self._here(use.operation)] for use in value.uses]
                spans[root] = first, max([before, *uses])
        return spans

    def _here(self, op: Operation) -> Operation:
        """Return the op of the block that holds another one."""
        while op.parent_block() is not self._block:
            parent = op.parent_op()
            assert parent is not None
            op = parent
        return op

    def _taken(self, value: SSAValue) -> float:
        """Return how many registers a tile takes: none where it can be computed of no other tile."""
        op, type_ = value.owner, value.type
        assert isinstance(type_, TileType)
        if isinstance(op, SplatOp | ArangeOp):
            return 0.0
        if isinstance(op, ElementwiseOp | CastOp | TransposeOp):
            tiles = [_root(operand) for operand in op.operands if isinstance(operand.type, TileType)]
            if not any(self._registers.get(tile, 1.0) for tile in tiles):
                return 0.0
        return prod(type_.shape) * type_.dtype.bytes / 4


def _root(value: SSAValue) -> SSAValue:
    """Return the tile whose registers a tile has."""
    while isinstance(value.owner, _SAME_ELEMENTS):
        value = value.owner.source
    return value
