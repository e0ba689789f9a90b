"""Lets three groups of consumers divide the rows of tiles of 192 rows, a warpgroup of 64 each (Hopper).

Layouts come in powers of two, so that two warpgroups divide a tile of 128 rows, and no three one of 192. As groups,
each computes a tile of 64 rows by itself; what all of them read, as keys and values of attention, is fetched once.
Three warpgroups keep a multiprocessor busier than two where work on registers takes as long as products do: heads of
64.

Before::

    %q = load %Q[%m, 0] [192, 64]
    scf.for %n ... { %k = load %K[%n, 0] [128, 64]; %s = mma %q, %k^T, ... }
    store %o, %O[%m, 0] [192, 64]

After, where each group is a program of its own up to `warp-specialize`::

    %group = role_group
    %own = %m + %group * 64
    %q = load %Q[%own, 0] [64, 64]
    scf.for %n ... { %k = load %K[%n, 0] [128, 64]; %s = mma %q, %k^T, ... }
    store %o, %O[%own, 0] [64, 64]

Applies to launches with roles whose products all have these rows, which nothing sums over, and which write nothing
else. Groups do not wait for each other: each tensor is written by one store, and not read by the launch.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.notes import Unfit, note
from tessera.ir.splitting import Axis, Dimensions, Splitter
from tessera.ir.tile.memory import GatherOp, LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.roles import MOST_GROUPS
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, shape_of
from tessera.ir.walking import ops_in
from tessera.schedule.gpu.split_tiles import SplitTilesPass
from tessera.schedule.hopper.warp_specialize import planned
from tessera.schedule.products import GROUP_ROWS, has_roles
from tessera.schedule.scheduled_pass import GridPass

ROWS = MOST_GROUPS * GROUP_ROWS


@dataclass(frozen=True)
class DivideRowsPass(GridPass):
    """Divides the rows of tiles among groups of consumers.

    Args:
        target: the GPU.
        knobs: `num_warps`, `ping_pong`, `split_k`, `stream_k` and `cluster` ask for other ways, and so may `mma_kind`;
            `stages` and `bulk_stores` decide whether there is room.
    """

    name: ClassVar[str] = "divide-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Divide the rows of a launch, or note why not where they are as many."""
        products = [op for op in ops_in(grid) if isinstance(op, MmaOp)]
        if not has_roles(self.target) or not products or any(_rows_of(op) != ROWS for op in products):
            return
        new: GridOp | None = None
        try:
            new = self._divided(grid, products)
            Rewriter.insert_op(new, InsertPoint.before(grid))
            new = SplitTilesPass(self.target).cut(new)  # roles take what that leaves
            planned(self.target, self.knobs, kernel, new)
        except Unfit as reason:
            if new is not None:
                Rewriter.erase_op(new)
            note(grid, "rows", [f"no three warpgroups divide {ROWS} rows: {reason}"])
            return
        Rewriter.erase_op(grid)
        note(new, "rows", [f"{ROWS} rows are divided among three warpgroups"])

    def _divided(self, grid: GridOp, products: list[MmaOp]) -> GridOp:
        """Return the launch of one group, not inserted.

        Raises:
            Unfit: rows cannot be divided.
        """
        knobs = self.knobs
        asked = {name: getattr(knobs, name) for name in ("num_warps", "ping_pong", "split_k", "stream_k", "cluster")}
        if any(asked.values()):
            raise Unfit(f"{', '.join(name for name, value in asked.items() if value)} was asked for")
        dimensions = Dimensions(grid)
        rows = _dimension(dimensions, products)
        stored = Counter(memory_of(op.tensor) for op in ops_in(grid) if isinstance(op, StoreOp))
        if any(count > 1 for count in stored.values()):
            raise Unfit("several stores write to a tensor")
        for op in ops_in(grid):
            if isinstance(op, LoadOp | GatherOp) and memory_of(op.tensor) in stored:
                raise Unfit("what is stored is read by the same launch")
            if op is not grid and (reason := _why_apart(dimensions, rows, op)) is not None:
                raise Unfit(reason)
        new = Splitter(dimensions, {rows: (GROUP_ROWS,)}, shared=(rows,)).grid_of_parts(grid)
        decisions.ROW_GROUPS.write(new, MOST_GROUPS)
        return new


def _rows_of(op: MmaOp) -> int:
    return shape_of(op.acc.type)[0] if isinstance(op.acc.type, TileType) and op.acc.type.rank == 2 else 0


def _dimension(dimensions: Dimensions, products: list[MmaOp]) -> Axis:
    """Return the dimension of the rows of all products.

    Raises:
        Unfit: they have several, or sum over it.
    """
    found = {dimensions.of(op.acc, 0) for op in products}
    others = {dimensions.of(value, 1) for op in products for value in (op.acc, op.a)}
    if len(found) != 1 or found & others:
        raise Unfit("products do not all have the same rows")
    (rows,) = found
    if (reason := dimensions.why_whole(rows)) is not None:
        raise Unfit(reason)
    return rows


def _why_apart(dimensions: Dimensions, rows: Axis, op: Operation) -> str | None:
    """Return why an op cannot be done for the rows of one group after the other, None where it can."""
    if isinstance(op, ReduceOp) and dimensions.of(op.source, op.axis.data) == rows:
        return "rows are summed up"
    if op.regions or isinstance(op, LoadOp | GatherOp) or effect_of(op) <= Effect.PURE:
        return None
    tile = op.value.type if isinstance(op, StoreOp) else None
    if isinstance(op, StoreOp) and isinstance(tile, TileType):
        if any(dimensions.of(op.value, axis) == rows for axis in range(tile.rank)):
            return None
    return "something is written, or waited for, that has no rows"
