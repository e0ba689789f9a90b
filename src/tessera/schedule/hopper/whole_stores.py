"""Divides stores under a mask into those of whole tiles, which the copy engine does, and the others (Hopper).

Before, at the end of the consumers' role, as rows of packed sequences are stored that another one follows::

    %inside = lt %rows, %left; store %tile -> O[%m, 0] mask %inside

After::

    scf.if <the last row is below %left> { store %tile -> O[%m, 0] }
    else { %inside = lt %rows, %left; store %tile -> O[%m, 0] mask %inside }

A mask qualifies whose comparisons a test of scalars decides for all elements, as `skip-masks` has it, where
`bulk-stores` can do the rest. Work that leads to the tile alone is in both branches: it is done part by part in one. A
tile that might begin before its tensor, where the copy engine would stop, is none of the whole ones.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.lower.facts import nonnegative
from tessera.schedule.hopper.skip_masks import holds_everywhere, only_for
from tessera.schedule.hopper.stores import candidate, final_stores
from tessera.schedule.scheduled_pass import GridPass


@dataclass(frozen=True)
class WholeStoresPass(GridPass):
    """Divides the stores at the end of consumer roles.

    Args:
        target: the GPU.
        knobs: `bulk_stores` = 0 keeps the stores as they are.
    """

    name: ClassVar[str] = "whole-stores"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Divide the stores of a launch that has roles."""
        if self.knobs.bulk_stores == 0:
            return
        for roles in [op for op in grid.body.block.ops if isinstance(op, RolesOp)]:
            for store in final_stores(roles.consumer.block):
                if store.mask is not None and _is_fit(kernel, grid, store):
                    _divide(store)


def _is_fit(kernel: KernelOp, grid: GridOp, store: StoreOp) -> bool:
    try:
        candidate(kernel, grid, store)
    except Unfit:
        return False
    return True


def _divide(store: StoreOp) -> None:
    """Put a store into both regions of a branch, with what leads to it alone."""
    assert store.mask is not None
    insert = Inserter(InsertPoint.before(store), store)
    test = holds_everywhere(insert, store.mask)
    assert test is not None
    zero, begins = insert.constant(0), list[SSAValue]()
    for offset in store.offsets:
        if nonnegative(offset):
            begins.append(offset)
            continue
        test = insert.binary("and", test, insert.value(ElementwiseOp("ge", [offset, zero])))
        begins.append(insert.binary("maximum", offset, zero))
    moved = only_for(store)
    whole, part = Block(), Block()
    copies = dict[SSAValue, SSAValue]()
    for op in moved[:-1]:
        whole.add_op(op.clone(copies))
    value = copies.get(store.value, store.value)
    in_whole = Inserter(InsertPoint.at_end(whole), store)
    in_whole.add(StoreOp(value, store.tensor, begins, store.size_list, store.dropped))
    branch = scf.IfOp(test, [], Region(whole), Region(part))
    decisions.WHOLE_STORE.write(branch)
    insert.add(branch)
    for op in moved:
        op.detach()
        part.add_op(op)
    whole.add_op(scf.YieldOp())
    part.add_op(scf.YieldOp())
