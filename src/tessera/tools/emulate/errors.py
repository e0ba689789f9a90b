"""What stops an emulation."""

from __future__ import annotations


class Unknown(Exception):
    """The emulator does not know an instruction, a form of one or a construct.

    Args:
        what: its mnemonic.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"the emulator does not know {what}")
        self.what = what


class Malformed(Exception):
    """The text is no PTX."""


class Fault(Exception):
    """A program did what a GPU stops at, or what has no meaning: a wild access, a deadlock, a trap."""


class TooLong(Exception):
    """A program takes more instructions than it was given."""
