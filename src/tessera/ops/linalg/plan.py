"""Which blocks, stages, warps and split of K a product gets: a pure function of sizes, dtypes, layouts and target.

The candidates are tiles whose sums stay in registers; `machine.predict` says how long each of them takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from math import ceil, prod
from typing import Any

from tessera.data import dataclass
from tessera.errors import CallError, caller_location
from tessera.ops.linalg import by_halves, by_threads
from tessera.ops.linalg.cpu_plan import cpu_block
from tessera.ops.linalg.machine import Choice, is_tf32, predict, tile_count, units_of
from tessera.ops.linalg.packing import Order, distinct, packed, packings, sums_of
from tessera.ops.linalg.problem import CHOICES, FP8, Forced, Problem, power_of_two
from tessera.ops.refusals import checked
from tessera.schedule.hopper.limits import Tiling, room_of, usual_warps, why_no_tile
from tessera.schedule.knobs import KNOBS
from tessera.schedule.products import (
    GROUP_WARPS,
    MatrixProduct,
    Path,
    has_roles,
    path_of,
    why_no_registers,
    why_no_shares,
    why_no_turns,
)
from tessera.target import gpu_rates as gpu
from tessera.target.fragments import PANEL_BYTES
from tessera.target.records import TargetRecord


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
        stream_k: 1 where the last tiles are shared out over all programs.
        turned: whether the product of the transposes is computed, for few rows.
        ping_pong: whether two groups of consumers take the tiles in turn.
        cluster: neighbouring programs that fetch the right operand together.
        path: which instructions it is meant for: `wgmma`, `mma`, `fma` or `vector`.
        pack_a: which dimension is contiguous (`k` or `other`) in the copy that is made of the left operand first;
            empty where it is used as it is.
        pack_b: the same of the right operand.
        scratch_bytes: device memory that the copies take while the product runs.
        seconds: predicted time, that of copies included.
        notes: what was decided and why.
        halves: whether f32 operands are stored as sums of two numbers of tf32 first, and three products computed.
        split_sums: programs that may share a tile's terms where tiles are few, None for what a launch has room for.
        parts: programs that share a tile and leave their sums in scratch memory, for a second launch to add up.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int | None = None
    num_warps: int | None = None
    split_k: int = 1
    stream_k: int = 0
    turned: bool = False
    ping_pong: bool = False
    path: str = "vector"
    pack_a: Order = ""
    pack_b: Order = ""
    scratch_bytes: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())
    cluster: int = 1
    halves: bool = False
    split_sums: int | None = None
    parts: int = 1

    def space(self) -> dict[str, tuple[Any, ...]]:
        """Return the tuning space of a kernel with this plan."""
        found: dict[str, tuple[Any, ...]] = {"BM": (self.block_m,), "BN": (self.block_n,), "BK": (self.block_k,)}
        found["terms"] = (self.block_k,)
        if self.stages is not None:
            found["stages"] = (self.stages,)
        if self.num_warps is not None:
            found["num_warps"] = (self.num_warps,)
        if self.split_k > 1 and self.path in ("wgmma", "fma"):
            found["split_k"] = (self.split_k,)
        if self.stream_k and self.path == "wgmma":
            found["stream_k"] = (1,)
        if self.parts > 1:
            found |= {"together": (power_of_two(self.parts, 2, _MOST_ADDED),), "split_sums": (1,)}
        if self.split_sums is not None:
            found["split_sums"] = (self.split_sums,)
        if self.ping_pong:
            found["ping_pong"] = (1,)
        if self.cluster > 1:
            found["cluster"] = (self.cluster,)
        return found

    def explain(self) -> dict[str, Any]:
        """Return the plan as a dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        stages = f", {self.stages} stages" if self.stages else ""
        warps = f", {self.num_warps} warps" if self.num_warps else ""
        split = f", split_k {self.split_k}" if self.split_k > 1 else ""
        split += f", {self.parts} parts" if self.parts > 1 else ""
        split += ", stream_k" if self.stream_k else ""
        split += f", clusters of {self.cluster}" if self.cluster > 1 else ""
        blocks = f"{self.block_m}x{self.block_n}x{self.block_k}{' turned' if self.turned else ''}"
        turns = ", ping-pong" if self.ping_pong else ""
        names = " and ".join(name for name, order in (("a", self.pack_a), ("b", self.pack_b)) if order)
        packs = ", in halves" if self.halves else f", packs {names}" if names else ""
        return f"{blocks}{stages}{warps}{split}{turns}{packs} ({self.path}, {1e6 * self.seconds:.1f} µs predicted)"


@checked
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
    if not target.simt:
        if problem.mma_kind is not None:
            raise _no_kind(problem, target, "vector units", "")
        chosen = Plan(*cpu_block(problem, target), path="vector")
    else:
        chosen = _gpu(problem, target, forced)
    return _with_forced(chosen, forced, packed(problem, chosen.pack_a, chosen.pack_b), target)


def _gpu(problem: Problem, target: TargetRecord, forced: Forced) -> Plan:
    """Return the fastest schedule for the operands as they are, for copies of them, or for halves."""
    refused = by_halves.why_none(problem, target, forced)
    if refused is not None:
        return _of_operands(problem, target, forced)
    halved = _halved(problem, target)
    if problem.mma_kind == "wgmma":
        return halved
    other = _of_operands(problem, target, forced)
    microseconds = f"{1e6 * halved.seconds:.1f} µs, {1e6 * other.seconds:.1f} µs by multiply-adds"
    if halved.seconds < other.seconds:
        return replace(halved, notes=(*halved.notes, f"predicted in halves: {microseconds}"))
    return replace(other, notes=(*other.notes, f"not in halves: predicted {microseconds}"))


def _halved(problem: Problem, target: TargetRecord) -> Plan:
    """Return the plan of three products in tf32."""
    found = by_halves.fastest(problem, target)
    note = (
        f"operands are stored as sums of two numbers of tf32 first, in {found.scratch_bytes} bytes of scratch memory; "
        "mma_kind='fma' computes without"
    )
    return Plan(
        found.block_m,
        found.block_n,
        by_halves.TERMS,
        num_warps=found.warps,
        path="wgmma",
        pack_a="k",
        pack_b="k",
        scratch_bytes=found.scratch_bytes,
        seconds=found.seconds,
        notes=(note,),
        halves=True,
    )


def unshared(problem: Problem, target: TargetRecord) -> Plan:
    """Return the plan of a product whose tiles have a program each, so that no sums meet."""
    return _fastest(problem, target, Forced(split_k=1))


def _of_operands(problem: Problem, target: TargetRecord, forced: Forced) -> Plan:
    """Return the fastest schedule for the operands as they are, or for copies of them that bulk copies can fetch."""
    ways = [] if forced.pack is False else _packings(problem, target)
    if not ways:
        return _fastest(problem, target, forced)
    memory = target.machine.memory
    best = min(
        (_with_copies(problem, a, b, _fastest(after, target, forced), memory) for a, b, after in ways),
        key=lambda p: p.seconds,
    )
    if problem.mma_kind == "wgmma":
        return best
    direct = _fastest(problem, target, forced)
    microseconds = f"{1e6 * best.seconds:.1f} µs, {1e6 * direct.seconds:.1f} µs without"
    if forced.pack or best.seconds < direct.seconds:
        return replace(best, notes=(*best.notes, f"predicted with copies: {microseconds}"))
    return replace(direct, notes=(*direct.notes, f"no copies of operands: predicted {microseconds}"))


def _packings(problem: Problem, target: TargetRecord) -> list[tuple[Order, Order, Problem]]:
    """Return the copies that let warpgroup instructions compute a product that they cannot compute as it is."""
    if not has_roles(target) or problem.mma_kind not in (None, "wgmma") or problem.k == 0:
        return []
    if path_of(problem.product, target).path == "wgmma":
        return []
    for turned in (False, True):  # a copy in the order of storage is the cheaper one
        ways = [way for way in packings(problem, turned) if path_of(way[2].product, target).path == "wgmma"]
        if ways:
            return ways
    return []


def _with_copies(problem: Problem, pack_a: Order, pack_b: Order, after: Plan, memory: float) -> Plan:
    """Return the plan of a product of copies with what making them takes."""
    made = distinct(problem, pack_a, pack_b)
    size = sum(copy.bytes for copy in made)
    read = sum(prod(copy.shape) * copy.dtype.bytes for copy in made)
    seconds = gpu.COPIES + (size + read) / memory
    names = [
        f"{name} ({'K' if order == 'k' else side} contiguous)"
        for name, order, side in (("a", pack_a, "M"), ("b", pack_b, "N"))
        if order
    ]
    note = (
        f"copied first to rows that bulk copies can fetch: {' and '.join(names)}; {size} bytes of scratch memory, "
        f"{1e6 * seconds:.1f} µs predicted; pack=False computes without"
    )
    return replace(
        after,
        pack_a=pack_a,
        pack_b=pack_b,
        scratch_bytes=after.scratch_bytes + size,
        seconds=after.seconds + seconds,
        notes=(*after.notes, note),
    )


def ranked(problem: Problem, target: TargetRecord) -> list[Plan]:
    """Return all schedules that the plan for a GPU is chosen from, the fastest by the model first.

    Args:
        problem: the product.
        target: a GPU.
    """

    def scheduled(given: Problem) -> Iterator[Plan]:
        return (made for made in _gpu_candidates(given, target, Forced()) if _is_scheduled(given, made, target))

    found = list(scheduled(problem))
    for a, b, after in _packings(problem, target):
        found += [_with_copies(problem, a, b, made, target.machine.memory) for made in scheduled(after)]
    return sorted(found, key=lambda p: p.seconds)


def _fastest(problem: Problem, target: TargetRecord, forced: Forced) -> Plan:
    candidates = sorted(_gpu_candidates(problem, target, forced), key=lambda p: p.seconds)
    return next(made for made in candidates if _is_scheduled(problem, made, target))


def _with_forced(chosen: Plan, forced: Forced, problem: Problem, target: TargetRecord) -> Plan:
    """Return a plan with what the caller fixed in place of what was chosen."""
    if problem.scaled and forced.block is not None and (max(forced.block[:2]) > 128 or forced.block[2] != 128):
        raise CallError(
            f"block is {forced.block}, and scales belong to blocks of 128",
            code="bad-argument",
            location=caller_location(),
            help="use at most 128 rows and columns, and 128 terms",
        )
    takes_turns = bool(forced.ping_pong) and chosen.path == "wgmma" and _why_no_turns(forced) is None
    changes = _changes(chosen, forced, problem, target, takes_turns)
    after = replace(chosen, **changes)
    notes = list(chosen.notes)
    if changes:
        notes.append(f"forced: {', '.join(name for name in changes if name != 'turned')}")
    if forced.pack and not (chosen.pack_a or chosen.pack_b):
        notes.append(f"pack=True: without effect, {_why_no_copies(problem, target)}")
    notes += _without_effect(forced, target, takes_turns)
    if changes and chosen.path == "wgmma" and (reason := why_no_tile(*asked_of(problem, after), target)) is not None:
        names = ", ".join(name for name in ("block", "stages", "num_warps", "split_k") if getattr(forced, name))
        notes.append(f"{names}: no warpgroup instructions, {reason}")
    return replace(after, notes=tuple(notes))


def asked_of(problem: Problem, made: Plan) -> tuple[MatrixProduct, Tiling]:
    """Return the product that a plan's kernel computes, and its tiles."""
    rows, columns = (made.block_n, made.block_m) if made.turned else (made.block_m, made.block_n)
    groups = 2 if made.ping_pong else 1
    product = problem.product.transposed if made.turned else problem.product
    asked = (made.num_warps, made.stages, made.split_k, groups, made.turned)
    return product, Tiling(rows, columns, made.block_k, problem.out, *asked)


def _why_no_turns(forced: Forced) -> str | None:
    return why_no_turns(forced.num_warps, (forced.split_k or 1) > 1)


def _changes(chosen: Plan, forced: Forced, problem: Problem, target: TargetRecord, takes_turns: bool) -> dict[str, Any]:
    """Return the fields of a plan that the caller fixed."""
    simt = target.simt
    changes: dict[str, Any] = {}
    if forced.block is not None:
        changes |= dict(zip(("block_m", "block_n", "block_k"), forced.block, strict=True))
        warps = _warps(chosen.path, *units_of(problem, chosen.path, *forced.block[:2]))[0]
        changes |= {"num_warps": warps if simt else None, "turned": False}
        if chosen.path == "fma":
            changes["stages"] = _stages(problem, chosen.path, forced.block, warps, problem.k, target)
    if takes_turns:
        changes |= {"ping_pong": True, "num_warps": GROUP_WARPS}
    asked = {
        "stages": forced.stages if simt else None,
        "num_warps": forced.num_warps if simt else None,
        "split_k": forced.split_k,
        "stream_k": None if _why_no_shares(forced, takes_turns) else forced.stream_k,
    }
    return changes | {name: value for name, value in asked.items() if value is not None}


def _without_effect(forced: Forced, target: TargetRecord, takes_turns: bool) -> Iterator[str]:
    """Yield why some of what the caller fixed changes nothing."""
    if forced.ping_pong and not takes_turns:
        reason = _why_no_turns(forced) or f"{target.name} has no such schedule of this product"
        yield f"ping_pong: without effect, {reason}"
    for name in ("split_k", "stream_k"):
        knob, asked = KNOBS[name], getattr(forced, name)
        if asked not in (None, knob.default) and not knob.works_on(target):
            yield f"{name}={int(asked)}: without effect, {target.name} has no {knob.lacks}"
    if forced.stream_k and target.simt and (reason := _why_no_shares(forced, takes_turns)) is not None:
        yield f"stream_k=1: without effect, {reason}"


def _why_no_shares(forced: Forced, takes_turns: bool) -> str | None:
    return why_no_shares(forced.split_k or 1, takes_turns)


def _why_no_copies(problem: Problem, target: TargetRecord) -> str:
    pack = CHOICES["pack"]
    if not pack.works_on(target):
        return f"{target.name} has no {pack.lacks}"
    if problem.mma_kind not in (None, "wgmma"):
        return f"mma_kind is {problem.mma_kind!r}"
    return path_of(problem.product, target).refused.get("wgmma", "bulk copies fetch the operands as they are")


_KINDS: dict[str, Path] = {"wgmma": "wgmma", "mma_sync": "mma", "fma": "fma"}


def _path(problem: Problem, target: TargetRecord) -> Path:
    """Return the instructions a product is meant for.

    Raises:
        CallError: `unsupported-mma-kind`.
    """
    choice = path_of(problem.product, target)
    best = choice.path
    if problem.mma_kind is None or _KINDS[problem.mma_kind] == best:
        return best
    if problem.mma_kind == "mma_sync" and best == "wgmma":
        return "mma"
    raise _no_kind(problem, target, best, choice.refused.get(_KINDS[problem.mma_kind], ""))


def _no_kind(problem: Problem, target: TargetRecord, best: str, reason: str) -> CallError:
    kind = " in tf32" if is_tf32(problem) else ""
    ways = problem.mma_kind == "wgmma" and _packings(problem, target)
    return CallError(
        f"mma_kind is {problem.mma_kind!r}, and {target.name} computes this product of {problem.a} and {problem.b}"
        f"{kind} with {best}",
        code="unsupported-mma-kind",
        location=caller_location(),
        help=f"leave {'mma_kind or pack=False' if ways else 'mma_kind'} out{reason and f': {reason}'}",
    )


def _gpu_candidates(problem: Problem, target: TargetRecord, forced: Forced) -> Iterator[Plan]:
    path = _path(problem, target)
    tiles = [*((*tile, False) for tile in _tiles(problem, path, target)), *_turned(problem, path)]
    for block_m, block_n, turned in tiles:
        for block_k in _block_ks(problem, path, block_m, block_n):
            yield from _of_tile(problem, target, forced, path, (block_m, block_n, block_k), turned)


def _of_tile(
    problem: Problem, target: TargetRecord, forced: Forced, path: Path, block: tuple[int, int, int], turned: bool
) -> Iterator[Plan]:
    """Yield the plans of a tile: who computes it, and how many programs share it."""
    block_m, block_n, _ = block
    rows, columns = (block_n, block_m) if turned else units_of(problem, path, block_m, block_n)
    sums = None if path == "wgmma" else by_threads.most_parts(problem)
    for warps, turns in _crews(problem, path, forced, (rows, columns), turned):
        choice = Choice(path, *block, warps, 1, turned, turns)
        for split, shared in _ways(problem, target, forced, choice, (rows, columns)):
            seconds, note = predict(problem, target, replace(choice, split=split, shared=shared))
            stages = _stages(problem, path, block, warps, ceil(problem.k / split), target)
            made = *block, stages, warps, split, int(shared), turned, turns, path
            yield Plan(*made, seconds=seconds, notes=(note,), split_sums=sums)
            if split == 1 and not (shared or turns or turned):
                yield from _in_parts(problem, target, forced, choice, made)
            if split == 1 and not (shared or turns or turned) and _may_pair(problem, forced, path):
                seconds, note = predict(problem, target, replace(choice, cluster=2))
                yield Plan(*made, seconds=seconds, notes=(note,), cluster=2)


def _in_parts(
    problem: Problem, target: TargetRecord, forced: Forced, choice: Choice, made: tuple[Any, ...]
) -> Iterator[Plan]:
    """Yield the plans of a tile whose terms as many programs share as run at once, or half of them."""
    tiles = max(tile_count(problem, choice.block_m, choice.block_n), 1)
    if choice.path != "wgmma" or _why_no_parts(problem, forced) is not None:
        return
    room = min(target.machine.units // tiles, problem.k // (_PART_STEPS * choice.block_k))
    for parts in {room, room // 2}:
        size = sums_of(problem, parts).bytes
        if parts > 1 and size <= _MOST_SCRATCH:
            seconds, note = predict(problem, target, replace(choice, parts=parts))
            yield Plan(*made, seconds=seconds, notes=(note,), parts=parts, scratch_bytes=size)


def _why_no_parts(problem: Problem, forced: Forced) -> str | None:
    """Return why the sums of programs that share a tile do not meet in scratch memory, None where they may."""
    if replace(forced, pack=None) != Forced():
        return "the schedule is given"
    if problem.batch is not None or problem.triangular or problem.scaled or problem.promote or problem.grouped:
        return "batches, triangles, scales, promotion and groups keep to one launch"
    if problem.reduces or problem.in_order or problem.a.bytes != 2 or problem.acc.bytes != 4:
        return "its epilogue combines rows or columns, sums have an order, or operands are not of 16 bits"
    return None


_PART_STEPS = 2
"""Steps of a program at least whose sums are one part."""
_MOST_ADDED = 32
"""Parts that a program of the second launch loads at once."""
_MOST_SCRATCH = 64 << 20
"""Bytes of partial sums in scratch memory."""


def _crews(
    problem: Problem, path: str, forced: Forced, units: tuple[int, int], turned: bool
) -> Iterator[tuple[int, bool]]:
    """Yield how many warps may compute a tile, and whether groups of them take tiles in turn."""
    for turns in _turns(problem, path, forced):
        if not turns:
            yield from ((warps, False) for warps in _warps(path, *units) if _holds(problem, path, units, warps))
        elif not turned and why_no_registers(prod(units), GROUP_WARPS, _weight(problem)) is None:
            yield GROUP_WARPS, True


def _holds(problem: Problem, path: str, tile: tuple[int, int], warps: int) -> bool:
    """Return whether the registers of some warps hold a tile's sums, with what the epilogue needs beside them."""
    wide = problem.acc.bytes > 4 and path == "fma"
    return why_no_registers(prod(tile) << wide, warps, _weight(problem)) is None


def _stages(
    problem: Problem, path: str, block: tuple[int, int, int], warps: int, terms: int, target: TargetRecord
) -> int | None:
    """Return the depth of the rings of copies, None for what the schedule finds room for."""
    if path == "fma":
        return by_threads.stages_of(problem, block, warps, terms) if target.has("cp_async") else None
    # Loads of single elements do not run on beside the products, so that more than two stages cost only.
    return None if problem.aligned or path != "mma" else 2


_DEEP = 512
"""Terms from which on pairs of programs may pay, which start and end together, and tiles of 32 rows or columns."""


def _may_pair(problem: Problem, forced: Forced, path: str) -> bool:
    """Return whether pairs of programs may fetch an operand together: that pays where its rows lie across lines."""
    fixed = forced.block is not None or forced.split_k is not None or forced.stream_k is not None
    several = problem.batch is not None or problem.triangular or problem.grouped
    return path == "wgmma" and not problem.b_lines and problem.k >= _DEEP and not fixed and not several


def _ways(
    problem: Problem,
    target: TargetRecord,
    forced: Forced,
    choice: Choice,
    units: tuple[int, int],
) -> Iterator[tuple[int, bool]]:
    """Yield how many programs share a tile, and whether the last tiles' steps are shared out over all programs."""
    asked = 1 if forced.stream_k and forced.split_k is None else forced.split_k
    tiles, count = tile_count(problem, choice.block_m, choice.block_n), target.machine.units
    alone = choice.path == "wgmma" and not choice.turned and why_no_shares(1, choice.turns) is None
    divisible = alone or choice.path == "fma"
    for split, part in gpu.CLUSTERED.items():
        # Programs that share a tile pay off only where tiles leave multiprocessors idle.
        idle = tiles * split <= count * part and problem.k // split >= 2 * choice.block_k
        # Partial sums arrive in registers, beside the tile's own.
        useful = divisible and idle and why_no_registers(prod(units), choice.warps, 1) is None
        if asked == split or (asked is None and (split == 1 or useful)):
            yield split, False
    part_full = count < tiles < _FULL * ceil(tiles / count) * count
    few = problem.k // choice.block_k >= _FEW_STEPS * count // max(tiles, 1) >= 2 * _FEW_STEPS
    free = asked is None and forced.stream_k is None and forced.block is None
    if free and alone and not problem.triangular and (part_full or few):
        yield 1, True


_FEW_STEPS = 4
"""Steps of each program from which on all of them may share few tiles."""
_FULL = 0.8
"""Part of the last round of tiles and those before it from which tiles are never shared out over all programs."""


def _turns(problem: Problem, path: str, forced: Forced) -> Iterator[bool]:
    """Yield whether two groups of warps may take a product's tiles in turn."""
    able = path == "wgmma" and _why_no_turns(forced) is None and not problem.triangular
    if not (able and forced.ping_pong):
        yield False
    if able and (forced.ping_pong or (forced.ping_pong is None and not forced.stream_k and forced.block is None)):
        yield True


_SINGLE = 128 * 128
"""Elements of the largest tile by threads whose operands are copied element by element."""
_SMALL = 1024
"""Tiles of 64 x 64 up to which operands that are loaded element by element take no larger ones."""


def _tiles(problem: Problem, path: str, target: TargetRecord) -> list[tuple[int, int]]:
    """Return the tiles whose accumulators, with what the epilogue needs beside them, stay in registers."""
    if path == "wgmma":
        tiles = [(128, 256), (256, 128), (128, 128), (64, 256), (64, 128), (128, 64), (64, 64)]
        tiles += [(rows, 32) for rows in (128, 64) if _is_read(problem, target, rows, 32)]
        product = problem.product
        if product.is_direct(product.a) and product.is_direct(product.b):
            tiles += [(128, n) for n in (96, 160, 192, 224)] + [(m, 128) for m in (96, 160, 192, 224)]
            tiles += [(64, n) for n in (96, 160, 192, 224)]
    elif path == "mma":
        tiles = [(128, 128), (64, 128), (128, 64), (64, 64), (64, 32), (32, 64)]
        if not problem.aligned and tile_count(problem, 64, 64) <= _SMALL:
            tiles = [(64, 64), (64, 32), (32, 64)] if problem.k >= _DEEP else [(64, 64)]
    else:
        tiles = [tile for tile in by_threads.TILES if problem.aligned or prod(tile) <= _SINGLE]
    holding = [tile for tile in tiles if any(_holds(problem, path, tile, warps) for warps in _warps(path, *tile))]
    return [units_of(problem, path, *tile) for tile in holding]


def _is_read(problem: Problem, target: TargetRecord, rows: int, columns: int) -> bool:
    """Return whether warpgroups read operands of tiles so small, with a depth that fills panels in any dtype."""
    tiling = Tiling(*units_of(problem, "wgmma", rows, columns), PANEL_BYTES, problem.out)
    return why_no_tile(problem.product, tiling, target) is None


def _weight(problem: Problem) -> int:
    """Return the epilogue's weight; promotion keeps a second set of sums, a triangle the places of its elements."""
    return max(problem.weight, 1 if problem.promote or problem.triangular else 0)


def _turned(problem: Problem, path: str) -> Iterator[tuple[int, int, bool]]:
    """Yield the tiles of products with few rows that are computed as the product of the transposes."""
    plain = not (problem.scaled or problem.promote or problem.triangular or problem.weight)
    if path == "wgmma" and problem.m <= _FEW_ROWS and plain and problem.batch is None and problem.a_major == "k":
        rows = power_of_two(problem.m, 16, _FEW_ROWS)
        yield rows, 64, True
        yield rows, 128, True


def _block_ks(problem: Problem, path: str, block_m: int, block_n: int) -> tuple[int, ...]:
    """Return what the terms of a step of a tile may be, the usual ones first."""
    if path == "fma" and not problem.promote:
        return by_threads.terms_of(problem, block_m, block_n)
    return (_block_k(problem, path, block_m, block_n),)


def _block_k(problem: Problem, path: str, block_m: int, block_n: int) -> int:
    """Return the terms of a step of a tile that matrix units compute, or whose sums are promoted."""
    if problem.promote:
        return problem.promote
    around = block_m + block_n
    widest = max(problem.a.bytes, problem.b.bytes)
    # Loads of single elements hold addresses in registers, and fp8 fragments unpack to wider ones.
    if path == "mma" and (not problem.aligned or problem.a in FP8):
        most = max((128 if around <= 128 and problem.a not in FP8 else 64) // widest, 16)
        return power_of_two(problem.k, 16, most)
    if path == "wgmma" and around <= _FEW and min(problem.a.bytes, problem.b.bytes) > 1:
        return max(2 * PANEL_BYTES // widest, 16)
    return max(PANEL_BYTES // widest, 16)


_FEW_ROWS = 64
"""Rows up to which a product may be turned."""

_FEW = 192
"""Rows and columns of a tile up to which a step takes twice the terms: there are fewer waits, and room enough."""


def _warps(path: str, block_m: int, block_n: int) -> tuple[int, ...]:
    if path == "fma":
        return by_threads.warps_of(block_m, block_n)
    return (usual_warps(block_m) if block_m * block_n >= _TWO_GROUPS else GROUP_WARPS,)


_TWO_GROUPS = 128 * 64
"""Elements of a tile from which on two warpgroups share it: less gains nothing from a second one."""


def _is_scheduled(problem: Problem, made: Plan, target: TargetRecord) -> bool:
    """Return whether the schedule follows a plan, with two stages of copies beside what the end of a tile needs."""
    product, tiling = asked_of(problem, made)
    if made.path == "wgmma" and why_no_tile(product, tiling, target) is not None:
        return False
    room = room_of(product, tiling, target)
    # 16-bit results are put into rows through shared memory, partial sums meet there.
    return (room.roomy if problem.out.bytes <= 2 and target.has("wgmma") else room.most) >= max(made.stages or 2, 2)


def tuning_space(problem: Problem, target: TargetRecord) -> Mapping[str, tuple[Any, ...]]:
    """Return the values that a tuner may try for each knob, those of the plan first.

    Args:
        problem: the product.
        target: what it is compiled for.
    """
    best = plan(problem, target)
    if best.halves:
        best = unshared(replace(problem, mma_kind="fma"), target)
    if not target.simt:
        options = {"BM": (32, 64, 128, 256), "BN": (64, 128, 256, 512), "BK": (64, 128, 256)}
    else:
        tiles = _tiles(packed(problem, best.pack_a, best.pack_b), best.path, target)
        block_k = best.block_k
        options = {
            "BM": tuple(sorted({m for m, _ in tiles})),
            "BN": tuple(sorted({n for _, n in tiles})),
            "BK": (block_k, 2 * block_k),
            "stages": (4, 3, 2),
            "num_warps": (8, 4),
        }
        options["split_k"] = tuple(gpu.CLUSTERED)
        if best.path == "wgmma":
            options |= {name: KNOBS[name].values for name in ("stream_k", "ping_pong")}
    first = best.space()
    return {name: tuple(dict.fromkeys((*first.get(name, ())[:1], *values))) for name, values in options.items()}


def points(space: Mapping[str, tuple[Any, ...]]) -> int:
    """Return how many points a space has."""
    return prod(len(values) for values in space.values())
