"""The platforms that are there, by name, and the targets of all of them.

Platforms stand above every package that asks for them, so they are put in here when `tessera` is imported.
"""

from __future__ import annotations

from typing import Protocol

from tessera.errors import TargetError
from tessera.target.records import TargetRecord


class Family(Protocol):
    """What every layer may know of a platform: names and targets."""

    @property
    def name(self) -> str:
        """Name of its backend, such as `cpu` or `ptx`."""
        ...

    @property
    def device_kind(self) -> str:
        """Name of its devices, such as `cuda` in `cuda:0`, as PyTorch has it; empty where code is only compiled."""
        ...

    @property
    def dlpack_kinds(self) -> tuple[int, ...]:
        """DLPack's numbers for memory of its devices, the one to export as first."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of its targets."""
        ...

    @property
    def code_kinds(self) -> tuple[str, ...]:
        """What the code of its artefacts can be; the empty text where artefacts may have none."""
        ...

    def target(self, name: str) -> TargetRecord:
        """Return the record of one of its targets."""
        ...


_families: dict[str, Family] = {}


def register(family: Family) -> None:
    """Add a platform, or replace the one of the same name."""
    _families[family.name] = family


def unregister(name: str) -> None:
    """Remove a platform."""
    del _families[name]


def families() -> tuple[Family, ...]:
    """Return the platforms in the order in which they were registered, the host's first."""
    return tuple(_families.values())


def family(name: str) -> Family | None:
    """Return the platform of a backend's name, None when there is none."""
    return _families.get(name)


def known_targets() -> tuple[str, ...]:
    """Return the names that `target_named` accepts; `cpu` means this host."""
    return tuple(target for one in families() for target in one.targets)


def target_named(name: str) -> TargetRecord:
    """Return the record called `name`.

    Raises:
        TargetError: `unknown-target`, with the names there are.
    """
    for one in families():
        if name in one.targets:
            return one.target(name)
    raise TargetError(
        f"no target is called {name!r}", code="unknown-target", help=f"one of {', '.join(known_targets())}"
    )
