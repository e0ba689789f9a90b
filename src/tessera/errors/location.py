"""Source locations: a file position with the chain of call sites that led to it."""

from __future__ import annotations

import linecache
import sys
from dataclasses import field
from itertools import islice
from types import CodeType, FrameType, TracebackType

from tessera.data import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One position in the user's source.

    Args:
        file: path of the source file, as Python reports it.
        line: 1-based line.
        column: 1-based column of the first character.
        end_column: 1-based column after the last character on that line (0 when unknown).
        function: name of the function the position is in.
    """

    file: str
    line: int
    column: int = 1
    end_column: int = 0
    function: str = ""

    def source(self) -> str:
        """Return the text of the line, or an empty string when the file cannot be read."""
        return linecache.getline(self.file, self.line).rstrip("\n")

    def short(self) -> str:
        """Return `file.py:12:3`, with the file's base name."""
        return f"{self.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Location:
    """A source position and the call sites around it.

    Args:
        frame: the innermost position.
        callers: call sites, innermost first (helpers are inlined, so each keeps its own frame).
    """

    frame: Frame
    callers: tuple[Frame, ...] = field(default=())

    def inside(self, call_site: Location) -> Location:
        """Return this location as seen from `call_site`, which called the function it is in."""
        return Location(self.frame, (*self.callers, call_site.frame, *call_site.callers))

    def __str__(self) -> str:
        return self.frame.short()


_NOT_THE_CALLER = frozenset({"tessera", "xdsl", "typing", "functools", "contextlib"})


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_CALLER


def _running(code: CodeType, instruction: int, line: int) -> Location:
    """Return the location of an instruction of a Python function."""
    positions = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    first, last, start, end = positions
    if first is None or start is None or end is None:  # compiled without positions
        return Location(Frame(code.co_filename, line, function=code.co_name))
    text = Frame(code.co_filename, first).source()
    columns = [len(text.encode()[:offset].decode(errors="ignore")) + 1 for offset in (start, end)]
    end_column = columns[1] if first == last else len(text) + 1
    return Location(Frame(code.co_filename, first, columns[0], end_column, code.co_name))


def caller_location() -> Location:
    """Return where the user's code called into Tessera: the nearest Python frame outside the package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and not _is_users(frame):
        frame = frame.f_back
    return _running(frame.f_code, frame.f_lasti, frame.f_lineno)


def raised_from(traceback: TracebackType | None) -> Location | None:
    """Return the line of the user's program through which an exception came, None when there is none."""
    found: TracebackType | None = None
    while traceback is not None:
        if _is_users(traceback.tb_frame):
            found = traceback
        traceback = traceback.tb_next
    return None if found is None else _running(found.tb_frame.f_code, found.tb_lasti, found.tb_lineno)
