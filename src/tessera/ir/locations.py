"""Conversion between `errors.Location` and xDSL's location attributes.

A frame becomes `loc("gemm#27"("gemm.py":12:11))`: the name holds the function and the end column.
"""

from __future__ import annotations

from functools import lru_cache

from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    LocationAttr,
    NameLoc,
)
from xdsl.ir import Attribute, Operation

from tessera.errors import Frame, Location
from tessera.ir.attributes import number, text


def _frame_loc(frame: Frame) -> LocationAttr:
    position = FileLineColLoc(text(frame.file), number(frame.line), number(frame.column))
    return NameLoc(text(f"{frame.function}#{frame.end_column}"), position)


@lru_cache(maxsize=1024)  # the ops of a line have one location
def to_loc(location: Location | None) -> LocationAttr:
    """Return the xDSL attribute of `location`."""
    if location is None:
        return UNKNOWN_LOC
    loc = _frame_loc(location.frame)
    for caller in location.callers:
        loc = CallSiteLoc(loc, _frame_loc(caller))
    return loc


def _frame_of(loc: Attribute, function: str = "", end: int = 0) -> Frame | None:
    if isinstance(loc, NameLoc):
        name, _, column = loc.desc.data.rpartition("#")
        return _frame_of(loc.location, name, int(column) if column.isdigit() else 0)
    if isinstance(loc, FileLineColLoc):
        return Frame(loc.filename.data, loc.line.data, loc.column.data, end, function)
    return None


def from_loc(loc: Attribute) -> Location | None:
    """Return the location of an xDSL attribute, or None when it is unknown."""
    if isinstance(loc, FusedLoc):
        parts = [from_loc(part) for part in loc.locations.data]  # pyright: ignore
        return next((part for part in parts if part is not None), None)
    if isinstance(loc, CallSiteLoc):
        callee, caller = from_loc(loc.callee), from_loc(loc.caller)
        return callee.inside(caller) if callee and caller else callee or caller
    frame = _frame_of(loc)
    return None if frame is None else Location(frame)


def location_of(op: Operation) -> Location | None:
    """Return where in the user's source `op` came from."""
    return from_loc(op.location)
