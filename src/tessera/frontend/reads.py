"""What a compilation reads of the program around it: names, attributes and items, with the values that it found.

Code depends on every global, closure variable, class attribute, default and helper that the front end came across, by
whatever way. So the front end reports each of them here, by its *path* from the kernel, such as `name CONFIG`,
`attribute scale`. A later process follows the same paths and compares what stands there now, which needs no compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from numbers import Number
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

from tessera.digest import sha256
from tessera.errors import LanguageError
from tessera.frontend.exact import is_number_of_numpy
from tessera.frontend.function import DeviceFunction
from tessera.frontend.generated import Generated
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


def attribute_of(owner: object, name: str) -> object:
    """Return an attribute as it is now, `ABSENT` where there is none, or where code of the program raises."""
    try:
        return getattr(owner, name, ABSENT)
    except Exception:
        return ABSENT


def _item_of(owner: Any, key: str | int) -> object:
    base = base_of(cast("type[Any]", type(owner)))
    read = cast("Any", base).__getitem__ if base in (list, dict) else None
    try:
        return ABSENT if read is None else read(owner, key)
    except Exception:  # keys compare by code of the program
        return ABSENT


def _steps_to(parts: list[Any], base: type[Any]) -> list[Step]:
    """Return the step to each member of a container, by its key where it has one."""
    steps: list[Step] = [("item", place) for place in range(len(parts))]
    if base in (list, tuple):
        return [("key", place) for place in range(len(parts))]
    if base is dict:
        for place in range(1, len(parts), 2):
            key = parts[place - 1]
            if type(key) is int or type(key) is str:
                steps[place] = ("key", key)
    return steps


def is_written(value: Any) -> bool:
    """Return whether a value is a number, a text or a tuple of them, which messages can show."""
    if type(value) is tuple:
        return all(type(part) in PLAIN for part in cast("tuple[Any, ...]", value))
    return type(value) in PLAIN or is_number_of_numpy(value)


def _is_opaque(value: Any) -> bool:
    """Return whether nothing of an object counts but what is read of it by name."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, ModuleType | type):
        return True
    known = issubclass(kind, Enum | DeviceFunction | FunctionType | BuiltinFunctionType)
    return not (known or is_number_of_numpy(value) or is_record(value) or base_of(kind))


class Reads:
    """The record of one compilation, or of a look-up of one.

    Args:
        roots: where paths start: objects by label.
        lines: whether the place of functions in their files counts.
        contents: whether what lists, dictionaries and sets hold counts.
    """

    def __init__(self, roots: Mapping[str, object], *, lines: bool = True, contents: bool = True) -> None:
        self._lines = lines
        self._contents = contents
        self.complete = True
        """Whether all that was read can be told from outside; else the code must not outlive the process."""
        self._objects: dict[Path, object] = {}
        self._places: dict[int, Path] = {}
        self._texts: dict[Path, str] = {}
        self._values: dict[Path, object] = {}
        self._lookups: dict[Path, Callable[[str], Any]] = {}
        self.roots = "\0".join(self._told(((label, 0),), value) for label, value in roots.items())
        """What stands for the roots."""

    # What the front end reports

    def name(self, function: FunctionType, name: str, value: object) -> None:
        """Note the value of a name that a function does not bind itself."""
        self._read(function, ("name", name), value)

    def attribute(self, owner: Any, name: str, value: object) -> None:
        """Note the value of an attribute."""
        if type(owner) not in PLAIN and not is_number_of_numpy(owner) and not is_record(owner):
            self._read(owner, ("attribute", name), value)

    def item(self, owner: Any, key: Any, value: object) -> None:
        """Note the value of an item of a container, whose other items may change."""
        kind = cast("type[Any]", type(owner))
        keys = [getattr(key, name) for name in ("start", "stop", "step")] if type(key) is slice else [key]
        self._settle(*keys, *(() if kind in CONTAINERS else (owner,)))
        place = self._places.get(id(owner))
        if place is None or base_of(kind) not in (list, dict):
            return
        if type(key) is int or type(key) is str:
            self._note((*place, ("key", key)), value)
        else:
            self._whole(owner)

    def operands(self, *values: object, shown: bool = False) -> None:
        """Note that Python itself computes with values, or makes a text of them."""
        self._settle(*values, shown=shown)
        for value in values:
            self._whole(value)

    def _settle(self, *values: object, shown: bool = False) -> None:
        if self.complete and not all(is_settled(value, shown) for value in values):
            self.complete = False

    def _whole(self, value: object) -> None:
        """Note that all of a container is used, or of those in one that the kernel makes."""
        work, seen = [value], set[int]()
        while work:
            one = work.pop()
            base, place = base_of(type(one)), self._places.get(id(one))
            if base not in CONTAINERS or id(one) in seen:
                continue
            seen.add(id(one))
            if place is not None:
                self._note((*place, ("whole", 0)), one)
            else:
                work += parts_of(one, base)

    def _read(self, owner: object, step: Step, value: object) -> None:
        place = self._places.get(id(owner))
        if place is None:  # made while compiling, by code of the program
            self.complete = False
        else:
            self._note((*place, step), value)

    def _note(self, path: Path, value: object) -> None:
        if path in self._values and self._values[path] is value:
            return
        text = self._told(path, value)
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
            return attribute_of(owner, str(name))
        if kind == "key":
            return _item_of(owner, name)
        if kind == "whole":
            return owner
        if kind != "name" or not isinstance(owner, FunctionType):
            return ABSENT
        if parent not in self._lookups:
            self._lookups[parent] = lookup_in(owner)
        try:
            return self._lookups[parent](str(name))
        except KeyError:
            return ABSENT

    def values(self) -> Iterator[tuple[Path, object]]:
        """Yield the values that were read, by path."""
        yield from self._values.items()

    def object_at(self, path: Path) -> object:
        """Return the object that was found first at a path, `ABSENT` where there is none."""
        return self._objects.get(path, ABSENT)

    @staticmethod
    def alone(path: Path, value: object) -> str | None:
        """Return what stands for a value wherever it lies; None for what counts by its attributes or cannot be told.

        Of what may change while it is read in parts, lists and dictionaries, only parts count, which have own paths.
        """
        if value is ABSENT or _is_opaque(value):
            return None
        reads = Reads({"": value}, lines=False, contents=path[-1][0] == "whole")
        return sha256(reads.roots.encode(errors="surrogatepass")).hexdigest() if reads.complete else None

    def digest(self) -> str:
        """Return what stands for the paths and all that was found there."""
        return sha256(repr([*self._texts.items()]).encode()).hexdigest()

    # Texts that stand for values

    def _told(self, path: Path, value: Any) -> str:
        try:
            return self._text(path, value)
        except RecursionError:
            self.complete = False
            return "nested too deeply"

    def _text(self, path: Path, value: Any) -> str:
        kind = cast("type[Any]", type(value))
        if kind in PLAIN:
            return f"{kind.__name__} {PLAIN[kind](value)}"
        if is_number_of_numpy(value):
            return f"{value.dtype.str} {value.tobytes().hex()}"
        if value is ABSENT:
            return "absent"
        if issubclass(kind, Generated):
            return f"{_label(kind)} {cast('Generated', value).digest}"
        if is_record(value):
            parts = [self._text((*path, ("field", one.name)), getattr(value, one.name)) for one in fields(value)]
            return f"{_label(kind)}({', '.join(parts)})"
        if id(value) in self._places:
            return f"same as {self._places[id(value)]}"
        self._places[id(value)] = path
        self._objects[path] = value
        return self._object_text(path, value, kind)

    def _object_text(self, path: Path, value: Any, kind: type[Any]) -> str:
        # By their classes: `isinstance` would ask the objects, which may raise, though nothing reads them.
        if issubclass(kind, DeviceFunction):
            helper = cast("DeviceFunction[Any, Any]", value)
            return f"helper {self._text((*path, ('function', 0)), helper.function)}"
        if kind is FunctionType:
            return self._function_text(path, value)
        if issubclass(kind, ModuleType):
            return f"module {value.__name__}"
        if issubclass(kind, type):
            return f"class {_label(value)}"
        if kind is BuiltinFunctionType and isinstance(getattr(value, "__self__", None), ModuleType | None):
            return f"built-in {_label(value)}"
        return self._data_text(path, value, kind)

    def _data_text(self, path: Path, value: Any, kind: type[Any]) -> str:
        """Return the text of an object by all the classes that it is made from."""
        base, text = base_of(kind), _label(kind)
        if issubclass(kind, Enum):
            text += f".{value._name_} {self._text((*path, ('value', 0)), value._value_)}"
        if base in CONTAINERS:
            text += f"[{self._members_text(path, value, base)}]"
        elif base is not None:
            text += f" of {base.__name__} {PLAIN[base](value)}"
        # Kernels take numbers, texts and tuples for what they are; what is done with other objects is reported.
        used = (tuple, *PLAIN)
        if issubclass(kind, Number) if base is None else base in used and not is_used_as_it_is(kind, base):
            self.complete = False
        return text if base else f"instance of {text}"

    def _members_text(self, path: Path, value: Any, base: type[Any]) -> str:
        if not self._contents and base in (list, dict, set):
            return ""
        try:
            parts = parts_of(value, base)
        except RuntimeError:
            self.complete = False
            return ""
        steps = _steps_to(parts, base)
        return ", ".join(self._text((*path, step), part) for step, part in zip(steps, parts, strict=True))

    def _function_text(self, path: Path, function: FunctionType) -> str:
        given = (function.__defaults__, function.__kwdefaults__)
        defaults = self._text((*path, ("defaults", 0)), given)
        home, code = str(function.__globals__.get("__name__")), function.__code__
        # Of these the compiler's own hash stands for the text. The code says which they are, as others copy names; by
        # name they differ where one code serves many, as all functions of `ts.tile`.
        if home.startswith("tessera.") and code.co_filename.startswith(_HOME):
            return f"{home}.{code.co_qualname} {code.co_firstlineno} {_label(function)} {defaults}"
        try:
            text = text_of(function)
            return f"{_label(function)} {text.digest if self._lines else text.text} {defaults}"
        except LanguageError:  # it cannot be compiled either
            return f"{_label(function)} without text {defaults}"
