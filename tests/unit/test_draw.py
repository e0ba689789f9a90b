"""Which cases of large tests a run takes."""

import pytest

from tests.draw import PART, PART_OF_FILES, by_file, by_test, left_out


def cases_of(count: int, test: str = "f.py::test") -> list[str]:
    return [f"{test}[{at}]" for at in range(count)]


def kept(cases: list[str], tree: int) -> set[str]:
    return set(cases) - left_out(by_test(cases), tree)


@pytest.mark.parametrize(("count", "few"), [(1, 1), (2, 1), (PART, 1), (PART + 1, 2), (30 * PART, 30)])
def test_a_part_of_the_cases_is_kept_and_at_least_one(count: int, few: int) -> None:
    assert [len(kept(cases_of(count), tree)) for tree in range(5)] == [few] * 5


@pytest.mark.parametrize(("count", "trees"), [(2, 20), (PART, 600)])
def test_trees_draw_apart_and_together_take_all(count: int, trees: int) -> None:
    cases = cases_of(count)
    draws = [kept(cases, tree) for tree in range(trees)]
    assert draws[0] == kept(cases, 0)
    assert set[str]().union(*draws) == set(cases)


def test_cases_of_each_test_are_drawn_for_themselves() -> None:
    one, other = cases_of(16), cases_of(6, "f.py::other")
    assert kept(one + other, 1) == kept(one, 1) | kept(other, 1)


def test_half_of_the_tests_of_long_files_are_drawn() -> None:
    tests = [
        f"tests/unit/{folder}/test_{file}.py::test_{number}"
        for folder in ("torch", "ir")
        for file in "ab"
        for number in range(9)
    ]
    found = by_file(tests)
    assert sorted(found) == ["tests/unit/torch/test_a.py", "tests/unit/torch/test_b.py"]
    drawn = [set(tests) - left_out(found, tree, PART_OF_FILES) for tree in range(40)]
    assert all(len([name for name in one if name.startswith(file)]) == 5 for one in drawn for file in found)
    assert all(name in one for one in drawn for name in tests if "/ir/" in name)
    assert set.union(*drawn) == set(tests)
