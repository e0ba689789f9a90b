"""Slices, index tiles, integer indices, fill values, atomics."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built, ops, run

X = np.arange(60, dtype=np.float32).reshape(5, 12)


def test_slices_are_bounded_and_filled():
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor[8, 16, ts.f32], z: ts.Tensor["M", "N", ts.f32], m: int):
        y[...] = ts.tile.load(x[m : m + 8, -2 + 2 : 16], fill=-1.0)
        z[m : m + 8, 4:20] = ts.tile.full((8, 16), 9, ts.f32)

    y, z = np.zeros((8, 16), np.float32), np.zeros_like(X)
    run(kernel, X, y, z, 2)
    expected = np.full((8, 16), -1, np.float32)
    expected[:3, :12] = X[2:]
    np.testing.assert_array_equal(y, expected)
    assert (z[2:, 4:] == 9).all()
    assert z.sum() == 9 * 3 * 8


def test_a_run_time_start_below_zero_reads_fill():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor[4, ts.f32], m: int):
        y[:] = x[m : m + 4]

    y = np.ones(4, np.float32)
    run(kernel, np.arange(1, 9, dtype=np.float32), y, -2)
    np.testing.assert_array_equal(y, [0, 0, 1, 2])


def test_integers_drop_dimensions_and_missing_ones_are_whole():
    def kernel(x: ts.Tensor["L", "M", 4, ts.f32], y: ts.Tensor["M", 4, ts.f32], z: ts.Tensor[1, ts.f32], i: int):
        for m in ts.tile.grid((M, 2)):
            y[m : m + 2] = x[i, m : m + 2]
        for _ in ts.tile.grid((1, 1)):
            z[0] = x[i, 1, 2]

    x = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    y, z = np.zeros((5, 4), np.float32), np.zeros(1, np.float32)
    run(kernel, x, y, z, 1)
    np.testing.assert_array_equal(y, x[1])
    assert z[0] == x[1, 1, 2]


def test_new_axes_and_transposition_of_slices():
    def kernel(x: ts.Tensor[4, 6, ts.f32], y: ts.Tensor[6, 4, ts.f32], b: ts.Tensor[6, ts.f32]):
        y[:] = x[:, :].T + b[:, None]
        y[0, None, :] = x[:, 0][None, :] * 2

    x, b = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(6, dtype=np.float32)
    y = np.zeros((6, 4), np.float32)
    run(kernel, x, y, b)
    expected = x.T + b[:, None]
    expected[0] = x[:, 0] * 2
    np.testing.assert_array_equal(y, expected)


def test_extents_are_found_symbolically():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], BM: ts.constexpr = 4):
        for m in ts.tile.grid((n, 2 * BM)):
            i = m // BM
            for part in ts.tile.static_range(2):
                lo = (i + part) * BM
                y[lo : lo + BM] = x[(i + part) * BM : (i + part + 1) * BM]

    x = np.arange(21, dtype=np.float32)
    y = np.zeros_like(x)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, x)


def test_gather_and_scatter():
    def kernel(x: ts.Tensor["M", "N", ts.f32], idx: ts.Tensor["K", ts.i32], y: ts.Tensor["K", "N", ts.f32]):
        for k in ts.tile.grid((K, 4)):
            i = ts.tile.load(idx[k : k + 4], fill=0)
            y[k : k + 4, :] = x[i, :]

    idx = np.array([3, 0, 4, 4, 1, 2], np.int32)
    y = np.zeros((6, 12), np.float32)
    run(kernel, X, idx, y)
    np.testing.assert_array_equal(y, X[idx])


def test_index_tiles_broadcast_and_mix_with_scalars():
    def kernel(
        x: ts.Tensor["M", "N", ts.f32],
        y: ts.Tensor[3, 4, ts.f32],
        z: ts.Tensor[4, ts.f32],
        w: ts.Tensor["M", "N", ts.f32],
    ):
        r, c = ts.tile.arange(3)[:, None] + 1, ts.tile.arange(4) * 3
        y[...] = x[r, c]
        z[...] = x[2, c]
        w[r, c] = -x[r, c]

    y, z, w = np.zeros((3, 4), np.float32), np.zeros(4, np.float32), np.zeros_like(X)
    run(kernel, X, y, z, w)
    rows, columns = np.arange(3)[:, None] + 1, np.arange(4) * 3
    np.testing.assert_array_equal(y, X[rows, columns])
    np.testing.assert_array_equal(z, X[2, columns])
    expected = np.zeros_like(X)
    expected[rows, columns] = -X[rows, columns]
    np.testing.assert_array_equal(w, expected)


def test_the_slice_part_of_a_gather_stays_bounded():
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor[2, 8, ts.f32], n: int):
        y[...] = ts.tile.load(x[ts.tile.arange(2), n : n + 8], fill=7)

    y = np.zeros((2, 8), np.float32)
    run(kernel, X, y, 8)
    np.testing.assert_array_equal(y, np.concatenate([X[:2, 8:], np.full((2, 4), 7)], 1))


def test_scatter_of_rows():
    def kernel(x: ts.Tensor[2, 12, ts.f32], y: ts.Tensor[5, 12, ts.f32]):
        y[ts.tile.arange(2) * 3, :] = x[:, :]

    y = np.zeros((5, 12), np.float32)
    run(kernel, X[:2].copy(), y)
    np.testing.assert_array_equal(y[[0, 3]], X[:2])
    assert y[[1, 2, 4]].sum() == 0


def test_augmented_assignment_evaluates_its_place_once():
    def kernel(y: ts.Tensor["n", ts.f32], m: int):
        y[m + 1 : m + 5] += 2
        y[m] *= 3
        y[m : m + 2] -= 1

    kernel_ = built(kernel)
    assert len(ops(kernel_, "load")) == len(ops(kernel_, "store")) == 3
    y = np.ones(7, np.float32)
    run(kernel, y, 1)
    np.testing.assert_array_equal(y, [1, 2, 2, 3, 3, 3, 1])


def test_a_name_keeps_the_value_it_was_bound_to():
    def kernel(y: ts.Tensor[4, ts.f32]):
        before = y[:]
        y[:] = before + 1
        y[:] = y[:] + before

    y = np.arange(4, dtype=np.float32)
    run(kernel, y)
    np.testing.assert_array_equal(y, [1, 3, 5, 7])


def test_stores_convert_to_the_dtype_of_the_tensor():
    def kernel(y: ts.Tensor[4, ts.i8], z: ts.Tensor[4, ts.bf16]):
        y[:] = ts.tile.arange(4).to(ts.f32) + 0.75
        z[:] = 1

    kernel_ = built(kernel)
    assert [str(op.value.type) for op in ops(kernel_, "store")] == [
        "!tessera_tile.tile<4xi8>",
        "!tessera_tile.tile<4xbf16>",
    ]
    y = np.zeros(4, np.int8)
    import ml_dtypes

    run(kernel, y, np.zeros(4, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(y, [0, 1, 2, 3])


def test_atomics_on_slices_and_index_tiles():
    def kernel(
        x: ts.Tensor["n", ts.i32],
        h: ts.Tensor[4, ts.i32],
        t: ts.Tensor[1, ts.i32],
        old: ts.Tensor["n", ts.i32],
    ):
        i = ts.tile.linear_id()
        if i < n:
            v = x[i]
            ts.tile.atomic_add(h[v], 1)
            ts.tile.atomic_max(t[v * 0], v, order="acq_rel", scope="device")
            old[i] = v

    x = np.array([0, 1, 1, 3, 3, 3, 2], np.int32)
    h, t = np.zeros(4, np.int32), np.zeros(1, np.int32)
    run(kernel, x, h, t, np.zeros_like(x), linear_block=4)
    np.testing.assert_array_equal(h, np.bincount(x))
    assert t[0] == 3


def test_atomics_on_slices_stay_inside():
    def kernel(x: ts.Tensor["n", ts.f32], s: ts.Tensor[1, ts.f32], e: ts.Tensor[2, ts.i32]):
        for m in ts.tile.grid((n, 4)):
            ts.tile.atomic_add(x[m : m + 4], 1.0)
            ts.tile.atomic_add(s[0], ts.tile.sum(x[m : m + 4]))
            ts.tile.atomic_max(e[0], ts.tile.atomic_compare_exchange(e[1], 5, 6))

    x, s, e = np.zeros(6, np.float32), np.zeros(1, np.float32), np.array([0, 5], np.int32)
    run(kernel, x, s, e)
    np.testing.assert_array_equal(x, np.ones(6))
    assert s[0] == 6
    np.testing.assert_array_equal(e, [6, 6])


def test_dimensions_are_values():
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor[4, ts.i64]):
        rows, columns = x.shape
        y[0] = M * N
        y[1] = rows + columns
        y[2] = x.shape[1] % 5
        y[3] = ts.tile.minimum(M, 3)

    y = np.zeros(4, np.int64)
    run(kernel, X, y)
    np.testing.assert_array_equal(y, [60, 17, 2, 3])
    assert built(kernel, dict(M=5, N=12)).fixed_dims == {}


@pytest.mark.parametrize("known", [True, False])
def test_a_dimension_is_fixed_where_a_size_is_needed(known):
    def kernel(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]):
        for m in ts.tile.grid((M, 1)):
            half = N // 2
            t = ts.tile.zeros((1, half), ts.f32)
            y[m : m + 1, 0:half] = t

    if known:
        assert built(kernel, dict(M=5, N=12)).fixed_dims == {"N": 12}
        return
    with pytest.raises(ts.LanguageError) as caught:
        built(kernel, dict(M=5))
    assert caught.value.code == "dim-not-static"


def test_shared_views():
    def kernel(x: ts.Tensor[4, 8, ts.f32], y: ts.Tensor[8, 4, ts.f32]):
        ring = ts.tile.alloc_shared((2, 4, 8), ts.f32, swizzle="xor")
        ring[1] = x[:, :]
        ts.tile.barrier()
        y[:, :] = ts.tile.load(ring[1].T)

    x, y = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((8, 4), np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, x.T)


def test_a_tuple_of_indices_under_one_name():
    M, N = ts.dims("M N")

    def kernel(x: ts.Tensor[M, N, ts.f32], y: ts.Tensor[M, N, ts.f32]):
        for i, j in ts.tile.grid((M, 1), (N, 1)):
            here, last = (i, j), (M - 1 - i, j)
            tile = x[last[0], 0:4]
            y[here] = x[last] + tile[(0,)]
            y[here] += 1.0

    x, y = np.arange(15, dtype=np.float32).reshape(3, 5), np.zeros((3, 5), np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, x[::-1] + x[::-1, :1] + 1)
