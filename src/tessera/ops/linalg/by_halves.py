"""When f32 products are computed as three products of tf32 on warpgroup units, and how long that takes.

Each operand is first stored as the sum of two numbers of tf32 (`halves_kernels`).
"""

from __future__ import annotations

from math import ceil, prod

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.ops.linalg.machine import tile_count
from tessera.ops.linalg.packing import Copy, copies
from tessera.ops.linalg.problem import Forced, Problem
from tessera.schedule.products import has_roles
from tessera.target import gpu_rates as gpu
from tessera.target.machines import relative_rate
from tessera.target.records import TargetRecord

TERMS = 32
"""Terms of a step, whose sums join the accumulator together."""
LEAST_TERMS = 128
"""Terms from which on errors are no larger than those of multiply-adds."""
FLAG_BYTES = 4


@dataclass(frozen=True, slots=True)
class Halved:
    """The tile of such a product, and what it takes.

    Args:
        block_m: rows.
        block_n: columns.
        warps: warps that compute it.
        seconds: predicted time, that of storing operands included.
        scratch_bytes: device memory that they take while the product runs.
    """

    block_m: int
    block_n: int
    warps: int
    seconds: float
    scratch_bytes: int


def why_none(problem: Problem, target: TargetRecord, forced: Forced) -> str | None:
    """Return why a product is not computed so, None where it can be."""
    f32 = {problem.a, problem.b, problem.acc, problem.compute} == {dtypes.f32}
    if not f32:
        return "operands, sums or compute are not f32"
    if not has_roles(target):
        return f"{target.name} has no warpgroup products"
    if problem.in_order:
        return "the profile is strict"
    if problem.triangular or problem.scaled or problem.promote or problem.grouped or problem.rereads:
        return (
            "triangles, scales, promotion, groups and epilogues that read where the result goes keep to multiply-adds"
        )
    if problem.reduces or problem.weight > 1:
        return "its epilogue needs too many registers, or combines columns"
    if forced != Forced() or problem.mma_kind not in (None, "wgmma"):
        return "the schedule is given"
    if problem.k < LEAST_TERMS:
        return f"sums of fewer than {LEAST_TERMS} terms"
    return None


def stored(problem: Problem) -> tuple[Copy, Copy]:
    """Return how the high numbers of each operand lie, and the low ones likewise."""
    a, b = copies(problem, "k", "k")
    assert a is not None, "it is stored"
    assert b is not None, "it is stored"
    return a, b


def flags_of(copy: Copy, block: tuple[int, int]) -> int:
    """Return how many tiles an operand is stored by, each of which has a flag."""
    *batch, count, padded = copy.lines
    return prod(batch) * ceil(count / block[0]) * ceil(padded / block[1])


def fastest(problem: Problem, target: TargetRecord) -> Halved:
    """Return the tile that the model finds fastest."""
    machine = target.machine
    made = stored(problem)
    size = 2 * sum(copy.bytes for copy in made)
    read = sum(prod(copy.shape) * copy.dtype.bytes for copy in made)
    storing = gpu.COPIES + gpu.AGAIN + (size + read) / machine.memory
    rate = machine.flops * relative_rate(dtypes.f32.bytes)
    found: list[Halved] = []
    for (block_m, block_n), part in gpu.HALVES_RATE.items():
        waves = ceil(tile_count(problem, block_m, block_n) / machine.units)
        steps = ceil(problem.k / TERMS)
        step = 3 * 2 * block_m * block_n * TERMS / (rate * part)
        store = gpu.STORE if problem.out_aligned else gpu.HALVES_STORED_SINGLY * block_m * block_n
        work = waves * (steps * step + gpu.BETWEEN + store)
        moved = (problem.bytes * gpu.SHARED_COLUMNS + size) / machine.memory
        seconds = machine.launch + max(work, moved) + storing
        found.append(Halved(block_m, block_n, 8 if block_m > 64 else 4, seconds, size))
    return min(found, key=lambda each: each.seconds)
