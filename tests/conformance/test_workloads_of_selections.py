"""Kernels that select, sort and count, as their users write them: ties, NaN, indices outside."""

from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tests.conformance.data import normal
from tests.conformance.harness import Close, Output, Updated, check, conformance
from tests.conformance.workloads import NEAR, case, wide

# Selection, sorting, counting


def best_by_turns(x: ts.Tensor["M", 45, ts.f32], values: ts.Tensor["M", 5, ts.f32], places: ts.Tensor["M", 5, ts.i32]):
    for m in ts.tile.grid((M, 2)):
        rest = x[m : m + 2, :]
        for k in ts.tile.range(5):
            at = ts.tile.argmax(rest, 1)
            values[m : m + 2, k] = ts.tile.max(rest, 1)
            places[m : m + 2, k] = at
            rest = ts.tile.where(ts.tile.arange(45)[None, :] == at[:, None], -float("inf"), rest)


def _best(x: np.ndarray, values: np.ndarray, places: np.ndarray) -> Any:
    at = np.argsort(-x, 1, kind="stable")[:, :5]
    return np.take_along_axis(x, at, 1), at.astype(np.int32)


def sorted_pairs(keys: ts.Tensor["M", 19, ts.i16], items: ts.Tensor["M", 19, ts.f32]):
    for m in ts.tile.grid((M, 4)):
        order = ts.tile.argsort(keys[m : m + 4, :], 1, descending=True)
        moved = ts.tile.take_along_axis(items[m : m + 4, :], order, 1)
        keys[m : m + 4, :] = ts.tile.take_along_axis(keys[m : m + 4, :], order, 1)
        items[m : m + 4, :] = moved


def _sorted_pairs(keys: np.ndarray, items: np.ndarray) -> Any:
    order = np.argsort(-keys.astype(np.int64), 1, kind="stable")
    return np.take_along_axis(keys, order, 1), np.take_along_axis(items, order, 1)


def histogram(x: ts.Tensor["n", ts.u8], counts: ts.Tensor[16, ts.i32], weights: ts.Tensor[16, ts.u64]):
    for i in ts.tile.grid((n, 200)):
        own = ts.tile.alloc_shared((16,), ts.i32)
        own[...] = ts.tile.zeros((16,), ts.i32)
        ts.tile.barrier()
        at = i + ts.tile.arange(200)
        bins = ts.tile.cast(x[i : i + 200], ts.i32) // 16
        if at < n:
            ts.tile.atomic_add(own[bins], 1)
            ts.tile.atomic_add(weights[bins], ts.tile.cast(x[i : i + 200], ts.u64))
        ts.tile.barrier()
        ts.tile.atomic_add(counts[:], own[...])


def _histogram(x: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> Any:
    bins = x.astype(np.int64) // 16
    return (
        counts + np.bincount(bins, minlength=16).astype(np.int32),
        weights + np.bincount(bins, x.astype(np.float64), minlength=16).astype(np.uint64),
    )


def scatter_sums(x: ts.Tensor["n", "d", ts.f32], segment: ts.Tensor["n", ts.i64], y: ts.Tensor["s", "d", ts.f32]):
    for i, j in ts.tile.grid((n, 5), (d, 16)):
        at = j + ts.tile.arange(16)
        ts.tile.atomic_add(y[segment[i : i + 5][:, None], at[None, :]], x[i : i + 5, j : j + 16])


def _scatter_sums(x: np.ndarray, segment: np.ndarray, y: np.ndarray) -> Any:
    result, size = wide(y), np.abs(wide(y))
    for row, at in zip(wide(x), segment, strict=True):
        if 0 <= at < len(y):
            result[at] += row
            size[at] += np.abs(row)
    return Close(result, size)


def compacted(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32], count: ts.Tensor[1, ts.i64]):
    for _ in ts.tile.grid((1, 1)):
        done = ts.tile.cast(0, ts.i64)
        for i in ts.tile.range(0, n, 50):
            part = x[i : i + 50]
            chosen = (part % 3 == 0) & (i + ts.tile.arange(50) < n)
            place = done + ts.tile.cumsum(ts.tile.cast(chosen, ts.i32)) - 1
            if chosen:
                y[place] = part
            done += ts.tile.cast(ts.tile.sum(ts.tile.cast(chosen, ts.i32)), ts.i64)
        count[0] = done


def _compacted(x: np.ndarray, y: np.ndarray, count: np.ndarray) -> Any:
    chosen = x[x % 3 == 0]
    result = y.copy()
    result[: len(chosen)] = chosen
    return result, np.array([len(chosen)])


def first_of_equals(x: ts.Tensor["M", "N", ts.f32], places: ts.Tensor["M", 2, ts.i64]):
    for m in ts.tile.grid((M, 1)):
        most, least = ts.tile.full((1,), -float("inf")), ts.tile.full((1,), float("inf"))
        highest, lowest = ts.tile.zeros((1,), ts.i64), ts.tile.zeros((1,), ts.i64)
        for n in ts.tile.range(0, N, 16):
            inside = (n + ts.tile.arange(16) < N)[None, :]
            part = x[m : m + 1, n : n + 16]
            up, down = ts.tile.where(inside, part, -float("inf")), ts.tile.where(inside, part, float("inf"))
            top, bottom = ts.tile.max(up, 1), ts.tile.min(down, 1)
            new_high = (top > most) | (ts.tile.isnan(top) & ~ts.tile.isnan(most))
            new_low = (bottom < least) | (ts.tile.isnan(bottom) & ~ts.tile.isnan(least))
            highest = ts.tile.where(new_high, n + ts.tile.argmax(up, 1), highest)
            lowest = ts.tile.where(new_low, n + ts.tile.argmin(down, 1), lowest)
            most, least = ts.tile.maximum(most, top), ts.tile.minimum(least, bottom)
        places[m, 0:1] = highest
        places[m, 1:2] = lowest


def _first_of_equals(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.stack([x.argmax(1), x.argmin(1)], 1)


def without_nans(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", 4, ts.f32]):
    for m in ts.tile.grid((M, 1)):
        row = x[m, :]
        good = ~ts.tile.isnan(row)
        count = ts.tile.sum(ts.tile.where(good, 1.0, 0.0))
        total = ts.tile.sum(ts.tile.where(good, row, 0.0))
        mean = total / count
        apart = ts.tile.where(good, row - mean, 0.0)
        y[m, 0] = mean
        y[m, 1] = ts.tile.sum(apart * apart) / count
        y[m, 2] = ts.tile.max(ts.tile.where(good, row, -float("inf")))
        y[m, 3] = ts.tile.max(row)


def _without_nans(x: np.ndarray, y: np.ndarray) -> Any:
    good, values = ~np.isnan(x), np.where(np.isnan(x), 0, wide(x))
    count = good.sum(1)
    mean = values.sum(1) / count
    var = np.where(good, (values - mean[:, None]) ** 2, 0).sum(1) / count
    return np.stack([mean, var, np.where(good, x, -np.inf).max(1), x.max(1)], 1)


def _some_nans(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    x = rng.integers(-3, 4, shape).astype(np.float32)
    x[rng.random(shape) < 0.1] = np.nan
    x[0] = 1
    return x


@conformance(
    [
        case(
            f"best-by-turns-{m}",
            best_by_turns,
            lambda rng, m=m: [
                rng.integers(-9, 9, (m, 45)).astype(np.float32),
                Output((m, 5), ts.f32),
                Output((m, 5), ts.i32),
            ],
            _best,
            EXACT,
        )
        for m in (3, 0)
    ]
    + [
        case(
            "sorted-pairs",
            sorted_pairs,
            lambda rng: [
                Updated(rng.integers(-3, 3, (7, 19)).astype(np.int16)),
                Updated(normal(rng, (7, 19), ts.f32)),
            ],
            _sorted_pairs,
            EXACT,
        )
    ]
    + [
        case(
            f"histogram-{n}",
            histogram,
            lambda rng, n=n: [
                rng.integers(0, 256, n).astype(np.uint8),
                Updated(rng.integers(0, 9, 16).astype(np.int32)),
                Updated(rng.integers(0, 9, 16).astype(np.uint64)),
            ],
            _histogram,
            EXACT,
        )
        for n in (0, 1, 777)
    ]
    + [
        case(
            f"scatter-sums-{n}x{d}",
            scatter_sums,
            lambda rng, s=(n, d): [
                normal(rng, s, ts.f32),
                rng.integers(-2, 6, s[0]).astype(np.int64),
                Updated(normal(rng, (5, s[1]), ts.f32)),
            ],
            _scatter_sums,
            NEAR,
        )
        for n, d in ((23, 37), (1, 1))
    ]
    + [
        case(
            f"compacted-{n}",
            compacted,
            lambda rng, n=n: [
                rng.integers(-50, 50, n).astype(np.int32),
                Output((n,), ts.i32),
                Output((1,), ts.i64),
            ],
            _compacted,
            EXACT,
        )
        for n in (0, 49, 50, 231)
    ]
    + [
        case(
            f"first-of-equals-{m}x{n}",
            first_of_equals,
            lambda rng, s=(m, n): [_some_nans(rng, s), Output((s[0], 2), ts.i64)],
            _first_of_equals,
            EXACT,
        )
        for m, n in ((9, 70), (3, 1), (2, 16))
    ]
    + [
        case(
            f"without-nans-{m}x{n}",
            without_nans,
            lambda rng, s=(m, n): [_some_nans(rng, s), Output((s[0], 4), ts.f32)],
            _without_nans,
        )
        for m, n in ((9, 70), (3, 257))
    ]
)
def test_selections(case, backend):
    check(case, backend)
