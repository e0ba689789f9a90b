"""Measures what a call of a library op costs the host, beside PyTorch's own op, in turns.

    python benchmarks/library_host.py [--device cuda] [--both-ways] [--turns 9] [--csv results.csv]

Tensors are so small that a GPU waits for its host. Each op is called 300 times in a row for each turn, and the median
turn counts: the seconds of the calling thread on a CPU, of the clock on a GPU. What is called as written runs the op's
Python each time, as the first two calls of a kind do. With `--both-ways` gradients are computed, too. Results are
compared first.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from foundation import torch_or_none
from rich.console import Console
from rich.table import Table

from tessera import op

CALLS = 300


def calls(
    torch: Any, device: str, asks: bool
) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], Callable[[], Any]]]:
    """Return calls by name: an op, its arguments, and PyTorch's own; `asks` for gradients or not."""
    functional = torch.nn.functional
    sizes = (4, 64), (4, 64), (64,), (1, 2, 16, 32)
    x, y, w, q = (torch.randn(*shape, device=device, requires_grad=asks) for shape in sizes)
    target = torch.tensor([1, 2, 3, 4], device=device)
    return {
        "swiglu": (op.activation.swiglu, (x, y), {}, lambda: functional.silu(x) * y),
        "norm.rms": (op.norm.rms, (x, 64, w), {}, lambda: functional.rms_norm(x, (64,), w)),
        "norm.ln": (op.norm.ln, (x, 64, w), {}, lambda: functional.layer_norm(x, (64,), w)),
        "softmax": (op.softmax, (x,), {}, lambda: functional.softmax(x, -1)),
        "reduce.sum": (op.reduce.sum, (x, -1), {}, lambda: x.sum(-1)),
        "cross_entropy": (op.loss.cross_entropy, (x, target), {}, lambda: functional.cross_entropy(x, target)),
        "flash_attention": (
            op.flash_attention,
            (q, q, q),
            {"causal": True},
            lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        ),
    }


def measured(torch: Any, device: str, asks: bool, turns: int) -> list[tuple[str, float, float, float]]:
    """Return microseconds of each op: a call of a known kind, one as written, and PyTorch's."""
    rows: list[tuple[str, float, float, float]] = []
    for name, (function, args, kwargs, theirs) in calls(torch, device, asks).items():
        written = type(function).__call__.__wrapped__
        contestants: list[Callable[[], Any]] = [
            lambda function=function, args=args, kwargs=kwargs: function(*args, **kwargs),
            lambda written=written, function=function, args=args, kwargs=kwargs: written(function, *args, **kwargs),
            theirs,
        ]
        wanted = theirs()
        for run in contestants * 3:
            torch.testing.assert_close(run(), wanted, rtol=1e-3, atol=1e-3)
        if asks:
            grad = torch.ones_like(wanted)
            contestants = [lambda run=run, grad=grad: run().backward(grad) for run in contestants]
        times: list[list[float]] = [[] for _ in contestants]
        for _ in range(turns):
            for kept, run in zip(times, contestants, strict=True):
                kept.append(_microseconds(torch, device, run))
        rows.append((name, *(median(kept) for kept in times)))
    return rows


def _microseconds(torch: Any, device: str, run: Callable[[], Any]) -> float:
    clock = time.thread_time if device == "cpu" else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = clock()
    for _ in range(CALLS):
        run()
    spent = clock() - start
    if device != "cpu":
        torch.cuda.synchronize()
    return spent / CALLS * 1e6


def main() -> int:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--both-ways", action="store_true")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    torch = torch_or_none()
    if torch is None:
        print("PyTorch is needed", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    rows = measured(torch, asked.device, asked.both_ways, asked.turns)
    names = ("op", "again", "as written", "PyTorch")
    table = Table(*names, title=f"host µs a call, {asked.device}")
    for name, *numbers in rows:
        table.add_row(name, *(f"{number:.1f}" for number in numbers))
    Console().print(table)
    if asked.csv:
        with asked.csv.open("w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
