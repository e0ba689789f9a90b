"""What code relies on that divides sizes, strides and addresses."""

from dataclasses import replace

import pytest

from tessera.driver.divisors import Divisors
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.numerics.dtypes import f32


def of(rows: int, columns: int, align: int = 16) -> Specialization:
    """Return what is known of a matrix of so many rows and columns."""
    fact = ArgFacts(
        "tensor", f32, (rows, columns), (-1, 1), align, (columns & -columns, 1), (rows & -rows, columns & -columns)
    )
    return Specialization((fact, ArgFacts("scalar", f32)))


def test_a_first_call_has_its_own():
    assert Divisors().agreed(of(8, 4)) == of(8, 4)


def test_another_call_has_what_all_have_in_common():
    found = Divisors()
    found.agreed(of(8, 4))
    (fact, _) = found.agreed(of(4, 16, 8)).args
    assert (fact.sizes, fact.align, fact.stride_div, fact.dim_div) == ((4, 16), 8, (4, 1), (4, 4))


def test_calls_that_code_was_made_for_keep_it():
    found = Divisors()
    for rows in (8, 3, 8):
        assert found.agreed(of(rows, 4)) == of(rows, 4)


@pytest.mark.parametrize("wide", [False, True])
def test_few_codes_are_made_for_many_sizes(wide: bool):
    found = Divisors()
    codes = {
        tuple(fact.dim_div for fact in found.agreed(of(rows, columns), wide).args)
        for rows in range(17, 49)
        for columns in range(17, 49)
    }
    assert len(codes) <= 4


def test_wide_accesses_of_whole_sizes_outlast_an_odd_one():
    found = Divisors()
    for rows, columns in ((3, 11), (6, 32), (8, 15), (3, 64)):
        (fact, _) = found.agreed(of(rows, columns), wide=True).args
        assert fact.dim_div == (1, 1 if columns % 16 else 16)


def test_other_facts_keep_calls_apart():
    found = Divisors()
    found.agreed(of(3, 3))
    other = replace(of(8, 8), profile="strict")
    assert found.agreed(other) == other
