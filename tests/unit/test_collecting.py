"""The cycle collector while kernels are compiled."""

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from tessera import collecting
from tessera.collecting import collector_paused


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Let no object be frozen at first; a session freezes its own."""
    gc.unfreeze()
    yield
    gc.freeze()


def generation_of(one: object) -> int:
    """Return the generation of the collector that an object is in, -1 when it is frozen."""
    return next((age for age in range(3) if any(other is one for other in gc.get_objects(age))), -1)


def many_made_in_a_pause() -> list[list[int]]:
    with collector_paused():
        return [[number] for number in range(2 * collecting._MODULES)]


def test_the_first_many_objects_are_called_old_and_later_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting._Pauses, "settled", False)
    with collector_paused():
        few = [[0]]
    assert generation_of(few[0]) < 2
    first, second = many_made_in_a_pause(), many_made_in_a_pause()
    assert (generation_of(first[0]), gc.get_freeze_count()) == (2, 0)
    assert generation_of(second[-1]) < 2


def test_what_stays_is_called_old() -> None:
    with collector_paused(keep=True):
        made = [[0]]
    assert (generation_of(made[0]), gc.get_freeze_count(), gc.isenabled()) == (2, 0, True)


def test_what_the_program_froze_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting._Pauses, "settled", False)
    own = [1]
    gc.freeze()
    try:
        held = many_made_in_a_pause()
        assert (generation_of(own), len(held)) == (-1, 2 * collecting._MODULES)
    finally:
        gc.unfreeze()


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
