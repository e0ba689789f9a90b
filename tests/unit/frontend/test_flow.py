"""`break`, `continue` and early `return`: each kernel is run by Python itself, and by the interpreter of TIR-H."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace

import numpy as np
import pytest

import tessera as ts
from tessera.interp import interpret
from tests.unit.frontend.support import built, ops, run

IN_PYTHON = SimpleNamespace(
    function=lambda function: function,
    i32=np.int32,
    f32=np.float32,
    tile=SimpleNamespace(
        range=range,
        static_range=range,
        zeros=np.zeros,
        sum=np.sum,
        any=np.any,
        maximum=np.maximum,
        cast=lambda x, dtype: dtype(x),
    ),
)
"""Python's and NumPy's own meaning of what the kernels below use."""


def in_python(function):
    """Return a kernel or helper as a Python function."""
    function = getattr(function, "function", function)
    names = {
        name: in_python(value) if isinstance(value, ts.frontend.function.DeviceFunction) else value
        for name, value in function.__globals__.items()
        if name in function.__code__.co_names and name != "ts"
    }
    free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    assert not free
    known = {**names, "ts": IN_PYTHON, "__builtins__": __builtins__}
    return FunctionType(function.__code__, known, function.__name__, function.__defaults__)


def agrees(kernel, cases, **constexprs):
    """Run `kernel(x, y, *case)` for each case in both ways, and check that they store the same to y."""
    x, module = np.arange(12), built(kernel, constexprs=constexprs).module
    for case in cases:
        y, expected = np.full(24, -7), np.full(24, -7)
        in_python(kernel)(x.copy(), expected, *case, **constexprs)
        interpret(module, (x, y, *case))
        np.testing.assert_array_equal(y, expected, str(case))


def first_of(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], size: int, wanted: int):
    at = -1
    for i in ts.tile.range(size):
        y[i] = x[i] * 2
        if x[i] == wanted:
            at = i
            break
        y[i] = x[i] * 3
    y[20] = at


def stops_in_steps(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], step: int, wanted: int):
    i = 100
    total = 0
    for i in ts.tile.range(1, 12, step):
        total += x[i]
        if total > wanted:
            break
    y[0] = i
    y[1] = total


def skips(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], size: int, odd: int):
    kept = 0
    for i in ts.tile.range(size):
        if x[i] % 2 == odd:
            y[i] = -1
            continue
        y[i] = x[i]
        kept += 1
    y[20] = kept


def mixes(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    total, i = 0, -1
    for i in ts.tile.range(12):
        if i < low:
            total += 100
            if i == 1:
                continue
            y[i] = 1
        elif i > high:
            total += 1000
            if i > high + 1:
                break
            y[i] = 2
        else:
            y[i] = 3
        total += x[i]
        y[i] += 10
    y[20], y[21] = total, i


def nested(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], limit: int, wanted: int):
    total, at = 0, -1
    for i in ts.tile.range(4):
        for j in ts.tile.range(3):
            if x[3 * i + j] == wanted:
                at = 3 * i + j
                break
            if (i + j) % 2 == 1:
                continue
            total += x[3 * i + j]
        if at >= 0:
            break
        if total > limit:
            continue
        y[i] = total
    y[20], y[21] = total, at


def halves(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], value: int, limit: int):
    steps = 0
    while value > 1:
        steps += 1
        if steps > limit:
            break
        if value % 2 == 1:
            value = 3 * value + 1
            continue
        value = value // 2
        y[steps] = value
    y[0], y[23] = steps, value


def endless(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], value: int, limit: int):
    steps = 0
    while True:
        latest = value * 2
        if latest > limit:
            break
        value += 3
        if value % 2:
            continue
        y[steps] = value
        steps += 1
    y[23] = latest


def unrolled(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    total = 0
    for s in ts.tile.static_range(6):
        if s == high:
            break
        if s < low:
            y[s] = 5
            continue
        total += x[s]
        y[s] = total
    y[20], y[21] = total, s


def unrolled_over_tuples(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], wanted: int, skipped: int):
    total = 0
    for at, factor in ((0, 3), (1, 5), (2, 7), (3, 11)):
        if at == skipped:
            continue
        total += factor
        if total > wanted:
            break
        y[at] = x[at] * factor
    y[20] = total


def with_constants(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int, last: ts.constexpr = 3):
    for i in ts.tile.range(12):
        if last == 0:
            break
        for s in ts.tile.static_range(8):
            if s > last:
                break
            if s % 2:
                continue
            y[s] = i + s
    y[20] = low + high


def assigned_where_it_goes_on(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    for i in ts.tile.range(12):
        if i > low:
            if i % 3 == 0:
                continue
            value = x[i] * 2
        elif i == high:
            break
        else:
            value = -x[i]
        y[i] = value
    for s in ts.tile.static_range(4):
        if s > low:
            if x[s] > high:
                continue
            value = s
        else:
            value = x[s]
        y[12 + s] = value


def carries_tiles(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], limit: int, odd: int):
    acc = x[0:4] * 0
    best = x[0:4] * 0
    for k in ts.tile.range(0, 12, 4):
        part = x[k : k + 4]
        if k == odd:
            best = part + 0
            continue
        acc = acc + part
        if ts.tile.sum(acc) > limit:
            break
        best = ts.tile.maximum(best, acc)
    y[0:4] = acc
    y[4:8] = best


def returns_early(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    if low == 0:
        return
    y[0] = 1
    if low > high:
        y[1] = 2
        if low > 8:
            return
        y[2] = 3
    elif high == 9:
        return
    y[3] = 4
    for i in ts.tile.range(high):
        for j in ts.tile.range(i):
            y[4 + j] = i
            if i * j == 6:
                return
        if x[i] == low:
            return
        y[20] = i
    y[21] = 5


def returns_from_while(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    while low < high:
        for s in ts.tile.static_range(3):
            if low * s == 8:
                return
            y[s] = low
        if low == 7:
            break
        low += 1
    y[20] = low
    while True:
        y[21] = low
        if low > 9:
            return
        low += 1


def otherwise(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    at = -1
    for i in ts.tile.range(high):
        if x[i] == low:
            at = i
            break
    else:
        at = -2
        y[0] = 1
    for i in ts.tile.range(low):
        y[1] = i
    else:
        y[2] = 2
    y[22] = at


def otherwise_in_loops(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    at = low - 2
    for i in ts.tile.range(4):
        for s in ts.tile.static_range(3):
            if s + i == high:
                y[3] = s
                break
            if s == low:
                continue
            y[4] = s
        else:
            if i > low:
                continue
            if i == 2:
                break
            y[5 + i] = at
        while at < 3:
            at += 1
            if at == high:
                break
            if at * i == 6:
                return
        else:
            if at == 9:
                return
            y[10 + i] = at
            at -= 5
        y[20] = i
    else:
        y[21] = at
    y[22] = at


def does_not_test_again(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], size: int, limit: int):
    i = 0
    while x[i] < limit:
        i += 1
        if i == size:
            break
    y[0] = i


CASES = [(low, high) for low in (0, 1, 2, 5, 9, 12) for high in (0, 2, 3, 7, 9, 12)]


def by_name(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    go = True
    i = 0
    while go:
        go = x[i % 12] < low
        i += 1
        if i > high:
            break
        y[i] = i
    y[20] = i
    again = i < 9
    while again:
        i += 1
        if i == high:
            continue
        again = i < 9
        if i + high == 12:
            return
        y[21] = i


def of_a_narrow_type(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    left = 3
    total = 0
    for i in ts.tile.range(4):
        at = 0
        while left > 0:
            at += 1
            if at > high:
                break
            left = ts.tile.cast(low, ts.i32) - ts.tile.cast(x[at % 12], ts.i32)
            total += 1
        left = left + ts.tile.cast(x[i], ts.i32)
    y[0] = total
    y[1] = left


@pytest.mark.parametrize(
    "kernel",
    [
        first_of,
        skips,
        mixes,
        nested,
        halves,
        endless,
        unrolled,
        unrolled_over_tuples,
        with_constants,
        assigned_where_it_goes_on,
        carries_tiles,
        returns_early,
        returns_from_while,
        otherwise,
        otherwise_in_loops,
        by_name,
        of_a_narrow_type,
    ],
)
def test_jumps_do_what_they_do_in_python(kernel):
    agrees(kernel, CASES)


def in_branches(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    left = 3
    for i in ts.tile.range(4):
        at = 0
        while left > 0:
            at += 1
            if low > 1:
                y[3] = at
                if at > high:
                    break
                left = ts.tile.cast(low, ts.i32) - ts.tile.cast(x[at % 12], ts.i32)
            else:
                left = left - 1
        left = left + ts.tile.cast(x[i], ts.i32)
    y[1] = left


@pytest.mark.parametrize("kernel", [of_a_narrow_type, in_branches])
def test_nothing_is_left_of_a_loop_that_was_compiled_again(kernel):
    agrees(kernel, CASES)
    module = built(kernel).module
    kept = set(module.walk())
    for op in kept:
        values = [*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)]
        assert all(use.operation in kept for value in values for use in value.uses)


def test_a_range_that_is_left_counts_by_any_step():
    agrees(stops_in_steps, [(step, wanted) for step in (1, 2, 5, 100, 1 << 62) for wanted in (-1, 0, 3, 9, 1000)])


def test_the_condition_of_a_loop_is_not_tested_after_a_break():
    """The interpreter refuses to read an element outside of the tensor."""
    agrees(does_not_test_again, [(12, 100), (12, 5), (3, 100)])


def test_constants_decide_jumps_when_the_kernel_is_compiled():
    for last in range(9):
        agrees(with_constants, [(1, 2)], last=last)
    with_loop = built(with_constants, constexprs={"last": 5})
    assert len(ops(with_loop, "for")) == 1
    assert not ops(with_loop, "while")
    assert not ops(with_loop, "if")


def test_a_break_that_is_never_taken_leaves_the_loop_as_it_is():
    def plain(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], early: ts.constexpr = False):
        acc = x[:] * 0
        for i in ts.tile.range(8):
            acc += x[:] * i
        y[:] = acc

    def guarded(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], early: ts.constexpr = False):
        acc = x[:] * 0
        for i in ts.tile.range(8):
            if early:
                break
            acc += x[:] * i
        y[:] = acc

    assert str(built(plain).module).replace("plain", "guarded") == str(built(guarded).module)


# Helpers


@ts.function
def index_of(x, wanted, size):
    for i in ts.tile.range(size):
        if x[i] == wanted:
            return i
    return -1


@ts.function
def clipped(v, low, high):
    if v < low:
        return low
    if v > high:
        if v == 11:
            return 2 * high
        v = v - 1
    else:
        v = v + 1
    if v == 5:
        return v * 100
    return v


@ts.function
def pair(x, wanted):
    for i in ts.tile.static_range(4):
        for j in ts.tile.range(i, 6):
            if x[i] + x[j] == wanted:
                return i, j
        if x[i] > wanted:
            break
    else_ = index_of(x, wanted, 3)
    return else_, else_


@ts.function
def rooted(v):
    guess = v
    while True:
        if guess * guess <= v:
            return guess
        guess = (guess + v // guess) // 2


@ts.function
def stores_until(x, y, limit):
    for i in ts.tile.range(12):
        if x[i] > limit:
            return
        y[i] = x[i]


@ts.function
def scaled(part, factor):
    if factor == 0:
        return part * 0
    for _ in ts.tile.range(factor):
        part = part + 1
        if ts.tile.sum(part) > 40:
            return part * 2
    return part


def calls(x: ts.Tensor["n", ts.i64], y: ts.Tensor["m", ts.i64], low: int, high: int):
    stores_until(x, y, low)
    y[12] = index_of(x, high, low)
    y[13] = clipped(x[3] + 0, low, high) + clipped(low, 1, high)
    y[14], y[15] = pair(x, high)
    y[16] = rooted(high + 1)
    for i in ts.tile.range(4):
        if index_of(x, i + low, 6) < 0:
            break
        y[17] = i
    y[20:24] = scaled(x[low // 2 : low // 2 + 4] + 0, high)


def test_helpers_return_anywhere():
    agrees(calls, CASES)


def test_helpers_return_tensors_and_constants_on_every_path():
    @ts.function
    def chosen(a, b, swap, n):
        if swap:
            return b, "swapped"
        if n > 2:
            a[0] = 5.0
            return a, "kept"
        return a, "kept"

    def kernel(a: ts.Tensor[4, ts.f32], b: ts.Tensor[4, ts.f32], n: int, swap: ts.constexpr):
        tensor, what = chosen(a, b, swap, n)
        tensor[1] = 1.0 if what == "kept" else 2.0

    for swap, n, expected in ((False, 3, [5, 1]), (False, 1, [0, 1]), (True, 3, [0, 2])):
        a, b = np.zeros(4, np.float32), np.zeros(4, np.float32)
        run(kernel, a, b, n, constexprs={"swap": swap})
        assert list((b if swap else a)[:2]) == expected


def test_a_kernel_returns_its_tensors_early():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], mode: int):
        if mode == 0:
            return x, y
        y[0] = 1.0
        if mode == 1:
            return x, y
        x[0] = 2.0
        return x, y

    for mode, expected in ((0, (0, 0)), (1, (0, 1)), (2, (2, 1))):
        x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
        one, other = run(kernel, x, y, mode)
        assert (one is x, other is y) == (True, True)
        assert (x[0], y[0]) == expected


# Grids, predicates, buffers


def test_continue_and_return_end_one_program_of_a_grid():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], z: ts.Tensor["n", ts.f32], odd: int):
        for i in ts.tile.grid((n, 4)):
            if i == 4 * odd:
                continue
            y[i : i + 4] = x[i : i + 4]
        for i in ts.tile.grid((n, 4)):
            for k in ts.tile.range(4):
                if i + k == odd:
                    return
                z[i + k] = x[i + k]
            z[i] = -1.0

    x = np.arange(1, 17, dtype=np.float32)
    for odd in range(5):
        y, z = np.zeros(16, np.float32), np.zeros(16, np.float32)
        run(kernel, x, y, z, odd)
        copied, ended = x.copy(), x.copy()
        copied[4 * odd : 4 * odd + 4] = 0
        ended[::4] = -1
        if odd < 16:
            start = odd - odd % 4
            ended[start : start + 4] = [x[i] if i < odd else 0 for i in range(start, start + 4)]
        np.testing.assert_array_equal(y, copied)
        np.testing.assert_array_equal(z, ended)


def test_programs_of_a_kernel_that_returns_tensors_end_early():
    def counted(
        x: ts.Tensor["n", "m", ts.i32], y: ts.Tensor["n", ts.i32], z: ts.Tensor["n", ts.i32]
    ) -> tuple[ts.Tensor["n", ts.i32], ts.Tensor["n", ts.i32]]:
        for i in ts.tile.grid((n, 1)):
            y[i], z[i] = 0, 0
        for i in ts.tile.grid((n, 1)):
            if i == 2:
                return y, z
            total = 0
            for k in ts.tile.range(m):
                total += x[i, k]
                if total > 10:
                    z[i] = k.to(ts.i32)
                    return
            y[i] = total
        return y, z

    x = np.random.default_rng(0).integers(0, 5, (9, 7), np.int32)
    x[4] = 0
    y, z = np.full(9, -1, np.int32), np.full(9, -1, np.int32)
    sums = np.cumsum(x, 1)
    over = sums > 10
    early = over.any(1)
    early[2] = True
    expected = np.where(early, 0, sums[:, -1]), np.where(over.any(1), over.argmax(1), 0)
    expected[1][2] = 0
    for call in (lambda *args: run(counted, *args), ts.kernel(counted)):
        y[:], z[:] = -1, -1
        assert [one is other for one, other in zip(call(x, y, z), (y, z), strict=True)] == [True, True]
        np.testing.assert_array_equal(y, expected[0])
        np.testing.assert_array_equal(z, expected[1])


def test_jumps_inside_a_loop_inside_a_predicate():
    def kernel(x: ts.Tensor[8, ts.i32], y: ts.Tensor[8, ts.i32], stop: int):
        v = x[:]
        count = v * 0
        if v > 2:
            for i in ts.tile.range(5):
                if i == stop:
                    break
                if i == 1:
                    continue
                count += 1
            y[:] = count
        y[:] += count * 10

    x = np.arange(8, dtype=np.int32)
    for stop in range(7):
        y = np.zeros(8, np.int32)
        run(kernel, x, y, stop)
        times = len([i for i in range(min(stop, 5)) if i != 1])
        np.testing.assert_array_equal(y, np.where(x > 2, 11 * times, 0))


def test_buffers_are_allocated_after_an_early_return():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], mode: int):
        if mode == 0:
            return
        buffer = ts.tile.alloc_shared((8,), ts.f32)
        buffer[...] = x[:]
        ts.tile.barrier()
        if mode == 1:
            y[:] = buffer + 1
            return
        other = ts.tile.alloc_shared((8,), ts.f32)
        other[...] = buffer + 2
        ts.tile.barrier()
        y[:] = other + 0

    x = np.arange(8, dtype=np.float32)
    for mode in range(3):
        y = np.full(8, -9, np.float32)
        run(kernel, x, y, mode)
        np.testing.assert_array_equal(y, x + mode if mode else np.full(8, -9))
    program = ops(built(kernel), "grid")[0].regions[0].block
    assert [op.name for op in program.ops].count("tessera_tile.alloc_shared") == 2


@ts.function
def _held_or_more(held, mode):
    if mode == 0:
        return held
    if mode == 1:
        return ts.tile.full((8,), 7.0, ts.f32)
    return held + 1


def test_a_buffer_is_read_where_another_path_returns_a_tile():
    def kernel(x: ts.Tensor[8, ts.f32], y: ts.Tensor[8, ts.f32], mode: int):
        buffer = ts.tile.alloc_shared((8,), ts.f32)
        buffer[...] = x[:]
        ts.tile.barrier()
        chosen = buffer
        if mode == 2:
            chosen = x[:] * 2
        found = _held_or_more(buffer, mode)
        ts.tile.barrier()
        buffer[...] = x[:] * 100  # read before
        y[:] = found + chosen

    x = np.arange(8, dtype=np.float32)
    for mode, wanted in enumerate((2 * x, 7 + x, 3 * x + 1)):
        y = np.full(8, -9, np.float32)
        run(kernel, x, y, mode)
        np.testing.assert_array_equal(y, wanted)


def test_locations_are_those_of_the_source():
    from tessera.ir.locations import location_of

    first = first_of.__code__.co_firstlineno
    lines = {location_of(op).frame.line - first for op in built(first_of).module.walk() if location_of(op)}
    assert lines <= {0, 1, 2, 3, 4, 5, 6, 7, 8}
    (loop,) = ops(built(first_of), "while")
    assert location_of(loop).frame.line == first + 2
