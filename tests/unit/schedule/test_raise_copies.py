"""Buffers that a kernel fills by hand become slices: which, what stays as written and why, and that nothing changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts

A, B = ts.Tensor["M", "K", ts.f32], ts.Tensor["K", "N", ts.f32]
C = ts.Tensor["M", "N", ts.f32]


@ts.kernel
def single(a: A, b: B, c: C) -> None:
    """One buffer an operand."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((16, 8), ts.f32), ts.tile.alloc_shared((8, 16), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left, a[m : m + 16, k : k + 8])
            ts.tile.cp_async(right, b[k : k + 8, n : n + 16])
            ts.tile.barrier()
            acc = ts.tile.mma(left, right, acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def once(a: A, b: B, c: C) -> None:
    """An operand that is copied before the loops that read it, and a transposed one."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((8, 16), ts.f32), ts.tile.alloc_shared((8, 16), ts.f32)
        ts.tile.cp_async(left, b[0:8, m : m + 16])
        ts.tile.barrier()
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(right, b[k : k + 8, n : n + 16])
            ts.tile.barrier()
            for _ in ts.tile.range(2):
                acc = ts.tile.mma(left.T, right, acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc + a[m, 0]


@ts.kernel
def ring_of_two(a: A, b: B, c: C) -> None:
    """Two stages that change places."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((2, 16, 8), ts.f32), ts.tile.alloc_shared((2, 8, 16), ts.f32)
        ts.tile.cp_async(left[0], a[m : m + 16, 0:8])
        ts.tile.cp_async(right[0], b[0:8, n : n + 16])
        ts.tile.commit_group()
        acc = ts.tile.zeros((16, 16), ts.f32)
        stage = 0
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left[1 - stage], a[m : m + 16, k + 8 : k + 16])
            ts.tile.cp_async(right[1 - stage], b[k + 8 : k + 16, n : n + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            acc = ts.tile.mma(left[stage], right[stage], acc)
            ts.tile.barrier()
            stage = 1 - stage
        ts.tile.wait_group(0)
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def ring_by_counter(a: A, b: B, c: C, STAGES: ts.constexpr = 3, AHEAD: ts.constexpr = 2) -> None:
    """Stages that follow from the loop's counter; copies behind the end are left out."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((STAGES, 16, 8), ts.f32), ts.tile.alloc_shared((STAGES, 8, 16), ts.f32)
        for s in ts.tile.static_range(AHEAD):
            if s * 8 < K:
                ts.tile.cp_async(left[s], a[m : m + 16, s * 8 : s * 8 + 8])
                ts.tile.cp_async(right[s], b[s * 8 : s * 8 + 8, n : n + 16])
            ts.tile.commit_group()
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            ahead = k + 8 * AHEAD
            if ahead < K:
                ts.tile.cp_async(left[(ahead // 8) % STAGES], a[m : m + 16, ahead : ahead + 8])
                ts.tile.cp_async(right[(ahead // 8) % STAGES], b[ahead : ahead + 8, n : n + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(AHEAD)
            ts.tile.barrier()
            acc = ts.tile.mma(left[(k // 8) % STAGES], right[(k // 8) % STAGES], acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def ring_carried(a: A, b: B, c: C) -> None:
    """Three stages that are counted, one copy ahead of the other."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((3, 16, 8), ts.f32), ts.tile.alloc_shared((3, 8, 16), ts.f32)
        ts.tile.cp_async(left[0], a[m : m + 16, 0:8])
        ts.tile.cp_async(right[0], b[0:8, n : n + 16])
        ts.tile.commit_group()
        ts.tile.cp_async(right[1], b[8:16, n : n + 16])
        ts.tile.commit_group()
        acc = ts.tile.zeros((16, 16), ts.f32)
        here, there, far = 0, 1, 2
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left[there], a[m : m + 16, k + 8 : k + 16])
            ts.tile.cp_async(right[far], b[k + 16 : k + 24, n : n + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            acc = ts.tile.mma(left[here], right[here], acc)
            ts.tile.barrier()
            here, there, far = there, far, here
        ts.tile.wait_group(0)
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def computed(a: A, b: B, c: C) -> None:
    """A buffer that threads store to, and whose other half threads read."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((16, 8), ts.f32), ts.tile.alloc_shared((8, 16), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            left[...] = a[m : m + 16, k : k + 8] * 2.0
            ts.tile.cp_async(right, b[k : k + 8, n : n + 16])
            ts.tile.barrier()
            acc = ts.tile.mma(left, right[...] * 0.5, acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def by_way_of_others(a: A, b: B, c: C) -> None:
    """Buffers that are filled from other buffers, once and twice, and transposed on the way."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((16, 8), ts.f32), ts.tile.alloc_shared((8, 16), ts.f32)
        again, turned = ts.tile.alloc_shared((16, 8), ts.f32), ts.tile.alloc_shared((16, 8), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left, a[m : m + 16, k : k + 8])
            right[...] = b[k : k + 8, n : n + 16]
            ts.tile.barrier()
            again[...] = left
            turned[...] = right.T
            ts.tile.barrier()
            left[...] = again
            ts.tile.barrier()
            acc = ts.tile.mma(left, turned.T, acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def transposed_twice(a: A, b: B, c: C) -> None:
    """Buffers of transposed slices that a product reads transposed, by itself and by way of a tile."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left, right = ts.tile.alloc_shared((8, 16), ts.f32), ts.tile.alloc_shared((16, 8), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            left[...] = a[m : m + 16, k : k + 8].T
            right[...] = b[k : k + 8, n : n + 16].T
            ts.tile.barrier()
            acc = ts.tile.mma(ts.tile.load(left).T, right.T, acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b


def product_with_first_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    left = b[:8].T[: len(a)]
    steps = [b[k : k + 8] for k in range(0, len(b), 8)]
    return sum((2 * left[:, : len(step)] @ step for step in steps), np.zeros((len(left), b.shape[1]))) + a[0, 0]


RAISED = [
    (single, {}, product),
    (once, {}, product_with_first_rows),
    (ring_of_two, {}, product),
    *((ring_by_counter, {"STAGES": s, "AHEAD": d}, product) for s, d in ((2, 1), (3, 1), (3, 2), (5, 4))),
    (ring_carried, {}, product),
    (computed, {}, product),
    (by_way_of_others, {}, product),
    (transposed_twice, {}, product),
]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("k", [1, 8, 23, 64])
@pytest.mark.parametrize(("kernel", "constants", "meaning"), RAISED, ids=lambda x: getattr(x, "__name__", None))
def test_products_are_those_of_the_buffers(
    kernel: Any, constants: dict[str, int], meaning: Callable[..., np.ndarray], k: int, keep: int
) -> None:
    rng = np.random.default_rng(k)
    m, n = (17, 33) if meaning is product else (16, 16)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    ts.kernel.autotune(space={"keep_copies": [keep]})(kernel.signature.function)(a, b, c, **constants)
    np.testing.assert_array_equal(c, meaning(a.astype(np.float64), b.astype(np.float64)))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "x86-64-v3"])
@pytest.mark.parametrize(("kernel", "constants", "meaning"), RAISED, ids=lambda x: getattr(x, "__name__", None))
def test_no_buffer_of_the_kernel_is_left(kernel: Any, constants: dict[str, int], meaning: Any, target: str) -> None:
    text = ts.compile(kernel, target=target, dump=["tirh"], **constants).dumps["tirh"]
    assert "scheduled as slices are" in text
    assert 'shared<16x8xf32, "none", [0, 1]>' not in text


@ts.kernel
def chained(
    a: A, b: B, c: C, FIRST: ts.constexpr, SECOND: ts.constexpr, LAST: ts.constexpr, LOOP: ts.constexpr
) -> None:
    """Buffers that are filled from each other in one of several ways."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        one, two = ts.tile.alloc_shared((16, 16), ts.f32), ts.tile.alloc_shared((16, 16), ts.f32)
        three, acc = ts.tile.alloc_shared((16, 16), ts.f32), ts.tile.zeros((16, 16), ts.f32)
        if not LOOP:
            ts.tile.cp_async(one, b[0:16, n : n + 16])
            ts.tile.barrier()
            two[...] = linked(ts.tile.load(one), ts.tile.load(one.T), FIRST)
            ts.tile.barrier()
            three[...] = linked(ts.tile.load(two), ts.tile.load(two.T), SECOND)
            ts.tile.barrier()
            acc = ts.tile.mma(a[m : m + 16, 0:16], three.T if LAST else three)
        else:
            for k in ts.tile.range(0, K, 16):
                ts.tile.cp_async(one, b[k : k + 16, n : n + 16])
                ts.tile.barrier()
                two[...] = linked(ts.tile.load(one), ts.tile.load(one.T), FIRST)
                ts.tile.barrier()
                three[...] = linked(ts.tile.load(two), ts.tile.load(two.T), SECOND)
                ts.tile.barrier()
                acc = ts.tile.mma(a[m : m + 16, k : k + 16], three.T if LAST else three, acc)
                ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.function
def linked(plain: Any, turned: Any, HOW: Any) -> Any:
    """Return what the next buffer is filled with: a tile, of the buffer or of its view, in the way of a number."""
    if HOW == 0:
        return plain
    if HOW == 1:
        return plain.T
    if HOW == 2:
        return turned
    if HOW == 3:
        return turned.T
    if HOW == 4:
        return plain.T + 1.0
    return (turned * 2.0).T


LINKS = [
    lambda x: x,
    lambda x: x.T,
    lambda x: x.T,
    lambda x: x,
    lambda x: x.T + 1,
    lambda x: 2 * x,
]


@pytest.mark.parametrize("first", range(len(LINKS)))
@pytest.mark.parametrize("last", [0, 1])
def test_buffers_that_are_filled_from_each_other(first: int, last: int) -> None:
    rng = np.random.default_rng(first)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((17, 32), (32, 32)))
    for second in range(len(LINKS)):
        loop = (first + second + last) % 2
        terms = 16 * (1 + loop)
        expected = np.zeros((17, 32))
        for k, n in itertools.product(range(0, terms, 16), (0, 16)):
            tile = LINKS[second](LINKS[first](b[k : k + 16, n : n + 16]))
            expected[:, n : n + 16] += a[:, k : k + 16] @ (tile.T if last else tile)
        c = np.full((17, 32), np.nan, np.float32)
        chained(a, b, c, first, second, last, loop)
        np.testing.assert_array_equal(c, expected)


@ts.kernel
def by_argument(a: A, b: B, c: C, s: int) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left = ts.tile.alloc_shared((2, 16, 8), ts.f32)
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left[s % 2], a[m : m + 16, k : k + 8])
            ts.tile.cp_async(left[1 - s % 2], a[m : m + 16, k + 8 : k + 16])
            ts.tile.barrier()
            acc = ts.tile.mma(left[s % 2], b[k : k + 8, n : n + 16], acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def in_a_branch(a: A, b: B, c: C, s: int) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left = ts.tile.alloc_shared((16, 8), ts.f32)
        left[...] = ts.tile.zeros((16, 8), ts.f32)
        ts.tile.barrier()
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            if k < 8 * s + 8:
                ts.tile.cp_async(left, a[m : m + 16, k : k + 8])
            ts.tile.barrier()
            acc = ts.tile.mma(left, b[k : k + 8, n : n + 16], acc)
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def other_first(a: A, b: B, c: C, s: int) -> None:
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left = ts.tile.alloc_shared((2, 16, 8), ts.f32)
        ts.tile.cp_async(left[0], a[m : m + 16, 8:16])
        ts.tile.commit_group()
        acc = ts.tile.zeros((16, 16), ts.f32)
        stage = 0
        for k in ts.tile.range(0, K, 8):
            ts.tile.cp_async(left[1 - stage], a[m : m + 16, k + 8 : k + 16])
            ts.tile.commit_group()
            ts.tile.wait_group(1)
            ts.tile.barrier()
            acc = ts.tile.mma(left[stage], b[k : k + 8, n : n + 16], acc)
            ts.tile.barrier()
            stage = 1 - stage
        ts.tile.wait_group(0)
        c[m : m + 16, n : n + 16] = acc


@ts.kernel
def shared_stages(a: A, b: B, c: C, s: int) -> None:
    """Two stages, but the first one is copied again in every second iteration only."""
    for m, n in ts.tile.grid((M, 16), (N, 16)):
        left = ts.tile.alloc_shared((2, 16, 8), ts.f32)
        ts.tile.cp_async(left[0], a[m : m + 16, 0:8])
        ts.tile.cp_async(left[1], a[m : m + 16, 0:8])
        ts.tile.barrier()
        acc = ts.tile.zeros((16, 16), ts.f32)
        for k in ts.tile.range(0, K, 8):
            acc = ts.tile.mma(left[0], b[k : k + 8, n : n + 16], acc)
            ts.tile.barrier()
            ts.tile.cp_async(left[(k // 8) % 2], a[m : m + 16, k : k + 8])
            ts.tile.barrier()
        c[m : m + 16, n : n + 16] = acc


def _steps(a: np.ndarray, b: np.ndarray, place: Callable[[int], int]) -> np.ndarray:
    """Return the sum over the steps of a loop, each with the columns of `a` from a place on."""
    padded = np.pad(a, ((0, 0), (0, 16)))
    starts = range(0, a.shape[1], 8)
    rows = np.pad(b, ((0, 8), (0, 0)))
    return sum((padded[:, place(k) : place(k) + 8] @ rows[k : k + 8] for k in starts), np.zeros((len(a), b.shape[1])))


KEPT = [
    (by_argument, "the stages of a ring are not known", product),
    (in_a_branch, "not every iteration makes", lambda a, b: _steps(a, b, lambda k: min(k, 16))),
    (other_first, "not those of its first iterations", lambda a, b: _steps(a, b, lambda k: k or 8)),
    (shared_stages, "different distances", lambda a, b: _steps(a, b, lambda k: 0 if k < 8 else (k - 8) // 16 * 16)),
]


@pytest.mark.parametrize(("kernel", "reason", "meaning"), KEPT, ids=lambda x: getattr(x, "__name__", None))
def test_what_cannot_be_followed_stays(kernel: Any, reason: str, meaning: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((17, 40), (40, 33)))
    c = np.full((17, 33), np.nan, np.float32)
    kernel(a, b, c, 2)
    np.testing.assert_array_equal(c, meaning(a.astype(np.float64), b.astype(np.float64)))
    text = ts.compile(kernel, target="sm_80", dump=["tirh"]).dumps["tirh"]
    assert reason in text
    assert "tessera_tile.cp_async" in text


def test_copies_stay_where_that_is_asked_for() -> None:
    asked = ts.kernel.autotune(space={"keep_copies": [1]})(single.signature.function)  # pyright: ignore[reportArgumentType]
    text = ts.compile(asked, target="sm_80", dump=["tirh"]).dumps["tirh"]
    assert "tessera_tile.cp_async" in text
    assert 'shared<16x8xf32, "none"' in text


@pytest.mark.parametrize("knob", ["split_k", "stream_k"])
@pytest.mark.parametrize(("kernel", "constants", "meaning"), RAISED, ids=lambda x: getattr(x, "__name__", None))
def test_programs_do_not_share_loops_that_copy_by_hand(
    kernel: Any, constants: dict[str, int], meaning: Any, knob: str
) -> None:
    """What was copied before the loop is for its first steps."""
    space = {"keep_copies": [1], knob: [2 if knob == "split_k" else 1]}
    asked = ts.kernel.autotune(space=space)(kernel.signature.function)
    text = ts.compile(asked, target="sm_90a", dims={"K": 256}, dump=["tirh"], **constants).dumps["tirh"]
    assert "tessera_tile.cp_async" in text or "shared_store" in text
    assert "alloc_links" not in text
    assert "collect_sums" not in text


def test_by_hand_and_by_slices_are_one_kernel() -> None:
    """The same PTX in tiles as they are written, warp roles, copy engine and warpgroup products included."""

    def by_hand(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: C) -> None:
        for m, n in ts.tile.grid((M, 128), (N, 128)):
            left = ts.tile.alloc_shared((2, 128, 64), ts.bf16, swizzle="xor")
            right = ts.tile.alloc_shared((2, 64, 128), ts.bf16, swizzle="xor")
            ts.tile.async_copy_2d(left[0], a[m : m + 128, 0:64])
            ts.tile.async_copy_2d(right[0], b[0:64, n : n + 128])
            ts.tile.commit_group()
            acc = ts.tile.zeros((128, 128), ts.f32)
            stage = 0
            for k in ts.tile.range(0, K, 64):
                ts.tile.async_copy_2d(left[1 - stage], a[m : m + 128, k + 64 : k + 128])
                ts.tile.async_copy_2d(right[1 - stage], b[k + 64 : k + 128, n : n + 128])
                ts.tile.commit_group()
                ts.tile.wait_group(1)
                ts.tile.barrier()
                acc = ts.tile.mma(left[stage], right[stage], acc)
                ts.tile.barrier()
                stage = 1 - stage
            c[m : m + 128, n : n + 128] = acc

    def by_slices(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: C) -> None:
        for m, n in ts.tile.grid((M, 128), (N, 128)):
            acc = ts.tile.zeros((128, 128), ts.f32)
            for k in ts.tile.range(0, K, 64):
                acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 128], acc)
            c[m : m + 128, n : n + 128] = acc

    texts = [_code(kernel) for kernel in (by_hand, by_slices)]
    assert texts[0].replace("by_hand", "by_slices") == texts[1]
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
        assert instruction in texts[0]


def _code(function: Callable[..., None]) -> str:
    dims = {"M": 1024, "N": 1024, "K": 1024}
    kernel = ts.kernel.autotune(space={"fit_blocks": [0]})(function)
    text = kernel.compile(target="sm_90a", dims=dims, dump=["ptx"]).dumps["ptx"]
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith((".loc", ".file", "//")))
