"""When two compile-time values are the same: of one type and one value, all the way down.

Python's equality is not that: `1 == 1.0 == True`, `0.0 == -0.0` and `nan != nan`, while each of them compiles to code
of its own.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import EllipsisType, MemberDescriptorType
from typing import Any, cast
from weakref import WeakKeyDictionary

from tessera.errors import LanguageError, shown
from tessera.numerics.dtypes import DType

_BY_VALUE = frozenset({int, bool, str, bytes, type(None), EllipsisType, DType})
"""Types whose equal values are the same."""

_DEFINED_IN_PYTHON = 1 << 9
"""The flag of classes that class statements make."""


class _Same:
    """Stands for one object, which it keeps alive; nothing else is the same."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def exact(value: Any) -> Hashable:
    """Return a key that is equal for the same value only.

    Numbers, strings, dtypes, tuples and frozen dataclasses are the same when their types and parts are; any other
    object is the same as itself only, whatever its own `==` says.

    Raises:
        LanguageError: `nesting-depth` for a value that holds itself, or hundreds of levels.
    """
    try:
        return _exact(value)
    except RecursionError:
        raise LanguageError(
            f"{shown(value)} is nested too deeply, or holds itself",
            code="nesting-depth",
            help="a compile-time value has a few dozen levels",
        ) from None


def _exact(value: Any) -> Hashable:
    kind = cast("type[Any]", type(value))
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:
        return kind, struct.pack("<d", value)
    if kind is complex:
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(_exact(part) for part in value)
    base = next((one for one in kind.__mro__ if not one.__flags__ & _DEFINED_IN_PYTHON), object)
    if base is tuple or base is frozenset:
        # A set of the same members may have another order, and a kernel can see it.
        return kind, tuple(_exact(part) for part in cast("Any", base).__iter__(value)), _attributes(value, kind)
    if is_number_of_numpy(value):
        number: Any = value
        return kind, number.dtype.str, number.tobytes()
    if base is object and is_dataclass(value) and not isinstance(value, type) and _is_frozen(kind):
        parts = tuple((field.name, _exact(getattr(value, field.name, None))) for field in fields(value))
        return kind, parts, _attributes(value, kind)
    return _Same(value)


def is_number_of_numpy(value: object) -> bool:
    """Return whether a value is a NumPy scalar, which kernels see as the Python number; does not import NumPy."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and issubclass(type(value), numpy.generic)


def _is_frozen(kind: Any) -> bool:
    return bool(kind.__dataclass_params__.frozen)


def _attributes(value: Any, kind: type[Any]) -> tuple[Hashable, ...]:
    """Return all that an object holds, fields or not, such as an attribute that its `__post_init__` set."""
    held: dict[str, Any] = getattr(value, "__dict__", {})
    found = [(name, _exact(held[name])) for name in sorted(held)]
    for name, slot in _slots_of(kind):
        with suppress(AttributeError):  # it has no value yet
            found.append((name, _exact(slot.__get__(value, kind))))
    return tuple(found)


def _slots_of(kind: type[Any]) -> tuple[tuple[str, MemberDescriptorType], ...]:
    found = _slots.get(kind)
    if found is None:
        held = [item for one in kind.__mro__ for item in vars(one).items()]
        found = _slots[kind] = tuple((name, slot) for name, slot in held if isinstance(slot, MemberDescriptorType))
    return found


_slots: WeakKeyDictionary[type[Any], tuple[tuple[str, MemberDescriptorType], ...]] = WeakKeyDictionary()


def same(left: Any, right: Any) -> bool:
    """Return whether two compile-time values are of one type and one value."""
    return left is right or exact(left) == exact(right)
