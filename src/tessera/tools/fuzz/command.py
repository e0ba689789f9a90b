"""`tessera fuzz`: runs random programs and compares them with their meaning."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

import click

from tessera.driver.settings import settings
from tessera.errors import LanguageError
from tessera.schedule.knobs import KNOBS, Knobs, knob_named
from tessera.tools.fuzz import levels, serial, tree
from tessera.tools.fuzz.campaign import Job, Summary, campaign, one, seeds
from tessera.tools.fuzz.follow_up import follow_up
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.report import as_json, measured
from tessera.tools.fuzz.run import Device, Outcome
from tessera.tools.fuzz.source import source


def _summary(summary: Summary, first: int | None) -> str:
    count = max(summary.programs, 1)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(summary.kinds.items()))
    drawn, meant, ran = (1000 * part / count for part in summary.seconds)
    lines = [f"{summary.programs} programs in {summary.elapsed:.0f} s: {kinds}"]
    if any(summary.seconds):  # emulated programs run together, and none has a time of its own
        lines.append(
            f"per program: {drawn:.1f} ms to draw, {meant:.1f} ms for its meaning, {ran:.1f} ms to compile and run"
        )
    lines.append(f"{100 * summary.unknown / count:.2f} % of elements unknown")
    if summary.codes:
        lines.append("refused: " + ", ".join(f"{code} {number}" for code, number in summary.codes.most_common()))
    if summary.skips:
        lines.append("not emulated: " + ", ".join(f"{what} {number}" for what, number in summary.skips.most_common()))
    contexts = Counter(key.rsplit(" ", 1)[1] for key in summary.reached)
    pairs = ", ".join(f"{context} {number}" for context, number in sorted(contexts.items()))
    lines.append(f"reached {len(summary.reached)} operation × dtype × context: {pairs}")
    if summary.knobs:
        knobs = Counter(knob.partition("=")[0] for knob in summary.knobs.elements())
        lines.append("schedule knobs: " + ", ".join(f"{knob} {number}" for knob, number in sorted(knobs.items())))
    if summary.failures:
        shown = " ".join(str(outcome.seed) for outcome in summary.failures[:50])
        lines.append(f"{len(summary.failures)} failures, seeds: {shown}")
    return "\n".join(lines)


def _failure(outcome: Outcome, options: Options, where: str, with_source: bool) -> None:
    click.echo(f"\nseed {outcome.seed}: {outcome.kind} {outcome.code}\n{outcome.detail}")
    click.echo(f"again: tessera fuzz {where} --reproduce {outcome.seed}")
    if with_source:
        click.echo(source(generate(outcome.seed, options)))


def _replay(program: tree.Program, where: Device) -> None:
    """Run one program in this process, so that a debugger can follow it."""
    if where.kind == "interp":
        settings().interpret = True
    if where.kind == "cpu" and where.target:
        levels.use(where.target)
    with tempfile.TemporaryDirectory() as folder:
        outcome = one(program, Job(where, Options(), coverage=False), Path(folder))
    click.echo(f"{source(program)}\n{outcome.kind} {outcome.code}\n{outcome.detail}")
    sys.exit(1 if outcome.failed else 0)


def _options(texts: tuple[str, ...]) -> Options:
    """Read `name=probability` and `knob=value` pairs."""
    given, knobs = dict[str, float](), dict[str, str]()
    for text in texts:
        name, _, value = text.partition("=")
        if knob_named(name) is not None:
            knobs[name] = value
        elif name not in SWITCHES:
            raise click.BadParameter(f"no switch or knob is called {name!r}: {', '.join((*SWITCHES, *KNOBS))}")
        else:
            given[name] = float(value)
    try:
        fixed = Knobs.from_text(knobs).given()
    except LanguageError as error:
        raise click.BadParameter(str(error)) from None
    return replace(Options(), **given, fixed=tuple(fixed.items()))


SWITCHES = tuple(name for name in Options.__slots__ if name != "fixed")
"""What `--set` gives a probability of."""

_STRICT = ("strict=1", "plans=0.5", "approximate=0.8")
"""What `--strict` draws: sums, products and functions whose results are inexact, which shows how they are computed."""


@click.command()
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "interp", "passes", "ptx", "races", "threads"]),
    default="cpu",
    show_default=True,
    help="`passes` interprets what each pass leaves; of what GPUs would run, `threads` computes what all threads "
    "store, `races` finds what they touch unordered, `ptx` runs their PTX on an emulated GPU.",
)
@click.option(
    "--target",
    default="",
    help="Compile for this CPU instead of the machine's own, such as x86-64-v3; with `passes`, `ptx`, `races` and "
    "`threads`, for this target alone.",
)
@click.option("--compile-only", default="", metavar="TARGET", help="Compile for a target such as sm_90a, run nothing.")
@click.option("--seed", type=int, help="The first seed; a random one by default, which is printed.")
@click.option("--programs", type=int, help="How many programs; 1000 unless --minutes is given.")
@click.option("--minutes", type=float, help="For how long.")
@click.option("--jobs", type=int, default=0, help="Worker processes; one per core by default.")
@click.option(
    "--set",
    "switches",
    multiple=True,
    metavar="NAME=VALUE",
    help="How often something is drawn, such as empty=0.1, or a schedule knob of all programs, such as chunk=64.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Draw programs under `strict` only: floats are compared with the interpreter's, without any tolerance.",
)
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds until a program counts as hung.")
@click.option("--failures", type=int, help="Stop after so many.")
@click.option("--shrink/--no-shrink", default=True, help="Make failing programs smaller. On by default.")
@click.option(
    "--budget",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to make one failing program smaller.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for minimal programs.")
@click.option("--reproduce", type=int, metavar="SEED", help="Run the program of one seed, and make it smaller.")
@click.option(
    "--metamorphic",
    type=float,
    default=0.05,
    show_default=True,
    help="Share of right programs that are run again in another way: repeated, saved, cached, other threads or knobs.",
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was found as JSON.",
)
@click.option("--lines", is_flag=True, help="Measure which lines of the compiler the programs reach (slow).")
@click.option("--show", is_flag=True, help="Print the program of --seed and end.")
@click.option("--replay", type=click.File("r"), help="Run the program of a JSON file that --save wrote.")
@click.option("--save", type=click.Path(file_okay=False, path_type=Path), help="Folder for failing programs, as JSON.")
@click.option("--quiet", is_flag=True, help="Print failures without their source.")
def fuzz(
    device: str,
    target: str,
    compile_only: str,
    seed: int | None,
    programs: int | None,
    minutes: float | None,
    jobs: int,
    switches: tuple[str, ...],
    strict: bool,
    timeout: float,
    failures: int | None,
    shrink: bool,
    budget: float,
    out: Path | None,
    reproduce: int | None,
    metamorphic: float,
    report_file: Path | None,
    lines: bool,
    show: bool,
    replay: TextIO | None,
    save: Path | None,
    quiet: bool,
) -> None:
    """Run random programs of the whole language and compare what they store with what NumPy says they mean.

    A seed decides the program and its data. Failures are printed with their seed and source, and the exit code is 1.
    At the end each fault is printed again with the smallest program that shows it, and the step of the compiler that
    is wrong.
    """
    switches = (*_STRICT, *switches) if strict else switches
    options = _options(switches)
    if reproduce is not None:
        seed, programs = reproduce, 1
    if show:
        click.echo(source(generate(seed or 0, options)))
        return
    where = Device("compile", compile_only) if compile_only else Device(device, target)
    levels.check(where)
    if replay is not None:
        try:
            program = serial.loads(replay.read())
        except (ValueError, TypeError) as error:
            raise click.BadParameter(f"{replay.name} holds no program: {error}", param_hint="--replay") from error
        _replay(program, where)
        return
    if programs is None and minutes is None:
        programs = 1000
    flags = _flags(device, target, compile_only, switches)
    first = next(seeds(seed))
    click.echo(f"first seed {first}")
    job = Job(where, options, metamorphic=metamorphic)
    with measured(lines) as reach:
        summary = campaign(
            job,
            seeds(first),
            1 if reproduce is not None else jobs or os.cpu_count() or 1,
            programs=programs,
            seconds=None if minutes is None else 60 * minutes,
            timeout=timeout,
            report=partial(_report, options=options, flags=flags, quiet=quiet, save=save),
            failures=failures,
        )
    click.echo(_summary(summary, first))
    if lines:
        click.echo(reach.table())
    if report_file is not None:
        report_file.write_text(as_json(summary, first, where, reach), encoding="utf-8")
    for text in follow_up(summary.failures, job, budget, out) if shrink else ():
        click.echo(text)
    sys.exit(1 if summary.failures else 0)


def _flags(device: str, target: str, compile_only: str, switches: Sequence[str]) -> str:
    """Return the options that run a program again where it ran."""
    flags = f"--compile-only {compile_only}" if compile_only else f"--device {device}"
    flags += f" --target {target}" if target else ""
    return flags + "".join(f" --set {switch}" for switch in switches)


def _report(outcome: Outcome, options: Options, flags: str, quiet: bool, save: Path | None) -> None:
    """Print a failure, and save its program where that is wanted."""
    if not outcome.failed:
        return
    _failure(outcome, options, flags, not quiet)
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
        text = serial.dumps(generate(outcome.seed, options))
        (save / f"{outcome.seed}.json").write_text(text + "\n", encoding="utf-8")
