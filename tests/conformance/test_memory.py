"""Tensors in memory: bounded slices, strides, integer and tile indices, scatters, atomics."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import EXACT, of_rounding, of_sum
from tessera.runtime.arrays import to_numpy
from tests.conformance.data import integers, normal
from tests.conformance.harness import BACKENDS, Case, Close, Output, Updated, check, conformance, dtype, poisoned

MOVED = ("f32", "f16", "bf16", "f64", "fp8_e4m3", "i8", "u16", "i32", "i64", "bool")


def anything(rng: np.random.Generator, shape: tuple[int, ...], dt: DType) -> np.ndarray:
    """Return values of a dtype that only move."""
    return integers(rng, shape, dt) if dt.is_int else normal(rng, shape, dt)


def boxed(x: np.ndarray, offsets: Sequence[int], sizes: Sequence[int], fill: Any = 0) -> np.ndarray:
    """Return a box of an array, `fill` where it reaches outside."""
    result = np.full(sizes, fill).astype(x.dtype) if fill else np.zeros(sizes, x.dtype)
    for at in np.ndindex(*sizes):
        place = tuple(o + i for o, i in zip(offsets, at, strict=True))
        if all(0 <= p < size for p, size in zip(place, x.shape, strict=True)):
            result[at] = x[place]
    return result


# Slices at run-time offsets, before and past the ends


def window(dt: DType, fill: Any) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor[6, 20, dt], z: ts.Tensor[6, 20, dt], i: int, j: int):
        y[:, :] = ts.tile.load(x[i : i + 6, j : j + 20], fill=fill)
        z[:, :] = x[i : i + 6, j : j + 20]

    return kernel


OFFSETS = ((0, 0), (-2, -7), (4, 30), (-6, 0), (0, -20), (100, 3), (5, -3), (-1, 39), (-(2**40), 2**40))


@conformance(
    [
        Case(
            f"window-{name}-{i}-{j}",
            window(dtype(name), 1),
            lambda rng, name=name, i=i, j=j: [
                anything(rng, (9, 41), dtype(name)),
                *[Output((6, 20), dtype(name))] * 2,
                i,
                j,
            ],
            lambda x, y, z, i, j: (boxed(x, (i, j), (6, 20), 1), boxed(x, (i, j), (6, 20))),
        )
        for at, (i, j) in enumerate(OFFSETS)
        for name in (MOVED[at % len(MOVED)], MOVED[(at + 5) % len(MOVED)])
    ]
)
def test_loads_are_bounded(case, backend):
    check(case, backend)


def clipped(dt: DType) -> Callable[..., Any]:
    def kernel(v: ts.Tensor[6, 20, dt], y: ts.Tensor["m", "n", dt], i: int, j: int):
        y[i : i + 6, j : j + 20] = v[:, :]

    return kernel


def _clipped(v: np.ndarray, y: np.ndarray, i: int, j: int) -> np.ndarray:
    for at in np.ndindex(*v.shape):
        place = (i + at[0], j + at[1])
        if 0 <= place[0] < y.shape[0] and 0 <= place[1] < y.shape[1]:
            y[place] = v[at]
    return y


@conformance(
    [
        Case(
            f"clipped-{name}-{i}-{j}",
            clipped(dtype(name)),
            lambda rng, name=name, i=i, j=j: [
                anything(rng, (6, 20), dtype(name)),
                Output((9, 41), dtype(name)),
                i,
                j,
            ],
            _clipped,
        )
        for at, (i, j) in enumerate(OFFSETS)
        for name in (MOVED[(at + 2) % len(MOVED)],)
    ]
)
def test_stores_are_clipped(case, backend):
    check(case, backend)


# Strides


def copied(dt: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt], B: ts.constexpr = 12, C: ts.constexpr = 40):
        for i, j in ts.tile.grid((m, B), (n, C)):
            y[i : i + B, j : j + C] = x[i : i + B, j : j + C]
        return y

    return kernel


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": lambda a: a[:37, :129],
    "transposed": lambda a: a[:129, :37].T,
    "stepped": lambda a: a[::2, 1::3],
    "row-padding": lambda a: a[:37, 3:132],
    "backwards": lambda a: a[40:3:-1, 130:1:-1],
    "repeated-rows": lambda a: np.broadcast_to(a[0, :129], (37, 129)),
    "repeated-columns": lambda a: np.broadcast_to(a[:37, :1], (37, 129)),
    "one-row": lambda a: a[5:6, :64],
    "one-column": lambda a: a[:64, 7:8],
    "aligned-part": lambda a: a[16:48, 64:128],
    "stepped-columns": lambda a: a[:20, ::2],
}
HOST_VIEWS = ("backwards",)  # a device array has no negative strides


@conformance(
    [
        Case(
            f"copied-{view}-{name}",
            copied(dtype(name)),
            lambda rng, name=name, view=view: (
                (source := VIEWS[view](anything(rng, (160, 160), dtype(name)))),
                Output(source.shape, dtype(name)),
            ),
            lambda x, y: x,
            backends=tuple(b for b in ("interp", "cpu", "cuda") if b != "cuda" or view not in HOST_VIEWS),
        )
        for at, view in enumerate(VIEWS)
        for name in (MOVED[at % len(MOVED)], MOVED[(at + 5) % len(MOVED)])
    ]
)
def test_inputs_of_any_strides(case, backend):
    check(case, backend)


WRITABLE = ("transposed", "stepped", "row-padding", "one-column", "stepped-columns", "backwards")


@conformance(
    [
        Case(
            f"filled-{view}-{name}",
            copied(dtype(name)),
            lambda rng, name=name, view=view: (
                anything(rng, VIEWS[view](np.empty((160, 160))).shape, dtype(name)),
                Updated(VIEWS[view](poisoned((160, 160), dtype(name)))),
            ),
            lambda x, y: x,
            backends=tuple(b for b in ("interp", "cpu", "cuda") if b != "cuda" or view not in HOST_VIEWS),
        )
        for at, view in enumerate(WRITABLE)
        for name in (MOVED[(at + 1) % len(MOVED)],)
    ]
)
def test_outputs_of_any_strides(case, backend):
    check(case, backend)


# Ranks, integer indices, ellipsis, new axes


def indexed(
    x: ts.Tensor["a", "b", "c", "d", ts.f32],
    y: ts.Tensor["b", "c", "d", ts.f32],
    z: ts.Tensor["a", "d", ts.f32],
    w: ts.Tensor[5, ts.f32],
    i: int,
):
    for p, q in ts.tile.grid((b, 2), (c, 4)):
        y[p : p + 2, q : q + 4, :] = x[i, p : p + 2, q : q + 4, :] + 1.0
    for p in ts.tile.grid((a, 4)):
        z[p : p + 4, :] = x[p : p + 4, 1, 2]
    for _ in ts.tile.grid((1, 1)):
        w[0] = x[1, 1, 1, 1]
        w[1] = x[i, 0, 0, 0] * 2
        w[2] = ts.tile.sum(x[0, 0, 0, 0:d])
        w[3:5] = x[0, 0, 1:3, 0]


@conformance(
    [
        Case(
            f"indexed-{i}",
            indexed,
            lambda rng, i=i: [
                normal(rng, (3, 5, 6, 7), ts.f32),
                Output((5, 6, 7), ts.f32),
                Output((3, 7), ts.f32),
                Output((5,), ts.f32),
                i,
            ],
            lambda x, y, z, w, i: (
                x[i].astype(float) + 1,
                x[:, 1, 2].astype(float),
                Close(
                    np.array([x[1, 1, 1, 1], x[i, 0, 0, 0] * 2.0, x[0, 0, 0].astype(float).sum(), *x[0, 0, 1:3, 0]]),
                    10.0,
                ),
            ),
            [of_rounding(ts.f32), EXACT, of_sum(ts.f32, 7)],
        )
        for i in (0, 2)
    ]
)
def test_integer_indices_drop_dimensions(case, backend):
    check(case, backend)


def blocks3(dt: DType, order: tuple[int, ...] | None) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["a", "b", "c", dt], y: ts.Tensor["c", "a", "b", dt]):
        for i, j, k in ts.tile.grid((a, 2), (b, 6), (c, 8), order=order):
            y[k : k + 8, i : i + 2, j : j + 6] = ts.tile.transpose(x[i : i + 2, j : j + 6, k : k + 8], (2, 0, 1))

    return kernel


@conformance(
    [
        Case(
            f"blocks-{name}-{order}",
            blocks3(dtype(name), order),
            lambda rng, name=name: [
                anything(rng, (5, 11, 17), dtype(name)),
                Output((17, 5, 11), dtype(name)),
            ],
            lambda x, y: x.transpose(2, 0, 1),
        )
        for name, order in (("f32", None), ("bf16", (2, 0, 1)), ("i64", (2, 1, 0)))
    ]
)
def test_three_dimensional_grids(case, backend):
    check(case, backend)


# Index tiles


def gathered(dt: DType) -> Callable[..., Any]:
    def kernel(
        x: ts.Tensor["m", "n", dt],
        rows: ts.Tensor["k", ts.i32],
        columns: ts.Tensor["k", ts.i64],
        y: ts.Tensor["k", "n", dt],
        z: ts.Tensor["k", dt],
        w: ts.Tensor["k", dt],
    ):
        for i in ts.tile.grid((k, 12)):
            r, c = ts.tile.load(rows[i : i + 12], fill=0), ts.tile.load(columns[i : i + 12], fill=0)
            y[i : i + 12, :] = x[r, :]
            z[i : i + 12] = x[r, c]
            if c > 3:
                w[i : i + 12] = ts.tile.load(x[r, c + 100 - 100], fill=1)

    return kernel


def _gathered(x: Any, rows: Any, columns: Any, y: Any, z: Any, w: Any) -> tuple[Any, ...]:
    w[columns > 3] = x[rows, columns][columns > 3]
    return x[rows], x[rows, columns], w


@conformance(
    [
        Case(
            f"gathered-{name}-{k}",
            gathered(dtype(name)),
            lambda rng, name=name, k=k: [
                anything(rng, (19, 13), dtype(name)),
                rng.integers(0, 19, k).astype(np.int32),
                rng.integers(0, 13, k),
                Output((k, 13), dtype(name)),
                Output((k,), dtype(name)),
                Output((k,), dtype(name)),
            ],
            _gathered,
        )
        for name, k in (
            ("f32", 24),
            ("bf16", 29),
            ("i8", 5),
            ("f64", 12),
            ("u16", 33),
            ("bool", 31),
            ("fp8_e5m2", 7),
        )
    ]
)
def test_gathers(case, backend):
    check(case, backend)


def scattered(dt: DType) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["k", dt], at: ts.Tensor["k", ts.i32], y: ts.Tensor["n", dt], z: ts.Tensor["k", 2, dt]):
        i = ts.tile.linear_id()
        if i < k:
            a = at[i]
            if a >= 0:
                y[a] = x[i]
            z[i, 1] = x[i]

    return kernel


def _scattered(x: Any, at: Any, y: Any, z: Any) -> tuple[Any, Any]:
    y[at[at >= 0]] = x[at >= 0]
    z[:, 1] = x
    return y, z


@conformance(
    [
        Case(
            f"scattered-{name}-{k}",
            scattered(dtype(name)),
            lambda rng, name=name, k=k: [
                anything(rng, (k,), dtype(name)),
                np.where(rng.random(k) < 0.3, -1, rng.permutation(2 * k)[:k]).astype(np.int32),
                Output((2 * k,), dtype(name)),
                Output((k, 2), dtype(name)),
            ],
            _scattered,
        )
        for name, k in (("f32", 100), ("f16", 33), ("i64", 7), ("u8", 2000), ("bool", 40))
    ]
)
def test_scatters(case, backend):
    check(case, backend)


# Atomics


def atomics(dt: DType) -> Callable[..., Any]:
    def kernel(
        x: ts.Tensor["n", dt],
        total: ts.Tensor[1, dt],
        most: ts.Tensor[3, dt],
        least: ts.Tensor[3, dt],
        bins: ts.Tensor[7, dt],
    ):
        for i in ts.tile.grid((n, 32)):
            at = i + ts.tile.arange(32)
            if at < n:
                v = ts.tile.load(x[i : i + 32])
                ts.tile.atomic_add(bins[at % 7], v)
                ts.tile.atomic_max(most[at % 3], v)
                ts.tile.atomic_min(least[at % 3], v, order="acq_rel", scope="device")
            ts.tile.atomic_add(total[0], ts.tile.cast(ts.tile.sum(x[i : i + 32]), dt))

    return kernel


def _atomics(x: Any, total: Any, most: Any, least: Any, bins: Any) -> tuple[Any, ...]:
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    place = np.arange(len(x))
    with np.errstate(all="ignore"):
        for group in range(3):
            most[group] = max(most[group], x[place % 3 == group].max())
            least[group] = min(least[group], x[place % 3 == group].min())
        sums = np.array([wide[place % 7 == group].sum(dtype=wide.dtype) for group in range(7)])
        sizes = np.array([np.abs(wide[place % 7 == group]).astype(np.float64).sum() for group in range(7)])
        whole = (total.astype(wide.dtype) + wide.sum(dtype=wide.dtype)).astype(wide.dtype)
        return (
            Close(whole, sizes.sum()),
            most,
            least,
            Close((bins.astype(wide.dtype) + sums).astype(wide.dtype), sizes),
        )


@conformance(
    [
        Case(
            f"atomics-{name}-{n}",
            atomics(dtype(name)),
            lambda rng, name=name, n=n: [
                anything(rng, (n,), dtype(name)),
                *(
                    Updated(np.full(size, value).astype(dtype(name).numpy()))
                    for size, value in ((1, 1), (3, 2), (3, 2), (7, 5))
                ),
            ],
            _atomics,
            [of_sum(dtype(name), n), EXACT, EXACT, of_sum(dtype(name), n)],
            backends=("interp", "cpu", "cuda"),
        )
        for name, n in (("f32", 1000), ("f64", 77), ("i32", 1000), ("u32", 333), ("i64", 65), ("u64", 32))
    ]
)
def test_atomics(case, backend):
    check(case, backend)


def without_dimensions(
    x: ts.Tensor["n", ts.f32],
    count: ts.Tensor[ts.i32],
    most: ts.Tensor[ts.f32],
    last: ts.Tensor[ts.i64],
    found: ts.Tensor[3, ts.i32],
):
    for i in ts.tile.grid((n, 8)):
        ts.tile.atomic_add(count[...], (i + ts.tile.arange(8) < n).to(ts.i32).sum())
        ts.tile.atomic_max(most[()], x[i : i + 8].max())
        if i == 0:
            last[...] = 7
    for _ in ts.tile.grid((1, 1)):
        found[0] = ts.tile.atomic_load(count[...])
        found[1] = ts.tile.atomic_compare_exchange(count[...], 21, 4)
        found[2] = ts.tile.atomic_exchange(count[...], -1)
        ts.tile.atomic_store(last[...], last[...] + 1)


@conformance(
    [
        Case(
            "without-dimensions",
            without_dimensions,
            lambda rng: [
                anything(rng, (21,), dtype("f32")),
                *(Updated(np.array(0, kind)) for kind in (np.int32, np.float32, np.int64)),
                Output((3,), dtype("i32")),
            ],
            lambda x, count, most, last, found: (-1, max(0.0, x.max()), 8, np.array([21, 21, 4], np.int32)),
            backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"),
        )
    ]
)
def test_atomics_of_tensors_without_dimensions(case, backend):
    check(case, backend)


def bit_atomics(
    x: ts.Tensor["n", ts.u32],
    y: ts.Tensor[4, ts.u32],
    claimed: ts.Tensor["n", ts.i32],
    slot: ts.Tensor["s", ts.i32],
):
    for i in ts.tile.grid((n, 16)):
        at = i + ts.tile.arange(16)
        v = x[i : i + 16]
        if at < n:
            ts.tile.atomic_and(y[at * 0], v | 255)
            ts.tile.atomic_or(y[at * 0 + 1], v & 4095)
            ts.tile.atomic_xor(y[at * 0 + 2], v)
            # One program of each slot sees it empty, and only that one counts.
            old = ts.tile.atomic_compare_exchange(slot[at % s], -1, 7)
            claimed[i : i + 16] = ts.tile.where(old == -1, 1, 0)


PLACES = ("cpu", pytest.param("cuda", marks=pytest.mark.device))


@pytest.mark.parametrize("device", PLACES)
def test_the_claims_of_compare_exchange_add_up(device):
    """Which program wins a slot is open; that one does is not."""
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 2**32, 500).astype(np.uint32), np.full(4, 2**32 - 1, np.uint32)
    given = (x, y, np.full(500, -5, np.int32), np.full(90, -1, np.int32))
    arrays = [ts.asarray(array.copy(), device=device) for array in given]
    ts.kernel(bit_atomics)(*arrays)
    _, bits, claimed, slot = (to_numpy(array) for array in arrays)
    assert claimed.sum() == 90
    assert (slot == 7).all()
    np.testing.assert_array_equal(
        bits, [np.bitwise_and.reduce(x | 255), 2**32 - 1, y[2] ^ np.bitwise_xor.reduce(x), y[3]]
    )


def exchanged(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", ts.i32], old: ts.Tensor["n", ts.i32]):
    for i in ts.tile.grid((n, 8)):
        old[i : i + 8] = ts.tile.atomic_exchange(y[i : i + 8], x[i : i + 8])


@conformance(
    [
        Case(
            "exchanged",
            exchanged,
            lambda rng: [
                normal(rng, (21,), ts.i32),
                Updated(normal(rng, (21,), ts.i32)),
                Output((21,), ts.i32),
            ],
            lambda x, y, old: (x, y),
        )
    ]
)
def test_atomic_exchange(case, backend):
    check(case, backend)


# Nothing to do


@conformance(
    [
        Case(
            f"nothing-{m}x{n}",
            copied(ts.f32),
            lambda rng, m=m, n=n: [normal(rng, (m, n), ts.f32), Output((m, n), ts.f32)],
            lambda x, y: x,
        )
        for m, n in ((0, 5), (5, 0), (0, 0))
    ]
)
def test_arrays_without_elements(case, backend):
    check(case, backend)


def inner_nothing(x: ts.Tensor["m", "k", ts.f32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        total = ts.tile.zeros((4,), ts.f32)
        for j in ts.tile.range(0, k, 8):
            total += ts.tile.row_sum(x[i : i + 4, j : j + 8])
        y[i : i + 4] = total


@conformance(
    [
        Case(
            "empty-sum",
            inner_nothing,
            lambda rng: [normal(rng, (6, 0), ts.f32), Output((6,), ts.f32)],
            lambda x, y: np.zeros(6),
        )
    ]
)
def test_a_sum_over_nothing_is_zero(case, backend):
    check(case, backend)


def scatter_of_one(x: ts.Tensor[8, ts.u32], y: ts.Tensor[8, "m", ts.u32]):
    for i in ts.tile.grid((m, 1)):
        y[(ts.tile.arange(1) + 1) - 1, i] = x[0:1] + 1
        y[(ts.tile.arange(1) + 3) - 1, i] = x[1]


def _one_each(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = y.copy()
    result[0], result[2] = x[0] + 1, x[1]
    return result


@conformance(
    [
        Case(
            "scatter-of-one",
            scatter_of_one,
            lambda rng: [rng.integers(0, 99, 8, np.uint32), Updated(np.zeros((8, 3), np.uint32))],
            _one_each,
        )
    ]
)
def test_index_tiles_of_one_element(case, backend):
    check(case, backend)
