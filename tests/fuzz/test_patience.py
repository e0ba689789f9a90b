"""When a program of a campaign counts as hung."""

from __future__ import annotations

import os
import sys
import time

import pytest

from tessera.tools.fuzz import patience
from tessera.tools.fuzz.patience import Patience, worked


@pytest.mark.parametrize(
    ("share", "stops_at", "hung_at"),
    [
        (1.0, 1e9, 61),  # works all the time
        (0.1, 1e9, 601),  # gets a tenth of a processor
        (8.0, 1e9, 61),  # eight threads
        (0.0, 0.0, 61),  # waits from the start
        (1.0, 20.0, 122),  # works and then waits
        (0.1, 130.0, 244),
    ],
)
def test_a_program_hangs_by_its_own_clock(monkeypatch, share, stops_at, hung_at):
    now = 0.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    monkeypatch.setattr(patience, "worked", lambda pid: min(now, stops_at) * share)
    watch = Patience(1)
    while not watch.is_over(60.0):
        now += 1.0
    assert now == pytest.approx(hung_at, abs=3)


def test_where_nothing_is_known_of_its_work_the_wall_decides(monkeypatch):
    now = 0.0
    monkeypatch.setattr(patience.time, "monotonic", lambda: now)
    monkeypatch.setattr(patience, "worked", lambda pid: None)
    watch = Patience(1)
    now = 59.0
    assert not watch.is_over(60.0)
    now = 61.0
    assert watch.is_over(60.0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_the_work_of_a_process_is_told():
    before, own = worked(os.getpid()), time.process_time()
    while time.process_time() - own < 0.05:
        pass
    after = worked(os.getpid())
    assert before is not None
    assert after is not None
    assert 0.05 <= after - before
    assert worked(2**22 + 5) is None  # no process has this number
