"""The knobs a caller or tuner may fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tessera.errors import LanguageError
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named

KNOBS: tuple[str, ...] = (
    "num_warps",
    "num_stages",
    "stages",
    "group_m",
    "bulk_stores",
    "split_k",
    "stream_k",
    "cluster",
    "pipeline",
    "ping_pong",
)
MMA_KINDS = ("wgmma", "mma_sync", "fma")
SWITCHES = ("bulk_stores", "stream_k", "pipeline", "ping_pong")
"""Knobs that are 0 or 1."""


_ALLOWED = {"split_k": (1, 2, 4, 8), "stream_k": (0, 1), "cluster": (1, 2, 4)}


@dataclass(frozen=True, slots=True)
class Knobs:
    """What the caller (or the tuner) fixed; None leaves the choice to the schedule.

    Args:
        num_warps: warps of a program (GPU).
        stages: depth of the ring buffers of pipelined copies (GPU).
        group_m: rows of tiles that are walked together, for reuse in the L2 cache.
        split_k: programs that share a tile, each with a part of the loop: 1, 2, 4 or 8 (GPUs with clusters).
        stream_k: 1 shares the last tiles of a launch out evenly over all its programs, by steps of the loop (Hopper).
        cluster: neighbouring programs along the rows that fetch the operands they share once: 1, 2 or 4 (Hopper).
        bulk_stores: 0 stores tiles from registers where the copy engine could (Hopper).
        pipeline: 1 overlaps dependent products with the arithmetic between them even where the cost model sees no
            gain, 0 keeps them in order (GPU).
        ping_pong: 1 lets two groups of consumers take tiles in turn or, where products wait for each other, two
            consumer warpgroups start their overlapped products in turn (Hopper).
        mma_kind: instructions of products: anything but `wgmma` keeps a program in one role.
    """

    num_warps: int | None = None
    stages: int | None = None
    group_m: int | None = None
    bulk_stores: int | None = None
    split_k: int | None = None
    stream_k: int | None = None
    cluster: int | None = None
    pipeline: int | None = None
    ping_pong: int | None = None
    mma_kind: str | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Knobs:
        """Read the knobs among a tuning point's names (`num_stages` and `stages` mean the same).

        Raises:
            LanguageError: `bad-knob` for a value out of range.
        """
        values = {name: config[name] for name in KNOBS if config.get(name) is not None}
        for name, value in values.items():
            if name in SWITCHES and value in (0, 1):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise LanguageError(f"{name} is a positive integer, got {value!r}", code="bad-knob")
        warps = values.get("num_warps")
        if warps is not None and (warps & (warps - 1) or warps > 32):
            raise LanguageError(
                f"num_warps is a power of two up to 32, got {warps}", code="bad-knob", help="use 4 or 8"
            )
        stages = values.get("stages", values.get("num_stages"))
        for name, allowed in _ALLOWED.items():
            if values.get(name, 1) not in allowed:
                text = ", ".join(map(str, allowed))
                raise LanguageError(f"{name} is one of {text}, got {values[name]}", code="bad-knob")
        plain = {
            name: values.get(name)
            for name in ("group_m", "bulk_stores", "split_k", "stream_k", "cluster", "pipeline", "ping_pong")
        }
        kind = config.get("mma_kind")
        if kind not in (None, *MMA_KINDS):
            raise LanguageError(
                f"mma_kind is {kind!r}", code="bad-knob", help=f"one of {', '.join(MMA_KINDS)}"
            )
        return cls(warps, stages, **plain, mma_kind=kind)


def default_gpu() -> TargetRecord:
    """Return the GPU that passes schedule for when `tessera opt` names none."""
    return target_named("sm_90a")
