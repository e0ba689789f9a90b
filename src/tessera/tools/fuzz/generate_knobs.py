"""Draws what the caller of a kernel fixes of its schedules."""

from __future__ import annotations

from typing import Final

from tessera.tools.fuzz.generate_scope import Dice

CPU_KNOBS: Final = (
    ("in_place", (0,)),
    ("prefetch", (0, 1)),
    ("stream", (0, 1)),
    ("strip", (0, 32, 64)),
    ("panel", (8, 16, 32)),
    ("pack_before", (0,)),
    ("begin_sums", (0,)),
    ("squares", (0,)),
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
_Knobs = dict[str, int | str]


def of_plan(dice: Dice, on_units: bool) -> _Knobs:
    """Draw the knobs of a program after a plan, of GPUs and of CPUs.

    Args:
        dice: the random choices.
        on_units: whether warpgroups can compute its products; then most programs share tiles in one of the ways that
            exclude each other, and nothing asks for other instructions.
    """
    knobs = _Knobs()
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
        knobs["num_stages"] = dice.pick((1, 2, 2, 2, 3, 4))
    if dice.chance(0.3):
        name, values = dice.pick(CPU_KNOBS)
        knobs[name] = dice.pick(values)
    return knobs
