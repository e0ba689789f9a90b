"""common-subexpressions: computes the same pure value once.

    %a = tessera_tile.elementwise "mul"(%x, %y) : (…) -> !tessera_tile.tile<64xf32>
    %b = tessera_tile.elementwise "mul"(%y, %x) : (…) -> !tessera_tile.tile<64xf32>
  : %b becomes %a, since `mul` is commutative.

Values seen before a region are known in it, not the other way round. One hash table lookup per op.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, MutableMapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation
from xdsl.traits import IsolatedFromAbove, IsTerminator

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.numerics.functions import FUNCTIONS

Known = MutableMapping[Hashable, Operation]


def _key(op: Operation) -> Hashable:
    operands = [id(operand) for operand in op.operands]
    if isinstance(op, ElementwiseOp) and FUNCTIONS[op.fn.data].commutative:
        operands.sort()
    return (
        type(op),
        tuple(operands),
        tuple(op.result_types),
        tuple(sorted(op.properties.items())),
        tuple(sorted(op.attributes.items())),
    )


def _visit(block: Block, known: Known) -> None:
    for op in list(block.ops):
        if op.regions:
            inherited: Known = {} if op.has_trait(IsolatedFromAbove) else known
            for region in op.regions:
                for inner in region.blocks:
                    _visit(inner, ChainMap({}, inherited))
        elif op.results and not op.has_trait(IsTerminator) and effect_of(op) <= Effect.RANDOM:
            first = known.setdefault(_key(op), op)
            if first is not op:
                for old, new in zip(op.results, first.results, strict=True):
                    old.replace_all_uses_with(new)
                op.detach()
                op.erase()


@dataclass(frozen=True)
class CommonSubexpressionsPass(Pass):
    """Computes the same pure value once."""

    name = "common-subexpressions"

    def apply(self, module: ModuleOp) -> None:
        """Visit every block in order."""
        _visit(module.body.block, {})
