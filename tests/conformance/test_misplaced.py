"""Products of operands whose rows begin at any element: no copy engine and no vector load takes them as they lie."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType, accumulator_of
from tessera.numerics.tolerances import of_matmul
from tests.conformance.data import integers, normal
from tests.conformance.harness import BACKENDS, Case, Close, Output, check, conformance, dtype


def misplaced(rng: np.random.Generator, shape: tuple[int, int], dt: DType, *, before: int, pad: int) -> np.ndarray:
    """Return a matrix `before` elements behind an aligned address, with `pad` elements behind each row."""
    rows, columns = shape
    pitch = columns + pad
    flat = (before + rows * pitch + 1,)
    whole = integers(rng, flat, dt) if dt.is_int else normal(rng, flat, dt.storage)
    return whole[before : before + rows * pitch].reshape(rows, pitch)[:, :columns]


def exact(x: np.ndarray) -> np.ndarray:
    """Return the values as numbers of 64 bits."""
    return x.astype(np.float32).astype(np.float64)


def tiled(block: tuple[int, int, int], dt: DType, ahead: int) -> Any:
    """Return a product in tiles, whose loop begins `ahead` terms before the first: these are zeros."""
    rows, columns, terms = block
    acc_type = accumulator_of(dt)

    def kernel(a: ts.Tensor["M", "K", dt], b: ts.Tensor["K", "N", dt], c: ts.Tensor["M", "N", acc_type]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc = ts.tile.zeros((rows, columns), acc_type)
            for k in ts.tile.range(0, K + ahead, terms):
                at = k - ahead
                acc = ts.tile.mma(a[m : m + rows, at : at + terms], b[at : at + terms, n : n + columns], acc)
            c[m : m + rows, n : n + columns] = acc

    return kernel


def case_of(
    name: str,
    layout: str,
    sizes: tuple[int, int, int],
    block: tuple[int, int, int],
    before: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    ahead: int = 0,
) -> Case:
    """Return a product of operands that lie anywhere.

    Args:
        name: dtype of the operands.
        layout: of both, `T` where the transpose is contiguous.
        sizes: rows, columns, terms.
        block: the same of a tile.
        before: elements between an aligned address and each operand.
        pad: elements between the rows of each.
        ahead: terms before the first that the first tile begins at.
    """
    dt, (m, n, k) = dtype(name), sizes
    acc = accumulator_of(dt)

    def make(rng: np.random.Generator) -> list[Any]:
        given: list[Any] = []
        for shape, turned, off, gap in zip(((m, k), (k, n)), layout, before, pad, strict=True):
            if turned == "T":
                given.append(misplaced(rng, shape[::-1], dt, before=off, pad=gap).T)
            else:
                given.append(misplaced(rng, shape, dt, before=off, pad=gap))
        return [*given, Output((m, n), acc)]

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Close:
        total, magnitude = exact(a) @ exact(b), np.abs(exact(a)) @ np.abs(exact(b))
        return Close(total.astype(np.int64).astype(acc.numpy()), 0.0) if acc.is_int else Close(total, magnitude)

    words = "x".join(map(str, (*sizes, *block, *before, *pad, ahead)))
    return Case(
        f"{name}-{layout}-{words}",
        tiled(block, dt, ahead),
        make,
        reference,
        of_matmul(dt, acc, k + ahead),
        backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
    )


@conformance(
    [case_of("bf16", layout, (75, 69, 93), (64, 64, 32)) for layout in ("NN", "NT", "TN", "TT")]
    + [case_of("f16", "NN", (70, 45, 81), (64, 32, 64), (0, 0), (9, 7))]
    + [case_of("f16", "NT", (70, 44, 64), (88, 40, 24), (3, 5), (0, 9))]
    + [case_of("bf16", "NT", (65, 33, 50), (64, 32, 16), (1, 0), (0, 14))]
    + [case_of("i8", layout, (37, 51, 77), (32, 32, 32), (1, 3), (0, 1)) for layout in ("NT", "TN")]
    + [case_of("fp8_e4m3", "NT", (66, 35, 70), (64, 32, 64), (3, 2), (1, 0))]
    + [case_of("bf16", "NT", (3, 5, 1), (64, 64, 32))]
)
def test_products_of_rows_that_begin_anywhere(case, backend):
    check(case, backend)


@conformance(
    [case_of("bf16", layout, (40, 36, 47), (32, 32, 32), ahead=ahead) for layout in ("NT", "TN") for ahead in (3, 40)]
    + [case_of("i8", "NT", (40, 36, 47), (32, 32, 32), ahead=5)]
)
def test_tiles_that_begin_before_the_tensor(case, backend):
    check(case, backend)


@conformance([case_of("bf16", "NT", (5, 6, 0), (64, 64, 32))])
def test_products_without_terms(case, backend):
    check(case, backend)
