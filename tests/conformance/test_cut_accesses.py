"""Accesses of several elements in which a tensor ends: odd lengths from aligned addresses on, flat and padded rows."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.data import box_of
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

ON = ("scheduled-sm_90a", "threads-sm_80", "ptx-sm_80", "ptx-sm_90a", "cuda")
DTYPES = ("f32", "f16", "u8", "bf16", "i32", "i8", "f64")
LENGTHS = (1, 7, 255, 257, 509, 1003, 2049)


def flat(dt: Any, block: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """One dimension, with something else than zeros outside."""

    def kernel(x: ts.Tensor["N", dt], w: ts.Tensor["M", dt], y: ts.Tensor["N", dt], z: ts.Tensor["P", dt]):
        for i in ts.tile.grid((P, block)):
            own, other = ts.tile.load(x[i : i + block], fill=3), w[i : i + block]
            y[i : i + block] = own + other
            z[i : i + block] = own

    def reference(x: np.ndarray, w: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        reached = range(z.size)
        other = box_of(w[None], range(1), reached)[0]
        own = np.concatenate([x, np.full(z.size, 3, x.dtype)])[: z.size]
        return (own + other)[: y.size], own

    return kernel, reference


def shifted(dt: Any, block: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Rows of a padded matrix, read and stored from before their beginning on, by a multiple of an access."""

    def kernel(x: ts.Tensor["M", "N", dt], y: ts.Tensor["M", "N", dt]):
        for i, j in ts.tile.grid((M, 2), (N, block)):
            left = j - 16
            y[i : i + 2, left : left + block] = x[i : i + 2, left : left + block] * 2
        for i in ts.tile.grid((M, 1)):
            last = N // 16 * 16
            y[i, last - 16 : last + 48] = x[i, last - 16 : last + 48] * 2

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        columns = x.shape[1]
        found = y.copy()
        ends = min(-(-columns // block) * block - 16, columns)
        found[:, : max(ends, 0)] = x[:, : max(ends, 0)] * 2
        last = columns // 16 * 16
        found[:, max(last - 16, 0) :] = x[:, max(last - 16, 0) :] * 2
        return found

    return kernel, reference


def summed(dt: Any, block: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What lies past the end takes part in sums, as the fill."""

    def kernel(x: ts.Tensor["N", dt], y: ts.Tensor["P", dt]):
        for p in ts.tile.grid((P, 1)):
            y[p] = ts.tile.sum(ts.tile.load(x[p * block : p * block + block], fill=1), 0).to(dt)

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        held = np.ones(y.size * block, x.dtype)
        held[: x.size] = x
        return held.astype(float).reshape(-1, block).sum(1).astype(x.dtype)

    return kernel, reference


def cases() -> list[Case]:
    found: list[Case] = []
    for number, name in enumerate(DTYPES * 2):
        dt, n, block = dtype(name), LENGTHS[number * 3 % len(LENGTHS)], (256, 512, 96)[number % 3]
        kernel, reference = flat(dt, block)

        def lines(rng: np.random.Generator, dt: Any = dt, n: int = n) -> list[Any]:
            x, w = (rng.integers(0, 5, size).astype(dt.numpy()) for size in (n, n + 1))
            return [x, w, Output((n,), dt), Output((n + 2,), dt)]

        found.append(Case(f"flat-{name}-{n}-{block}", kernel, lines, reference, backends=ON))
        kernel, reference = shifted(dt, block)

        def rows(rng: np.random.Generator, dt: Any = dt, n: int = n) -> list[Any]:
            pitch = (n // 16 + 2) * 16
            x, y = (rng.integers(0, 5, (3, pitch)).astype(dt.numpy()) for _ in range(2))
            return [x[:, :n], Updated(y[:, :n])]

        found.append(Case(f"shifted-{name}-{n}-{block}", kernel, rows, reference, backends=ON))
        kernel, reference = summed(dt, block)

        def parts(rng: np.random.Generator, dt: Any = dt, n: int = n, block: int = block) -> list[Any]:
            x = rng.integers(0, 2, n).astype(dt.numpy())
            return [x, Output((-(-n // block) + 1,), dt)]

        if block < 256 or dt.bytes > 1:
            found.append(Case(f"summed-{name}-{n}-{block}", kernel, parts, reference, backends=ON))
    return found


@conformance(cases())
def test_tensors_end_within_accesses(case: Case, backend: str) -> None:
    check(case, backend)
