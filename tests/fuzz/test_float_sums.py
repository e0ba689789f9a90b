"""What atomics add up to in any order keeps the bound, and what a fault adds up to does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera.tools.fuzz.meaning_memory import FloatSums
from tessera.tools.fuzz.meaning_reductions import reduce, scan
from tessera.tools.fuzz.meaning_values import FORMATS, Val, nearest
from tessera.tools.fuzz.run import differs

Numbers = list[float]

KINDS = ("f16", "bf16", "f32", "f64")


def added(numbers: Numbers, dtype: str) -> float:
    """Return the sum of numbers, one after the other, each addition rounded to a dtype."""
    total = np.float64(0.0)
    for number in numbers:
        with np.errstate(all="ignore"):
            total = nearest(np.asarray(total + number), dtype)[()]
    return float(total)


def drawn(seed: int, dtype: str, count: int) -> Numbers:
    """Return numbers of a dtype of different sizes and signs, whose sums round."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(count) * 2.0 ** rng.integers(-3, 4, count)
    return nearest(numbers, dtype).tolist()


def meant(numbers: Numbers, dtype: str) -> Val:
    """Return what a tensor of the first number holds after programs have added one each of the others."""
    tensor = Val(dtype, np.array(numbers[:1]))
    sums = FloatSums(tensor)
    for program, number in enumerate(numbers[1:]):
        sums.add(np.array([0]), Val(dtype, np.array([number])), program)
    return sums.after(Val(dtype, np.array([added(numbers, dtype)])))


def is_wrong(found: float, want: Val) -> bool:
    return bool(differs(np.array([found]), want).item())


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("count", [2, 3, 12, 300])
def test_every_order_keeps_the_bound(dtype: str, count: int) -> None:
    for seed in range(8):
        numbers, rng = drawn(seed, dtype, count), np.random.default_rng(seed)
        want = meant(numbers, dtype)
        assert want.mask().all()
        orders = [sorted(numbers), sorted(numbers, key=abs), sorted(numbers, key=abs, reverse=True)]
        orders += [rng.permutation(numbers).tolist() for _ in range(30)]
        assert not any(is_wrong(added(order, dtype), want) for order in orders)


@pytest.mark.parametrize("dtype", KINDS)
def test_the_bound_is_no_looser_than_additions_can_come_to(dtype: str) -> None:
    """Additions of halves of a unit to 1 that all round down are off by nearly as much as the bound."""
    unit = FORMATS[dtype].unit
    numbers = [1.0, *[unit] * 20]
    want = meant(numbers, dtype)
    off = abs(added(numbers, dtype) - (1 + 20 * unit))
    assert off <= want.errors().item() + abs(want.data.item() - (1 + 20 * unit)) <= 1.2 * off + 2 * unit


FAULTS: dict[str, Callable[[Numbers, str], float]] = {
    "one is lost": lambda numbers, dtype: added(numbers[:-1], dtype),
    "one counts twice": lambda numbers, dtype: added([*numbers, numbers[-1]], dtype),
    "the first value is lost": lambda numbers, dtype: added(numbers[1:], dtype),
    "a sign is lost": lambda numbers, dtype: added([abs(number) for number in numbers], dtype),
}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_leave_the_bound(fault: str, dtype: str) -> None:
    count = 5 if dtype in ("f16", "bf16") else 12
    lists = [drawn(seed, dtype, count) for seed in range(20)]
    found = sum(is_wrong(FAULTS[fault](numbers, dtype), meant(numbers, dtype)) for numbers in lists)
    assert found >= 14


def test_sums_in_fewer_digits_leave_the_bound() -> None:
    lists = [drawn(seed, "f32", 12) for seed in range(20)]
    assert all(is_wrong(added(numbers, "bf16"), meant(numbers, "f32")) for numbers in lists)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([1.0, np.nan, 3.0], np.nan), ([0.1, np.inf, 0.3], np.inf), ([0.1, np.inf, -np.inf], np.nan)],
)
def test_infinities_and_nan_are_found_in_any_order(numbers: Numbers, expected: float) -> None:
    want = meant(numbers, "f32")
    assert want.mask().all()
    np.testing.assert_array_equal(want.data, [expected])


@pytest.mark.parametrize("number", [np.inf, 60000.0])
def test_nothing_is_promised_where_one_order_overflows(number: float) -> None:
    assert not meant([60000.0, number, -60000.0, 0.3], "f16").mask().any()


def test_what_numbers_are_off_by_is_off_in_their_sum() -> None:
    sums = FloatSums(Val("f32", np.zeros(1)))
    for program in range(3):
        sums.add(np.array([0]), Val("f32", np.array([1.0]), np.array([0.25])), program)
    after: Any = sums.after(Val("f32", np.array([3.0]), np.array([0.25])))
    assert 0.75 <= after.errors().item() < 0.76


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("running", [False, True])
def test_sums_that_round_at_the_last_exact_number_keep_the_bound(dtype: str, running: bool) -> None:
    """1 and the number after it come to 2 and half a step, which two orders round in two ways."""
    after = 1.0 + 2 * FORMATS[dtype].unit
    numbers = np.array([1.0, after, -1.0, -1.0])
    value = Val(dtype, numbers)
    want = scan("sum", value, 0, False, dtype) if running else reduce("sum", value, 0, dtype)
    orders = ([0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 3, 1])
    found = {added(numbers[order].tolist(), dtype) for order in orders}
    assert found == {0.0, after - 1.0}
    last = Val(dtype, want.data.reshape(-1)[-1:], want.errors().reshape(-1)[-1:], want.mask().reshape(-1)[-1:])
    assert not any(is_wrong(each, last) for each in found)
