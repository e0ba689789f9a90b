"""Which cases of a test with many a run of the whole suite takes: a part that the sources draw."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

PART = 64
"""One in so many cases of a test is drawn, and one of fewer."""
PART_OF_FILES = 2
"""The same of the tests of a file in `LONG`."""
LONG = ("tests/unit/torch/", "tests/unit/ops/")
"""Folders whose tests compile whole graphs, or each kernel of the library for several processors: half of all time."""


def left_out(tests: Mapping[str, Collection[str]], tree: int, part: int = PART) -> set[str]:
    """Return the cases that a tree leaves to others: the same ones however often it is run.

    Args:
        tests: the names of each test's cases.
        tree: checksum of the sources.
        part: one in so many is drawn.
    """
    return {name for cases in tests.values() for name in set(cases) - _drawn(cases, tree, part)}


def _drawn(cases: Collection[str], tree: int, part: int) -> set[str]:
    count = -(-len(cases) // part)
    return set(sorted(cases, key=lambda name: (zlib.crc32(name.encode(), tree), name))[:count])


def by_file(tests: Iterable[str]) -> dict[str, list[str]]:
    """Group the tests of files in `LONG` by their files."""
    found = defaultdict[str, list[str]](list)
    for name in tests:
        if name.startswith(LONG):
            found[name.partition("::")[0]].append(name)
    return found


def by_test(cases: Iterable[str]) -> dict[str, list[str]]:
    """Group cases, named as pytest does (`file::test[case]`), by their tests."""
    found = defaultdict[str, list[str]](list)
    for name in cases:
        found[name.partition("[")[0]].append(name)
    return found
