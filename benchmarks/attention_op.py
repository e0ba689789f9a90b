"""Measures `ops.flash_attention`, forward and backward, on a GPU beside cuDNN and FlashAttention-2 through PyTorch.

    python benchmarks/attention_op.py [--csv results.csv] [--turns 3] [--positions 4096 16384] [--heads 128 64]
        [--tokens 16384]

bf16, 4 x 16 heads, or as many batches as make `--tokens` positions in all. Ratios above 1 mean that Tessera is faster;
times are of single calls after a flush of L2, in turns. Results and gradients of a smaller call are compared with
float64 first, and one that is further from it than rounding allows ends the run with status 1.
`benchmarks/attention.py` measures the forward kernel as a user writes it.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

from tessera import ops as op

BATCH, HEADS = 4, 16
ERROR = 2e-2
"""Largest difference allowed, as a part of the largest exact element."""
PEERS = ("cuDNN", "FlashAttention-2")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--positions", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--heads", type=int, nargs="+", default=(128, 64), help="elements of a head")
    parser.add_argument("--tokens", type=int, help="positions of all batches together")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    lines = list[tuple[Any, ...]]()
    for positions, size, causal in product(args.positions, args.heads, (False, True)):
        error = worst(torch, size, causal)
        if not error < ERROR:
            print(f"heads of {size}, causal {causal}: off by {error:.2e}", file=sys.stderr)
            return 1
        batch = BATCH if args.tokens is None else max(1, args.tokens // positions)
        lines += measured(torch, args.turns, batch, positions, size, causal)
    columns = ("pass", "positions", "head", "causal", "Tessera TFLOP/s", *PEERS, "ratio to cuDNN")
    table = Table(*columns)
    for line in lines:
        table.add_row(*map(str, line[:4]), *(f"{value:.0f}" for value in line[4:7]), f"{line[7]:.3f}")
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(lines)
    return 0


def operands(torch: Any, batch: int, heads: int, positions: int, size: int) -> list[Any]:
    """Return queries, keys, values and the gradient of a result."""
    return [torch.randn(batch, heads, positions, size, device="cuda").bfloat16() for _ in range(4)]


def worst(torch: Any, size: int, causal: bool) -> float:
    """Return the largest difference from float64 of a result and its gradients."""
    *given, grad = operands(torch, BATCH, 2, 333, size)
    ours = [one.clone().requires_grad_() for one in given]
    exact = [one.double().requires_grad_() for one in given]
    out = op.flash_attention(*ours, causal=causal)
    out.backward(grad)
    scores = exact[0] @ exact[1].transpose(-1, -2) / math.sqrt(size)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    wanted = torch.softmax(scores, -1) @ exact[2]
    wanted.backward(grad.double())
    pairs = [(out, wanted), *((one.grad, other.grad) for one, other in zip(ours, exact, strict=True))]
    found = [float((one.double() - other).abs().max() / other.abs().max()) for one, other in pairs]
    return math.nan if any(map(math.isnan, found)) else max(found)


def measured(torch: Any, turns: int, batch: int, positions: int, size: int, causal: bool) -> list[tuple[Any, ...]]:
    """Return a line for each pass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    *given, grad = operands(torch, batch, HEADS, positions, size)
    backends = dict(zip(PEERS, (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION), strict=True))

    def through(backend: Any) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=causal)

        return call

    forms = {"tessera": lambda *arrays: op.flash_attention(*arrays, causal=causal)}
    forms |= {name: through(backend) for name, backend in backends.items()}
    timer = Timer(torch, 0.1)
    forward = {name: (lambda form=form: form(*given)) for name, form in forms.items()}
    wide = [one.clone().requires_grad_() for one in given]
    results = {name: form(*wide) for name, form in forms.items()}
    backward = {
        name: (lambda result=result: torch.autograd.grad(result, wide, grad, retain_graph=True))
        for name, result in results.items()
    }
    flops = 4 * batch * HEADS * positions**2 * size * (0.5 if causal else 1.0)
    lines = list[tuple[Any, ...]]()
    for direction, calls, work in (("forward", forward, flops), ("backward", backward, 2.5 * flops)):
        seconds = timer.flushed_in_turns(calls, turns)
        rates = [1e-12 * work / taken for taken in seconds.values()]
        lines.append((direction, positions, size, causal, *rates, rates[0] / rates[1]))
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
