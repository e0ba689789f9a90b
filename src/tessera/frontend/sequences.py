"""What of Python takes tuples whole: `len`, `tuple`, `enumerate`, `zip` and `reversed`, whatever their elements are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tessera.errors import LanguageError
from tessera.frontend.expressions import is_runtime
from tessera.frontend.values import StaticRangeSpec

_ALWAYS: tuple[Callable[..., Any], ...] = (enumerate, zip, reversed)
"""They give iterators, which are tuples here."""
_OF_TUPLES: tuple[Callable[..., Any], ...] = (len, tuple)
"""Of compile-time values of other types they are computed as other functions are."""


def sequence_call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[Any] | None:
    """Return what one of these functions gives, alone in a tuple; None for other functions, or what is no tuple.

    Raises:
        LanguageError: `bad-call` where Python refuses the arguments, as `zip(…, strict=True)` of two sizes.
    """
    iterates = any(function is known for known in _ALWAYS)
    if not iterates and not any(function is known for known in _OF_TUPLES):
        return None
    parts = [_parts(arg) for arg in args]
    takes = parts[:1] if function is enumerate else parts
    others = [arg for arg, part in zip(args, parts, strict=True) if part is None]
    if not args or any(part is None for part in takes) or any(map(is_runtime, [*others, *kwargs.values()])):
        return None
    given = [arg if part is None else part for arg, part in zip(args, parts, strict=True)]
    try:
        found = function(*given, **kwargs)
        return (tuple(found) if iterates else found,)
    except (TypeError, ValueError) as error:
        name, text = function.__name__, str(error)
        raise LanguageError(
            text if text.startswith(name) else f"{name}: {text}",
            code="bad-call",
            help="it takes tuples and compile-time numbers",
        ) from None


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Return the elements of what a loop at compile time runs over, None for anything else."""
    if isinstance(value, StaticRangeSpec):
        return tuple(value.values)
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else None
