"""What the codes of one kernel agree about: each value of the program around them is the same in all of them.

Values are read when a kind of call is compiled. One that has changed until another kind is compiled would give a kernel
that computes with either, by the strides or the dtype of what it is called with.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, cast
from weakref import WeakKeyDictionary

from tessera.data import dataclass
from tessera.errors import LanguageError, caller_location, shown
from tessera.frontend.function import DeviceFunction
from tessera.frontend.reads import Path, Reads, is_written

Found = tuple[str, str]
"""What stands for a value, and the value as messages show it, "" where they do not."""


@dataclass(slots=True)
class Agreement:
    """What stood for each value of the program around one kernel where it was read first.

    Args:
        first: what was found, by path from the kernel.
    """

    first: dict[Path, Found] = field(default_factory=dict[Path, Found])

    def check(self, kernel: str, reads: Reads) -> None:
        """Check that a compilation has read what others have, and keep what it has read first.

        Args:
            kernel: the kernel's name.
            reads: what the compilation, or what was compiled for the disk cache, has read.

        Raises:
            LanguageError: `changed-constant`.
        """
        new: list[tuple[dict[Path, Found], Path, Found]] = []
        for path, value in reads.values():
            place = self._place_of(path, reads)
            text = None if place is None else reads.alone(path, value)
            if place is None or text is None:
                continue
            table, inner = place
            found = text, shown(value) if is_written(value) else ""
            was = table.get(inner)
            if was is None:
                new.append((table, inner, found))
            elif was[0] != text:
                raise _changed(path, kernel, was[1], found[1])
        for table, inner, found in new:
            table.setdefault(inner, found)

    def _place_of(self, path: Path, reads: Reads) -> tuple[dict[Path, Found], Path] | None:
        """Return where a path's value is kept: what a function in a structure reads is the same in all kernels."""
        if path[0][0] == "kernel":
            return self.first, path
        if path[0][0] == "structures":
            for length in range(1, len(path)):
                function = reads.object_at(path[:length])
                if isinstance(function, DeviceFunction):
                    return _of_functions.setdefault(cast("_Function", function), {}), path[length:]
        return None


_Function = DeviceFunction[Any, Any]
_of_functions: WeakKeyDictionary[_Function, dict[Path, Found]] = WeakKeyDictionary()


def _changed(path: Path, kernel: str, was: str, now: str) -> LanguageError:
    name = ""
    for kind, part in path:
        if kind in ("name", "attribute"):
            name += f".{part}" if name else str(part)
        elif kind == "key":
            name += f"[{part!r}]"
    values = f"{name} was {was} when {kernel} was compiled first, and is {now} now"
    return LanguageError(
        values if was and now else f"{name} has changed since {kernel} was compiled first",
        code="changed-constant",
        location=caller_location(),
        help="pass what changes as an argument or ts.constexpr, or decorate the function again",
    )
