"""Elementwise functions of odd rows: as one row where tensors have no gaps, elsewhere as they are written."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

BACKENDS = ("scheduled-sm_90a", "threads-sm_80", "ptx-sm_80", "ptx-sm_90a", "cuda")


def columns(dt: DType) -> Any:
    """Return a kernel with a number for each column."""

    def kernel(x: ts.Tensor["a", "b", dt], w: ts.Tensor["b", dt], y: ts.Tensor["a", "b", dt]):
        for i, j in ts.tile.grid((a, 16), (b, 16)):
            y[i : i + 16, j : j + 16] = x[i : i + 16, j : j + 16] + w[j : j + 16][None, :]

    return kernel


def rows(dt: DType) -> Any:
    """Return a kernel with a number for each row, and one for all."""

    def kernel(x: ts.Tensor["a", "b", dt], w: ts.Tensor["a", dt], z: ts.Tensor[1, dt], y: ts.Tensor["a", "b", dt]):
        for i, j in ts.tile.grid((a, 8), (b, 32)):
            y[i : i + 8, j : j + 32] = x[i : i + 8, j : j + 32] * w[i : i + 8][:, None] + z[0]

    return kernel


def factors(dt: DType) -> Any:
    """Return a kernel of a row a program, with a number that is computed for it."""

    def kernel(x: ts.Tensor["a", "b", dt], w: ts.Tensor["a", dt], y: ts.Tensor["a", "b", dt]):
        for i, j in ts.tile.grid((a, 1), (b, 32)):
            y[i, j : j + 32] = x[i, j : j + 32] * (w[i] + 1)

    return kernel


def wider(dt: DType) -> Any:
    """Return a kernel that stores wider elements, of two tensors."""

    def kernel(x: ts.Tensor["a", "b", dt], z: ts.Tensor["a", "b", dt], y: ts.Tensor["a", "b", ts.f32]):
        for i, j in ts.tile.grid((a, 8), (b, 32)):
            y[i : i + 8, j : j + 32] = x[i : i + 8, j : j + 32].to(ts.f32) - z[i : i + 8, j : j + 32].to(ts.f32)

    return kernel


def channels(dt: DType) -> Any:
    """Return a kernel with a number for each place along the middle, in place."""

    def kernel(x: ts.Tensor["a", "b", "c", dt], w: ts.Tensor["b", dt]):
        for i, j, k in ts.tile.grid((a, 1), (b, 4), (c, 32)):
            x[i, j : j + 4, k : k + 32] = x[i, j : j + 4, k : k + 32] * w[j : j + 4][:, None]

    return kernel


def planes(dt: DType) -> Any:
    """Return a kernel with a row for each first place, that is the same along the middle."""

    def kernel(x: ts.Tensor["a", "b", "c", dt], w: ts.Tensor["a", "c", dt], y: ts.Tensor["a", "b", "c", dt]):
        for i, j, k in ts.tile.grid((a, 1), (b, 4), (c, 32)):
            y[i, j : j + 4, k : k + 32] = x[i, j : j + 4, k : k + 32] + w[i, k : k + 32][None, :]

    return kernel


def repeated(dt: DType) -> Any:
    """Return a kernel that stores one row again and again."""

    def kernel(w: ts.Tensor["b", dt], y: ts.Tensor["a", "b", dt]):
        for i, j in ts.tile.grid((a, 16), (b, 16)):
            y[i : i + 16, j : j + 16] = ts.tile.broadcast_to(w[j : j + 16][None, :], (16, 16))

    return kernel


MEANINGS: dict[Callable[[DType], Any], Callable[..., np.ndarray]] = {
    columns: lambda x, w: x + w,
    rows: lambda x, w, z: x * w[:, None] + z,
    factors: lambda x, w: x * (w[:, None] + 1),
    wider: lambda x, z: x - z,
    channels: lambda x, w: x * w[:, None],
    planes: lambda x, w: x + w[:, None, :],
    repeated: lambda w: np.tile(w, (37, 1)),
}


def case_of(make: Any, name: str, shape: tuple[int, ...], pad: int = 0) -> Case:
    """Return the case of a kernel on tensors of a shape, `pad` elements between the rows of the first."""
    dt, (a, b, *c) = dtype(name), shape

    def numbers(rng: np.random.Generator, *sizes: int) -> np.ndarray:
        return rng.integers(1, 9, sizes).astype(dt.numpy())

    def arguments(rng: np.random.Generator) -> list[Any]:
        x = numbers(rng, *shape[:-1], shape[-1] + pad)[..., : shape[-1]]
        given = {
            columns: lambda: [x, numbers(rng, b)],
            rows: lambda: [x, numbers(rng, a), numbers(rng, 1)],
            factors: lambda: [x, numbers(rng, a)],
            wider: lambda: [x, numbers(rng, a, b)],
            channels: lambda: [Updated(x), numbers(rng, b)],
            planes: lambda: [x, numbers(rng, a, *c)],
            repeated: lambda: [numbers(rng, b)],
        }[make]()
        return given if make is channels else [*given, Output(shape, ts.f32 if make is wider else dt)]

    def meaning(*given: np.ndarray) -> np.ndarray:
        operands = given if make is channels else given[:-1]
        result = MEANINGS[make](*(array.astype(np.int64) for array in operands))
        return result.astype((ts.f32 if make is wider else dt).numpy())

    words = "-".join(map(str, (make.__name__, name, *shape, pad)))
    return Case(words, make(dt), arguments, meaning, EXACT, backends=BACKENDS)


@conformance(
    [
        case_of(columns, "bf16", (300, 11)),
        case_of(columns, "f32", (150, 9)),
        case_of(columns, "bf16", (5, 2065)),
        case_of(columns, "f16", (70, 7)),  # shorter than an access: as it is written
        case_of(columns, "bf16", (70, 11), pad=3),  # has gaps
        case_of(rows, "f16", (200, 23)),
        case_of(rows, "f32", (3, 3001)),
        case_of(factors, "bf16", (70, 35)),
        case_of(wider, "bf16", (99, 33)),
        case_of(wider, "bf16", (99, 33), pad=1),
        case_of(channels, "bf16", (3, 50, 27)),
        case_of(channels, "f32", (40, 5, 13)),
        case_of(channels, "bf16", (2, 6, 27), pad=2),
        case_of(planes, "bf16", (9, 20, 19)),
        case_of(planes, "f32", (2, 3, 1001)),
        case_of(repeated, "bf16", (37, 105)),
        case_of(columns, "bf16", (1, 11)),
    ]
)
def test_rows_of_odd_lengths(case: Case, backend: str) -> None:
    check(case, backend)
