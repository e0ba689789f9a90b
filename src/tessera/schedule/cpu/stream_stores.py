"""Decides which tensors are stored past the caches where they are large.

What is written to a tensor larger than the caches is gone from them before anything reads it, so that it only takes the
place of other data, and each line would be read from memory before it is written. Never so where the kernel reads the
tensor itself: its lines are in the caches then.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.atomics import orders_accesses
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.structure import DimOp, KernelOp, ReturnOp
from tessera.ir.tile.types import TileType
from tessera.ir.walking import ops_in
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.knobs import KNOBS


@dataclass(frozen=True)
class StreamStoresPass(CpuPass):
    """Writes `tessera_schedule.stream` on stores.

    Args:
        target: the CPU.
        knobs: `stream` says from how many MiB on, or never.
    """

    name: ClassVar[str] = "stream-stores"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the stores of every kernel of the module."""
        least = int(KNOBS["stream"].default) if self.knobs.stream is None else self.knobs.stream
        if not least or not self.target.triple.startswith("x86_64"):
            return
        for kernel in [op for op in module.ops if isinstance(op, KernelOp) and not _orders(op)]:
            for op in [op for op in ops_in(kernel) if isinstance(op, StoreOp)]:
                if _writes_rows(kernel, op) and _only_written(op):
                    decisions.STREAM.write(op, least)


def _orders(kernel: KernelOp) -> bool:
    """Return whether a kernel releases what it stores: stores past the caches stay in no order with others."""
    return any(orders_accesses(op) for op in ops_in(kernel))


def _writes_rows(kernel: KernelOp, op: StoreOp) -> bool:
    """Return whether a store writes whole rows of neighbours."""
    if not isinstance(op.value.type, TileType) or op.mask is not None:
        return False
    return kernel.info_of(op.tensor).strides[op.kept[-1]] == 1


def _only_written(op: StoreOp) -> bool:
    """Return whether the kernel does nothing else with the elements of the tensor than to write them."""
    return all(isinstance(use.operation, StoreOp | DimOp | ReturnOp) for use in op.tensor.uses)
