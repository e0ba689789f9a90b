"""The worker pool: every program exactly once, many callers, nested launches, interrupts, forks, the end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tessera as ts
from tessera.driver.native import load_pool
from tessera.entry.layout import POOL_PIECES
from tessera.errors import CallError
from tessera.runtime import cpu, pool
from tessera.runtime.pool import WorkerPool, shared_pool, thread_count

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@pytest.fixture
def workers():
    made = WorkerPool(load_pool())
    yield made
    made.stop()


def run(workers, body, programs, threads=2, scratch=0, first=0, cost=10**9):
    """Run a Python function as the entry point; its parameters are scratch memory and an unused word."""
    memory = (ctypes.c_char * max(scratch, 1))()
    params = (ctypes.c_void_p * 2)(ctypes.addressof(memory), None)
    entry = ENTRY(body)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    workers.run(threads, address, ctypes.addressof(params), 2, scratch, first, first + programs, cost)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("programs", [1, 2, 7, 1000])
def test_every_program_runs_exactly_once(workers, threads, programs):
    seen: list[tuple[int, int]] = []
    for _ in range(20):
        seen.clear()
        run(workers, lambda params, first, last: seen.append((first, last)), programs, threads, first=3)
        assert sorted(i for first, last in seen for i in range(first, last)) == list(range(3, 3 + programs))


def test_workers_take_part_and_sleep_between_jobs(workers):
    for _ in range(3):
        names = set()

        def body(params, first, last, names=names):
            names.add(threading.get_ident())
            time.sleep(0.002)

        run(workers, body, 60, threads=3)
        assert len(names) == 3
        assert workers.started == 2
        time.sleep(0.005)


def test_workers_take_no_time_from_other_pools_after_a_launch(workers):
    run(workers, lambda params, first, last: time.sleep(0.002), 60, threads=3)
    time.sleep(0.01)  # the last of them look out for another launch for a moment
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.02


def test_launches_beside_a_pool_of_the_caller_are_shared_out_as_ever(workers):
    stop = threading.Event()

    def multiply():
        while not stop.is_set():
            np.ones((200, 200), np.float32) @ np.ones((200, 200), np.float32)
        return True

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(multiply) for _ in range(2)]
        for _ in range(20):
            seen: list[tuple[int, int]] = []
            run(workers, lambda params, first, last, seen=seen: seen.append((first, last)), 50, threads=3)
            assert sorted(i for first, last in seen for i in range(first, last)) == list(range(50))
        stop.set()
        assert all(future.result() for future in busy)


def test_a_small_job_after_a_pause_wakes_nobody(workers):
    names = []

    def body(params, first, last):
        names.append(threading.get_ident())
        end = time.perf_counter() + 2e-4
        while time.perf_counter() < end:
            pass

    def is_alone(pause):
        time.sleep(pause)
        names.clear()
        run(workers, body, 4, cost=20_000)
        return set(names) == {threading.get_ident()}

    run(workers, body, 4)
    for _ in range(5):
        # On a busy machine a worker may get to its pause late: it looks out for jobs until then.
        assert any(is_alone(0.005 * tries) for tries in range(1, 9))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is Linux's")
def test_workers_stay_within_the_affinity_of_the_process(workers):
    allowed = os.sched_getaffinity(0)
    masks = []

    def body(params, first, last):
        masks.append((threading.get_native_id(), os.sched_getaffinity(0)))
        time.sleep(1e-3)

    for _ in range(20):
        run(workers, body, 8)
        time.sleep(1e-3)  # so that they are woken again
    assert {mask == allowed for thread, mask in masks if thread == threading.get_native_id()} == {True}
    for thread, mask in masks:
        assert mask
        assert mask <= allowed
        assert len(allowed - mask) <= (thread != threading.get_native_id())  # at most the caller's CPU


def test_each_worker_has_aligned_scratch_of_its_own(workers):
    seen: dict[int, set[int]] = {}

    def body(params, first, last):
        scratch = ctypes.c_void_p.from_address(params).value
        seen.setdefault(threading.get_ident(), set()).add(scratch)
        ctypes.memset(scratch, first % 251, 4096)
        time.sleep(0.001)
        assert ctypes.string_at(scratch, 4096) == bytes([first % 251]) * 4096

    run(workers, body, 64, threads=3, scratch=4096)
    mine = seen.pop(threading.get_ident())
    assert len(mine) == 1
    assert len(seen) == 2
    addresses = [address for each in seen.values() for address in each]
    assert len(set(addresses) | mine) == 3
    assert all(address % 64 == 0 for address in addresses)


def test_workers_fill_their_scratch_before_they_take_part(workers):
    caller, size = threading.get_ident(), 4096
    begun: dict[int, bytes] = {}

    def body(params, first, last):
        scratch = ctypes.c_void_p.from_address(params).value
        begun.setdefault(threading.get_ident(), ctypes.string_at(scratch, size))
        time.sleep(0.002)
        ctypes.memset(scratch, 7, size)

    for byte in (0x41, 0x42, None):
        workers.fill_scratch(byte)
        begun.clear()
        run(workers, body, 60, threads=3, scratch=size)
        theirs = [held for thread, held in begun.items() if thread != caller]
        assert theirs == [bytes([byte or 7]) * size] * 2


@pytest.mark.parametrize(("byte", "shared"), [(None, []), (0x41, [2])])
def test_short_launches_are_shared_out_where_scratch_is_filled(monkeypatch, byte, shared):
    def doubled(x: ts.Tensor["n", ts.f32]):
        for i in ts.tile.grid((n, 4)):
            x[i : i + 4] = x[i : i + 4] * 2

    threads, run_all = [], WorkerPool.run
    monkeypatch.setenv("TESSERA_NUM_THREADS", "2")
    monkeypatch.setattr(cpu, "INLINE_NS", 10**8)  # a first launch may take long
    monkeypatch.setattr(WorkerPool, "run", lambda self, *args: (threads.append(args[0]), run_all(self, *args)))
    x = np.ones(64, np.float32)
    cpu.fill_scratch(byte)
    try:
        ts.kernel(doubled)(x)
    finally:
        cpu.fill_scratch(None)
    assert (x == 2).all()
    assert threads == shared


def test_many_callers_at_once(workers):
    totals = [0] * 4

    def caller(number):
        for _ in range(50):
            seen: list[int] = []
            run(workers, lambda params, first, last, seen=seen: seen.append(last - first), 40, threads=3)
            totals[number] += sum(seen)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [2000] * 4


def test_a_launch_inside_a_launch_runs_on_its_caller(workers):
    inner: list[tuple[int, int]] = []

    def outer(params, first, last):
        me = threading.get_ident()
        run(workers, lambda p, a, b: inner.append((threading.get_ident() == me, b - a)), 10, threads=2)

    run(workers, outer, 4, threads=2)
    assert sum(count for _, count in inner) == 40
    assert all(own for own, _ in inner)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_signal_is_handled_during_a_launch(workers, threads):
    running = []

    def body(params, first, last):
        running.append(1)
        time.sleep(0.01 * (last - first))
        running.pop()

    threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    handled = []
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
    try:
        run(workers, body, 40, threads)
        assert handled
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not running


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("slow_from", "quick_from"), [(0, 400), (200, 400), (0, 0), (0, 3)])
def test_pieces_are_as_long_as_their_programs_allow(workers, threads, slow_from, quick_from):
    pieces = []

    def body(params, first, last):
        slow = sum(slow_from <= program < quick_from for program in range(first, last))
        time.sleep(0.002 * slow)
        pieces.append((first, last - first, slow))

    run(workers, body, 400, threads)
    assert sum(count for _, count, _ in pieces) == 400
    assert pieces[0][1] == 1
    most = 400 // (threads * POOL_PIECES)
    assert max(count for _, count, _ in pieces) <= most
    # Programs of 2 ms: at most 8 of them make a piece, after one that was still of quick programs.
    assert sum(slow > 8 for _, _, slow in pieces) <= threads
    if slow_from == quick_from:
        assert any(count > 1 for _, count, _ in pieces)


LONG = """
import os, signal, threading, time
import numpy as np
import tessera as ts

@ts.kernel
def slow(x: ts.Tensor["n", ts.f32], rounds: ts.i64):
    for i in ts.tile.grid((n, 16)):
        y = x[i : i + 16]
        for _ in ts.tile.range(0, rounds, 1):
            y = ts.tile.sqrt(y + 1.0)
        x[i : i + 16] = y

x = np.ones(16 * 4000, np.float32)
for _ in range(CALLS):
    slow(x, 2)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background starts without
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
start = time.perf_counter()
try:
    slow(x, 150_000)
    print("finished")
except KeyboardInterrupt:
    print("interrupted", time.perf_counter() - start < 10)
y = np.ones(64, np.float32)
slow(y, 3)
print(np.allclose(y, np.sqrt(np.sqrt(np.sqrt(2) + 1) + 1)))
"""


@pytest.mark.parametrize("calls", [0, 5], ids=["python path", "entry"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_ctrl_c_ends_a_long_launch(tmp_path, calls, threads):
    program = tmp_path / "long.py"
    program.write_text(LONG.replace("CALLS", str(calls)))
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "TESSERA_NUM_THREADS": threads},
    )
    assert done.stdout.split() == ["interrupted", "True", "True"], done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own(monkeypatch):
    run(shared_pool(), lambda params, first, last: None, 10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        seen = []
        before = shared_pool().started
        run(shared_pool(), lambda params, first, last: seen.append(last - first), 100)
        os.write(write, b"%d %d %d" % (before, sum(seen), shared_pool().started))
        os._exit(0)
    os.close(write)
    assert os.read(read, 16) == b"0 100 1"
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0


def test_a_stopped_pool_still_runs_jobs(workers):
    run(workers, lambda params, first, last: None, 10, threads=3)
    workers.stop()
    assert workers.started == 0
    seen = []
    run(workers, lambda params, first, last: seen.append(last - first), 50, threads=3)
    assert sum(seen) == 50


def test_the_entry_finds_the_pool():
    made = shared_pool()
    assert list(pool.words) == [made.run_address, made.address]


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


AFTER_SHORT = """
import os, signal, threading, time
import numpy as np
import tessera as ts

@ts.kernel
def slow(x: ts.Tensor["n", ts.f32], rounds: ts.i64):
    for i in ts.tile.grid((n, 1024)):
        y = x[i : i + 1024]
        for _ in ts.tile.range(0, rounds, 1):
            y = ts.tile.exp(y * -1.0)
        x[i : i + 1024] = y

x = np.ones(1024 * 1000, np.float32)
for _ in range(8):
    slow(x, 1)
signal.signal(signal.SIGINT, signal.default_int_handler)
sent = []
def send():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.1, send).start()
try:
    slow(x, 50_000)
    print("finished")
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
"""


@pytest.mark.parametrize("entry", ["0", "1"])
def test_ctrl_c_ends_a_long_launch_after_short_ones_of_its_sizes(tmp_path, entry):
    program = tmp_path / "long.py"
    program.write_text(AFTER_SHORT)
    known = {**os.environ, "TESSERA_NUM_THREADS": "2", "TESSERA_ENTRY": entry}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=100, check=True, env=known)
    assert float(done.stdout) < 0.5  # programs take 10 ms; an eighth of a thread's would take half a second
