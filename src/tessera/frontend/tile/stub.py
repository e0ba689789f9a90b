"""How a tile function is declared: a documented signature whose body the compiler supplies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tessera.errors import LanguageError, caller_location

P = ParamSpec("P")
R = TypeVar("R")

NAMESPACES = ("group", "mbarrier", "pipeline")
"""Families whose functions go by their family's name too: `ts.tile.pipeline.begin`."""
FUNCTIONS: dict[str, Callable[..., object]] = {}
"""Every tile function by name, filled as the files of this folder declare them."""


def tile_function(declared: Callable[P, R]) -> Callable[P, R]:
    """Declare a function of the language; calling it outside a kernel is a typed error.

    Raises:
        LanguageError: `outside-kernel`, from the decorated function.
    """
    family = declared.__module__.rpartition(".")[2]
    name = f"{family}.{declared.__name__}" if family in NAMESPACES else declared.__name__

    @functools.wraps(declared)
    def outside(*args: P.args, **kwargs: P.kwargs) -> R:
        raise LanguageError(
            f"ts.tile.{name} was called outside a kernel",
            code="outside-kernel",
            location=caller_location(),
            help="call it in a function decorated with @ts.kernel, or with @ts.function and used by one",
        )

    FUNCTIONS[name] = outside
    return outside
