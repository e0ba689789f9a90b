"""What scheduling passes for CPUs have in common."""

from __future__ import annotations

from dataclasses import field

from tessera.data import dataclass
from tessera.schedule.scheduled_pass import ScheduledPass
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named


def default_cpu() -> TargetRecord:
    """Return the CPU that passes schedule for when `tessera opt` names none."""
    return target_named("sapphirerapids")


@dataclass(frozen=True)
class CpuPass(ScheduledPass):
    """A pass that schedules for a CPU."""

    target: TargetRecord = field(default_factory=default_cpu)
