"""Times contestants in turns, on a CPU or a GPU; and arrays of either device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LEAST_TURNS = 5

Calls = dict[str, Callable[[], Any]]


def seconds_in_turns(
    calls: Calls, device: str, budget: float, figure: Callable[[Sequence[float]], float]
) -> dict[str, float]:
    """Return the seconds of a call, by contestant.

    Args:
        calls: the contestants.
        device: `cpu` or `cuda`.
        budget: seconds that all turns take together.
        figure: what counts of the seconds of all turns on a CPU, such as their median.
    """
    return _on_cpu(calls, budget, figure) if device == "cpu" else _on_gpu(calls, budget)


def _on_cpu(calls: Calls, budget: float, figure: Callable[[Sequence[float]], float]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    end, order = time.perf_counter() + budget, list(calls)
    while time.perf_counter() < end or len(times[order[0]]) < LEAST_TURNS:
        for name in order:
            start = time.perf_counter()
            calls[name]()
            times[name].append(time.perf_counter() - start)
        order.reverse()
    return {name: figure(found) for name, found in times.items()}


def _on_gpu(calls: Calls, budget: float) -> dict[str, float]:
    import torch
    from gemm_timing import Timer

    turns = max(LEAST_TURNS, int(budget / 0.3))
    measured, _ = Timer(torch, min(0.1, budget / 10)).measured({name: [call] for name, call in calls.items()}, turns)
    return {name: found.replayed or found.flushed for name, found in measured.items()}


def upload(array: np.ndarray, device: str) -> Any:
    """Return a NumPy array itself on a CPU, else a tensor of its numbers on the device."""
    if device == "cpu":
        return array
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(array).to(device)


def download(array: Any) -> np.ndarray:
    """Return what `upload` gave as a NumPy array; elements of bf16 as 16-bit integers from a GPU."""
    if isinstance(array, np.ndarray):
        return array
    import torch

    return (array.view(torch.int16) if array.dtype == torch.bfloat16 else array).cpu().numpy()
