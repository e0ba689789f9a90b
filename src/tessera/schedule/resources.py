"""How much of a target's shared memory a scheduled launch takes."""

from __future__ import annotations

from xdsl.ir import Operation

from tessera.ir.tile.roles import AllocBarriersOp, RolesOp
from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.walking import ops_in
from tessera.schedule.products import BARRIER_BYTES, BUFFER_BYTES, buffer_bytes
from tessera.target.records import TargetRecord


def shared_bytes(unit: Operation) -> int:
    """Return the bytes of the shared buffers that a launch allocates, private ones once per group of consumers."""
    return sum(
        _copies(op) * buffer_bytes(op.result.type.shape, op.result.type.dtype)
        for op in ops_in(unit)
        if isinstance(op, AllocSharedOp)
    )


def _copies(alloc: AllocSharedOp) -> int:
    assert alloc.parent is not None
    roles = [op for op in alloc.parent.ops if isinstance(op, RolesOp)]
    return max((op.groups.data for op in roles if is_private(alloc, op)), default=1)


def is_private(alloc: AllocSharedOp, roles: RolesOp) -> bool:
    """Return whether only consumers use a buffer, so that each group of them needs its own."""
    return all(roles.consumer.block.is_ancestor(use.operation) for use in alloc.result.uses)


def free_shared_bytes(target: TargetRecord, unit: Operation) -> int:
    """Return the bytes of shared memory that a launch leaves."""
    rows = sum(isinstance(op, AllocBarriersOp) for op in ops_in(unit))
    return target.shared_bytes - max(BARRIER_BYTES, rows * BUFFER_BYTES) - shared_bytes(unit)
