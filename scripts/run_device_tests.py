"""Runs every test that needs an NVIDIA GPU, random programs, then a subset of the tests under compute-sanitizer.

Usage, on a machine with a GPU and the development dependencies (`pip install '.[dev]'`):

    python scripts/run_device_tests.py --out device-tests.jsonl

The file gets one JSON object a line: one for each test of each step and for each random program that failed, then
one for each step. The exit status is 0 only if no step failed and the device tests really ran: a machine without a
GPU, where pytest would skip them all, fails. A sanitizer that cannot watch this device is reported as unavailable,
with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_SANITIZER = "compute-sanitizer"
_SANITIZER_TOOLS = ("memcheck", "racecheck")
_SANITIZER_ERROR = 86  # a status that pytest never returns, so that a finding is told from a failing test


@dataclass(frozen=True)
class TestRecord:
    """The outcome of one test in one step."""

    step: str
    test: str
    outcome: str
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class StepRecord:
    """The outcome of one pytest run or campaign of random programs: status is passed, failed or unavailable."""

    step: str
    status: str
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    reason: str = ""


def main() -> int:
    """Run the steps, write the records and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines file to write")
    parser.add_argument("--sanitize", default="device and not slow and not bare", help="markers of the sanitizer steps")
    parser.add_argument("--programs", type=int, default=20000, help="random programs to run; 0 leaves them out")
    parser.add_argument("--no-sanitizer", action="store_true", help="leave compute-sanitizer out")
    parser.add_argument("pytest_args", nargs="*", help="passed on to pytest, after `--`")
    args = parser.parse_args()

    records: list[TestRecord] = []
    steps = [_run_step("tests", [], "device", args.pytest_args, records)]
    if args.programs:
        steps.append(_run_programs(args.programs, records))
    if not args.no_sanitizer:
        for tool in _SANITIZER_TOOLS:
            reason = _why_no_sanitizer(tool)
            if reason is None:
                prefix = [*_sanitizer_command(tool), f"--error-exitcode={_SANITIZER_ERROR}"]
                steps.append(_run_step(tool, prefix, args.sanitize, args.pytest_args, records))
            else:
                steps.append(StepRecord(tool, "unavailable", 0.0, reason=reason))

    with args.out.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(record)) + "\n" for record in [*records, *steps])
    _print_summary(records, steps, args.out)
    return 1 if any(step.status == "failed" for step in steps) else 0


def _run_step(
    name: str, prefix: list[str], markers: str, pytest_args: list[str], records: list[TestRecord]
) -> StepRecord:
    """Run pytest once, appending one record for each test it reports."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        # The older report format has room for what tests record, such as launch times.
        pytest = [sys.executable, "-m", "pytest", "-o", "junit_family=legacy", f"--junitxml={report}"]
        pytest += ["-p", "no:benchmark"]  # where it is installed, it warns of -n, and warnings are errors
        command = [*prefix, *pytest, "-m", markers]
        # A kernel under the sanitizer is up to a hundred times slower.
        command += ["--timeout=1800"] if prefix else []
        print(f"=== {name}", flush=True)
        status = subprocess.run([*command, *pytest_args], cwd=_ROOT, stdin=subprocess.DEVNULL).returncode
        tests = list(_read_report(name, report)) if report.exists() else []
    records += tests
    counts = Counter(test.outcome for test in tests)
    reason = ""
    if status == _SANITIZER_ERROR:
        reason = f"{_SANITIZER} reported errors"
    elif status != 0:
        reason = f"pytest ended with status {status}"
    elif counts["passed"] == 0:
        reason = "no test ran"
    seconds = time.perf_counter() - start
    return StepRecord(name, "failed" if reason else "passed", seconds, dict(counts), reason)


def _run_programs(count: int, records: list[TestRecord]) -> StepRecord:
    """Run random programs on the GPU by all cores, appending one record for each that failed."""
    start, name = time.perf_counter(), "programs"
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TESSERA_NUM_THREADS": "2"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        fuzz = [sys.executable, "-m", "tessera.tools.cli", "fuzz", "--device", "cuda"]
        command = [*fuzz, "--programs", str(count), "--failures", "20", "--report", str(report)]
        print(f"=== {name}", flush=True)
        status = subprocess.run(command, cwd=_ROOT, stdin=subprocess.DEVNULL, env={**os.environ, **threads}).returncode
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    failures: list[dict[str, Any]] = found.get("failures", [])
    kinds: dict[str, int] = found.get("kinds", {})
    records += [
        TestRecord(name, f"seed {each['seed']}", "failed", 0.0, f"{each['kind']} {each['code']}: {each['detail']}")
        for each in failures
    ]
    reason = ""
    if status != 0 or failures:
        reason = f"{len(failures)} programs failed; tessera fuzz ended with status {status}"
    elif kinds.get("same", 0) == 0:
        reason = "no program ran"
    return StepRecord(name, "failed" if reason else "passed", time.perf_counter() - start, kinds, reason)


def _read_report(step: str, report: Path) -> Iterator[TestRecord]:
    for case in ET.parse(report).iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if problem is None else {"failure": "failed"}.get(problem.tag, problem.tag)
        message = "" if problem is None else problem.get("message", "")
        test = f"{case.get('classname')}::{case.get('name')}"
        yield TestRecord(step, test, outcome, float(case.get("time", "0")), message)


def _sanitizer_command(tool: str) -> list[str]:
    # Bindings ask the driver for functions it may not have; that is no error of a kernel.
    return [_SANITIZER, f"--tool={tool}", "--target-processes=all", "--report-api-errors=no"]


def _why_no_sanitizer(tool: str) -> str | None:
    """Try the tool on one allocation: some machines have it installed and yet refuse it the device."""
    if shutil.which(_SANITIZER) is None:
        return f"{_SANITIZER} is not on the PATH"
    probe = [*_sanitizer_command(tool), sys.executable, str(Path(__file__).resolve()), _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"{_SANITIZER} failed on one allocation: {' / '.join(lines[-3:])}"


_PROBE = "--probe-device"


def _probe_device() -> int:
    """Make a context and allocate on device 0: what the sanitizer must be able to watch."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context, pointer = ctypes.c_int(0), ctypes.c_void_p(), ctypes.c_uint64(0)
    return int(
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxSetCurrent(context)
        or driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096))
        or driver.cuMemFree_v2(pointer)
    )


def _print_summary(records: list[TestRecord], steps: list[StepRecord], out: Path) -> None:
    print("\n=== summary")
    for record in records:
        if record.outcome in ("failed", "error"):
            print(f"{record.step}: {record.outcome}: {record.test}: {record.message.splitlines()[:1]}")
    for step in steps:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(step.counts.items()))
        print(f"{step.step:<10} {step.status:<11} {step.seconds:7.1f} s  {counts}  {step.reason}".rstrip())
    print(f"records: {out}")


if __name__ == "__main__":
    sys.exit(_probe_device() if sys.argv[1:] == [_PROBE] else main())
