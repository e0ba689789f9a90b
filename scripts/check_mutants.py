"""Plants the faults of `tests/fuzz/mutants.py` in copies of the compiler and asks the fuzzer to find each of them.

    python scripts/check_mutants.py --jobs 16 --device cpu --device passes --device races
    python scripts/check_mutants.py --jobs 16 --minutes 3 --total-minutes 8 --json mutants.json

Each fault has one process, which stops at the first program that fails and does not fail without the fault. Those of
devices that take long come first; with `--earlier`, those that took long in an earlier run. Results are written as they
come. Needs what Tessera needs and no network. The exit code is 1 when more than 5 % of the faults are missed.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_FAILURE = re.compile(r"^seed (\d+): (\w+) ?(\S*)$", re.MULTILINE)
_COUNT = re.compile(r"^(\d+) programs in", re.MULTILINE)
_SLOWEST_FIRST = ("ptx", "cuda", "passes", "amx", "threads", "races", "cpu")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TESSERA_NUM_THREADS"), "1")
_AFTERWARDS = 60.0
"""Seconds that a program may go on for when the time of its fault is over."""


@dataclass
class Found:
    """What the fuzzer said of a fault."""

    name: str
    device: str
    found: bool
    seconds: float
    programs: int
    seed: int | None
    kind: str


def mutants() -> tuple[Any, ...]:
    """Return the faults."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests/fuzz/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module.MUTANTS


def copied(folder: Path) -> None:
    """Copy the compiler to a folder, with its byte code, which all processes then share."""
    shutil.copytree(ROOT / "src/tessera", folder / "tessera", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder, quiet=2)


def plant(mutant: Any, sound: Path, folder: Path) -> None:
    """Copy the compiler to a folder, with a fault in it."""
    shutil.copytree(sound / "tessera", folder / "tessera")
    path = folder / "tessera" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name} does not apply: its text occurs {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def fuzz(source: Path, seed: int, how: Sequence[str], seconds: float) -> str:
    """Run the fuzzer on a copy of the compiler and return what it prints."""
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="tessera-fuzz-") as scratch:
        environment = {"PYTHONPATH": path, "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "tessera.tools.cli", "fuzz", "--jobs", "1", "--seed", str(seed)]
        command += ["--failures", "1", "--no-shrink", "--quiet", "--timeout", "40", *how]
        process = subprocess.Popen(
            command,
            cwd=source,
            env=os.environ | _ONE_THREAD | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its workers end with it
        )
        try:
            printed, errors = process.communicate(timeout=seconds + _AFTERWARDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
    if not _COUNT.search(printed) and not _FAILURE.search(printed):
        print(f"the fuzzer did not run:\n{errors[-2000:]}", file=sys.stderr)
    return printed


def arguments(mutant: Any) -> list[str]:
    """Return what the fuzzer is told of a fault: where it shows, and in which programs."""
    device = "cpu" if mutant.device == "amx" else mutant.device
    switches = [part for switch in mutant.switches for part in ("--set", switch)]
    return ["--device", device, *(("--target", mutant.target) if mutant.target else ()), *switches]


def look_for(mutant: Any, sound: Path, minutes: float, deadline: float, seed: int) -> Found:
    """Plant a fault and fuzz until a program fails that does not fail without it, or the time is over."""
    started, programs = time.monotonic(), 0
    end, how = min(started + 60 * minutes, deadline), arguments(mutant)
    with tempfile.TemporaryDirectory(prefix="tessera-mutant-") as folder:
        plant(mutant, sound, Path(folder))
        while (left := end - time.monotonic()) > 0:
            text = fuzz(Path(folder), seed, [*how, "--minutes", str(left / 60)], left)
            failure, count = _FAILURE.search(text), _COUNT.search(text)
            programs += int(count[1]) if count else 0
            if failure is None:
                break
            seconds, seed = time.monotonic() - started, int(failure[1])
            again = fuzz(sound, seed, [*how, "--programs", "1"], 60)
            if _FAILURE.search(again) is None:
                kind = " ".join(failure.groups()[1:]).strip()
                return Found(mutant.name, mutant.device, True, round(seconds, 1), programs, seed, kind)
            seed += 1
    return Found(mutant.name, mutant.device, False, round(time.monotonic() - started, 1), programs, None, "")


def in_order(chosen: Sequence[Any], earlier: Path | None) -> list[Any]:
    """Return the faults with those first that take longest, so that no process is left with one at the end."""
    took: Mapping[str, float] = {}
    if earlier is not None:
        known = json.loads(earlier.read_text(encoding="utf-8"))
        took = {each["name"]: each["seconds"] if each["found"] else 1e9 for each in known}
    return sorted(chosen, key=lambda mutant: (-took.get(mutant.name, 1e9), _SLOWEST_FIRST.index(mutant.device)))


def table(results: list[Found]) -> str:
    """Return a line for each fault, and a sum."""
    rows = [f"{'fault':46}{'device':8}{'found':8}{'s':>8}{'programs':>10}  seed"]
    for each in sorted(results, key=lambda result: (result.device, result.name)):
        said = f"{each.seed} {each.kind}" if each.found else ""
        verdict = "found" if each.found else "MISSED"
        rows.append(f"{each.name:46}{each.device:8}{verdict:8}{each.seconds:8.1f}{each.programs:10}  {said}")
    found = sum(each.found for each in results)
    return "\n".join([*rows, f"{found} of {len(results)} found"])


def main() -> None:
    """Look for every fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults looked for at a time")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each fault")
    parser.add_argument("--seed", type=int, default=1, help="the first program's")
    parser.add_argument("--device", action="append", help="only faults that this device shows; may be repeated")
    parser.add_argument("--name", action="append", help="only this fault; may be repeated")
    parser.add_argument("--json", type=Path, help="where the results are written as well")
    parser.add_argument("--total-minutes", type=float, default=1e6, help="for all of them; the others are missed")
    parser.add_argument("--earlier", type=Path, help="what --json wrote before")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in mutants()
        if (not given.device or mutant.device in given.device) and (not given.name or mutant.name in given.name)
    ]
    deadline, results = time.monotonic() + 60 * given.total_minutes, list[Found]()
    with tempfile.TemporaryDirectory(prefix="tessera-sound-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        sound = Path(folder)
        copied(sound)
        ordered = in_order(chosen, given.earlier)
        waiting = [pool.submit(look_for, one, sound, given.minutes, deadline, given.seed) for one in ordered]
        for each in as_completed(waiting):
            results.append(each.result())
            said(results, given.json)
    print(table(results))
    sys.exit(1 if sum(not each.found for each in results) > 0.05 * len(results) else 0)


def said(results: Sequence[Found], file: Path | None) -> None:
    """Print the last result, and write all of them."""
    last = results[-1]
    verdict = f"found by seed {last.seed}" if last.found else "missed"
    print(f"{last.name}: {verdict} after {last.seconds:.0f} s, {last.programs} programs", flush=True)
    if file is not None:
        text = json.dumps([asdict(each) for each in results], indent=1)
        unfinished = file.with_name(f"{file.name}.part")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)


if __name__ == "__main__":
    main()
