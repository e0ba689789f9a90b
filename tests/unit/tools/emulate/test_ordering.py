"""In which order warps and other units touch shared memory."""

import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.ordering import Ordering

PLACES = np.arange(64).reshape(4, 16)
AT = np.arange(0, 64, 2)
FIRST, SECOND, THIRD = np.arange(32), np.arange(32, 64), np.arange(64, 96)


def touched(writes: bool) -> Ordering:
    ordering = Ordering(256, 96)
    ordering.touch(AT, 2, FIRST, writes)
    return ordering


def tell(ordering: Ordering, old: np.ndarray, new: np.ndarray, barrier: object = "barrier") -> None:
    ordering.tell(barrier, old)
    ordering.hear(barrier, new)


@pytest.mark.parametrize("unit", [1, 2])
def test_a_barrier_orders_what_warps_write_and_read(unit: int) -> None:
    ordering = Ordering(256, 96, unit)
    ordering.touch(AT, 2, FIRST, True)
    with pytest.raises(Fault, match="another warp has written"):
        ordering.touch(AT, 2, SECOND, False)
    tell(ordering, FIRST, SECOND)
    ordering.touch(AT, 2, SECOND, False)
    with pytest.raises(Fault, match="another warp has read"):
        ordering.touch(AT, 2, FIRST, True)
    tell(ordering, SECOND, FIRST)
    ordering.touch(AT, 2, FIRST, True)


def test_reads_bytes_of_others_and_atomics_need_no_order() -> None:
    ordering = touched(False)
    ordering.touch(AT, 2, SECOND, False)
    ordering.touch(AT + 64, 2, SECOND, True)
    ordering.touch(AT + 128, 2, FIRST, True, atomic=True)
    ordering.touch(AT + 128, 2, SECOND, True, atomic=True)
    with pytest.raises(Fault):
        ordering.touch(AT + 128, 2, FIRST, True)


def test_a_fence_before_an_arrival_orders_what_another_warp_starts() -> None:
    ordering = touched(False)
    ordering.fence(FIRST)
    tell(ordering, FIRST[:1], SECOND[:1])
    ordering.start(PLACES, 32, True)


def test_a_fence_behind_an_arrival_does_not() -> None:
    ordering = touched(False)
    ordering.tell("ring", FIRST[:1])
    ordering.fence(FIRST)
    ordering.hear("ring", SECOND[:1])
    with pytest.raises(Fault, match="no arrival and proxy fence"):
        ordering.start(PLACES, 32, True)


def test_a_fence_of_the_thread_that_starts_the_access_does_once_it_knows() -> None:
    ordering = touched(True)
    ordering.fence(SECOND)
    with pytest.raises(Fault, match="written before"):
        ordering.start(PLACES, 32, False)
    tell(ordering, FIRST, SECOND)
    with pytest.raises(Fault, match="written before"):
        ordering.start(PLACES, 32, True)
    ordering.fence(SECOND)
    ordering.start(PLACES, 32, False)


def test_reads_need_no_fence_before_reads_and_other_bytes_none_at_all() -> None:
    ordering = touched(False)
    ordering.start(PLACES, 32, False)
    ordering.start(PLACES + 64, 32, True)


def test_what_one_warp_knows_goes_on_to_those_it_tells() -> None:
    ordering = touched(True)
    ordering.fence(FIRST)
    tell(ordering, FIRST, SECOND, 1)
    tell(ordering, SECOND, THIRD, 2)
    ordering.start(PLACES, 64, False)


def test_what_the_copy_engine_writes_is_read_by_those_that_wait_for_it() -> None:
    ordering = Ordering(256, 96)
    ordering.arrive(PLACES, "full")
    with pytest.raises(Fault):
        ordering.touch(AT, 2, FIRST, False)
    with pytest.raises(Fault):
        ordering.start(PLACES, 0, False)
    ordering.hear("full", FIRST)
    ordering.touch(AT, 2, FIRST, False)
    ordering.start(PLACES, 0, False)


def test_what_units_read_is_written_once_they_have_ended() -> None:
    ordering = Ordering(256, 96)
    ordering.end(PLACES, 0)
    with pytest.raises(Fault, match="by a matrix unit"):
        ordering.touch(AT, 2, SECOND, True)
    with pytest.raises(Fault):
        ordering.start(PLACES, 32, True)
    tell(ordering, FIRST, SECOND)
    ordering.start(PLACES, 32, True)
    ordering.touch(AT, 2, SECOND, True)
