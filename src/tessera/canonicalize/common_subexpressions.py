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


class Subexpressions:
    """What is known on a walk through a module."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.known: Known = {}

    def key_of(self, op: Operation) -> Hashable | None:
        """Return the op's class and operands; None where it may not give the same again.

        Properties, whose hashes take long, tell apart only what has no operands.
        """
        if effect_of(op) > Effect.RANDOM:
            return None
        operands = [id(operand) for operand in op.operands]
        if type(op) is ElementwiseOp and record_of(op.fn.data).commutative:
            operands.sort()
        return (type(op), *operands) if operands else (type(op), *sorted(op.properties.items()))

    def meet(self, op: Operation) -> None:
        """Forget what an op may change; of one with regions before it and behind it."""

    def visit(self, block: Block) -> None:
        """Visit the ops of a block, and forget them afterwards."""
        learnt: list[Hashable] = []
        for op in list(block.ops):
            if op.regions:
                self._enter(op)
            elif op.results and not has_trait(op, IsTerminator) and (key := self.key_of(op)) is not None:
                alike = self.known.setdefault(key, [])
                first = _same(op, alike)
                if first is None:
                    alike.append(op)
                    learnt.append(key)
                else:
                    _replace(op, first)
            else:
                self.meet(op)
        for key in learnt:
            self.known[key].pop()

    def _enter(self, op: Operation) -> None:
        """Visit the regions of an op."""
        outer = self.known
        if has_trait(op, IsolatedFromAbove):
            self.known = {}
        self.meet(op)
        for region in op.regions:
            for inner in region.blocks:
                self.visit(inner)
        self.meet(op)
        self.known = outer


def _same(op: Operation, known: Sequence[Operation]) -> Operation | None:
    """Return the known op that computes the same as another one with the same key."""
    for other in known:
        if op.properties == other.properties and op.attributes == other.attributes:
            if op.result_types == other.result_types:
                return other
    return None


def _replace(op: Operation, first: Operation) -> None:
    """Let an earlier op stand for one that computes the same."""
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
        Subexpressions().visit(module.body.block)
