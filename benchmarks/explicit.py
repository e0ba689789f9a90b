"""Measures kernels with shared buffers, copies and barriers by hand beside the same over slices, results checked.

    python benchmarks/explicit.py [--turns 3]

Contestants of a work have one tile and take turns in one process; L2 is flushed before each call (`gemm_timing.py`).
`as written` is the kernel with `keep_copies=1`: what the copies by hand are worth as they are.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from attention_explicit import attention_explicit_for
from flash_attention import flash_attention_for
from gemm_explicit import gemm_explicit, gemm_ring, gemm_roles

Call = Callable[[], Any]
A, B = ts.Tensor["M", "K", ts.bf16], ts.Tensor["K", "N", ts.bf16]
C = ts.Tensor["M", "N", ts.f32]


@ts.kernel
def slices_64(a: A, b: B, c: C) -> None:
    """C += A @ B in the tiles of `gemm_explicit` and `gemm_ring`."""
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] += acc


@ts.kernel
def slices_128(a: A, b: B, c: C) -> None:
    """C += A @ B in the tiles of `gemm_roles`."""
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        acc = ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 128], acc)
        c[m : m + 128, n : n + 128] += acc


@dataclass(frozen=True)
class Work:
    """One thing to do.

    Args:
        what: its name.
        by_hand: does it on the explicit level.
        as_written: does it, and keeps the copies as they are written.
        by_slices: does it over slices.
        theirs: PyTorch's way.
        result: where the kernels leave it.
        prepare: makes the result ready for a checked call.
        expected: what is right.
        flops: its operations.
    """

    what: str
    by_hand: Call
    as_written: Call
    by_slices: Call
    theirs: Call
    result: Any
    prepare: Call
    expected: Any
    flops: float


def kept(kernel: Any) -> Any:
    """Return a kernel that keeps its copies."""
    return ts.kernel.autotune(space={"keep_copies": [1]})(kernel.signature.function)


def works(torch: Any, size: int, heads: int, length: int) -> Iterator[Work]:
    """Yield the works."""
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.zeros(size, size, device="cuda")
    right = a.double() @ b.double()
    pairs: list[tuple[Any, Any]] = [(gemm_explicit, slices_64), (gemm_ring, slices_64), (gemm_roles, slices_128)]
    for kernel, slices in pairs:
        yield Work(
            kernel.signature.name,
            partial(kernel, a, b, c),
            partial(kept(kernel), a, b, c),
            partial(slices, a, b, c),
            partial(torch.mm, a, b),
            c,
            c.zero_,
            right,
            2.0 * size**3,
        )
    q, k, v = (torch.randn(heads, length, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    by_hand: Any = attention_explicit_for(ts.bf16, 128, 64)
    by_slices: Any = flash_attention_for(ts.bf16)
    scores = (q.double() @ k.double().transpose(1, 2) / math.sqrt(128)).masked_fill(
        torch.ones(length, length, device="cuda", dtype=torch.bool).triu(1), -math.inf
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    yield Work(
        "attention_explicit",
        partial(by_hand, q, k, v, out),
        partial(kept(by_hand), q, k, v, out),
        partial(by_slices, q, k, v, out, True),
        partial(attend, q[None], k[None], v[None], is_causal=True),
        out,
        partial(out.fill_, math.nan),
        scores.softmax(-1) @ v.double(),
        2.0 * heads * length * length * 128,
    )


def measure(torch: Any, work: Work, timer: Timer, turns: int) -> tuple[Any, ...]:
    """Check a work's results, and return its line."""
    for call in (work.by_hand, work.as_written, work.by_slices):
        work.prepare()
        call()
        torch.testing.assert_close(work.result.double(), work.expected, rtol=1e-2, atol=1e-2)
    calls = {"hand": work.by_hand, "written": work.as_written, "slices": work.by_slices, "theirs": work.theirs}
    seconds, _ = timer.measured({name: [call] for name, call in calls.items()}, turns)
    hand = seconds["hand"].flushed
    ratios = [seconds[name].flushed / hand for name in ("slices", "written", "theirs")]
    return (work.what, 1e-12 * work.flops / hand, *ratios)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--size", type=int, default=4096, help="rows, columns and depth of the products")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048, help="queries and keys of the attention")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("needs PyTorch and a GPU")
    timer = Timer(torch, 0.05)
    table = Table("kernel", "TFLOP/s", "of slices", "of as written", "of PyTorch")
    for work in works(torch, args.size, args.heads, args.length):
        line = measure(torch, work, timer, args.turns)
        print(line, flush=True)
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in line))
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
