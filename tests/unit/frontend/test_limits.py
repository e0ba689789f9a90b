"""Compile-time arithmetic stays affordable, and facts that the frontend derives by itself."""

from __future__ import annotations

import ast

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.liveness import Liveness
from tests.unit.frontend.support import built, ops, run


def refused(kernel, sizes=None, **options):
    with pytest.raises(ts.TesseraError) as caught:
        built(kernel, sizes or dict(n=64), **options)
    return caught.value.code


def test_huge_compile_time_values_are_refused():
    def power(y: ts.Tensor["n", ts.f32]):
        y[0] = 9**9**9

    def shift(y: ts.Tensor["n", ts.f32]):
        y[0] = 1 << 10**12

    def repetition(y: ts.Tensor["n", ts.f32]):
        print("a" * 10**12)

    def called(y: ts.Tensor["n", ts.f32]):
        y[0] = pow(9, 10**9)

    for kernel in (power, shift, repetition, called):
        assert refused(kernel) == "constant-expression"


def test_huge_tiles_and_loops_are_refused():
    def tile(y: ts.Tensor["n", ts.f32]):
        y[0 : 2**40] = 0.0

    def loop(y: ts.Tensor["n", ts.f32]):
        for _ in ts.tile.static_range(10**12):
            y[0] = 1.0

    assert refused(tile) == "tile-too-large"
    assert refused(loop) == "bad-range"


def test_equal_computations_give_a_static_extent():
    def kernel(y: ts.Tensor["n", ts.f32], k: int):
        y[k // 2 * 8 + k % 3 : (k // 2 + 1) * 8 + k % 3] = 1.0
        y[k * n : k * n + n] = 2.0

    assert [op.size_list for op in ops(built(kernel, dict(n=5)), "store")] == [(8,), (5,)]
    assert built(kernel, dict(n=5)).fixed_dims == {"n": 5}

    def different(y: ts.Tensor["n", ts.f32], k: int):
        y[k // 2 : k // 3] = 1.0

    assert refused(different) == "slice-extent"


def test_a_product_of_dimensions_in_the_body():
    def kernel(x: ts.Tensor["B*H", "S", ts.f32]):
        for bh, s in ts.tile.grid((B * H, 1), (S, 4)):
            x[bh, s : s + 4] += 1

    x = np.zeros((6, 5), np.float32)
    run(kernel, x)
    np.testing.assert_array_equal(x, 1)


def test_liveness():
    tree = ast.parse(
        "def f():\n a = 1\n b = 2\n c = 3\n for i in r:\n  a = a + i\n  c = i\n  d = c\n if a:\n  b = 1\n return b"
    )
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    loop, branch = function.body[3], function.body[4]
    assert isinstance(loop, ast.For)
    liveness = Liveness(function)
    assert liveness.after(loop) == {"a", "b"}
    assert liveness.after(branch) == {"b"}
    assert liveness.exposed(loop.body) == {"a", "i"}
    assert liveness.after(loop.body[0]) == {"a", "b", "i"}


def test_leading_ones_of_a_stored_tile_are_dropped():
    def kernel(x: ts.Tensor[2, 8, ts.f32], y: ts.Tensor[8, ts.f32]):
        y[:] = x[1:2, :] * 2

    x, y = np.arange(16, dtype=np.float32).reshape(2, 8), np.zeros(8, np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, 2 * x[1])


def test_asserts_leave_nothing_behind_without_debug():
    def kernel(x: ts.Tensor["n", ts.f32]):
        assert x[0:8] > 0, "positive"
        x[0:8] = 1.0

    assert not ops(built(kernel), "load")
    assert len(ops(built(kernel, debug=True), "load")) == 1


def test_numpy_scalars_are_constants():
    def kernel(x: ts.Tensor["n", ts.f32], block: ts.constexpr):
        for m in ts.tile.grid((n, block)):
            x[m : m + block] = 1.0

    assert ops(built(kernel, constexprs=dict(block=np.int64(16))), "grid")[0].block_sizes == (16,)


def test_linear_id_counts_what_is_returned_before_what_is_stored():
    def returned(x: ts.Tensor[100, ts.f32], y: ts.Tensor[8, ts.f32]):
        i = ts.tile.linear_id()
        y[i] = 1.0
        x[i] = 1.0
        return x

    def stored(h: ts.Tensor[8, ts.i32], y: ts.Tensor[60, ts.f32]):
        i = ts.tile.linear_id()
        ts.tile.atomic_add(h[i * 0], 1)
        y[i] = 1.0

    for kernel, count in ((returned, 100), (stored, 60)):
        (grid,) = ops(built(kernel), "grid")
        assert grid.extents[0].owner.python_value == count


def test_a_scaled_dimension_gives_its_factor():
    def kernel(x: ts.Tensor["2*N", ts.f32]):
        x[0:N] = ts.tile.zeros((N,))

    kernel_ = built(kernel, dict(N=6))
    assert kernel_.fixed_dims == {"2*N": 12}
    assert not ops(kernel_, "dim")
    assert ops(kernel_, "store")[0].size_list == (6,)


def test_the_context_knows_constexprs_and_their_defaults():
    def kernel(x: ts.Tensor["n", ts.f32], BN: ts.constexpr = 8):
        ctx = ts.tile.context()
        for m in ts.tile.grid((ctx.n, ctx.BN)):
            x[m : m + ctx.BN] = 1.0

    assert ops(built(kernel), "grid")[0].block_sizes == (8,)
    assert ops(built(kernel, constexprs=dict(BN=4)), "grid")[0].block_sizes == (4,)


def test_axes_outside_the_rank_are_refused():
    def kernel(x: ts.Tensor[4, 8, ts.f32]):
        x[0:4, 0:8] = ts.tile.transpose(x[:, :], (2, -1))

    assert refused(kernel) == "bad-axis"


def test_a_fixed_product_fixes_no_factor_of_it():
    def kernel(x: ts.Tensor["B*H", ts.f32], y: ts.Tensor["H", ts.f32]):
        y[0] = ts.tile.sum(x[:]) + B

    kernel_ = built(kernel, dict(B=2, H=3))
    assert kernel_.fixed_dims == {"B*H": 6}
    x, y = np.ones(6, np.float32), np.zeros(3, np.float32)
    run(kernel, x, y, sizes=dict(B=2))
    assert y[0] == 8
