"""Runs the litmus tests of the memory model many times, on CPUs and on a GPU.

    python benchmarks/litmus.py [--device cuda] [--tries 100000000] [--only MP SB]

For each test it prints how many tries had the outcome that the test is about: none may where the memory model forbids
it; where it is allowed, a number above zero shows that this machine does it, so that the test can fail.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from litmus_kernels import Litmus, all_tests, run

import tessera as ts

WIDE_SHARE = 20
"""Tries at a tile take so much longer than at an element that there are fewer of them."""
CALLS_ALONE = 3
"""Calls of a size whose programs a CPU runs one after the other, to measure them."""


@dataclass(frozen=True)
class Plan:
    """How the tries of a test are divided.

    Args:
        device: where.
        groups: groups of programs at a time.
        tries: tries of each in a launch.
        launches: launches.
    """

    device: str
    groups: int
    tries: int
    launches: int


def plan_of(test: Litmus, device: str, wanted: int) -> Plan:
    """Return launches of as many tries as memory holds well, on all multiprocessors of a GPU or threads of a CPU."""
    total = wanted // WIDE_SHARE if test.wide else wanted
    groups = ts.runtime.capabilities("ptx")["multiprocessors"] // test.roles if device != "cpu" else 1
    launch = 1 << (13 if test.wide else 20 if device != "cpu" else 17)
    tries = max(min(total, launch) // groups, 1)
    return Plan(device, groups, tries, max(total // (groups * tries), 1))


def count(test: Litmus, plan: Plan) -> tuple[int, int]:
    """Return how many tries there were and how many had the outcome."""
    hits = 0
    for _ in range(CALLS_ALONE if plan.device == "cpu" else 0):
        run(test, plan.groups, plan.tries, plan.device)
    for _ in range(plan.launches):
        hits += int(test.hits(run(test, plan.groups, plan.tries, plan.device)).sum())
    return plan.groups * plan.tries * plan.launches, hits


def main() -> int:
    """Run the tests; the exit status is 1 where something forbidden happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tries", type=int, default=10**8)
    parser.add_argument("--only", nargs="*", default=[], help="words that the names of tests begin with")
    given = parser.parse_args()
    failed = 0
    print(f"{'test':34}{'tries':>12}{'outcomes':>12}  {'model':10}{'seconds':>8}")
    for test in all_tests():
        if given.only and not test.name.startswith(tuple(given.only)):
            continue
        start = time.perf_counter()
        tries, hits = count(test, plan_of(test, given.device, given.tries))
        failed += test.forbidden and hits > 0
        model = "forbidden" if test.forbidden else "allowed"
        print(f"{test.name:34}{tries:>12}{hits:>12}  {model:10}{time.perf_counter() - start:>8.1f}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
