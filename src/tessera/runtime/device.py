"""Names of devices: `cpu`, `cuda:0`."""

from __future__ import annotations

import re

from tessera.data import dataclass
from tessera.errors import TargetError, shown
from tessera.target.registry import families

_HOST_KIND = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """A device of this machine.

    Args:
        kind: `cpu`, or what a platform calls its devices, such as `cuda`.
        index: which one of its kind.
    """

    kind: str
    index: int = 0

    @property
    def is_host(self) -> bool:
        """Whether it is the CPU that Python runs on, whose memory NumPy can address."""
        return self.kind == _HOST_KIND

    def __str__(self) -> str:
        return self.kind if self.is_host else f"{self.kind}:{self.index}"


CPU = Device(_HOST_KIND)
_SPELLING = re.compile(r"([a-z_]+)(?::(\d+))?")


def device_kinds() -> tuple[str, ...]:
    """Return the kinds of devices that platforms have, the host's first."""
    return tuple(one.device_kind for one in families() if one.device_kind)


def as_device(value: Device | str) -> Device:
    """Return the device that `value` names.

    Raises:
        TargetError: `unknown-device`.
    """
    if isinstance(value, Device):
        return value
    match = _SPELLING.fullmatch(value) if isinstance(value, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if match is not None and match[1] in device_kinds():
        device = Device(match[1], int(match[2] or 0))
        if device.index == 0 or not device.is_host:
            return device
    _, *others = device_kinds()
    known = ", ".join(['"cpu"', *(f'"{kind}" or "{kind}:1"' for kind in others)])
    raise TargetError(f"no device is called {shown(value)}", code="unknown-device", help=f"write {known}")
