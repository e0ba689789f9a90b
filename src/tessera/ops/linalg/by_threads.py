"""Products that threads compute by multiply-adds, as no matrix instruction does: their tiles, and how long they take.

Threads read both operands from shared memory: of a box of `r x c` sums, `r + c` elements for `r * c` multiply-adds, so
that large boxes come near the rate of the units. Small tiles fill a GPU where large ones are too few.
"""

from __future__ import annotations

from math import ceil, prod, sqrt

from tessera.ops.linalg.problem import Problem
from tessera.target import gpu_rates as gpu
from tessera.target.fragments import PANEL_BYTES
from tessera.target.records import TargetRecord

TILES = {
    (128, 256): (8, 2),
    (256, 128): (8, 2),
    (128, 128): (8, 1),
    (128, 64): (4, 1),
    (64, 128): (4, 1),
    (64, 64): (4, 1),
    (64, 32): (4, 1),
    (32, 64): (4, 1),
    (32, 32): (4, 1),
    (64, 16): (4, 1),
    (16, 64): (4, 1),
    (32, 16): (2, 1),
    (16, 32): (2, 1),
    (16, 16): (1, 1),
}
"""Rows and columns of the tiles; the warps that compute each, and which part of a line of 128 bytes a step takes."""
_RING_BYTES = 12 << 10, 32 << 10
"""Shared memory that the rings of copies may take: for each warp, and in any case."""
_STAGES = 3, 8
_SUMS = 64
_MOST_TERMS = 64
_LEAST_TERMS = 32
"""Terms up to which start and end of a program take the same part of it."""
_SHORT_STEPS = 8, 16
_FEW_TERMS = 128
"""Terms of steps beside the usual ones, and of products up to which they may pay: these multiply less by zero."""


def warps_of(block_m: int, block_n: int) -> int:
    """Return the warps that compute a tile: for one that no plan takes, those of 64 sums a thread."""
    usual = max(block_m * block_n // (32 * _SUMS), 4)
    return TILES.get((block_m, block_n), (min(usual, 8), 1))[0]


def terms_of(problem: Problem, block_m: int, block_n: int) -> tuple[int, ...]:
    """Return what the terms of a step may be, the usual ones first."""
    line = PANEL_BYTES // max(problem.a.bytes, problem.b.bytes)
    usual = min(line // TILES[block_m, block_n][1], _MOST_TERMS)
    shorter = [terms for terms in _SHORT_STEPS if terms < usual and problem.k <= _FEW_TERMS]
    return usual, *shorter


def stages_of(problem: Problem, block_m: int, block_n: int, terms: int) -> int:
    """Return the depth of the rings of copies: deep where tiles are small, whose steps wait for memory alone."""
    stage = terms * (block_m * problem.a.bytes + block_n * problem.b.bytes)
    each, least = _RING_BYTES
    return min(max(max(each * warps_of(block_m, block_n), least) // stage, _STAGES[0]), _STAGES[1])


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


def together(block: tuple[int, int], warps: int) -> int:
    """Return how many programs a multiprocessor runs at once."""
    sums = prod(block) / (32 * warps)
    return max(int(gpu.REGISTERS / (gpu.OTHERS + 2 * sums) / warps), 1)


def seconds_of(
    problem: Problem,
    target: TargetRecord,
    block: tuple[int, int],
    terms: int,
    warps: int,
    programs: int,
    split: int,
    ending: float,
) -> float:
    """Return the seconds of a launch's products: by the rate of the units, or what programs wait for if that is longer.

    Args:
        problem: the product.
        target: a GPU.
        block: rows and columns of a tile.
        terms: terms of a step.
        warps: warps that compute a tile.
        programs: programs of the launch.
        split: programs that share a tile.
        ending: seconds from a tile's last product to its store.
    """
    machine, others = target.machine, together(block, warps)
    steps, waves = ceil(problem.k / split / terms), ceil(programs / machine.units)
    sums = prod(block) / (32 * warps)
    rate = machine.flops * (gpu.MULTIPLY_ADDS_F64 if problem.acc.bytes == 8 else gpu.MULTIPLY_ADDS)
    tile = 2.0 * prod(block) * steps * terms / rate * (1 + gpu.READ * 2 / sqrt(sums))
    running = warps * min(others, waves)
    busy = min((running / gpu.SINGLE_WARPS) ** gpu.SINGLE_GROWTH, 1.0)
    single = (0 if problem.a_aligned else block[0]) + (0 if problem.b_aligned else block[1])
    copied = steps * terms * single / (gpu.SINGLE * busy)
    tile *= max(gpu.ISSUING_WARPS / running, 1.0) ** gpu.ISSUING_GROWTH  # few warps wait for each other's results
    # Programs of a multiprocessor hide the shorter one from each other.
    tile = max(tile, copied) + gpu.HIDDEN * min(tile, copied) / others
    rounds = ceil(programs / (machine.units * others))
    seconds = max(waves * tile, rounds * max(steps * gpu.STEP, tile)) + rounds * ending
    return seconds / gpu.BY_THREADS.get(block, 1.0) + programs / machine.units * gpu.PROGRAM


def unhidden(steady: float, memory: float, block: tuple[int, int], warps: int, terms: float) -> float:
    """Return the seconds in which a program waits for memory or memory for it: at its start and its end.

    Args:
        steady: seconds of the steps of a launch.
        memory: seconds in which memory moves its bytes.
        block: rows and columns of a tile.
        warps: warps that compute a tile.
        terms: terms that a program adds.
    """
    return min(steady, memory) / together(block, warps) * gpu.UNHIDDEN_TERMS / max(terms, _LEAST_TERMS)
