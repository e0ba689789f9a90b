"""Measures what the tests of index tiles cost: gathers, scatters and atomics with them, and compiled without.

    python benchmarks/bounds.py [--device cuda] [--seconds 3] [--quick] [--only gather]

The two contestants are one kernel. For the second, this script (and nothing in the product) tells the compiler that
every index is known to be inside. All indices are inside, so that both compute the same; each result is checked.
Contestants take turns, and the fastest turn counts on a CPU: other processes only add to it. On a GPU the median of
launches in a CUDA graph counts (`gemm_timing.py`); PyTorch must be there.

The exit status is 1 when a result is wrong, or where the tests cost more than `--most` per cent.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table
from turns import download, seconds_in_turns, upload

import tessera as ts
from tessera.lower.bounds import Bounds

MIB = 1 << 20
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Work:
    """One kernel on one set of arguments.

    Args:
        name: what it does, and on how much.
        make: gives a new kernel.
        arguments: gives its arguments; the last one is the result.
        reference: gives the result from them.
        elements: how many elements it accesses.
    """

    name: str
    make: Callable[[], Any]
    arguments: Callable[[np.random.Generator], Arrays]
    reference: Callable[..., np.ndarray]
    elements: int


def gather(dtype: Any, index: Any) -> Any:
    """Return the kernel `y = x[at]`."""

    @ts.kernel
    def gather(x: ts.Tensor["N", dtype], at: ts.Tensor["n", index], y: ts.Tensor["n", dtype]):
        for i in ts.tile.grid((n, 1024)):
            y[i : i + 1024] = x[at[i : i + 1024]]

    return gather


def rows(dtype: Any) -> Any:
    """Return the kernel that looks up rows of a table."""

    @ts.kernel
    def rows(x: ts.Tensor["N", 128, dtype], at: ts.Tensor["n", ts.i32], y: ts.Tensor["n", 128, dtype]):
        for i in ts.tile.grid((n, 32)):
            y[i : i + 32, :] = x[at[i : i + 32], :]

    return rows


def scatter(dtype: Any) -> Any:
    """Return the kernel `y[at] = x`."""

    @ts.kernel
    def scatter(x: ts.Tensor["n", dtype], at: ts.Tensor["n", ts.i32], y: ts.Tensor["N", dtype]):
        for i in ts.tile.grid((n, 1024)):
            y[at[i : i + 1024]] = x[i : i + 1024]

    return scatter


def histogram() -> Any:
    """Return the kernel that counts."""

    @ts.kernel
    def histogram(at: ts.Tensor["n", ts.i32], y: ts.Tensor["N", ts.i32]):
        for i in ts.tile.grid((n, 1024)):
            ts.tile.atomic_add(y[at[i : i + 1024]], 1)

    return histogram


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    kind = dtype.numpy()
    return rng.integers(0, 200, shape, dtype=np.uint8).astype(kind)


def works(quick: bool) -> Iterator[Work]:
    """Yield what is measured."""
    count = MIB if quick else 16 * MIB
    kinds = [(ts.f32, ts.i32, size) for size in (1, 16, 256, 1024)]
    kinds += [(ts.f32, ts.i64, 1024), (ts.bf16, ts.i32, 64), (ts.f64, ts.i32, 64)]
    for dtype, index, size in [(ts.f32, ts.i32, 1), (ts.f32, ts.i64, 64)] if quick else kinds:
        length = size * MIB // dtype.bytes
        yield Work(
            f"gather {dtype}, {index}, {size} MiB",
            lambda d=dtype, i=index: gather(d, i),
            lambda rng, d=dtype, i=index, m=length: [
                _numbers(rng, (m,), d),
                rng.integers(0, m, count).astype(i.numpy()),
                np.zeros(count, d.numpy()),
            ],
            lambda x, at, y: x[at],
            count,
        )
    tables = [(ts.f32, 1), (ts.bf16, 64)] if quick else [(ts.f32, 1), (ts.f32, 1024), (ts.bf16, 1024)]
    for dtype, size in tables:
        length = size * MIB // (128 * dtype.bytes)
        yield Work(
            f"rows of 128 {dtype}, {size} MiB",
            lambda d=dtype: rows(d),
            lambda rng, d=dtype, m=length: [
                _numbers(rng, (m, 128), d),
                rng.integers(0, m, count // 32).astype(np.int32),
                np.zeros((count // 32, 128), d.numpy()),
            ],
            lambda x, at, y: x[at],
            count * 4,
        )
    for dtype, size in [(ts.f32, 1)] if quick else [(ts.f32, 1), (ts.f32, 64), (ts.bf16, 64)]:
        length = size * MIB // dtype.bytes
        n = min(length, count)
        yield Work(
            f"scatter {dtype}, {size} MiB",
            lambda d=dtype: scatter(d),
            lambda rng, d=dtype, m=length, n=n: [
                _numbers(rng, (n,), d),
                rng.permutation(m)[:n].astype(np.int32),
                np.zeros(m, d.numpy()),
            ],
            _scattered,
            n,
        )
    for bins in (1 << 10,) if quick else (1 << 10, 1 << 20):
        yield Work(
            f"histogram, {bins} bins",
            histogram,
            lambda rng, m=bins: [rng.integers(0, m, count // 4).astype(np.int32), np.zeros(m, np.int32)],
            lambda at, y: np.bincount(at, minlength=len(y)).astype(np.int32),
            count // 4,
        )


def _scattered(x: np.ndarray, at: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = np.zeros_like(y)
    result[at] = x
    return result


def compiled(work: Work, arrays: Sequence[Any], tests: bool) -> Callable[[], Any]:
    """Return a call of a work's kernel, compiled with or without the tests of its indices."""
    kernel = work.make()
    os.environ["TESSERA_CACHE_DIR"] = tempfile.mkdtemp(prefix="tessera-bounds-", dir=os.environ["BOUNDS_FOLDER"])
    if tests:
        kernel(*arrays)
    else:
        with patch.object(Bounds, "unproven", lambda _bounds, _op: ()):
            kernel(*arrays)
    return lambda: kernel(*arrays)


def measure(work: Work, device: str, budget: float) -> tuple[float, float, bool]:
    """Return the seconds of a call with and without tests, and whether both results are right."""
    arrays = work.arguments(np.random.default_rng(1))
    expected = work.reference(*arrays)
    calls: dict[str, Callable[[], Any]] = {}
    right = True
    given = [upload(array, device) for array in arrays]  # the same memory for both: pages differ in speed
    for name in ("tested", "untested"):
        given[-1][...] = 0
        calls[name] = compiled(work, given, name == "tested")
        result = download(given[-1])
        right = right and bool((result.view(np.uint8) == expected.view(np.uint8)).all())
    seconds = seconds_in_turns(calls, device, budget, min)
    return seconds["tested"], seconds["untested"], right


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, help="how long each work is measured (default: 3; quick: 0.3)")
    parser.add_argument("--quick", action="store_true", help="few works, few elements; for whether it runs at all")
    parser.add_argument("--only", default="", help="works whose name contains this")
    parser.add_argument("--most", type=float, default=3.0, help="per cent that the tests may cost")
    options = parser.parse_args()
    seconds = options.seconds or (0.3 if options.quick else 3.0)
    table = Table("work", "tested, ns", "untested, ns", "cost, %", "", title=f"one element on {options.device}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="tessera-bounds-") as folder:
        os.environ["BOUNDS_FOLDER"] = folder
        for work in works(options.quick):
            if options.only not in work.name:
                continue
            tested, untested, right = measure(work, options.device, seconds)
            cost = (tested / untested - 1) * 100
            verdict = "wrong" if not right else "" if cost <= options.most else "dear"
            failed = failed or verdict != ""
            scale = 1e9 / work.elements
            table.add_row(work.name, f"{tested * scale:.3f}", f"{untested * scale:.3f}", f"{cost:+.1f}", verdict)
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
