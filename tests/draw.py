"""Which cases of a test with many a run of the whole suite takes: a part that the sources draw."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping

PART = 64
"""One in so many cases of a test is drawn, and what it takes to have every value that several cases have."""

Case = Mapping[str, int]
"""The index of each parameter's value."""


def left_out(tests: Mapping[str, Mapping[str, Case]], tree: int) -> set[str]:
    """Return the cases that a tree leaves to others: the same ones however often it is run.

    Args:
        tests: the cases of each test, by their names.
        tree: checksum of the sources.
    """
    return {name for cases in tests.values() for name in set(cases) - _drawn(cases, tree)}


def _drawn(cases: Mapping[str, Case], tree: int) -> set[str]:
    shared = Counter(value for case in cases.values() for value in case.items())
    found, seen = set[str](), set[tuple[str, int]]()
    for name in sorted(cases, key=lambda name: (zlib.crc32(name.encode(), tree), name)):
        values = {value for value in cases[name].items() if shared[value] > 1}
        if len(found) * PART < len(cases) or values - seen:
            found.add(name)
            seen |= values
    return found


def by_test(cases: Mapping[str, Case]) -> dict[str, dict[str, Case]]:
    """Group cases, named as pytest does (`file::test[case]`), by their tests."""
    found = defaultdict[str, dict[str, Case]](dict)
    for name, case in cases.items():
        found[name.partition("[")[0]][name] = case
    return found
