"""Source locations: a file position with the chain of call sites that led to it."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field


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
