"""Notes on ops: what `explain()` reports of a schedule or a lowering, a list of texts for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation


class Unfit(Exception):
    """Why a schedule does not apply; the text goes into `explain()`."""


def note(op: Operation, key: str, texts: Sequence[str]) -> None:
    """Leave notes on an op, in place of those of their kind.

    Args:
        op: the op, most often a grid.
        key: what they are about, such as `fallbacks`: the key that `explain()` shows them under.
        texts: a sentence each.
    """
    op.attributes[f"tessera_notes.{key}"] = ArrayAttr([StringAttr(text) for text in texts])


def add_note(op: Operation, key: str, text: str) -> None:
    """Add a note to those of its kind, once."""
    known = notes_of(op, key)
    if text not in known:
        note(op, key, [*known, text])


def notes_of(op: Operation, key: str) -> list[str]:
    """Return the notes on an op about something."""
    found = op.attributes.get(f"tessera_notes.{key}")
    texts = cast("tuple[StringAttr, ...]", found.data) if isinstance(found, ArrayAttr) else ()  # pyright: ignore
    return [text.data for text in texts]
