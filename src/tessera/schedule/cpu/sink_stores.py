"""Moves the store of a sum of products into the last iteration of its loop.

Before::

    %sum = scf.for %k = 0 to %size step 512 iter_args(%acc = zeros) {
      %next = mma (load %a[%m, %k]), (load %b[%k, %n]), %acc; yield %next
    }
    store (cast %sum), %out[%m, %n]

After::

    scf.for %k = 0 to (maximum %size, 1) step 512 iter_args(%acc = zeros) {
      %next = mma ...
      scf.if %k + 512 >= %size { store (cast %next), %out[%m, %n] } {tessera_schedule.last_iteration}
      yield %next
    }

A CPU can then finish some rows of the product before it starts the next, so that few sums are in flight between the
matrix unit and memory at a time. A loop over a dimension of both operands runs once even if that ends before it: both
tiles then lie outside their tensors, and nothing is added. Branches for the last iteration that a kernel has itself are
marked, too.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import CastOp, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.walking import ops_in
from tessera.lower.facts import stays_inside
from tessera.lower.forms import product_form
from tessera.schedule.cpu.cpu_pass import CpuPass


@dataclass(frozen=True)
class SinkStoresPass(CpuPass):
    """Rewrites loops that do nothing but accumulate products of a matrix unit for one store; writes `last_iteration`.

    Args:
        target: the CPU.
    """

    name: ClassVar[str] = "sink-stores"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every loop of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for loop in [op for op in ops_in(kernel) if isinstance(op, scf.ForOp)]:
                following = _finish(loop)
                if following and self._sums_products(kernel, loop):
                    _sink(loop, following)
            for branch in [op for op in ops_in(kernel) if isinstance(op, scf.IfOp)]:
                if decisions.why_not_last(branch) is None:
                    decisions.LAST_ITERATION.write(branch)

    def _sums_products(self, kernel: KernelOp, loop: scf.ForOp) -> bool:
        """Return whether a loop does nothing but accumulate products of a matrix unit in one tile."""
        end = loop.body.block.last_op
        assert end is not None
        product = end.operands[0].owner
        if not isinstance(product, MmaOp) or not _is_sum(kernel, loop, product):
            return False
        return product_form(self.target, kernel, product).tiled


def _is_sum(kernel: KernelOp, loop: scf.ForOp, product: MmaOp) -> bool:
    """Return whether a loop adds a product to its sum, where one more of what lies outside would change nothing."""
    block = loop.body.block
    if product.acc is not block.args[1]:
        return False
    if product.result.uses.get_length() != 1 or block.args[1].uses.get_length() != 1:
        return False
    if any(op.regions or effect_of(op) > Effect.PURE for op in block.ops if not isinstance(op, LoadOp)):
        return False
    low, high = constant_value(loop.lb), constant_value(loop.ub)
    if low is not None and high is not None and low < high:
        return True
    return all(_ends_with(kernel, loop, operand) for operand in (product.a, product.b))


def _ends_with(kernel: KernelOp, loop: scf.ForOp, tile: SSAValue) -> bool:
    """Return whether a tile is a box of a tensor, of which nothing is left where the loop ends."""
    while isinstance(tile.owner, CastOp | TransposeOp):
        tile = tile.owner.operands[0]
    load = tile.owner
    if not isinstance(load, LoadOp) or load.mask is not None or load.fill is not None:
        return False
    counter = loop.body.block.args[0]
    axes = [axis for axis, offset in enumerate(load.offsets) if offset is counter]
    return any(stays_inside(kernel, counter, load.tensor, axis) for axis in axes)


def _finish(loop: scf.ForOp) -> list[Operation]:
    """Return the ops after a loop that end with the only store of its result, if they do nothing else."""
    if len(loop.results) != 1:
        return []
    found: list[Operation] = []
    op = loop.next_op
    while op is not None and not isinstance(op, StoreOp):
        if op.regions or (effect_of(op) > Effect.RANDOM and not isinstance(op, LoadOp)):
            return []
        found.append(op)
        op = op.next_op
    if op is None:
        return []
    found.append(op)
    inside, reached = set(found), {loop.results[0]}
    for each in found:
        if reached & {*each.operands}:
            reached.update(each.results)
    results = [loop.results[0], *(result for each in found for result in each.results)]
    escapes = any(use.operation not in inside for result in results for use in result.uses)
    return [] if escapes or not reached & {*op.operands} else found


def _sink(loop: scf.ForOp, following: list[Operation]) -> None:
    block = loop.body.block
    end, counter = block.last_op, block.args[0]
    assert end is not None
    first, known = constant_value(loop.lb), constant_value(loop.ub)
    assert first is not None, "where a loop over a dimension starts is known"
    if known is None or known <= first:
        before = Inserter(InsertPoint.before(loop), loop)
        loop.operands[1] = before.binary("maximum", loop.ub, before.constant(int(first) + 1))
    finish = Block()
    for op in following:
        op.detach()
        finish.add_op(op)
    loop.results[0].replace_all_uses_with(end.operands[0])
    finish.add_op(scf.YieldOp())
    insert = Inserter(InsertPoint.before(end), loop)
    last = insert.binary("ge", insert.binary("add", counter, loop.step), loop.ub)
    insert.add(scf.IfOp(last, [], Region(finish)))
