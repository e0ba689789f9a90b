"""Measures matrix products on a GPU beside cuBLAS, Triton and torch.compile: one process, in turns, results checked.

    python benchmarks/gemm.py [--only bf16 fp8] [--shapes 4096 8192x8192x1024] [--layouts NN TT] [--turns 3]
                              [--peers cublas triton compile] [--csv results.csv] [--quick]

Sections: bf16 over ten shapes and four transposes; fp8 at the large shapes; f16, tf32 and int8 at 4096³; f32 without
matrix units over seven shapes; a linear layer with bias and GELU; a product and a residual; the first half of a gated
MLP (two products that share an operand); a product whose left operand is dequantised from int8 on its way. Peers are
cuBLAS and cuBLASLt through PyTorch, a persistent TMA kernel in Triton (`gemm_triton.py`), and, where asked for,
torch.compile on a few works (`max-autotune-no-cudagraphs`, tens of seconds each).

Every contestant first computes into a poisoned output, and its result is compared with float64; a wrong result is not
timed, and the run ends with status 1. Then they take turns, A, B, A, B, and are timed both ways that `gemm_timing.py`
explains. The ratio that counts, above 1 when Tessera is faster, is of single calls after a flush of L2, the way of
`triton.testing.do_bench`. `replayed` is the ratio of launches in a CUDA graph over operands that are not in L2, back to
back, where large products run into the power limit; a note says where a contestant cannot be captured. The last table
has geometric means and minima beside the bars. The exit status does not depend on the ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gemm_report as report
from gemm_timing import Timer, sets_for
from gemm_works import (
    LAYOUTS,
    PRODUCTS,
    SECTIONS,
    Call,
    Operands,
    Shape,
    Work,
    WrongResult,
    check,
    compiled,
    library,
    operands,
    ours,
    reference,
    works,
)
from rich.console import Console

import tessera as ts

TRITON = (*(section for section in PRODUCTS if section != "f32"), "linear")
"""Sections that Triton's kernel computes: its products of f32 are in tf32."""
PEERS = ("cublas", "triton", "compile")
TURN_S = 0.1
QUICK_TURN_S = 0.05
TUNING_S = 0.02
"""Seconds for each of Triton's configurations."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parsed(arguments)
    chosen = works(args.only, args.shapes, args.layouts)
    if not chosen:
        print("no work has that section, shape and layout", file=sys.stderr)
        return 1
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed, and there is no peer without it", file=sys.stderr)
        return 1
    import torch

    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    console = Console()
    console.width = max(console.width, 140)  # a pipe has none
    bench = Bench(torch, Timer(torch, QUICK_TURN_S if args.quick else TURN_S), args.peers, args.turns)
    failures: list[str] = []
    for work in chosen:
        # cuBLAS is to do what the section's name says.
        torch.set_float32_matmul_precision("highest" if work.section == "f32" else "high")
        try:
            bench.measure(work)
        except (WrongResult, ts.errors.TesseraError) as error:
            # The other works are worth measuring all the same.
            failures.append(f"{work.name}: {error}")
            print(failures[-1], file=sys.stderr, flush=True)
        for line in bench.progress(work):
            print(line, file=sys.stderr, flush=True)
    console.print(report.table_of(bench.rows))
    console.print(*bench.notes, sep="\n", markup=False, highlight=False)
    console.print(report.summary_table(bench.rows))
    console.print(*failures, sep="\n", markup=False, highlight=False)
    if args.csv:
        report.write_csv(bench.rows, args.csv)
    return 1 if failures else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, `--quick` worked into them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION")
    parser.add_argument("--shapes", nargs="+", type=shape_of, help="MxNxK, or N for a cube")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, help="of sections that have several")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=("cublas", "triton"))
    parser.add_argument("--turns", type=int, help="turns of each contestant")
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--quick", action="store_true", help="NN only, two turns, each half as long")
    args = parser.parse_args(arguments)
    args.layouts = args.layouts or (("NN",) if args.quick else LAYOUTS)
    args.turns = args.turns or (2 if args.quick else 3)
    return args


def shape_of(text: str) -> Shape:
    """Return M, N and K from `8192x8192x1024` or `4096`."""
    sizes = tuple(int(part) for part in text.split("x"))
    if len(sizes) not in (1, 3) or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither MxNxK nor N")
    m, n, k = sizes if len(sizes) == 3 else sizes * 3
    return m, n, k


class Bench:
    """Collects rows, and notes on who could not take part and why."""

    def __init__(self, torch: Any, timer: Timer, peers: Sequence[str], turns: int):
        """Make an empty collection.

        Args:
            torch: PyTorch.
            timer: times calls.
            peers: kinds of peers that take part.
            turns: turns of each contestant.
        """
        self.torch = torch
        self.timer = timer
        self.peers = peers
        self.turns = turns
        self.rows: list[report.Row] = []
        self.notes: list[str] = []
        self._triton = self._triton_peer() if "triton" in peers else None

    def measure(self, work: Work) -> None:
        """Check and time one work.

        Raises:
            WrongResult: a contestant's result is not the reference.
        """
        first = operands(self.torch, work, "cuda")
        count = sets_for(first.bytes, self.timer.cache_bytes)
        sets = [first, *(operands(self.torch, work, "cuda") for _ in range(count - 1))]
        expected = reference(self.torch, work, first)
        contestants = self._contestants(work, sets)
        if self._triton is not None and (work.section in TRITON):
            self._add_triton(work, sets, expected, contestants)
        for name, calls in contestants.items():
            # A peer may round between its kernels; ours rounds once.
            roundings = 1 if name == "tessera" else 3
            check(self.torch, name, calls[0], first, expected, work.tolerance, roundings)
        del expected
        seconds, notes = self.timer.measured(contestants, self.turns)
        self.notes += [f"{work.name}: {note}" for note in notes]
        own = seconds.pop("tessera")
        self.rows += [report.Row(work, peer, own, theirs) for peer, theirs in seconds.items()]

    def progress(self, work: Work) -> list[str]:
        """Return what is known of a work, a line for each peer: a run that is cut short has said something."""
        return [
            f"{row.work.name}: {row.ratio:.3f} of {row.peer} ({report.ratio_text(row.replayed_ratio)} replayed)"
            for row in self.rows
            if row.work == work
        ]

    def _contestants(self, work: Work, sets: Sequence[Operands]) -> dict[str, list[Call]]:
        ways: dict[str, Callable[[Operands], Call]] = {"tessera": ours(work)}
        if "cublas" in self.peers:
            ways |= library(self.torch, work)
        if "compile" in self.peers:
            ways |= compiled(self.torch, work)
        return {name: [way(of) for of in sets] for name, way in ways.items()}

    def _add_triton(
        self, work: Work, sets: Sequence[Operands], expected: Any, contestants: dict[str, list[Call]]
    ) -> None:
        from gemm_triton import Unsupported

        def right(config: Any, call: Call) -> bool:
            try:
                check(self.torch, f"Triton {config}", call, sets[0], expected, work.tolerance)
            except WrongResult as error:
                self.notes.append(f"{work.name}: left out: {error}")
                return False
            return True

        try:
            self._triton.tune(sets[0].a, sets[0].b, sets[0].out, (*sets[0].more, None)[0], right)
        except Unsupported as reason:
            self.notes.append(f"{work.name}: no Triton: {reason}")
            return
        contestants["Triton"] = [self._triton.bound(of.a, of.b, of.out, *of.more) for of in sets]

    def _triton_peer(self) -> Any:
        if importlib.util.find_spec("triton") is None:
            self.notes.append("Triton is not installed: measured without it")
            return None
        from gemm_triton import Peer

        return Peer(lambda call: self.timer.flushed(call, TUNING_S))


if __name__ == "__main__":
    raise SystemExit(main())
