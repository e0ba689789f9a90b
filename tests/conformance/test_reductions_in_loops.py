"""Reductions that loops add up, and boxes of odd sizes: late reductions, steps at once, boxes without bounds."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT, of_sum
from tests.conformance.data import integers, normal
from tests.conformance.harness import Case, Close, Output, check, conformance, dtype

BACKENDS = ("interp", "scheduled-sm_90a", "threads-sm_90a", "ptx-sm_80", "ptx-sm_90a", "cuda")


def along(fn: str, dt: DType) -> Callable[..., None]:
    def kernel(x: ts.Tensor["A", "B", "C", dt], y: ts.Tensor["A", "C", dt], BB: ts.constexpr, BC: ts.constexpr) -> None:
        for a, c in ts.tile.grid((A, 1), (C, BC)):
            total = ts.tile.full((BC,), 0, dt)
            for b in ts.tile.range(0, B, BB):
                block = ts.tile.load(x[a, b : b + BB, c : c + BC], fill=0)
                if fn == "sum":
                    total = total + ts.tile.sum(block, 0).to(dt)
                else:
                    total = ts.tile.maximum(total, ts.tile.max(block, 0).to(dt))
            y[a, c : c + BC] = total

    return kernel


def channels(x: ts.Tensor["A", "B", "C", ts.f32], total: ts.Tensor["B", ts.f32], most: ts.Tensor["B", ts.f32]) -> None:
    for b in ts.tile.grid((B, 1)):
        added, high = ts.tile.full((1,), 0.5, ts.f32), ts.tile.full((1,), -9.0, ts.f32)
        for a in ts.tile.range(A):
            row = x[a, b, :]
            added = added + ts.tile.sum(row)
            high = ts.tile.maximum(high, ts.tile.max(row))
        total[b : b + 1] = added
        most[b : b + 1] = high


def twice(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32], BB: ts.constexpr) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            for b in ts.tile.range(0, B, BB):
                total = total + ts.tile.sum(x[a, b : b + BB, c : c + 16], 0)
        y[c : c + 16] = total


def sides(
    x: ts.Tensor["A", "B", "C", "D", ts.bf16],
    y: ts.Tensor["B", "D", ts.f32],
    high: ts.Tensor["B", "D", ts.f32],
    first: ts.i64,
    step: ts.constexpr,
) -> None:
    for b, d in ts.tile.grid((B, 1), (D, 8)):
        total, most = ts.tile.zeros((8,), ts.f32), ts.tile.full((8,), -9.0, ts.f32)
        for a in ts.tile.range(ts.tile.maximum(first, 0), A, step):
            for c in ts.tile.range(0, C, 16):
                block = ts.tile.load(x[a, b, c : c + 16, d : d + 8], fill=0.0).to(ts.f32)
                total = total + ts.tile.sum(block, 0)
                most = ts.tile.maximum(most, ts.tile.max(block, 0))
        y[b, d : d + 8] = total
        high[b, d : d + 8] = most


def triangle(x: ts.Tensor["A", "B", "C", ts.i32], y: ts.Tensor["C", ts.i32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.i32)
        for a in ts.tile.range(A):
            for b in ts.tile.range(0, ts.tile.minimum(a, B)):
                total = total + x[a, b, c : c + 16]
            for b in ts.tile.range(0, B, 3):
                total = total ^ x[a, b, c : c + 16]
        y[c : c + 16] = total


def ragged(x: ts.Tensor["A", "B", "C", ts.i32], y: ts.Tensor["C", ts.i32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.i32)
        for a in ts.tile.range(A):
            for b in ts.tile.range(0, B, 3):
                total = total + x[a, b, c : c + 16]
            for b in ts.tile.range(a % 3, B - a):
                total = total + 3 * x[a, b, c : c + 16]
            for b in ts.tile.range(1, B):
                total = total + 5 * x[a, b, c : c + 16]
        y[c : c + 16] = total


def scaled(x: ts.Tensor["A", "B", "C", ts.i32], y: ts.Tensor["C", ts.i32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.i32)
        for a in ts.tile.range(A):
            high = ts.tile.zeros((16,), ts.i32)
            for b in ts.tile.range(B):
                high = ts.tile.maximum(high, x[a, b, c : c + 16])
            for b in ts.tile.range(B):
                total = total + x[a, b, c : c + 16] * high
        y[c : c + 16] = total


def across(x: ts.Tensor["A", "B", ts.f32], y: ts.Tensor["A", ts.f32]) -> None:
    for a in ts.tile.grid((A, 16)):
        most = ts.tile.full((16,), -9.0, ts.f32)
        for b in ts.tile.range(1, B, 3):
            most = ts.tile.maximum(most, x[a : a + 16, b])
        y[a : a + 16] = most


def chosen(x: ts.Tensor["A", "B", ts.f32], rows: ts.Tensor["N", ts.i32], y: ts.Tensor["B", ts.f32]) -> None:
    for b in ts.tile.grid((B, 32)):
        total = ts.tile.zeros((32,), ts.f32)
        for n in ts.tile.range(N):
            total = total + x[rows[n], b : b + 32]
        y[b : b + 32] = total


def whole(dt: DType) -> Callable[..., None]:
    def kernel(x: ts.Tensor["N", dt], part: ts.Tensor["P", ts.f32], BN: ts.constexpr) -> None:
        for n in ts.tile.grid((N, BN)):
            part[n // BN] = ts.tile.sum(x[n : n + BN].to(ts.f32))

    return kernel


def from_the_second(x: ts.Tensor["N", ts.f32], y: ts.Tensor["M", ts.f32]) -> None:
    for m in ts.tile.grid((M, 64)):
        ahead = x[m + 1 : m + 65]
        y[m : m + 64] = x[m : m + 64] + ts.tile.max(ahead)


def steps_between(step: int) -> Callable[..., None]:
    def kernel(x: ts.Tensor["N", ts.i32], y: ts.Tensor[4, ts.i32], first: ts.i64, last: ts.i64) -> None:
        for _ in ts.tile.grid((4, 4)):
            total = ts.tile.zeros((4,), ts.i32)
            for k in ts.tile.range(ts.tile.maximum(first, 0), last, step):
                total += x[k : k + 4] + 1
            y[:] = total

    return kernel


def _along(fn: str, name: str, shape: tuple[int, int, int], blocks: tuple[int, int], **knobs: int) -> Case:
    dt = dtype(name)

    def reference(x: np.ndarray, y: np.ndarray) -> Any:
        if fn == "max":
            return x.max(1, initial=0)
        if not dt.is_float:
            return x.sum(1, dtype=x.dtype)
        exact = x.astype(np.longdouble)
        return Close(exact.sum(1), np.abs(exact).sum(1))

    return Case(
        f"{fn}-{name}-{'x'.join(map(str, shape))}-{'x'.join(map(str, blocks))}",
        along(fn, dt),
        lambda rng: (_values(rng, shape, name), Output((shape[0], shape[2]), dt)),
        reference,
        of_sum(dt, shape[1]) if dt.is_float and fn == "sum" else EXACT,
        {"BB": blocks[0], "BC": blocks[1]},
        backends=BACKENDS,
        knobs=knobs,
    )


def _values(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> np.ndarray:
    found = normal(rng, shape, dtype(name)) if dtype(name).is_float else integers(rng, shape, dtype(name))
    if dtype(name).is_float and shape[0] == 1:
        found.reshape(-1)[::97] = np.nan
    return found


def _f32(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _channels(shape: tuple[int, int, int]) -> Case:
    def reference(x: np.ndarray, *_: np.ndarray) -> Any:
        exact = x.astype(np.longdouble)
        return Close(exact.sum((0, 2)) + 0.5, np.abs(exact).sum((0, 2)) + 0.5), x.max((0, 2), initial=-9.0)

    return Case(
        f"channels-{'x'.join(map(str, shape))}",
        channels,
        lambda rng: (_f32(rng, *shape), *(Output((shape[1],), dtype("f32")) for _ in "ab")),
        reference,
        (of_sum(dtype("f32"), shape[0] * shape[2]), EXACT),
        backends=BACKENDS,
    )


def _twice(shape: tuple[int, int, int], rows: int) -> Case:
    return Case(
        f"twice-{'x'.join(map(str, shape))}-{rows}",
        twice,
        lambda rng: (_f32(rng, *shape), Output((shape[2],), dtype("f32"))),
        lambda x, y: Close(x.astype(np.longdouble).sum((0, 1)), np.abs(x).sum((0, 1))),
        of_sum(dtype("f32"), shape[0] * shape[1]),
        {"BB": rows},
        backends=BACKENDS,
    )


def _across(rows: int, width: int) -> Case:
    return Case(
        f"across-{rows}x{width}",
        across,
        lambda rng: (_f32(rng, rows, width), Output((rows,), dtype("f32"))),
        lambda x, y: x[:, 1::3].max(1, initial=-9.0),
        EXACT,
        backends=BACKENDS,
    )


def _chosen(count: int) -> Case:
    return Case(
        f"chosen-{count}",
        chosen,
        lambda rng: (_f32(rng, 50, 45), rng.integers(0, 50, count).astype(np.int32), Output((45,), dtype("f32"))),
        lambda x, rows, y: Close(x[rows].astype(np.longdouble).sum(0), np.abs(x[rows]).sum(0)),
        of_sum(dtype("f32"), count),
        backends=BACKENDS,
    )


def _whole(name: str, size: int, block: int) -> Case:
    def reference(x: np.ndarray, part: np.ndarray) -> Any:
        padded = np.zeros(-(-size // block) * block)
        padded[:size] = x.astype(np.float64)
        return Close(padded.reshape(-1, block).sum(1), np.abs(padded).reshape(-1, block).sum(1))

    return Case(
        f"whole-{name}-{size}-{block}",
        whole(dtype(name)),
        lambda rng: (normal(rng, (size,), dtype(name)), Output((-(-size // block),), dtype("f32"))),
        reference,
        of_sum(dtype("f32"), block),
        {"BN": block},
        backends=BACKENDS,
    )


def _from_the_second(size: int, stored: int) -> Case:
    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        padded = np.zeros(stored + 129, np.float32)
        padded[: min(size, stored + 129)] = x[: stored + 129]
        starts = np.arange(stored) // 64 * 64
        return padded[:stored] + np.array([padded[start + 1 : start + 65].max() for start in starts])

    return Case(
        f"from-the-second-{size}-{stored}",
        from_the_second,
        lambda rng: (_f32(rng, size), Output((stored,), dtype("f32"))),
        reference,
        EXACT,
        backends=BACKENDS,
    )


def _sides(shape: tuple[int, int, int, int], first: int = 0, step: int = 1) -> Case:
    def reference(x: np.ndarray, y: np.ndarray, high: np.ndarray, first: int) -> Any:
        taken = x.astype(np.float64)[max(first, 0) :: step]
        total = Close(taken.sum((0, 2)), np.abs(taken).sum((0, 2)))
        most = taken.max((0, 2), initial=-9.0)
        return total, np.maximum(most, 0.0) if shape[2] % 16 and taken.size else most

    return Case(
        f"sides-{'x'.join(map(str, shape))}-{first}-{step}",
        sides,
        lambda rng: (
            _values(rng, shape, "bf16"),
            Output((shape[1], shape[3]), dtype("f32")),
            Output((shape[1], shape[3]), dtype("f32")),
            first,
        ),
        reference,
        of_sum(dtype("f32"), shape[0] * shape[2]),
        {"step": step},
        backends=BACKENDS,
    )


def _of_integers(kernel: Callable[..., None], shape: tuple[int, int, int]) -> Case:
    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        total = np.zeros(shape[2], np.int32)
        for a in range(shape[0]):
            if kernel is scaled:
                total += (x[a] * x[a].max(0, initial=0)).sum(0, dtype=np.int32)
            elif kernel is triangle:
                total += x[a, : min(a, shape[1])].sum(0, dtype=np.int32)
                total ^= np.bitwise_xor.reduce(x[a, ::3], 0)
            else:
                total += x[a, ::3].sum(0, dtype=np.int32) + 5 * x[a, 1:].sum(0, dtype=np.int32)
                total += 3 * x[a, a % 3 : max(shape[1] - a, 0)].sum(0, dtype=np.int32)
        return total

    return Case(
        f"{kernel.__name__}-{'x'.join(map(str, shape))}",
        kernel,
        lambda rng: (rng.integers(-(2**30), 2**30, shape, np.int32), Output((shape[2],), dtype("i32"))),
        reference,
        EXACT,
        backends=BACKENDS,
    )


def _steps_between(first: int, last: int, step: int) -> Case:
    def reference(x: np.ndarray, y: np.ndarray, first: int, last: int) -> np.ndarray:
        padded = np.concatenate([x, np.zeros(4, x.dtype)])
        total = np.zeros(4, x.dtype)
        for k in range(max(first, 0), last, step):
            total += (padded[k : k + 4] if k < len(x) else 0) + 1
        return total

    return Case(
        f"steps-between-{first}-{last}-{step}",
        steps_between(step),
        lambda rng: (rng.integers(-99, 99, 41).astype(np.int32), Output((4,), dtype("i32")), first, last),
        reference,
        EXACT,
        backends=BACKENDS,
    )


FAR = 2**63

CASES = [
    *(_along("sum", name, (2, 45, 41), (16, 32)) for name in ("bf16", "f16", "f32", "f64", "i32", "u8")),
    *(_along("max", name, (2, 45, 41), (16, 64)) for name in ("bf16", "f32", "i64", "u8")),
    *(_along("max", name, (1, 67, 9), (32, 16)) for name in ("bf16", "f32")),
    *(_along("sum", "f32", (3, rows, 5), (8, 8)) for rows in (1, 7, 8, 9, 40)),
    _along("sum", "bf16", (1, 700, 3), (128, 4)),
    _along("sum", "f16", (2, 300, 130), (64, 128)),
    _along("sum", "f32", (2, 100, 24), (24, 8)),
    _along("sum", "f32", (2, 50, 24), (1, 8)),
    _along("sum", "f32", (2, 100, 24), (8, 8), split_sums=1),
    *(_along("sum", "bf16", (2, rows, width), (4, 128)) for rows, width in ((3, 130), (4, 1500), (9, 4100))),
    *(_along("max", "f32", (3, rows, width), (2, 128)) for rows, width in ((2, 1025), (5, 700))),
    *(_along("sum", "i32", (700, rows, 3), (4, 4)) for rows in (2, 4, 11)),
    *(_across(*sizes) for sizes in ((21, 200), (16, 20), (5, 1))),
    *map(_chosen, (1, 16, 100)),
    *map(_channels, ((40, 5, 3), (7, 70, 10), (19, 2, 100), (1, 3, 33), (5, 3, 5000))),
    *(_twice(shape, rows) for shape, rows in (((5, 21, 17), 4), ((33, 3, 16), 4), ((4, 64, 20), 32))),
    *(_twice(shape, rows) for shape, rows in (((17, 5, 9), 2), ((8, 9, 30), 4), ((70, 3, 5), 8))),
    *map(_sides, ((41, 3, 23, 5), (8, 1, 16, 8), (19, 2, 70, 9), (3, 2, 5, 3), (100, 1, 1, 1))),
    *(_sides((41, 2, 23, 5), *along) for along in ((-7, 3), (40, 1), (41, 2), (FAR - 1, 1), (11, 1 << 40))),
    *(_of_integers(kernel, shape) for kernel in (triangle, ragged, scaled) for shape in ((19, 7, 20), (8, 10, 16))),
    *(_whole(name, size, 256) for name in ("bf16", "f32") for size in (1, 255, 256, 257, 1003)),
    *(
        _steps_between(*ends, 3)
        for ends in ((0, 41), (0, -FAR), (7, 5 - FAR), (FAR - 100, FAR - 1), (-FAR, 20), (5, 4))
    ),
    *(_steps_between(0, FAR - 1, step) for step in (1 << 60, (1 << 62) + 1)),
    *(_from_the_second(*sizes) for sizes in ((200, 200), (200, 100), (65, 64), (64, 64))),
]


@conformance(CASES)
def test_reductions_in_loops(case: Case, backend: str) -> None:
    check(case, backend)
