"""Products that threads compute by multiply-adds, as no matrix instruction does: their tiles, and how long they take.

Threads read both operands from shared memory: of a box of `r x c` sums, `r + c` elements for `r * c` multiply-adds, so
that large boxes come near the rate of the units. Small tiles fill a GPU where large ones are too few.
"""

from __future__ import annotations

from math import ceil, prod

from tessera.data import dataclass
from tessera.ops.linalg.problem import Problem
from tessera.target import gpu_rates as gpu
from tessera.target.fragments import PANEL_BYTES
from tessera.target.machines import Machine
from tessera.target.records import TargetRecord

TILES: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {
    (128, 256): ((8,), 2),
    (256, 128): ((8,), 2),
    (128, 128): ((8,), 1),
    (128, 96): ((8,), 1),
    (96, 128): ((8,), 1),
    (96, 64): ((4,), 1),
    (64, 96): ((4,), 1),
    (128, 48): ((4,), 1),
    (48, 128): ((4,), 1),
    (64, 48): ((4, 2), 1),
    (48, 64): ((4, 2), 1),
    (128, 64): ((4,), 1),
    (64, 128): ((4,), 1),
    (64, 64): ((4, 2, 8), 1),
    (128, 32): ((4,), 1),
    (32, 128): ((4, 2), 1),
    (64, 32): ((4, 2), 1),
    (32, 64): ((4, 2), 1),
    (32, 32): ((4, 2, 1), 1),
    (16, 256): ((4, 2), 1),
    (16, 128): ((2,), 1),
    (128, 16): ((2,), 1),
    (64, 16): ((4, 2, 1), 1),
    (16, 64): ((4, 2, 1), 1),
    (32, 16): ((2, 1), 1),
    (16, 32): ((2, 1), 1),
    (16, 16): ((1,), 1),
}
"""Rows and columns of the tiles; how many warps may compute each, the usual number first, and which part of a line of
128 bytes a step takes."""
_RING_BYTES = 12 << 10, 32 << 10
"""Shared memory that the rings of copies may take: for each warp, and in any case."""
_STAGES = 3, 8
_FEW_STAGES = 1, 2, 4, 6
"""Of programs with few steps: few depths, so that few kernels are compiled."""
_SUMS = 64
_MOST_TERMS = 64
_SHORT_STEPS = 8, 16
_FEW_TERMS = 128
"""Terms of steps beside the usual ones, of products of so many terms at most and of others: fewer past the end are
multiplied, and more programs have room."""


def warps_of(block_m: int, block_n: int) -> tuple[int, ...]:
    """Return how many warps may compute a tile: one that no plan takes, those of 64 sums a thread."""
    usual = max(block_m * block_n // (32 * _SUMS), 4)
    return TILES.get((block_m, block_n), ((min(usual, 8),), 1))[0]


def terms_of(problem: Problem, block_m: int, block_n: int) -> tuple[int, ...]:
    """Return what the terms of a step may be, the usual ones first."""
    line = PANEL_BYTES // max(problem.a.bytes, problem.b.bytes)
    usual = min(line // TILES[block_m, block_n][1], _MOST_TERMS)
    short = _SHORT_STEPS[problem.k > _FEW_TERMS]
    return (usual, short) if short < usual else (usual,)


def stages_of(problem: Problem, block: tuple[int, int, int], warps: int, terms: int) -> int:
    """Return the depth of the rings of copies: deep where tiles are small, whose steps wait for memory alone.

    Args:
        problem: the product.
        block: rows, columns and terms of a step of a tile.
        warps: warps that compute it.
        terms: terms that a program adds: no stage is for more.
    """
    stage = block[2] * (block[0] * problem.a.bytes + block[1] * problem.b.bytes)
    each, least = _RING_BYTES
    room = min(max(max(each * warps, least) // stage, _STAGES[0]), _STAGES[-1])
    steps = ceil(terms / block[2])
    return min(room, next((stages for stages in _FEW_STAGES if stages >= steps), room))


def parts_of(problem: Problem, target: TargetRecord, block: tuple[int, int], tiles: int) -> int:
    """Return how many programs share a tile where there are few: as many as run at once, each with a few steps.

    Args:
        problem: the product.
        target: a GPU.
        block: rows and columns of a tile.
        tiles: tiles of the launch.
    """
    size = problem.acc.bytes * prod(block)
    if not target.has("cp_async") or size > gpu.HELD_BYTES:
        return 1
    room = target.machine.units * max(gpu.RESIDENT_SUMS // prod(block), 1) // max(tiles, 1)
    left = gpu.LEFT_BYTES // size
    return max(min(room, problem.k // gpu.PART_TERMS, left, gpu.MOST_PARTS), 1)


def most_parts(problem: Problem) -> int | None:
    """Return how many programs may share a tile: 1 where terms are so few that none do, whatever the launch."""
    return 1 if problem.k < 2 * gpu.PART_TERMS else None


@dataclass(frozen=True, slots=True)
class Launch:
    """Programs by threads whose time is predicted.

    Args:
        block: rows, columns and terms of a step of a tile.
        warps: warps that compute it.
        programs: how many there are.
        split: how many of them share a tile.
    """

    block: tuple[int, int, int]
    warps: int
    programs: int
    split: int

    @property
    def sums(self) -> float:
        """Sums of a thread."""
        return self.block[0] * self.block[1] / (32 * self.warps)


def seconds_of(problem: Problem, target: TargetRecord, launch: Launch, moved: float) -> tuple[float, float]:
    """Return the seconds in which multiprocessors compute a launch, and those in which memory moves its bytes.

    Programs that a multiprocessor runs at once share its issue slots, and hide what each of them waits for.

    Args:
        problem: the product.
        target: a GPU.
        launch: the programs.
        moved: bytes that memory moves, weighed.
    """
    machine, terms = target.machine, ceil(problem.k / launch.split)
    stages = stages_of(problem, launch.block, launch.warps, terms) if target.has("cp_async") else 1
    most, each = _together(problem, target, launch, stages), launch.programs / machine.units
    beside = min(most, ceil(each))
    count = ceil(each) if ceil(each) <= most else each + gpu.TAIL * most
    busy = count * launch.warps * _slots(problem, launch, terms) / _rate(machine, launch, beside)
    if each > 1:
        busy *= 1 + gpu.ALONE_BY_THREADS / beside
    waits = max(each / most, 1.0) * gpu.ONE_STAGE if stages == 1 else 0.0
    return busy + waits, moved / machine.memory


def _rate(machine: Machine, launch: Launch, beside: int) -> float:
    """Return the issue slots a second that a multiprocessor gives its programs.

    Args:
        machine: the GPU's rates.
        launch: the programs.
        beside: how many of them it runs at once.
    """
    turns = launch.warps * beside / gpu.SCHEDULERS
    # Few warps wait for their own results, the less the more sums each has.
    kept = turns * (launch.sums / gpu.USUAL_SUMS) ** gpu.SUMS_GROWTH / gpu.ISSUING_TURNS
    uneven = 1 + gpu.UNEVEN * (ceil(turns) / turns - 1)
    return machine.flops * gpu.MULTIPLY_ADDS / gpu.SLOT_FLOPS * min(kept, 1.0) ** gpu.ISSUING_GROWTH / uneven


def seconds_together(steady: float, memory: float) -> float:
    """Return the seconds of a launch that computes and moves bytes, of which the shorter one hides in part."""
    return _larger(steady, memory) + gpu.UNHIDDEN * min(steady, memory)


def _larger(a: float, b: float) -> float:
    """Return nearly the larger one, yet less of the other is better."""
    return (a**8 + b**8) ** (1 / 8)


def _together(problem: Problem, target: TargetRecord, launch: Launch, stages: int) -> int:
    """Return how many programs a multiprocessor runs at once: by registers, shared memory and warps."""
    rows, columns, terms = launch.block
    ring = stages * terms * (rows * problem.a.bytes + columns * problem.b.bytes) + gpu.OF_A_PROGRAM_BYTES
    most = gpu.resident(launch.sums * problem.acc.bytes / 4, launch.warps)
    return max(int(min(most, target.shared_bytes / ring)), 1)


def _slots(problem: Problem, launch: Launch, terms: int) -> float:
    """Return the issue slots that a warp of a program takes: those of its steps and of its end."""
    rows, columns, step_terms = launch.block
    operands = (
        (problem.a, problem.a_aligned, problem.a_major, rows),
        (problem.b, problem.b_aligned, problem.b_major, columns),
    )
    copied = sum(size * _copied(launch, dtype.bytes, aligned, major) for dtype, aligned, major, size in operands)
    step = gpu.STEP_SLOTS + step_terms * (copied / (32 * launch.warps) + launch.sums * problem.acc.bytes / 4)
    end = gpu.STORE_SLOTS + (0 if problem.out_aligned else gpu.SINGLE_STORE_SLOTS) + gpu.OPERATION_SLOTS * problem.work
    return ceil(terms / step_terms) * step + launch.sums * end


def _copied(launch: Launch, bytes_: int, aligned: bool, major: str) -> float:
    """Return the slots that copying an element takes."""
    if aligned:
        return gpu.COPY_SLOTS * bytes_ / 16 * (1 + gpu.SHORT_ROWS / launch.block[2] if major == "k" else 1)
    few = max(gpu.SCHEDULERS / launch.warps, 1.0) ** gpu.FEW_COPY
    return few * (gpu.SINGLE_SLOTS if major == "k" else gpu.SIDE_BY_SIDE_SLOTS) * bytes_ / 4


def meeting(launch: Launch, size: int, *, in_cluster: bool) -> float:
    """Return the seconds in which partial sums of a tile meet.

    Args:
        launch: the programs.
        size: bytes of a tile's sums.
        in_cluster: whether other programs of a cluster read them from it, or the last one from memory.
    """
    if launch.split == 1:
        return 0.0
    if in_cluster:
        return (launch.split - 1) * (gpu.MEETING + size / gpu.EXCHANGE_BY_THREADS)
    return gpu.SHARING_BY_THREADS + launch.split * size / gpu.LEFT_BY_THREADS
