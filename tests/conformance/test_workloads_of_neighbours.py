"""Kernels over neighbours, as their users write them: windows, stencils, pools, images."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance
from tests.conformance.data import integers, normal
from tests.conformance.harness import Output, Updated, check, conformance
from tests.conformance.workloads import case, wide

# Neighbours


def windows(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], width: ts.i32):
    for i in ts.tile.grid((n, 64)):
        total = ts.tile.zeros((64,))
        for j in ts.tile.range(width):
            total += x[i - j : i - j + 64]
        y[i : i + 64] = total


def _windows(x: np.ndarray, y: np.ndarray, width: int) -> np.ndarray:
    padded = np.concatenate([np.zeros(width), wide(x)])
    return sum((padded[width - j : width - j + len(x)] for j in range(width)), np.zeros(len(x)))


def two_steps(a: ts.Tensor["h", "w", ts.f32], b: ts.Tensor["h", "w", ts.f32], rate: ts.f32):
    for i, j in ts.tile.grid((h, 6), (w, 10)):
        mid = a[i : i + 6, j : j + 10]
        around = a[i - 1 : i + 5, j : j + 10] + a[i + 1 : i + 7, j : j + 10]
        around += a[i : i + 6, j - 1 : j + 9] + a[i : i + 6, j + 1 : j + 11]
        b[i : i + 6, j : j + 10] = mid + rate * (around - 4.0 * mid)
    for i, j in ts.tile.grid((h, 4), (w, 16)):
        mid = b[i : i + 4, j : j + 16]
        around = b[i - 1 : i + 3, j : j + 16] + b[i + 1 : i + 5, j : j + 16]
        around += b[i : i + 4, j - 1 : j + 15] + b[i : i + 4, j + 1 : j + 17]
        a[i : i + 4, j : j + 16] = mid + rate * (around - 4.0 * mid)
    for i in ts.tile.grid((h, 3)):
        b[i : i + 3, :] = a[i : i + 3, :] - b[i : i + 3, :]


def _step(x: np.ndarray, rate: float) -> np.ndarray:
    p = np.pad(x, 1)
    return x + rate * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * x)


def _two_steps(a: np.ndarray, b: np.ndarray, rate: float) -> Any:
    first = _step(wide(a), rate)
    second = _step(first, rate)
    return second, second - first


def life(x: ts.Tensor["h", "w", ts.u8], y: ts.Tensor["h", "w", ts.u8]):
    for i, j in ts.tile.grid((h, 5), (w, 7)):
        rows, columns = i + ts.tile.arange(5), j + ts.tile.arange(7)
        around = ts.tile.zeros((5, 7), ts.i32)
        for di in ts.tile.static_range(-1, 2):
            for dj in (-1, 0, 1):
                if di != 0 or dj != 0:
                    around += x[((rows + di) % h)[:, None], ((columns + dj) % w)[None, :]]
        alive = x[i : i + 5, j : j + 7] > 0
        y[i : i + 5, j : j + 7] = ts.tile.cast((around == 3) | (alive & (around == 2)), ts.u8)


def _life(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    around = sum(np.roll(x.astype(int), (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)) - x
    return ((around == 3) | ((x > 0) & (around == 2))).astype(np.uint8)


def reflected(x: ts.Tensor["n", ts.i16], y: ts.Tensor["m", ts.i16], before: ts.i32):
    for i in ts.tile.grid((m, 32)):
        at = i + ts.tile.arange(32) - before
        period = 2 * (n - 1)
        at = at % period
        y[i : i + 32] = x[ts.tile.minimum(at, period - at)]


def _reflected(x: np.ndarray, y: np.ndarray, before: int) -> np.ndarray:
    return np.pad(x, (before, len(y) - len(x) - before), "reflect")


def max_pool(x: ts.Tensor["c", "h", "w", ts.f16], y: ts.Tensor["c", "p", "q", ts.f16]):
    for c0, p0, q0 in ts.tile.grid((c, 2), (p, 3), (q, 4)):
        best = ts.tile.full((2, 3, 4), -float("inf"), ts.f16)
        for i in ts.tile.static_range(3):
            for j in ts.tile.static_range(3):
                a, b = 2 * p0 + i - 1, 2 * q0 + j - 1
                part = ts.tile.load(x[c0 : c0 + 2, a : a + 6 : 2, b : b + 8 : 2], fill=-float("inf"))
                best = ts.tile.maximum(best, part)
        y[c0 : c0 + 2, p0 : p0 + 3, q0 : q0 + 4] = best


def _max_pool(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (1, 3), (1, 3)), constant_values=-np.inf)
    _, p, q = y.shape
    parts = [padded[:, i : i + 2 * p : 2, j : j + 2 * q : 2] for i in range(3) for j in range(3)]
    return np.max(parts, 0)


def bilinear(x: ts.Tensor["h", "w", ts.f32], at: ts.Tensor["n", 2, ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 33)):
        v, u = at[i : i + 33, 0], at[i : i + 33, 1]
        top, left = ts.tile.floor(v), ts.tile.floor(u)
        a, b = v - top, u - left
        r, c = ts.tile.cast(top, ts.i32), ts.tile.cast(left, ts.i32)
        upper = x[r, c] * (1 - b) + x[r, c + 1] * b
        lower = x[r + 1, c] * (1 - b) + x[r + 1, c + 1] * b
        y[i : i + 33] = upper * (1 - a) + lower * a


def _bilinear(x: np.ndarray, at: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = np.zeros(len(at))
    for i, (v, u) in enumerate(wide(at)):
        top, left = int(np.floor(v)), int(np.floor(u))
        for r, wr in ((top, 1 - (v - top)), (top + 1, v - top)):
            for c, wc in ((left, 1 - (u - left)), (left + 1, u - left)):
                if 0 <= r < x.shape[0] and 0 <= c < x.shape[1]:
                    result[i] += wr * wc * float(x[r, c])
    return result


@conformance(
    [
        case(
            f"windows-{n}-{width}",
            windows,
            lambda rng, n=n, width=width: [normal(rng, (n,), ts.f32), Output((n,), ts.f32), width],
            _windows,
        )
        for n, width in ((130, 5), (64, 1), (3, 70), (10, 0))
    ]
    + [
        case(
            f"two-steps-{h}x{w}",
            two_steps,
            lambda rng, s=(h, w): [Updated(normal(rng, s, ts.f32)), Output(s, ts.f32), 0.125],
            _two_steps,
        )
        for h, w in ((13, 21), (1, 1), (6, 40))
    ]
    + [
        case(
            f"life-{h}x{w}",
            life,
            lambda rng, s=(h, w): [rng.integers(0, 2, s).astype(np.uint8), Output(s, ts.u8)],
            _life,
            EXACT,
        )
        for h, w in ((11, 16), (3, 3))
    ]
    + [
        case(
            f"reflected-{n}-{before}",
            reflected,
            lambda rng, n=n, before=before: [
                integers(rng, (n,), ts.i16),
                Output((n + 2 * before + 3,), ts.i16),
                before,
            ],
            _reflected,
            EXACT,
        )
        for n, before in ((9, 4), (50, 49), (2, 30))
    ]
    + [
        case(
            f"max-pool-{c}x{h}x{w}",
            max_pool,
            lambda rng, s=(c, h, w): [
                normal(rng, s, ts.f16),
                Output((s[0], (s[1] + 1) // 2, (s[2] + 1) // 2), ts.f16),
            ],
            _max_pool,
            EXACT,
        )
        for c, h, w in ((3, 9, 13), (1, 1, 2))
    ]
    + [
        case(
            "bilinear",
            bilinear,
            lambda rng: [
                normal(rng, (7, 9), ts.f32),
                (rng.random((50, 2)) * 12 - 2).astype(np.float32),
                Output((50,), ts.f32),
            ],
            _bilinear,
            Tolerance(absolute=2e-5),
        )
    ]
)
def test_neighbours(case, backend):
    check(case, backend)
