"""What `gemm.py` reports: rows, the geometric means over them, and the bars that they are to pass."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_timing import Seconds
from gemm_works import Work, works
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """The ratio to a peer that a section is to reach.

    Args:
        section: the section.
        peer: the peer.
        mean: for the geometric mean over the section's rows.
        least: for each row; None where the mean alone counts.
    """

    section: str
    peer: str
    mean: float
    least: float | None = None


@dataclass(frozen=True)
class Rate:
    """The figure that one work is to reach, whatever the peers do.

    Args:
        section: the section.
        shape: M, N and K.
        tflops: TFLOP/s.
    """

    section: str
    shape: tuple[int, int, int]
    tflops: float


BARS = (
    Bar("bf16", "cuBLAS", 1.05, least=0.95),
    Bar("fp8", "cuBLAS", 1.0),
    Bar("linear", "cuBLASLt", 1.05),
    Bar("gated", "2 cuBLAS + elementwise", 1.1),
    Bar("dequant", "cuBLAS in bf16", 0.7),
)
RATES = (Rate("fp8", (8192, 8192, 8192), 1200.0),)


@dataclass(frozen=True)
class Row:
    """One work beside one peer.

    Args:
        work: the work.
        peer: the peer's name.
        ours: Tessera's times.
        theirs: the peer's.
    """

    work: Work
    peer: str
    ours: Seconds
    theirs: Seconds

    @property
    def seconds(self) -> tuple[float, float]:
        """Tessera's time and the peer's that are judged: of single calls after a flush."""
        return self.ours.flushed, self.theirs.flushed

    @property
    def ratio(self) -> float:
        """Above 1 when Tessera is faster."""
        ours, theirs = self.seconds
        return theirs / ours

    @property
    def replayed_ratio(self) -> float | None:
        """The same of launches in a graph; None where one of the two could not be captured."""
        if self.ours.replayed is None or self.theirs.replayed is None:
            return None
        return self.theirs.replayed / self.ours.replayed

    @property
    def tflops(self) -> tuple[float, float]:
        """Tessera's rate and the peer's."""
        ours, theirs = self.seconds
        return 1e-12 * self.work.flops / ours, 1e-12 * self.work.flops / theirs


@dataclass(frozen=True)
class Summary:
    """A section's rows beside one peer.

    Args:
        section: the section.
        peer: the peer.
        rows: how many were measured.
        of: how many the section has.
        mean: geometric mean of the ratios.
        replayed_mean: the same of launches in a graph, over the rows that have it; None where none has.
        least: the lowest ratio.
        worst: the work that has it.
        bar: what is to be reached, if anything.
    """

    section: str
    peer: str
    rows: int
    of: int
    mean: float
    replayed_mean: float | None
    least: float
    worst: str
    bar: Bar | None

    @property
    def passed(self) -> bool | None:
        """Whether the bar is passed by the rows that were measured; None where there is no bar."""
        if self.bar is None:
            return None
        return self.mean >= self.bar.mean and (self.bar.least is None or self.least >= self.bar.least)


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers, at least one."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def summaries(rows: Sequence[Row]) -> list[Summary]:
    """Return one summary for each section and peer, in the order of the rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.work.section, row.peer), []).append(row)
    bars = {(bar.section, bar.peer): bar for bar in BARS}
    found: list[Summary] = []
    for (section, peer), group in groups.items():
        worst = min(group, key=lambda row: row.ratio)
        replayed = [row.replayed_ratio for row in group if row.replayed_ratio is not None]
        found.append(
            Summary(
                section,
                peer,
                len(group),
                len(works([section])),
                geometric_mean(row.ratio for row in group),
                geometric_mean(replayed) if replayed else None,
                worst.ratio,
                worst.work.name,
                bars.get((section, peer)),
            )
        )
    return found


def rates(rows: Sequence[Row]) -> list[tuple[Rate, float]]:
    """Return the figures that are to be reached, each with Tessera's own."""
    own = {(row.work.section, row.work.shape): row.tflops[0] for row in rows}
    return [(rate, own[rate.section, rate.shape]) for rate in RATES if (rate.section, rate.shape) in own]


def table_of(rows: Iterable[Row]) -> Table:
    """Return the rows as a table."""
    table = Table("work", "peer")
    for name in ("Tessera µs", "TFLOP/s", "peer TFLOP/s", "ratio", "replayed"):
        table.add_column(name, justify="right")
    for row in rows:
        ours, theirs = row.tflops
        table.add_row(
            row.work.name,
            row.peer,
            f"{1e6 * row.seconds[0]:.1f}",
            f"{ours:.4g}",
            f"{theirs:.4g}",
            f"{row.ratio:.3f}",
            ratio_text(row.replayed_ratio),
        )
    return table


def summary_table(rows: Sequence[Row]) -> Table:
    """Return means, minima and verdicts as a table."""
    table = Table("section", "peer", "rows", "geometric mean", "goal", "replayed", "least", "goal", "at", "verdict")
    for line in summaries(rows):
        bar = line.bar
        least = "" if bar is None or bar.least is None else f"≥ {bar.least:g}"
        table.add_row(
            line.section,
            line.peer,
            f"{line.rows} of {line.of}",
            f"{line.mean:.3f}",
            "" if bar is None else f"≥ {bar.mean:g}",
            ratio_text(line.replayed_mean),
            f"{line.least:.3f}",
            least,
            line.worst,
            _verdict(line.passed, line.rows == line.of),
        )
    for rate, value in rates(rows):
        what = f"{'x'.join(map(str, rate.shape))} TFLOP/s"
        verdict = _verdict(value > rate.tflops)
        table.add_row(rate.section, what, "1 of 1", f"{value:.4g}", f"> {rate.tflops:g}", *[""] * 4, verdict)
    return table


def ratio_text(value: float | None) -> str:
    """Return a ratio as tables show it; empty where there is none."""
    return "" if value is None else f"{value:.3f}"


def _verdict(passed: bool | None, complete: bool = True) -> str:
    words = {None: "", True: "[green]pass", False: "[red]fail"}[passed]
    return words if complete or passed is None else f"{words}, of these"


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write one line for each work and peer; times are in seconds, empty where a graph could not be captured."""
    names = (
        "section",
        "layout",
        "m",
        "n",
        "k",
        "peer",
        "tessera_tflops",
        "peer_tflops",
        "ratio",
        "replayed_ratio",
    )
    times = ("tessera_replayed", "tessera_flushed", "peer_replayed", "peer_flushed")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names + times)
        for row in rows:
            writer.writerow(
                (
                    row.work.section,
                    row.work.layout,
                    *row.work.shape,
                    row.peer,
                    *row.tflops,
                    row.ratio,
                    row.replayed_ratio,
                    row.ours.replayed,
                    row.ours.flushed,
                    row.theirs.replayed,
                    row.theirs.flushed,
                )
            )
