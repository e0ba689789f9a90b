"""Which cases of large tests a run takes."""

from collections.abc import Mapping
from itertools import product

import pytest

from tests.draw import PART, by_test, left_out


def grid(*sizes: int, test: str = "f.py::test") -> dict[str, Mapping[str, int]]:
    names = "abcdef"[: len(sizes)]
    return {
        f"{test}[{at}]": dict(zip(names, index, strict=True))
        for at, index in enumerate(product(*(range(size) for size in sizes)))
    }


def kept(cases: Mapping[str, Mapping[str, int]], tree: int) -> set[str]:
    return set(cases) - left_out(by_test(cases), tree)


@pytest.mark.parametrize("tree", range(5))
def test_every_value_is_kept_and_about_a_part_of_the_cases(tree: int) -> None:
    cases = grid(4, 5, 10)
    some = kept(cases, tree)
    values = {value for case in cases.values() for value in case.items()}
    assert {value for name in some for value in cases[name].items()} == values
    assert len(cases) / PART <= len(some) <= len(cases) / PART + sum((4, 5, 10))


def test_values_of_one_case_each_are_drawn_as_others_are() -> None:
    assert len(kept(grid(30 * PART), 0)) == 30


def test_of_two_cases_some_trees_draw_one_and_some_the_other() -> None:
    draws = [kept(grid(2), tree) for tree in range(10)]
    assert all(len(some) == 1 for some in draws)
    assert set[str]().union(*draws) == set(grid(2))


def test_one_case_is_kept() -> None:
    assert kept(grid(1), 3) == set(grid(1))


def test_trees_draw_apart_and_together_take_all() -> None:
    cases = grid(8, 8)
    draws = [kept(cases, tree) for tree in range(60)]
    assert draws[0] == kept(cases, 0) != draws[1]
    assert set[str]().union(*draws) == set(cases)


def test_cases_of_each_test_are_drawn_for_themselves() -> None:
    one, other = grid(4, 4), grid(3, 2, test="f.py::other")
    assert kept({**one, **other}, 1) == kept(one, 1) | kept(other, 1)
