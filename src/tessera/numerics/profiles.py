"""Numerics profiles: how much freedom the compiler has with floating-point arithmetic."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from tessera.errors import LanguageError

Profile = Literal["fast", "deterministic", "strict"]

current: ContextVar[Profile | None] = ContextVar("tessera_numerics_profile", default=None)
"""The profile that was chosen, None where none was; read it with `chosen_profile` or `current_profile`."""

DEFAULT: Profile = "fast"
"""The profile where none was chosen."""


def chosen_profile() -> Profile | None:
    """Return the profile that a `with` block around the call names, None where there is none."""
    return current.get()


def current_profile() -> Profile:
    """Return the profile that compilations in this context use."""
    return current.get() or DEFAULT


def profile(name: Profile) -> AbstractContextManager[None]:
    """Use a numerics profile inside a `with` block.

    Args:
        name: `fast` (contraction and approximate transcendental functions), `deterministic` (the same bits on
            every run of one machine and schedule; no float atomics) or `strict` (the same bits on every target: IEEE
            operations, and sums in one order).

    Raises:
        LanguageError: `unknown-profile`.
    """
    if not isinstance(name, str) or name not in get_args(Profile):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LanguageError(
            f"no numerics profile is called {name!r}",
            code="unknown-profile",
            help="one of fast, deterministic, strict",
        )
    return _using(name)


@contextmanager
def _using(name: Profile) -> Generator[None]:
    token = current.set(name)
    try:
        yield
    finally:
        current.reset(token)
