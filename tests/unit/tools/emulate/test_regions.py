"""Branches at which threads of a warp part, and whether only these lead to the blocks in between."""

import numpy as np
import pytest

from tessera.tools.emulate.errors import Fault
from tests.unit.tools.emulate.running import run

TID = np.arange(32, dtype=np.uint32)

MEETING = {
    "one side": "setp.lt.u32 %p1, %r0, 9; @%p1 bra END; add.u32 %r2, %r2, 1; END: add.u32 %r2, %r2, 1;",
    "two sides": """
        setp.lt.u32 %p1, %r0, 9; @%p1 bra A; add.u32 %r2, %r2, 1; bra END;
        A: add.u32 %r2, %r2, 2; END: add.u32 %r2, %r2, 1;""",
    "in each other": """
        setp.lt.u32 %p1, %r0, 9; @%p1 bra A; setp.lt.u32 %p2, %r0, 20; @%p2 bra A; add.u32 %r2, %r2, 1;
        A: add.u32 %r2, %r2, 1;""",
    "a loop with two exits": """
        LOOP: add.u32 %r2, %r2, 1; setp.gt.u32 %p1, %r2, %r0; @%p1 bra END;
        add.u32 %r2, %r2, 3; setp.lt.u32 %p2, %r2, 20; @%p2 bra LOOP; END: add.u32 %r2, %r2, 1;""",
    "ends": "setp.lt.u32 %p1, %r0, 9; @%p1 bra A; add.u32 %r2, %r2, 1; ret; A: add.u32 %r2, %r2, 2; ret;",
    "crossing, all threads one way": """
        setp.lt.u32 %p1, %r3, 9; @%p1 bra A; setp.lt.u32 %p2, %r0, 99; @%p2 bra TAIL; bra END;
        A: setp.lt.u32 %p3, %r0, 5; @%p3 bra TAIL; bra END; TAIL: add.u32 %r2, %r2, 1; END: add.u32 %r2, %r2, 1;""",
}
CROSSING = MEETING["crossing, all threads one way"].replace("99", "9")
TOGETHER = " bar.warp.sync 0xffffffff; "


@pytest.mark.parametrize("name", MEETING)
def test_regions_of_one_entry_are_right(name: str) -> None:
    run(MEETING[name], [TID, TID + 100], {"%r2": np.uint32})


def test_a_region_that_two_branches_enter_is_found() -> None:
    with pytest.raises(Fault, match="part in line 22 and may not meet"):
        run(CROSSING + TOGETHER, [TID, TID, np.full(32, 100, np.uint32)], {"%r2": np.uint32})


@pytest.mark.parametrize("before", ["", TOGETHER])
def test_threads_that_never_have_to_be_together_may_part(before: str) -> None:
    run(before + CROSSING, [TID, TID, np.full(32, 100, np.uint32)], {"%r2": np.uint32})


def test_threads_that_part_in_a_loop_have_to_be_together_before_the_branch_again() -> None:
    again = f"LOOP: {TOGETHER} {CROSSING} setp.lt.u32 %p4, %r2, 0; @%p4 bra LOOP;"
    with pytest.raises(Fault, match="may not meet"):
        run(again, [TID, TID, np.full(32, 100, np.uint32)], {"%r2": np.uint32})
