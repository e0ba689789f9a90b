"""Products that threads compute by multiply-adds: every order of storage, odd sizes and strides, any tile.

Operands are small integers, so that every order of adding gives the same sums, exactly.
"""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.conformance.harness import BACKENDS, Case, Output, check, conformance

M, N, K = ts.dims("M N K")
ON_GPUS = (*(name for name in BACKENDS if name not in ("cpu", "scheduled-sm_90a")), "ptx-sm_80", "ptx-sm_90a")
SIZES = ((70, 45, 41), (33, 130, 16), (129, 1, 7))
TILES = ((32, 32, 16, 4), (64, 128, 16, 8), (16, 64, 32, 1), (128, 16, 8, 4), (8, 8, 64, 2), (24, 40, 16, 4))


def kernel_of(stored: str, tile: tuple[int, int, int], dt: Any) -> Any:
    """Return a product whose operands are stored as they are (`n`) or transposed (`t`)."""
    rows, columns, terms = tile
    a_shape = ("M", "K") if stored[0] == "n" else ("K", "M")
    b_shape = ("K", "N") if stored[1] == "n" else ("N", "K")
    a_turned, b_turned = stored[0] == "t", stored[1] == "t"

    def multiply(a: ts.Tensor[*a_shape, dt], b: ts.Tensor[*b_shape, dt], c: ts.Tensor["M", "N", dt]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc = ts.tile.zeros((rows, columns), dt)
            for k in ts.tile.range(0, K, terms):
                left = a[k : k + terms, m : m + rows].T if a_turned else a[m : m + rows, k : k + terms]
                right = b[n : n + columns, k : k + terms].T if b_turned else b[k : k + terms, n : n + columns]
                acc = ts.tile.mma(left, right, acc)
            c[m : m + rows, n : n + columns] = acc

    return multiply


def padded(array: np.ndarray, pad: int) -> np.ndarray:
    """Return the array as a part of one with longer rows, so that rows begin at odd places."""
    wide = np.zeros((array.shape[0], array.shape[1] + pad), array.dtype)
    wide[:, pad:] = array
    return wide[:, pad:]


def case_of(stored: str, size: tuple[int, int, int], tile: tuple[int, ...], name: str, pad: int, **knobs: Any) -> Case:
    """Return one product."""
    m, n, k = size
    dt = getattr(ts, name)

    def make(rng: np.random.Generator) -> list[Any]:
        a, b = (rng.integers(-8, 9, shape).astype(dt.numpy()) for shape in ((m, k), (k, n)))
        a, b = (np.ascontiguousarray(x.T) if order == "t" else x for x, order in zip((a, b), stored, strict=True))
        return [padded(a, pad), padded(b, pad), Output((m, n), dt)]

    def reference(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        left, right = (x.T if order == "t" else x for x, order in zip((a, b), stored, strict=True))
        return left.astype(np.float64) @ right.astype(np.float64)

    chosen = {"mma_kind": "fma", "num_warps": tile[3], "terms": tile[2], **knobs}
    title = f"{stored}-{'x'.join(map(str, size))}-{'x'.join(map(str, tile))}-{name}-{pad}-{len(knobs)}"
    return Case(title, kernel_of(stored, tile[:3], dt), make, reference, backends=ON_GPUS, knobs=chosen)


def _cases() -> list[Case]:
    """Every order of storage with every tile and every size, of f32; f64; rows of 16 bytes and others."""
    orders = ("nn", "nt", "tn", "tt")
    found = [
        case_of(o, SIZES[(i + j) % 3], tile, "f32", j % 2) for i, o in enumerate(orders) for j, tile in enumerate(TILES)
    ]
    found += [case_of(order, SIZES[0], TILES[0], "f64", 0) for order in orders]
    found += [case_of(order, (68, 44, 36), TILES[0], "f32", pad) for order in orders for pad in (0, 1)]
    return found


@conformance(_cases())
def test_products_by_multiply_adds(case, backend):
    check(case, backend)


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_programs_share_the_terms_of_a_tile(order):
    check(case_of(order, (40, 24, 300), (16, 16, 32, 2), "f32", 0, split_k=4), "ptx-sm_90a")
