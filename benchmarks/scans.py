"""Measures scans, reductions by combiners and sorting of rows on a GPU beside a copy and PyTorch, results checked.

    python benchmarks/scans.py [--only sort] [--turns 3] [--csv scans.csv]

Kernels are written as one would write them: a program takes one row. Contestants take turns in one process; L2 is
flushed before each call (`gemm_timing.py`). The copy is PyTorch's of as many bytes as the work must move.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts

Call = Callable[[], Any]

ELEMENTS = 1 << 24
WIDTHS = (256, 1024, 4096, 16384)
LONGEST_SORT = 4096


@ts.function
def follow(a: Any, x: Any, b: Any, y: Any) -> Any:
    """Two steps of h = a h + x as one."""
    return a * b, b * x + y


@ts.kernel
def cumsum(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Running sums."""
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.cumsum(x[i, :], 0)


@ts.kernel
def recurrence(x: ts.Tensor["m", "n", ts.f32], a: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """h[t] = a[t] h[t - 1] + x[t]."""
    for i in ts.tile.grid((m, 1)):
        _, y[i, :] = ts.tile.associative_scan((a[i, :], x[i, :]), 0, follow)


@ts.kernel
def argmax(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.i32]):
    """Places of the largest."""
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.argmax(x[i, :], 0)


@ts.kernel
def variance(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    """Variances of rows."""
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.var(x[i, :], 0)


@ts.kernel
def sort(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Rows in order."""
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.sort(x[i, :], 0)


@ts.kernel
def topk(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", 64, ts.f32], places: ts.Tensor["m", 64, ts.i32]):
    """The 64 largest of each row."""
    for i in ts.tile.grid((m, 1)):
        y[i, :], places[i, :] = ts.tile.topk(x[i, :], 64, 0)


@dataclass(frozen=True)
class Work:
    """One line of the table.

    Args:
        what: the work.
        ours: Tessera's call, which writes `result`.
        theirs: PyTorch's call, which returns its result; None where it has none.
        result: what Tessera writes.
        expected: what it is compared with.
        bytes: that have to be moved.
    """

    what: str
    ours: Call
    theirs: Call | None
    result: Any
    expected: Any
    bytes: int


def works(torch: Any, width: int) -> Iterator[Work]:
    """Yield the works on rows of a width."""
    rows = ELEMENTS // width
    x = torch.randn(rows, width, device="cuda")
    y, decay = torch.full_like(x, torch.nan), torch.rand_like(x)
    size = x.nbytes
    sums = x.double().cumsum(1).float()
    yield Work("cumsum", lambda: cumsum(x, y), lambda: torch.cumsum(x, 1), y, sums, 2 * size)
    h = torch.full_like(x, torch.nan)
    yield Work("recurrence", lambda: recurrence(x, decay, h), None, h, _recurrence(torch, x, decay), 3 * size)
    place = torch.full((rows,), -1, device="cuda", dtype=torch.int32)
    yield Work("argmax", lambda: argmax(x, place), lambda: torch.argmax(x, 1), place, x.argmax(1), size)
    spread = torch.full((rows,), torch.nan, device="cuda")
    exact = x.double().var(1, correction=0).float()
    yield Work("var", lambda: variance(x, spread), lambda: torch.var(x, 1, correction=0), spread, exact, size)
    if width <= LONGEST_SORT:
        z = torch.full_like(x, torch.nan)
        best, places = x.new_full((rows, 64), torch.nan), place.new_full((rows, 64), -1)
        top = x.topk(64, 1).values
        yield Work("topk 64", lambda: topk(x, best, places), lambda: torch.topk(x, 64, 1), best, top, size)
        yield Work("sort", lambda: sort(x, z), lambda: torch.sort(x, 1), z, x.sort(1).values, 2 * size)


def _recurrence(torch: Any, x: Any, decay: Any) -> Any:
    h, total = torch.empty_like(x), torch.zeros(len(x), device="cuda", dtype=torch.float64)
    wide, factors = x.double(), decay.double()
    for t in range(x.shape[1]):
        total = total * factors[:, t] + wide[:, t]
        h[:, t] = total
    return h


def measure(torch: Any, work: Work, width: int, timer: Timer, turns: int) -> dict[str, Any]:
    """Check a work's result, and return its line."""
    work.ours()
    torch.testing.assert_close(work.result, work.expected.to(work.result.dtype), rtol=1e-4, atol=2e-3)
    source, target = (torch.empty(work.bytes // 2, dtype=torch.int8, device="cuda") for _ in range(2))
    contestants: dict[str, list[Call]] = {"tessera": [work.ours], "copy": [lambda: target.copy_(source)]}
    if work.theirs is not None:
        contestants["PyTorch"] = [work.theirs]
    seconds, _ = timer.measured(contestants, turns)
    ours = seconds["tessera"].flushed
    return {
        "work": work.what,
        "width": width,
        "GB/s": 1e-9 * work.bytes / ours,
        "of copy": seconds["copy"].flushed / ours,
        "of PyTorch": seconds["PyTorch"].flushed / ours if "PyTorch" in seconds else None,
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", help="works of these names")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS, help="elements of a row")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="file for the results")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("needs PyTorch and a GPU")
    timer, lines = Timer(torch, 0.05), list[dict[str, Any]]()
    for width in args.widths:
        for work in works(torch, width):
            if not args.only or work.what in args.only:
                lines.append(measure(torch, work, width, timer, args.turns))
                print(lines[-1], flush=True)
    table = Table("work", "width", "GB/s", "of copy", "of PyTorch")
    for line in lines:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v or "") for v in line.values()))
    Console().print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, lines[0])
            writer.writeheader()
            writer.writerows(lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
