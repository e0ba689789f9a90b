"""Sums of exponentials that overflow nowhere: the largest exponent is taken out first."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function


@function
def logsumexp(x: Any, axis: Any) -> Any:
    """Return the logarithm of the sum of exponentials, with the dimension kept."""
    top = tile.max(x, axis, keepdims=True)
    finite = tile.where(tile.isfinite(top), top, 0.0)  # infinities would meet themselves: inf - inf
    return finite + tile.log(tile.sum(tile.exp(x - finite), axis, keepdims=True))


@function
def log_softmax(x: Any, axis: Any) -> Any:
    """Return the logarithm of the exponentials over their sum."""
    off = x - tile.max(x, axis, keepdims=True)
    return off - tile.log(tile.sum(tile.exp(off), axis, keepdims=True))


@function
def softmax(x: Any, axis: Any) -> Any:
    """Return the exponentials over their sum."""
    e = tile.exp(x - tile.max(x, axis, keepdims=True))
    return e / tile.sum(e, axis, keepdims=True)
