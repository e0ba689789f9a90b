"""Kernels whose work is in their loops, as their users write them: searches, recurrences, iterations to an end."""

from itertools import pairwise
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance
from tests.conformance.data import normal
from tests.conformance.harness import Close, Output, check, conformance
from tests.conformance.workloads import NEAR, case, wide

# Loops


def newton(x: ts.Tensor["n", ts.f64], y: ts.Tensor["n", ts.f64], rounds: ts.Tensor["p", ts.i32]):
    for i in ts.tile.grid((n, 25)):
        value = ts.tile.where(i + ts.tile.arange(25) < n, x[i : i + 25], 1.0)
        root, count = ts.tile.maximum(value, 1.0), 0
        while ts.tile.any(ts.tile.abs(root * root - value) > 1e-12 * value):
            root = 0.5 * (root + value / root)
            count += 1
            if count >= 60:
                break
        y[i : i + 25] = root
        rounds[i // 25] = count


def _newton(x: np.ndarray, y: np.ndarray, rounds: np.ndarray) -> Any:
    counts = np.zeros(len(rounds), np.int32)
    for p in range(len(rounds)):
        value = x[25 * p : 25 * p + 25]
        root = np.maximum(value, 1.0)
        while (np.abs(root * root - value) > 1e-12 * value).any() and counts[p] < 60:
            root, counts[p] = 0.5 * (root + value / root), counts[p] + 1
    return np.sqrt(x), counts


def collatz(x: ts.Tensor["n", ts.u32], y: ts.Tensor["n", ts.u16]):
    for i in ts.tile.grid((n, 31)):
        v, steps = x[i : i + 31], ts.tile.zeros((31,), ts.u16)
        going = v > 1
        while going.any():
            v = ts.tile.where(going, ts.tile.where(v % 2 == 0, v >> 1, 3 * v + 1), v)
            steps = ts.tile.where(going, steps + 1, steps)
            going = v > 1
        y[i : i + 31] = steps


def _collatz(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = []
    for v in x.tolist():
        count = 0
        while v > 1:
            v, count = (v // 2 if v % 2 == 0 else 3 * v + 1), count + 1
        result.append(count)
    return np.array(result, np.uint16)


def mandelbrot(y: ts.Tensor["h", "w", ts.i32], size: ts.f32):
    for i, j in ts.tile.grid((h, 4), (w, 8)):
        ci = ts.tile.cast(i + ts.tile.arange(4), ts.f32)[:, None] * size - 1.0
        cr = ts.tile.cast(j + ts.tile.arange(8), ts.f32)[None, :] * size - 1.75
        zr, zi = ts.tile.zeros((4, 8)), ts.tile.zeros((4, 8))
        count = ts.tile.zeros((4, 8), ts.i32)
        for _ in ts.tile.range(40):
            inside = zr * zr + zi * zi <= 4.0
            if not ts.tile.any(inside):
                break
            zr, zi = ts.tile.where(inside, zr * zr - zi * zi + cr, zr), ts.tile.where(inside, 2.0 * zr * zi + ci, zi)
            count += ts.tile.cast(inside, ts.i32)
        y[i : i + 4, j : j + 8] = count


def _mandelbrot(y: np.ndarray, size: float) -> np.ndarray:
    f = np.float32
    ci = (np.arange(y.shape[0], dtype=f) * f(size) - f(1.0))[:, None]
    cr = (np.arange(y.shape[1], dtype=f) * f(size) - f(1.75))[None, :]
    zr, zi, count = np.zeros(y.shape, f), np.zeros(y.shape, f), np.zeros(y.shape, np.int32)
    for _ in range(40):
        inside = zr * zr + zi * zi <= 4
        zr, zi = np.where(inside, zr * zr - zi * zi + cr, zr), np.where(inside, f(2) * zr * zi + ci, zi)
        count += inside
    return count


@ts.function
def lower_bound(x, wanted, size):
    lo, hi = 0, size
    while lo < hi:
        mid = (lo + hi) // 2
        if x[mid] < wanted:
            lo = mid + 1
        else:
            hi = mid
    return lo


@ts.function
def rank_of(x, wanted, size):
    if size == 0:
        return -1
    if wanted < x[0]:
        return 0
    at = lower_bound(x, wanted, size)
    if at < size:
        if x[at] == wanted:
            return at
        return -at
    return 1000


def searched(x: ts.Tensor["n", ts.i32], wanted: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = rank_of(x, wanted[i], n)


def _searched(x: np.ndarray, wanted: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = []
    for v in wanted:
        at = int(np.searchsorted(x, v))
        if len(x) == 0:
            result.append(-1)
        elif v < x[0]:
            result.append(0)
        elif at == len(x):
            result.append(1000)
        else:
            result.append(at if x[at] == v else -at)
    return np.array(result, np.int32)


def running(x: ts.Tensor["M", "N", ts.f16], y: ts.Tensor["M", "N", ts.f32], z: ts.Tensor["M", "N", ts.i64]):
    for m in ts.tile.grid((M, 3)):
        carry, best = ts.tile.zeros((3, 1)), ts.tile.full((3, 1), -(1 << 40), ts.i64)
        for n in ts.tile.range(0, N, 20):
            part = x[m : m + 3, n : n + 20]
            sums = ts.tile.cumsum(ts.tile.cast(part, ts.f32), 1) + carry
            y[m : m + 3, n : n + 20] = sums - part
            carry = sums[:, 19:20]
            whole = ts.tile.cast(ts.tile.floor(part * 4), ts.i64)
            whole = ts.tile.where((n + ts.tile.arange(20) < N)[None, :], whole, -(1 << 40))
            most = ts.tile.maximum(ts.tile.cummax(whole, 1), best)
            z[m : m + 3, n : n + 20] = most
            best = most[:, -1:]


def _running(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
    values = wide(x)
    most = np.maximum.accumulate(np.floor(values * 4), 1)
    return Close(values.cumsum(1) - values, np.abs(values).cumsum(1)), most.astype(np.int64)


@ts.function
def follow(a, b, c, d):
    return a * c, b * c + d


def recurrence(a: ts.Tensor["D", "T", ts.f32], b: ts.Tensor["D", "T", ts.f32], h: ts.Tensor["D", "T", ts.f32]):
    for d in ts.tile.grid((D, 2)):
        state = ts.tile.zeros((2,))
        for t in ts.tile.range(0, T, 24):
            inside = (t + ts.tile.arange(24) < T)[None, :]
            decay = ts.tile.where(inside, a[d : d + 2, t : t + 24], 1.0)
            scale, found = ts.tile.associative_scan((decay, b[d : d + 2, t : t + 24]), 1, follow)
            found = found + scale * state[:, None]
            h[d : d + 2, t : t + 24] = found
            state = found[:, 23]


def _recurrence(a: np.ndarray, b: np.ndarray, h: np.ndarray) -> np.ndarray:
    result, state = np.zeros(a.shape), np.zeros(len(a))
    for t in range(a.shape[1]):
        state = wide(a)[:, t] * state + wide(b)[:, t]
        result[:, t] = state
    return result


def edit_distance(a: ts.Tensor["n", ts.u8], b: ts.Tensor[30, ts.u8], y: ts.Tensor[1, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        column = ts.tile.arange(1, 31)
        for i in ts.tile.range(n):
            above = ts.tile.where(ts.tile.arange(30) == 0, ts.tile.cast(i, ts.i32), ts.tile.roll(column, 1))
            changed = above + ts.tile.cast(b[:] != a[i], ts.i32)
            least = ts.tile.minimum(changed, column + 1) - ts.tile.arange(30)
            first = ts.tile.cast(i, ts.i32) + 2
            column = ts.tile.minimum(ts.tile.cummin(least), first) + ts.tile.arange(30)
        y[0] = column[29]


def _edit_distance(a: np.ndarray, b: np.ndarray, y: np.ndarray) -> np.ndarray:
    row = list(range(31))
    for i, c in enumerate(a):
        new = [i + 1]
        for j, d in enumerate(b):
            new.append(min(row[j] + (c != d), row[j + 1] + 1, new[j] + 1))
        row = new
    return np.array([row[30]], np.int32)


def sparse_product(
    start: ts.Tensor["n+1", ts.i32],
    column: ts.Tensor["e", ts.i32],
    value: ts.Tensor["e", ts.f32],
    x: ts.Tensor["m", ts.f32],
    y: ts.Tensor["n", ts.f32],
):
    for i in ts.tile.grid((n, 1)):
        first, last = start[i], start[i + 1]
        total = ts.tile.zeros((8,))
        for e in ts.tile.range(first, last, 8):
            inside = e + ts.tile.arange(8) < last
            total += ts.tile.where(inside, value[e : e + 8] * x[column[e : e + 8]], 0.0)
        y[i] = total.sum()


def _rows(rng: np.random.Generator, n: int, m: int) -> list[Any]:
    counts = rng.integers(0, 20, n)
    counts[::3] = 0
    start = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    return [
        start,
        rng.integers(0, m, start[-1]).astype(np.int32),
        normal(rng, (int(start[-1]),), ts.f32),
        normal(rng, (m,), ts.f32),
        Output((n,), ts.f32),
    ]


def _sparse_product(start: Any, column: Any, value: Any, x: Any, y: Any) -> Any:
    terms = wide(value) * wide(x)[column]
    return np.array([terms[a:b].sum() for a, b in pairwise(start)])


def cholesky(x: ts.Tensor["B", 9, 9, ts.f64], y: ts.Tensor["B", 9, 9, ts.f64]):
    for b in ts.tile.grid((B, 1)):
        left, at = x[b, :, :], ts.tile.arange(9)
        out = ts.tile.zeros((9, 9), ts.f64)
        for k in ts.tile.range(9):
            pivot = ts.tile.sqrt(left[k, k])
            column = ts.tile.where(at >= k, left[:, k] / pivot, 0.0)
            out += ts.tile.where((at == k)[None, :], column[:, None], 0.0)
            left = left - column[:, None] * column[None, :]
        y[b, :, :] = out


def _definite(rng: np.random.Generator, b: int) -> np.ndarray:
    a = rng.standard_normal((b, 9, 9))
    return a @ a.transpose(0, 2, 1) + np.eye(9)


@conformance(
    [
        case(
            f"newton-{n}",
            newton,
            lambda rng, n=n: [
                np.exp(rng.standard_normal(n) * 3),
                Output((n,), ts.f64),
                Output((-(-n // 25),), ts.i32),
            ],
            _newton,
            [Tolerance(relative=1e-11), EXACT],
        )
        for n in (1, 60)
    ]
    + [
        case(
            "collatz",
            collatz,
            lambda rng: [rng.integers(0, 3000, 70).astype(np.uint32), Output((70,), ts.u16)],
            _collatz,
            EXACT,
        ),
        case(
            "mandelbrot",
            mandelbrot,
            lambda rng: [Output((13, 18), ts.i32), 0.15625],
            _mandelbrot,
            EXACT,
            profile="strict",
        ),
    ]
    + [
        case(
            f"searched-{n}",
            searched,
            lambda rng, n=n: [
                np.sort(rng.integers(-20, 20, n)).astype(np.int32),
                rng.integers(-25, 25, 40).astype(np.int32),
                Output((40,), ts.i32),
            ],
            _searched,
            EXACT,
        )
        for n in (0, 1, 17)
    ]
    + [
        case(
            f"running-{m}x{n}",
            running,
            lambda rng, s=(m, n): [normal(rng, s, ts.f16), Output(s, ts.f32), Output(s, ts.i64)],
            _running,
            [NEAR, EXACT],
        )
        for m, n in ((4, 71), (1, 20), (3, 0))
    ]
    + [
        case(
            f"recurrence-{d}x{t}",
            recurrence,
            lambda rng, s=(d, t): [rng.random(s).astype(np.float32), normal(rng, s, ts.f32), Output(s, ts.f32)],
            _recurrence,
        )
        for d, t in ((3, 100), (1, 1))
    ]
    + [
        case(
            f"edit-distance-{n}",
            edit_distance,
            lambda rng, n=n: [
                rng.integers(0, 3, n).astype(np.uint8),
                rng.integers(0, 3, 30).astype(np.uint8),
                Output((1,), ts.i32),
            ],
            _edit_distance,
            EXACT,
        )
        for n in (0, 1, 40)
    ]
    + [
        case(
            f"sparse-{n}x{m}",
            sparse_product,
            lambda rng, s=(n, m): _rows(rng, *s),
            _sparse_product,
            Tolerance(absolute=1e-5),
        )
        for n, m in ((22, 15), (1, 3))
    ]
    + [
        case(
            "cholesky",
            cholesky,
            lambda rng: [_definite(rng, 3), Output((3, 9, 9), ts.f64)],
            lambda x, y: np.linalg.cholesky(x),
            Tolerance(relative=1e-9, absolute=1e-12),
        )
    ]
)
def test_loops(case, backend):
    check(case, backend)
