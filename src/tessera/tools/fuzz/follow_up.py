"""What is said of a failure: the smallest program that shows it, and the step of the compiler that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.campaign import Isolated, Job
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.run import Outcome
from tessera.tools.fuzz.shrink import likeness, report, save, shrink

MOST = 5
"""Failures that are looked into: those of one kind seldom show several faults."""


def follow_up(failures: Sequence[Outcome], job: Job, seconds: float, folder: Path | None) -> Iterator[str]:
    """Yield a report for each failure that differs from the others by more than its program.

    Args:
        failures: what a campaign found.
        job: what the campaign did.
        seconds: for how long to make one program smaller.
        folder: where minimal programs are written; None for nowhere.
    """
    kinds: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in failures:
        kinds.setdefault(likeness(outcome), []).append(outcome)
    # One of each kind first: two mismatches may well be one fault.
    rounds = sorted((number, outcome.seed) for found in kinds.values() for number, outcome in enumerate(found))
    for _, seed in rounds[:MOST]:
        yield "\n" + explained(generate(seed, job.options), job, seconds, folder)


def explained(program: tree.Program, job: Job, seconds: float, folder: Path | None = None) -> str:
    """Return the report of a failing program: its smallest form, and the step that is wrong.

    Args:
        program: the program.
        job: what was done with it.
        seconds: for how long to make it smaller.
        folder: where the smallest form is written; None for nowhere.
    """
    job = replace(job, coverage=False, metamorphic=1.0 if job.metamorphic else 0.0)
    check = Isolated(job)
    shrunk = shrink(program, check, seconds)
    check.close()
    if not shrunk.outcome.failed:
        return f"seed {program.seed}: it did not fail again ({shrunk.outcome.kind})"
    steps = Isolated(replace(job, steps=True), timeout=60.0)
    text = report(shrunk, steps(shrunk.program).detail)
    steps.close()
    return text if folder is None else f"{save(text, shrunk.program, folder)}\n{text}"
