"""common-subexpressions: computes the same pure value once.

    %a = tessera_tile.elementwise "mul"(%x, %y) : (…) -> !tessera_tile.tile<64xf32>
    %b = tessera_tile.elementwise "mul"(%y, %x) : (…) -> !tessera_tile.tile<64xf32>
  : %b becomes %a, since `mul` is commutative.

Values seen before a region are known in it, not the other way round. One hash table lookup per op.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.traits import IsolatedFromAbove, IsTerminator

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.traits import has_trait
from tessera.numerics.functions import record_of

Known = dict[Hashable, list[Operation]]
"""Ops by what is hashed of them: a few that may differ in the rest."""


def _key(op: Operation) -> Hashable:
    """Return the op's class and operands; properties, whose hashes take long, tell apart only what has no operands."""
    operands = [id(operand) for operand in op.operands]
    if type(op) is ElementwiseOp and record_of(op.fn.data).commutative:
        operands.sort()
    return (type(op), *operands) if operands else (type(op), *sorted(op.properties.items()))


def _same(op: Operation, known: Sequence[Operation]) -> Operation | None:
    """Return the known op that computes the same as another one with the same key."""
    for other in known:
        if op.properties == other.properties and op.attributes == other.attributes:
            if op.result_types == other.result_types:
                return other
    return None


def _visit(block: Block, known: Known) -> None:
    """Visit the ops of a block, and forget them afterwards."""
    learnt: list[Hashable] = []
    for op in list(block.ops):
        if op.regions:
            inherited: Known = {} if has_trait(op, IsolatedFromAbove) else known
            for region in op.regions:
                for inner in region.blocks:
                    _visit(inner, inherited)
        elif op.results and not has_trait(op, IsTerminator) and effect_of(op) <= Effect.RANDOM:
            key = _key(op)
            alike = known.setdefault(key, [])
            first = _same(op, alike)
            if first is None:
                alike.append(op)
                learnt.append(key)
                continue
            for old, new in zip(op.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            op.detach()
            op.erase()
    for key in learnt:
        known[key].pop()


@dataclass(frozen=True)
class CommonSubexpressionsPass(Pass):
    """Computes the same pure value once."""

    name = "common-subexpressions"

    def apply(self, module: ModuleOp) -> None:
        """Visit every block in order."""
        _visit(module.body.block, {})
