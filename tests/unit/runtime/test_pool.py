"""The worker pool: every program exactly once, exceptions, interrupts, forks."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tessera.errors import CallError
from tessera.runtime import pool
from tessera.runtime.pool import WorkerPool, shared_pool, thread_count


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("programs", [1, 2, 7, 1000])
def test_every_program_runs_exactly_once(threads, programs):
    seen: list[tuple[int, int]] = []
    WorkerPool(threads).run(lambda first, last: seen.append((first, last)), programs)
    assert sorted(i for first, last in seen for i in range(first, last)) == list(range(programs))


def test_workers_take_part():
    names = set()

    def body(first, last):
        names.add(threading.current_thread().name)
        time.sleep(0.002)

    WorkerPool(3).run(body, 60)
    assert len(names) == 3


def test_many_callers_at_once_share_the_pool():
    workers = WorkerPool(3)
    totals = [0] * 4

    def caller(number):
        for _ in range(50):
            seen: list[int] = []
            workers.run(lambda first, last, seen=seen: seen.append(last - first), 40)
            totals[number] += sum(seen)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [2000] * 4


def test_an_exception_leaves_the_pool_usable():
    workers = WorkerPool(2)
    caller = threading.current_thread()

    def body(first, last):
        if threading.current_thread() is caller:
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        workers.run(body, 50)
    seen = []
    workers.run(lambda first, last: seen.append(last - first), 50)
    assert sum(seen) == 50


def test_an_interrupt_waits_for_running_programs_and_is_passed_on():
    workers = WorkerPool(2)
    running = []

    def body(first, last):
        running.append(1)
        try:
            time.sleep(0.01)
        finally:
            running.pop()

    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        workers.run(body, 10_000)
    assert not running, "no program runs after the call has returned"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_its_own_pool(monkeypatch):
    monkeypatch.setattr(pool, "_pool", None)
    monkeypatch.setenv("TESSERA_NUM_THREADS", "2")
    shared_pool().run(lambda first, last: None, 10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        seen = []
        shared_pool().run(lambda first, last: seen.append(last - first), 100)
        os.write(write, b"%d" % sum(seen))
        os._exit(0)
    os.close(write)
    assert os.read(read, 16) == b"100"
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0


def test_thread_count_obeys_the_environment(monkeypatch):
    monkeypatch.setenv("TESSERA_NUM_THREADS", "3")
    assert thread_count() == 3
    monkeypatch.delenv("TESSERA_NUM_THREADS")
    assert thread_count() == len(os.sched_getaffinity(0))
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("TESSERA_NUM_THREADS", wrong)
        with pytest.raises(CallError) as caught:
            thread_count()
        assert caught.value.code == "bad-environment"
