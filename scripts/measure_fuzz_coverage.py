"""Prints which lines of the compiler random programs reach, over campaigns for CPUs and GPUs of several kinds together.

    python scripts/measure_fuzz_coverage.py --minutes 3 --jobs 16

Needs the package `coverage`, no GPU and no network. The exit status is 1 when a campaign finds a fault or when fewer
lines than `--least` percent are reached.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tessera.tools.fuzz.measure import MEASURE
from tessera.tools.fuzz.report import Reach, collect, write_config

CAMPAIGNS = (
    ("--device", "cpu"),
    ("--device", "cpu", "--set", "debug=1", "--set", "plans=0.3"),
    ("--compile-only", "x86-64", "--set", "shared=0.4"),
    ("--compile-only", "sapphirerapids", "--set", "products=6", "--set", "plans=0.3"),
    ("--compile-only", "aarch64", "--set", "products=6", "--set", "plans=0.3"),
    ("--compile-only", "sm_70", "--set", "atomics=3"),
    ("--compile-only", "sm_80", "--set", "debug=0.3", "--set", "plans=0.3"),
    ("--compile-only", "sm_90a", "--set", "plans=0.9"),
    ("--compile-only", "sm_90a", "--set", "plans=1"),
    ("--compile-only", "sm_90a", "--set", "plans=1", "--set", "ping_pong=1", "--set", "pipeline=1"),
    ("--compile-only", "sm_90a", "--set", "plans=1", "--set", "chunk=64", "--set", "layouts=0"),
    ("--compile-only", "sm_80", "--set", "shared=1", "--set", "outside=0.5"),
    ("--compile-only", "x86-64-v3", "--set", "plans=0.5", "--set", "products=6", "--set", "shared=0.4"),
    ("--compile-only", "sm_90a", "--set", "debug=0.3", "--set", "atomics=3", "--set", "shared=0.4"),
)
"""Where programs go, and what is drawn more often than usual there."""


def main() -> int:
    """Run the campaigns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="for each campaign")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes, over all campaigns")
    parser.add_argument("--least", type=float, default=0.0, help="percent of lines that must be reached")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-coverage-") as folder:
        config = write_config(Path(folder))
        at_once = min(len(CAMPAIGNS), args.jobs)
        with ThreadPoolExecutor(at_once) as pool:
            jobs = max(args.jobs // at_once, 1)
            failed = sum(pool.map(lambda given: _campaign(given, args.minutes, jobs, config), CAMPAIGNS))
        reach = Reach()
        collect(reach, config)
    print(reach.table())
    return 1 if failed or reach.share < args.least else 0


def _campaign(given: tuple[str, ...], minutes: float, jobs: int, config: Path) -> int:
    command = [sys.executable, "-m", "tessera.tools.cli", "fuzz", *given, "--quiet", "--no-shrink"]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TESSERA_NUM_THREADS": "2"}
    ran = subprocess.run(
        [*command, "--minutes", str(minutes), "--jobs", str(jobs), "--timeout", "300"],
        capture_output=True,
        text=True,
        env={**os.environ, **threads, MEASURE: str(config)},
    )
    print(" ".join(given), ran.stdout, ran.stderr, sep="\n", flush=True)
    return ran.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
