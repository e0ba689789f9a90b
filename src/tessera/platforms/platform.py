"""What a platform is: one object that knows how to generate code for it and how to run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, cast

from tessera.errors import CallError, TargetError
from tessera.target.records import TargetRecord
from tessera.target.registry import family

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tessera.backends.llvm.code import CompiledCode
    from tessera.ir.passes import Pass
    from tessera.schedule.knobs import Knobs


class Platform(ABC):
    """A kind of machine. This class is what compiling for one takes; one with devices is a `DevicePlatform` too.

    Its methods import what they need when they are called: `import tessera` loads every platform, and no compiler.

    Attributes but `texts` and `comments` are described at `tessera.target.registry.Family`.
    """

    name: str
    device_kind: str = ""
    dlpack_kinds: tuple[int, ...] = ()
    targets: tuple[str, ...]
    code_kinds: tuple[str, ...]
    texts: tuple[str, ...] = ()
    """Names of the texts of its code, such as `ll`, in the order in which they are made."""
    comments: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What begins a comment in those texts that `resume` continues."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of all texts that a kernel becomes, in order."""
        return ("tirh", "tirt", *self.texts)

    def dumps(self, target: TargetRecord) -> tuple[str, ...]:
        """Return the names of what can be kept of a kernel for a target: its texts, and code such as `cubin`."""
        return self.levels

    @abstractmethod
    def target(self, name: str) -> TargetRecord:
        """Return the record of one of its targets."""

    @abstractmethod
    def schedule(self, target: TargetRecord, knobs: Knobs) -> tuple[Pass, ...]:
        """Return the scheduling passes, TIR-H to TIR-H, in order."""

    def assembly(self, target: TargetRecord) -> str:
        """Return whose inline assembly a target takes (`numerics.assembly.MACHINES`), "" for none."""
        return ""

    @abstractmethod
    def lower(self, module: ModuleOp, target: TargetRecord) -> ModuleOp:
        """Return the TIR-T of a scheduled module."""

    @abstractmethod
    def generate(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the machine code of a TIR-T module, with the texts asked for."""

    def write(self, module: ModuleOp, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the texts asked for as `generate` does, without machine code or an assembler."""
        return self.generate(module, target, dump)

    def resume(self, level: str, text: str, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        """Return the machine code of a text of `comments`, with this and later texts if asked for.

        Raises:
            VerifyError: the text is wrong; has the line.
        """
        raise NotImplementedError(f"{self.name} continues no {level}")


def platform_named(name: str) -> Platform:
    """Return the platform of a backend's name.

    Raises:
        TargetError: `unsupported-backend`.
    """
    found = family(name)
    if found is None:
        raise TargetError(
            f"no compiler for backend {name!r} yet",
            code="unsupported-backend",
            help="compile for cpu, ptx, rocm or level_zero",
        )
    return cast(Platform, found)


def check_dumps(names: Iterable[str], target: TargetRecord, level: str = "tirh") -> None:
    """Refuse to keep what a target lacks, or what stands before the level that compilation starts from.

    Raises:
        CallError: `no-such-level`, with the names there are.
    """
    platform = platform_named(target.backend)
    first = platform.levels.index(level) if level in platform.levels else len(platform.levels)
    there = platform.dumps(target)[first:]
    for name in names:
        if name not in there:
            before = name in platform.levels[:first]
            why = f"{name} stands before {level}" if before else f"{target.name} has no level {name!r}"
            raise CallError(why, code="no-such-level", help=f"one of {', '.join(there)}")
