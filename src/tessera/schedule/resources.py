"""How much of a target's shared memory a scheduled launch takes."""

from __future__ import annotations

from math import prod

from xdsl.ir import Operation

from tessera.ir.tile.roles import AllocBarriersOp
from tessera.ir.tile.shared import AllocSharedOp
from tessera.target.records import TargetRecord

RESERVED_BYTES = 2048
"""For the two rows of barriers of a ring, in buffers of their own."""
ALIGN_BYTES = 1024
"""Every buffer starts at a multiple of this."""


def shared_bytes(unit: Operation) -> int:
    """Return the bytes of the shared buffers that a launch allocates."""
    return sum(
        -(-prod(op.result.type.shape) * op.result.type.dtype.bytes // ALIGN_BYTES) * ALIGN_BYTES
        for op in unit.walk()
        if isinstance(op, AllocSharedOp)
    )


def free_shared_bytes(target: TargetRecord, unit: Operation) -> int:
    """Return the bytes of shared memory that a launch leaves."""
    rows = sum(isinstance(op, AllocBarriersOp) for op in unit.walk())
    return target.shared_bytes - max(RESERVED_BYTES, rows * ALIGN_BYTES) - shared_bytes(unit)
