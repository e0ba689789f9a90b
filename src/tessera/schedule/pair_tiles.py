"""Groups programs whose tiles lie below one another into clusters, which fetch what they share only once (Hopper).

Before::

    grid(%M, %N) by [BM, BN] { ^(%m, %n): ... load A[%m, ...]; load B[..., %n] ... }

After, for clusters of P programs::

    grid(%M, %N) by [P * BM, BN] { ^(%first, %n): %m = %first + cluster_rank * BM; ... } {cluster = P}

A load that does not depend on the rank is the same in all programs of a cluster: `warp-specialize` lets each fetch a
part of it for all (TMA multicast). Tiles past the end are computed on zeros and stored nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntAttr, ModuleOp, StringAttr
from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.passes import Pass
from tessera.ir.tile.cluster import ClusterRankOp
from tessera.ir.tile.debug import AssertOp, PrintOp
from tessera.ir.tile.memory import AtomicOp, ScatterOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.types import int_value
from tessera.schedule.copies import Inserter
from tessera.schedule.knobs import Knobs, default_gpu
from tessera.schedule.tensor_maps import Unfit
from tessera.target.records import TargetRecord


@dataclass(frozen=True)
class PairTilesPass(Pass):
    """Groups the programs of launches whose caller asks for it.

    Args:
        target: the GPU.
        knobs: `cluster` is the number of programs; a grid may wish for it by an attribute of that name.
    """

    name: ClassVar[str] = "pair-tiles"
    target: TargetRecord = field(default_factory=default_gpu)
    knobs: Knobs = field(default_factory=Knobs)

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every kernel of the module in place."""
        for kernel in module.ops:
            if isinstance(kernel, KernelOp):
                for grid in [op for op in kernel.body.block.ops if isinstance(op, GridOp)]:
                    self._try(grid)

    def _try(self, grid: GridOp) -> None:
        if "tessera_schedule.split_k" in grid.attributes:
            return  # its clusters share a tile
        wish = int_value(grid.attributes.pop("tessera_schedule.cluster", None))
        programs = self.knobs.cluster or wish or 1
        if programs == 1:
            return
        try:
            if not (self.target.has("clusters") and self.target.has("wgmma")):
                raise Unfit(f"{self.target.name} has no clusters that share copies")
            _check(grid)
        except Unfit as reason:
            text = f"cluster={programs} is ignored: {reason}"
            grid.attributes["tessera_notes.cluster"] = ArrayAttr([StringAttr(text)])
            return
        _pair(grid, programs)

    def options(self) -> str:
        """Return the pass with its target and the size of clusters."""
        return f"{self.name}{{target={self.target.name}, cluster={self.knobs.cluster}}}"


def _check(grid: GridOp) -> None:
    if len(grid.block_sizes) != 2:
        raise Unfit("the grid has not two dimensions")
    if not any(isinstance(op, MmaOp) for op in grid.walk()):
        raise Unfit("the launch has no product")
    if any(isinstance(op, ScatterOp | AtomicOp | AssertOp | PrintOp) for op in grid.walk()):
        # Programs past the end run too; slices drop what they store, but this they would do.
        raise Unfit("the launch writes at computed places, prints or asserts")


def _pair(grid: GridOp, programs: int) -> None:
    body = grid.body.block
    rows = grid.block_sizes[0]
    sizes = [rows * programs, *grid.block_sizes[1:]]
    grid.blocks = ArrayAttr([IntAttr(size) for size in sizes])
    first = body.args[0]
    assert body.first_op is not None
    insert = Inserter(InsertPoint.at_start(body), body.first_op)
    rank = insert.value(ClusterRankOp())
    place = insert.binary("mul", rank, insert.constant(rows))
    moved = insert.binary("add", first, place)
    first.replace_uses_with_if(moved, lambda use: use.operation is not moved.owner)
    grid.attributes["tessera_schedule.cluster"] = IntAttr(programs)


def depends_on_rank(value: SSAValue) -> bool:
    """Return whether a value may differ between the programs of a cluster."""
    owner = value.owner
    if isinstance(owner, Operation):
        return isinstance(owner, ClusterRankOp) or any(depends_on_rank(operand) for operand in owner.operands)
    around = owner.parent_op()
    if isinstance(around, GridOp | KernelOp):
        return False
    if isinstance(around, ForOp) and value is owner.args[0]:
        return any(depends_on_rank(bound) for bound in (around.lb, around.ub, around.step))
    return True  # carried by a loop: not followed
