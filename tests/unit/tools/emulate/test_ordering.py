"""In which order warps and other units touch shared memory."""

import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault
from tessera.tools.emulate.ordering import Ordering
from tests.unit.tools.emulate.running import run

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


def test_of_device_memory_the_warps_of_one_program_are_looked_at() -> None:
    ordering = Ordering(0, 128, device=(256, 1), warps=2)
    ordering.touch(AT, 2, FIRST, True, device=True)
    ordering.touch(AT, 2, THIRD, True, device=True)
    ordering.touch(AT + 64, 2, FIRST, True, device=True)
    with pytest.raises(Fault, match="another warp has written"):
        ordering.touch(AT + 64, 2, SECOND, False, device=True)


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


def test_threads_with_copies_of_a_tile_may_all_store_it() -> None:
    body = """
        mov.b32 %r1, buffer; and.b32 %r2, %r0, 31; shl.b32 %r3, %r2, 2; add.s32 %r3, %r1, %r3; setp.lt.u32 %p1, %r0, 32;
        @%p1 st.shared.b32 [%r3], %r2; @!%p1 st.shared.b32 [%r3], %r2; bar.sync 0; ld.shared.b32 %r9, [%r3];
    """
    assert run(body, [], {"%r9": np.uint32}, threads=64)[0].tolist() == 2 * list(range(32))


@pytest.mark.parametrize(("threads", "missing"), [(128, ""), (128, "first"), (128, "second"), (32, "first")])
def test_programs_without_a_barrier_stop(threads: int, missing: str) -> None:
    between = {"first": "", "second": "bar.sync 0;"}.get(missing, "bar.sync 0;")
    behind = "" if missing == "second" else "bar.sync 0;"
    body = f"""
        mov.b32 %r1, buffer; shl.b32 %r2, %r0, 2; add.s32 %r3, %r1, %r2; st.shared.b32 [%r3], %r0; {between}
        xor.b32 %r4, %r2, {4 * threads - 4}; add.s32 %r4, %r4, %r1; ld.shared.b32 %r9, [%r4]; {behind}
        st.shared.b32 [%r3], %r9;
    """
    if missing and threads > 32:
        with pytest.raises(Fault, match="nothing orders the two"):
            run(body, [], {"%r9": np.uint32}, threads=threads)
    else:
        assert run(body, [], {"%r9": np.uint32}, threads=threads)[0].tolist() == list(range(threads))[::-1]
