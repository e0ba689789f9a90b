"""The part of a kernel that decides which shared buffers it touches, and in which order."""

from __future__ import annotations

from dataclasses import field

from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.atomics import SharedAtomicOp
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    SharedGatherOp,
    SharedScatterOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import SharedType
from tessera.ir.walking import ops_in

COMPUTED = (
    ArangeOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    PartOp,
    ReshapeOp,
    SplatOp,
    TransposeOp,
)
"""Ops that are computed where their operands are known; what others give is taken for data."""

ELEMENTS = (SharedAtomicOp, SharedGatherOp, SharedScatterOp)
"""Ops that access elements of a buffer at indices."""

ORDERS = (AllocSharedOp, SharedViewOp, SharedTransposeOp, CommitGroupOp, WaitGroupOp, BarrierOp)


def touches_shared(op: Operation) -> bool:
    """Return whether an op by itself touches shared buffers or orders accesses to them."""
    return isinstance(op, ORDERS) or any(isinstance(operand.type, SharedType) for operand in op.operands)


@dataclass(eq=False, slots=True)
class Skeleton:
    """The ops that matter, block by block in order; found from those that touch shared buffers, backwards.

    Args:
        blocks: the ops of each block; a block without any is not in it.
    """

    blocks: dict[Block, list[Operation]] = field(default_factory=dict[Block, list[Operation]])
    _kept: set[Operation] = field(default_factory=set[Operation])
    _needed: set[SSAValue] = field(default_factory=set[SSAValue])
    _work: list[SSAValue] = field(default_factory=list[SSAValue])

    @classmethod
    def of(cls, kernel: KernelOp) -> Skeleton:
        """Return the skeleton of a kernel."""
        self = cls()
        for op in ops_in(kernel):
            if touches_shared(op):
                self._keep(op)
        while self._work:
            self._follow(self._work.pop())
        for op in ops_in(kernel):
            if op in self._kept and op.parent is not None:
                self.blocks.setdefault(op.parent, []).append(op)
        return self

    def _need(self, *values: SSAValue | None) -> None:
        for value in values:
            if value is not None and value not in self._needed:
                self._needed.add(value)
                self._work.append(value)

    def _keep(self, op: Operation) -> None:
        """Keep an op, what decides whether it runs, and what it takes."""
        if op in self._kept:
            return
        self._kept.add(op)
        if isinstance(op, ForOp):
            self._need(op.lb, op.ub, op.step)
        elif isinstance(op, IfOp):
            self._need(op.cond)
        elif isinstance(op, WhileOp):
            condition = op.before_region.block.last_op
            assert isinstance(condition, ConditionOp)
            self._need(condition.condition)
        elif isinstance(op, GridOp):
            self._need(*op.extents)
        elif isinstance(op, SharedViewOp):
            self._need(op.source, op.index)
        elif isinstance(op, ELEMENTS):
            self._need(op.buffer, *op.indices, op.mask)
        elif isinstance(op, COMPUTED):
            self._need(*op.operands)
        else:
            self._need(*(operand for operand in op.operands if isinstance(operand.type, SharedType)))
        around = op.parent_op()
        if around is not None and not isinstance(around, KernelOp):
            self._keep(around)

    def _follow(self, value: SSAValue) -> None:
        """Keep what computes a value."""
        if isinstance(value, BlockArgument):
            self._follow_argument(value)
            return
        op = value.owner
        assert isinstance(op, Operation)
        self._keep(op)
        if isinstance(op, ForOp | IfOp | WhileOp):
            at = op.results.index(value)
            if isinstance(op, ForOp):
                self._need(op.body.block.args[at + 1])
            ends = [region.block.last_op for region in op.regions if region.blocks]
            for end in ends:
                if isinstance(end, YieldOp) and not isinstance(op, WhileOp):
                    self._need(end.operands[at])
                elif isinstance(end, ConditionOp):
                    self._need(end.args[at])

    def _follow_argument(self, value: BlockArgument) -> None:
        """Keep what a loop gives to an argument of its body."""
        op, at = value.block.parent_op(), value.index
        if isinstance(op, ForOp) and at > 0:
            end = op.body.block.last_op
            assert end is not None
            self._need(op.iter_args[at - 1], end.operands[at - 1])
        elif isinstance(op, WhileOp):
            before, after = op.before_region.block, op.after_region.block
            if value.block is before:
                end = after.last_op
                assert end is not None
                self._need(op.arguments[at], end.operands[at])
            else:
                condition = before.last_op
                assert isinstance(condition, ConditionOp)
                self._need(condition.args[at])
        if isinstance(op, ForOp | WhileOp):
            self._keep(op)


def viewed_dims(value: SSAValue) -> int:
    """Return along how many leading dimensions of a shared buffer views pick a place."""
    found = 0
    for use in value.uses:
        if isinstance(use.operation, SharedViewOp):
            found = max(found, 1 + viewed_dims(use.operation.result))
        elif isinstance(use.operation, SharedTransposeOp):
            found = max(found, viewed_dims(use.operation.result))
    return found
