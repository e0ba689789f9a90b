"""Gradients of kernels beside slopes of the kernels themselves, by finite differences in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tessera as ts

STEP = 1e-5
RNG = np.random.default_rng(5)


def numbers(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Return random float64 numbers."""
    return RNG.uniform(low, high, shape)


def fresh(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with arrays of their own."""
    return {name: one.copy() if isinstance(one, np.ndarray) else one for name, one in arguments.items()}


def check_slopes(
    kernel: Any,
    arguments: Mapping[str, Any],
    outputs: Sequence[str],
    inputs: Sequence[str],
    tolerance: float = 1e-6,
    directions: int = 2,
) -> dict[str, Any]:
    """Check the gradients of a kernel along random directions, and return them.

    The slope of what cotangents weigh is taken along random directions v of one input at a time, as
    `⟨cotangent, (f(x + hv) − f(x − hv)) / 2h⟩`. It has to be the product of the gradient and the direction.
    """
    after = fresh(arguments)
    kernel(**after)
    weights = {name: numbers(*arguments[name].shape) for name in outputs}
    gradients = ts.pullback(kernel, inputs)(**after, cotangents=weights)
    assert [*gradients] == [*inputs]
    for name in inputs:
        assert gradients[name].shape == arguments[name].shape
        assert gradients[name].dtype == arguments[name].dtype
        for _ in range(directions):
            along = numbers(*arguments[name].shape)
            ends: list[float] = []
            for sign in (1.0, -1.0):
                moved = fresh(arguments)
                moved[name] = moved[name] + sign * STEP * along
                kernel(**moved)
                ends.append(sum(float(np.vdot(weights[out], moved[out])) for out in outputs))
            slope, found = (ends[0] - ends[1]) / (2 * STEP), float(np.vdot(gradients[name], along))
            size = max(np.abs(gradients[name]).max(), 1e-3) * np.sqrt(along.size)
            assert abs(slope - found) <= tolerance * size, f"{name}: slope {slope}, gradient {found}"
    return gradients
