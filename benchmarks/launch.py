"""Measures the host's time of a launch on a GPU beside Triton, a PyTorch op and the driver alone, in turns.

    python benchmarks/launch.py [--turns 5]

Each kernel adds one to eight small arrays, so that the GPU is done before the host: what is timed is Python's call, the
guards, the packing of parameters and the driver. `driver` is `cuLaunchKernel` in a compiled loop, with nothing around
it. No queue fills and nothing is waited for in the timed part. Results are checked first.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from foundation import torch_or_none
from rich.console import Console
from rich.table import Table

import tessera as ts

Call = Callable[[], Any]

BATCH = 200
"""Launches of a timed part, fewer than a queue holds."""
SIZE = 256
F32 = ts.Tensor["n", ts.f32]


@ts.kernel
def one(a: F32):
    """Add 1 to an array."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] + 1.0


@ts.kernel
def two(a: F32, b: F32):
    """Add an array to another."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] + b[i]


@ts.kernel
def four(a: F32, b: F32, c: F32, d: F32):
    """Add three arrays to another."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] + b[i] + c[i] + d[i]


@ts.kernel
def eight(a: F32, b: F32, c: F32, d: F32, e: F32, f: F32, g: F32, h: F32):
    """Add seven arrays to another."""
    i = ts.tile.linear_id()
    if i < n:
        a[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i]


KERNELS = {1: one, 2: two, 4: four, 8: eight}


def main() -> int:
    """Print the table; returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--turns", type=int, default=5)
    turns = options.parse_args().turns
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("launches are measured with PyTorch and a GPU", file=sys.stderr)
        return 2
    rows = {count: measured(torch, count, turns) for count in KERNELS}
    names = list(rows[1])
    table = Table("arrays", *names, title="host µs a launch")
    for count, found in rows.items():
        table.add_row(str(count), *(f"{found[name]:.2f}" for name in names))
    Console().print(table)
    return 0


def measured(torch: Any, count: int, turns: int) -> dict[str, float]:
    """Return microseconds by contestant, for kernels of `count` arrays."""
    kernel = KERNELS[count]
    tensors = [torch.randn(SIZE, device="cuda") for _ in range(count)]
    own = [ts.empty((SIZE,), ts.f32, device="cuda").fill(0.0) for _ in range(count)]
    expected = sum(tensor.double() for tensor in tensors) + (1.0 if count == 1 else 0.0)
    kernel(*tensors)
    torch.testing.assert_close(tensors[0].double(), expected, rtol=1e-5, atol=1e-5)
    for tensor in tensors:
        tensor.zero_()
    contestants: dict[str, Call] = {
        "Tessera, PyTorch tensors": lambda: kernel(*tensors),
        "Tessera arrays": lambda: kernel(*own),
        "PyTorch add_": lambda: tensors[0].add_(tensors[-1]),
    }
    if importlib.util.find_spec("triton") is not None:
        contestants["Triton"] = triton_sum(tensors)
    loop = driver_loop(torch, kernel)
    times: dict[str, list[float]] = {name: [] for name in (*contestants, "driver")}
    for call in contestants.values():
        for _ in range(5):
            call()
    for _ in range(4 * turns):
        for name, call in contestants.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(BATCH):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / BATCH)
        torch.cuda.synchronize()
        start = time.perf_counter()
        loop(BATCH)
        times["driver"].append(1e6 * (time.perf_counter() - start) / BATCH)
    torch.cuda.synchronize()
    return {name: median(found) for name, found in times.items()}


def triton_sum(tensors: list[Any]) -> Call:
    """Return the launch of a Triton kernel that reads every tensor and writes the first."""
    import triton
    import triton.language as tl

    @triton.jit
    def add1(a, n, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(a + i, tl.load(a + i, mask=i < n) + 1.0, mask=i < n)

    @triton.jit
    def add2(a, b, n, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(a + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)

    @triton.jit
    def add4(a, b, c, d, n, B: tl.constexpr):
        i = tl.arange(0, B)
        x = tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n)
        tl.store(a + i, x + tl.load(c + i, mask=i < n) + tl.load(d + i, mask=i < n), mask=i < n)

    @triton.jit
    def add8(a, b, c, d, e, f, g, h, n, B: tl.constexpr):
        i = tl.arange(0, B)
        x = tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n)
        x += tl.load(c + i, mask=i < n) + tl.load(d + i, mask=i < n)
        x += tl.load(e + i, mask=i < n) + tl.load(f + i, mask=i < n)
        tl.store(a + i, x + tl.load(g + i, mask=i < n) + tl.load(h + i, mask=i < n), mask=i < n)

    kernel = {1: add1, 2: add2, 4: add4, 8: add8}[len(tensors)]
    return lambda: kernel[(1,)](*tensors, SIZE, B=SIZE)


_LOOP = """
define void @loop(i64 %count, ptr %launch, ptr %function, ptr %stream, ptr %params, i32 %threads) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %next ]
  %status = call i32 %launch(ptr %function, i32 1, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 0,
                             ptr %stream, ptr %params, ptr null)
  %more = add i64 %i, 1
  %done = icmp uge i64 %more, %count
  br i1 %done, label %end, label %next
end:
  ret void
}
"""


def driver_loop(torch: Any, kernel: Any) -> Callable[[int], None]:
    """Return a function that launches the kernel's code so many times, on no elements."""
    from cuda.bindings import driver
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(_LOOP), machine)
    engine.finalize_object()
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int32)(
        engine.get_function_address("loop")
    )
    major, minor = torch.cuda.get_device_capability()
    made = ts.compile(kernel, target=f"sm_{major}{minor}", dims={"n": SIZE})
    _, module = driver.cuModuleLoadData(made.code)
    _, function = driver.cuModuleGetFunction(module, made.launches[0].entry.encode())
    zeros = (ctypes.c_uint64 * 64)()
    params = (ctypes.c_void_p * 64)(*[ctypes.addressof(zeros)] * 64)
    launch = ctypes.cast(ctypes.CDLL("libcuda.so.1").cuLaunchKernel, ctypes.c_void_p)
    stream = torch.cuda.current_stream().cuda_stream
    threads = made.launches[0].threads

    def run(count: int, _keep: Any = (engine, module, zeros)) -> None:
        loop(count, launch, int(function), stream, params, threads)

    return run


if __name__ == "__main__":
    raise SystemExit(main())
