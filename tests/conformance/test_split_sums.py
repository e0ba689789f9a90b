"""Loops that only add up, split over several programs where a grid is small: odd sizes, few steps or none."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT, of_sum
from tests.conformance.data import integers, normal
from tests.conformance.harness import Case, Close, Output, check, conformance, dtype

BACKENDS = ("interp", "scheduled-sm_90a", "threads-sm_90a", "ptx-sm_80", "ptx-sm_90a", "cuda")


def columns(dt: DType) -> Callable[..., None]:
    def kernel(x: ts.Tensor["A", "B", dt], y: ts.Tensor["B", dt], BA: ts.constexpr, BB: ts.constexpr) -> None:
        for b in ts.tile.grid((B, BB)):
            total = ts.tile.zeros((BB,), dt)
            for a in ts.tile.range(0, A, BA):
                total = total + ts.tile.sum(x[a : a + BA, b : b + BB], 0).to(dt)
            y[b : b + BB] = total

    return kernel


def largest(dt: DType) -> Callable[..., None]:
    def kernel(x: ts.Tensor["A", "B", dt], y: ts.Tensor["B", dt], BA: ts.constexpr, BB: ts.constexpr) -> None:
        for b in ts.tile.grid((B, BB)):
            total = x[0, b : b + BB]
            for a in ts.tile.range(0, A, BA):
                block = ts.tile.load(x[a : a + BA, b : b + BB], fill=0)
                total = ts.tile.maximum(total, ts.tile.max(block, 0).to(dt))
            y[b : b + BB] = total

    return kernel


def product(dt: DType) -> Callable[..., None]:
    def kernel(
        a: ts.Tensor["M", "K", dt],
        b: ts.Tensor["K", "N", dt],
        c: ts.Tensor["M", "N", ts.f32],
        BM: ts.constexpr,
        BN: ts.constexpr,
        BK: ts.constexpr,
    ) -> None:
        for m, n in ts.tile.grid((M, BM), (N, BN)):
            acc = ts.tile.zeros((BM, BN), ts.f32)
            for k in ts.tile.range(0, K, BK):
                acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
            c[m : m + BM, n : n + BN] = ts.tile.maximum(acc, -1.0)

    return kernel


def statistics(
    x: ts.Tensor["A", "B", ts.f32],
    bias: ts.Tensor["B", ts.f32],
    mean: ts.Tensor["B", ts.f32],
    least: ts.Tensor["B", ts.f32],
    bits: ts.Tensor["B", ts.i32],
) -> None:
    for b in ts.tile.grid((B, 32)):
        total, small, parity = bias[b : b + 32], ts.tile.full((32,), 9.0, ts.f32), ts.tile.full((32,), 5, ts.i32)
        for a in ts.tile.range(A):
            row = x[a, b : b + 32]
            total = total - row
            small = ts.tile.minimum(small, row)
            parity = parity ^ (row * 8.0).to(ts.i32)
        mean[b : b + 32] = total / A
        least[b : b + 32] = small
        bits[b : b + 32] = parity


def of_two_loops(
    x: ts.Tensor["A", "B", ts.f32], w: ts.Tensor["C", "B", ts.f32], y: ts.Tensor["B", ts.f32], z: ts.Tensor["B", ts.f32]
) -> None:
    for b in ts.tile.grid((B, 16)):
        first = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(0, A, 4):
            first = first + ts.tile.sum(x[a : a + 4, b : b + 16], 0)
        halved = first * 0.5
        second = ts.tile.full((16,), 1.0, ts.f32)
        for c in ts.tile.range(C):
            second = second + w[c, b : b + 16] * w[c, b : b + 16]
        y[b : b + 16] = halved / second
        z[b : b + 16] = second


def nested(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32], limit: ts.f32) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            if x[a, 0, 0] < limit:
                for b in ts.tile.range(0, B, 2):
                    block = x[a, b : b + 2, c : c + 16]
                    total = total + ts.tile.sum(ts.tile.where(block > 0.0, block, 0.0), 0)
        y[c : c + 16] = total


def of_ranges(
    x: ts.Tensor["N", ts.f32],
    start: ts.Tensor["R", ts.i32],
    stop: ts.Tensor["R", ts.i32],
    total: ts.Tensor["R", ts.f32],
    most: ts.Tensor["R", ts.f32],
) -> None:
    for r in ts.tile.grid((R, 1)):
        added, high = 0.0, -1.0
        for i in ts.tile.range(start[r], stop[r]):
            added = added + x[i]
            high = ts.tile.maximum(high, x[i])
        total[r] = added
        most[r] = high


def long_rows(x: ts.Tensor["A", "B", ts.f32], total: ts.Tensor["A", ts.f32], most: ts.Tensor["A", ts.f32]) -> None:
    for a in ts.tile.grid((A, 1)):
        row = x[a, :]
        total[a] = ts.tile.sum(row)
        most[a] = ts.tile.max(row)


def _columns(name: str, rows: int, width: int, blocks: tuple[int, int], **knobs: int) -> Case:
    dt = dtype(name)

    def reference(x: np.ndarray, y: np.ndarray) -> Any:
        if not dt.is_float:
            return x.sum(0, dtype=x.dtype)
        exact = x.astype(np.longdouble)
        return Close(exact.sum(0), np.abs(exact).sum(0))

    return Case(
        f"columns-{name}-{rows}x{width}-{'x'.join(map(str, blocks))}{'-'.join(map(str, knobs.values()))}",
        columns(dt),
        lambda rng: (values(rng, (rows, width), name), Output((width,), dt)),
        reference,
        of_sum(dt, rows) if dt.is_float else EXACT,
        {"BA": blocks[0], "BB": blocks[1]},
        backends=BACKENDS,
        knobs=knobs,
    )


def _largest(name: str, rows: int, width: int, profile: str) -> Case:
    return Case(
        f"largest-{name}-{rows}x{width}-{profile}",
        largest(dtype(name)),
        lambda rng: (values(rng, (rows, width), name), Output((width,), dtype(name))),
        lambda x, y: np.maximum(x.max(0), x.dtype.type(0) if rows % 8 else x.max(0)),
        constexprs={"BA": 8, "BB": 32},
        profile=profile,
        backends=BACKENDS,
    )


def values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Return numbers of a dtype; for integers the whole range, which wraps."""
    return normal(rng, shape, dtype(name)) if dtype(name).is_float else integers(rng, shape, dtype(name))


def f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return normal numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def out(*shape: int) -> Output:
    """Return a result of f32."""
    return Output(shape, dtype("f32"))


def exact(sum_of: Any) -> Any:
    """Return sums along the first axis in extended precision, and their magnitude."""
    terms = np.asarray(sum_of, np.longdouble)
    return Close(terms.sum(0), np.abs(terms).sum(0))


def _statistics(rows: int) -> Case:
    def reference(x: np.ndarray, bias: np.ndarray, *_: np.ndarray) -> Any:
        parity = np.bitwise_xor.reduce((x * 8).astype(np.int32), 0, initial=5)
        terms = np.concatenate([bias[None], -x]) / np.longdouble(max(rows, 1))
        return exact(terms), x.min(0, initial=9.0), parity

    return Case(
        f"statistics-{rows}",
        statistics,
        lambda rng: (f32(rng, rows, 70), f32(rng, 70), out(70), out(70), Output((70,), dtype("i32"))),
        reference,
        (of_sum(dtype("f32"), rows + 2), EXACT, EXACT),
        backends=BACKENDS,
    )


def _two_loops(first: int, second: int) -> Case:
    def reference(x: np.ndarray, w: np.ndarray, *_: np.ndarray) -> Any:
        low = 1 + (w.astype(np.longdouble) ** 2).sum(0)
        return Close(x.astype(np.longdouble).sum(0) / 2 / low, np.abs(x).sum(0) / low), Close(low, low)

    bound = of_sum(dtype("f32"), first + second + 4)
    return Case(
        f"two-loops-{first}-{second}",
        of_two_loops,
        lambda rng: (f32(rng, first, 21), f32(rng, second, 21), out(21), out(21)),
        reference,
        (bound, bound),
        backends=BACKENDS,
    )


def _nested(a: int, b: int) -> Case:
    def reference(x: np.ndarray, y: np.ndarray, limit: float) -> Any:
        kept = np.maximum(x[x[:, 0, 0] < np.float32(limit)], 0)
        return exact(kept.reshape(-1, x.shape[2]))

    return Case(
        f"nested-{a}x{b}",
        nested,
        lambda rng: (f32(rng, a, b, 37), out(37), 0.3),
        reference,
        of_sum(dtype("f32"), a * b),
        backends=BACKENDS,
    )


def _ranges() -> Case:
    starts = np.array([0, 3, 90, 40, 7], np.int32)
    stops = np.array([100, 3, 80, 41, 31], np.int32)

    def reference(x: np.ndarray, *_: np.ndarray) -> Any:
        rows = [x[low:high].astype(np.float64) for low, high in zip(starts, stops, strict=True)]
        total = Close(np.array([row.sum() for row in rows]), np.array([np.abs(row).sum() for row in rows]))
        return total, np.array([row.max(initial=-1.0) for row in rows], np.float32)

    return Case(
        "ranges",
        of_ranges,
        lambda rng: (f32(rng, 100), starts, stops, out(5), out(5)),
        reference,
        (of_sum(dtype("f32"), 100), EXACT),
        backends=BACKENDS,
    )


def _product(name: str, size: tuple[int, int, int], block: tuple[int, int, int], **knobs: int) -> Case:
    m, n, k = size

    def reference(a: np.ndarray, b: np.ndarray, *_: np.ndarray) -> Any:
        left, right = a.astype(np.float64), b.astype(np.float64)
        return Close(np.maximum(left @ right, -1.0), np.abs(left) @ np.abs(right))

    return Case(
        f"product-{name}-{m}x{n}x{k}-{'x'.join(map(str, block))}",
        product(dtype(name)),
        lambda rng: (values(rng, (m, k), name), values(rng, (k, n), name), out(m, n)),
        reference,
        of_sum(dtype("f32"), k),
        dict(zip(("BM", "BN", "BK"), block, strict=True)),
        backends=BACKENDS,
        knobs=knobs,
    )


def _long_rows(rows: int, width: int, **knobs: int) -> Case:
    return Case(
        f"long-rows-{rows}x{width}",
        long_rows,
        lambda rng: (f32(rng, rows, width), out(rows), out(rows)),
        lambda x, *_: (exact(x.T), x.max(1)),
        (of_sum(dtype("f32"), width), EXACT),
        backends=BACKENDS,
        knobs=knobs,
    )


CASES = [
    *(_columns(name, 45, 70, (4, 32)) for name in ("f16", "bf16", "f32", "f64", "i32", "i64", "u8")),
    *(_columns("f32", rows, 40, (8, 16)) for rows in (1, 8, 17, 64, 300)),
    _columns("f32", 300, 5, (1, 8)),
    _columns("f16", 300, 600, (2, 64)),
    *(_columns(name, 500, 12, (1, 16), num_warps=1) for name in ("f64", "i32", "u8")),
    *(_columns("bf16", 500, width, (1, 16), num_warps=4) for width in (12, 20)),
    _columns("f32", 64, 5, (1, 8), split_sums=3),
    _columns("f32", 64, 70, (4, 32), split_sums=1),
    _columns("i32", 64, 70, (4, 32), num_warps=1),
    *(_largest(name, 41, 70, profile) for name in ("bf16", "f32", "i32", "u8") for profile in ("fast", "strict")),
    *map(_statistics, (1, 2, 50)),
    *(_two_loops(*sizes) for sizes in ((40, 23), (1, 40), (40, 1))),
    _product("f32", (33, 17, 300), (32, 16, 16), split_sums=16),
    _product("bf16", (40, 24, 328), (32, 32, 16), split_sums=16),
    _product("bf16", (40, 24, 1108), (32, 32, 16)),
    _product("f16", (50, 40, 200), (48, 24, 16), split_sums=16),
    _product("bf16", (64, 72, 520), (64, 64, 32), stages=2),
    _nested(23, 7),
    _ranges(),
    _long_rows(3, 4000, chunk=256),
    _long_rows(2, 4096, chunk=512),
]


@conformance(CASES)
def test_split_sums(case: Case, backend: str) -> None:
    check(case, backend)
