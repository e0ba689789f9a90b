"""Launch records: how many programs a persistent launch starts."""

from __future__ import annotations

import pytest

from tessera.target.artifact import Artifact, Launch


@pytest.mark.parametrize(
    ("cluster", "multiprocessors", "most"),
    [(1, 132, 132), (2, 132, 132), (4, 114, 112), (8, 132, 128), (4, 2, 4)],
)
def test_persistent_programs_come_in_whole_clusters(cluster: int, multiprocessors: int, most: int) -> None:
    assert Launch("k", (), (), persistent=True, cluster=cluster).most_programs(multiprocessors) == most


def test_an_artefact_is_shown_in_a_few_lines() -> None:
    artifact = Artifact(
        "k", "ptx", "sm_90a", (), (), (), bytes(10**5), "cubin", {"ptx": "x" * 10**5}, {"notes": "x" * 10**5}
    )
    assert repr(artifact).startswith("Artifact(name='k', backend='ptx', target='sm_90a'")
    assert len(repr(artifact)) < 300
