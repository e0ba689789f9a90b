"""Which tiles compute a product fastest, by what a launch's rounds of tiles over the multiprocessors take.

A kernel is compiled before sizes are known: what is chosen here are a few sizes of tiles, and what a launch needs to
choose among them. Nothing here needs the IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.schedule.hopper.limits import Tiling, usual_warps, why_no_tile
from tessera.schedule.products import (
    GROUP_ROWS,
    LEAST_PART,
    MatrixProduct,
    Path,
    parts_of,
    path_of,
    why_no_registers,
)
from tessera.target import gpu_rates as gpu
from tessera.target.fragments import PANEL_BYTES
from tessera.target.machines import relative_rate
from tessera.target.records import TargetRecord

SHARED_TILE = (64, 64)
"""Rows and columns of tiles whose steps all programs share, where there are few."""
ROLE_TILES = ((128, 256), (128, 192), (128, 128), (64, 192), (64, 128), (64, 64))
WARP_TILES = ((128, 128), (64, 64))
"""Rows and columns of tiles that a launch chooses among, with roles and without."""
LEAST_ROWS = 16
"""Rows of the smallest matrix instruction."""


@dataclass(frozen=True, slots=True)
class TileWork:
    """What a program computes in each of its tiles.

    Args:
        product: the product; of several, the first one.
        rows: rows of its tile.
        columns: columns of it.
        out: dtype of the results that it stores.
        sums: how many tiles of sums a program has.
        weight: registers that it needs beside them, as `why_no_registers` counts them.
        computed: whether threads compute an operand of what is loaded, so that its transposes may be computed.
        plain: whether its loop does nothing but load and multiply, so that registers are left for a larger tile.
    """

    product: MatrixProduct
    rows: int
    columns: int
    out: DType
    sums: int = 1
    weight: int = 0
    computed: bool = False
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows and columns of a tile, and what launches with such tiles take.

    Args:
        rows: its rows.
        columns: its columns.
        round: tiles that a GPU computes at once.
        term: picoseconds of a round for each term of the sums.
        end: picoseconds of a round beside them.
        start: picoseconds of a launch beside its rounds, less those of the launch that takes most.
        shared: whether all programs of the launch share out the steps of the tiles (`stream-k`): a round of terms takes
            its part of the time however few tiles there are, but each tile has its end.
    """

    rows: int
    columns: int
    round: int
    term: int
    end: int
    start: int = 0
    shared: bool = False

    def time(self, tiles: int, terms: int) -> int:
        """Return the picoseconds of a launch.

        Args:
            tiles: tiles of the results.
            terms: terms of the sums.
        """
        if self.shared:
            return tiles * terms * self.term // self.round + -(-tiles // self.round) * self.end + self.start
        return -(-tiles // self.round) * (terms * self.term + self.end) + self.start


def is_served(work: TileWork, target: TargetRecord) -> bool:
    """Return whether tiles stay as they are written: instructions compute them whole, or in large parts.

    Loops that only load and multiply choose whatever they are written in, if roles compute them.

    Args:
        work: the tile.
        target: the GPU.
    """
    sizes = work.rows, work.columns
    path = path_of(work.product, target).path
    if path == "wgmma" and work.plain:
        return False
    if not any(size & (size - 1) for size in sizes):
        return not (path == "mma" and work.plain and target.has("wgmma") and prod(sizes) > prod(WARP_TILES[0]))
    least = GROUP_ROWS if path == "wgmma" else LEAST_ROWS
    parts = [parts_of(size, LEAST_PART) or (1,) for size in sizes]
    if path == "wgmma":
        return min(map(min, parts)) >= least and _why_not(work, sizes, target) is None
    return path == "fma" or (not target.has("wgmma") and min(parts[0]) >= least)


def blocks_for(work: TileWork, target: TargetRecord, free: tuple[bool, bool], shares: bool = False) -> list[Blocks]:
    """Return the tiles that a launch may choose among, none where there are none.

    Args:
        work: the tile as it is written.
        target: the GPU.
        free: whether its rows and its columns can be others.
        shares: whether programs may share the steps of tiles.
    """
    path: Path = path_of(work.product, target).path
    if path == "wgmma":
        own = work.rows, work.columns
        tiles = (*ROLE_TILES, own) if prod(own) < prod(ROLE_TILES[-1]) else ROLE_TILES
        sizes = _fixed(tiles, work, free)
        found = [_of_roles(work, size, target) for size in sizes if _why_not(work, size, target) is None]
        few = [one for one in found if shares and work.plain and (one.rows, one.columns) == SHARED_TILE]
        return [*found, *(replace(one, shared=True, start=one.start + gpu.MEETING_OF_SHARED) for one in few)]
    return [_of_warps(size, target) for size in _fixed(WARP_TILES, work, free)] if all(free) else []


def _fixed(tiles: Sequence[tuple[int, int]], work: TileWork, free: tuple[bool, bool]) -> list[tuple[int, int]]:
    """Return tiles with the size of the dimension that keeps its own, none where its parts would be small."""
    fixed = [size for size, other in zip((work.rows, work.columns), free, strict=True) if not other]
    if any(parts_of(size, LEAST_ROWS) is None for size in fixed):
        return []
    found = [(m if free[0] else work.rows, n if free[1] else work.columns) for m, n in tiles]
    return list(dict.fromkeys(found))


def _why_not(work: TileWork, size: tuple[int, int], target: TargetRecord) -> str | None:
    """Return why roles do not compute a tile."""
    rows, columns = size
    depth = PANEL_BYTES // work.product.a.dtype.bytes
    warps = usual_warps(rows)
    reason = why_no_tile(work.product, Tiling(rows, columns, depth, work.out), target)
    if work.computed and any(one & (one - 1) for one in size):
        return "rows of the transposes would come in parts of several sizes"
    return reason or why_no_registers(work.sums * rows * columns, warps, work.weight)


def _of_roles(work: TileWork, size: tuple[int, int], target: TargetRecord) -> Blocks:
    area, width = work.sums * prod(size), work.product.a.dtype.bytes
    term = gpu.STEP_TERM + gpu.TERM_OF_SUM * area / relative_rate(width)
    return Blocks(*size, target.machine.units, round(term), round(gpu.END_OF_SUM * area), -round(gpu.LEAD * area))


def _of_warps(size: tuple[int, int], target: TargetRecord) -> Blocks:
    resident, term, end = gpu.WARP_ROUNDS[size]
    return Blocks(*size, resident * target.machine.units, term, end)
