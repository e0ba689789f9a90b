"""`ts.tile.range` with bounds and steps that only the call knows, up to the ends of the 64-bit range."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import run

LEAST, MOST = -(2**63), 2**63 - 1
RANGES = [
    (0, 10, 1),
    (0, 10, 3),
    (0, 9, 3),
    (5, 5, 1),
    (7, 3, 2),
    (-9, 9, 4),
    (0, 1, MOST),
    (0, MOST, MOST),
    (-1, MOST, MOST),
    (MOST - 10, MOST, 4),
    (MOST - 9, MOST, 3),
    (MOST - 1, MOST, 1),
    (MOST - 1, MOST, 2),
    (MOST, MOST, 5),
    (MOST, LEAST, 1),
    (LEAST, LEAST + 7, 3),
    (LEAST, MOST, 2**62),
    (LEAST, MOST, MOST),
    (LEAST, LEAST, 1),
    (0, 2**62 + 1, 2**61),
    (2**62, 2**62 + 9, 2),
    (0, 10, 0),
    (0, 10, -1),
    (0, 10, LEAST),
    (10, 0, -1),
    (LEAST, MOST, 0),
]
STEPS = (1, 3, 2**20, 2**21, 2**62, MOST)


@ts.kernel
def scalars(y: ts.Tensor[3, ts.i64], lo: int, hi: int, step: int):
    for _ in ts.tile.grid((1, 1)):
        count, total, last = 0, 0, 0
        for i in ts.tile.range(lo, hi, step):
            count += 1
            total += i
            last = i
        y[0] = count
        y[1] = total
        y[2] = last
    return y


@ts.kernel
def loaded(y: ts.Tensor[3, ts.i64], b: ts.Tensor[2, ts.i64], step: ts.constexpr):
    for _ in ts.tile.grid((1, 1)):
        count, total, last = 0, 0, 0
        for i in ts.tile.range(b[0], b[1], step):
            count += 1
            total += i
            last = i
        y[0] = count
        y[1] = total
        y[2] = last
    return y


@ts.kernel
def constants(y: ts.Tensor[3, ts.i64], lo: ts.constexpr, hi: ts.constexpr, step: ts.constexpr):
    for _ in ts.tile.grid((1, 1)):
        count, total, last = 0, 0, 0
        for i in ts.tile.range(lo, hi, step):
            count += 1
            total += i
            last = i
        y[0] = count
        y[1] = total
        y[2] = last
    return y


@ts.kernel
def nested(y: ts.Tensor[3, ts.i64], lo: int, hi: int, step: int):
    """The inner loop starts where the outer one is."""
    for _ in ts.tile.grid((1, 1)):
        count, total, last = 0, 0, 0
        for i in ts.tile.range(lo, hi, step):
            for j in ts.tile.range(i, hi, 2**61):
                count += 1
                total += j
                last = j
        y[0] = count
        y[1] = total
        y[2] = last
    return y


def expected(values: list[int]) -> list[int]:
    total = (sum(values) + 2**63) % 2**64 - 2**63
    return [len(values), total, values[-1] if values else 0]


def values_of(lo: int, hi: int, step: int) -> list[int]:
    return list(range(lo, hi, step)) if step > 0 else []


def result() -> Any:
    return np.full(3, -7, np.int64)


@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_scalar_arguments(bounds):
    assert scalars(result(), *bounds).tolist() == expected(values_of(*bounds))
    assert run(scalars.signature.function, result(), *bounds).tolist() == expected(values_of(*bounds))


@pytest.mark.parametrize("step", STEPS)
def test_loaded_bounds_and_constant_steps(step):
    for lo, hi in ((0, 10), (5, 5), (MOST - 10, MOST), (LEAST, LEAST + 3), (-1, 2**22), (MOST, LEAST)):
        if (hi - lo) // step > 1000:
            continue
        got = loaded(result(), np.array([lo, hi], np.int64), step).tolist()
        assert got == expected(values_of(lo, hi, step)), (lo, hi)


def test_constant_bounds():
    for bounds in [bounds for bounds in RANGES if bounds[2] > 0][-12:]:
        assert constants(result(), *bounds).tolist() == expected(values_of(*bounds)), bounds


def test_loops_in_loops():
    for lo, hi, step in RANGES[:21]:
        values = [j for i in values_of(lo, hi, step) for j in range(i, hi, 2**61)]
        assert nested(result(), lo, hi, step).tolist() == expected(values), (lo, hi, step)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_gpus_count_the_same_way(target):
    """The counter of the compiled loop goes up by one to a number computed before it."""
    text = ts.compile(scalars, target=target, dump=["tirh"]).dumps["tirh"]
    assert "floordiv" in text
    assert "scf.for" in text


def test_short_constant_steps_count_from_bound_to_bound():
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["m", ts.f32], k: int, i32: ts.i32):
        for m_ in ts.tile.grid((m, 8)):
            total = 0.0
            for i in ts.tile.range(m_ - 64, k, 32):
                for j in ts.tile.range(i32 * 4 + i, n, 8):
                    total += x[j]
            y[m_] = total

    from tests.unit.frontend.support import built, ops

    made = built(kernel)
    assert not [op for op in ops(made, "elementwise") if op.fn.data == "floordiv"]


def test_a_step_that_is_not_positive_is_reported_where_asserts_are():
    for step in (0, -3):
        with pytest.raises(ts.DeviceError) as caught:
            run(scalars.signature.function, result(), 0, 10, step, debug=True)
        assert caught.value.code == "assertion-failed"
        assert "step" in caught.value.message
