"""What `sweep.py` prints: geometric means, 5th percentiles, and the worst works with the lines that run them again."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from sweep_works import FAMILIES, SIZES, Work

WORST = 10
COLUMNS = (
    *("number", "family", "work", "dtype", "flops", "bytes", "seconds", "peer", "peer_seconds", "ratio", "of_copy"),
    *("first_s", "notes", "error"),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a work.

    Args:
        work: the work.
        seconds: median turn of each contestant; `tessera` is ours, `copy` moves as many bytes.
        first_s: seconds of our first call, which compiles unless a cache has it.
        notes: why peers took no part.
        error: what went wrong with ours; empty where nothing did.
    """

    work: Work
    seconds: dict[str, float] = field(default_factory=dict)
    first_s: float = 0.0
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def peer(self) -> str:
        """The fastest peer, empty without one."""
        peers = [name for name in self.seconds if name not in ("tessera", "copy")]
        return min(peers, key=lambda name: self.seconds[name], default="")

    @property
    def ratio(self) -> float | None:
        """Above 1 where Tessera is faster than the fastest peer, 0 where it failed, None without a peer."""
        if self.error:
            return 0.0
        return self.seconds[self.peer] / self.seconds["tessera"] if self.peer else None

    @property
    def of_copy(self) -> float | None:
        """Our rate as a part of a copy's, 0 where it failed, None for works that are not bound by memory."""
        if self.work.flops:
            return None
        return 0.0 if self.error else self.seconds["copy"] / self.seconds["tessera"]


def aligned(work: Work) -> bool:
    """Whether all rows start at multiples of 16 bytes."""
    return not (work.offset or work.pad or work.shape[-1] * SIZES[work.dtype] % 16)


GROUPS: dict[str, Callable[[Work], bool]] = {
    **{name: lambda work, name=name: work.family == name for name in FAMILIES},
    "(all products)": lambda work: work.family in ("gemm", "batched", "tiles"),
    "(rows, aligned)": lambda work: work.family == "rows" and aligned(work),
    "(rows, others)": lambda work: work.family == "rows" and not aligned(work),
    "all": lambda work: True,
}
"""Lines of the table."""


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean, NaN of nothing, 0 where a value is 0."""
    found = list(values)
    if not found:
        return math.nan
    return 0.0 if 0.0 in found else math.exp(sum(map(math.log, found)) / len(found))


def low(values: Iterable[float], share: float = 0.05) -> float:
    """Return the largest value that at most a share of all values lies below, NaN of nothing."""
    found = sorted(values)
    return found[int(share * len(found))] if found else math.nan


def line_of(outcome: Outcome) -> str:
    """Return one work in words."""
    work = outcome.work
    if outcome.error:
        return f"[{work.number}] {work.name}: FAILED, {outcome.error}"
    ours = outcome.seconds["tessera"]
    rate = f"{1e-12 * work.flops / ours:.3g} TFLOP/s" if work.flops else f"{1e-9 * work.bytes / ours:.4g} GB/s"
    ratio = "no peer" if outcome.ratio is None else f"{outcome.ratio:.2f} of {outcome.peer}"
    copy = "" if outcome.of_copy is None else f", {outcome.of_copy:.2f} of copy"
    return f"[{work.number}] {work.name}: {ratio}{copy}, {1e6 * ours:.1f} µs, {rate}, first {outcome.first_s:.2f} s"


def command_of(outcome: Outcome, seed: int, device: str) -> str:
    """Return the line that runs a work again."""
    where = "" if device == "cuda" else f" --device {device}"
    return f"python benchmarks/sweep.py --seed {seed} --only {outcome.work.number}{where}"


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Return a line for each family, for some groups of them, and one for all."""
    table = Table(
        "family", "works", "failed", "mean", "without failed", "5th percentile", "worst", "of copy: mean", "5th"
    )
    for name, belongs in GROUPS.items():
        found = [o for o in outcomes if belongs(o.work)]
        if not found:
            continue
        ratios = [o.ratio for o in found if o.ratio is not None]
        copies = [o.of_copy for o in found if o.of_copy is not None]
        figures = (
            geometric_mean(ratios),
            geometric_mean(r for r in ratios if r),
            low(ratios),
            min(ratios, default=math.nan),
            geometric_mean(c for c in copies if c),
            low(copies),
        )
        failed = sum(bool(o.error) for o in found)
        table.add_row(name, str(len(found)), str(failed or ""), *("" if math.isnan(f) else f"{f:.2f}" for f in figures))
    return table


def printed(console: Console, outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    """Print the tables, then the worst and all that failed, with the lines that run them again."""
    console.print(table_of(outcomes))

    def told(title: str, some: Sequence[Outcome]) -> None:
        if some:
            console.print(title)
        for outcome in some:
            console.print(f"  {command_of(outcome, args.seed, args.device)}", markup=False, highlight=False)
            console.print(f"    {line_of(outcome)}", markup=False, highlight=False, soft_wrap=True)

    judged = sorted((o for o in outcomes if not o.error and o.ratio is not None), key=lambda o: o.ratio or 0.0)
    worst = {o.work.family: o for o in reversed(judged)}
    told("the worst of each family:", [worst[name] for name in FAMILIES if name in worst])
    told(f"the worst {min(WORST, len(judged))} of all:", judged[:WORST])
    told("of the lowest share of copy rate:", sorted(_copies(outcomes), key=lambda o: o.of_copy or 0.0)[:WORST])
    told("failed:", [o for o in outcomes if o.error])
    told("no peer took:", [o for o in outcomes if not o.error and o.ratio is None])
    firsts = [o.first_s for o in outcomes if not o.error]
    if firsts:
        console.print(
            f"first call: median {median(firsts):.2f} s, longest {max(firsts):.2f} s (compiles unless cached)"
        )
    asked = len(args.only) if args.only is not None else args.count
    console.print(f"seed {args.seed}, {args.device}: {len(outcomes)} of {asked} works were run")


def _copies(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if not o.error and o.of_copy is not None]


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a line for each work."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for o in outcomes:
            work = o.work
            seconds = [o.seconds.get("tessera"), o.peer, o.seconds.get(o.peer), o.ratio, o.of_copy, o.first_s]
            given = [work.number, work.family, work.name, work.dtype, work.flops, work.bytes]
            writer.writerow([*given, *seconds, "; ".join(o.notes), o.error])
