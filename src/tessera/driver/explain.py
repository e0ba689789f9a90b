"""What a launch really ran, for `kernel.explain()`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from tessera.data import dataclass
from tessera.target.artifact import Artifact


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the last call of a kernel ran. Recorded at the launch, never assumed.

    Args:
        kernel: the kernel's name.
        backend: the backend that ran it (`cpu`, `ptx`, `interp`).
        target: the target it was compiled for.
        device: where it ran.
        profile: the numerics profile.
        config: the tuning point.
        fixed: dimensions that are constants in the compiled code.
        origin: where the code came from: `compiled`, `disk cache`, `interpreted`.
        reflection: facts about the code: registers, shared memory, schedule, emulations, dtype fallbacks, `copies`
            that are not asynchronous and why, `roles` that were not split and why, how products were put in a
            `pipeline`.
        rejected: tuning points that did not compile, with the reason.
    """

    kernel: str
    backend: str
    target: str
    device: str
    profile: str
    config: dict[str, object] = field(default_factory=dict[str, object])
    fixed: dict[str, int] = field(default_factory=dict[str, int])
    origin: str = "compiled"
    reflection: dict[str, Any] = field(default_factory=dict[str, Any])
    rejected: tuple[tuple[dict[str, object], str], ...] = ()

    @classmethod
    def of(cls, artifact: Artifact, device: str, profile: str, **details: Any) -> Explanation:
        """Return the explanation of launches of an artefact."""
        return cls(
            artifact.name,
            artifact.backend,
            artifact.target,
            device,
            profile,
            reflection=artifact.reflection,
            **details,
        )

    @property
    def emulations(self) -> list[Any]:
        """Operations the target lacks and what was done in their place."""
        return list(self.reflection.get("emulations", []))

    @property
    def fallbacks(self) -> list[Any]:
        """Dtypes the target lacks and which one was used in their place."""
        return list(self.reflection.get("fallbacks", []))

    @property
    def schedule(self) -> dict[str, Any]:
        """What the schedule decided."""
        return dict(self.reflection.get("schedule", {}))

    def __str__(self) -> str:
        rows: list[tuple[str, str]] = [
            ("ran on", f"{self.backend}, target {self.target}, device {self.device}"),
            ("code from", self.origin),
            ("profile", self.profile),
            ("schedule", _pairs(self.schedule) or "default"),
            ("emulations", _items(self.emulations) or "none"),
            ("dtype fallbacks", _items(self.fallbacks) or "none"),
        ]
        if self.config:
            rows.insert(3, ("tuning point", _pairs(self.config)))
        if self.fixed:
            rows.insert(3, ("fixed dims", _pairs(self.fixed)))
        for name in ("copies", "roles", "pipeline"):
            if self.reflection.get(name):
                rows.append((name, _items(self.reflection[name])))
        rows += [(f"rejected {_pairs(point)}", reason) for point, reason in self.rejected]
        return "\n".join([f"kernel {self.kernel}", *(f"  {name}: {value}" for name, value in rows)])


def _pairs(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in facts.items())


def _items(items: list[Any]) -> str:
    return "; ".join(map(str, items))
