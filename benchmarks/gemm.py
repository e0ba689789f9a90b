"""Measures matrix products on a GPU beside cuBLAS and PyTorch, in one process, in turns, each result checked first.

    python benchmarks/gemm.py [--csv results.csv] [--turns 3]

Kernels are plain tile code: bf16 products over shapes and transposes, fp8, a linear layer with bias and GELU, the first
half of a gated MLP (two products that share an operand), and a product whose left operand is dequantised from int8. A
ratio above 1 means that Tessera is faster; the last line is the geometric mean of the large bf16 products. A result
that is not right to the last bits of bf16 ends the run with status 1.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gemm_kernels as kernels
from foundation import Call, Result, compared, gpu_seconds, in_turns, table_of, torch_or_none
from rich.console import Console

LARGE = (
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096), (8192, 8192, 1024),
    (4096, 14336, 4096),
)  # fmt: skip
SMALL = ((16, 4096, 4096), (128, 8192, 8192), (1000, 777, 333), (4096, 4096, 64))
TRANSPOSED = ((4096, 4096, 4096), (8192, 8192, 8192))
ERROR = 4e-3
"""Relative error of a bf16 result: its rounding is 1.7e-3 in the mean."""


class WrongResult(Exception):
    """A kernel's result differs from the reference."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--csv", type=Path, help="file for the results")
    parser.add_argument("--turns", type=int, default=3, help="turns of each contestant")
    args = parser.parse_args()
    torch = torch_or_none()
    if torch is None or not torch.cuda.is_available():
        print("no GPU, or no PyTorch to compare with", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    results: list[Result] = []
    try:
        for part in (_large, _small, _fp8, _linear, _gated, _dequantised):
            results += part(torch, args.turns)
    except WrongResult as error:
        print(error, file=sys.stderr)
        return 1
    console = Console()
    console.width = max(console.width, 120)
    console.print(table_of(results))
    ratios = [r.ratio for r in results if r.what.startswith("bf16") and r.ratio is not None]
    console.print(f"bf16, large: geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    if args.csv:
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(Result.__dataclass_fields__))
            writer.writeheader()
            writer.writerows(asdict(result) for result in results)
    return 0


def _measured(
    what: str, ours: Call, output: Any, reference: Any, peers: dict[str, Call], flops: float, turns: int
) -> Iterator[Result]:
    """Check a kernel on a poisoned output, then yield its figures beside its peers'."""
    output.fill_(float("nan"))
    ours()
    error = ((output.double() - reference.double()).norm() / reference.double().norm()).item()
    if not error < ERROR:
        raise WrongResult(f"{what}: relative error {error:.2e}")
    seconds = in_turns({"tessera": ours, **peers}, turns, gpu_seconds)
    yield from compared(what, "gpu", seconds, 1e-12 * flops, "TFLOP/s", "")


def _operands(torch: Any, m: int, n: int, k: int, layout: str = "NN") -> tuple[Any, Any, Any]:
    def normal(rows: int, columns: int, transposed: bool) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        made = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        return made.T if transposed else made

    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return normal(m, k, layout[0] == "T"), normal(k, n, layout[1] == "T"), out


def _bf16(torch: Any, shape: tuple[int, int, int], layout: str, name: str, turns: int) -> Iterator[Result]:
    m, n, k = shape
    a, b, c = _operands(torch, m, n, k, layout)
    peers: dict[str, Call] = {"cuBLAS": lambda: torch.mm(a, b)}
    what = f"{name} {layout} {m}x{n}x{k}"
    yield from _measured(
        what, lambda: kernels.product(a, b, c), c, a.float() @ b.float(), peers, 2 * m * n * k, turns
    )


def _large(torch: Any, turns: int) -> Iterator[Result]:
    for shape in LARGE:
        for layout in ("NN", "NT", "TN", "TT") if shape in TRANSPOSED else ("NN",):
            yield from _bf16(torch, shape, layout, "bf16", turns)


def _small(torch: Any, turns: int) -> Iterator[Result]:
    for shape in SMALL:
        yield from _bf16(torch, shape, "NN", "small bf16", turns)


def _fp8(torch: Any, turns: int) -> Iterator[Result]:
    one = torch.ones((), device="cuda")
    for size in (4096, 8192):
        a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
        c = torch.empty(size, size, device="cuda", dtype=torch.bfloat16)

        def ours(a: Any = a, b: Any = b, c: Any = c) -> None:
            kernels.product_fp8(a, b, c)

        def theirs(a: Any = a, b: Any = b) -> None:
            torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16)

        reference = a.float() @ b.float().T
        yield from _measured(f"fp8 {size}³", ours, c, reference, {"cuBLAS": theirs}, 2 * size**3, turns)


def _linear(torch: Any, turns: int) -> Iterator[Result]:
    m, n, k = 8192, 16384, 4096
    a, b, c = _operands(torch, m, n, k)
    b.div_(math.sqrt(k))
    bias = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    reference = torch.nn.functional.gelu(a.float() @ b.float() + bias.float(), approximate="tanh")
    peers: dict[str, Call] = {"cuBLASLt": lambda: torch._addmm_activation(bias, a, b, use_gelu=True)}
    what = f"linear + bias + GELU {m}x{n}x{k}"
    yield from _measured(
        what, lambda: kernels.linear_gelu(a, b, bias, c), c, reference, peers, 2 * m * n * k, turns
    )


def _gated(torch: Any, turns: int) -> Iterator[Result]:
    m, n, k = 4096, 11008, 4096
    x, gate, y = _operands(torch, m, n, k)
    up = torch.randn(k, n, device="cuda", dtype=torch.bfloat16).div_(math.sqrt(k))
    gate.div_(math.sqrt(k))
    silu: Callable[[Any], Any] = torch.nn.functional.silu
    reference = silu(x.float() @ gate.float()) * (x.float() @ up.float())
    peers: dict[str, Call] = {"2 cuBLAS + elementwise": lambda: silu(x @ gate) * (x @ up)}
    what = f"SiLU(x·G) * (x·U) {m}x{n}x{k}"
    yield from _measured(
        what, lambda: kernels.gated(x, gate, up, y), y, reference, peers, 4 * m * n * k, turns
    )


def _dequantised(torch: Any, turns: int) -> Iterator[Result]:
    size = 4096
    a = torch.randint(-127, 128, (size, size), device="cuda", dtype=torch.int8)
    scale = torch.rand(size, device="cuda")
    _, b, c = _operands(torch, size, size, size)
    reference = (a.float() @ b.float()) * scale[:, None]
    peers: dict[str, Call] = {"cuBLAS in bf16": lambda: torch.mm(b, b)}
    what = f"int8 dequantised in the prologue {size}³"
    yield from _measured(
        what, lambda: kernels.dequantised(a, scale, b, c), c, reference, peers, 2 * size**3, turns
    )


if __name__ == "__main__":
    raise SystemExit(main())
