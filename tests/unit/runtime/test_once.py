"""What a process makes once is made once, whichever threads ask for it."""

from __future__ import annotations

import threading
import time

import pytest

from tessera.runtime.once import once


def test_threads_that_ask_together_get_one_result() -> None:
    made: list[int] = []

    @once
    def make(number: int) -> object:
        made.append(number)
        time.sleep(0.05)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda number=n % 2: found.append(make(number))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [0, 1]
    assert set(found) == {make(0), make(1)}
    first = make(0)
    make.cache_clear()
    assert make(0) is not first


def test_a_failure_is_not_kept() -> None:
    outcomes = iter([ValueError("not yet"), 3])

    @once
    def make() -> int:
        outcome = next(outcomes)
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    with pytest.raises(ValueError, match="not yet"):
        make()
    assert make() == make() == 3
