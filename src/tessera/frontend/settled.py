"""What values are made of, and whether Python's operators on them run code of the program.

A value is known by a text only as far as Python itself decides what is done with it: by the classes that it is made
from, at any depth, and by operators that none of the program's classes defines.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum, IntEnum, ReprEnum, StrEnum
from types import EllipsisType
from typing import Any, cast

from tessera.frontend.exact import is_number_of_numpy
from tessera.numerics.dtypes import DType

PLAIN: dict[type[Any], Callable[[Any], str]] = {
    int: hex,  # of any length
    bool: repr,
    str: str.__repr__,
    bytes: bytes.__repr__,
    range: repr,
    DType: repr,
    type(None): repr,
    EllipsisType: repr,
    float: lambda value: struct.pack("<d", value).hex(),
    complex: lambda value: struct.pack("<dd", value.real, value.imag).hex(),
}
"""How values are written that are nothing but what they say. Subclasses are written by it, too."""
CONTAINERS = (tuple, list, dict, set, frozenset)

_SHOWING = ("__str__", "__repr__", "__format__")
_OPERATORS = (
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__bool__",
    "__len__",
    "__length_hint__",
    "__getitem__",
    "__missing__",
    "__contains__",
    "__iter__",
    "__reversed__",
    "__buffer__",
    "__int__",
    "__float__",
    "__complex__",
    "__index__",
    "__abs__",
    "__round__",
    "__floor__",
    "__ceil__",
    "__trunc__",
    "__neg__",
    "__pos__",
    "__invert__",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__matmul__",
    "__rmatmul__",
    "__truediv__",
    "__rtruediv__",
    "__floordiv__",
    "__rfloordiv__",
    "__mod__",
    "__rmod__",
    "__divmod__",
    "__rdivmod__",
    "__pow__",
    "__rpow__",
    "__and__",
    "__rand__",
    "__or__",
    "__ror__",
    "__xor__",
    "__rxor__",
    "__lshift__",
    "__rlshift__",
    "__rshift__",
    "__rrshift__",
)
_OF_TEXTS = tuple(name for name in vars(str) if not name.startswith("_"))
_ENUMS = (Enum, ReprEnum, IntEnum, StrEnum)
_KNOWN = frozenset((*PLAIN, *CONTAINERS, *_ENUMS, object, type))
"""Classes whose operators give what follows from the values."""
_TRIES = 8


def is_ours(kind: Any) -> bool:
    """Return whether a class is Tessera's own."""
    return str(getattr(kind, "__module__", "")).partition(".")[0] == "tessera"


def is_record(value: Any) -> bool:
    """Return whether a value is one of Tessera's own frozen dataclasses, such as a numeric policy."""
    kind = cast("type[Any]", type(value))
    return is_ours(kind) and is_dataclass(kind)


def base_of(kind: type[Any]) -> type[Any] | None:
    """Return the plain class or container that a class is made from, None where there is none."""
    return next((one for one in kind.__mro__ if one in PLAIN or one in CONTAINERS), None)


def parts_of(value: Any, base: type[Any]) -> list[Any]:
    """Return the members of a container, of a dictionary its keys and values in turn, as they are now.

    Raises:
        RuntimeError: other threads change it all the time.
    """
    read = dict[Any, Any].items if base is dict else cast("Any", base).__iter__
    members: list[Any] = _snapshot(lambda: read(value))
    return [part for item in members for part in item] if base is dict else members


def _snapshot(read: Callable[[], Iterable[Any]]) -> list[Any]:
    for _ in range(_TRIES):
        with suppress(RuntimeError):  # another thread has changed it meanwhile
            return list(read())
    raise RuntimeError("it changes all the time")


def is_used_as_it_is(kind: type[Any], base: type[Any]) -> bool:
    """Return whether kernels can take a value of a class as one of its base: a number, a text, or a tuple of sizes."""
    return kind is base or not _defines(kind, (*_OPERATORS, *(_OF_TEXTS if base is str else ())))


def is_settled(value: Any, shown: bool = False) -> bool:
    """Return whether operators on a value run no code of the program: what they give follows from the value's text.

    Args:
        value: the value.
        shown: whether it is made a text.
    """
    left, seen = [value], dict[int, Any]()
    names = (*_OPERATORS, *(_SHOWING if shown else ()))
    while left:
        one = left.pop()
        kind = cast("type[Any]", type(one))
        if kind in PLAIN or is_number_of_numpy(one) or is_record(one) or id(one) in seen:
            continue
        seen[id(one)] = one
        if kind not in CONTAINERS and _defines(kind, names):
            return False
        base = base_of(kind)
        if base in CONTAINERS:
            left += parts_of(one, base)
    return True


def _defines(kind: type[Any], names: Iterable[str]) -> bool:
    """Return whether a class, or one above it, defines one of these names by code of the program."""
    return any(_is_own(kind, name) for name in names)


def _is_own(kind: type[Any], name: str) -> bool:
    definer = next((one for one in kind.__mro__ if name in vars(one)), object)
    if definer in _KNOWN or is_ours(definer):
        return False
    # Python copies some into each enumeration.
    copied = issubclass(kind, Enum) and any(vars(one).get(name) is vars(definer)[name] for one in (*_ENUMS, *PLAIN))
    return not copied
