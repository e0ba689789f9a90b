"""Results of products that are a part of something larger: columns between others, rows that a tile begins before.

What lies around them belongs to somebody else. The copy engine of Hopper writes whole units of 16 bytes, of which a row
may have only the first elements, and stops the kernel at a box that begins before a tensor; so it does neither here.
"""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.data import integers
from tests.conformance.harness import Case, Updated, check, conformance, dtype

ON = ("interp", "cpu", "ptx-sm_80", "ptx-sm_90a", "cuda")
K = 128


@ts.function
def product_of(a: Any, b: Any, m: Any, n: Any, rows: Any, columns: Any) -> Any:
    """Return a tile of a product."""
    acc = ts.tile.zeros((rows, columns), ts.f32)
    for k in ts.tile.range(0, a.shape[1], 32):
        acc = ts.tile.mma(a[m : m + rows, k : k + 32], b[k : k + 32, n : n + columns], acc)
    return acc


def stored(block: tuple[int, int], out: DType, down: int, right: int, turned: bool) -> Any:
    """Return a product whose tiles are stored some rows and columns further on, or before, as they are or turned."""
    rows, columns = block

    def plain(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["R", "C", out]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            i, j = m + down, n + right
            c[i : i + rows, j : j + columns] = product_of(a, b, m, n, rows, columns)

    def transposed(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["C", "R", out]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            i, j = m + down, n + right
            c[j : j + columns, i : i + rows] = product_of(a, b, m, n, rows, columns).T

    return transposed if turned else plain


def case_of(
    out: str,
    sizes: tuple[int, int],
    pad: int,
    down: int = 0,
    right: int = 0,
    block: tuple[int, int] = (64, 64),
    turned: bool = False,
) -> Case:
    """Return a product into columns of a wider array.

    Args:
        out: dtype of the result.
        sizes: of the result, as the product has them.
        pad: elements between its rows.
        down: rows by which tiles are stored further on.
        right: columns by which they are.
        block: of a tile.
        turned: whether the transpose is stored.
    """
    dt, (m, n) = dtype(out), sizes

    def make(rng: np.random.Generator) -> list[Any]:
        a, b = (rng.integers(-2, 3, (size, K)).astype(ts.bf16.numpy()) for size in (m, n))
        shape = (n, m) if turned else (m, n)
        around = integers(rng, (shape[0], shape[1] + pad), dtype("i8")).astype(dt.numpy())
        return [a, b.T, Updated(around[:, : shape[1]])]

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        product = np.zeros((-(-m // block[0]) * block[0], -(-n // block[1]) * block[1]))
        product[:m, :n] = a.astype(np.float64) @ b.astype(np.float64)
        found = c.T.copy() if turned else c.copy()
        for i in range(m):
            for j in range(n):
                if 0 <= i - down < product.shape[0] and 0 <= j - right < product.shape[1]:
                    found[i, j] = product[i - down, j - right]
        return found.T if turned else found

    words = f"{out}-{m}x{n}-{pad}-{down}-{right}-{block[0]}x{block[1]}{'-turned' if turned else ''}"
    return Case(words, stored(block, dt, down, right, turned), make, reference, backends=ON)


@conformance(
    [case_of("f32", (70, n), -n % 4 + 8) for n in (1, 30, 66, 73, 127)]
    + [case_of("bf16", (70, n), -n % 8 + 8) for n in (7, 33, 68, 71, 100)]
    + [case_of("f16", (65, 73), 7, block=(64, 96)), case_of("f32", (1, 6), 2), case_of("bf16", (1, 12), 4)]
    + [case_of("f32", (73, 33), 7, turned=True), case_of("bf16", (66, 65), 14, turned=True, block=(96, 64))]
)
def test_what_lies_between_rows_stays(case, backend):
    check(case, backend)


@conformance(
    [case_of(out, (96, 80), 16, down, right) for out in ("f32", "bf16") for down, right in ((-7, 0), (0, -8), (-64, 8))]
    + [
        case_of("f32", (96, 96), 0, 5, 16),
        case_of("f32", (97, 64), 4, -3, 0, (96, 64)),
        case_of("bf16", (64, 64), 0, -1),
    ]
    + [case_of("f32", (80, 96), 0, -8, -4, turned=True)]
)
def test_tiles_that_begin_before_the_result(case, backend):
    check(case, backend)
