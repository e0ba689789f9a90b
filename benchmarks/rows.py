"""Measures norms, softmax and simple functions of bf16 rows of any width on a GPU beside a copy and PyTorch.

    python benchmarks/rows.py [--only rms_norm] [--widths 32 100 1001] [--turns 3] [--csv rows.csv]
    python benchmarks/rows.py --rows 64 --widths 131072 [--knobs chunk=8192]

Kernels are written as one would write them: a program takes one row. How is told in `row_report.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from row_report import Given, Work, main

import tessera as ts

ELEMENTS = 1 << 26
WIDTHS = (32, 64, 100, 256, 257, 512, 1000, 1001, 1024, 2048, 4096, 8192)
EPS = 1e-6
ROUNDING = (2e-2, 1e-2)
"""Of bf16 results, and of f32 sums before."""


@ts.kernel
def double(x: ts.Tensor["m", "n", ts.bf16], y: ts.Tensor["m", "n", ts.bf16]):
    """Twice a row."""
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 2


@ts.kernel
def rms_norm(x: ts.Tensor["m", "n", ts.bf16], w: ts.Tensor["n", ts.bf16], y: ts.Tensor["m", "n", ts.bf16]):
    """RMSNorm with weights."""
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        scale = ts.tile.rsqrt(ts.tile.sum(row * row) / n + EPS)
        y[i, :] = (row * scale * w[:].to(ts.f32)).to(ts.bf16)


@ts.kernel
def layer_norm(x: ts.Tensor["m", "n", ts.bf16], w: ts.Tensor["n", ts.bf16], y: ts.Tensor["m", "n", ts.bf16]):
    """LayerNorm with weights."""
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        apart = row - ts.tile.sum(row) / n
        scale = ts.tile.rsqrt(ts.tile.sum(apart * apart) / n + EPS)
        y[i, :] = (apart * scale * w[:].to(ts.f32)).to(ts.bf16)


@ts.kernel
def softmax(x: ts.Tensor["m", "n", ts.bf16], y: ts.Tensor["m", "n", ts.bf16]):
    """Softmax of rows."""
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[i, :] = (powers / ts.tile.sum(powers)).to(ts.bf16)


def works(torch: Any, given: Given) -> Iterator[Work]:
    """Yield the works on rows."""
    nn, width = torch.nn.functional, given.width
    x = torch.randn(given.rows, width, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(width, device="cuda", dtype=torch.bfloat16)
    wide, weights, size = x.double(), w.double(), 2 * x.nbytes

    def work(what: str, call: Any, theirs: Any, expected: Any) -> Work:
        y = torch.full_like(x, torch.nan)
        return Work(what, lambda: call(y), theirs, y, expected, size, ROUNDING)

    ours = {kernel.__name__: given.fixed(kernel) for kernel in (double, rms_norm, layer_norm, softmax)}
    yield work("double", lambda y: ours["double"](x, y), lambda: x * 2, wide * 2)
    norm = nn.rms_norm(wide, (width,), weights, EPS)
    yield work("rms_norm", lambda y: ours["rms_norm"](x, w, y), lambda: nn.rms_norm(x, (width,), w, EPS), norm)
    norm = nn.layer_norm(wide, (width,), weights, None, EPS)
    yield work(
        "layer_norm", lambda y: ours["layer_norm"](x, w, y), lambda: nn.layer_norm(x, (width,), w, None, EPS), norm
    )
    yield work("softmax", lambda y: ours["softmax"](x, y), lambda: torch.softmax(x, 1), torch.softmax(wide, 1))


if __name__ == "__main__":
    raise SystemExit(main((__doc__ or "").splitlines()[0], works, WIDTHS, ELEMENTS))
