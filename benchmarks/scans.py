"""Measures scans, reductions by combiners and sorting of rows on a GPU beside a copy and PyTorch, results checked.

    python benchmarks/scans.py [--only sort] [--widths 16384 100000] [--rows 64] [--turns 3] [--csv scans.csv]

Kernels are written as one would write them: a program takes one row. How is told in `row_report.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from row_report import Given, Work, main

import tessera as ts

ELEMENTS = 1 << 24
WIDTHS = (256, 1024, 4096, 16384)
LONGEST_SORT = 65536
LONGEST_TOPK = 131072
BEST = (64, 256)


@ts.function
def follow(a: Any, x: Any, b: Any, y: Any) -> Any:
    """Two steps of h = a h + x as one."""
    return a * b, b * x + y


@ts.kernel
def cumsum(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Running sums."""
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.cumsum(x[i, :], 0)


@ts.kernel
def recurrence(x: ts.Tensor["m", "n", ts.f32], a: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """h[t] = a[t] h[t - 1] + x[t]."""
    for i in ts.tile.grid((m, 1)):
        _, y[i, :] = ts.tile.associative_scan((a[i, :], x[i, :]), 0, follow)


@ts.kernel
def argmax(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.i32]):
    """Places of the largest."""
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.argmax(x[i, :], 0)


@ts.kernel
def variance(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    """Variances of rows."""
    for i in ts.tile.grid((m, 1)):
        y[i] = ts.tile.var(x[i, :], 0)


@ts.kernel
def sort(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", "n", ts.f32]):
    """Rows in order."""
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.sort(x[i, :], 0)


def topk_for(k: int) -> Any:
    """Return a kernel that stores the `k` largest of each row, and where they are."""

    @ts.kernel
    def topk(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", k, ts.f32], places: ts.Tensor["m", k, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, :], places[i, :] = ts.tile.topk(x[i, :], k, 0)

    return topk


TOPK = {k: topk_for(k) for k in BEST}


def works(torch: Any, given: Given) -> Iterator[Work]:
    """Yield the works on rows."""
    rows, width = given.rows, given.width
    ours = {kernel.__name__: given.fixed(kernel) for kernel in (cumsum, recurrence, argmax, variance, sort)}
    x = torch.randn(rows, width, device="cuda")
    y, decay = torch.full_like(x, torch.nan), torch.rand_like(x)
    size = x.nbytes
    sums = x.double().cumsum(1).float()
    yield Work("cumsum", lambda: ours["cumsum"](x, y), lambda: torch.cumsum(x, 1), y, sums, 2 * size)
    h = torch.full_like(x, torch.nan)
    yield Work("recurrence", lambda: ours["recurrence"](x, decay, h), None, h, _recurrence(torch, x, decay), 3 * size)
    place = torch.full((rows,), -1, device="cuda", dtype=torch.int32)
    yield Work("argmax", lambda: ours["argmax"](x, place), lambda: torch.argmax(x, 1), place, x.argmax(1), size)
    spread = torch.full((rows,), torch.nan, device="cuda")
    exact = x.double().var(1, correction=0).float()
    yield Work("var", lambda: ours["variance"](x, spread), lambda: torch.var(x, 1, correction=0), spread, exact, size)
    if width <= LONGEST_TOPK:
        yield from (_best_of(torch, given, x, k) for k in BEST if k < width)
    if width <= LONGEST_SORT:
        z = torch.full_like(x, torch.nan)
        yield Work("sort", lambda: ours["sort"](x, z), lambda: torch.sort(x, 1), z, x.sort(1).values, 2 * size)


def _best_of(torch: Any, given: Given, x: Any, k: int) -> Work:
    best = x.new_full((given.rows, k), torch.nan)
    places = torch.full((given.rows, k), -1, device="cuda", dtype=torch.int32)
    kernel, wanted = given.fixed(TOPK[k]), x.topk(k, 1).values
    return Work(f"topk {k}", lambda: kernel(x, best, places), lambda: torch.topk(x, k, 1), best, wanted, x.nbytes)


def _recurrence(torch: Any, x: Any, decay: Any) -> Any:
    h, total = torch.empty_like(x), torch.zeros(len(x), device="cuda", dtype=torch.float64)
    wide, factors = x.double(), decay.double()
    for t in range(x.shape[1]):
        total = total * factors[:, t] + wide[:, t]
        h[:, t] = total
    return h


if __name__ == "__main__":
    raise SystemExit(main((__doc__ or "").splitlines()[0], works, WIDTHS, ELEMENTS))
