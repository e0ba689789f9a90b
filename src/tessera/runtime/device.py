"""Names of devices: `cpu`, `cuda:0`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tessera.errors import TargetError


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine.

    Args:
        kind: `cpu` or `cuda`.
        index: which one of its kind.
    """

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.index}"


CPU = Device("cpu")
_SPELLING = re.compile(r"(cpu|cuda)(?::(\d+))?")


def as_device(value: Device | str) -> Device:
    """Return the device that `value` names.

    Raises:
        TargetError: `unknown-device`.
    """
    if isinstance(value, Device):
        return value
    match = _SPELLING.fullmatch(value) if isinstance(value, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is None or (match[1] == "cpu" and match[2] not in (None, "0")):
        raise TargetError(
            f"no device is called {value!r}", code="unknown-device", help='write "cpu", "cuda" or "cuda:1"'
        )
    return CPU if match[1] == "cpu" else Device("cuda", int(match[2] or 0))
