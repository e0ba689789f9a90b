"""Elements that change places: exchanges and sorting, of all dtypes, sizes and axes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

INTEGERS = tuple(f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in "iu")
DTYPES = ("bool", *INTEGERS, "fp8_e4m3", "bf16", "f16", "f32", "f64")


def _values(rng: np.random.Generator, shape: tuple[int, ...], of: DType) -> np.ndarray:
    """Return numbers with many equal ones, both infinities and NaNs of both signs, and integers of all bits."""
    if of.kind == "bool":
        return rng.integers(0, 2, shape, bool)
    low = 0 if of.kind == "uint" else -9
    if not of.is_float:
        kind, small = of.numpy(), rng.integers(low, 10, shape)
        ends = np.iinfo(kind)
        large = rng.integers(ends.min, ends.max, shape, kind, endpoint=True)
        return np.where(rng.random(shape) < 0.4, large, small.astype(kind))
    values = rng.integers(low, 10, shape).astype(np.float64)
    if of.is_float and of.bits > 8:  # results of 8 bits are poisoned by NaNs
        values = np.where(rng.random(shape) < 0.05, rng.choice([np.nan, -np.nan], shape), values)
        values = np.where(rng.random(shape) < 0.05, rng.choice([np.inf, -np.inf], shape), values)
    return values.astype(of.numpy())


def _exchanging(of: DType, shape: tuple[int, int], axis: int, bits: int) -> Callable[..., Any]:
    m, n = shape

    def kernel(x: ts.Tensor["M", "N", of], y: ts.Tensor["M", "N", of]):
        for i, j in ts.tile.grid((M, m), (N, n)):
            y[i : i + m, j : j + n] = ts.tile.exchange(x[i : i + m, j : j + n], bits, axis)

    return kernel


def _exchanged(x: np.ndarray, shape: tuple[int, int], axis: int, bits: int) -> np.ndarray:
    """Return what tiles of a shape that divides the array's become."""
    own = np.arange(x.shape[axis])
    size = shape[axis]
    partner = own % size ^ bits
    return np.take(x, np.where(partner < size, own // size * size + partner, own), axis)


@conformance(
    [
        Case(
            f"exchange-{of}-{m}x{n}-axis-{axis}-bits-{bits}-warps-{warps}",
            _exchanging(dtype(of), (m, n), axis, bits),
            lambda rng, of=of, m=m, n=n: [
                _values(rng, (2 * m, 3 * n), dtype(of)),
                Output((2 * m, 3 * n), dtype(of)),
            ],
            lambda x, _y, m=m, n=n, axis=axis, bits=bits: _exchanged(x, (m, n), axis, bits),
            EXACT,
            knobs={"num_warps": warps},
        )
        for of, m, n, axis, bits, warps in [
            *((of, 8, 64, 1, 5, 4) for of in DTYPES),
            *(("f32", 16, 128, 1, bits, 4) for bits in (1, 2, 6, 16, 33, 64, 127)),
            *(("bf16", 64, 32, 0, bits, 8) for bits in (1, 3, 8, 32, 63)),
            ("f64", 3, 37, 1, 19, 2),
            ("i64", 5, 6, 0, 3, 1),
            ("u8", 7, 100, 1, 127, 4),
            ("f32", 1, 1, 1, 1, 1),
            ("f32", 1, 12, 1, 9, 1),
            ("f32", 1, 11, 1, 9, 1),
            ("f32", 2, 4096, 1, 4095, 4),
        ]
    ]
)
def test_elements_meet_their_partners(case, backend):
    check(case, backend)


def _sorting(of: DType, shape: tuple[int, int], axis: int, descending: bool) -> Callable[..., Any]:
    m, n = shape

    def kernel(x: ts.Tensor["M", n, of], y: ts.Tensor["M", n, of], places: ts.Tensor["M", n, ts.i32]):
        for i in ts.tile.grid((M, m)):
            tile = x[i : i + m, :]
            y[i : i + m, :] = ts.tile.sort(tile, axis, descending)
            places[i : i + m, :] = ts.tile.argsort(tile, axis, descending)

    return kernel


def _order(x: np.ndarray, m: int, axis: int, descending: bool) -> np.ndarray:
    """Return a stable order of each tile, NaNs last (first if descending)."""
    wide = x.astype(np.float64)
    key = np.where(np.isnan(wide), np.inf, wide)
    nan = np.isnan(wide)
    parts = []
    for first in range(0, len(x), m):
        keys = (key[first : first + m], nan[first : first + m])
        if descending:
            keys = (-keys[0], ~keys[1])
        parts.append(np.lexsort(keys, axis=axis))
    return np.concatenate(parts)


def _sorted(x: np.ndarray, m: int, axis: int, descending: bool) -> np.ndarray:
    order = _order(x, m, axis, descending)
    tiles = [np.take_along_axis(x[i : i + m], order[i : i + m], axis) for i in range(0, len(x), m)]
    return np.concatenate(tiles)


@conformance(
    [
        Case(
            f"sort-{of}-{m}x{n}-axis-{axis}{'-descending' if descending else ''}-warps-{warps}",
            _sorting(dtype(of), (m, n), axis, descending),
            lambda rng, of=of, m=m, n=n: [
                _values(rng, (2 * m, n), dtype(of)),
                Output((2 * m, n), dtype(of)),
                Output((2 * m, n), ts.i32),
            ],
            lambda x, *_, m=m, axis=axis, descending=descending: (
                _sorted(x, m, axis, descending),
                _order(x, m, axis, descending),
            ),
            EXACT,
            knobs={"num_warps": warps},
        )
        for of, m, n, axis, descending, warps in [
            *((of, 4, 16, 1, False, 1) for of in DTYPES),
            ("f32", 2, 37, 1, False, 4),
            ("bf16", 37, 3, 0, True, 2),
            ("u8", 1, 100, -1, True, 1),
            ("i64", 1, 256, 1, True, 4),
            ("f64", 3, 5, 1, True, 1),
            ("f32", 1, 1, 1, False, 1),
            ("u32", 1, 2, 1, False, 1),
            ("f32", 1, 1024, 1, False, 4),  # with loops over the bits of lanes and warps
            ("i16", 3, 512, 1, True, 2),
            ("i64", 2, 300, 1, True, 4),
            ("u32", 2, 777, 1, False, 1),
        ]
    ]
)
def test_elements_are_in_order(case, backend):
    check(case, backend)


def _picking(of: DType, shape: tuple[int, int], k: int, axis: int, largest: bool) -> Callable[..., Any]:
    m, n = shape
    rows, columns = (m, k) if axis in (1, -1) else (k, n)

    def kernel(
        x: ts.Tensor["g", m, n, of], y: ts.Tensor["g", rows, columns, of], at: ts.Tensor["g", rows, columns, ts.i32]
    ):
        for i in ts.tile.grid((g, 1)):
            y[i, :, :], at[i, :, :] = ts.tile.topk(x[i, :, :], k, axis, largest)

    return kernel


def _first(x: np.ndarray, k: int, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    order = np.stack([np.take(_order(part, len(part), axis, largest), range(k), axis) for part in x])
    along = axis if axis < 0 else axis + 1
    return np.take_along_axis(x, order, along) + 0, order


@conformance(
    [
        Case(
            f"topk-{k}-of-{of}-{m}x{n}-axis-{axis}-{'largest' if largest else 'smallest'}-warps-{warps}",
            _picking(dtype(of), (m, n), k, axis, largest),
            lambda rng, of=of, m=m, n=n, k=k, axis=axis: [
                _values(rng, (2, m, n), dtype(of)),
                Output((2, m, k) if axis in (1, -1) else (2, k, n), dtype(of)),
                Output((2, m, k) if axis in (1, -1) else (2, k, n), ts.i32),
            ],
            lambda x, *_, k=k, axis=axis, largest=largest: _first(x, k, axis, largest),
            EXACT,
            knobs={"num_warps": warps},
        )
        for of, m, n, k, axis, largest, warps in [
            *((of, 2, 32, 4, 1, True, 1) for of in DTYPES),
            ("f32", 1, 200, 8, 1, True, 4),
            ("bf16", 30, 3, 5, 0, False, 2),
            ("u32", 3, 17, 17, -1, False, 1),
            ("i64", 1, 16, 3, 1, False, 1),
            ("u8", 2, 9, 1, 1, True, 1),
            ("f32", 1, 1000, 3, 1, True, 4),  # of the best groups
            ("bf16", 700, 2, 5, 0, False, 2),
            ("u32", 2, 129, 2, 1, True, 1),
            ("i16", 3, 64, 1, -1, False, 1),
            ("f32", 1, 9001, 5, 1, True, 4),  # what is left of them is loaded again
            ("bf16", 8192, 2, 16, 0, False, 8),
        ]
    ]
)
def test_the_first_are_picked(case, backend):
    check(case, backend)


def _overwritten(x: ts.Tensor["m", 9000, ts.f32], y: ts.Tensor["m", 3, ts.f32], at: ts.Tensor["m", 3, ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        x[i, :] = 0.0 - row
        y[i, :], at[i, :] = ts.tile.topk(row, 3, 0)


@conformance(
    [
        Case(
            "overwritten",
            _overwritten,
            lambda rng: [
                Updated(rng.standard_normal((2, 9000)).astype(np.float32)),
                Output((2, 3), ts.f32),
                Output((2, 3), ts.i32),
            ],
            lambda x, *_: (-x, -np.sort(-x, 1)[:, :3], np.argsort(-x, 1)[:, :3]),
            EXACT,
        )
    ]
)
def test_the_first_of_rows_that_are_overwritten(case, backend):
    check(case, backend)


@pytest.mark.parametrize(
    ("of", "size", "k"), [("f32", 65536, 64), ("i16", 65536, 256), ("u32", 131072, 4), ("f32", 40000, 16)]
)
def test_the_first_of_long_rows_need_no_row_in_shared_memory(of: str, size: int, k: int) -> None:
    element = dtype(of)

    @ts.kernel
    def kernel(x: ts.Tensor["m", size, element], y: ts.Tensor["m", k, element], at: ts.Tensor["m", k, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, :], at[i, :] = ts.tile.topk(x[i, :], k, 0)

    artefact = ts.compile(kernel, target="sm_90a")
    assert all(launch.shared_bytes <= 64 << 10 for launch in artefact.launches)


def _zeros(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], places: ts.Tensor[8, ts.i32]):
    for i in ts.tile.grid((8, 8)):
        y[i : i + 8] = ts.tile.sort(x[i : i + 8])
        places[i : i + 8] = ts.tile.argsort(x[i : i + 8])


@conformance(
    [
        Case(
            "zeros",
            _zeros,
            lambda _rng: [
                np.array([0.0, -0.0, 1.0, -1.0, 0.0, -0.0, 2.0, -2.0], np.float32),
                Output((8,), ts.f32),
                Output((8,), ts.i32),
            ],
            lambda x, *_: (np.sort(x), np.argsort(x, kind="stable")),
            EXACT,
        )
    ]
)
def test_zeros_of_both_signs_are_equal(case, backend):
    check(case, backend)


def test_bits_are_not_negative() -> None:
    @ts.kernel
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32]):
        for i in ts.tile.grid((8, 8)):
            y[i : i + 8] = ts.tile.exchange(x[i : i + 8], -1)

    with pytest.raises(ts.TypeMismatchError, match="negative"):
        kernel(np.zeros(8, np.float32), np.zeros(8, np.float32))
