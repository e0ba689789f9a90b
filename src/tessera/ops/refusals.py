"""Typed errors for wrong arguments of library ops, looked for once something has failed, so that calls cost nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Real
from operator import index
from traceback import walk_tb
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tessera.errors import CallError, caller_location
from tessera.ops import arrays
from tessera.ops.traced import Traced, joined, traced_among

_P = ParamSpec("_P")
_R = TypeVar("_R")

WRONG_ARGUMENT = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What Python and NumPy raise for wrong arguments."""

_MISFITS = (ValueError, IndexError, OverflowError)
"""Those of them that arguments of the right types raise when they do not go together."""


def refused(message: str, code: str, help: str) -> CallError:
    """Return an error with the caller's place."""
    return CallError(message, code=code, location=caller_location(), help=help)


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function refuse what its annotations do not take by a `CallError`."""

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            if traced_among(args) is not None or traced_among((*kwargs.values(),)) is not None:
                whole = joined((*args, *kwargs.values()))
                return cast(Any, function)(*whole[: len(args)], **dict(zip(kwargs, whole[len(args) :], strict=True)))
            return function(*args, **kwargs)
        except WRONG_ARGUMENT as error:
            try:
                given = inspect.signature(function).bind(*args, **kwargs).arguments
            except TypeError:
                raise error from None  # too few or too many, which Python says as well
            refuse(function, given, error)
            raise

    call._is_checked = True  # pyright: ignore[reportAttributeAccessIssue]
    return call


def is_checked(function: Any) -> bool:
    """Return whether `checked` has made a function."""
    return hasattr(function, "_is_checked")


def refuse(function: Callable[..., Any], given: Mapping[str, Any], error: Exception) -> None:
    """Say which argument of a call that failed was wrong; return where none is known to be.

    Args:
        function: what was called. Parameters annotated `Any` take arrays, `None` and numbers.
        given: values by the parameters' names.
        error: what was raised.

    Raises:
        CallError: `bad-argument` or `not-an-array`.
    """
    for name, wanted in _hints(function).items():
        if name in given and not _fits(given[name], wanted, name):
            raise CallError(
                f"{name} is {given[name]!r:.60}",
                code="bad-argument",
                location=caller_location(),
                help=f"it takes {_shown(wanted)}",
            ) from error
    if isinstance(error, _MISFITS) and not _raised_below_ops(error):
        raise CallError(
            f"{function.__name__}: {error}",
            code="bad-argument",
            location=caller_location(),
            help="look at the shapes and values of the arguments",
        ) from error


def _raised_below_ops(error: Exception) -> bool:
    """Return whether an error came from the compiler or the runtime, where it is a fault and not the arguments'."""
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith("tessera.") and not name.startswith("tessera.ops.") for name in names)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(function)
    return {name: hint for name, hint in hints.items() if name not in ("self", "return", "stream")}


def _fits(value: Any, wanted: Any, name: str) -> bool:
    """Return whether a value is what an annotation says."""
    origin, parts = get_origin(wanted), get_args(wanted)
    if wanted is Any:
        if value is not None and not isinstance(value, Real | Traced):
            arrays.view(value, name)
        return True
    if origin in (UnionType, Union):
        return any(_fits(value, part, name) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple and parts[0] is Any:
        return isinstance(value, tuple)
    if origin is tuple:
        items: Any = value
        sizes = parts[:1] * len(items) if isinstance(value, tuple) and parts[-1] is ... else parts
        return (
            isinstance(value, tuple) and len(sizes) == len(items) and all(map(_fits, items, sizes, [name] * len(items)))
        )
    if origin is Sequence:
        return isinstance(value, Sequence) and all(_fits(item, parts[0], name) for item in cast("Sequence[Any]", value))
    if wanted in (int, float):
        return _is_integer(value) if wanted is int else isinstance(value, Real)
    return isinstance(value, NoneType if wanted is None else origin or wanted)


def _is_integer(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return True


def _shown(wanted: Any) -> str:
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted).replace("typing.", "")
