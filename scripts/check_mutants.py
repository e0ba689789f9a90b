"""Plants the faults of `tests/fuzz/mutants.py` in copies of the compiler and asks the fuzzer to find each of them.

    python scripts/check_mutants.py --jobs 16 --device cpu --device passes --device races
    python scripts/check_mutants.py --jobs 8 --device cuda --minutes 10 --json mutants.json

Needs what Tessera needs and no network. The exit code is 1 when more than 5 % of the faults are missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_FAILURE = re.compile(r"^seed (\d+): (\w+) ?(\S*)$", re.MULTILINE)
_COUNT = re.compile(r"^(\d+) programs in", re.MULTILINE)


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


def plant(mutant: Any, folder: Path) -> None:
    """Copy the compiler to a folder, with the fault in it if there is one."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src/tessera", folder / "tessera", ignore=ignored)
    if mutant is None:
        return
    path = folder / "tessera" / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name} does not apply: its text occurs {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def fuzz(source: Path, device: str, seed: int, how: list[str], seconds: float) -> str:
    """Run the fuzzer on a copy of the compiler and return what it prints."""
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "tessera.tools.cli",
        "fuzz",
        "--device",
        device,
        "--jobs",
        "1",
        "--seed",
        str(seed),
        "--failures",
        "1",
        "--no-shrink",
        "--quiet",
        *how,
    ]
    try:
        ran = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=seconds + 180
        )
    except subprocess.TimeoutExpired as timeout:
        return str(timeout.stdout or "")
    if not _COUNT.search(ran.stdout) and not _FAILURE.search(ran.stdout):
        print(f"the fuzzer did not run:\n{ran.stderr[-2000:]}", file=sys.stderr)
    return ran.stdout


def look_for(mutant: Any, minutes: float, seed: int) -> Found:
    """Plant a fault and fuzz until a program fails that does not fail without it, or the time is over."""
    started, programs = time.monotonic(), 0
    device = "cpu" if mutant.device == "amx" else mutant.device
    switches = [part for switch in mutant.switches for part in ("--set", switch)]
    with tempfile.TemporaryDirectory(prefix="tessera-mutant-") as planted:
        with tempfile.TemporaryDirectory(prefix="tessera-sound-") as sound:
            plant(mutant, Path(planted))
            plant(None, Path(sound))
            while (left := 60 * minutes - (time.monotonic() - started)) > 0:
                text = fuzz(Path(planted), device, seed, [*switches, "--minutes", str(left / 60)], left)
                failure, count = _FAILURE.search(text), _COUNT.search(text)
                programs += int(count[1]) if count else 0
                if failure is None:
                    break
                seconds, seed = time.monotonic() - started, int(failure[1])
                again = fuzz(Path(sound), device, seed, [*switches, "--programs", "1"], 120)
                if _FAILURE.search(again) is None:
                    kind = " ".join(failure.groups()[1:]).strip()
                    return Found(mutant.name, mutant.device, True, round(seconds, 1), programs, seed, kind)
                seed += 1
    return Found(mutant.name, mutant.device, False, round(time.monotonic() - started, 1), programs, None, "")


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
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in mutants()
        if (not given.device or mutant.device in given.device) and (not given.name or mutant.name in given.name)
    ]
    results: list[Found] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        waiting = [pool.submit(look_for, mutant, given.minutes, given.seed) for mutant in chosen]
        for each in as_completed(waiting):
            result = each.result()
            results.append(result)
            verdict = f"found by seed {result.seed}" if result.found else "missed"
            print(
                f"{result.name}: {verdict} after {result.seconds:.0f} s, {result.programs} programs",
                flush=True,
            )
            if given.json is not None:
                given.json.write_text(json.dumps([asdict(r) for r in results], indent=1), encoding="utf-8")
    print(table(results))
    sys.exit(1 if sum(not each.found for each in results) > 0.05 * len(results) else 0)


if __name__ == "__main__":
    main()
