"""Rows that begin at any element beside parts of tensors, runs, mirrored rows and scattered elements.

Chunks that begin where accesses are aligned reach out of a row. Around other boxes lie elements of other programs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Updated, check, conformance

M = 5
BACKENDS = ("scheduled-sm_80", "scheduled-sm_90a", "ptx-sm_80", "ptx-sm_90a", "cuda")
Make = Callable[[int], Any]


def to_part(n: int) -> Any:
    """Return a kernel that stores to a part of longer rows."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["m", n + 9, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, 3 : n + 3] = x[i, :] - ts.tile.min(x[i, :], 0)

    return kernel


def to_run(n: int) -> Any:
    """Return a kernel that stores rows one behind the other."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["l", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i * n : i * n + n] = x[i, :] - ts.tile.min(x[i, :], 0)

    return kernel


def run_in_place(n: int) -> Any:
    """Return a kernel that adds one row to runs."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["l", ts.i32]):
        for i in ts.tile.grid((l, n)):
            y[i : i + n] = x[i // n, :] + y[i : i + n]

    return kernel


def mirrored(n: int) -> Any:
    """Return a kernel that turns rows round, and reads others from their end."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["m", n, ts.i32], z: ts.Tensor["m", n, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, ::-1] = x[i, :] - ts.tile.min(z[i, ::-1] + x[i, :], 0)

    return kernel


def scattered(n: int) -> Any:
    """Return a kernel that stores elements three places further on, in turn."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["m", n, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, (ts.tile.arange(n) + 3) % n] = x[i, :] - ts.tile.min(x[i, :], 0)

    return kernel


def told_later(n: int) -> Any:
    """Return a kernel whose second tensor's row is known by the first one's."""

    def kernel(x: ts.Tensor["m", n, ts.i32], y: ts.Tensor["m", n, ts.i32], z: ts.Tensor["m", n, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            least = ts.tile.min(x[i, ::-1], 0)
            y[i, :] = z[least, :] + least

    return kernel


def _mirrored(x: np.ndarray, _y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return (x - (z[:, ::-1] + x).min(1, keepdims=True))[:, ::-1]


def _told_later(x: np.ndarray, _y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return z[x.min(1)] + x.min(1, keepdims=True)


def _to_part(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = y.copy()
    y[:, 3 : x.shape[1] + 3] = x - x.min(1, keepdims=True)
    return y


MEANINGS: dict[Make, Callable[..., np.ndarray]] = {
    to_part: _to_part,
    to_run: lambda x, _y: (x - x.min(1, keepdims=True)).ravel(),
    run_in_place: lambda x, y: x.ravel() + y,
    mirrored: _mirrored,
    scattered: lambda x, _y: np.roll(x - x.min(1, keepdims=True), 3, 1),
    told_later: _told_later,
}


def case_of(make: Make, n: int, chunk: int) -> Case:
    """Return the case of a kernel on rows of `n` elements."""

    def arguments(rng: np.random.Generator) -> list[Any]:
        def some(*shape: int) -> np.ndarray:
            return rng.integers(0, M, shape).astype(np.int32)

        result = {to_part: (M, n + 9), to_run: (M * n,), run_in_place: (M * n,)}.get(make, (M, n))
        third = [some(M, n)] if make in (mirrored, told_later) else []
        return [some(M, n), Updated(some(*result)), *third]

    name = f"{make.__name__}-{n}-{chunk}"
    return Case(name, make(n), arguments, MEANINGS[make], EXACT, knobs={"chunk": chunk, "batch": 1}, backends=BACKENDS)


@conformance([case_of(make, n, chunk) for make in MEANINGS for n, chunk in ((77, 16), (33, 8))])
def test_rows_and_parts(case, backend):
    check(case, backend)
