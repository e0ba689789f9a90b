"""Which blocks, stages, warps and split of K a product gets: a pure function of sizes, dtypes, layouts and target.

The model counts, for each candidate tile, the waves of tiles over the multiprocessors, the time of one tile on the
matrix units (smaller tiles feed them worse) and the time of its bytes from the L2 cache and from memory. Numbers of a
whole machine are in `Machine`; relative tile rates are fitted to measurements on an H200 (docs/linalg.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import ceil, prod
from typing import Any

from tessera.errors import CallError, caller_location
from tessera.ops.linalg.problem import FP8, SPLITS, Forced, Problem
from tessera.target.fragments import wgmma_instruction
from tessera.target.records import TargetRecord

RESERVED_BYTES = 2048
"""Shared memory that barriers and the epilogue's conversions keep."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the model needs to know of a machine beside its record.

    Args:
        units: multiprocessors.
        flops: dense 16-bit operations per second of one multiprocessor's matrix units, as large products reach it.
        memory: bytes per second of the memory.
        cache: bytes per second of the L2 cache to one multiprocessor.
        launch: seconds a tile spends before its first and after its last product.
    """

    units: int
    flops: float
    memory: float
    cache: float
    launch: float = 2.0e-6


MACHINES = {
    80: Machine(108, 2.3e12, 1.6e12, 45e9),
    86: Machine(84, 0.8e12, 0.7e12, 40e9),
    89: Machine(128, 1.2e12, 0.9e12, 45e9),
    90: Machine(132, 5.45e12, 3.7e12, 85e9),
    100: Machine(148, 12.0e12, 7.0e12, 80e9),
    120: Machine(170, 1.4e12, 1.7e12, 60e9),
}
"""By compute capability; another one is taken for the next lower known."""

_TILE_RATE = {
    (128, 256): 1.0, (256, 128): 0.97, (128, 128): 0.95, (64, 256): 0.91, (128, 64): 0.78, (64, 128): 0.78,
    (64, 64): 0.55, (128, 32): 0.40, (64, 32): 0.25,
}  # fmt: skip
"""Part of the matrix units' rate that a tile of this size reaches, for warp-specialised products."""


_CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.85, 8: 0.75}
"""Part of the multiprocessors that programs in clusters of this size can take: a cluster stays in one part of a GPU."""

_MEETING = 0.5e-6
_EXCHANGE = 25e9
"""Seconds that one more program of a cluster adds, and bytes of its partial sums that are read in a second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The schedule of a product.

    Args:
        block_m: rows of a tile.
        block_n: columns of a tile.
        block_k: terms of one step.
        stages: depth of the rings of copies, None for what the schedule finds room for.
        num_warps: warps that compute, None on CPUs.
        split_k: programs that share one tile's K.
        turned: whether the product of the transposes is computed, for few rows.
        path: which instructions it is meant for: `wgmma`, `mma`, `fma` or `vector`.
        seconds: predicted time.
        notes: what was decided and why.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int | None = None
    num_warps: int | None = None
    split_k: int = 1
    turned: bool = False
    path: str = "vector"
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def space(self) -> dict[str, tuple[Any, ...]]:
        """Return the tuning space of a kernel with this plan."""
        found: dict[str, tuple[Any, ...]] = {
            "BM": (self.block_m,), "BN": (self.block_n,), "BK": (self.block_k,)
        }  # fmt: skip
        if self.stages is not None:
            found["stages"] = (self.stages,)
        if self.num_warps is not None:
            found["num_warps"] = (self.num_warps,)
        if self.split_k > 1 and self.path == "wgmma":
            found["split_k"] = (self.split_k,)
        return found

    def explain(self) -> dict[str, Any]:
        """Return the plan as a dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        stages = f", {self.stages} stages" if self.stages else ""
        warps = f", {self.num_warps} warps" if self.num_warps else ""
        split = f", split_k {self.split_k}" if self.split_k > 1 else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}{' turned' if self.turned else ''}"
        return f"{blocks}{stages}{warps}{split} ({self.path}, {1e6 * self.seconds:.1f} µs predicted)"


def plan(problem: Problem, target: TargetRecord, forced: Forced | None = None) -> Plan:
    """Return the schedule that the model finds fastest.

    Args:
        problem: the product.
        target: what it is compiled for.
        forced: what the caller fixed.

    Raises:
        CallError: `unsupported-mma-kind` when the target lacks the instructions asked for.
    """
    forced = forced or Forced()
    if target.backend == "cpu":
        if problem.mma_kind is not None:
            raise _no_kind(problem, target, "vector units")
        chosen = _cpu(problem, target)
    else:
        chosen = min(_gpu_candidates(problem, target, forced), key=lambda p: p.seconds)
    return _with_forced(chosen, forced, problem, target)


def _with_forced(chosen: Plan, forced: Forced, problem: Problem, target: TargetRecord) -> Plan:
    """Return a plan with what the caller fixed in place of what was chosen."""
    changes: dict[str, Any] = {}
    if forced.block is not None:
        changes |= dict(zip(("block_m", "block_n", "block_k"), forced.block, strict=True))
        changes["num_warps"] = None if target.backend == "cpu" else _warps(*forced.block[:2])
        changes["turned"] = False
    if forced.stages is not None and target.backend != "cpu":
        changes["stages"] = forced.stages
    if forced.num_warps is not None and target.backend != "cpu":
        changes["num_warps"] = forced.num_warps
    if forced.split_k is not None:
        changes["split_k"] = forced.split_k
    if not changes:
        return chosen
    if (
        problem.scaled
        and forced.block is not None
        and (max(forced.block[:2]) > 128 or forced.block[2] != 128)
    ):
        raise CallError(
            f"block is {forced.block}, and scales belong to blocks of 128", code="bad-argument",
            location=caller_location(), help="use at most 128 rows and columns, and 128 terms",
        )  # fmt: skip
    notes = (*chosen.notes, f"forced: {', '.join(name for name in changes if name != 'turned')}")
    if (forced.split_k or 1) > 1 and not target.has("clusters"):
        notes = (
            *notes,
            f"split_k={forced.split_k}: without effect, {target.name} has no schedule that splits K",
        )
    return replace(chosen, **changes, notes=notes)


def _power_of_two(value: int, low: int, high: int) -> int:
    return max(low, min(high, 1 << max(value - 1, 0).bit_length()))


def _cpu(problem: Problem, target: TargetRecord) -> Plan:
    """Blocks for a CPU: sums and operands of one step stay in the second-level cache, small results in one tile."""
    wide = problem.acc.bytes == 8
    block_k = _power_of_two(problem.k, 16, max(512 // max(problem.a.bytes, problem.b.bytes), 64))
    block_m, block_n = _power_of_two(problem.m, 16, 128), _power_of_two(problem.n, 16, 128 if wide else 256)
    if (
        problem.m <= FEW_ROWS and not problem.reduces
    ):  # the right operand is read in place, along rows or columns
        if problem.trans_b:
            block_n, block_k = min(block_n, 64), _power_of_two(problem.k, 16, 4096)
        else:
            block_n = _power_of_two(problem.n // 4, block_n, 1024)
    elif not problem.reduces:
        block_m, block_n = _least_packing(problem, target, (block_m, block_n, block_k))
    if problem.m < 32 and not problem.reduces:
        block_m = max(problem.m, 1)
    if problem.promote:
        block_k = problem.promote
    if problem.scaled:  # one scale for each tile
        block_m, block_n = min(block_m, 128), min(block_n, 128)
    return Plan(block_m, block_n, block_k, path="vector")


def _least_packing(problem: Problem, target: TargetRecord, block: tuple[int, int, int]) -> tuple[int, int]:
    """Return the block, up to four times as large, that packs least while there are tiles for all cores.

    Rows are packed once for each column of tiles, and columns once for each row of tiles.
    """
    block_m, block_n, block_k = block
    found, least = (block_m, block_n), float("inf")
    for m in (block_m, 2 * block_m, 4 * block_m):
        for n in (block_n, 2 * block_n):
            across, down = ceil(problem.n / n), ceil(problem.m / m)
            held = m * n * problem.acc.bytes + (m + n) * block_k * problem.a.bytes
            larger = (m, n) != (block_m, block_n)
            if larger and (held > target.l2_bytes or across * down * (problem.batch or 1) < 2 * target.cores):
                continue
            packed = problem.m * across + problem.n * down
            if packed < least:
                found, least = (m, n), packed
    return found


FEW_ROWS = 16
"""Up to so many rows, a CPU does not pack the right operand."""


def machine_of(target: TargetRecord) -> Machine:
    """Return the numbers of the nearest known machine that is not newer."""
    known = [sm for sm in MACHINES if sm <= target.sm]
    return MACHINES[max(known, default=80)]


def _rate(problem: Problem, target: TargetRecord, path: str) -> float:
    """Return operations per second of one multiprocessor at the best tile."""
    machine = machine_of(target)
    name = problem.compute.name
    if path == "fma":
        return machine.flops * (0.02 if problem.acc.bytes == 8 else 0.06)
    factor = {"tf32": 0.5, "f64": 0.06}.get(name, 2.0 if problem.a.bytes == 1 else 1.0)
    # Warp-wide products reach a part of what warpgroup products do, where both exist.
    return machine.flops * factor * (0.59 if path == "mma" and target.has("wgmma") else 1.0)


_KINDS = {"wgmma": "wgmma", "mma_sync": "mma", "fma": "fma"}


def _path(problem: Problem, target: TargetRecord) -> str:
    """Return the instructions a product is meant for.

    Raises:
        CallError: `unsupported-mma-kind`.
    """
    best = _best_path(problem, target)
    if problem.mma_kind is None or _KINDS[problem.mma_kind] == best:
        return best
    if problem.mma_kind == "mma_sync" and best == "wgmma":
        return "mma"
    raise _no_kind(problem, target, best)


def _no_kind(problem: Problem, target: TargetRecord, best: str) -> CallError:
    return CallError(
        f"mma_kind is {problem.mma_kind!r}, and {target.name} computes this product of {problem.a} and {problem.b} "
        f"with {best}",
        code="unsupported-mma-kind", location=caller_location(),
        help="leave mma_kind out; wgmma needs sm_90a, 16-byte aligned operands and a contiguous dimension",
    )  # fmt: skip


def _best_path(problem: Problem, target: TargetRecord) -> str:
    a, b, acc = problem.a.name, problem.b.name, problem.acc.name
    if target.has("wgmma") and problem.compute.name != "tf32" and problem.aligned:
        k_major = problem.a_major == "k" and problem.b_major == "k"
        strided = "strided" in (problem.a_major, problem.b_major)
        if wgmma_instruction(a, b, acc, 64) is not None and not strided and (problem.a.bytes > 1 or k_major):
            return "wgmma"
    kind = {"i8": "int8", "u8": "int8"}.get(problem.compute.name, problem.compute.name)
    through_f16 = problem.a in FP8 and target.has("mma_f16")
    return "mma" if target.has(f"mma_{kind}") or through_f16 else "fma"


def _gpu_candidates(problem: Problem, target: TargetRecord, forced: Forced) -> Iterator[Plan]:
    path = _path(problem, target)
    for block_m, block_n, turned in [
        *((*tile, False) for tile in _tiles(problem, path)),
        *_turned(problem, path),
    ]:
        warps = _warps(*((block_n, block_m) if turned else (block_m, block_n)))
        block_k = _block_k(problem, path, block_m + block_n)
        tiles = _tile_count(problem, block_m, block_n)
        for split in SPLITS:
            # Programs that share a tile pay off only where tiles leave multiprocessors idle.
            room = machine_of(target).units * _CLUSTERED[split]
            idle = tiles * split <= room and problem.k // split >= 2 * block_k
            # Sums of others come by registers.
            useful = path == "wgmma" and idle and not turned and _holds((block_m, block_n), 1)
            allowed = split == 1 or useful or forced.split_k == split
            if (
                allowed
                and forced.split_k in (None, split)
                and _fits(problem, target, block_m, block_n, block_k, split)
            ):
                seconds, note = _predict(problem, target, path, block_m, block_n, split, turned)
                # Loads of single elements do not run on beside the products, so that more than two stages cost only.
                stages = None if problem.aligned or path != "mma" else 2
                yield Plan(block_m, block_n, block_k, stages, warps, split, turned, path, seconds, (note,))


_MOST_ELEMENTS = (128 * 256, 128 * 128, 128 * 64)
"""Elements of a tile of eight warps, by the epilogue's weight, up to which ptxas does not spill."""


_SMALL = 1024
"""Tiles of 64 x 64 up to which operands that are loaded element by element take no larger ones."""


def _tiles(problem: Problem, path: str) -> list[tuple[int, int]]:
    """Return the tiles whose accumulators, with what the epilogue needs beside them, stay in registers."""
    if path == "wgmma":
        tiles = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (128, 64), (64, 64)]
        if problem.b_major == "k":
            tiles += [(128, 32), (64, 32)]
    elif path == "mma":
        tiles = [(128, 128), (64, 128), (128, 64), (64, 64), (64, 32), (32, 64)]
        if not problem.aligned and _tile_count(problem, 64, 64) <= _SMALL:
            tiles = [(64, 64)]
    else:
        tiles = [(64, 64), (32, 32), (16, 64)]
    # Promotion keeps a second set of accumulators, a triangle the places of its elements.
    weight = max(problem.weight, 1 if problem.promote or problem.triangular else 0)
    return [tile for tile in tiles if _holds(tile, weight)]


def _turned(problem: Problem, path: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the tiles of products with few rows that are computed as the product of the transposes."""
    plain = not (problem.scaled or problem.promote or problem.triangular or problem.weight)
    if (
        path == "wgmma"
        and problem.m <= _FEW_ROWS
        and plain
        and problem.batch is None
        and problem.a_major == "k"
    ):
        rows = _power_of_two(problem.m, 16, _FEW_ROWS)
        if problem.a.bytes > 1 or problem.b_major == "k":
            yield rows, 64, True
            yield rows, 128, True


def _holds(tile: tuple[int, int], weight: int) -> bool:
    return tile[0] * tile[1] * 8 <= _MOST_ELEMENTS[weight] * _warps(*tile)


def _block_k(problem: Problem, path: str, around: int) -> int:
    """Return the terms of a step of a tile with `around` rows and columns."""
    if problem.promote:
        return problem.promote
    widest = max(problem.a.bytes, problem.b.bytes)
    # Loads of single elements hold addresses in registers, and fp8 fragments unpack to wider ones.
    if path == "mma" and (not problem.aligned or problem.a in FP8):
        return max((128 if around <= 128 and problem.a not in FP8 else 64) // widest, 16)
    if path == "wgmma" and around <= _FEW and min(problem.a.bytes, problem.b.bytes) > 1:
        return max(256 // widest, 16)
    if path == "fma":
        return 128 // widest // 4 * 2 if widest > 1 else 64
    return max(128 // widest, 16)


_FEW_ROWS = 64
_TURNED_RATE = {16: 0.22, 32: 0.35, 64: 0.55}
"""Rows up to which a product may be turned, and by rows the part of the matrix units' rate that such tiles reach."""

_FEW = 192
"""Rows and columns of a tile up to which a step takes twice the terms: there are fewer waits, and room enough."""


def _warps(block_m: int, block_n: int) -> int:
    return 8 if block_m >= 128 and block_m * block_n >= 128 * 64 else 4


def _fits(
    problem: Problem, target: TargetRecord, block_m: int, block_n: int, block_k: int, split: int
) -> bool:
    """Return whether shared memory holds two stages of copies beside what the end of a tile needs."""
    ring = block_k * (block_m * problem.a.bytes + block_n * problem.b.bytes)
    # 16-bit results are put into rows through shared memory, partial sums meet there.
    rows = block_m * block_n * problem.out.bytes if problem.out.bytes <= 2 and target.has("wgmma") else 0
    partial = block_m * block_n * 4 if split > 1 else 0
    return 2 * ring + rows + partial <= target.shared_bytes - RESERVED_BYTES


def _tile_count(problem: Problem, block_m: int, block_n: int) -> int:
    return ceil(problem.m / block_m) * ceil(problem.n / block_n) * (problem.batch or 1)


def _predict(
    problem: Problem, target: TargetRecord, path: str, block_m: int, block_n: int, split: int, turned: bool
) -> tuple[float, str]:
    """Return the predicted seconds of a schedule, and what bounds it."""
    machine = machine_of(target)
    tiles = _tile_count(problem, block_m, block_n) * split
    waves = max(ceil(tiles / machine.units), 1)
    depth = ceil(problem.k / split)
    part = _TURNED_RATE[block_m] if turned else _TILE_RATE.get((block_m, block_n), 0.1)
    rate = _rate(problem, target, path) * part
    if path != "wgmma":
        rate = _rate(problem, target, path) * min(1.0, (block_m * block_n / 16384) ** 0.35)
    compute = 2.0 * block_m * block_n * depth / rate
    # Rows and columns past the end are not fetched.
    rows, columns = min(block_m, problem.m), min(block_n, problem.n)
    cache = depth * (rows * problem.a.bytes + columns * problem.b.bytes) / machine.cache
    fixed = machine.launch + (split - 1) * (_MEETING + block_m * block_n * problem.acc.bytes / _EXCHANGE)
    memory = problem.bytes / machine.memory
    steady = waves * max(compute, cache)
    bound = "memory" if memory > steady else ("matrix units" if compute >= cache else "cache")
    note = f"{tiles} tiles in {waves} waves over {machine.units} multiprocessors, bound by {bound}"
    # Near the larger of the two, yet less work is better where both plans wait for memory.
    return (steady**8 + memory**8) ** (1 / 8) + fixed, note


def tuning_space(problem: Problem, target: TargetRecord) -> Mapping[str, tuple[Any, ...]]:
    """Return the values that a tuner may try for each knob, those of the plan first.

    Args:
        problem: the product.
        target: what it is compiled for.
    """
    best = plan(problem, target)
    if target.backend == "cpu":
        options = {"BM": (32, 64, 128, 256), "BN": (64, 128, 256, 512), "BK": (64, 128, 256)}
    else:
        path = _path(problem, target)
        tiles = _tiles(problem, path)
        block_k = best.block_k
        options = {
            "BM": tuple(sorted({m for m, _ in tiles})), "BN": tuple(sorted({n for _, n in tiles})),
            "BK": (block_k, 2 * block_k), "stages": (4, 3, 2), "num_warps": (8, 4),
        }  # fmt: skip
        options["split_k"] = SPLITS
    first = best.space()
    return {
        name: tuple(dict.fromkeys((*first.get(name, ())[:1], *values))) for name, values in options.items()
    }


def points(space: Mapping[str, tuple[Any, ...]]) -> int:
    """Return how many points a space has."""
    return prod(len(values) for values in space.values())
