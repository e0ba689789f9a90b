"""Derivatives of graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast, overload

from tessera.errors import CallError, caller_location, shown

P = ParamSpec("P")
R = TypeVar("R")

_ARGNUMS = "__tessera_argnums__"


@overload
def autodiff(function: Callable[P, R]) -> Callable[P, R]: ...
@overload
def autodiff(*, argnums: int | Sequence[int] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def autodiff(function: Any = None, *, argnums: int | Sequence[int] | None = None) -> Any:
    """Say by which arguments a function is differentiated: a decorator, above or below `ts.jit`.

    Args:
        function: a function of arrays.
        argnums: number of the argument, or numbers of arguments, that `ts.grad` and `ts.value_and_grad` take where they
            are not told; by default the last one, as data come first and weights last: `f(x, y, weights)`.

    Returns:
        A function that computes the same.

    Raises:
        CallError: `not-a-function` or `bad-argument`.
    """
    numbers = -1 if argnums is None else argnums
    check_argnums(numbers, "argnums")
    if function is None:
        return functools.partial(_marked, argnums=numbers)
    return _marked(function, numbers)


def check_argnums(given: Any, name: str) -> None:
    """Check numbers of arguments.

    Raises:
        CallError: `bad-argument`.
    """
    several = cast("Sequence[Any]", given if isinstance(given, tuple | list) else (given,))
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in several):
        raise CallError(
            f"{name} is {shown(cast(object, given))}",
            code="bad-argument",
            location=caller_location(),
            help="the number of an argument, or a tuple of such numbers",
        )


def check_function(function: object, what: str) -> None:
    """Check that something can be called.

    Raises:
        CallError: `not-a-function`.
    """
    if not callable(function):
        raise CallError(
            f"{what} is {shown(function)}",
            code="not-a-function",
            location=caller_location(),
            help="pass a function of arrays",
        )


def _marked(function: Callable[P, R], argnums: int | Sequence[int]) -> Callable[P, R]:
    check_function(function, "what ts.autodiff is given")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    setattr(call, _ARGNUMS, argnums)
    return call


def argnums_of(function: object) -> int | Sequence[int]:
    """Return by which arguments a function is differentiated where nothing else is said."""
    return getattr(function, _ARGNUMS, 0)
