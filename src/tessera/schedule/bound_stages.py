"""bound-stages: a stage that a buffer does not have reads as zeros and is not written, on every target.

    %view = shared_view %ring[%k]
    %tile = shared_load %view; shared_store %other, %view; %sums = mma %view, %b, %acc
  becomes, with %inside = 0 <= %k and %k < stages, and %at = select %inside, %k, 0,
    %view = shared_view %ring[%at]
    %loaded = shared_load %view; %tile = select %inside, %loaded, 0
    scf.if %inside { shared_store %other, %view }; shared_scatter, shared_gather, shared_atomic %view mask %inside
    %operand = select %inside, (shared_load %view), 0; %sums = mma %operand, %b, %acc

Stages that are known to exist (constants, `% stages`, counters of loops, stages that change places) stay as they are.
The rings that the schedule makes come later, and theirs always exist.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir.inserter import Inserter
from tessera.ir.passes import Pass
from tessera.ir.tile.atomics import SharedAtomicOp
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shared import (
    CpAsyncOp,
    SharedGatherOp,
    SharedLoadOp,
    SharedScatterOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
)
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.walking import ops_in
from tessera.schedule.buffers import exists


@dataclass(frozen=True)
class BoundStagesPass(Pass):
    """Bounds the stages of the buffers that a kernel allocates itself."""

    name: ClassVar[str] = "bound-stages"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every view of a stage that may not exist, in place."""
        for view in [op for op in ops_in(module) if isinstance(op, SharedViewOp)]:
            stages = shape_of(view.source.type)[0]
            if not exists(view.index, view, stages):
                _bound(view, stages)


def _bound(view: SharedViewOp, stages: int) -> None:
    insert = Inserter(InsertPoint.before(view), view)
    zero, at = insert.constant(0), view.index
    inside = insert.binary("and", insert.binary("ge", at, zero), insert.binary("lt", at, insert.constant(stages)))
    view.operands = [view.source, insert.value(ElementwiseOp("select", [inside, at, zero]))]
    _bound_uses(view.result, inside)


def _bound_uses(buffer: SSAValue, inside: SSAValue) -> None:
    """Let the uses of a buffer, and of its views, see it only where it exists."""
    for use in list(buffer.uses):
        op = use.operation
        if isinstance(op, SharedViewOp | SharedTransposeOp):
            _bound_uses(op.result, inside)
        elif isinstance(op, SharedLoadOp):
            insert = Inserter(InsertPoint.after(op), op)
            users = list(op.result.uses)
            shown = _or_zeros(insert, op.result, inside)
            for user in users:
                user.operation.operands[user.index] = shown
        elif isinstance(op, MmaOp):
            insert = Inserter(InsertPoint.before(op), op)
            loaded = insert.value(SharedLoadOp(buffer))
            op.operands[use.index] = _or_zeros(insert, loaded, inside)
        elif isinstance(op, SharedStoreOp | CpAsyncOp):
            _only_if(inside, op)
        elif isinstance(op, SharedAtomicOp | SharedGatherOp | SharedScatterOp):
            _mask_elements(op, inside)
        else:
            raise CompilerFault(f"{op.name} uses a stage that may not exist")


def _mask_elements(op: SharedAtomicOp | SharedGatherOp | SharedScatterOp, inside: SSAValue) -> None:
    """Let elements be accessed only where their buffer exists."""
    insert, shape = Inserter(InsertPoint.before(op), op), shape_of(op.indices[0].type)
    mask = insert.value(SplatOp(inside, shape)) if shape else inside
    if op.mask is not None:
        mask = insert.value(ElementwiseOp("and", [op.mask, mask]))
    if isinstance(op, SharedGatherOp):
        new: Operation = SharedGatherOp(op.buffer, op.indices, mask)
    elif isinstance(op, SharedScatterOp):
        new = SharedScatterOp(op.value, op.buffer, op.indices, mask)
    else:
        given = op.value, op.buffer, op.indices, mask, op.compare
        new = SharedAtomicOp(op.fn.data, *given, op.order.data, op.scope.data)
    insert.add(new)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.detach()
    op.erase()


def _or_zeros(insert: Inserter, tile: SSAValue, inside: SSAValue) -> SSAValue:
    """Return a tile where its buffer exists, zeros elsewhere."""
    shape = shape_of(tile.type)
    both = [insert.value(SplatOp(scalar, shape)) for scalar in (inside, insert.zero(element_of(tile.type)))]
    return insert.value(ElementwiseOp("select", [both[0], tile, both[1]]))


def _only_if(inside: SSAValue, op: Operation) -> None:
    insert = Inserter(InsertPoint.before(op), op)
    then = Block()
    insert.add(scf.IfOp(inside, [], Region(then), Region(Block([scf.YieldOp()]))))
    op.detach()
    then.add_ops([op, scf.YieldOp()])
