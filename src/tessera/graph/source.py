"""Source text of functions that a graph's replays run, with the objects that it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tessera.graph.runs import Slot

_WRITTEN = (bool, int, str)
"""Types of constants that are written into the text."""


class Source:
    """The text of one function, written line by line.

    Args:
        head: its first line.
    """

    def __init__(self, head: str) -> None:
        self._lines = [head]
        self._names: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    @property
    def line(self) -> int:
        """The number of the last line."""
        return len(self._lines)

    @property
    def text(self) -> str:
        """What has been written."""
        return "\n".join(self._lines) + "\n"

    def add(self, line: str) -> None:
        """Append a line of the function's body."""
        self._lines.append(f"    {line}")

    def name(self, value: Any, stem: str) -> str:
        """Return the name of an object: one for each object, which is kept."""
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = f"{stem}_{len(self._names)}"
            self._names[found] = value
        return found

    def constant(self, value: Any, given: Sequence[str] = ()) -> str:
        """Return the text of a constant, in which names stand in the place of slots."""
        if isinstance(value, Slot):
            return given[value.number]
        if value is None or type(value) in _WRITTEN:
            return repr(value)
        if type(value) is tuple or isinstance(value, list):
            parts = [self.constant(one, given) for one in cast("Sequence[Any]", value)]
            inside = ", ".join(parts)
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(parts) == 1)})"
        return self.name(value, "k")

    def function(self, file: str) -> Callable[..., Any]:
        """Return the function.

        Args:
            file: what tracebacks call the text.
        """
        names = dict(self._names)
        exec(compile(self.text, file, "exec"), names)
        name = self._lines[0].split("(")[0].removeprefix("def ").strip()
        return names[name]
