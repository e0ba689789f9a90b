"""Python values as messages show them."""

from __future__ import annotations

import reprlib
from typing import Any


class Short(reprlib.Repr):
    """Writes any Python value on one line of reasonable length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxlevel = 8
        self.maxstring = self.maxother = 120

    def repr_int(self, x: int, level: int) -> str:
        """Write an integer; Python refuses to write those of thousands of digits."""
        return repr(x) if abs(x).bit_length() <= 256 else f"an integer of {abs(x).bit_length()} bits"

    def repr_instance(self, x: Any, level: int) -> str:
        """Write an object without line breaks."""
        return " ".join(super().repr_instance(x, level).split())


SHORT = Short()


def shown(value: object) -> str:
    """Return a value as a message shows it, whatever it is: one line, also where it cannot be written as text."""
    return SHORT.repr(value)
