"""Source locations survive attributes and text, with function, end column and call chain."""

from __future__ import annotations

import io

from xdsl.dialects.builtin import ArrayAttr, FusedLoc, ModuleOp, NoneAttr
from xdsl.parser import Parser
from xdsl.printer import Printer

from tessera.errors import Frame, Location
from tessera.ir.collect import new_context
from tessera.ir.locations import from_loc, location_of, to_loc
from tessera.ir.tile.elementwise import ConstantOp
from tessera.ir.types import index

INNER = Frame("a/helpers.py", 3, 5, 20, "scale")
OUTER = Frame("a/gemm.py", 12, 11, 27, "gemm")
TOP = Frame("a/main.py", 40, 1, 0, "")


def test_frames_and_callers_survive() -> None:
    location = Location(INNER, (OUTER, TOP))
    assert from_loc(to_loc(location)) == location


def test_no_location_stays_none() -> None:
    assert from_loc(to_loc(None)) is None
    assert location_of(ConstantOp(1, index)) is None


def test_a_fused_location_gives_its_first_known_part() -> None:
    assert from_loc(FusedLoc(ArrayAttr([to_loc(None), to_loc(Location(INNER))]), NoneAttr())) == Location(INNER)


def test_locations_survive_text() -> None:
    op = ConstantOp(1, index)
    op.location = to_loc(Location(INNER, (OUTER,)))
    out = io.StringIO()
    Printer(out, print_debuginfo=True).print_op(ModuleOp([op]))
    again = Parser(new_context(), out.getvalue()).parse_module()
    assert location_of(next(iter(again.ops))) == Location(INNER, (OUTER,))
