"""What LLVM and assemblers say of a text that was edited, as errors with its line."""

from __future__ import annotations

import re

from tessera.errors import Frame, Location, VerifyError

_PLACES = (
    re.compile(r"<string>:(?P<line>\d+):(?P<column>\d+): error: (?P<message>[^\n]*)"),  # LLVM's parser
    re.compile(r", line (?P<line>\d+); (?:error|fatal)\s*: (?P<message>[^\n]*)"),  # ptxas
)


def refusal(said: str, text: str) -> VerifyError:
    """Return the error for a text that was refused; its location is in a file without a name.

    Args:
        said: what LLVM or the assembler printed.
        text: the text.
    """
    for pattern in _PLACES:
        if (match := pattern.search(said)) is not None:
            place = match.groupdict()
            frame = Frame("", int(place["line"]), int(place.get("column") or 1))
            return VerifyError(place["message"].strip(), location=Location(frame))
    said = said.rpartition("RuntimeError: ")[2]
    lines = [line.strip() for line in said.split("\n") if line.strip()]
    # LLVM's verifier shows the instruction that is wrong.
    at = next((number for number, line in enumerate(text.split("\n"), 1) if line.strip() in lines[1:] and line), 0)
    return VerifyError("; ".join(lines[:2]), location=Location(Frame("", at)) if at else None)
