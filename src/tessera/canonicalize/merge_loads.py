"""merge-loads: computes the same value once, as `common-subexpressions` does, and loads it once.

    %x = tessera_tile.load %X[%i, %c0] [1, 4096] drop [0] : …
    …
    %y = tessera_tile.load %X[%i, %c0] [1, 4096] drop [0] : …
  : %y becomes %x, if nothing between them may write to the memory of %X.

A row that a kernel slices twice is one tile from then on, whose schedule is that of a kernel with a name for it. The
key of a load says how often its memory has been written by then. What a loop or a branch writes counts before it, as an
earlier iteration may have done so, and behind it. Arguments are one memory or have no element in common. Fences and
atomics with an order let other programs write anywhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera.canonicalize.common_subexpressions import Subexpressions
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.passes import Pass
from tessera.ir.tile.atomics import AtomicOp, SharedAtomicOp, orders_accesses
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.shared import CpAsyncOp
from tessera.ir.tile.structure import memory_of
from tessera.ir.walking import ops_in

EVERYWHERE = None
"""Stands for every memory."""


class _Loads(Subexpressions):
    """What is known, and how often memories have been written."""

    def __init__(self) -> None:
        """Start with nothing."""
        super().__init__()
        self._writes = dict[SSAValue | None, int]()

    def key_of(self, op: Operation) -> Hashable | None:
        """Return the same as for pure ops, and for loads what may have been written."""
        if not isinstance(op, LoadOp | GatherOp):
            return super().key_of(op)
        times = (self._writes.get(memory, 0) for memory in (memory_of(op.tensor), EVERYWHERE))
        return (type(op), *times, *map(id, op.operands))

    def meet(self, op: Operation) -> None:
        """Count what an op may write."""
        for memory in {memory for inner in ops_in(op) for memory in written(inner)}:
            self._writes[memory] = self._writes.get(memory, 0) + 1


def written(op: Operation) -> Iterator[SSAValue | None]:
    """Yield the memory that an op itself may write, or let other programs write."""
    if orders_accesses(op) or isinstance(op, scf.WhileOp):  # which may wait for another program
        yield EVERYWHERE
    elif isinstance(op, StoreOp | ScatterOp | AtomicOp):
        yield memory_of(op.tensor)
    elif op.regions or isinstance(op, SharedAtomicOp | CpAsyncOp):
        return
    elif effect_of(op) > Effect.STATE and not reads_only(op):
        yield EVERYWHERE


@dataclass(frozen=True)
class MergeLoadsPass(Pass):
    """Computes the same value once, and loads it once."""

    name = "merge-loads"

    def apply(self, module: ModuleOp) -> None:
        """Visit every block in order."""
        _Loads().visit(module.body.block)
