"""Slices whose bounds are computed: the extent is their difference, in the arithmetic of their type."""

import time

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import run

DTYPES = [ts.i8, ts.i16, ts.i32, ts.i64, ts.u8, ts.u16, ts.u32, ts.u64]
X = np.arange(200, dtype=np.float32)


@ts.function
def plain(s):
    return s, s + 8


@ts.function
def shifted(s):
    return s - 3, 5 + s


@ts.function
def scaled(s):
    return 2 * s + 1, s + s + 9


@ts.function
def aligned(s):
    return s // 4 * 4, 8 + 4 * (s // 4)


@ts.function
def bounded(s):
    return ts.tile.minimum(s, 90), ts.tile.minimum(s, 90) + 8


@ts.function
def wide(s):
    return s.to(ts.i64) - 1, s.to(ts.i64) + 7


@ts.function
def negated(s):
    return 0 - (0 - s), s * 1 + 8


FORMS = [plain, shifted, scaled, aligned, bounded, wide, negated]


def lower_bound(form, s):
    return {
        plain: s,
        shifted: s - 3,
        scaled: 2 * s + 1,
        aligned: s // 4 * 4,
        bounded: min(s, 90),
        wide: s - 1,
        negated: s,
    }[form]


def summing(form, dtype):
    def k(x: ts.Tensor["N", ts.f32], i: ts.Tensor["n", dtype], y: ts.Tensor["n", ts.f32]):
        for p in ts.tile.grid((n, 1)):
            s = i[p]
            low, high = form(s)
            y[p] = ts.tile.sum(x[low:high])
        return y

    return k


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loaded_start_of_every_integer_type(dtype):
    index = np.array([4, 17, 50], dtype.numpy())
    for form in FORMS:
        got = run(summing(form, dtype), X, index, np.zeros(3, np.float32))
        starts = [lower_bound(form, int(s)) for s in index]
        assert got.tolist() == [X[s : s + 8].sum() for s in starts], form


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scalar_argument_of_every_integer_type(dtype):
    def k(x: ts.Tensor["N", ts.f32], s: dtype, y: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 1)):
            y[i] = ts.tile.sum(x[s + i : s + i + 8])
        return y

    got = run(k, X, dtype.numpy().type(7), np.zeros(3, np.float32))
    assert got.tolist() == [X[s : s + 8].sum() for s in (7, 8, 9)]


def test_an_upper_bound_that_wraps_keeps_the_extent():
    def k(x: ts.Tensor["N", ts.f32], s: ts.i8, y: ts.Tensor[1, ts.f32]):
        y[0] = ts.tile.sum(x[s : s + 8])
        return y

    assert run(k, X, np.int8(124), np.zeros(1, np.float32))[0] == X[124:132].sum()


def test_different_starts_are_no_slice():
    def k(x: ts.Tensor["N", ts.f32], s: ts.i32, t: ts.i32, y: ts.Tensor[1, ts.f32]):
        y[0] = ts.tile.sum(x[s : t + 8])

    with pytest.raises(ts.LanguageError) as caught:
        run(k, X, np.int32(1), np.int32(1), np.zeros(1, np.float32))
    assert caught.value.code == "slice-extent"


def test_long_and_shared_index_arithmetic_takes_linear_time():
    def k(x: ts.Tensor["N", ts.f32], s: ts.i32, y: ts.Tensor[1, ts.f32]):
        t = s
        for _ in ts.tile.static_range(1000):
            t = t + 1
        for _ in ts.tile.static_range(60):
            t = (t ^ (t >> 13)) * (t | 1)
        t = ts.tile.minimum(ts.tile.maximum(t, 0), 5)
        y[0] = ts.tile.sum(x[t : t + 8])
        return y

    start = time.monotonic()
    run(k, X, np.int32(3), np.zeros(1, np.float32))
    assert time.monotonic() - start < 20


def pairs(x: ts.Tensor["N", ts.f32], i: ts.Tensor["n", ts.i64], y: ts.Tensor["n", 8, ts.f32]):
    for j in ts.tile.grid((n, 1)):
        y[j, :] = x[i[j] : i[j] + 8] + x[3 + i[j] - 1 : i[j] + 10]


def written_between(x: ts.Tensor["N", ts.f32], i: ts.Tensor["n", ts.i64], y: ts.Tensor["n", 8, ts.f32]):
    for j in ts.tile.grid((n, 1)):
        first = i[j]
        i[j] = first + 1
        y[j, :] = x[first : i[j] + 8]


def other_element(x: ts.Tensor["N", ts.f32], i: ts.Tensor["n", ts.i64], y: ts.Tensor["n", 8, ts.f32]):
    for j in ts.tile.grid((n, 1)):
        y[j, :] = x[i[j] : i[j + 1] + 8]


def in_a_loop(x: ts.Tensor["N", ts.f32], i: ts.Tensor["n", ts.i64], y: ts.Tensor["n", 8, ts.f32]):
    for j in ts.tile.grid((n, 1)):
        first = i[j]
        for _ in ts.tile.range(2):
            y[j, :] = x[first : i[j] + 8]
            i[j] = i[j] + 1


def test_two_loads_of_an_element_are_one_number_while_nothing_is_written():
    places = np.array([5, 0, 190, 77])
    y = np.zeros((4, 8), np.float32)
    ts.kernel(pairs)(X, places, y)
    padded = np.concatenate([X, np.zeros(20, np.float32)])
    np.testing.assert_array_equal(y, [padded[s : s + 8] + padded[s + 2 : s + 10] for s in places])


@pytest.mark.parametrize("kernel", [written_between, other_element, in_a_loop])
def test_loads_that_may_differ_give_no_extent(kernel):
    with pytest.raises(ts.LanguageError) as caught:
        ts.kernel(kernel)(X, np.arange(4), np.zeros((4, 8), np.float32))
    assert caught.value.code == "slice-extent"
