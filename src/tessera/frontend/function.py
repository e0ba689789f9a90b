"""`@ts.function`: helpers that kernels inline."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar

from tessera.errors import LanguageError, caller_location
from tessera.frontend.text import keep_text

P = ParamSpec("P")
R = TypeVar("R")


class DeviceFunction(Generic[P, R]):
    """A helper that kernels call; made by `@ts.function`.

    Args:
        function: the Python function.
    """

    def __init__(self, function: FunctionType) -> None:
        keep_text(function)
        functools.update_wrapper(self, function)  # first: the function may have attributes of any name
        self.function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Refuse a call outside a kernel."""
        raise LanguageError(
            f"{self.function.__name__} was called outside a kernel",
            code="outside-kernel",
            location=caller_location(),
            help="a @ts.function runs as part of the kernel that calls it",
        )

    def __reduce__(self) -> str:
        """A helper is copied and pickled by its name, as a function is."""
        return self.function.__qualname__

    def __repr__(self) -> str:
        return f"<ts.function {self.function.__name__}>"


def signature_of(function: FunctionType) -> inspect.Signature:
    """Return the parameters that a function has itself, whatever it is said to wrap."""
    bare = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    bare.__kwdefaults__, bare.__annotations__ = function.__kwdefaults__, function.__annotations__
    return inspect.signature(bare)


def decorator(name: str, help: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of decorators, which makes arguments that one does not take a typed error.

    Args:
        name: what it is called by its users.
        help: what the error advises.

    Raises:
        LanguageError: `bad-signature`, when the decorator is called so.
    """

    def wrapped(made: Callable[P, R]) -> Callable[P, R]:
        takes = inspect.signature(made)

        @functools.wraps(made)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                takes.bind(*args, **kwargs)
            except TypeError as error:
                raise LanguageError(
                    f"{name}: {error}", code="bad-signature", location=caller_location(), help=help
                ) from None
            return made(*args, **kwargs)

        return call

    return wrapped


@decorator("@ts.function", "decorate a def, without parentheses: @ts.function; helpers are always inlined")
def function(declared: Any = None) -> Any:
    """Make a Python function callable from kernels: it is inlined, with its own source locations.

    Its parameters take tiles, scalars, tensors and constants as they come; nothing is annotated. It may return
    anywhere, in loops and branches too, where all its returns give one shape and dtype.

        @ts.function
        def swish(x):
            return x * ts.tile.sigmoid(x)

        @ts.function
        def position(x, wanted, size):
            for i in ts.tile.range(size):
                if x[i] == wanted:
                    return i
            return -1

    Args:
        declared: the function.

    Returns:
        A helper to call inside kernels.

    Raises:
        LanguageError: `bad-signature` for anything but a function.
    """
    if not isinstance(declared, FunctionType):
        raise LanguageError(
            f"@ts.function needs a function, got {'none' if declared is None else type(declared).__name__}",
            code="bad-signature",
            location=caller_location(),
            help="decorate a def, without parentheses: @ts.function",
        )
    check_not_async(declared, "ts.function")
    return DeviceFunction[Any, Any](declared)


def check_not_async(function: FunctionType, decorator: str) -> None:
    """Check that calling a function runs it.

    Raises:
        LanguageError: `bad-signature`.
    """
    if function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise LanguageError(
            f"@{decorator} of an async def: {function.__name__}",
            code="bad-signature",
            location=caller_location(),
            help="decorate a def; a launch on a GPU is asynchronous of itself",
        )
