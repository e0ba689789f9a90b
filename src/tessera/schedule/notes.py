"""Why a schedule does not apply, and where `explain()` finds it: notes on the op that would have been rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation


class Unfit(Exception):
    """Why a schedule does not apply; the text goes into `explain()`."""


def note(op: Operation, key: str, texts: Sequence[str]) -> None:
    """Leave notes on an op.

    Args:
        op: the op, most often a grid.
        key: what they are about: the key that `explain()` shows them under.
        texts: a sentence each.
    """
    op.attributes[f"tessera_notes.{key}"] = ArrayAttr([StringAttr(text) for text in texts])


def notes_of(op: Operation, key: str) -> list[str]:
    """Return the notes on an op about something."""
    found = op.attributes.get(f"tessera_notes.{key}")
    texts = cast("tuple[StringAttr, ...]", found.data) if isinstance(found, ArrayAttr) else ()  # pyright: ignore
    return [text.data for text in texts]
