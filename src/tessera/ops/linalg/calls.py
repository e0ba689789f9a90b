"""Prepared calls of products, remembered by what tells one kind of call from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tessera.errors import TesseraError, caller_location

_Call = TypeVar("_Call")

MOST_CALLS = 4096
"""Kinds of calls that are remembered: a program with ever new shapes must not grow without bound."""


def remembered(calls: dict[Any, _Call], key: Any, make: Callable[[], _Call]) -> _Call:
    """Prepare a call of a new kind, and remember it by its key; errors name the caller's line."""
    try:
        call = make()
    except TesseraError as error:
        raise error.at(caller_location()) from error.__cause__
    if len(calls) >= MOST_CALLS:
        calls.clear()
    calls[key] = call
    return call
