"""dead-code: removes ops whose results nobody reads and that do nothing else.

    %x = tessera_tile.load %A[%i] [64] : !tessera_tile.tensor<?xf32> -> !tessera_tile.tile<64xf32>
    %y = tessera_tile.elementwise "exp"(%x) : (…) -> !tessera_tile.tile<64xf32>
  vanish when %y has no use.

Values that a loop carries vanish too when only their own next values need them: a stage that is counted for nobody.

An op does nothing else when its effect, joined over its regions, is at most `random`, or it only reads.
`scf.while` stays, since it may not end, and so does a grid, which is a launch.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp, WhileOp
from xdsl.ir import Block, Operation
from xdsl.traits import IsTerminator, SymbolOpInterface

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.loops import without_unused
from tessera.ir.passes import Pass
from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.traits import has_trait
from tessera.ir.walking import ops_in


def is_dead(op: Operation) -> bool:
    """Return whether `op` can be removed."""
    if any(result.uses for result in op.results):
        return False
    if has_trait(op, IsTerminator) or has_trait(op, SymbolOpInterface) or isinstance(op, GridOp):
        return False
    if isinstance(op, AllocSharedOp):
        return True
    if op.regions:
        loops = any(isinstance(inner, WhileOp) for inner in ops_in(op))
        return not loops and all(inner is op or _harmless(inner) for inner in ops_in(op))
    return _harmless(op)


def _harmless(op: Operation) -> bool:
    return bool(op.regions) or reads_only(op) or has_trait(op, IsTerminator) or effect_of(op) <= Effect.RANDOM


def remove_dead(block: Block) -> None:
    """Remove dead ops of a block, users before what they use, so that one sweep is enough."""
    for op in reversed(list(block.ops)):
        if is_dead(op):
            op.detach()
            op.erase()
            continue
        if isinstance(op, ForOp):
            op = without_unused(op)
        for region in op.regions:
            for inner in region.blocks:
                remove_dead(inner)


@dataclass(frozen=True)
class DeadCodePass(Pass):
    """Removes ops whose results nobody reads and that do nothing else."""

    name = "dead-code"

    def apply(self, module: ModuleOp) -> None:
        """Sweep every block backwards."""
        remove_dead(module.body.block)
