"""The cycle collector while kernels are compiled."""

import gc
import os
import threading

from tessera.runtime.collecting import collector_paused


def test_the_last_of_overlapping_pauses_turns_the_collector_on_again() -> None:
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_child_forked_meanwhile_collects() -> None:
    inside, done = threading.Event(), threading.Event()

    def compile_something() -> None:
        with collector_paused():
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=compile_something)
    thread.start()
    assert inside.wait(30)
    child = os.fork()
    if child == 0:
        with collector_paused():
            paused = not gc.isenabled()
        os._exit(0 if paused and gc.isenabled() else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert gc.isenabled()
