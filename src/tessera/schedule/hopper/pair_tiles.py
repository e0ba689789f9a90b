"""Groups programs of vertically adjacent tiles into clusters, which fetch what they share only once (Hopper).

Before::

    grid(%M, %N) by [BM, BN] { ^(%m, %n): ... load A[%m, ...]; load B[..., %n] ... }

After, for clusters of P programs::

    grid(%M, %N) by [P * BM, BN] { ^(%first, %n): %m = %first + cluster_rank * BM; ... } {cluster = P}

A load that does not depend on the rank is the same in all programs of a cluster: `warp-specialize` lets each fetch a
part of it for all (TMA multicast). Tiles past the end are computed on zeros and stored nowhere: all that is stored
begins at the rows of the tile, in tensors that end where the grid does.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.scf import WhileOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.attributes import ints
from tessera.ir.batching import names_size_of
from tessera.ir.inserter import Inserter
from tessera.ir.loops import follows_from
from tessera.ir.notes import Unfit
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.cluster import ClusterRankOp
from tessera.ir.tile.debug import AssemblyOp, AssertOp, PrintOp
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TensorType
from tessera.ir.walking import ops_in
from tessera.schedule.scheduled_pass import AskedPass


@dataclass(frozen=True)
class PairTilesPass(AskedPass):
    """Groups the programs of launches where the caller asks for it.

    Args:
        target: the GPU.
        knobs: `cluster` is the number of programs.
    """

    name: ClassVar[str] = "pair-tiles"
    knob: ClassVar[str] = "cluster"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Group the programs of a launch, unless its clusters share tiles already."""
        if not decisions.SPLIT_K.on(grid):
            super().rewrite(kernel, grid)

    def fulfil(self, grid: GridOp, asked: int) -> None:
        """Group the programs of a launch.

        Raises:
            Unfit: the launch must not run programs past its end.
        """
        _check(grid)
        _pair(grid, asked)


def _check(grid: GridOp) -> None:
    kernel = grid.parent_op()
    assert isinstance(kernel, KernelOp)
    if len(grid.block_sizes) != 2:
        raise Unfit("the grid is not two-dimensional")
    if not any(isinstance(op, MmaOp) for op in ops_in(grid)):
        raise Unfit("the launch has no product")
    if any(isinstance(op, ScatterOp | AtomicOp | AssertOp | PrintOp | AssemblyOp) for op in ops_in(grid)):
        # Programs past the end run too: slices drop what they store, but these effects would happen.
        raise Unfit("the launch writes at computed places, prints, asserts or has assembly that acts")
    if any(isinstance(op, WhileOp) for op in ops_in(grid)):
        raise Unfit("a while loop may not end in programs past the last rows")
    if not all(_ends_with_grid(kernel, grid, op) for op in ops_in(grid) if isinstance(op, StoreOp)):
        raise Unfit("a tensor that is stored to does not end where the grid does")


def _ends_with_grid(kernel: KernelOp, grid: GridOp, op: StoreOp) -> bool:
    """Return whether a store of a program past the last rows of a grid lies outside of its tensor."""
    type_, extent = op.tensor.type, grid.extents[0]
    assert isinstance(type_, TensorType)
    last = constant_value(extent)
    for axis, offset in enumerate(op.offsets):
        if offset is grid.body.block.args[0]:
            size = type_.shape[axis]
            if names_size_of(kernel, extent, op.tensor, axis) or (last is not None and 0 <= size <= int(last)):
                return True
    return False


def _pair(grid: GridOp, programs: int) -> None:
    body = grid.body.block
    rows = grid.block_sizes[0]
    sizes = [rows * programs, *grid.block_sizes[1:]]
    grid.blocks = ints(sizes)
    first = body.args[0]
    assert body.first_op is not None
    insert = Inserter(InsertPoint.at_start(body), body.first_op)
    rank = insert.value(ClusterRankOp())
    place = insert.binary("mul", rank, insert.constant(rows))
    moved = insert.binary("add", first, place)
    first.replace_uses_with_if(moved, lambda use: use.operation is not moved.owner)
    decisions.CLUSTER.write(grid, programs)


def depends_on_rank(value: SSAValue) -> bool:
    """Return whether a value may differ between the programs of a cluster."""
    return follows_from(value, ClusterRankOp)
