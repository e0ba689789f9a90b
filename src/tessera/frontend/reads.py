"""What a compilation reads of the program around it: names, attributes and items, with the values that it found.

Code depends on every global, closure variable, class attribute, default and helper that the front end came across, by
whatever way. So the front end reports each of them here, by its *path* from the kernel, such as `name CONFIG`,
`attribute scale`. A later process follows the same paths and compares what stands there now, which needs no compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from numbers import Number
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

from tessera.digest import sha256
from tessera.errors import LanguageError
from tessera.frontend.exact import is_number_of_numpy
from tessera.frontend.function import DeviceFunction
from tessera.frontend.settled import (
    CONTAINERS,
    PLAIN,
    base_of,
    is_record,
    is_settled,
    is_used_as_it_is,
    parts_of,
)
from tessera.frontend.static_eval import lookup_in
from tessera.frontend.text import text_of

Step = tuple[str, str | int]
Path = tuple[Step, ...]

ABSENT = object()
"""Stands for a name that nothing defines."""


_HOME = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
"""Where Tessera's own files are."""


def _label(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return f"{getattr(value, '__module__', '')}.{name}"


def _fixed_text(value: Any) -> str | None:
    """Return a text that stands for a value, None for an object that is more than its value."""
    kind = cast("type[Any]", type(value))
    if kind in PLAIN:
        return f"{kind.__name__} {PLAIN[kind](value)}"
    if is_number_of_numpy(value):
        return f"{value.dtype.str} {value.tobytes().hex()}"
    if kind in (tuple, list):
        parts = [_fixed_text(part) for part in value]
        return None if None in parts else f"{kind.__name__} {parts}"
    return None


class Reads:
    """The record of one compilation, or of a look-up of one.

    Args:
        roots: where paths start: objects by label.
    """

    def __init__(self, roots: Mapping[str, object]) -> None:
        self.complete = True
        """Whether all that was read can be told from outside; else the code must not outlive the process."""
        self._objects: dict[Path, object] = {}
        self._places: dict[int, Path] = {}
        self._texts: dict[Path, str] = {}
        self._values: dict[Path, object] = {}
        self._lookups: dict[Path, Callable[[str], Any]] = {}
        self.roots = "\0".join(self._text(((label, 0),), value) for label, value in roots.items())
        """What stands for the roots."""

    # What the front end reports

    def name(self, function: FunctionType, name: str, value: object) -> None:
        """Note the value of a name that a function does not bind itself."""
        self._read(function, ("name", name), value)

    def attribute(self, owner: Any, name: str, value: object) -> None:
        """Note the value of an attribute."""
        if type(owner) not in PLAIN and not is_number_of_numpy(owner) and not is_record(owner):
            self._read(owner, ("attribute", name), value)

    def operands(self, *values: object) -> None:
        """Note that Python itself computes with values."""
        if self.complete and not all(map(is_settled, values)):
            self.complete = False

    def _read(self, owner: object, step: Step, value: object) -> None:
        place = self._places.get(id(owner))
        if place is None:  # made while compiling, by code of the program
            self.complete = False
        else:
            self._note((*place, step), value)

    def _note(self, path: Path, value: object) -> None:
        if path in self._values and self._values[path] is value:
            return
        text = self._text(path, value)
        self._values.setdefault(path, value)
        if self._texts.setdefault(path, text) != text:  # it changed meanwhile
            self.complete = False

    # What a look-up follows

    @property
    def paths(self) -> list[Path]:
        """The paths that were read, in order."""
        return list(self._texts)

    def follow(self, paths: Iterable[Path]) -> None:
        """Read what stands at these paths now."""
        for path in paths:
            self._note(path, self._found_at(path))

    def _found_at(self, path: Path) -> object:
        parent, (kind, name) = path[:-1], path[-1]
        owner = self._objects.get(parent, ABSENT)
        if owner is ABSENT:
            return ABSENT
        if kind == "attribute":
            return getattr(owner, str(name), ABSENT)
        if kind != "name" or not isinstance(owner, FunctionType):
            return ABSENT
        if parent not in self._lookups:
            self._lookups[parent] = lookup_in(owner)
        try:
            return self._lookups[parent](str(name))
        except KeyError:
            return ABSENT

    def numbers(self, root: str) -> dict[Path, tuple[str, object]]:
        """Return what stands for each number, text or tuple of them that was read by way of a root, and the value."""
        texts = {path: _fixed_text(value) for path, value in self._values.items() if path[0][0] == root}
        return {path: (text, self._values[path]) for path, text in texts.items() if text is not None}

    def digest(self) -> str:
        """Return what stands for the paths and all that was found there."""
        return sha256(repr([*self._texts.items()]).encode()).hexdigest()

    # Texts that stand for values

    def _text(self, path: Path, value: Any) -> str:
        kind = cast("type[Any]", type(value))
        if kind in PLAIN or is_number_of_numpy(value):
            return str(_fixed_text(value))
        if value is ABSENT:
            return "absent"
        if is_record(value):
            parts = [self._text((*path, ("field", one.name)), getattr(value, one.name)) for one in fields(value)]
            return f"{_label(kind)}({', '.join(parts)})"
        if id(value) in self._places:
            return f"same as {self._places[id(value)]}"
        self._places[id(value)] = path
        self._objects[path] = value
        return self._object_text(path, value, kind)

    def _object_text(self, path: Path, value: Any, kind: type[Any]) -> str:
        if isinstance(value, DeviceFunction):
            helper = cast("DeviceFunction[Any, Any]", value)
            return f"helper {self._text((*path, ('function', 0)), helper.function)}"
        if kind is FunctionType:
            return self._function_text(path, value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, type):
            return f"class {_label(value)}"
        if kind is BuiltinFunctionType and isinstance(getattr(value, "__self__", None), ModuleType | None):
            return f"built-in {_label(value)}"
        return self._data_text(path, value, kind)

    def _data_text(self, path: Path, value: Any, kind: type[Any]) -> str:
        """Return the text of an object by all the classes that it is made from."""
        base, text = base_of(kind), _label(kind)
        if isinstance(value, Enum):
            text += f".{value._name_} {self._text((*path, ('value', 0)), value._value_)}"
        if base in CONTAINERS:
            text += f"[{self._members_text(path, value, base)}]"
        elif base is not None:
            text += f" of {base.__name__} {PLAIN[base](value)}"
        # Kernels take numbers, texts and tuples for what they are; what is done with other objects is reported.
        used = (tuple, *PLAIN)
        if isinstance(value, Number) if base is None else base in used and not is_used_as_it_is(kind, base):
            self.complete = False
        return text if base else f"instance of {text}"

    def _members_text(self, path: Path, value: Any, base: type[Any]) -> str:
        try:
            parts = parts_of(value, base)
        except RuntimeError:
            self.complete = False
            return ""
        return ", ".join(self._text((*path, ("item", place)), part) for place, part in enumerate(parts))

    def _function_text(self, path: Path, function: FunctionType) -> str:
        given = (function.__defaults__, function.__kwdefaults__)
        defaults = self._text((*path, ("defaults", 0)), given)
        home, code = str(function.__globals__.get("__name__")), function.__code__
        # Of these the compiler's own hash stands for the text. A function's `__module__` is not asked: others copy it.
        if home.startswith("tessera.") and code.co_filename.startswith(_HOME):
            return f"{home}.{code.co_qualname} {code.co_firstlineno} {defaults}"
        try:
            return f"{_label(function)} {text_of(function).digest} {defaults}"
        except LanguageError:  # it cannot be compiled either
            return f"{_label(function)} without text {defaults}"
