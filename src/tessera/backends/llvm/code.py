"""What a backend gives back: machine code and what is known of it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from tessera.data import dataclass


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The result of compiling one TIR-T module.

    Args:
        code: machine code.
        code_kind: `object` (ELF relocatable), `cubin`, or an empty string when there is only text.
        dumps: text or bytes of each stage below TIR-T, such as `ll`, `asm`, `ptx`.
        reflection: JSON-serialisable facts about the code.
    """

    code: bytes
    code_kind: str
    dumps: dict[str, str | bytes] = field(default_factory=dict[str, "str | bytes"])
    reflection: dict[str, Any] = field(default_factory=dict[str, Any])
