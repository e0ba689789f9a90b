"""Measures `ops.flash_attention_fp8` on a GPU beside cuDNN's attention in bf16 through PyTorch.

    python benchmarks/attention_fp8.py [--csv results.csv] [--turns 3] [--positions 4096 16384] [--heads 64 128 256]

16 heads, and as many batches as make 16384 positions. `kernel` has inputs that are rounded and values that are turned
already; `e4m3` takes rounded inputs, and turns values; `bf16` rounds its inputs by head, `blocks` by blocks of rows
after a Hadamard transform. TFLOP/s count the two products; ratios above 1 mean that Tessera is faster than cuDNN. Times
are of single calls after a flush of L2, in turns. A smaller call is compared with float64 first, and an error of more
than a tenth of the root mean square of what is exact ends the run with status 1.
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
from tessera.ops.attn import fp8_steps as steps

TOKENS, HEADS = 16384, 16
ERROR = 0.1
"""Largest error allowed, as a part of the root mean square of what is exact."""
FORMS: dict[str, dict[str, Any]] = {"bf16": {}, "blocks": {"scale": "block", "hadamard": True}}
COLUMNS = ("kernel", "e4m3", *FORMS, "cuDNN bf16")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    parser.add_argument("--positions", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--heads", type=int, nargs="+", default=(64, 128, 256), help="elements of a head")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    lines = list[tuple[Any, ...]]()
    for size, positions, causal in product(args.heads, args.positions, (False, True)):
        error = worst(torch, size, causal)
        if not error < ERROR:
            print(f"heads of {size}, causal {causal}: off by {error:.2e}", file=sys.stderr)
            return 1
        lines.append(measured(torch, args.turns, positions, size, causal))
    columns = (
        "head",
        "positions",
        "causal",
        *(f"{name} TFLOP/s" for name in COLUMNS),
        "kernel to cuDNN",
        "bf16 to cuDNN",
    )
    table = Table(*columns)
    for line in lines:
        table.add_row(
            *map(str, line[:3]), *(f"{value:.0f}" for value in line[3:-2]), *(f"{one:.3f}" for one in line[-2:])
        )
    console = Console()
    console.width = max(console.width, 140)
    console.print(table)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(lines)
    return 0


def operands(torch: Any, batch: int, positions: int, size: int) -> list[Any]:
    """Return queries, keys and values."""
    return [torch.randn(batch, HEADS, positions, size, device="cuda").bfloat16() for _ in range(3)]


def worst(torch: Any, size: int, causal: bool) -> float:
    """Return the largest error of a form of the call."""
    q, k, v = operands(torch, 1, 777, size)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(size)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    exact = torch.softmax(scores, -1) @ v.double()
    found = [op.flash_attention_fp8(q, k, v, causal=causal, **form) for form in FORMS.values()]
    found.append(op.flash_attention_fp8(*(one.to(torch.float8_e4m3fn) for one in (q, k, v)), causal=causal))
    errors = [float(((one.double() - exact).square().mean() / exact.square().mean()).sqrt()) for one in found]
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def kernel_alone(torch: Any, given: list[Any], causal: bool) -> Callable[[], Any]:
    """Return a call of the kernel of the products, with all that it reads in place."""
    q, k, v = (one.to(torch.float8_e4m3fn) for one in given)
    turned, _ = steps.quantized_values(v)
    one = steps.factor(1.0, q, tuple(q.shape[:2]))
    results = torch.empty_like(given[0]), None
    scales = one[..., None], one[..., None], one
    return lambda: steps.run(results, q, k, turned, scales, q.shape[3] ** -0.5, causal, False)


def measured(torch: Any, turns: int, positions: int, size: int, causal: bool) -> tuple[Any, ...]:
    """Return a line of the table."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch = max(1, TOKENS // positions)
    given = operands(torch, batch, positions, size)
    small = [one.to(torch.float8_e4m3fn) for one in given]

    def theirs() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)

    calls: dict[str, Callable[[], Any]] = {"kernel": kernel_alone(torch, given, causal)}
    calls["e4m3"] = lambda: op.flash_attention_fp8(*small, causal=causal)
    for name, form in FORMS.items():
        calls[name] = lambda form=form: op.flash_attention_fp8(*given, causal=causal, **form)
    calls["cuDNN bf16"] = theirs
    seconds = Timer(torch, 0.1).flushed_in_turns(calls, turns)
    flops = op.flash_attention_fp8.flops(*(tuple(one.shape) for one in given), causal=causal)
    rates = [1e-12 * flops / taken for taken in seconds.values()]
    return size, positions, causal, *rates, rates[0] / rates[-1], rates[2] / rates[-1]


if __name__ == "__main__":
    raise SystemExit(main())
