"""Measures Tessera beside its peers in one process, in turns: CPU and GPU kernels, calls, compilation, import.

    python benchmarks/foundation.py [--csv results.csv] [--only cpu gpu calls compile]

NumPy is the least a machine needs; PyTorch (and on a GPU Triton) take part where they are installed. A turn of one
contestant is followed by a turn of the next, with a pause that lets thread pools go to sleep, and the median turn
counts. A ratio above 1 means that Tessera is faster. The exit status is 0 whatever the ratios are.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import gemm  # noqa: E402
import rmsnorm  # noqa: E402
import saxpy  # noqa: E402
import softmax  # noqa: E402

import tessera as ts  # noqa: E402
from tessera.driver.loaded import LoadedKernel  # noqa: E402

Call = Callable[[], Any]
Work = TypeVar("Work")

PAUSE_S = 0.05
"""OpenBLAS, OpenMP and our own workers spin for a while after their last job."""


@dataclass
class Result:
    """One line of the table.

    Args:
        what: the work.
        device: where.
        value: Tessera's figure.
        unit: of both figures.
        peer: whom it is compared with, empty for a figure alone.
        peer_value: the peer's figure.
        ratio: above 1 when Tessera is faster.
        goal: the ratio, or the figure, that is aimed at.
    """

    what: str
    device: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    goal: str = ""


def main() -> int:
    """Measure and print."""
    parts = {"cpu": cpu_kernels, "calls": calls, "compile": compilation, "gpu": gpu_kernels}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="+", choices=tuple(parts), default=tuple(parts))
    parser.add_argument("--turns", type=int, default=7, help="turns of each contestant")
    args = parser.parse_args()
    results: list[Result] = []
    console = Console()
    console.width = max(console.width, 120)  # a pipe has none
    for part in args.only:
        with console.status(part):
            results += parts[part](args.turns)
    console.print(table_of(results))
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(Result.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(result) for result in results)
    return 0


def table_of(results: Iterable[Result]) -> Table:
    """Return the results as a table."""
    table = Table("work", "device", "Tessera", "peer", "ratio", "goal")
    for row in results:
        peer = "" if row.peer_value is None else f"{row.peer} {row.peer_value:.4g}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.what, row.device, f"{row.value:.4g} {row.unit}", peer, ratio, row.goal)
    return table


def in_processes(share: Callable[[Any, int], None], args: Any, jobs: int) -> None:
    """Run shares of some work, each in a process of its own, and wait for all.

    Args:
        share: takes the options and the number of a share.
        args: the options.
        jobs: how many shares there are.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=share, args=(args, job)) for job in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@contextlib.contextmanager
def lines_of(path: Path | None) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Open a file of results as CSV, if one is wanted, and give what writes a line of it at once."""
    if path is None:
        yield lambda line: None
        return
    with path.open("w", newline="") as file:
        writer = csv.writer(file)

        def write(line: Sequence[Any]) -> None:
            writer.writerow(line)
            file.flush()

        yield write


def begun_within(minutes: float | None, works: Iterable[tuple[str, Work]]) -> Iterator[tuple[str, Work]]:
    """Yield works with their names; none begins after some minutes, if those are given."""
    end = time.monotonic() + 60 * minutes if minutes else None
    for name, work in works:
        if end is not None and time.monotonic() > end:
            print(f"{minutes} minutes are over before {name!r}", file=sys.stderr)
            return
        yield name, work


def torch_or_none() -> Any:
    """Return PyTorch where it is installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return torch


# Timing


def turn_seconds(call: Call, least: float = 0.05) -> float:
    """Return the time of one call: the median of several, the first not counted."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def in_turns(
    contestants: dict[str, Call], turns: int, timer: Callable[[Call], float] = turn_seconds
) -> dict[str, float]:
    """Return the median turn of each contestant in seconds; they take turns: A, B, A, B."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, call in contestants.items():
            time.sleep(PAUSE_S)
            seconds[name].append(timer(call))
    return {name: median(values) for name, values in seconds.items()}


def compared(what: str, device: str, seconds: dict[str, float], work: float, unit: str, goal: str) -> Iterator[Result]:
    """Yield one result per peer; `work` divided by seconds is the figure."""
    rates = {name: work / value for name, value in seconds.items()}
    ours = rates.pop("tessera")
    for peer, rate in rates.items():
        yield Result(what, device, ours, unit, peer, rate, ours / rate, goal)


# CPU kernels


def cpu_kernels(turns: int) -> list[Result]:
    """Measure kernels on NumPy arrays."""
    results = [*_cpu_saxpy(1 << 24, turns), *_cpu_saxpy(1 << 16, turns), *_cpu_softmax(4096, 4096, turns)]
    results += _cpu_rmsnorm(4096, 4096, turns)
    for size in (1024, 2048):
        results += _cpu_gemm(size, turns)
    return results


def _normal(*shape: int) -> np.ndarray:
    # 64-byte aligned, as PyTorch's arrays are: NumPy's own are not, and that costs them.
    array = ts.empty(shape)
    array[...] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return array


def _cpu_saxpy(n: int, turns: int) -> Iterator[Result]:
    x, y, scratch = _normal(n), _normal(n), ts.empty(n)

    def numpy() -> None:
        np.multiply(x, np.float32(1e-3), out=scratch)
        np.add(scratch, y, out=y)

    contestants: dict[str, Call] = {"tessera": lambda: saxpy.saxpy(x, y, 1e-3), "NumPy": numpy}
    torch = torch_or_none()
    if torch is not None:
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)
        contestants["PyTorch"] = lambda: ty.add_(tx, alpha=1e-3)
    yield from compared(f"saxpy f32 {n}", "cpu", in_turns(contestants, turns), 12e-9 * n, "GB/s", "≥ 0.7")


def _cpu_softmax(m: int, n: int, turns: int) -> Iterator[Result]:
    x, y = _normal(m, n), ts.empty((m, n))

    def numpy() -> None:
        np.subtract(x, x.max(axis=1, keepdims=True), out=y)
        np.exp(y, out=y)
        np.divide(y, y.sum(axis=1, keepdims=True), out=y)

    kernel = softmax.softmax_for(ts.f32)
    contestants: dict[str, Call] = {"tessera": lambda: kernel(x, y), "NumPy": numpy}
    torch = torch_or_none()
    if torch is not None:
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)
        contestants["PyTorch"] = lambda: torch.softmax(tx, dim=1, out=ty)
    yield from compared(f"softmax f32 {m}x{n}", "cpu", in_turns(contestants, turns), 8e-9 * m * n, "GB/s", "≥ 0.7")


def _cpu_rmsnorm(m: int, n: int, turns: int) -> Iterator[Result]:
    x, weight, y = _normal(m, n), _normal(n), ts.empty((m, n))

    def numpy() -> None:
        np.multiply(x, x, out=y)
        scale = 1 / np.sqrt(y.mean(axis=1, keepdims=True) + np.float32(1e-6))
        np.multiply(x, scale, out=y)
        np.multiply(y, weight, out=y)

    kernel = rmsnorm.rmsnorm_for(ts.f32)
    contestants: dict[str, Call] = {"tessera": lambda: kernel(x, weight, y), "NumPy": numpy}
    torch = torch_or_none()
    if torch is not None:
        tx, tw = torch.from_numpy(x), torch.from_numpy(weight)
        contestants["PyTorch (allocates)"] = lambda: torch.nn.functional.rms_norm(tx, (n,), tw, 1e-6)
    yield from compared(f"rmsnorm f32 {m}x{n}", "cpu", in_turns(contestants, turns), 8e-9 * m * n, "GB/s", "≥ 0.7")


def _cpu_gemm(size: int, turns: int) -> Iterator[Result]:
    a, b, c = _normal(size, size), _normal(size, size), ts.empty((size, size))
    kernel = gemm.gemm_for(ts.f32, ts.f32, "cpu")
    contestants: dict[str, Call] = {
        "tessera": lambda: kernel(a, b, c),
        "OpenBLAS (NumPy)": lambda: np.matmul(a, b, out=c),
    }
    torch = torch_or_none()
    if torch is not None:
        ta, tb, tc = (torch.from_numpy(array) for array in (a, b, c))
        contestants["PyTorch"] = lambda: torch.mm(ta, tb, out=tc)
    seconds = in_turns(contestants, turns, lambda call: turn_seconds(call, 0.2))
    yield from compared(f"gemm f32 {size}³", "cpu", seconds, 2e-9 * size**3, "GFLOP/s", "≥ 0.5")


# Calls


def calls(turns: int) -> list[Result]:
    """Measure what a call costs beside the work: kernels of one element."""
    x, y = _normal(1), _normal(1)
    contestants: dict[str, Call] = {
        "tessera": lambda: saxpy.saxpy(x, y, 1e-3),
        "NumPy np.add": lambda: np.add(x, y, out=y),
    }
    results = list(_overheads("call of saxpy, NumPy arrays", "cpu", contestants, turns))
    torch = torch_or_none()
    if torch is not None:
        tx, ty = torch.from_numpy(x), torch.from_numpy(y)
        contestants = {
            "tessera": lambda: saxpy.saxpy(tx, ty, 1e-3),
            "PyTorch add_": lambda: ty.add_(tx, alpha=1e-3),
        }
        results += _overheads("call of saxpy, torch tensors", "cpu", contestants, turns)
    return results


def _overheads(
    what: str,
    device: str,
    contestants: dict[str, Call],
    turns: int,
    goal: str = "",
    finish: Call = lambda: None,
) -> Iterator[Result]:
    def timer(call: Call) -> float:
        call()
        finish()
        start = time.perf_counter()
        for _ in range(1000):
            call()
        elapsed = time.perf_counter() - start
        finish()
        return elapsed / 1000

    micros = {name: 1e6 * value for name, value in in_turns(contestants, turns, timer).items()}
    ours = micros.pop("tessera")
    for peer, value in micros.items():
        yield Result(what, device, ours, "µs", peer, value, value / ours, goal)


# Compilation

_PROBE = """
import sys, time
sys.path.insert(0, {examples!r})
start = time.perf_counter()
import tessera as ts
imported = time.perf_counter()
import numpy as np
import gemm, saxpy
x, a = np.ones(64, np.float32), np.ones((64, 64), np.float32)
def timed(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
runs = dict(
    saxpy=lambda: saxpy.saxpy(x, x.copy(), 2.0),
    gemm=lambda: gemm.gemm_for(ts.f32, ts.f32, "cpu")(a, a, np.empty_like(a)),
    saxpy_ptx=lambda: ts.compile(saxpy.saxpy, target="sm_90a"),
    gemm_ptx=lambda: ts.compile(
        gemm.gemm_for(ts.bf16, ts.bf16, "cuda"), target="sm_90a", dims=dict(M=4096, N=4096, K=4096)
    ),
)
print(1e3 * (imported - start), *(timed(runs[name]) for name in sys.argv[1:]))
"""


def compilation(turns: int) -> list[Result]:
    """Measure imports, cold compilations and loads from the cache, each in processes of their own."""
    results = [Result("import tessera", "cpu", min(_probe(None)[0] for _ in range(3)), "ms", goal="≤ 300 ms")]
    goals = {"saxpy": 300, "gemm": 800, "saxpy_ptx": 300, "gemm_ptx": 800}
    if importlib.util.find_spec("cuda") is None:  # the extra that assembles cubins is not installed
        goals = {name: goal for name, goal in goals.items() if "ptx" not in name}
    for name, goal in goals.items():
        times = [_probe(None, name, name) for _ in range(3)]
        what = name.replace("_ptx", " for sm_90a")
        device = "gpu" if "ptx" in name else "cpu"
        first, again = (median(run[place] for run in times) for place in (1, 2))
        results.append(Result(f"cold, in a new process: {what}", device, first, "ms", goal=f"≤ {goal} ms"))
        if device == "gpu":  # ts.compile uses no cache, so the second is a compilation without the imports
            results.append(Result(f"cold, compiler loaded: {what}", device, again, "ms"))
    with tempfile.TemporaryDirectory() as cache:
        _probe(cache, "saxpy", "gemm")
        loads = [_probe(cache, "saxpy", "gemm") for _ in range(3)]
    first, second = (median(run[place] for run in loads) for place in (1, 2))
    results.append(Result("cached, in a new process: saxpy", "cpu", first, "ms"))
    results.append(Result("cached, next kernel: gemm", "cpu", second, "ms", goal="≤ 5 ms"))
    return results


def _probe(cache: str | None, *names: str) -> list[float]:
    """Return milliseconds of `import tessera` and of each piece of work, in a new process."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "TESSERA_CACHE_DIR": cache or empty}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        program = _PROBE.format(examples=str(EXAMPLES))
        # A file, as kernels need their source: the probe's own are in the examples.
        done = subprocess.run(
            [sys.executable, "-c", program, *names],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
    return [float(word) for word in done.stdout.split()]


# GPU kernels


def gpu_kernels(turns: int) -> list[Result]:
    """Measure kernels on PyTorch tensors; nothing where there is no GPU or no PyTorch."""
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        return []
    results = list(_gpu_gemm(torch, 4096, turns))
    for m, n in ((8192, 4096), (16384, 8192)):
        results += _gpu_rows(torch, m, n, turns)
    x, y = (torch.ones(1024, device="cuda") for _ in range(2))
    contestants: dict[str, Call] = {
        "tessera": lambda: saxpy.saxpy(x, y, 1e-3),
        "PyTorch add_": lambda: y.add_(x, alpha=1e-3),
    }
    if importlib.util.find_spec("triton") is not None:
        contestants["Triton"] = _triton_saxpy(x, y)
    results += _overheads("launch of saxpy", "gpu", contestants, turns, finish=torch.cuda.synchronize)
    return results


def gpu_seconds(call: Call) -> float:
    """Return the time of one call on the device, caches flushed before each."""
    if importlib.util.find_spec("triton") is not None:
        from triton.testing import do_bench

        return 1e-3 * do_bench(call, return_mode="median")
    import torch

    flush = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    times: list[float] = []
    for _ in range(50):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return median(times)


def _gpu_gemm(torch: Any, size: int, turns: int) -> Iterator[Result]:
    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    kernel = gemm.gemm_for(ts.bf16, ts.bf16, "cuda")
    # sm_90 has no warpgroup instructions: the path of every GPU since Ampere, on the same card.
    generic = LoadedKernel(ts.compile(kernel, target="sm_90", dims=dict(M=size, N=size, K=size)))
    for what, ours in (("gemm", kernel), ("gemm by mma.sync", generic)):
        contestants: dict[str, Call] = {
            "tessera": lambda ours=ours: ours(a, b, c),
            "cuBLAS": lambda: torch.mm(a, b, out=c),
        }
        seconds = in_turns(contestants, turns, gpu_seconds)
        yield from compared(f"{what} bf16 {size}³", "gpu", seconds, 2e-12 * size**3, "TFLOP/s", "≥ 0.55")


def _gpu_rows(torch: Any, m: int, n: int, turns: int) -> Iterator[Result]:
    x, y = (torch.randn(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    soft, norm = softmax.softmax_for(ts.bf16), rmsnorm.rmsnorm_for(ts.bf16)
    for what, ours, theirs in (
        ("softmax", lambda: soft(x, y), lambda: torch.softmax(x, dim=1, out=y)),
        ("rmsnorm", lambda: norm(x, weight, y), lambda: torch.nn.functional.rms_norm(x, (n,), weight, 1e-6)),
    ):
        contestants: dict[str, Call] = {"tessera": ours, "copy": lambda: y.copy_(x), "PyTorch": theirs}
        seconds = in_turns(contestants, turns, gpu_seconds)
        yield from compared(f"{what} bf16 {m}x{n}", "gpu", seconds, 4e-9 * m * n, "GB/s", "≥ 0.8 of copy")


def _triton_saxpy(x: Any, y: Any) -> Call:
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, alpha, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i, alpha * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

    return lambda: kernel[(1,)](x, y, 1e-3, 1024, BLOCK=1024)


if __name__ == "__main__":
    raise SystemExit(main())
