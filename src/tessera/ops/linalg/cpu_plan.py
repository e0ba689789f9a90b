"""Which blocks a product gets on a CPU: a pure function of sizes, dtypes, layouts and the target's record.

The model counts cycles of one core (`target.cpu_rates`). It knows what a block multiplies, what it packs (the right
operand once for each row of blocks, a left one that is not read in place once for each column of them), and how blocks
of unequal size leave cores idle. Blocks come from a short list, so that calls of many shapes share few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapreplace
from math import ceil, prod

from tessera.ops.linalg.problem import Problem, power_of_two
from tessera.target import cpu_rates as cpu
from tessera.target.products import Form, form_of
from tessera.target.records import TargetRecord

Block = tuple[int, int, int]

FEW_ROWS = 16
"""Up to so many rows, a CPU does not pack the right operand."""

_ROWS = (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
_COLUMNS = (1, 2, 3, 4, 8, 11, 12, 14, 16, 18, 20, 22, 24, 28, 32, 48)
"""Rows of a block; its columns, in vectors."""

_STEPS = (16, 32, 64, 80, 88, 96, 104, 112, 120, 128, 130)
"""32-bit groups of terms of a step; more of them make panels larger and bring little to vector units."""

_TILED_ROWS = (32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048)
_TILED_COLUMNS = (1, 2, 3, 4, 8, 12, 16, 20, 26, 32, 40, 50, 64)
_TILED_STEPS = 1024
"""The same for matrix units, and their longest step: beside their speed, loading and storing sums around a step is
dear. In the last one, rows are stored 32 at a time as they are finished."""

_PANEL_SHARE = 0.5
_BLOCK_SHARE = 0.8
_PACKED_SHARE = 0.92
"""Parts of the first cache that a panel may take, and of the second one that sums and one step's operands may: fewer
where rows of the left operand are read in place, as those are not spread evenly over the cache's sets."""

_SUMS_SHARE = 0.5
_TILED_SHARE = 0.65
_TILED_MOST = 2.0
"""Parts of the second cache: what sums may take that stay there between steps, what one step may read beside matrix
units, and that with sums that are loaded and stored a step at a time."""

_TILED_SHORT = 256
"""Groups up to which there is one step."""

_TILE_STRIP = 128 << 10
"""Bytes of the rows that are copied to tiles at a time, and of their sums."""


def cpu_block(problem: Problem, target: TargetRecord) -> Block:
    """Return rows, columns and terms of a block.

    Args:
        problem: the product.
        target: the CPU.
    """
    if problem.m <= FEW_ROWS and not problem.reduces:
        block = _few_rows(problem, target)
    elif problem.reduces or problem.scaled or problem.promote:
        block = _plain(problem)
    else:
        model = _Model(problem, target)
        block = min(model.candidates(), key=lambda found: (model.cycles(found), found[0] > problem.m, -found[0]))
    if problem.m < 32 and not problem.reduces:
        block = (max(problem.m, 1), *block[1:])
    if problem.promote:
        block = (*block[:2], problem.promote)
    if problem.scaled:  # one scale for each tile
        block = (min(block[0], 128), min(block[1], 128), block[2])
    return block


def _plain(problem: Problem) -> Block:
    """Sums and operands of one step stay in the second-level cache, small results in one tile."""
    block_k = power_of_two(problem.k, 16, max(512 // max(problem.a.bytes, problem.b.bytes), 64))
    most = 128 if problem.acc.bytes == 8 else 256
    return power_of_two(problem.m, 16, 128), power_of_two(problem.n, 16, most), block_k


def _form(problem: Problem, target: TargetRecord) -> Form:
    """Return how the operands are multiplied, whatever the profile."""
    return form_of(target, problem.a, problem.b, problem.acc, strict=False)


def _few_rows(problem: Problem, target: TargetRecord) -> Block:
    """The right operand is read in place, along rows or columns; by matrix units along whole rows where that pays."""
    block_m, block_n, block_k = _plain(problem)
    if problem.trans_b:
        return block_m, min(block_n, 64), power_of_two(problem.k, 16, 4096)
    parts, most = (target.cores, 4096) if _form(problem, target).tiled else (4, 1024)
    return block_m, power_of_two(problem.n // parts, block_n, most), block_k


class _Model:
    """Predicts the time of a product in cycles.

    Args:
        problem: the product.
        target: the CPU.
    """

    def __init__(self, problem: Problem, target: TargetRecord):
        self.problem, self.target = problem, target
        self.lanes = max(target.vector_bytes // problem.acc.bytes, 1)
        form = _form(problem, target)
        self.group, self.tiles = form.group, form.tiled
        self.panel = 4 if (target.has("avx512f") or target.has("neon")) and not self.tiles else 2
        self.row_bytes = self.panel * target.vector_bytes
        self.long_piece = cpu.FAR_PIECE if target.has("amx-bf16") else cpu.LONG_PIECE
        self.by_columns = problem.trans_a and self.group > 1 and not self.tiles
        self.packs_rows = problem.trans_a or problem.a != form.operand or not form.reads_rows

    def candidates(self) -> Iterator[Block]:
        """Yield the blocks that fit the caches; the smallest always does."""
        problem, lanes, found = self.problem, self.lanes, False
        rows, widths = (_TILED_ROWS, _TILED_COLUMNS) if self.tiles else (_ROWS, _COLUMNS)
        lengths = self._steps()
        for block_m in rows:
            for vectors in widths:
                for steps in lengths:
                    small = block_m < 2 * problem.m and vectors * lanes < problem.n + self.panel * lanes
                    if not found or (small and self._fits(block_m, vectors, steps)):
                        found = True
                        yield block_m, vectors * lanes, steps * self.group

    def _fits(self, block_m: int, vectors: int, steps: int) -> bool:
        """Return whether what a step reads stays in the second cache."""
        panels = steps * ceil(vectors / self.panel) * self.row_bytes
        rows, sums = steps * block_m * 4, self._sums_bytes(block_m, vectors * self.lanes)
        if self.tiles:
            held = panels + (rows if self.packs_rows else _TILE_STRIP)
            room = self.target.l2_bytes
            return held <= room * _TILED_SHARE and held + sums <= room * _TILED_MOST
        held = sums + panels + rows
        return held <= self.target.l2_bytes * (_PACKED_SHARE if self.packs_rows else _BLOCK_SHARE)

    def _sums_bytes(self, rows: int, columns: int) -> int:
        return rows * (columns + self.lanes) * self.problem.acc.bytes

    def _steps(self) -> list[int]:
        """Return the groups of a step: as few steps as the first cache allows, and then as short as they may be.

        Those of matrix units may fill the second cache: a few lengths to choose from.
        """
        groups = ceil(self.problem.k / self.group)
        if self.tiles:
            least = ceil(groups / _TILED_STEPS)
            passes = {least, least + 1, 2 * least, 4 * least} if groups > _TILED_SHORT else {1}
            return sorted({max(ceil(groups / (16 * count)), 1) * 16 for count in passes})
        most = max(int(self.target.l1_bytes * _PANEL_SHARE) // self.row_bytes, _STEPS[0])
        turned = self.problem.trans_b or (self.problem.trans_a and not self.by_columns)
        # What is transposed goes by squares.
        allowed = [steps for steps in _STEPS if steps <= most and (steps % 16 == 0 or not turned)]
        return [min(allowed, key=lambda steps: (ceil(groups / steps), steps))]

    def cycles(self, block: Block) -> float:
        """Return the time of the slowest core, when each takes the next block as it gets free."""
        problem, (block_m, block_n, _) = self.problem, block
        sides = ((max(problem.m, 1), block_m), (max(problem.n, 1), block_n))
        batch, cores = problem.batch or 1, self.target.cores
        if prod(-(-total // size) for total, size in sides) * batch > 32 * cores:
            rows, columns = (min(size, max(total, 1)) for total, size in sides)
            whole = self._block(rows, columns, block)
            return problem.m * problem.n / (rows * columns) * batch * whole / cores + whole / 2
        heights, widths = ([min(size, total - first) for first in range(0, total, size)] for total, size in sides)
        costs = {(m, n): self._block(m, n, block) for m in {*heights} for n in {*widths}}
        busy = [0.0] * cores
        for _ in range(batch):
            for m in heights:
                for n in widths:
                    heapreplace(busy, busy[0] + costs[m, n])
        return max(busy) + cpu.LATE * max(costs.values()) * (cores > 1)

    def _block(self, rows: int, columns: int, block: Block) -> float:
        """Return the time of a block of which so much is inside the matrix."""
        vectors, groups = ceil(columns / self.lanes), ceil(self.problem.k / self.group)
        passes = ceil(self.problem.k / block[2])
        shared = block[1] < self.problem.n and block[1] * self.problem.out.bytes < self.long_piece
        if self.tiles:
            rate, pack, narrow, read = cpu.TILE_RATE, cpu.TILE_PACK, 0.0, cpu.TILE_COPY
            each = read + pack * self.packs_rows
            near = self._sums_bytes(rows, columns) <= self.target.l2_bytes * _SUMS_SHARE
            each_pass = cpu.TILE_PASS if near else cpu.TILE_FAR
            sums = rows * vectors * (each_pass * (passes - (not self.problem.triangular)) + cpu.TILE_END)
        else:
            pitch = self.problem.k * self.problem.a.bytes  # as if rows followed each other without gaps
            read = cpu.READ if pitch % self.target.crowding_pitch(block[0]) else cpu.CROWDED
            rate, pack, narrow = cpu.VECTOR_RATE, cpu.PACK[self.group], cpu.NARROW if vectors % self.panel == 1 else 0.0
            each = cpu.COPY if self.by_columns else pack if self.packs_rows else read
            sums = rows * vectors * (cpu.PASS * passes + cpu.END)
        multiplied = ceil(rows / 2) * 2 * (vectors + narrow) * groups / rate
        left = groups * rows / self.lanes * each
        begin = cpu.TILE_BLOCK if self.tiles else cpu.BLOCK
        return multiplied + pack * groups * vectors + left + sums + cpu.SHARED * rows * shared + begin
