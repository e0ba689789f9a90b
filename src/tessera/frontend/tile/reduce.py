"""Reductions and scans.

16-bit and smaller operands are widened to the accumulation type first (f32, or i32 for integers and bool; the
policy's `accum` if it names one), and the result has that type.
"""

from __future__ import annotations

from typing import Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Axes, Scalar, Tile, TileLike

__all__ = [
    "all",
    "any",
    "cumsum",
    "max",
    "mean",
    "min",
    "prod",
    "reduce",
    "row_max",
    "row_sum",
    "scan",
    "sum",
    "var",
]

Reduction = Literal["sum", "max", "min", "prod", "any", "all"]


@tile_function
def reduce(x: TileLike, axis: Axes = None, op: Reduction = "sum", keepdims: bool = False) -> Tile | Scalar:
    """Combine the elements of a tile along one dimension or several, which disappear.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative, or a tuple of them; None combines all elements to a scalar.
        op: `sum`, `max`, `min`, `prod`, or on bool tiles `any` and `all`.
        keepdims: compile-time; keep these dimensions with size 1, so that the result broadcasts with `x`.

    Returns:
        Tile without those dimensions; a scalar when none is left.

    Raises:
        TypeMismatchError: `bad-axis`, or `bad-argument` for an unknown `op`.

    Numerics:
        `max` and `min` give NaN when an element is NaN.
    """
    ...


@tile_function
def sum(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the sum along `axis`, or of all elements.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def max(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the largest element along `axis`, or of all; NaN wins.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def min(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the smallest element along `axis`, or of all; NaN wins.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def prod(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the product along `axis`, or of all elements.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def any(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return whether an element of a bool tile is true.

    Args:
        x: bool tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Bool tile without those dimensions, or a bool scalar.

    Raises:
        TypeMismatchError: `dtype-mismatch` for another dtype.
    """
    ...


@tile_function
def all(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return whether all elements of a bool tile are true.

    Args:
        x: bool tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Bool tile without those dimensions, or a bool scalar.

    Raises:
        TypeMismatchError: `dtype-mismatch` for another dtype.
    """
    ...


@tile_function
def mean(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the mean along `axis`, or of all elements.

    Args:
        x: tile; integers become f32.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Float tile without those dimensions, or a scalar.

    Numerics:
        The sum divided by the number of elements of the tile, those outside a tensor included, which load as zeros.
    """
    ...


@tile_function
def var(x: TileLike, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tile | Scalar:
    """Return the variance along `axis`, or of all elements.

    Args:
        x: tile; integers become f32.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.
        ddof: compile-time; the sum is divided by the number of elements less this: 1 estimates a population's variance
            from a sample.

    Returns:
        Float tile without those dimensions, or a scalar.

    Raises:
        TypeMismatchError: `bad-argument` when `ddof` leaves nothing to divide by.

    Numerics:
        Two passes, so that nothing cancels: the mean first, then the sum of the squares of the differences from it.
        Elements outside a tensor count as the zeros that they load as.
    """
    ...


@tile_function
def row_sum(x: TileLike) -> Tile | Scalar:
    """Return the sum along the last dimension.

    Args:
        x: tile `(…, N)`.

    Returns:
        Tile `(…,)`; a scalar for one dimension.
    """
    ...


@tile_function
def row_max(x: TileLike) -> Tile | Scalar:
    """Return the largest element along the last dimension; NaN wins.

    Args:
        x: tile `(…, N)`.

    Returns:
        Tile `(…,)`; a scalar for one dimension.
    """
    ...


@tile_function
def scan(x: TileLike, axis: int = -1, op: Reduction = "sum", reverse: bool = False) -> Tile:
    """Return the running combination along `axis`, each element included.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        op: `sum`, `max`, `min`, `prod`, or on bool tiles `any` and `all`.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.

    Raises:
        TypeMismatchError: `bad-axis`, or `bad-argument` for an unknown `op`.
    """
    ...


@tile_function
def cumsum(x: TileLike, axis: int = -1, reverse: bool = False) -> Tile:
    """Return the running sum along `axis`.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.
    """
    ...
