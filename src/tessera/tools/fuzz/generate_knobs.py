"""Draws what the caller of a kernel fixes of its schedules."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from tessera.tools.fuzz.generate_scope import Dice

Knobs = dict[str, int | str]

VALUES: Final[Mapping[str, tuple[int | str, ...]]] = {
    "num_warps": (1, 2, 4, 8, 16, 32),
    "stages": (1, 2, 2, 2, 3, 4),
    "terms": (32, 64, 128, 256),
    "group_m": (1, 2, 3),
    "batch": (1, 2, 4, 8, 32),
    "chunk": (0, 8, 16, 32, 64, 256, 1024),
    "bulk_stores": (0, 1),
    "split_k": (1, 2, 4, 8),
    "stream_k": (0, 1),
    "fit_blocks": (0, 1),
    "split_sums": (1, 2, 3, 8, 64),
    "hold_rows": (0, 1, 2, 4),
    "share_rows": (1, 2, 3, 4, 8),
    "cluster": (1, 2, 4),
    "pipeline": (0, 1),
    "ping_pong": (0, 1),
    "producer_registers": (24, 40, 56),
    "consumer_registers": (160, 216, 240),
    "mma_kind": ("mma_sync", "fma"),
    "keep_copies": (0, 1, 1),
    "in_place": (0, 1),
    "panel": (8, 16, 32, 64),
    "pack_before": (0, 1),
    "begin_sums": (0, 1),
    "squares": (0, 1),
    "trim": (0, 1),
    "prefetch": (0, 1),
    "stream": (0, 1, 4),
    "strip": (0, 32, 64),
}
"""Every knob of the schedule, and the values that programs are drawn with: those that rings of few steps, small tiles
and few programs come to. `mma_kind="wgmma"` asks for what a schedule takes by itself where it can."""

CPU_KNOBS: Final = (
    ("in_place", (0,)),
    ("prefetch", (0, 1)),
    ("stream", (0, 1)),
    ("strip", (0, 32, 64)),
    ("panel", (8, 16, 32)),
    ("pack_before", (0,)),
    ("begin_sums", (0,)),
    ("squares", (0,)),
    ("trim", (0,)),
)
"""Knobs of schedules for CPUs, and their values."""

_SHARING: Final = (
    (("split_k", (2, 4)), 1.0),
    (("stream_k", (1,)), 1.0),
    (("cluster", (2, 4)), 1.0),
    (("ping_pong", (1,)), 1.0),
)
"""How programs share the tiles of a launch."""

_GPU_KNOBS: Final = (
    (("num_warps", (4, 8)), 1.0),
    (("group_m", (1, 2)), 0.5),
    (("pipeline", (0, 1)), 1.0),
    (("bulk_stores", (0, 1)), 0.7),
)
_MMA_KINDS: Final = (("mma_kind", ("mma_sync", "fma")), 0.8)
_CHUNKS: Final = (("chunk", (16, 64, 256)), 0.8)

_MORE: Final = 0.35
"""How often a program has a knob more, any that there is."""


def of_plan(dice: Dice, on_units: bool, strict: bool) -> Knobs:
    """Draw the knobs of a program after a plan, of GPUs and of CPUs.

    Args:
        dice: the random choices.
        on_units: whether warpgroups can compute its products; then most programs share tiles in one of the ways that
            exclude each other, and nothing asks for other instructions.
        strict: whether sums have an order, which multiply-adds alone keep.
    """
    knobs = Knobs()
    if on_units:
        for known, share in ((_SHARING, 0.75), (_GPU_KNOBS, 0.3)):
            if dice.chance(share):
                name, values = dice.weighted(known)
                knobs[name] = dice.pick(values)
    elif dice.chance(0.75):
        for _ in range(dice.between(1, 2)):
            name, values = dice.weighted((*_GPU_KNOBS, *_SHARING, _MMA_KINDS, _CHUNKS))
            knobs[name] = dice.pick(values)
    if dice.chance(0.4):  # rings that few steps go around
        knobs["stages"] = dice.pick((1, 2, 2, 2, 3, 4))
    if dice.chance(0.3):
        name, values = dice.pick(CPU_KNOBS)
        knobs[name] = dice.pick(values)
    if dice.rarely(_MORE):
        for name, value in any_of(dice.aside, 1, strict or on_units).items():
            knobs.setdefault(name, value)
    return knobs


def shared_out(rng: random.Random, knobs: Knobs) -> Knobs:
    """Return knobs with which the programs of a cluster share out what all of them read."""
    others = {name for (name, _), _ in _SHARING}
    kept = {name: value for name, value in knobs.items() if name not in others}
    return {**kept, "cluster": rng.choice((2, 4, 4))}


def any_of(rng: random.Random, count: int, sums_as_they_are: bool) -> Knobs:
    """Draw some of all knobs.

    Args:
        rng: the random choices.
        count: how many.
        sums_as_they_are: leave out the knob that asks for other instructions of products.
    """
    names = [name for name in VALUES if not (sums_as_they_are and name == "mma_kind")]
    return {name: rng.choice(VALUES[name]) for name in rng.sample(names, count)}
