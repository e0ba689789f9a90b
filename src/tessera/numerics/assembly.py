"""Inline assembly as an elementwise function: its name holds its texts.

`asm {"ptx": "add.f32 $0, $1, $2;"}` is a function of its operands and, last, of what it computes in the language.
Whoever has no text for a machine takes that for the result; so does the interpreter. It stays with the function until
programs are lowered for a machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache

_PREFIX = "asm "
MACHINES = ("ptx", "x86_64", "aarch64")
"""Whose assembly a kernel may have."""

BITS = (16, 32, 64)
"""Bits of operands: registers hold nothing else."""

_OPERAND = re.compile(r"(?<!\$)((?:\$\$)*)(\$\{?)(\d+)")


def assembly(texts: Mapping[str, str]) -> str:
    """Return the name of a function with these texts, by machine."""
    return _PREFIX + json.dumps(dict(texts), sort_keys=True)


def is_assembly(fn: str) -> bool:
    """Return whether a function is inline assembly."""
    return fn.startswith(_PREFIX)


@lru_cache(maxsize=256)
def texts_of(fn: str) -> Mapping[str, str]:
    """Return the texts of inline assembly, by machine."""
    return json.loads(fn.removeprefix(_PREFIX))


def renumbered(text: str, first: int) -> str:
    """Return a text whose operands are counted from 0, where it counts from `first`."""
    return _OPERAND.sub(lambda found: f"{found[1]}{found[2]}{int(found[3]) - first}", text)


def operands_named(text: str) -> set[int]:
    """Return the operands that a text names: `$0` is the result, `$1` the first one given; `$$` is a dollar."""
    return {int(number) for _, _, number in _OPERAND.findall(text)}
