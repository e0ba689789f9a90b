"""Atomics of elements of shared buffers, on every backend; and what is a race with them."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import DeviceError, LanguageError, TypeMismatchError
from tessera.interp import interpret
from tests.conformance.harness import Case, Output, check, conformance
from tests.unit.lower.support import aligned

BINS = 60


def histogram(x: ts.Tensor["n", ts.i32], y: ts.Tensor["p", BINS, ts.i32], most: ts.Tensor["p", ts.i32]):
    for i in ts.tile.grid((n, 96)):
        bins = ts.tile.alloc_shared((BINS,), ts.i32)
        bins[...] = ts.tile.zeros((BINS,), ts.i32)
        ts.tile.barrier()
        if i + ts.tile.arange(96) < n:
            ts.tile.atomic_add(bins[x[i : i + 96]], 1)
        ts.tile.barrier()
        y[i // 96, :] = bins
        most[i // 96] = ts.tile.atomic_load(bins[7])


def _histogram(x: np.ndarray, y: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, ...]:
    parts = [x[at : at + 96] for at in range(0, len(x), 96)]
    counts = [[int((part == value).sum()) for value in range(BINS)] for part in parts]
    return np.array(counts), np.array(counts)[:, 7]


@conformance(
    [
        Case(
            f"histogram-{n}",
            histogram,
            lambda rng, n=n: [
                rng.integers(-5, BINS + 5, n).astype(np.int32),
                Output(((n + 95) // 96, BINS), ts.i32),
                Output(((n + 95) // 96,), ts.i32),
            ],
            _histogram,
        )
        for n in (96, 200)
    ]
)
def test_counts_in_shared_memory(case, backend):
    check(case, backend)


def updates(dt: Any, order: str, scope: str) -> Any:
    """Every function, at places in two dimensions of a stage and of a transposed view, also outside."""

    def kernel(x: ts.Tensor[12, dt], r: ts.Tensor[12, ts.i64], c: ts.Tensor[12, ts.i32], y: ts.Tensor[8, 12, dt]):
        for _ in ts.tile.grid((1, 1)):
            ring = ts.tile.alloc_shared((2, 5, 20), dt)
            stage = ring[1]
            ts.tile.atomic_store(stage, 3, order="relaxed" if order in ("acquire", "acq_rel") else order)
            rows, columns, v = r[:], c[:], x[:]
            y[0, :] = ts.tile.atomic_add(stage[rows, columns], v, order=order, scope=scope)
            y[1, :] = ts.tile.atomic_max(stage[rows, columns], v * 2, order=order, scope=scope)
            y[2, :] = ts.tile.atomic_min(stage.T[columns, rows], v, order=order, scope=scope)
            y[3, :] = ts.tile.atomic_exchange(stage[rows, columns], v + 1, order=order, scope=scope)
            y[4, :] = ts.tile.atomic_compare_exchange(stage[rows, columns], v + 1, v + 5, order=order, scope=scope)
            if v > 4:
                ts.tile.atomic_store(stage[rows, 19 - columns], v)
            y[5, :] = ts.tile.atomic_load(stage[rows, columns])
            y[6, :] = ts.tile.atomic_load(stage[rows, 19 - columns])
            y[7, :] = ts.tile.full((12,), ts.tile.atomic_add(ring[1, 2, 3], 9), dt)

    return kernel


def _updates(x: np.ndarray, r: np.ndarray, c: np.ndarray, y: np.ndarray) -> np.ndarray:
    stage, result = np.full((5, 20), 3, x.dtype), np.zeros((8, 12), x.dtype)
    inside = (r >= 0) & (r < 5) & (c >= 0) & (c < 20)
    steps = [
        lambda old, v: old + v,
        lambda old, v: max(old, v * 2),
        lambda old, v: min(old, v),
        lambda old, v: v + 1,
        lambda old, v: v + 5 if old == v + 1 else old,
    ]
    for number, step in enumerate(steps):
        for k in np.flatnonzero(inside):
            result[number, k] = stage[r[k], c[k]]
            stage[r[k], c[k]] = step(stage[r[k], c[k]], x[k])
    for k in np.flatnonzero(inside & (x > 4)):
        stage[r[k], 19 - c[k]] = x[k]
    result[5, inside] = stage[r[inside], c[inside]]
    result[6, inside] = stage[r[inside], 19 - c[inside]]
    result[7] = stage[2, 3]
    return result


def _places(rng: np.random.Generator) -> list[np.ndarray]:
    """Return rows and columns, no two of which are alike or mirror each other, some outside."""
    at = rng.permutation(50)[:12]
    rows, columns = at // 10, at % 10
    rows[3], rows[7], columns[5] = 5, -1, 2**31 - 20
    return [rows.astype(np.int64), columns.astype(np.int32)]


@conformance(
    [
        Case(
            f"updates-{dt}-{order}-{scope}",
            updates(dt, order, scope),
            lambda rng, dt=dt: [rng.integers(0, 9, 12).astype(dt.numpy()), *_places(rng), Output((8, 12), dt)],
            _updates,
        )
        for dt, order, scope in (
            (ts.i32, "relaxed", "group"),
            (ts.u32, "acq_rel", "device"),
            (ts.i64, "seq_cst", "mesh"),
            (ts.u64, "release", "cluster"),
        )
    ]
)
def test_every_update_of_elements(case, backend):
    check(case, backend)


def bits(x: ts.Tensor[8, ts.u32], y: ts.Tensor[3, 4, ts.u32]):
    for _ in ts.tile.grid((1, 1)):
        words = ts.tile.alloc_shared((4,), ts.u32)
        words[...] = ts.tile.full((4,), 0xFF00, ts.u32)
        ts.tile.barrier()
        ts.tile.atomic_or(words[ts.tile.arange(8) % 4], x[:])
        ts.tile.barrier()
        y[0, :] = words
        ts.tile.barrier()
        ts.tile.atomic_and(words[ts.tile.arange(8) % 4], x[:] | 0xF0F)
        ts.tile.barrier()
        y[1, :] = words
        ts.tile.barrier()
        ts.tile.atomic_xor(words[ts.tile.arange(8) % 4], x[:])
        ts.tile.barrier()
        y[2, :] = words


def _bits(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    first = x[:4] | x[4:] | 0xFF00
    second = first & (x[:4] | 0xF0F) & (x[4:] | 0xF0F)
    return np.stack([first, second, second ^ x[:4] ^ x[4:]])


@conformance(
    [
        Case(
            "bits",
            bits,
            lambda rng: [rng.integers(0, 2**32, 8).astype(np.uint32), Output((3, 4), ts.u32)],
            _bits,
        )
    ]
)
def test_bits_of_elements(case, backend):
    check(case, backend)


# Races: an atomic goes together with other atomics, and with nothing else


def stored_then_counted(y: ts.Tensor[4, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        bins = ts.tile.alloc_shared((4,), ts.i32)
        bins[...] = ts.tile.zeros((4,), ts.i32)
        ts.tile.atomic_add(bins[0], 1)
        ts.tile.barrier()
        y[:] = bins


def counted_then_read(y: ts.Tensor[4, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        bins = ts.tile.alloc_shared((4,), ts.i32)
        ts.tile.atomic_store(bins, 0)
        ts.tile.atomic_add(bins[0], 1)
        y[:] = bins


def read_then_counted(y: ts.Tensor[4, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        bins = ts.tile.alloc_shared((4,), ts.i32)
        ts.tile.atomic_store(bins, 0)
        ts.tile.barrier()
        y[:] = bins
        ts.tile.atomic_add(bins[0], 1)


def counted_then_stored(y: ts.Tensor[4, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        bins = ts.tile.alloc_shared((4,), ts.i32)
        ts.tile.atomic_store(bins, 0)
        bins[...] = ts.tile.zeros((4,), ts.i32)
        ts.tile.barrier()
        y[:] = bins


RACES = [
    (stored_then_counted, "reads a shared buffer that was written after the last barrier"),
    (counted_then_read, "reads a shared buffer that was written after the last barrier"),
    (read_then_counted, "writes a shared buffer that was read after the last barrier"),
    (counted_then_stored, "writes a shared buffer twice with no barrier between"),
]


@pytest.mark.parametrize(("kernel", "message"), RACES, ids=[kernel.__name__ for kernel, _ in RACES])
def test_accesses_that_nothing_orders_are_refused(kernel: Any, message: str) -> None:
    with pytest.raises(LanguageError, match=message) as caught:
        ts.compile(ts.kernel(kernel), target="sm_80")
    assert caught.value.code == "race"


@pytest.mark.parametrize(("kernel", "message"), RACES, ids=[kernel.__name__ for kernel, _ in RACES])
def test_the_interpreter_finds_the_same(kernel: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        interpret(aligned(kernel), [np.zeros(4, np.int32)])


def half_filled(y: ts.Tensor[1, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        bins = ts.tile.alloc_shared((4,), ts.i32)
        ts.tile.atomic_store(bins[0], 1)
        y[0] = ts.tile.atomic_load(bins[1])


def test_an_element_that_nothing_was_written_to_is_not_read() -> None:
    with pytest.raises(DeviceError, match="nothing was written to"):
        interpret(aligned(half_filled), [np.zeros(1, np.int32)])


def swizzled(y: ts.Tensor[8, 8, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        tile = ts.tile.alloc_shared((8, 8), ts.i32, swizzle="xor")
        ts.tile.atomic_add(tile[0, 0], 1)


def test_elements_are_of_plain_buffers() -> None:
    with pytest.raises(TypeMismatchError, match="swizzled"):
        ts.compile(ts.kernel(swizzled), target="sm_80")
