"""Works that forked processes share."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tessera.errors import CallError
from tessera.runtime import workers
from tessera.runtime.workers import most_workers, share

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are forked on Linux alone")


@pytest.fixture(autouse=True)
def _no_child_left() -> Iterator[None]:
    """Check that no process is left, not even one that nobody has waited for."""
    others = _children()
    yield
    assert _children() <= others


def _children() -> set[int]:
    """Return the processes that this one has started and not waited for; other tests may have left some."""
    found = set[int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            if int(parent) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def _noting(folder: Path, place: int, pause: float = 0.0) -> Callable[[], object]:
    """Return a work that leaves a file with the process that did it; a second time is an error."""

    def work() -> None:
        time.sleep(pause)
        with (folder / str(place)).open("x") as file:
            file.write(str(os.getpid()))

    return work


def _done(folder: Path) -> dict[int, int]:
    return {int(path.name): int(path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize(("works", "count"), [(0, 4), (1, 4), (2, 2), (7, 3), (40, 5), (3, 16)])
def test_each_work_is_done_once(tmp_path: Path, works: int, count: int) -> None:
    share([_noting(tmp_path, place) for place in range(works)], count)
    assert sorted(_done(tmp_path)) == [*range(works)]


def test_processes_take_part(tmp_path: Path) -> None:
    share([_noting(tmp_path, place, pause=0.2) for place in range(5)], 5)
    pids = set(_done(tmp_path).values())
    assert os.getpid() in pids
    assert len(pids) > 2


def test_a_work_that_fails_is_left_undone(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("no")

    share([_noting(tmp_path, 0), fail, fail, _noting(tmp_path, 3), fail], 3)
    assert sorted(_done(tmp_path)) == [0, 3]


def test_a_process_that_ends_early_takes_no_work_with_it_but_its_own(tmp_path: Path) -> None:
    me = os.getpid()

    def end() -> None:
        if os.getpid() != me:
            os.kill(os.getpid(), signal.SIGKILL)

    share([end, *(_noting(tmp_path, place, pause=0.02) for place in range(6))], 3)
    assert sorted(_done(tmp_path)) == [*range(6)]


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LONGEST_S", 0.3)
    me = os.getpid()

    def hang() -> None:
        if os.getpid() != me:
            (tmp_path / str(os.getpid())).touch()
            time.sleep(60)
        else:
            time.sleep(0.2)

    begin = time.monotonic()
    share([hang] * 5, 4)
    assert time.monotonic() - begin < 20
    assert not any(map(_is_running, map(int, os.listdir(tmp_path))))


def _is_running(pid: int) -> bool:
    """Return whether a process runs; of one that has ended a parent that has ended, too, may not have heard."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        time.sleep(0.02)
    return True


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    me = os.getpid()

    def work() -> None:
        if os.getpid() == me:
            raise KeyboardInterrupt
        (tmp_path / str(os.getpid())).touch()
        time.sleep(60)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        share([work] * 4, 3)
    assert time.monotonic() - begin < 20
    assert not any(map(_is_running, map(int, os.listdir(tmp_path))))


def test_nothing_can_be_forked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", fork)
    share([_noting(tmp_path, place) for place in range(3)], 3)
    assert set(_done(tmp_path).values()) == {os.getpid()}


def test_how_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TESSERA_COMPILE_PROCESSES", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(workers, "_LIMIT", str(limit))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(12)))
    assert most_workers() == 12
    for text, count in (("max 100000", 12), ("250000 100000", 2), ("50000 100000", 1), ("?", 12)):
        limit.write_text(f"{text}\n")
        assert most_workers() == count
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert most_workers() == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert most_workers() == 1
    monkeypatch.setenv("TESSERA_COMPILE_PROCESSES", "5")
    assert most_workers() == 5
    monkeypatch.setenv("TESSERA_COMPILE_PROCESSES", "many")
    with pytest.raises(CallError) as error:
        most_workers()
    assert error.value.code == "bad-environment"
