"""The accesses to memory of a kernel, whatever ops they are."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of, is_scalar

Load = LoadOp | GatherOp
Store = StoreOp | ScatterOp
Access = LoadOp | GatherOp | StoreOp | ScatterOp | AtomicOp


def is_float(value: SSAValue) -> bool:
    """Return whether a tensor, tile or scalar is of floats."""
    element = element_of(value.type)
    return is_scalar(element) and dtype_of(element).is_float


def is_added(op: Operation) -> bool:
    """Return whether an op adds to memory and does not tell what was there."""
    return isinstance(op, AtomicOp) and op.fn.data == "add" and not (op.result is not None and op.result.uses)
