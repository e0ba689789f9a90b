"""Means and sums of squared deviations that cancel nowhere."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function


@function
def deviation(off: Any, axis: Any, keepdims: Any, count: Any) -> Any:
    """Return the sum of squared deviations of elements that are `off` a mean which is rounded.

    Source: Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, the corrected two-pass.
    """
    rest = tile.sum(off, axis, keepdims)  # zero, had the mean not been rounded
    return tile.sum(off * off, axis, keepdims) - rest * rest / count


@function
def combined(count: Any, mean: Any, deviation: Any, more: Any, other: Any, others: Any) -> Any:
    """Return how many elements two groups have, their mean, and their sum of squared deviations from it.

    Source: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    total, apart = count + more, other - mean
    share = tile.where(total > 0.0, more / tile.where(total > 0.0, total, 1.0), 0.0)
    return total, mean + apart * share, deviation + others + apart * apart * count * share
