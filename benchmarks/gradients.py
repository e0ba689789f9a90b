"""Measures gradients that `ts.pullback` derives from tile kernels, on a GPU, beside those of libraries and by hand.

    python benchmarks/gradients.py [--csv results.csv] [--turns 5] [--only attention gemm]

The backward pass of `examples/flash_attention.py` stands beside cuDNN's through PyTorch and `ops.flash_attention`'s own
kernels; both gradients of `examples/gemm.py` beside two products of cuBLAS. bf16 operands; sums that a kernel stores in
f32 too. Ratios above 1 mean that what is derived is faster; times are of single calls after a flush of L2, in turns.
Gradients of smaller calls are compared with float64 first, and any that is further from it than rounding allows ends
the run with status 1.
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

from foundation import EXAMPLES, torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts
from tessera import ops as op

sys.path.insert(0, str(EXAMPLES))

HEADS = 64
ERROR = 2e-2
"""Largest difference allowed, as a part of the largest exact element."""
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096))
"""Rows, columns and terms of products."""
COLUMNS = ("gradients of", "sizes", "derived TFLOP/s", "library", "by hand", "ratio to library", "ratio to hand")

Line = tuple[str, str, float, float, float, float, float]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--only", nargs="+", choices=("attention", "gemm"), default=("attention", "gemm"))
    parser.add_argument("--positions", type=int, nargs="+", default=(4096, 16384))
    parser.add_argument("--heads", type=int, nargs="+", default=(128, 64), help="elements of a head")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    if faults := [fault for name in args.only for fault in CHECKS[name](torch)]:
        print("\n".join(faults), file=sys.stderr)
        return 1
    lines = list[Line]()
    if "attention" in args.only:
        for positions, size, causal in product(args.positions, args.heads, (False, True)):
            lines.append(attention(torch, args.turns, positions, size, causal))
    if "gemm" in args.only:
        for sizes, out in product(SIZES, (ts.bf16, ts.f32)):
            lines.append(gemm(torch, args.turns, sizes, out))
    show(lines)
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(lines)
    return 0


def show(lines: list[Line]) -> None:
    """Print a table."""
    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(*line[:2], *(f"{rate:.0f}" for rate in line[2:5]), *(f"{ratio:.3f}" for ratio in line[5:]))
    console = Console()
    console.width = max(console.width, 120)
    console.print(table)


def timed(torch: Any, turns: int, name: str, sizes: str, flops: float, calls: dict[str, Callable[[], Any]]) -> Line:
    """Return the line of the calls `derived`, `library` and, where there is one, `hand`."""
    seconds = Timer(torch, 0.1).flushed_in_turns(calls, turns)
    rates = {one: 1e-12 * flops / taken for one, taken in seconds.items()}
    derived, library, hand = rates["derived"], rates["library"], rates.get("hand", math.nan)
    return name, sizes, derived, library, hand, derived / library, derived / hand


def difference(found: Any, exact: Any) -> float:
    """Return the largest difference, as a part of the largest exact element; infinity where there is no number."""
    error = float((found.double() - exact).abs().max() / exact.abs().max())
    return error if math.isfinite(error) else math.inf


# Attention


def derived_attention(torch: Any, arrays: list[Any], grad: Any, causal: bool) -> Callable[[], Any]:
    """Return the call of the derived backward pass, behind one of the kernel."""
    import flash_attention

    kernel = flash_attention.flash_attention_for(ts.bf16, "cuda")
    out = torch.empty_like(arrays[0])
    kernel(*arrays, out, causal)
    pullback = ts.pullback(kernel, ("Q", "K", "V"))
    return lambda: pullback(*arrays, out, causal, cotangents=grad)


def check_attention(torch: Any) -> list[str]:
    """Return what is wrong with the derived backward pass."""
    faults = list[str]()
    for size, causal, positions in product((128, 64), (False, True), (1, 333, 512)):
        *given, grad = (torch.randn(3, positions, size, device="cuda").bfloat16() for _ in range(4))
        found = derived_attention(torch, given, grad, causal)()
        exact = [one.double().requires_grad_() for one in given]
        scores = exact[0] @ exact[1].transpose(1, 2) / math.sqrt(size)
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        (torch.softmax(scores, -1) @ exact[2]).backward(grad.double())
        for name, one in zip("QKV", exact, strict=True):
            if positions == 1 and name != "V":
                error = float(found[name].double().abs().max())
            else:
                error = difference(found[name], one.grad)
            if not error < ERROR:
                faults.append(
                    f"attention, head {size}, {positions} positions, causal {causal}: {name} off by {error:.2e}"
                )
    return faults


def attention(torch: Any, turns: int, positions: int, size: int, causal: bool) -> Line:
    """Return the line of a backward pass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    *given, grad = (torch.randn(HEADS, positions, size, device="cuda").bfloat16() for _ in range(4))
    wide = [one[None].clone().requires_grad_() for one in given]
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        library = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    hand = op.flash_attention(*wide, causal=causal)
    calls: dict[str, Callable[[], Any]] = {
        "derived": derived_attention(torch, given, grad, causal),
        "library": lambda: torch.autograd.grad(library, wide, grad[None], retain_graph=True),
        "hand": lambda: torch.autograd.grad(hand, wide, grad[None], retain_graph=True),
    }
    flops = 10 * HEADS * positions**2 * size * (0.5 if causal else 1.0)
    name = "attention, causal" if causal else "attention"
    return timed(torch, turns, name, f"{HEADS} x {positions} x {size}", flops, calls)


# Products


def derived_gemm(torch: Any, a: Any, b: Any, grad: Any, out: ts.DType) -> Callable[[], Any]:
    """Return the call of both derived gradients of a product."""
    import gemm as example

    kernel = example.gemm_for(ts.bf16, out, "cuda")
    result = torch.empty_like(grad)
    kernel(a, b, result)
    pullback = ts.pullback(kernel, ("A", "B"))
    return lambda: pullback(a, b, result, cotangents=grad)


def product_of(torch: Any, sizes: tuple[int, int, int], out: ts.DType) -> tuple[Any, Any, Any]:
    """Return both operands and the cotangent of a result."""
    rows, columns, terms = sizes
    a, b = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((rows, terms), (terms, columns)))
    return a, b, torch.randn(rows, columns, device="cuda").to(torch.bfloat16 if out == ts.bf16 else torch.float32)


def check_gemm(torch: Any) -> list[str]:
    """Return what is wrong with the derived gradients of products."""
    faults = list[str]()
    for sizes, out in product(((300, 333, 777), (512, 256, 1024)), (ts.bf16, ts.f32)):
        a, b, grad = product_of(torch, sizes, out)
        found = derived_gemm(torch, a, b, grad, out)()
        for name, exact in (("A", grad.double() @ b.double().T), ("B", a.double().T @ grad.double())):
            error = difference(found[name], exact)
            if not error < ERROR:
                faults.append(f"product {sizes} of {out}: {name} off by {error:.2e}")
    return faults


def gemm(torch: Any, turns: int, sizes: tuple[int, int, int], out: ts.DType) -> Line:
    """Return the line of both gradients of a product."""
    a, b, grad = product_of(torch, sizes, out)

    def library() -> Any:
        part = grad.bfloat16()
        return part @ b.T, a.T @ part

    calls: dict[str, Callable[[], Any]] = {"derived": derived_gemm(torch, a, b, grad, out), "library": library}
    return timed(torch, turns, f"product to {out.name}", "x".join(map(str, sizes)), 4.0 * math.prod(sizes), calls)


CHECKS = {"attention": check_attention, "gemm": check_gemm}


if __name__ == "__main__":
    raise SystemExit(main())
