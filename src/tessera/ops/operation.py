"""What makes an op of the library of a class: typed errors for wrong arguments, and calls that cost little again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tessera.ops.refusals import checked, is_checked
from tessera.ops.repeats import explaining, repeated

_R = TypeVar("_R")


def library_op(made: type[_R]) -> type[_R]:
    """Make the objects of a class ops of the library.

    Public methods refuse what their annotations do not take; a `__call__` that does so, and `backward`, start again
    what calls of the same kind launched (see `ops.repeats`).
    """
    with_checked_methods(made)
    for name in ("__call__", "backward"):
        method: Any = getattr(made, name, None)
        if is_checked(method):
            setattr(made, name, repeated(method))
    explain: Any = getattr(made, "explain", None)
    if explain is not None:
        cast(Any, made).explain = explaining(explain)
    return made


def with_checked_methods(made: type[_R]) -> type[_R]:
    """Let public methods of a class refuse what their annotations do not take: of ops that plan their calls."""
    for name, value in list(vars(made).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, staticmethod):
            function = cast("Callable[..., Any]", value.__func__)  # pyright: ignore[reportUnknownMemberType]
            setattr(made, name, staticmethod(checked(function)))
        elif inspect.isfunction(value):
            setattr(made, name, checked(value))
    return made
