"""Measures attention of one new token: keys in pages, in 16 and 8 bits, beside PyTorch with all keys in one array.

    python benchmarks/decode.py [--csv results.csv] [--turns 3] [--batches 1 16] [--lengths 4096 32768] [--device cpu]

32 heads of 128 share 8 of keys and values; pages have 64 slots, in any order. `of copy` is the part of a copy's rate at
which keys and values are read (pages of 16 bits): on a GPU that of a copy by PyTorch in the same process, on the CPU
that of a sum over the same bytes. Times are of single calls, on a GPU after a flush of L2, in turns. Results are
compared with float64 first, and one that is off ends the run with status 1.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from foundation import in_turns, torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

from tessera import ops as op

HEADS, GROUPS, SIZE, PAGE = 32, 8, 128, 64
ERROR = 2e-2
"""Largest difference allowed, as a part of the largest exact element; 8 bits have four times as much."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 16, 64))
    parser.add_argument("--lengths", type=int, nargs="+", default=(1024, 8192, 32768))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    lines = list[tuple[Any, ...]]()
    for batch, length in product(args.batches, args.lengths):
        state = State(torch, args.device, batch, length)
        wrong = state.wrong()
        if wrong:
            print(f"{batch} x {length}: {wrong}", file=sys.stderr)
            return 1
        taken = state.times(args.turns)
        rate = state.bytes / taken["pages"] / (state.moved / taken["copy"])
        lines.append(
            (batch, length, *(1e6 * taken[name] for name in CONTESTANTS), rate, taken["PyTorch"] / taken["pages"])
        )
    columns = ("batch", "keys", *(f"{name} µs" for name in CONTESTANTS), "of copy", "ratio to PyTorch")
    table = Table(*columns)
    for line in lines:
        table.add_row(*map(str, line[:2]), *(f"{value:.1f}" for value in line[2:5]), *(f"{x:.3f}" for x in line[5:]))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(lines)
    return 0


CONTESTANTS = ("pages", "8 bits", "PyTorch")


class State:
    """Arrays of one size, and calls over them.

    Args:
        torch: PyTorch.
        device: where they are.
        batch: sequences.
        length: keys of each.
    """

    def __init__(self, torch: Any, device: str, batch: int, length: int) -> None:
        self.torch, self.device = torch, device
        most = length // PAGE
        kind = torch.bfloat16
        self.k_pages, self.v_pages = (
            torch.randn(batch * most, PAGE, GROUPS, SIZE, device=device).to(kind) for _ in range(2)
        )
        self.narrow = [one.to(torch.float8_e4m3fn) for one in (self.k_pages, self.v_pages)]
        self.table = torch.randperm(batch * most, device=device).reshape(batch, most).int()
        self.lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        self.q = torch.randn(batch, HEADS, 1, SIZE, device=device).to(kind)
        shape = batch, length, GROUPS, SIZE
        self.k, self.v = (
            one[self.table.long()].reshape(shape).transpose(1, 2).contiguous() for one in (self.k_pages, self.v_pages)
        )
        self.bytes = 2 * self.k.nbytes
        self.moved = self.bytes if device == "cpu" else 2 * self.k.nbytes
        self.room = torch.empty_like(self.k)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Return what is measured."""
        functional = self.torch.nn.functional
        tables = self.table, self.lengths
        copy = (lambda: self.k.sum() + self.v.sum()) if self.device == "cpu" else (lambda: self.room.copy_(self.k))
        return {
            "pages": lambda: op.paged_attention(self.q, self.k_pages, self.v_pages, *tables),
            "8 bits": lambda: op.paged_attention(self.q, *self.narrow, *tables),
            "PyTorch": lambda: functional.scaled_dot_product_attention(self.q, self.k, self.v, enable_gqa=True),
            "copy": copy,
        }

    def wrong(self) -> str:
        """Return which result is off, nothing where none is."""
        q = self.q.double().reshape(self.q.shape[0], GROUPS, -1, SIZE)
        weights = self.torch.softmax(q @ self.k.double().transpose(-1, -2) * SIZE**-0.5, -1)
        exact = (weights @ self.v.double()).reshape(self.q.shape)
        for name, allowed in (("pages", ERROR), ("8 bits", 4 * ERROR)):
            off = float((self.calls()[name]().double() - exact).abs().max() / exact.abs().max())
            if not off < allowed:
                return f"{name}: off by {off:.2e}"
        return ""

    def times(self, turns: int) -> dict[str, float]:
        """Return the seconds of each call."""
        if self.device == "cpu":
            return in_turns(self.calls(), turns)
        return Timer(self.torch, 0.05).flushed_in_turns(self.calls(), turns)


if __name__ == "__main__":
    raise SystemExit(main())
