"""A forked child compiles and runs kernels, whatever its parent's other threads were doing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tessera.runtime import forking

pytestmark = pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="this system has no fork")

PROGRAM = textwrap.dedent(
    """
    import os, signal, sys, threading, time, warnings
    import numpy as np
    import tessera as ts

    warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of forks with threads

    @ts.kernel
    def scaled(x: ts.Tensor["n", ts.f32], factor: ts.constexpr):
        for i in ts.tile.grid((n, 64)):
            x[i : i + 64] = x[i : i + 64] * factor

    compiled = [0, 0]

    def work(number):
        while True:
            compiled[number] += 1
            x = ts.empty(1 << 17)
            x[...] = 1
            scaled(x, float(compiled[number] * 2 + number + 10))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    while min(compiled) < 2:
        time.sleep(0.01)
    for turn in range(4):
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a deadlock kills it
            x = ts.empty(1 << 20)
            for factor in (3.0 + turn,) * 4:
                x[...] = 1
                scaled(x, factor)
                if not (x == np.float32(factor)).all():
                    os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            os._exit(1)
    os._exit(0)
    """
)


def test_children_of_a_process_whose_threads_compile(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    environment = {**os.environ, "TESSERA_CACHE_SIZE_MB": "0", "TESSERA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, str(path)], env=environment, timeout=100, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_fork_waits_for_what_compiles_and_no_longer_than_it_may(monkeypatch):
    gate = forking._Gate()
    inside, leave = threading.Event(), threading.Event()

    def compiles():
        gate.enter()
        gate.enter()  # one compilation inside another
        inside.set()
        leave.wait(30)
        gate.leave()
        gate.leave()

    def forks():
        gate.before_fork()
        gate.after_in_parent()

    worker, forker = threading.Thread(target=compiles), threading.Thread(target=forks)
    worker.start()
    inside.wait(30)
    forker.start()
    time.sleep(0.05)
    assert forker.is_alive()
    leave.set()
    forker.join(30)
    assert not forker.is_alive()
    worker.join(30)

    gate.enter()  # a thread that compiles may fork itself
    forks()
    gate.leave()

    monkeypatch.setattr(forking, "_LONGEST_S", 0.01)
    inside.clear()
    leave.clear()
    worker = threading.Thread(target=compiles)
    worker.start()
    inside.wait(30)
    forks()
    leave.set()
    worker.join(30)
    assert gate._active == {}
