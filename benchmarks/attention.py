"""Measures attention forward on a GPU beside cuDNN and FlashAttention-2 through PyTorch, in turns, results checked.

    python benchmarks/attention.py [--csv results.csv] [--turns 5]

The kernel is plain tile code in bf16; roles, rings and the overlap of softmax and products are the schedule's. Ratios
above 1 mean that Tessera is faster; times are of single calls after a flush of L2 (`gemm_timing.py`). A result that is
further from float64 than rounding allows ends the run with status 1.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts

BATCH, HEADS = 4, 16
SHAPES = (
    (4096, 128, False),
    (4096, 128, True),
    (16384, 128, False),
    (16384, 128, True),
    (4096, 64, False),
    (4096, 64, True),
)
"""Positions, size of a head, causal or not."""
CHECKED = ((333, 128), (1000, 64))
"""Positions and size of a head of what is compared with float64."""
ERROR = 3e-2
"""Largest difference allowed: results of a few are rounded to 8 bits."""


@functools.cache
def attention(size: int, causal: bool) -> Any:
    """Return the kernel for heads of a size; exponentials are of base 2, the scale folded in."""
    scale = 1.4426950408889634 / math.sqrt(size)

    @ts.kernel.autotune(space=dict(BM=[128], BN=[128], num_warps=[8]), key=("S",))
    def forward(
        Q: ts.Tensor["B", "H", "S", size, ts.bf16],
        K: ts.Tensor["B", "H", "S", size, ts.bf16],
        V: ts.Tensor["B", "H", "S", size, ts.bf16],
        OUT: ts.Tensor["B", "H", "S", size, ts.bf16],
    ):
        ctx = ts.tile.context()
        for b, h, m in ts.tile.grid((B, 1), (H, 1), (S, ctx.BM)):
            q = Q[b, h, m : m + ctx.BM, :]
            acc = ts.tile.zeros((ctx.BM, size), ts.f32)
            top = ts.tile.full((ctx.BM,), -float("inf"), ts.f32)
            total = ts.tile.zeros((ctx.BM,), ts.f32)
            end = ts.tile.minimum(S, m + ctx.BM) if causal else S
            for n in ts.tile.range(0, end, ctx.BN):
                scores = ts.tile.mma(q, K[b, h, n : n + ctx.BN, :].T)
                if causal:
                    scores = ts.tile.causal_mask(scores, m, n)
                else:
                    scores = ts.tile.where(n + ts.tile.arange(ctx.BN) < S, scores, -float("inf"))
                new = ts.tile.maximum(top, ts.tile.row_max(scores))
                alpha = ts.tile.exp2((top - new) * scale)
                p = ts.tile.exp2(scores * scale - (new * scale)[:, None])
                total = alpha * total + ts.tile.row_sum(p)
                acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), V[b, h, n : n + ctx.BN, :], alpha[:, None] * acc)
                top = new
            OUT[b, h, m : m + ctx.BM, :] = acc / total[:, None]

    return forward


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contestant")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    for positions, size in CHECKED:
        for causal in (False, True):
            error = _error(torch, positions, size, causal)
            if not error < ERROR:
                print(f"{positions} positions of {size}, causal {causal}: off by {error:.2e}", file=sys.stderr)
                return 1
    rows = [_measured(torch, args.turns, *shape) for shape in SHAPES]
    table = Table("positions", "head", "causal", "Tessera TFLOP/s", "cuDNN", "FlashAttention-2", "ratio to cuDNN")
    for row in rows:
        table.add_row(*map(str, row[:3]), *(f"{value:.0f}" for value in row[3:6]), f"{row[6]:.3f}")
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["positions", "head", "causal", "tessera_tflops", "cudnn_tflops", "fa2_tflops", "ratio"])
            writer.writerows(rows)
    return 0


def _operands(torch: Any, positions: int, size: int) -> tuple[Any, Any, Any]:
    def normal() -> Any:
        return torch.randn(BATCH, HEADS, positions, size, device="cuda").bfloat16()

    return normal(), normal(), normal()


def _error(torch: Any, positions: int, size: int, causal: bool) -> float:
    """Return the largest difference from float64 of a result in a poisoned output."""
    q, k, v = _operands(torch, positions, size)
    out = torch.full_like(q, float("nan"))
    attention(size, causal)(q, k, v, out)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(size)
    if causal:
        visible = torch.ones(positions, positions, dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~visible, -math.inf)
    difference = (out.double() - torch.softmax(scores, -1) @ v.double()).abs()
    return math.nan if difference.isnan().any() else difference.max().item()


def _measured(torch: Any, turns: int, positions: int, size: int, causal: bool) -> Sequence[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = _operands(torch, positions, size)
    out = torch.empty_like(q)
    kernel = attention(size, causal)

    def through(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call

    contestants = {
        "tessera": [lambda: kernel(q, k, v, out)],
        "cuDNN": [through(SDPBackend.CUDNN_ATTENTION)],
        "FlashAttention-2": [through(SDPBackend.FLASH_ATTENTION)],
    }
    timer = Timer(torch, 0.1)
    seconds, _ = timer.measured(contestants, turns)
    flops = 4 * BATCH * HEADS * positions**2 * size * (0.5 if causal else 1.0)
    rates = [1e-12 * flops / seconds[name].flushed for name in contestants]
    return positions, size, causal, *rates, rates[0] / rates[1]


if __name__ == "__main__":
    raise SystemExit(main())
