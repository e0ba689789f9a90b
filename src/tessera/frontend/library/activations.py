"""Activations of neural networks, of f32 and wider floats; `frontend/ops/activations.py` rounds narrower ones once."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


@function
def mish(x: Any) -> Any:
    """Return `x tanh(log(1 + exp(x)))`: with `n = exp(x)² + 2 exp(x)` it is `x n / (n + 2)`, which cancels nowhere."""
    e = tile.exp(tile.minimum(x, 20.0))  # from there on the factor is 1
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@function
def elu(x: Any, alpha: Any) -> Any:
    """Return `x` above 0, else `alpha (exp(x) - 1)`."""
    return tile.where(x > 0.0, x, alpha * tile.expm1(tile.minimum(x, 0.0)))


@function
def selu(x: Any) -> Any:
    """Return `elu`, scaled so that layers keep mean 0 and variance 1."""
    return tile.where(x > 0.0, SELU_SCALE * x, (SELU_SCALE * SELU_ALPHA) * tile.expm1(tile.minimum(x, 0.0)))


@function
def leaky_relu(x: Any, slope: Any) -> Any:
    """Return `x` above 0, else `slope x`."""
    return tile.where(x > 0.0, x, slope * x)


@function
def hardsigmoid(x: Any) -> Any:
    """Return the line from 0 at -3 to 1 at 3."""
    return tile.minimum(tile.maximum(x + 3.0, 0.0), 6.0) / 6.0


@function
def hardswish(x: Any) -> Any:
    """Return `x hardsigmoid(x)`."""
    return x * (tile.minimum(tile.maximum(x + 3.0, 0.0), 6.0) / 6.0)
