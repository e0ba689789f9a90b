"""What scheduling passes have in common: a target, the knobs that they read, and launches to rewrite.

What a user asks for is an option of a pass, and never in the IR; attributes of ops hold what passes decided. So a pass
is described in full by its text, `warp-specialize{target=sm_90a,stages=3}`, which dumps show and `tessera opt` reads.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Self

from xdsl.dialects.builtin import ModuleOp

from tessera.data import dataclass
from tessera.ir.notes import Unfit, note
from tessera.ir.passes import Pass
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.schedule.knobs import KNOBS, Knobs, read_by
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named


def default_gpu() -> TargetRecord:
    """Return the GPU that passes schedule for when `tessera opt` names none."""
    return target_named("sm_90a")


@dataclass(frozen=True)
class ScheduledPass(Pass):
    """A pass that schedules for a target. It has the knobs whose declarations name it (`schedule/knobs.py`), no others.

    Args:
        target: the target.
        knobs: what was asked for.
    """

    target: TargetRecord = field(default_factory=default_gpu)
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
        """Drop the knobs of other passes."""
        object.__setattr__(self, "knobs", self.knobs.only(read_by(self.name)))

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """Return `target` and the knobs that the pass reads."""
        return ("target", *read_by(cls.name))

    def options(self) -> Mapping[str, object]:
        """Return the target's name and the knobs that are fixed."""
        return {"target": self.target.name, **self.knobs.given()}

    @classmethod
    def with_options(cls, given: Mapping[str, str]) -> Self:
        """Return the pass with a target and knobs.

        Raises:
            CallError: `unknown-option`.
            TargetError: `unknown-target`.
            LanguageError: `bad-knob`.
        """
        cls.check_names(given)
        knobs = Knobs.from_text({name: text for name, text in given.items() if name != "target"})
        return cls(target_named(given["target"]), knobs) if "target" in given else cls(knobs=knobs)


@dataclass(frozen=True)
class GridPass(ScheduledPass):
    """A scheduling pass that rewrites one launch after the other."""

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every launch of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for grid in [op for op in kernel.body.block.ops if isinstance(op, GridOp)]:
                self.rewrite(kernel, grid)

    @abstractmethod
    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite a launch, or leave it as it is."""


@dataclass(frozen=True)
class AskedPass(GridPass):
    """A scheduling pass that does what one knob asks for, or notes why it does not."""

    knob: ClassVar[str]

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Do what was asked for, if anything was."""
        knob, asked = KNOBS[self.knob], self.asked(grid)
        if asked in (None, knob.default):
            return
        try:
            if not knob.works_on(self.target):
                raise Unfit(f"{self.target.name} has no {knob.lacks}")
            self.fulfil(grid, asked)
        except Unfit as reason:
            note(grid, self.knob, [f"{self.knob}={asked} is ignored: {reason}"])

    def asked(self, grid: GridOp) -> int | None:
        """Return what is asked for of a launch: the knob's value."""
        return getattr(self.knobs, self.knob)

    @abstractmethod
    def fulfil(self, grid: GridOp, asked: int) -> None:
        """Rewrite a launch as asked for.

        Raises:
            Unfit: that is impossible; the launch is unchanged.
        """


def launches(kernel: KernelOp) -> list[GridOp | KernelOp]:
    """Return the grids of a kernel, or itself where it has none and is one program."""
    return [op for op in kernel.body.block.ops if isinstance(op, GridOp)] or [kernel]
