"""Measures Tessera's CPU kernels beside NumPy, PyTorch, `torch.compile` and Numba in one process, in turns.

    python benchmarks/cpu.py [--only gemm rows] [--match softmax] [--quick] [--no-compile] [--csv results.csv]

NumPy is the least a machine needs; the other peers take part where they are installed, `torch.compile` where there
is a C++ compiler (it takes some seconds a kernel: not in a `--quick` run unless `--compile` asks). The notes below
the table name the peers that are missing. A turn of one contestant is followed by
a turn of the next, with a pause that lets thread pools go to sleep; the median turn counts. A ratio above 1 means
that Tessera is faster than the fastest peer. Where other processes want the same cores, the threads of a peer wait
for each other at barriers: `--minimum` then judges the code more and the machine less. Every result, ours and the
peers', is checked against float64.

`malloc` is told to keep freed memory: PyTorch's operators allocate their results, and fresh pages would cost them
several times the work. `OPENBLAS_CORETYPE` and the like make peers slower than the machine: they are reported.
The exit status is 1 when one of our results is wrong; the ratios do not change it.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cpu_works
import numpy as np
from cpu_works import SECTIONS, TOLERANCE, Call, Setup, Work, works
from rich.console import Console
from rich.table import Table

import tessera as ts
from tessera.runtime.pool import thread_count

Pick = Callable[[Sequence[float]], float]

PAUSE_S = 0.15
"""OpenBLAS, OpenMP and our own workers spin for a while after their last job: OpenBLAS's for 0.1 s on a core that the
next contestant would do without."""
CALLS = 2000
_PEERS_SLOWED_BY = ("OPENBLAS_CORETYPE", "MKL_DEBUG_CPU_TYPE", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA")


@dataclass(frozen=True)
class Row:
    """One work measured.

    Args:
        work: the work.
        seconds: median turn of each contestant.
        ceilings: measured rates: `copy` in GB/s, `fma` in GFLOP/s.
        errors: error of each contestant's result.
    """

    work: Work
    seconds: dict[str, float]
    ceilings: dict[str, float]
    errors: dict[str, float]

    @property
    def peer(self) -> str:
        """The fastest peer whose result is right, empty without one."""
        allowed = TOLERANCE[self.work.dtype]
        right = [n for n in self.seconds if n != "tessera" and self.errors.get(n, 0.0) <= allowed]
        return min(right, key=lambda name: self.seconds[name], default="")

    @property
    def ratio(self) -> float | None:
        """Above 1 when Tessera is faster than the fastest peer."""
        return self.seconds[self.peer] / self.seconds["tessera"] if self.peer else None

    @property
    def correct(self) -> bool:
        """Whether our result is right."""
        return self.errors["tessera"] <= TOLERANCE[self.work.dtype]

    def rate(self, name: str) -> float:
        """Return the rate of a contestant, for calls its time in µs."""
        return self.work.amount / self.seconds[name] if self.work.amount else 1e6 * self.seconds[name]

    @property
    def share(self) -> float | None:
        """The rate over the measured ceiling."""
        return None if self.work.share is None else self.rate("tessera") / self.ceilings[self.work.share[0]]

    @property
    def verdict(self) -> str:
        """`wrong`, `pass` or `fail`, empty where no bar can be judged."""
        work = self.work
        judged: list[bool] = []
        if work.ratio is not None and self.ratio is not None:
            judged.append(self.ratio >= work.ratio)
        if work.share is not None and self.share is not None:
            judged.append(self.share >= work.share[1])
        if work.most_us is not None:
            judged.append(self.rate("tessera") <= work.most_us)
        return "wrong" if not self.correct else "" if not judged else "pass" if all(judged) else "fail"


# Timing


def turn_seconds(call: Call, least: float, pick: Pick = median) -> float:
    """Return the time of one call: the median over at least three calls and `least` seconds, after one more."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return pick(times)


def call_seconds(call: Call, least: float, pick: Pick = median) -> float:
    """Return the time of one call out of many in a loop, as one alone is below the clock's resolution."""
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def in_turns(
    contestants: dict[str, Call], turns: int, least: float, timer: Any, pick: Pick = median
) -> dict[str, float]:
    """Return the median turn of each contestant in seconds; they take turns: A, B, A, B."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, call in contestants.items():
            time.sleep(PAUSE_S)
            seconds[name].append(timer(call, least, pick))
    return {name: pick(values) for name, values in seconds.items()}


def measured(work: Work, args: argparse.Namespace, ceilings: dict[str, float]) -> Row:
    """Set a work up, check all results and time it."""
    setup = work.make(args.compile)
    errors = {name: _error(setup, name) for name in setup.contestants}
    timer = turn_seconds if work.amount else call_seconds
    beside = work.share is not None and work.share[0] == "copy"
    before = copy_rate(2, args.pick) if beside else 0.0
    seconds = in_turns(setup.contestants, args.turns, args.turn_s, timer, args.pick)
    if beside:
        # Memory that is shared with other machines changes its rate within a run: the larger one judges.
        ceilings = {**ceilings, "copy": max(before, copy_rate(2, args.pick))}
    return Row(work, seconds, ceilings, errors)


def _error(setup: Setup, name: str) -> float:
    result = setup.contestants[name]()
    if name == "tessera":
        return setup.check(setup.out)
    # The calls of peers differ from ours in what they add up, and are there for their time alone.
    return 0.0 if result is None or result.ndim == 1 else setup.check(result)


# Ceilings


def copy_rate(turns: int, pick: Pick) -> float:
    """Return the rate of a copy, read and written, in GB/s: the faster of `memcpy` on all threads and our own."""
    x, y = cpu_works.normal(1 << 24), ts.zeros(1 << 24)
    threads = thread_count()
    part = x.nbytes // threads
    with ThreadPoolExecutor(threads) as pool:

        def one(number: int) -> None:
            ctypes.memmove(y.ctypes.data + number * part, x.ctypes.data + number * part, part)

        def memcpy() -> None:
            list(pool.map(one, range(threads)))

        calls = {"memcpy": memcpy, "tessera": lambda: cpu_works.cpu_kernels.copy(x, y)}
        seconds = in_turns(calls, turns, 0.05, turn_seconds, pick)
    return 2e-9 * x.nbytes / min(seconds.values())


_FMA = """
declare <L x float> @llvm.fma.vLf32(<L x float>, <L x float>, <L x float>)
define void @fma(ptr %out, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
PHIS
CALLS
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %done
done:
STORES
  ret void
}
"""
_CHAINS = 20


def fma_rate() -> float:
    """Return the rate of fused multiply-adds on registers, all threads, in GFLOP/s: the peak of f32 products."""
    from llvmlite import (
        binding as llvm,
    )  # a ceiling is not a kernel: nothing that Tessera compiles is only arithmetic

    from tessera.backends.cpu.host import host_target

    record = host_target()
    lanes = record.vector_bytes // 4
    kind = f"<{lanes} x float>"
    unit = f"{kind} <{', '.join(['float 1.0'] * lanes)}>"
    phis = [f"  %a{i} = phi {kind} [ zeroinitializer, %entry ], [ %b{i}, %loop ]" for i in range(_CHAINS)]
    calls = [f"  %b{i} = call {kind} @llvm.fma.v{lanes}f32({unit}, {unit}, {kind} %a{i})" for i in range(_CHAINS)]
    stores = [
        line
        for i in range(_CHAINS)
        for line in (
            f"  %p{i} = getelementptr {kind}, ptr %out, i64 {i}",
            f"  store {kind} %b{i}, ptr %p{i}, align 4",
        )
    ]
    text = _FMA.replace("L x", f"{lanes} x").replace("vLf32", f"v{lanes}f32")
    for name, lines in (("PHIS", phis), ("CALLS", calls), ("STORES", stores)):
        text = text.replace(name, "\n".join(lines))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(record.triple).create_target_machine(
        cpu=record.cpu, features=record.llvm_features, opt=2, reloc="pic"
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("fma"))
    threads, count = thread_count(), 1_000_000
    out = [(ctypes.c_float * (lanes * _CHAINS))() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        best = min(turn_seconds(lambda: list(pool.map(lambda memory: run(memory, count), out)), 0.05) for _ in range(3))
    return 2e-9 * lanes * _CHAINS * count * threads / best


def ceilings_for(chosen: Sequence[Work]) -> dict[str, float]:
    """Measure the ceilings that no neighbour changes; the copy is measured beside each work."""
    wanted = {work.share[0] for work in chosen if work.share is not None}
    return {"fma": fma_rate()} if "fma" in wanted else {}


# The report


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows with their bars."""
    table = Table("work", "Tessera", "best peer", "", "ratio", "goal", "of ceiling", "goal", "error", "verdict")
    for row in rows:
        work = row.work
        peer = f"{row.rate(row.peer):.4g}" if row.peer else ""
        goal = f"≤ {work.most_us} µs" if work.most_us else f"≥ {work.ratio:g}" if work.ratio else ""
        share = (
            ""
            if row.share is None or work.share is None
            else f"{row.share:.2f} of {work.share[0]} {row.ceilings[work.share[0]]:.0f}"
        )
        table.add_row(
            f"{work.section} {work.name}",
            f"{row.rate('tessera'):.4g} {work.unit}",
            row.peer,
            peer,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            goal,
            share,
            "" if work.share is None else f"≥ {work.share[1]:g}",
            f"{row.errors['tessera']:.1e}",
            row.verdict,
        )
    return table


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write one line for each work and contestant."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            (
                "section",
                "work",
                "dtype",
                "contestant",
                "seconds",
                "rate",
                "unit",
                "error",
                "tessera_ratio",
                "verdict",
            )
        )
        for row in rows:
            for name, seconds in row.seconds.items():
                writer.writerow(
                    (
                        row.work.section,
                        row.work.name,
                        row.work.dtype,
                        name,
                        seconds,
                        row.rate(name),
                        row.work.unit,
                        row.errors[name],
                        seconds / row.seconds["tessera"],
                        row.verdict,
                    )
                )


def has_compiler() -> bool:
    """Whether there is a C++ compiler for `torch.compile`."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def notes(compiled: bool) -> list[str]:
    """Return what makes peers slower than they could be here, and which are missing.

    Args:
        compiled: whether `torch.compile` takes part.
    """
    found = [f"{name}={os.environ[name]} binds a peer" for name in _PEERS_SLOWED_BY if os.environ.get(name)]
    if cpu_works.torch_or_none() is None:
        found.append("PyTorch is not installed: no ratio for bf16, attention and most rows")
    elif not compiled:
        found.append("torch.compile takes no part" + ("" if has_compiler() else ": there is no C++ compiler"))
    if importlib.util.find_spec("numba") is None:
        found.append("Numba is not installed: it takes no part")
    return found


def keep_freed_memory() -> None:
    """Let glibc's `malloc` keep what is freed instead of giving its pages back."""
    if sys.platform == "linux":
        library: Any = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):
            library.mallopt(-4, 0)  # M_MMAP_MAX
            library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def parsed(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="sections")
    parser.add_argument("--match", nargs="+", default=[], help="only works whose name holds one of these")
    parser.add_argument("--quick", action="store_true", help="few and small works, two turns")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="torch.compile takes part (unless --quick, where there is a C++ compiler)",
    )
    parser.add_argument("--minimum", action="store_true", help="fastest instead of median: for a busy machine")
    parser.add_argument("--turns", type=int, help="turns of each contestant (5, quick 2)")
    parser.add_argument("--turn-s", type=float, help="seconds of a turn, at least (0.05, quick 0.01)")
    args = parser.parse_args(given)
    args.compile = has_compiler() and not args.quick if args.compile is None else args.compile
    args.turns = args.turns or (2 if args.quick else 5)
    args.turn_s = args.turn_s or (0.01 if args.quick else 0.05)
    args.pick = min if args.minimum else median
    return args


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parsed(given)
    keep_freed_memory()
    torch = cpu_works.torch_or_none()
    if torch is not None:
        torch.set_num_threads(thread_count())
        torch.set_grad_enabled(False)
    chosen = [
        work for work in works(args.only, args.quick) if not args.match or any(text in work.name for text in args.match)
    ]
    console = Console()
    console.width = max(console.width, 160)  # a pipe has none
    ceilings = ceilings_for(chosen)
    rows: list[Row] = []
    for work in chosen:
        with console.status(f"{work.section} {work.name}"):
            rows.append(measured(work, args, ceilings))
    console.print(table_of(rows))
    measured_rates = ", ".join(f"{name} {rate:.4g}" for name, rate in ceilings.items())
    console.print(
        f"{thread_count()} threads, NumPy {np.__version__}; ceilings (GB/s, GFLOP/s): {measured_rates or '-'}"
    )
    for note in notes(args.compile):
        console.print(f"note: {note}")
    if args.csv:
        write_csv(rows, args.csv)
    return 0 if all(row.correct for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
