"""What a platform is: one object that says how code for it is made, and how it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from tessera.errors import TargetError
from tessera.target.records import TargetRecord
from tessera.target.registry import family

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backends.llvm.code import CompiledCode
    from tessera.ir.passes import Pass
    from tessera.schedule.knobs import Knobs


class Platform(ABC):
    """A kind of machine. This class is what it takes to compile for one; one with devices is a `DevicePlatform` too.

    Its methods import what they need when they are called: `import tessera` loads every platform, and no compiler.

    Attributes are described at `tessera.target.registry.Family`.
    """

    name: str
    device_kind: str = ""
    dlpack_kinds: tuple[int, ...] = ()
    targets: tuple[str, ...]
    code_kinds: tuple[str, ...]

    @abstractmethod
    def target(self, name: str) -> TargetRecord:
        """Return the record of one of its targets."""

    @abstractmethod
    def schedule(self, target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
        """Return the scheduling passes, TIR-H to TIR-H, in order."""

    @abstractmethod
    def lower(self, module: ModuleOp, target: TargetRecord) -> ModuleOp:
        """Return the TIR-T of a scheduled module."""

    @abstractmethod
    def generate(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the machine code of a TIR-T module, with the texts asked for."""


def platform_named(name: str) -> Platform:
    """Return the platform of a backend's name.

    Raises:
        TargetError: `unsupported-backend`.
    """
    found = family(name)
    if found is None:
        raise TargetError(f"no compiler for backend {name!r} yet", code="unsupported-backend")
    return cast(Platform, found)
