"""How long a product takes on a GPU: the model that plans are chosen by.

The model counts the waves of tiles over the multiprocessors, the time of one tile on the matrix units (smaller tiles
feed them worse) and the time of its bytes from the L2 cache and from memory. All numbers are the machine's: in
`target.machines` and `target.gpu_rates`.
"""

from __future__ import annotations

from math import ceil, prod, sqrt

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.ops.linalg.by_threads import Launch, meeting, parts_of, seconds_of, seconds_together
from tessera.ops.linalg.problem import Problem
from tessera.schedule.hopper.limits import seen_tile
from tessera.schedule.products import GROUP_WARPS, LINE_BYTES
from tessera.target import gpu_rates as gpu
from tessera.target.fragments import PANEL_BYTES
from tessera.target.machines import Machine, relative_rate
from tessera.target.records import TargetRecord


def _rate(problem: Problem, target: TargetRecord, path: str) -> float:
    """Return operations per second of one multiprocessor at the best tile."""
    machine = target.machine
    factor = gpu.F64 if problem.compute == dtypes.f64 else relative_rate(problem.compute.bytes)
    return machine.flops * factor * (gpu.WARP_WIDE if path == "mma" and target.has("wgmma") else 1.0)


def is_tf32(problem: Problem) -> bool:
    """Return whether a product is computed in tf32."""
    return problem.compute.name == "tf32"


def units_of(problem: Problem, path: str, rows: int, columns: int) -> tuple[int, int]:
    """Return a tile as the matrix units see it, or the tile of what they see: the schedule turns some products."""
    return seen_tile(problem.product, rows, columns) if path == "wgmma" else (rows, columns)


def tile_count(problem: Problem, block_m: int, block_n: int) -> int:
    """Return how many tiles of a size the results have."""
    return ceil(problem.m / block_m) * ceil(problem.n / block_n) * (problem.batch or 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule whose time is predicted.

    Args:
        path: which instructions it uses.
        block_m: rows of a tile.
        block_n: columns of a tile.
        block_k: terms of a step.
        warps: warps that compute a tile.
        split: programs that share a tile.
        turned: whether the product of the transposes is computed.
        turns: whether two groups of warps take tiles in turn.
        shared: whether the steps of the last tiles are shared out over all programs.
        cluster: programs that fetch the right operand together.
        parts: programs that share a tile and leave their sums in scratch memory.
    """

    path: str
    block_m: int
    block_n: int
    block_k: int
    warps: int
    split: int = 1
    turned: bool = False
    turns: bool = False
    shared: bool = False
    cluster: int = 1
    parts: int = 1


def predict(problem: Problem, target: TargetRecord, choice: Choice) -> tuple[float, str]:
    """Return the predicted seconds of a schedule, and what bounds it."""
    if choice.path == "fma":
        return _by_threads(problem, target, choice)
    machine = target.machine
    tiles = _launched(problem, choice) * choice.split * choice.parts
    compute, cache = _tile(problem, target, choice, tiles)
    fixed = machine.launch + gpu.STARTING * min(tiles / machine.units, 1)
    sums = choice.block_m * choice.block_n * problem.acc.bytes / gpu.EXCHANGE
    if choice.split > 1:
        fixed += gpu.SPLIT_START + (choice.split - 1) * sums
    if choice.parts > 1:
        fixed += gpu.JOINING + choice.parts * problem.m * problem.n * problem.acc.bytes / gpu.JOINED
    waves = max(ceil(tiles / machine.units), 1)
    memory = (_moved(problem, machine, choice) + _written_across(problem, choice)) / machine.memory
    if _is_realigned(problem, target, choice.path):
        compute = steady = _realigned(problem, target, choice)
        fixed -= gpu.REALIGNED_SOONER
    elif choice.shared:
        steady, joined = _shared(problem, machine, choice, tiles, max(compute, cache))
        fixed += joined
    else:
        steady = waves * max(compute, cache)
    if choice.path == "wgmma" and choice.turns:
        each = _ending(problem, choice)
        # No product runs beside the last end, nor any where both groups store elements one by one.
        steady = max(steady, (waves - 1) * each) + each if problem.out_aligned else steady + waves * each
        fixed += gpu.SECOND_GROUP
    elif choice.path == "wgmma":
        steady += waves * _ending(problem, choice)
        fixed += gpu.SECOND_CREW if choice.warps > GROUP_WARPS else 0.0
    least = waves * gpu.LEAST_TILE if choice.path == "wgmma" else 0.0
    bound = "memory" if memory > steady else ("matrix units" if compute >= cache else "cache")
    note = f"{tiles} tiles in {waves} waves over {machine.units} multiprocessors, bound by {bound}"
    # Near the largest of them, yet less work is better where both plans wait for memory.
    return (steady**8 + memory**8 + least**8) ** (1 / 8) + fixed, note


def _by_threads(problem: Problem, target: TargetRecord, choice: Choice) -> tuple[float, str]:
    """Return the predicted seconds of a product by multiply-adds of threads, and what bounds it."""
    machine, block = target.machine, (choice.block_m, choice.block_n, choice.block_k)
    tiles = max(tile_count(problem, *block[:2]), 1)
    parts = parts_of(problem, target, block[:2], tiles) if choice.split == 1 else 1
    launch = Launch(block, choice.warps, tiles * choice.split * parts, choice.split * parts)
    moved = gpu.MOVED_BY_THREADS * problem.bytes + gpu.ENDS_BY_THREADS * _written_across(problem, choice)
    steady, memory = seconds_of(problem, target, launch, moved)
    size = prod(block[:2]) * problem.acc.bytes
    fixed = machine.launch - gpu.SOONER + meeting(launch, size, in_cluster=choice.split > 1)
    waves = max(ceil(launch.programs / machine.units), 1)
    bound = "memory" if memory > steady else "multiply-adds"
    note = f"{tiles} tiles in {waves} waves over {machine.units} multiprocessors, bound by {bound}"
    return seconds_together(steady, memory) + fixed, note


def _launched(problem: Problem, choice: Choice) -> int:
    """Return the tiles of a launch: clusters take as many rows of them as they have programs, past the end too."""
    return tile_count(problem, choice.block_m * choice.cluster, choice.block_n) * choice.cluster


def _moved(problem: Problem, machine: Machine, choice: Choice) -> float:
    """Return the bytes that memory moves, weighed: programs of a wave share what they read, waves may not."""
    rows, columns = ceil(problem.m / choice.block_m), ceil(problem.n / choice.block_n)
    if rows == 1 or columns == 1:  # the operand that all programs read stays in the cache
        return problem.bytes * (1.0 if rows == 1 else gpu.ONE_COLUMN)
    left, right = choice.block_m * problem.k * problem.a.bytes, choice.block_n * problem.k * problem.b.bytes
    once = rows * left + columns * right
    if once <= gpu.CACHE_BYTES:
        return problem.bytes * gpu.SHARED_COLUMNS
    high = min(rows, max(round(sqrt(machine.units * right / left)), 1))
    wide = min(columns, max(machine.units // high, 1))
    waves = rows * columns / (high * wide)
    again = max(waves * (high * left + wide * right) / once, 1.0)
    return problem.bytes * gpu.SHARED_COLUMNS * again**gpu.READ_AGAIN


def _written_across(problem: Problem, choice: Choice) -> float:
    """Return the bytes that memory moves more where rows of tiles begin and end inside lines: lines written in part."""
    if problem.n * problem.out.bytes % LINE_BYTES == 0:
        return 0.0
    rows = problem.m * ceil(problem.n / _columns(choice)) * (problem.batch or 1)
    return rows * LINE_BYTES * (gpu.WRITTEN_ACROSS if problem.out_aligned else gpu.WRITTEN_SINGLE)


def _tile(problem: Problem, target: TargetRecord, choice: Choice, tiles: int) -> tuple[float, float]:
    """Return the seconds that a tile's products take, and those that its operands take from the cache."""
    machine, block_m, block_n = target.machine, choice.block_m, choice.block_n
    depth = ceil(problem.k / (choice.split * choice.parts))
    units = units_of(problem, choice.path, block_m, block_n)
    rates = gpu.TURNS_RATE if choice.turns else gpu.TILE_RATE
    part = gpu.TURNED_RATE[block_m] if choice.turned else rates.get(units, 0.1)
    if choice.path == "wgmma" and is_tf32(problem):
        part *= _tf32_rate(problem, *units)
    if choice.path != "wgmma":
        part = min(1.0, (block_m * block_n / 16384) ** 0.35)
    crew = _crew(problem, machine, choice, tiles) if choice.shared else 1
    if choice.shared:
        part *= gpu.CREW_RATE if crew > 1 else gpu.SHARED_RATE
    if choice.parts > 1:
        part *= gpu.PARTS_RATE
    if choice.cluster > 1:
        part *= gpu.PAIRED_RATE
    idle = machine.units / max(min(tiles * crew, machine.units), 1)
    part *= min(idle, gpu.COOL) ** gpu.COOL_GROWTH
    if choice.split > 1:
        part *= gpu.SPLIT_RATE * idle**gpu.SPLIT_GROWTH
    compute = 2.0 * block_m * block_n * depth / (_rate(problem, target, choice.path) * part)
    left = _fetched(block_m, problem.m, problem.a, problem.a_lines)
    right = _fetched(block_n, problem.n, problem.b, problem.b_lines) / choice.cluster
    if choice.path == "wgmma":
        left += _past(block_m, problem.m, problem.a, problem.a_major) * machine.cache
        right += _past(block_n, problem.n, problem.b, problem.b_major) * machine.cache
    alone = min(idle, gpu.ALONE)
    return compute, depth * (left + right) / (machine.cache * alone)


def _fetched(block: int, size: int, dtype: DType, lines: bool) -> float:
    """Return the bytes that a tile fetches of an operand for each term, weighed: none past the end."""
    return min(block, size) * dtype.bytes * (1.0 if lines else gpu.ACROSS_LINES)


def _past(block: int, size: int, dtype: DType, major: str) -> float:
    """Return the seconds a term that boxes take whose rows end past the tensor's, and are zeros from there on."""
    return gpu.PAST_END if major == "other" and size < block and size * dtype.bytes % PANEL_BYTES else 0.0


def _crew(problem: Problem, machine: Machine, choice: Choice, tiles: int) -> int:
    """Return how many programs share each tile: 1 where there are as many tiles as run at once, or more."""
    most = gpu.sharers(choice.block_m * choice.block_n * problem.acc.bytes)
    return max(min(machine.units // max(tiles, 1), most), 1)


def _shared(problem: Problem, machine: Machine, choice: Choice, tiles: int, tile: float) -> tuple[float, float]:
    """Return the seconds of tiles whose steps programs share, and those in which partial sums meet.

    Args:
        problem: the product.
        machine: the GPU's rates.
        choice: the schedule.
        tiles: how many there are.
        tile: seconds of one.
    """
    block = choice.block_m, choice.block_n
    size = prod(block) * problem.acc.bytes
    if (crew := _crew(problem, machine, choice, tiles)) > 1:
        return tile / crew, gpu.CREW_MEETING + crew * size / gpu.CREW_LEFT
    # Programs are at different terms, so that none finds in the cache what others fetch.
    waves = max(tiles // machine.units - 1, 0)  # of whole tiles
    left = tiles - waves * machine.units
    fetched = left * problem.k * (choice.block_m * problem.a.bytes + choice.block_n * problem.b.bytes)
    apart = fetched / (machine.memory * gpu.APART) if problem.bytes > gpu.CACHE_BYTES else 0.0
    steady = waves * tile + max(left / machine.units * tile, apart)
    return steady, gpu.SHARING + 2 * size / gpu.EXCHANGE


def _is_realigned(problem: Problem, target: TargetRecord, path: str) -> bool:
    """Return whether rows that may begin at any element are brought in line on their way to the matrix units."""
    return path == "mma" and target.has("wgmma") and not problem.aligned


def _realigned(problem: Problem, target: TargetRecord, choice: Choice) -> float:
    """Return the seconds of tiles whose rows may begin at any element: their work, or the wait of each step."""
    units, block = target.machine.units, (choice.block_m, choice.block_n)
    tiles = max(tile_count(problem, *block), 1)
    parts = parts_of(problem, target, block, tiles) if choice.split == 1 else choice.split
    work = 2.0 * prod(block) * problem.k / parts / (target.machine.flops * gpu.REALIGNED_RATE.get(block, 0.1))
    steps = ceil(problem.k / parts / gpu.REALIGNED_TERMS) * gpu.REALIGNED_STEP * sum(block) / 128
    if problem.a_major == "other" and not problem.a_aligned:
        steps *= gpu.REALIGNED_ACROSS
    programs, together = tiles * parts, units * (gpu.REALIGNED_WARPS // choice.warps)
    fixed = gpu.REALIGNED_START + _ending(problem, choice) + _meeting(problem, block, parts)
    return max(programs / units * work, ceil(programs / together) * steps) + ceil(programs / together) * fixed


def _meeting(problem: Problem, block: tuple[int, int], parts: int) -> float:
    """Return the seconds in which the last program of a tile combines what others leave in memory."""
    return 0.0 if parts == 1 else gpu.SHARING_FEW + parts * prod(block) * problem.acc.bytes / gpu.LEFT


def _ending(problem: Problem, choice: Choice) -> float:
    """Return the seconds from a tile's last product to its store: its epilogue, element by element of a thread."""
    share = choice.block_m * choice.block_n / (32 * choice.warps) / gpu.SHARE
    store = gpu.STORE if problem.out_aligned else _stored_singly(choice)
    return gpu.BETWEEN + share * (store + problem.work * gpu.OPERATION)


def _stored_singly(choice: Choice) -> float:
    """Return the seconds of a thread's share that is stored by elements: one after the other, whoever does it."""
    crowd = choice.warps / gpu.STORING_WARPS
    if crowd <= 1:
        return gpu.SINGLE_STORE
    return gpu.SINGLE_STORE * crowd * (_columns(choice) / gpu.STORED_COLUMNS) ** gpu.STORED_GROWTH


def _columns(choice: Choice) -> int:
    """Return the columns of the result that a tile takes."""
    return choice.block_m if choice.turned else choice.block_n


def _tf32_rate(problem: Problem, rows: int, columns: int) -> float:
    """Return the part of the matrix units' rate that a product in tf32 reaches by the way its operands lie."""
    along_k = (problem.a_major, problem.b_major).count("k")
    if along_k:
        return 1.0 if along_k == 2 else gpu.BY_REGISTERS
    # For each term, rows are read, and columns read and written, while no product runs: barriers keep them apart.
    return 1 / (1 + gpu.PRODUCTS_PER_ELEMENT * (1 / columns + 2 / rows))
