"""Measures plain kernels in tiles of any size on a GPU: products beside cuBLAS, the attention example beside cuDNN.

    python benchmarks/tiles.py [--blocks 96x192x48 64x64x32] [--sizes 4096 3008] [--as-written] [--heads 64 80 96]
                               [--turns 3]

Products are bf16, square, one loop over K in tiles of rows, columns and terms; `--as-written` keeps those. Attention is
`examples/flash_attention.py` as a user writes it, 4 x 16 heads of 4096 positions. Results are checked, contestants take
turns, L2 is flushed before each call. Ratios above 1 mean that Tessera is faster; a wrong result ends the run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

from foundation import torch_or_none
from gemm_timing import Timer
from rich.console import Console
from rich.table import Table

import tessera as ts

BLOCKS = (
    *("128x256x64", "128x128x32", "64x64x32", "32x32x32", "192x128x64", "128x192x64"),
    *("160x128x64", "96x192x48", "128x96x64", "128x80x32"),
)
HEADS = (64, 80, 96, 128, 256)
BATCH, COUNT, POSITIONS = 4, 16, 4096
ERROR = {"product": 4e-3, "attention": 2e-2}
"""Largest error: of products in the Euclidean norm, relative; of attention the largest difference."""

Call = Callable[[], Any]


def product_in(rows: int, columns: int, terms: int, space: dict[str, list[int]]) -> Any:
    """Return a product as one writes it, in tiles of a size."""

    @ts.kernel.autotune(space=space)
    def product(A: ts.Tensor["M", "K", ts.bf16], B: ts.Tensor["K", "N", ts.bf16], C: ts.Tensor["M", "N", ts.bf16]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc = ts.tile.zeros((rows, columns), ts.f32)
            for k in ts.tile.range(0, K, terms):
                acc = ts.tile.mma(A[m : m + rows, k : k + terms], B[k : k + terms, n : n + columns], acc)
            C[m : m + rows, n : n + columns] = acc

    return product


def block_of(text: str) -> tuple[int, int, int]:
    """Return rows, columns and terms of a tile written `96x192x48`."""
    rows, columns, terms = map(int, text.split("x"))
    return rows, columns, terms


def measured_product(
    torch: Any, timer: Timer, turns: int, block: str, size: int, space: dict[str, list[int]]
) -> tuple[str, float, float]:
    """Return the name of a product, its seconds and those of cuBLAS.

    Raises:
        SystemExit: it is wrong.
    """
    a, b = (torch.randn(size, size, device="cuda").bfloat16() for _ in range(2))
    out, other = torch.full_like(a, torch.nan), torch.empty_like(a)
    kernel = product_in(*block_of(block), space)
    kernel(a, b, out)
    exact = a.double() @ b.double()
    error = float((out.double() - exact).norm() / exact.norm())
    if not error < ERROR["product"]:
        raise SystemExit(f"product in {block}: off by {error:.1e}")
    contestants: dict[str, Call] = {"ours": lambda: kernel(a, b, out), "cuBLAS": lambda: torch.mm(a, b, out=other)}
    seconds = timer.flushed_in_turns(contestants, turns)
    return f"product of {size}³ in {block}", seconds["ours"], seconds["cuBLAS"]


def measured_attention(torch: Any, timer: Timer, turns: int, head: int, is_causal: bool) -> tuple[str, float, float]:
    """Return the name of an attention, its seconds and those of cuDNN.

    Raises:
        SystemExit: it is wrong.
    """
    from flash_attention import flash_attention_for  # `foundation` has put the examples on the path
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = BATCH * COUNT, POSITIONS, head
    q, k, v = (torch.randn(*shape, device="cuda").bfloat16() for _ in range(3))
    out, kernel = torch.full_like(q, torch.nan), flash_attention_for(ts.bf16, "cuda")
    given = [x.view(BATCH, COUNT, POSITIONS, head) for x in (q, k, v)]

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*given, is_causal=is_causal)

    kernel(q, k, v, out, is_causal)
    name = f"attention, heads of {head}{', causal' if is_causal else ''}"
    error = float((out.double() - cudnn().view_as(out).double()).abs().max())
    if not error < ERROR["attention"]:
        raise SystemExit(f"{name}: {error:.1e} from cuDNN")
    seconds = timer.flushed_in_turns({"ours": lambda: kernel(q, k, v, out, is_causal), "cuDNN": cudnn}, turns)
    return name, seconds["ours"], seconds["cuDNN"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", nargs="*", default=BLOCKS, help="rows x columns x terms of tiles")
    parser.add_argument("--sizes", nargs="+", type=int, default=(4096,), help="rows, columns and terms of products")
    parser.add_argument("--as-written", action="store_true", help="products keep their tiles")
    parser.add_argument("--heads", nargs="*", type=int, default=HEADS, help="sizes of heads of attention")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        raise SystemExit("needs PyTorch and a GPU")
    timer, lines = Timer(torch, 0.04), list[tuple[str, float, float]]()
    space = {"fit_blocks": [0]} if args.as_written else {}
    for size, block in itertools.product(args.sizes, args.blocks):
        lines.append(measured_product(torch, timer, args.turns, block, size, space))
    for head in args.heads:
        for is_causal in (False, True):
            lines.append(measured_attention(torch, timer, args.turns, head, is_causal))
    table = Table("work", "µs", "peer's µs", "ratio")
    for name, ours, theirs in lines:
        table.add_row(name, f"{1e6 * ours:.1f}", f"{1e6 * theirs:.1f}", f"{theirs / ours:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
