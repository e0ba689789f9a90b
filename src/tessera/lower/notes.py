"""What `explain()` reports of a lowering: notes on the function, a list of texts for each kind."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import Operation


def add_note(func: Operation, kind: str, text: str) -> None:
    """Add a note, once.

    Args:
        func: the function.
        kind: what it is about, such as `emulations`, `fallbacks` or `copies`.
        text: the note.
    """
    key = f"tessera_notes.{kind}"
    known = func.attributes.get(key)
    notes = cast("tuple[StringAttr, ...]", known.data) if isinstance(known, ArrayAttr) else ()  # pyright: ignore
    if StringAttr(text) not in notes:
        func.attributes[key] = ArrayAttr([*notes, StringAttr(text)])
