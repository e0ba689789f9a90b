"""What texts of code, such as LLVM IR and PTX, say of their kernel, so that each can be compiled further by itself.

It stands in comment lines before the code, one for each part of an artefact's header:

    ; tessera.name = "add"
    ; tessera.target = "cpu"
"""

from __future__ import annotations

import json
import re
from typing import Any

from tessera.errors import CallError, Frame, Location, VerifyError
from tessera.target.artifact import HEADER, Artifact, check_together
from tessera.target.registry import target_named
from tessera.target.schema import ArtifactError

_FIELDS = [name for name in HEADER if name != "backend"]  # the target tells
_FOUND_AGAIN = ("passes_ms", "instructions")
"""Facts that whoever compiles the text further finds anew."""


def with_header(text: str, artifact: Artifact, comment: str) -> str:
    """Return the text of code with comment lines before it.

    Args:
        text: the code.
        artifact: what it is the code of.
        comment: what begins a comment in its language.
    """
    header = artifact.header()
    facts = {name: fact for name, fact in artifact.reflection.items() if name not in _FOUND_AGAIN}
    header["reflection"] = facts
    return "".join(f"{comment} tessera.{name} = {json.dumps(header[name])}\n" for name in _FIELDS) + text


def split_header(text: str, comment: str, file: str) -> tuple[Artifact, str, int]:
    """Return what a text of code says of its kernel, without code, the code itself, and the lines before it.

    Args:
        text: what `with_header` gave, edited or not.
        comment: what begins a comment in its language.
        file: its name in messages.

    Raises:
        CallError: `no-record` when it says nothing.
        VerifyError: a line is not what it should be.
    """
    pattern = re.compile(rf"{re.escape(comment)}\s*tessera\.(\w+)\s*=\s*(.*)")
    lines, number = text.splitlines(keepends=True), 0
    found: dict[str, Any] = {}
    while number < len(lines) and (match := pattern.match(lines[number])):
        number += 1
        found[match.group(1)] = _field(match.group(1), match.group(2), Location(Frame(file, number)))
    missing = [name for name in _FIELDS if name not in found]
    if missing:
        raise CallError(
            f"{file} does not say what kernel it is the code of: there is no line {comment} tessera.{missing[0]}",
            code="no-record",
            help="continue a dump of Tessera's with the comment lines at its start",
        )
    artifact = Artifact(**found, backend=target_named(found["target"]).backend)
    try:
        check_together(artifact)
    except ArtifactError as error:
        raise VerifyError(error.what, location=Location(Frame(file, 1))) from error
    return artifact, "".join(lines[number:]), number


def _field(name: str, text: str, location: Location) -> Any:
    if name not in _FIELDS:
        raise VerifyError(f"tessera.{name} is unknown", location=location, help=f"one of {', '.join(_FIELDS)}")
    try:
        return HEADER[name](f"tessera.{name}", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise VerifyError(f"tessera.{name} is not JSON: {error}", location=location) from error
    except ArtifactError as error:
        raise VerifyError(error.what, location=location) from error
