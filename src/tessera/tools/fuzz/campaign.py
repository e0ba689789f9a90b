"""Runs many programs in worker processes, so that a crash or a hang costs one program."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tessera.tools.fuzz import levels, tree
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.measure import MEASURE
from tessera.tools.fuzz.patience import Patience
from tessera.tools.fuzz.run import Device, Outcome
from tessera.tools.fuzz.types import TreeError

PROGRAMS_PER_WORKER = 400
"""A worker is replaced after so many, so that what JIT compilation keeps is given back."""

_CLEAN_EVERY = 20


@dataclass(frozen=True)
class Job:
    """What the workers of a campaign do.

    Args:
        device: where programs run.
        options: what the generator draws.
        coverage: whether outcomes say what their programs reach.
        metamorphic: share of the programs that are run in a second way when they are right.
        steps: say, instead of running programs, after which step of the compiler they change their meaning.
    """

    device: Device
    options: Options
    coverage: bool = True
    metamorphic: float = 0.0
    steps: bool = False


def one(given: int | tree.Program, job: Job, folder: Path) -> Outcome:
    """Run and compare a program, or that of a seed."""
    from dataclasses import replace

    from tessera.tools.fuzz.coverage import reached
    from tessera.tools.fuzz.generate import generate
    from tessera.tools.fuzz.run import check

    started = time.perf_counter()
    program = generate(given, job.options) if isinstance(given, int) else given
    if job.steps:
        from tessera.tools.fuzz.threads import wrong_level

        return Outcome(program.seed, "compiled", detail=wrong_level(program, folder))
    if job.device.kind == "passes":
        from tessera.tools.fuzz.steps import checked

        outcome = checked(program, folder, job.device.targets)
    elif job.device.kind == "races":
        from tessera.tools.fuzz.threads import raced

        outcome = raced(program, folder, job.device.targets)
    elif job.device.kind == "threads":
        from tessera.tools.fuzz.threads import computed

        outcome = computed(program, folder, job.device.targets)
    elif job.device.kind == "ptx":
        from tessera.tools.fuzz.ptx import emulated

        outcome = emulated(program, folder, job.device.targets)
    else:
        outcome = check(program, job.device, folder, time.perf_counter() - started)
    if outcome.kind == "same" and random.Random(~program.seed).random() < job.metamorphic:
        from tessera.tools.fuzz.metamorphic import varied

        outcome = varied(program, job.device, folder) or outcome
    knobs = tuple(f"{name}={value}" for name, value in program.knobs)
    return replace(outcome, reached=reached(program), knobs=knobs) if job.coverage else outcome


def _made(given: int | tree.Program, job: Job, folder: Path) -> Outcome:
    if isinstance(given, int):
        return one(given, job, folder)
    try:
        return one(given, job, folder)
    except (TreeError, LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
        # What is left of a program may use names that nothing binds: it has no meaning.
        return Outcome(given.seed, "skipped", detail=f"no program: {type(error).__name__}: {error}")


def _worker(connection: Connection, job: Job, folder: str) -> None:
    """Serve seeds until the parent closes the connection."""
    os.environ["TESSERA_CACHE_DIR"] = str(Path(folder) / "cache")
    if job.device.kind == "interp":
        os.environ["TESSERA_INTERPRET"] = "1"
    if job.device.kind == "cuda":
        _import_torch()
    if job.device.kind == "cpu" and job.device.target:
        levels.use(job.device.target)
    from tessera.tools.fuzz.measure import start_measuring, stop_measuring

    measuring = start_measuring()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print is theirs
    done = 0
    while True:
        try:
            given = connection.recv()
        except EOFError:
            stop_measuring(measuring)
            return
        try:
            outcome = _made(given, job, Path(folder))
        except Exception:  # the fuzzer itself may fail in any way: reported, and hours of other programs go on
            seed = given if isinstance(given, int) else given.seed
            outcome = Outcome(seed, "error", "fuzzer", traceback.format_exc())
        try:
            connection.send(outcome)
        except BrokenPipeError:
            return
        done += 1
        if done % _CLEAN_EVERY == 0:
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(parents=True, exist_ok=True)


def _import_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is not None:
        importlib.import_module("torch")


class _Process:
    """A worker and the seed it works on."""

    def __init__(self, job: Job, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        folder.mkdir(parents=True, exist_ok=True)
        self._process = context.Process(target=_worker, args=(theirs, job, str(folder)), daemon=True)
        self._process.start()
        theirs.close()
        self.patience = Patience(self._process.pid or 0)
        self.seed: int | None = None
        self.ended = False
        self.done = 0

    def give(self, given: int | tree.Program) -> None:
        self.seed = given if isinstance(given, int) else given.seed
        self.patience.start()
        self.connection.send(given)

    def is_spent(self, outcome: Outcome, job: Job) -> bool:
        """Return whether the process has ended, or must: after an illegal access it can use its GPU no more."""
        if outcome.kind == "error" and job.device.kind == "cuda":
            self.end()
        return self.ended

    def end(self) -> int | None:
        self.ended = True
        self.connection.close()
        self._process.join(20.0 if os.environ.get(MEASURE) and self.seed is None else 0.2)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        return self._process.exitcode


@dataclass
class Summary:
    """What a campaign found.

    Args:
        kinds: number of programs by what came of them.
        codes: number of refused programs by the error's code.
        skips: number of programs that a device does not know, by what it does not.
        failures: the outcomes that show faults.
        reached: number of programs by `operation dtype context`.
        knobs: number of programs by schedule knob, as `name=value`.
        seconds: total time of generating, meaning and running.
        unknown: sum of the shares of unknown elements.
        elapsed: seconds the campaign took.
    """

    kinds: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    skips: Counter[str] = field(default_factory=Counter[str])
    failures: list[Outcome] = field(default_factory=list[Outcome])
    reached: Counter[str] = field(default_factory=Counter[str])
    knobs: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    unknown: float = 0.0
    elapsed: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            self.codes[outcome.code] += 1
        if outcome.kind == "skipped" and outcome.code:
            self.skips[outcome.code] += 1
        if outcome.failed:
            self.failures.append(outcome)
        self.reached.update(outcome.reached)
        self.knobs.update(outcome.knobs)
        self.seconds = [a + b for a, b in zip(self.seconds, outcome.seconds, strict=True)]
        self.unknown += outcome.unknown

    @property
    def programs(self) -> int:
        """The number of programs."""
        return sum(self.kinds.values())


def seeds(first: int | None) -> Iterator[int]:
    """Yield the seeds of a campaign: consecutive ones, from a random one when none is given."""
    seed = random.SystemRandom().getrandbits(40) if first is None else first
    while True:
        yield seed
        seed += 1


def campaign(
    job: Job,
    source: Iterator[int],
    jobs: int,
    *,
    programs: int | None,
    seconds: float | None,
    timeout: float = 60.0,
    report: Callable[[Outcome], Any] = lambda _: None,
    failures: int | None = None,
) -> Summary:
    """Run programs until there are enough or the time is over.

    Args:
        job: what to do.
        source: their seeds.
        jobs: worker processes.
        programs: how many at most.
        seconds: how long at most.
        timeout: seconds of work, or without any, after which a program counts as hung.
        report: is told every outcome as it comes.
        failures: after how many failures to stop.
    """
    summary, started = Summary(), time.monotonic()

    def wanted() -> Iterator[int]:
        given = 0
        while programs is None or given < programs:
            if failures is not None and len(summary.failures) >= failures:
                return
            if seconds is not None and time.monotonic() - started >= seconds:
                return
            yield next(source)
            given += 1

    workers, left = _Workers(job, jobs), wanted()
    try:
        while workers.give(left):
            for outcome in workers.outcomes(timeout):
                summary.add(outcome)
                report(outcome)
    finally:
        workers.end()
    summary.elapsed = time.monotonic() - started
    return summary


class _Workers:
    """The processes of a campaign. One that has died, hangs or has run enough programs is replaced.

    Args:
        job: what they do.
        count: how many there are.
    """

    def __init__(self, job: Job, count: int) -> None:
        self._job = job
        self._root = Path(tempfile.mkdtemp(prefix="tessera-fuzz-"))
        self._all = [self._new(number) for number in range(count)]

    def _new(self, number: int) -> _Process:
        return _Process(self._job, self._root / str(number))

    def give(self, left: Iterator[int]) -> bool:
        """Give a seed to each idle process while any is left; return whether a process is busy."""
        for number, worker in enumerate(self._all):
            seed = next(left, None) if worker.seed is None else None
            if seed is None:
                continue
            if worker.done >= PROGRAMS_PER_WORKER:
                worker.end()
                worker = self._all[number] = self._new(number)
            worker.give(seed)
        return any(worker.seed is not None for worker in self._all)

    def outcomes(self, timeout: float) -> Iterator[Outcome]:
        """Wait up to a second; yield what came, and what became of processes that died or take too long."""
        ready = wait([worker.connection for worker in self._all if worker.seed is not None], timeout=1.0)
        for number, worker in enumerate(self._all):
            outcome = _outcome_of(worker, worker.connection in ready, timeout)
            if outcome is not None:
                yield outcome
                if worker.is_spent(outcome, self._job):
                    self._all[number] = self._new(number)

    def end(self) -> None:
        """End all of them."""
        for worker in self._all:
            worker.end()
        shutil.rmtree(self._root, ignore_errors=True)


class Isolated:
    """Runs programs one by one in a process of their own, which is replaced when it dies or hangs.

    Args:
        job: what to do with them.
        timeout: seconds of work, or without any, after which a program counts as hung.
    """

    def __init__(self, job: Job, timeout: float = 20.0) -> None:
        self._job, self._timeout = job, timeout
        self._folder = Path(tempfile.mkdtemp(prefix="tessera-shrink-"))
        self._worker = _Process(job, self._folder)

    def __call__(self, program: tree.Program) -> Outcome:
        """Run a program."""
        self._worker.give(program)
        outcome = None
        while outcome is None:
            ready = bool(wait([self._worker.connection], timeout=1.0))
            outcome = _outcome_of(self._worker, ready, self._timeout)
        if outcome.kind in ("crash", "hang"):
            self._worker = _Process(self._job, self._folder)
        return outcome

    def close(self) -> None:
        """End the process."""
        self._worker.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def _outcome_of(worker: _Process, ready: bool, timeout: float) -> Outcome | None:
    """Return what a busy worker says, or that it died or hangs; None while it works."""
    seed = worker.seed
    if seed is None:
        return None
    if ready:
        try:
            outcome: Outcome = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            return Outcome(seed, "crash", detail=f"the process ended with {worker.end()}")
        worker.seed, worker.done = None, worker.done + 1
        return outcome
    if worker.patience.is_over(timeout):
        worker.end()
        return Outcome(seed, "hang", detail=f"nothing after {timeout:.0f} s")
    return None
