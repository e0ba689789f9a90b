"""Which ops store to tensors."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import ScatterOp, StoreOp
from tessera.ir.tile.structure import memory_of
from tessera.ir.walking import ops_in

Stores = StoreOp | ScatterOp | AtomicOp
"""Ops of one thread of control that may store to their `tensor`, where `BulkStoreOp` hands that to a copy engine."""


def stored_memories(unit: Operation) -> set[SSAValue]:
    """Return the memories (`memory_of`) that a launch stores to."""
    return {memory_of(op.tensor) for op in ops_in(unit) if isinstance(op, Stores)}
