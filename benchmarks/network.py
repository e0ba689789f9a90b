"""What a network to measure is: how it is built, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Scale = Literal["small", "full"]
"""Sizes for a test on a CPU in less than a second, and sizes that people train."""


@dataclass(frozen=True)
class Network:
    """A network to measure.

    Args:
        name: what it is known by.
        build: takes the scale, and returns the module in f32 on the CPU.
        inputs: takes the scale and what batch and length are larger by; returns the module's arguments, f32 or i64.
        trains: whether it is differentiated.
        is_random: whether results differ from run to run, so that they have no exact ones.
        any_size: whether batches of other sizes are taken by the same graph.
    """

    name: str
    build: Callable[[Scale], Any]
    inputs: Callable[[Scale, int], tuple[Any, ...]]
    trains: bool = True
    is_random: bool = False
    any_size: bool = True
