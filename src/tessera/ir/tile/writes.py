"""Which ops store to tensors, and which loads no store of their launch can change."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.ir.tile.atomics import AtomicOp, orders_accesses
from tessera.ir.tile.flat import ScatterAtOp, StoreFlatOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TensorType, TileType
from tessera.ir.walking import ops_in

Stores = StoreOp | StoreFlatOp | ScatterOp | ScatterAtOp | AtomicOp
"""Ops of one thread of control that may store to their `tensor`, where `BulkStoreOp` hands that to a copy engine."""


def stored_memories(unit: Operation) -> set[SSAValue]:
    """Return the memories (`memory_of`) that a launch stores to."""
    return {memory_of(op.tensor) for op in ops_in(unit) if isinstance(op, Stores)}


def written_memories(unit: Operation) -> set[SSAValue]:
    """Return the memories (`memory_of`) that a launch stores to; all of them if it waits for what others store."""
    if any(orders_accesses(op) for op in ops_in(unit)):
        kernel = unit if isinstance(unit, KernelOp) else unit.parent_op()
        assert isinstance(kernel, KernelOp)
        return {memory_of(arg) for arg in kernel.body.block.args if isinstance(arg.type, TensorType)}
    return stored_memories(unit)


def is_settled(op: Operation) -> bool:
    """Return whether an op loads what its launch leaves alone: earlier, later or again it finds the same."""
    if not isinstance(op, LoadOp | GatherOp):
        return False
    grid = op.parent_op()
    while grid is not None and not isinstance(grid, GridOp):
        grid = grid.parent_op()
    return grid is not None and memory_of(op.tensor) not in written_memories(grid)


def is_settled_scalar(op: Operation) -> bool:
    """Return whether an op loads a scalar that its launch leaves alone: every role and iteration may do it."""
    return isinstance(op, LoadOp) and not isinstance(op.result.type, TileType) and is_settled(op)
