"""Which cases of a test with many a run of the whole suite takes: a part that the sources draw."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

PART = 64
"""One in so many cases of a test is drawn, and one of fewer."""


def left_out(tests: Mapping[str, Collection[str]], tree: int) -> set[str]:
    """Return the cases that a tree leaves to others: the same ones however often it is run.

    Args:
        tests: the names of each test's cases.
        tree: checksum of the sources.
    """
    return {name for cases in tests.values() for name in set(cases) - _drawn(cases, tree)}


def _drawn(cases: Collection[str], tree: int) -> set[str]:
    count = -(-len(cases) // PART)
    return set(sorted(cases, key=lambda name: (zlib.crc32(name.encode(), tree), name))[:count])


def by_test(cases: Iterable[str]) -> dict[str, list[str]]:
    """Group cases, named as pytest does (`file::test[case]`), by their tests."""
    found = defaultdict[str, list[str]](list)
    for name in cases:
        found[name.partition("[")[0]].append(name)
    return found
