"""Launch records: how many programs a persistent launch starts."""

from __future__ import annotations

import pytest

from tessera.target.artifact import Launch


@pytest.mark.parametrize(
    ("cluster", "multiprocessors", "most"),
    [(1, 132, 132), (2, 132, 132), (4, 114, 112), (8, 132, 128), (4, 2, 4)],
)
def test_persistent_programs_come_in_whole_clusters(cluster: int, multiprocessors: int, most: int) -> None:
    assert Launch("k", (), (), persistent=True, cluster=cluster).most_programs(multiprocessors) == most
