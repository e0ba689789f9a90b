"""Checks of JSON against declared shapes: what a file says is checked in every field before anything relies on it.

A check takes where a value stands and the value, and returns it as the program wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from tessera.errors import TesseraError

DAMAGED = "give a file that .save() wrote, or compile the kernel again"

_WHAT = "the artefact is damaged: "

T = TypeVar("T")
Check = Callable[[str, Any], Any]


class ArtifactError(TesseraError):
    """A saved artefact cannot be read."""

    default_code = "bad-artifact"

    @property
    def what(self) -> str:
        """What is wrong, for texts that are no artefact."""
        return self.message.removeprefix(_WHAT)


def wrong(where: str, what: str) -> ArtifactError:
    """Return the error for a value that no compiler wrote."""
    return ArtifactError(f"{_WHAT}{where} {what}", help=DAMAGED)


def text(where: str, value: Any) -> str:
    """Check for a text."""
    if type(value) is not str:
        raise wrong(where, f"is {value!r:.60}, no text")
    return value


def flag(where: str, value: Any) -> bool:
    """Check for a bool."""
    if type(value) is not bool:
        raise wrong(where, f"is {value!r:.60}, not true or false")
    return value


def anything(where: str, value: Any) -> Any:
    """Take any value: facts for people, which nothing relies on."""
    return value


def whole(low: int, high: int = 2**63 - 1) -> Check:
    """Return a check for an integer in a range."""

    def check(where: str, value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise wrong(where, f"is {value!r:.60}, not an integer from {low} to {high}")
        return value

    return check


def one_of(*values: str) -> Check:
    """Return a check for one of some texts."""

    def check(where: str, value: Any) -> str:
        if type(value) is not str or value not in values:
            raise wrong(where, f"is {value!r:.60}, none of {', '.join(values)}")
        return value

    return check


def many(item: Check) -> Check:
    """Return a check for a list, which becomes a tuple."""

    def check(where: str, value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise wrong(where, f"is {value!r:.60}, no list")
        parts = cast("list[Any]", value)
        return tuple(item(f"{where}[{place}]", part) for place, part in enumerate(parts))

    return check


def pair(first: Check, second: Check) -> Check:
    """Return a check for a list of two."""

    def check(where: str, value: Any) -> tuple[Any, Any]:
        if type(value) is not list or len(cast("list[Any]", value)) != 2:
            raise wrong(where, f"is {value!r:.60}, no pair")
        return first(f"{where}[0]", value[0]), second(f"{where}[1]", value[1])

    return check


def table(item: Check) -> Check:
    """Return a check for an object with any names."""

    def check(where: str, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise wrong(where, f"is {value!r:.60}, no object")
        return {name: item(f"{where}.{name}", part) for name, part in cast("dict[str, Any]", value).items()}

    return check


def record(make: Callable[..., T], fields: Mapping[str, Check]) -> Callable[[str, Any], T]:
    """Return a check for an object with exactly these fields."""

    def check(where: str, value: Any) -> T:
        found = table(anything)(where, value)
        if found.keys() != fields.keys():
            missing, unknown = sorted(fields.keys() - found.keys()), sorted(found.keys() - fields.keys())
            what = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r}, which is unknown"
            raise wrong(where, what)
        return make(**{name: one(f"{where}.{name}", found[name]) for name, one in fields.items()})

    return check
