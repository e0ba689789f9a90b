"""Measures works drawn at random beside the best of PyTorch: products, rows, reductions, moves, attention of any size.

    python benchmarks/sweep.py --seed 7 [--count 150] [--family gemm rows] [--device cuda] [--minutes 4]
                               [--turns 2] [--compile] [--minimum] [--jobs 8] [--csv sweep.csv]
    python benchmarks/sweep.py --seed 7 --only 31

Sizes are uniform in their logarithm, half of the works have odd, prime or otherwise ugly ones; some tensors start off a
multiple of 16 bytes or have padded rows. Kernels are plain tile code (`sweep_kernels.py`) and the library's products.
Peers are PyTorch's ways to do the same (cuBLAS, cuDNN, FlashAttention and its own kernels; `--compile` adds
`torch.compile`, seconds a work). Every result is compared with float64 before contestants are timed in turns, on a GPU
after a flush of L2; a peer that is wrong or does not take the work takes no part, and the fastest of the others counts.

Ratios are above 1 where Tessera is faster. A work whose result is wrong, or which raises, counts as 0, with the line
that runs it again, and makes the exit status 1. Works that no peer takes have no ratio. `of copy` is the rate of works
bound by memory, as a part of that of a copy of as many bytes. On a CPU whose cores other processes use, PyTorch's
threads wait for each other: `TESSERA_NUM_THREADS=1` gives every contestant one thread, `--minimum` judges the fastest
calls. `--jobs` processes run each of `--count` works once before, so that their code is in the cache on disk; what a
first call takes is then no compile time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import sweep_report as report
from cpu import in_turns, keep_freed_memory, turn_seconds
from foundation import in_processes, torch_or_none
from gemm_timing import Timer
from gemm_works import Operands, WrongResult, check
from rich.console import Console
from sweep_report import Outcome
from sweep_setup import SETUPS, Call, Maker, Setup
from sweep_works import FAMILIES, LIMITS, Work, drawn, sample

from tessera.runtime.pool import thread_count

TURN_S = {"cuda": 0.03, "cpu": 0.02}
ROUNDINGS_OF_PEERS = 3
"""Peers round what they store between their kernels."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parsed(arguments)
    torch = torch_or_none()
    if torch is None or (args.device == "cuda" and not torch.cuda.is_available()):
        print("needs PyTorch" + ("" if args.device == "cpu" else " and a GPU, or --device cpu"), file=sys.stderr)
        return 2
    if args.jobs:
        in_processes(compiled_share, args, args.jobs)
    torch.set_grad_enabled(False)
    if args.device == "cpu":
        keep_freed_memory()  # PyTorch's functions allocate their results
        torch.set_num_threads(thread_count())
    bench = Bench(torch, args)
    outcomes: list[Outcome] = []
    end = time.monotonic() + 60 * args.minutes if args.minutes else None
    for work in chosen(args):
        if end is not None and time.monotonic() + bench.longest_s > end:
            print(f"{args.minutes} minutes are over", file=sys.stderr)
            break
        outcomes.append(bench.measured(work))
        print(f"{len(outcomes)} {report.line_of(outcomes[-1])}", file=sys.stderr, flush=True)
        if bench.lost():
            print(f"the device is lost; go on with --first {work.number + 1}", file=sys.stderr)
            break
    console = Console()
    console.width = max(console.width, 140)  # a pipe has none
    report.printed(console, outcomes, args)
    if args.csv:
        report.write_csv(outcomes, args.csv)
    return 1 if any(outcome.error for outcome in outcomes) else 0


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=150, help="works to run")
    parser.add_argument("--first", type=int, default=0, help="number of the first work")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these works of the sample")
    parser.add_argument("--family", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--device", choices=tuple(LIMITS), default="cuda")
    parser.add_argument("--minutes", type=float, help="start no work that would not end in time")
    parser.add_argument("--turns", type=int, default=2, help="turns of each contestant")
    parser.add_argument("--minimum", action="store_true", help="fastest call instead of the median: for a busy CPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile is a peer too")
    parser.add_argument("--jobs", type=int, help="processes that compile all works before")
    parser.add_argument("--csv", type=Path, help="file for the results")
    return parser.parse_args(arguments)


def chosen(args: argparse.Namespace) -> Iterator[Work]:
    """Yield the works that the options ask for."""
    limits = LIMITS[args.device]
    if args.only is not None:
        yield from (drawn(args.seed, number, limits) for number in args.only)
    else:
        yield from itertools.islice(sample(args.seed, limits, args.family, args.first), args.count)


def compiled_share(args: argparse.Namespace, job: int) -> None:
    """Run each `jobs`-th work once; those that fail do so again where they are measured."""
    bench = Bench(torch_or_none(), args)
    for work in itertools.islice(chosen(args), job, None, args.jobs):
        with contextlib.suppress(Exception):
            SETUPS[work.family](Maker(bench.torch, work, args.device)).ours()
            bench.finish()


class DeviceLost(Exception):
    """The device takes no more work."""


def first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]


class Bench:
    """Runs works.

    Args:
        torch: PyTorch.
        args: the options.
    """

    def __init__(self, torch: Any, args: argparse.Namespace):
        """Start the clock of a GPU."""
        self.torch, self.args, self.device = torch, args, args.device
        self.timer = Timer(torch, TURN_S["cuda"]) if self.device == "cuda" else None
        self.longest_s = 0.0

    def measured(self, work: Work) -> Outcome:
        """Set a work up, check the results and time it; what goes wrong is told, not raised."""
        start = time.monotonic()
        self.torch.manual_seed(work.number)
        try:
            return self._measured(work)
        except Exception as error:  # whatever it is, the other works are worth measuring
            return Outcome(work, error=f"{type(error).__name__}: {first_line(error)}")
        finally:
            if self.device == "cuda" and not self.lost():
                self.torch.cuda.empty_cache()
            self.longest_s = max(self.longest_s, time.monotonic() - start)

    def lost(self) -> bool:
        """Whether the device takes no more work, as after an access to an illegal address."""
        if self.device == "cpu":
            return False
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _measured(self, work: Work) -> Outcome:
        setup = SETUPS[work.family](Maker(self.torch, work, self.device))
        start = time.monotonic()
        setup.ours()
        self.finish()
        first_s = time.monotonic() - start
        # Rounded as results are: below the normal numbers of f16 a rounding is more than the tolerance.
        expected = setup.expected().to(setup.out.dtype).double()
        of = Operands(None, None, setup.out)

        def ours() -> Any:
            setup.ours()
            return setup.compared(setup.out)

        check(self.torch, "tessera", ours, of, expected, setup.tolerance, setup.roundings)
        contestants, notes = self._peers(setup, of, expected)
        del expected
        contestants["tessera"] = setup.ours
        if not work.flops:
            source, target = (
                self.torch.empty(work.bytes // 2, dtype=self.torch.int8, device=self.device) for _ in "ab"
            )
            contestants["copy"] = lambda: target.copy_(source)
        return Outcome(work, self._timed(contestants), first_s, notes)

    def _peers(self, setup: Setup, of: Operands, expected: Any) -> tuple[dict[str, Call], tuple[str, ...]]:
        """Return the peers that take the work and are right, and a note for each of the others."""
        peers, notes = dict(setup.peers), list[str]()
        if self.args.compile:
            self.torch.compiler.reset()
            function, arguments = setup.written
            program = self.torch.compile(function, dynamic=False)
            peers["torch.compile"] = lambda: program(*arguments)
        compared = setup.compared_peer or setup.compared
        for name, call in list(peers.items()):

            def result(call: Call = call) -> Any:
                return compared(call())

            try:
                check(self.torch, name, result, of, expected, setup.tolerance, ROUNDINGS_OF_PEERS)
            except (WrongResult, RuntimeError, TypeError, ValueError) as error:
                if self.lost():
                    raise DeviceLost(f"by the peer {name}") from error
                notes.append(f"{name}: {first_line(error)}")
                del peers[name]
        return peers, tuple(notes)

    def _timed(self, calls: dict[str, Call]) -> dict[str, float]:
        """Return the seconds of each contestant, in turns."""
        if self.timer is not None:
            return self.timer.flushed_in_turns(calls, self.args.turns)
        pick = min if self.args.minimum else median
        return in_turns(calls, self.args.turns, TURN_S["cpu"], turn_seconds, pick)

    def finish(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()


if __name__ == "__main__":
    raise SystemExit(main())
