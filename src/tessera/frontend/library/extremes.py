"""Combiners of elements with their places: of equal elements the first counts, and NaN before any number."""

from __future__ import annotations

from typing import Any

from tessera.frontend import tile
from tessera.frontend.function import function


@function
def larger(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the larger of two elements and its place."""
    first = (a > b) | ((a == b) & (i < j))
    return tile.where(first, a, b), tile.where(first, i, j)


@function
def smaller(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the smaller of two elements and its place."""
    first = (a < b) | ((a == b) & (i < j))
    return tile.where(first, a, b), tile.where(first, i, j)


@function
def larger_or_nan(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the larger of two floats, or NaN, and its place."""
    earlier, left, right = i < j, tile.isnan(a), tile.isnan(b)
    first = (a > b) | ((a == b) & earlier) | (left & (~right | earlier))
    return tile.where(first, a, b), tile.where(first, i, j)


@function
def smaller_or_nan(a: Any, i: Any, b: Any, j: Any) -> Any:
    """Return the smaller of two floats, or NaN, and its place."""
    earlier, left, right = i < j, tile.isnan(a), tile.isnan(b)
    first = (a < b) | ((a == b) & earlier) | (left & (~right | earlier))
    return tile.where(first, a, b), tile.where(first, i, j)
