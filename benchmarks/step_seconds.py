"""Times of calls that several contestants make, for `graph.py` and `networks.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foundation import in_turns
from gemm_timing import Timer


def seconds_of(torch: Any, device: str, calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Return the seconds of each call: of single ones in turns, on a GPU after a flush of L2 and without the host."""
    if device == "cuda":
        return Timer(torch, 0.05).flushed_in_turns(calls, turns)
    return in_turns(calls, turns)
