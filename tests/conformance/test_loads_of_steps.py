"""Loops that load, carry and store: the loads of several steps are done at once where nothing stores what they load."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.data import box_of
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

ON = ("scheduled-sm_80", "scheduled-sm_90a", "threads-sm_80", "ptx-sm_90a", "cuda")
SHAPES = ((37, 70), (16, 64), (1, 5), (48, 200), (0, 9))


def scanned(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A recurrence along columns, from two tensors, of which one is read before the row."""

    def kernel(x: ts.Tensor["M", "N", dt], w: ts.Tensor["M", "N", dt], y: ts.Tensor["M", "N", dt]):
        for j in ts.tile.grid((N, 32)):
            state = ts.tile.full((32,), 1, dt)
            for i in ts.tile.range(M):
                state = state * w[i, j : j + 32] + x[i - 1, j : j + 32]
                y[i, j : j + 32] = state

    def reference(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
        found, state = np.zeros_like(y), np.ones(x.shape[1], x.dtype)
        for i in range(len(x)):
            state = state * w[i] + (x[i - 1] if i else 0)
            found[i] = state
        return found

    return kernel, reference


def in_place(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A row comes of the one that was stored before, of one that nothing stores, and of what is carried."""

    def kernel(x: ts.Tensor["M", "N", dt], y: ts.Tensor["M", "N", dt]):
        for j in ts.tile.grid((N, 32)):
            count = ts.tile.zeros((32,), dt)
            for i in ts.tile.range(1, M):
                y[i, j : j + 32] = y[i - 1, j : j + 32] + y[i, j : j + 32] - x[M - 1 - i, j : j + 32] + count
                count = count + 1

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = y.copy()
        for i in range(1, len(y)):
            found[i] = found[i - 1] + found[i] - x[len(x) - 1 - i] + (i - 1)
        return found

    return kernel, reference


def picked(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Where a row lies stands in another tensor; steps of two rows, a condition, and two stores."""

    def kernel(
        x: ts.Tensor["M", "N", dt],
        p: ts.Tensor["M", ts.i32],
        y: ts.Tensor["M", "N", dt],
        z: ts.Tensor["M", "N", dt],
    ):
        for j in ts.tile.grid((N, 32)):
            most = ts.tile.zeros((32,), dt)
            for i in ts.tile.range(0, M, 2):
                columns = j + ts.tile.arange(32)
                row = x[p[i], columns]
                most = ts.tile.maximum(most, row)
                y[i, j : j + 32] = most
                if most > 3:
                    z[i, j : j + 32] = row + x[i + 1, j : j + 32]

    def reference(x: np.ndarray, p: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, second, most = y.copy(), z.copy(), np.zeros(x.shape[1], x.dtype)
        for i in range(0, len(x), 2):
            most = np.maximum(most, x[p[i]])
            after = box_of(x, range(i + 1, i + 2), range(x.shape[1]))[0]
            first[i], second[i] = most, np.where(most > 3, x[p[i]] + after, second[i])
        return first, second

    return kernel, reference


def cases() -> list[Case]:
    found: list[Case] = []
    for number, (m, n) in enumerate(SHAPES * 2):
        dt = dtype(("i32", "f32", "u32", "f64")[number % 4])

        def draw(
            rng: np.random.Generator, m: int = m, n: int = n, dt: Any = dt, most: int = 2 + 4 * (number % 2)
        ) -> np.ndarray:
            return rng.integers(0, most, (m, n)).astype(dt.numpy())

        def of_scanned(rng: np.random.Generator, m: int = m, n: int = n, dt: Any = dt, draw: Any = draw) -> list[Any]:
            ones = (rng.integers(0, 4, (m, n)) > 0).astype(dt.numpy())
            return [draw(rng), ones, Output((m, n), dt)]

        def of_place(rng: np.random.Generator, draw: Any = draw) -> list[Any]:
            return [draw(rng), Updated(draw(rng))]

        def of_picked(rng: np.random.Generator, m: int = m, draw: Any = draw) -> list[Any]:
            places = rng.integers(0, max(m, 1), m).astype(np.int32)
            return [draw(rng), places, Updated(draw(rng)), Updated(draw(rng))]

        for name, make, given in (
            ("scanned", scanned, of_scanned),
            ("in place", in_place, of_place),
            ("picked", picked, of_picked),
        ):
            kernel, reference = make(dt)
            found.append(Case(f"{name}-{dt.name}-{m}x{n}", kernel, given, reference, backends=ON))
    return found


@conformance(cases())
def test_loads_of_several_steps(case: Case, backend: str) -> None:
    check(case, backend)
