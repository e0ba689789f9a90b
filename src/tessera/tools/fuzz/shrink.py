"""Makes a failing program smaller as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tessera.tools.fuzz import serial, tree
from tessera.tools.fuzz.run import Outcome
from tessera.tools.fuzz.shrink_edits import check_types, edits, size
from tessera.tools.fuzz.source import source
from tessera.tools.fuzz.types import TreeError

Check = Callable[[tree.Program], Outcome]
"""Runs a program and says what came of it; see `isolate`."""


@dataclass(frozen=True)
class Shrunk:
    """What a program was made of.

    Args:
        program: the smallest one found.
        outcome: what comes of it.
        tried: programs that were run.
        complete: whether no edit makes it smaller, rather than that the time was over.
    """

    program: tree.Program
    outcome: Outcome
    tried: int
    complete: bool


def likeness(outcome: Outcome) -> tuple[str, str, str]:
    """Return what two outcomes share that show one fault."""
    first = outcome.detail.split("\n")[0] if outcome.kind == "error" else ""
    # Errors name what differs from program to program after a colon, in quotes or as numbers.
    return outcome.kind, outcome.code, "".join(c for c in first.split("'")[0] if not c.isdigit())[:60]


def shrink(program: tree.Program, check: Check, seconds: float = 60.0) -> Shrunk:
    """Return the smallest program that fails in the same way, as far as single edits and the time allow.

    Args:
        program: a program that fails.
        check: runs a program.
        seconds: when to stop.
    """
    outcome, deadline, tried = check(program), time.monotonic() + seconds, 1
    wanted = likeness(outcome)
    seen, start, smaller = {program}, 0, outcome.failed
    while smaller:
        options, smaller = list(edits(program)), False
        for number in range(len(options)):
            if time.monotonic() > deadline:
                return Shrunk(program, outcome, tried, False)
            # What follows the last success comes first: what was tried before it seldom works now.
            at = (start + number) % len(options)
            candidate = _made(options[at])
            if candidate is None or candidate in seen or size(candidate) > size(program):
                continue
            seen.add(candidate)
            found, tried = check(candidate), tried + 1
            if found.failed and likeness(found) == wanted:
                program, outcome, start, smaller = candidate, found, at, True
                break
    return Shrunk(program, outcome, tried, outcome.failed)


def _made(edit: Callable[[], tree.Program]) -> tree.Program | None:
    """Return the program of an edit, None where it is none of the language."""
    try:
        program = edit()
        check_types(program)
    except (TreeError, ValueError, KeyError, IndexError, StopIteration, AssertionError):
        return None
    return program


def report(shrunk: Shrunk, level: str) -> str:
    """Return a minimal program as a Python file that says what is wrong with it."""
    outcome = shrunk.outcome
    head = [f"seed {outcome.seed}: {outcome.kind} {outcome.code}".rstrip(), *outcome.detail.split("\n")]
    if level:
        head.append(f"level: {level}")
    head.append(f"{'minimal' if shrunk.complete else 'smaller'} after {shrunk.tried} programs")
    for param in shrunk.program.params:
        if isinstance(param, tree.Tensor):
            head.append(f"{param.name}: shape {param.shape}, {param.contents}, {param.layout}")
        elif isinstance(param, tree.ScalarParam):
            head.append(f"{param.name} = {param.value}")
    head.append(f"profile {shrunk.program.profile}")
    comment = "\n".join(f"# {line}".rstrip() for line in head)
    return f"{comment}\n{source(shrunk.program)}"


def save(text: str, program: tree.Program, folder: Path) -> Path:
    """Write a report to a folder, and beside it the program as JSON, which `tessera fuzz --replay` runs."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed_{program.seed}.py"
    path.write_text(text, encoding="utf-8")
    path.with_suffix(".json").write_text(serial.dumps(program) + "\n", encoding="utf-8")
    return path
