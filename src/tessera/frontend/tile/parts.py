"""Parts of tiles, beside slices (`x[2:6, ::-1]`, `x[i : i + 8]`) and elements (`x[i, j]`).

A compile-time index counts from the end when it is negative, and is an error outside of the tile. A run-time one never
counts from the end; what is outside of the tile is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Axes, Scalar, Tile, TileLike

__all__ = ["flip", "roll", "split", "take", "take_along_axis", "unstack"]


@tile_function
def flip(x: TileLike, axis: Axes = None) -> Tile:
    """Return the elements of a tile in reverse order along dimensions: `x[::-1]`.

    Args:
        x: tile.
        axis: dimension or dimensions, counted from the end when negative; all by default.

    Returns:
        Tile of the shape and dtype of `x`.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    ...


@tile_function
def roll(x: TileLike, shift: int | Scalar | Sequence[int | Scalar], axis: Axes = None) -> Tile:
    """Move the elements of a tile along a dimension; those that leave it at one end come back at the other.

    Args:
        x: tile.
        shift: how far, towards the end when positive: a compile-time or run-time integer, or one for each of `axis`.
        axis: dimension or dimensions, counted from the end when negative; by default the elements move in row-major
            order.

    Returns:
        Tile of the shape and dtype of `x`.

    Raises:
        TypeMismatchError: `bad-axis`, `bad-index` for a shift that is no integer, `bad-argument` for several shifts
            that are not one for each dimension.
    """
    ...


@tile_function
def split(x: TileLike, parts: int, axis: int = 0) -> tuple[Tile, ...]:
    """Cut a tile into equal parts along a dimension: what `concatenate` puts together.

    Args:
        x: tile.
        parts: compile-time number of parts, which divides the dimension's size.
        axis: dimension, counted from the end when negative.

    Returns:
        Tuple of tiles, in their order along the dimension.

    Raises:
        TypeMismatchError: `bad-axis`, or `bad-argument` for a number that does not divide the size.
    """
    ...


@tile_function
def unstack(x: TileLike, axis: int = 0) -> tuple[Tile, ...]:
    """Take a tile apart along a dimension: what `stack` (with `axis=-1`, `join`) puts together.

    Args:
        x: tile of at least two dimensions.
        axis: dimension, counted from the end when negative.

    Returns:
        Tuple of tiles without that dimension.

    Raises:
        TypeMismatchError: `bad-axis`, or `rank-mismatch` for a tile of one dimension.
    """
    ...


@tile_function
def take(
    x: TileLike, index: TileLike, axis: int | None = None, fill: float | int | bool | Scalar | None = None
) -> Tile | Scalar:
    """Pick slices of a tile along a dimension: result `[…, i, …]` is `x[…, index[i], …]`.

    Args:
        x: tile.
        index: integers of any dtype and shape.
        axis: dimension, counted from the end when negative; by default `index` counts elements in row-major order.
        fill: what is picked where an index is outside of the dimension; zero by default. No index counts from the end.

    Returns:
        Tile of the dtype of `x`, with the dimensions of `index` in place of `axis`.

    Raises:
        TypeMismatchError: `bad-axis`, or `bad-index` for an index that is not integer.
    """
    ...


@tile_function
def take_along_axis(
    x: TileLike, index: TileLike, axis: int = -1, fill: float | int | bool | Scalar | None = None
) -> Tile:
    """Pick elements of a tile along a dimension: result `[i, j]` is `x[index[i, j], j]` for `axis=0`.

    Args:
        x: tile.
        index: integer tile of any dtype and as many dimensions, whose other sizes broadcast with those of `x`.
        axis: dimension, counted from the end when negative.
        fill: what is picked where an index is outside of the dimension; zero by default. No index counts from the end.

    Returns:
        Tile of the dtype of `x`, of the size of `index` along `axis`.

    Raises:
        TypeMismatchError: `bad-axis`, `rank-mismatch`, `shape-mismatch`, or `bad-index` for an index not of integers.
    """
    ...
