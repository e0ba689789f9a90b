"""Measures a process's first kernel: what imports, compiling, and loading from the cache take.

    python benchmarks/first_kernel.py [--runs 10] [--target sm_90a]

Each number is the median of so many fresh processes; the first process, which writes Python's byte code, does not
count. `compiled` starts with an empty cache, `cached` with what that one left. `Python, NumPy` is the start of both: no
kernel can be ready sooner. `Tessera` is its import, with the decoration of two kernels. With `--target` a kernel is
compiled for it, not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

WITH_NUMPY = time.perf_counter()

import tessera as ts  # noqa: E402 - what stands before it is timed

F32 = ts.Tensor["n", ts.f32]


@ts.kernel
def first(a: F32, b: F32):
    """Add an array to another."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] + b[i]


@ts.kernel
def second(a: F32, b: F32):
    """Multiply an array by another."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] * b[i]


IMPORTED = time.perf_counter()


def main() -> int:
    """Print the table; returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--runs", type=int, default=10)
    options.add_argument("--target", default="")
    options.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.once:
        print(json.dumps(measured(given.target)))
        return 0
    rows: dict[str, list[dict[str, float]]] = {"compiled": [], "cached": []}
    for number in range(given.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            # Compiling ahead of time keeps nothing, so that there is no second row for a target.
            for name in ["compiled"] if given.target else rows:
                found = in_fresh_process(given.target, folder)
                if number:
                    rows[name].append(found)
    print_table(rows)
    return 0


def print_table(rows: dict[str, list[dict[str, float]]]) -> None:
    """Print the medians."""
    from rich.console import Console  # here, so that its import is not among those that are measured
    from rich.table import Table

    table = Table("", "Python, NumPy", "Tessera", "first kernel", "second kernel", title="ms, medians")
    for name, found in rows.items():
        if found:
            table.add_row(name, *(f"{median(run[key] for run in found):.1f}" for key in found[0]))
    Console().print(table)


def in_fresh_process(target: str, folder: str) -> dict[str, float]:
    """Return the milliseconds of one process whose cache is `folder`."""
    command = [sys.executable, str(Path(__file__)), "--once", "--target", target]
    started = time.perf_counter()
    environment = {**os.environ, "TESSERA_CACHE_DIR": folder, "STARTED": repr(started)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measured(target: str) -> dict[str, float]:
    """Return the milliseconds of this process: its imports, its first kernel, and another one."""
    # perf_counter counts from the machine's start, so that the parent's time is comparable.
    times = {"Python, NumPy": WITH_NUMPY - float(os.environ["STARTED"]), "Tessera": IMPORTED - WITH_NUMPY}
    a, b = np.ones(256, np.float32), np.full(256, 3.0, np.float32)
    for kernel in (first, second):
        start = time.perf_counter()
        if target:
            ts.compile(kernel, target=target)
        else:
            kernel(a, b)
        times[kernel.__name__] = time.perf_counter() - start
    if not target:
        np.testing.assert_array_equal(a, 12.0)  # (1 + 3) * 3
    return {name: 1e3 * seconds for name, seconds in times.items()}


if __name__ == "__main__":
    raise SystemExit(main())
