"""Numbers that environment variables set."""

from __future__ import annotations

import os

from tessera.errors import CallError, shown

_MOST_DIGITS = 15


def number_from(variable: str, what: str, least: int = 0) -> int | None:
    """Return the number that an environment variable is set to, None where it is not set.

    Args:
        variable: its name.
        what: what it is set to, for the message: `a number of threads`.
        least: the least number that it may be.

    Raises:
        CallError: `bad-environment`.
    """
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise CallError(f"{variable} is {shown(text)}", code="bad-environment", help=f"set it to {what}")
    return int(text)
