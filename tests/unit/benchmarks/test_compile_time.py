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
    check_growth(shape, target, small, large, MOST)


def check_growth(shape: str, target: str, small: int, large: int, most: float) -> None:
    """Fail when the time grows by a larger exponent than `most` in each of several trials."""
    compile_time.seconds(shape, 2, target)
    times = {small: float("inf"), large: float("inf")}
    for _ in range(3):  # the least of several where one alone, beside other processes, says too much
        times = {size: min(time, compile_time.seconds(shape, size, target)) for size, time in times.items()}
        if compile_time.growth(*times.items()) < most:
            return
    pytest.fail(f"{shape} for {target}: {times}")


def test_five_thousand_ops_compile() -> None:
    # A quadratic part that passes here is no larger than one that 10000 ops and `MOST` would show.
    check_growth("statements", "sm_90a", 1250, 5000, 1.35)


def test_the_growth_is_the_exponent() -> None:
    assert compile_time.growth((10, 2.0), (100, 200.0)) == pytest.approx(2.0)
