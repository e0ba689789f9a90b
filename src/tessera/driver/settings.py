"""What environment variables say about compiling and running kernels, read once."""

from __future__ import annotations

import os

from tessera.data import dataclass
from tessera.errors import CallError

_ON, _OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def _flag(name: str, default: str = "") -> bool:
    text = os.environ.get(name, default).lower()
    if text not in (*_ON, *_OFF):
        raise CallError(f"{name} is {text!r}", code="bad-environment", help="set it to 1 or 0")
    return text in _ON


@dataclass(slots=True)
class Settings:
    """Switches of this process.

    Args:
        interpret: run kernels on the interpreter (`TESSERA_INTERPRET=1`).
        debug: compile device asserts in (`TESSERA_DEBUG=1`).
        entry: serve repeated calls by the compiled entry, and those of library ops by what they launched before
            (`TESSERA_ENTRY=0` turns it off).
    """

    interpret: bool = False
    debug: bool = False
    entry: bool = True


_settings: list[Settings] = []


def settings() -> Settings:
    """Return the switches; reads the environment at the first call.

    Raises:
        CallError: `bad-environment`.
    """
    if not _settings:
        _settings.append(Settings(_flag("TESSERA_INTERPRET"), _flag("TESSERA_DEBUG"), _flag("TESSERA_ENTRY", "1")))
    return _settings[0]
