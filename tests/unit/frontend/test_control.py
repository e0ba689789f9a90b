"""Loops and branches: what is carried, how branches meet, predication."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import built, ops, run


def ints(*values):
    return np.array(values, np.int32)


def test_carried_numbers_take_the_type_of_the_body():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[3, ts.f32]):
        total, count, last = 0, 0, 1.0
        for i in ts.tile.range(0, 8, 2):
            total += ts.tile.sum(x[i : i + 2])
            count += 1
            last = x[i]
        y[0], y[1], y[2] = total, count, last

    x, y = np.arange(8, dtype=np.float32), np.zeros(3, np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, [28, 4, 6])


def test_only_live_names_are_carried():
    def kernel(x: ts.Tensor[64, ts.f32], y: ts.Tensor[8, ts.f32]):
        acc = ts.tile.zeros((8,), ts.f32)
        scratch = ts.tile.zeros((4,), ts.f32)
        for i in ts.tile.range(0, 64, 8):
            scratch = x[i : i + 8] * 2
            acc += scratch
        y[:] = acc

    kernel_ = built(kernel)
    assert len(ops(kernel_, "for")[0].results) == 1


def test_tuples_are_carried():
    def kernel(y: ts.Tensor[2, ts.i64]):
        pair = (0, 1)
        for _ in ts.tile.range(10):
            pair = (pair[1], pair[0] + pair[1])
        y[0], y[1] = pair

    y = np.zeros(2, np.int64)
    run(kernel, y)
    assert list(y) == [55, 89]


def test_nested_loops_and_run_time_bounds():
    def kernel(x: ts.Tensor["M", "N", ts.i32], y: ts.Tensor[1, ts.i32], lo: int, step: int):
        total = 0
        for i in ts.tile.range(lo, M, step):
            for j in ts.tile.range(i, N):
                total += x[i, j]
        y[0] = total

    x = np.arange(35, dtype=np.int32).reshape(5, 7)
    y = np.zeros(1, np.int32)
    run(kernel, x, y, 1, 2)
    assert y[0] == sum(x[i, j] for i in range(1, 5, 2) for j in range(i, 7))


def test_loops_over_tuples_are_unrolled():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[3, 8, ts.f32], parts: ts.constexpr):
        v = x[0:8]
        for row, (scale, name) in ((0, (2.0, "twice")), (1, parts), (2, (1.0, "same"))):
            if name == "same":
                y[row, :] = v
            else:
                y[row, :] = v * scale
        for each in (v, v + 1.0):
            v = each

    x, y = np.arange(8, dtype=np.float32), np.zeros((3, 8), np.float32)
    run(kernel, x, y, constexprs={"parts": (3.0, "thrice")})
    np.testing.assert_array_equal(y, np.stack([2 * x, 3 * x, x]))


def test_static_range_unrolls_and_branches_at_compile_time():
    def kernel(y: ts.Tensor[4, ts.i32], flag: ts.constexpr):
        total = 0
        for i in ts.tile.static_range(4):
            if i % 2 == 0 and flag:
                y[i] = i * 10
            elif not flag:
                y[i] = -1
            else:
                pass
            total += i
        y[3] = total

    for flag, expected in ((True, [0, 7, 20, 6]), (False, [-1, -1, -1, 6])):
        y = ints(7, 7, 7, 7)
        run(kernel, y, constexprs=dict(flag=flag))
        assert list(y) == expected
    assert not ops(built(kernel, constexprs=dict(flag=True)), "for")


def test_branch_on_a_scalar():
    def kernel(y: ts.Tensor[4, ts.f32], n: int):
        scale, shift, both = 1, 0.0, 3
        if n > 2:
            scale = 2.5
            extra = n * 2
            y[0] = 1.0
        elif n == 2:
            shift = 1
            extra = n
        else:
            extra = 5
        y[1] = scale
        y[2] = shift + both
        y[3] = extra

    for n, expected in ((3, [1, 2.5, 3, 6]), (2, [0, 1, 4, 2]), (1, [0, 1, 3, 5])):
        y = np.zeros(4, np.float32)
        run(kernel, y, n)
        assert list(y) == expected


def test_branch_results_hold_tiles_and_tuples():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], n: int):
        pair = (x[0:8], 1)
        if n > 0:
            pair = (x[0:8] * 2, n)
        y[:] = pair[0] + pair[1]

    x = np.arange(8, dtype=np.float32)
    for n, expected in ((0, x + 1), (4, 2 * x + 4)):
        y = np.zeros(8, np.float32)
        run(kernel, x, y, n)
        np.testing.assert_array_equal(y, expected)


def test_while():
    def kernel(y: ts.Tensor[2, ts.i64], n: int):
        value, steps = n, 0
        while value != 1 and steps < 100:
            if value % 2 == 0:
                value = value // 2
            else:
                value = 3 * value + 1
            steps += 1
        y[0], y[1] = value, steps

    y = np.zeros(2, np.int64)
    run(kernel, y, 27)
    assert list(y) == [82, 100] or y[1] == 100
    run(kernel, y, 6)
    assert list(y) == [1, 8]


def test_predicated_stores_loads_and_rebinding():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32]):
        i = ts.tile.linear_id()
        best = -1.0
        if i < n:
            v = x[i]
            if v > 0:
                best = v
                y[i] = v
            else:
                y[i] = -v
            z[i] = best

    x = np.array([1, -2, 3, -4, 5], np.float32)
    y, z = np.zeros(5, np.float32), np.zeros(5, np.float32)
    run(kernel, x, y, z, linear_block=4)
    np.testing.assert_array_equal(y, np.abs(x))
    np.testing.assert_array_equal(z, np.where(x > 0, x, -1))


def test_predicate_broadcasts_to_what_is_stored():
    def kernel(x: ts.Tensor[4, 8, ts.f32], keep: ts.Tensor[8, ts.i32]):
        k = keep[:]
        row = ts.tile.zeros((4, 8), ts.f32)
        if k > 0:
            x[:, :] = 5.0
            row = row + 1
        x[0:1, :] = ts.tile.sum(row, 0)[None, :]

    x = np.zeros((4, 8), np.float32)
    run(kernel, x, ints(1, 0, 1, 0, 0, 0, 0, 1))
    expected = np.zeros((4, 8), np.float32)
    expected[:, [0, 2, 7]] = 5
    expected[0] = [4, 0, 4, 0, 0, 0, 0, 4]
    np.testing.assert_array_equal(x, expected)


def test_loop_inside_a_predicate():
    def kernel(x: ts.Tensor[8, ts.i32], y: ts.Tensor[8, ts.i32]):
        v = x[:]
        count = ts.tile.zeros((8,), ts.i32)
        if v > 2:
            for _ in ts.tile.range(3):
                count += 1
                y[:] = count
        y[:] += count * 10

    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, np.where(x > 2, 33, 0))


def test_predicated_store_to_shared_memory():
    def kernel(x: ts.Tensor[8, ts.i32], y: ts.Tensor[8, ts.i32]):
        buffer = ts.tile.alloc_shared((8,), ts.i32)
        buffer[...] = x[:]
        ts.tile.barrier()
        if x[:] > 3:
            buffer[...] = 0
        ts.tile.barrier()
        y[:] = buffer + 1

    x, y = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, np.where(x > 3, 1, x + 1))


def test_helpers_are_inlined_with_their_frames():
    kernel = built(calls_helper)
    for op in ops(kernel, "elementwise"):
        from tessera.ir.locations import location_of

        location = location_of(op)
        assert location is not None
        if op.fn.data == "sigmoid":
            assert location.frame.function == "swish"
            assert [frame.function for frame in location.callers] == ["twice", "calls_helper"]
            break
    else:
        pytest.fail("no sigmoid")


@ts.function
def swish(x, beta=1.0):
    """A helper with a default."""
    if beta == 1.0:
        return x * ts.tile.sigmoid(x)
    return x * ts.tile.sigmoid(beta * x)


@ts.function
def twice(x):
    return swish(swish(x), beta=2.0)


def calls_helper(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32]):
    y[:] = twice(x[:])


def test_helpers_compute():
    x = np.linspace(-2, 2, 8).astype(np.float32)
    y = np.empty_like(x)
    run(calls_helper, x, y)
    first = x / (1 + np.exp(-x.astype(float)))
    np.testing.assert_allclose(y, first / (1 + np.exp(-2 * first)), rtol=1e-5)


def test_helpers_store_through_tensors_and_return_tuples():
    @ts.function
    def split(t, at):
        t[at] = 1.0
        return at + 1, ts.tile.full((4,), at, ts.f32)

    def kernel(y: ts.Tensor[8, ts.f32]):
        n, tile = split(y, 2)
        y[4:8] = tile + n

    y = np.zeros(8, np.float32)
    run(kernel, y)
    assert list(y) == [0, 0, 1, 0, 5, 5, 5, 5]


def test_short_circuit_on_constants_and_run_time_booleans():
    def kernel(y: ts.Tensor[6, ts.i32], n: int, off: ts.constexpr = None):
        y[0] = 1 if off is None or off > 3 else 0
        y[1] = n > 1 and n < 5
        y[2] = n > 1 or n == 0
        y[3] = not n
        y[4] = 0 < n < 3
        y[5] = True and n > 2 and True

    for n in range(7):
        y = np.zeros(6, np.int32)
        run(kernel, y, n)
        assert list(y) == [1, 1 < n < 5, n > 1 or n == 0, n == 0, 0 < n < 3, n > 2]


def test_a_branch_may_start_a_copy_that_a_later_barrier_waits_for():
    def kernel(x: ts.Tensor[16, ts.f32], y: ts.Tensor[16, ts.f32], n: int):
        buffer = ts.tile.alloc_shared((16,), ts.f32)
        buffer[...] = 0.0
        ts.tile.barrier()
        if n > 0:
            ts.tile.cp_async(buffer, x[:])
        ts.tile.barrier()
        y[:] = buffer + 0

    x = np.arange(16, dtype=np.float32)
    for n, expected in ((0, 0 * x), (1, x)):
        y = np.ones_like(x)
        run(kernel, x, y, n)
        np.testing.assert_array_equal(y, expected)


def test_a_barrier_waits_for_the_copies_of_the_iteration_before():
    def kernel(x: ts.Tensor[64, ts.f32], y: ts.Tensor[16, ts.f32]):
        buffer = ts.tile.alloc_shared((16,), ts.f32)
        ts.tile.cp_async(buffer, x[0:16])
        acc = ts.tile.zeros((16,), ts.f32)
        for k in ts.tile.range(16, 80, 16):
            ts.tile.barrier()
            acc += buffer
            ts.tile.barrier()
            ts.tile.cp_async(buffer, x[k : k + 16])
        ts.tile.barrier()
        y[:] = acc

    x = np.arange(64, dtype=np.float32)
    y = np.zeros(16, np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, x.reshape(4, 16).sum(0))
    names = [op.name for op in ops(built(kernel), "for")[0].body.block.ops]
    assert names.index("tessera_tile.wait_group") < names.index("tessera_tile.shared_load")


def test_names_of_the_first_loop_may_be_reused_with_another_type():
    def kernel(x: ts.Tensor[8, 16, ts.f32], y: ts.Tensor[8, ts.f32]):
        part = x[0:4, :]
        y[0:4] = ts.tile.row_sum(part)
        for m in ts.tile.range(4, 8, 2):
            part = x[m : m + 2, :]
            y[m : m + 2] = ts.tile.row_sum(part)

    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    y = np.zeros(8, np.float32)
    run(kernel, x, y)
    np.testing.assert_array_equal(y, x.sum(1))
