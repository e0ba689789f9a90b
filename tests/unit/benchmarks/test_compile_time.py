"""Compile time grows with the size of a program, not with its square."""

from __future__ import annotations

import compile_time
import pytest

# Of the exponent between two sizes: 1 is linear, 2 quadratic. Processor time of one process varies by a tenth or two.
MOST = 1.5


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize(
    ("shape", "small", "large"),
    [("statements", 625, 2500), ("stores", 32, 128), ("loads", 32, 128), ("levels", 4, 16), ("registers", 64, 256)],
)
def test_time_is_linear(target: str, shape: str, small: int, large: int) -> None:
    compile_time.seconds(shape, 2, target)
    times = {small: float("inf"), large: float("inf")}
    for _ in range(3):  # the least of several where one alone, beside other processes, says too much
        times = {size: min(time, compile_time.seconds(shape, size, target)) for size, time in times.items()}
        if compile_time.growth(*times.items()) < MOST:
            return
    pytest.fail(f"{shape} for {target}: {times}")


def test_ten_thousand_ops_compile() -> None:
    compile_time.seconds("statements", 10, "sm_90a")
    quarter, whole = (compile_time.seconds("statements", size, "sm_90a") for size in (2500, 10000))
    assert compile_time.growth((2500, quarter), (10000, whole)) < MOST


def test_the_growth_is_the_exponent() -> None:
    assert compile_time.growth((10, 2.0), (100, 200.0)) == pytest.approx(2.0)
