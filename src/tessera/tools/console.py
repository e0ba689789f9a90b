"""Tables on the terminal."""

from __future__ import annotations

import io
import sys

from rich.console import Console


def console() -> Console:
    """Return where tables are printed; letters that the output's encoding lacks become question marks."""
    output: object = sys.stdout
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(errors="replace")  # pyright: ignore[reportUnknownMemberType]
    return Console()
