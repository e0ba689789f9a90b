"""Measures the price of the `strict` profile: the time of a kernel under it over that under `fast`.

    python benchmarks/strict.py [--device cuda] [--seconds 2] [--quick] [--only softmax]

One kernel is compiled under both profiles; calls take turns and the ratio is that of the medians. On a GPU launches in
a CUDA graph count (`gemm_timing.py`); PyTorch must be there. Results under `strict` are compared with those of this
machine's CPU, bit by bit. The exit status is 1 when one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from turns import download, seconds_in_turns, upload

import tessera as ts

PROFILES = ("fast", "strict")


@dataclass(frozen=True)
class Work:
    """One kernel on one set of arguments.

    Args:
        name: what it does.
        call: runs it; the last argument is the result.
        arguments: what it is called with.
    """

    name: str
    call: Callable[..., Any]
    arguments: Sequence[np.ndarray]


@ts.kernel
def row_sums(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    """Sums of rows."""
    for i in ts.tile.grid((m, 8)):
        y[i : i + 8] = ts.tile.sum(x[i : i + 8, :], 1)


@ts.kernel
def column_sums(x: ts.Tensor["m", 64, ts.f32], y: ts.Tensor["m", ts.f32]):
    """Sums of 64 rows of 64, taken across."""
    for i in ts.tile.grid((m, 64)):
        y[i : i + 64] = ts.tile.sum(x[i : i + 64, :], 0)


@ts.kernel
def softmax(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Softmax of rows."""
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4, :] = ts.tile.softmax(x[i : i + 4, :], 1)


@ts.kernel
def running_sums(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Running sums of rows."""
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4, :] = ts.tile.cumsum(x[i : i + 4, :], 1)


def function(name: str) -> Any:
    """Return the kernel of a function of one element."""
    apply = getattr(ts.tile, name)

    @ts.kernel
    def each(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = apply(x[i : i + 1024])

    return each


@ts.kernel
def by_rows(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Rows over their first elements."""
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4, :] = x[i : i + 4, :] / x[i : i + 4, 0:1]


def product(a: Any, b: Any, c: Any) -> None:
    """The library's product."""
    ts.ops.linalg.gemm(a, b, out=c)


def turned(a: Any, b: Any, c: Any) -> None:
    """The same, of a right operand that is contiguous along K."""
    ts.ops.linalg.gemm(a, b.T, out=c)


def works(quick: bool) -> Iterator[Work]:
    """Yield the works."""
    rng = np.random.default_rng(3)

    def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    m, n = (64, 256) if quick else (2048, 1024)
    x, flat = numbers(m, n), numbers(m * n)
    yield Work("sum of rows", row_sums, [x, np.empty(m, np.float32)])
    tall = numbers(m * n // 64, 64)
    yield Work("sum of columns", column_sums, [tall, np.empty(len(tall), np.float32)])
    yield Work("softmax", softmax, [x, np.empty_like(x)])
    yield Work("cumsum", running_sums, [x, np.empty_like(x)])
    yield Work("division by a row's number", by_rows, [x, np.empty_like(x)])
    for name in ("exp", "tanh", "sigmoid", "log", "sin", "rsqrt"):
        given = np.abs(flat) if name in ("log", "rsqrt") else flat
        yield Work(name, function(name), [given, np.empty_like(given)])
    side = 64 if quick else 768
    for dtype in (ts.f32, ts.bf16):
        a, b = (numbers(side, side, dtype=dtype.numpy()) for _ in range(2))
        yield Work(f"gemm {dtype}", product, [a, b, np.empty((side, side), np.float32)])
    a, b = numbers(1, 4 * side), numbers(4 * side, 4 * side)
    yield Work("gemv f32", product, [a, b, np.empty((1, 4 * side), np.float32)])
    yield Work("gemv f32, contiguous along K", turned, [a, b, np.empty((1, 4 * side), np.float32)])


def _under(profile: str, work: Work, arrays: Sequence[Any]) -> Callable[[], Any]:
    def call() -> None:
        with ts.numerics.profile(profile):  # type: ignore[arg-type]
            work.call(*arrays)

    return call


def measure(work: Work, device: str, seconds: float) -> tuple[dict[str, float], bool]:
    """Return the seconds of a call under each profile, and whether `strict` gives the bits of this machine's CPU."""
    host = [array.copy() for array in work.arguments]
    _under("strict", work, host)()
    arrays = [upload(array.copy(), device) for array in work.arguments]
    calls = {profile: _under(profile, work, arrays) for profile in PROFILES}
    for call in calls.values():  # the last one is strict
        call()
    alike = np.array_equal(download(arrays[-1]), host[-1], equal_nan=True)
    return seconds_in_turns(calls, device, seconds, median), alike


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="how long each work is measured (default: 2; quick: 0.05)")
    parser.add_argument("--quick", action="store_true", help="small arrays; for whether it runs at all")
    parser.add_argument("--only", default="", help="works whose name contains this")
    options = parser.parse_args()
    seconds = options.seconds or (0.05 if options.quick else 2.0)
    table = Table(
        "work", "fast, µs", "strict, µs", "strict / fast", "", title=f"the price of strict on {options.device}"
    )
    failed = False
    for work in works(options.quick):
        if options.only not in work.name:
            continue
        found, alike = measure(work, options.device, seconds)
        failed = failed or not alike
        fast, strict = (found[profile] * 1e6 for profile in PROFILES)
        table.add_row(work.name, f"{fast:.1f}", f"{strict:.1f}", f"{strict / fast:.2f}", "" if alike else "other bits")
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
