"""Measures works on rows on a GPU beside a copy of as many bytes and PyTorch, results checked.

Serves `rows.py` and `scans.py`. Contestants take turns in one process; L2 is flushed before each call.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts

Call = Callable[[], Any]


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
        tolerance: relative and absolute.
    """

    what: str
    ours: Call
    theirs: Call | None
    result: Any
    expected: Any
    bytes: int
    tolerance: tuple[float, float] = (1e-4, 2e-3)


@dataclass(frozen=True)
class Given:
    """What a table is asked for.

    Args:
        rows: how many there are.
        width: elements of a row.
        knobs: of the schedule, which are fixed.
    """

    rows: int
    width: int
    knobs: Mapping[str, int]

    def fixed(self, kernel: Any) -> Any:
        """Return a kernel with these knobs."""
        space = {name: [value] for name, value in self.knobs.items()}
        return ts.kernel.autotune(space=space)(kernel.__wrapped__) if space else kernel


def measure(torch: Any, work: Work, width: int, timer: Timer, turns: int) -> dict[str, Any]:
    """Check a work's result, and return its line."""
    work.ours()
    relative, absolute = work.tolerance
    torch.testing.assert_close(work.result, work.expected.to(work.result.dtype), rtol=relative, atol=absolute)
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


def main(title: str, works: Callable[[Any, Given], Iterator[Work]], widths: Sequence[int], elements: int) -> int:
    """Measure and print.

    Args:
        title: what the command is called.
        works: yields the works on rows, given PyTorch.
        widths: of the rows, by default.
        elements: of all rows together, by default.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--only", nargs="+", help="works of these names")
    parser.add_argument("--widths", nargs="+", type=int, default=widths, help="elements of a row")
    parser.add_argument("--rows", type=int, help=f"how many; by default as many as have {elements} elements")
    parser.add_argument(
        "--knobs", nargs="+", default=[], metavar="NAME=VALUE", help="of the schedule, such as chunk=8192"
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="file for the results")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("needs PyTorch and a GPU")
    timer, lines = Timer(torch, 0.05), list[dict[str, Any]]()
    knobs = {name: int(value) for name, value in (text.split("=") for text in args.knobs)}
    for width in args.widths:
        for work in works(torch, Given(args.rows or elements // width, width, knobs)):
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
