"""Measures what the choice of plans costs: the chosen schedule of a product beside others that it was chosen from.

    python benchmarks/regret.py --seed 7 [--count 60] [--most 16] [--jobs 8] [--turns 3] [--family gemm batched]
                                [--csv regret.csv]

Works are those of `sweep.py`. Of the schedules that the model ranks for a product, the first ones of each tile are
measured (`--most` in all), in turns with PyTorch's product, single calls after a flush of L2. The regret of a work is
the time of the chosen schedule by that of the fastest measured one, less 1. Every result is compared with float64; one
that is wrong, or a process that fails, makes the exit status 1. `--jobs` processes compile at the same time, of which
only one measures.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

from foundation import torch_or_none
from gemm_timing import Timer
from gemm_works import Operands, WrongResult, check
from sweep_setup import SETUPS, Maker
from sweep_works import LIMITS, Work, drawn, sample

from tessera.ops.linalg import prepare
from tessera.ops.linalg.gemm import Gemm
from tessera.ops.linalg.plan import Plan, plan, ranked
from tessera.ops.linalg.problem import Forced, Problem
from tessera.target.records import TargetRecord

TURN_S = 0.012
OF_A_TILE = 3
"""Schedules of one tile that are measured."""
PREDICTED = 4.0
"""By how much a schedule that is measured may take longer than the first one, by the model."""


@dataclass(frozen=True)
class Row:
    """What was measured of one schedule of a work.

    Args:
        number: of the work.
        work: the work in words.
        schedule: the schedule in words.
        predicted: seconds by the model.
        seconds: measured.
        peer: seconds of PyTorch's product.
        chosen: whether it is the plan's choice.
    """

    number: int
    work: str
    schedule: str
    predicted: float
    seconds: float
    peer: float
    chosen: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args, torch = parsed(arguments), torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("needs PyTorch and a GPU", file=sys.stderr)
        return 2
    context = multiprocessing.get_context("spawn")
    compiled, measuring = context.Barrier(args.jobs), context.Lock()
    found: Any = context.Queue()
    shares = [(args, job, compiled, measuring, found) for job in range(args.jobs)]
    workers = [context.Process(target=measured_share, args=share) for share in shares]
    for worker in workers:
        worker.start()
    rows, faults = list[Row](), list[str]()
    for _ in workers:
        for one in iter(found.get, None):
            (faults if isinstance(one, str) else rows).append(one)
    for worker in workers:
        worker.join()
        if worker.exitcode:
            faults.append(f"a process ended with status {worker.exitcode}: its works are missing")
    if args.csv:
        with args.csv.open("w", newline="") as out:
            lines = csv.writer(out)
            lines.writerow(Row.__annotations__)
            lines.writerows([getattr(row, name) for name in Row.__annotations__] for row in rows)
    printed(rows)
    for fault in faults:
        print(fault)
    return int(bool(faults) or not rows)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=60, help="works to measure")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these works of the sample")
    parser.add_argument("--family", nargs="+", choices=("gemm", "batched"), default=("gemm", "batched"))
    parser.add_argument("--most", type=int, default=16, help="schedules of a work")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--csv", type=Path, help="file for the results")
    return parser.parse_args(arguments)


def works(args: argparse.Namespace) -> list[Work]:
    """Return the works that the options ask for."""
    limits = LIMITS["cuda"]
    if args.only:
        return [drawn(args.seed, number, limits) for number in args.only]
    return list(itertools.islice(sample(args.seed, limits, args.family), args.count))


def measured_share(args: argparse.Namespace, job: int, compiled: Any, measuring: Any, found: Any) -> None:
    """Compile the schedules of each `jobs`-th work; when all processes have, measure them one process at a time."""
    import torch

    torch.set_grad_enabled(False)
    try:
        schedules = [Schedules(torch, work, args) for work in works(args)[job :: args.jobs]]
        compiled.wait()
        for each in schedules:
            for fault in each.faults:
                found.put(fault)
            with measuring:
                for row in each.measured():
                    found.put(row)
    except BaseException:
        compiled.abort()  # or the others would wait
        raise
    finally:
        found.put(None)


class Schedules:
    """The schedules of a work.

    Args:
        torch: PyTorch.
        work: the work.
        args: the options.
    """

    def __init__(self, torch: Any, work: Work, args: argparse.Namespace):
        """Compile them, and compare their results."""
        self.torch, self.work, self.args = torch, work, args
        torch.manual_seed(work.number)
        setup, plans = self._setup(), list[Plan]()
        expected = setup.expected().to(setup.out.dtype).double()
        self.calls: list[tuple[Plan, Gemm]] = []
        self.faults: list[str] = []

        def noted(problem: Problem, target: TargetRecord, forced: Forced) -> Plan:
            chosen = plan(problem, target, forced)
            plans.append(chosen)
            plans.extend(itertools.islice(others(chosen, ranked(problem, target)), args.most - 1))
            return chosen

        with mock.patch.object(prepare, "plan", noted):
            bound(Gemm(work.kind == "bmm"), setup)()
        for each in plans:
            call = Gemm(work.kind == "bmm")
            with mock.patch.object(prepare, "plan", lambda *_, each=each: each):
                try:
                    self._checked(call, setup, expected)
                except WrongResult as error:
                    self.faults.append(f"[{work.number}] {work.name}: {each}: {error}")
                    continue
            self.calls.append((each, call))
        self.chosen = plans[0]
        del setup, expected
        torch.cuda.empty_cache()

    def _setup(self) -> Any:
        return SETUPS[self.work.family](Maker(self.torch, self.work, "cuda"))

    def _checked(self, call: Gemm, setup: Any, expected: Any) -> None:
        of = Operands(None, None, setup.out)
        run = bound(call, setup)
        check(self.torch, "tessera", lambda: (run(), setup.out)[1], of, expected, setup.tolerance)

    def measured(self) -> Iterator[Row]:
        """Yield what each of them takes."""
        setup = self._setup()
        contestants = {str(place): bound(call, setup) for place, (_, call) in enumerate(self.calls)}
        timer = Timer(self.torch, TURN_S)
        for call in contestants.values():  # those that come first are no slower for it
            timer.flushed(call, 0.0)
        seconds = timer.flushed_in_turns(contestants | setup.peers, self.args.turns)
        peer = min(seconds[name] for name in setup.peers)
        for place, (schedule, _) in enumerate(self.calls):
            words, taken = str(schedule).replace(" predicted", ""), seconds[str(place)]
            chosen = schedule is self.chosen
            yield Row(self.work.number, self.work.name, words, schedule.seconds, taken, peer, chosen)
        del setup, contestants
        self.torch.cuda.empty_cache()


def bound(call: Gemm, setup: Any) -> Any:
    """Return a call on the operands of a setup: those of its own product."""
    a, b = setup.written[1]
    return lambda: call(a, b, out=setup.out)


def others(chosen: Plan, plans: Sequence[Plan]) -> Iterator[Plan]:
    """Yield schedules beside the chosen one, the first of each tile by the model."""
    taken = dict[Any, int]()
    for each in plans:
        tile = each.path, each.block_m, each.block_n, each.turned, each.pack_a, each.pack_b
        taken[tile] = taken.get(tile, 0) + 1
        same = (str(each), each.pack_a, each.pack_b) == (str(chosen), chosen.pack_a, chosen.pack_b)
        if not same and taken[tile] <= OF_A_TILE and each.seconds <= PREDICTED * chosen.seconds:
            yield each


def printed(rows: Sequence[Row]) -> None:
    """Print the regret of each work whose chosen schedule is right, the largest last."""
    regrets = list[float]()
    outcomes = list[tuple[float, str]]()
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.number, []).append(row)
    right = [group for group in groups.values() if group[0].chosen]
    if not right:
        return
    for group in right:
        chosen, best = group[0], min(group, key=lambda row: row.seconds)
        regret = chosen.seconds / best.seconds - 1
        regrets.append(regret)
        line = f"[{chosen.number}] {chosen.work}: regret {regret:.0%}, {chosen.peer / chosen.seconds:.2f} of PyTorch"
        line += f" ({chosen.peer / best.seconds:.2f} at best), {1e6 * chosen.seconds:.1f} µs by {chosen.schedule}"
        outcomes.append((regret, line + (f"; {1e6 * best.seconds:.1f} µs by {best.schedule}" if regret else "")))
    for _, line in sorted(outcomes):
        print(line)
    ratio = math.exp(mean(math.log(group[0].peer / group[0].seconds) for group in right))
    summary = f"regret {mean(regrets):.1%} in the mean, {max(regrets):.0%} at most; {ratio:.2f} of PyTorch"
    print(f"{len(regrets)} works, {len(rows)} schedules: {summary}")


if __name__ == "__main__":
    raise SystemExit(main())
