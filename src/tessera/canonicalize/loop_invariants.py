"""loop-invariants: moves pure ops out of `scf.for` when they compute the same value in every trip.

    scf.for %k = %c0 to %K step %c64 {
      %s = tessera_tile.elementwise "exp"(%x) : (…) -> !tessera_tile.tile<64xf32>
      …
  moves %s before the loop.

What costs nothing (splats, broadcasts, reshapes, aranges: index arithmetic of their readers) stays where
it is read, unless something that moves reads it; a tile kept alive across a loop would cost registers.
Integer division moves only when its divisor is a nonzero constant: the loop may run no trip. A scalar is loaded before
the loop where nothing in it may write to the memory; outside of the tensor it is a load's `fill` there as well.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue

from tessera.canonicalize.matching import dtype_of_value, known
from tessera.canonicalize.merge_loads import EVERYWHERE, written
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ArangeOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.structure import memory_of
from tessera.ir.tile.types import TileType
from tessera.ir.walking import ops_in

_FREE = (ArangeOp, BroadcastOp, ReshapeOp, SplatOp)


def _may_trap(op: Operation) -> bool:
    if not isinstance(op, ElementwiseOp) or op.fn.data not in ("floordiv", "mod"):
        return False
    return dtype_of_value(op.result).is_int and not known(op.args[1])


def _movable(op: Operation) -> bool:
    return not op.regions and bool(op.results) and effect_of(op) <= Effect.RANDOM and not _may_trap(op)


def _loads_number(op: Operation, memories: set[SSAValue | None]) -> bool:
    """Return whether an op loads a scalar from none of some memories."""
    if not isinstance(op, LoadOp) or isinstance(op.result.type, TileType) or EVERYWHERE in memories:
        return False
    return memory_of(op.tensor) not in memories


def _hoist(loop: ForOp) -> None:
    inside: set[SSAValue] = set(loop.body.block.args)
    invariant: list[Operation] = []
    memories = {memory for op in ops_in(loop) for memory in written(op)}
    for op in loop.body.block.ops:
        if (_movable(op) or _loads_number(op, memories)) and not any(operand in inside for operand in op.operands):
            invariant.append(op)
        else:
            for inner in ops_in(op):
                inside.update(inner.results)
                inside.update(arg for region in inner.regions for block in region.blocks for arg in block.args)
    wanted: set[SSAValue] = set()
    moving: list[Operation] = []
    for op in reversed(invariant):
        if not isinstance(op, _FREE) or any(result in wanted for result in op.results):
            wanted.update(op.operands)
            moving.append(op)
    block = loop.parent_block()
    assert block is not None
    for op in reversed(moving):
        op.detach()
        block.insert_op_before(op, loop)


@dataclass(frozen=True)
class LoopInvariantsPass(Pass):
    """Moves pure ops out of loops when they compute the same value in every trip."""

    name = "loop-invariants"

    def apply(self, module: ModuleOp) -> None:
        """Visit inner loops first, so that an op leaves all the loops that it does not depend on."""
        loops = [op for op in ops_in(module) if isinstance(op, ForOp)]
        for loop in reversed(loops):
            _hoist(loop)
