"""Reads the text of a kernel that a command was given."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.errors import VerifyError
from tessera.ir.text import parse_module


def module_of(text: str, file: str) -> ModuleOp:
    """Return the module of a text, as `parse_module` does; of a Python file the error says how to get one.

    Args:
        text: the textual form.
        file: its name in messages.

    Raises:
        VerifyError: the text does not parse or verify; has the place.
    """
    try:
        return parse_module(text, file)
    except VerifyError as error:
        if error.help is None and file.endswith(".py"):
            error.help = f"this command reads IR: write it with `tessera compile {file}:KERNEL --dump tirh`"
        raise
