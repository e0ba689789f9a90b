"""Changing the shape of tiles."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["broadcast_to", "concatenate", "expand_dims", "join", "reshape", "stack", "transpose"]


@tile_function
def reshape(x: TileLike, shape: int | Sequence[int]) -> Tile:
    """Return the elements of `x`, in row-major order, as another shape.

    Args:
        x: tile.
        shape: compile-time sizes with the same product; one may be -1.

    Returns:
        Tile of that shape.

    Raises:
        TypeMismatchError: `shape-mismatch` when the number of elements differs.
    """
    ...


@tile_function
def transpose(x: TileLike, perm: Sequence[int] | None = None) -> Tile:
    """Permute the dimensions of a tile; without `perm` the last two are exchanged (`x.T`).

    Args:
        x: tile of at least two dimensions, or a shared buffer (which gives a view).
        perm: the source dimension of each result dimension.

    Returns:
        Tile, or a view of the shared buffer.

    Raises:
        TypeMismatchError: `rank-mismatch` or `bad-axis` when `perm` is not a permutation.
    """
    ...


@tile_function
def broadcast_to(x: TileLike, shape: int | Sequence[int]) -> Tile:
    """Repeat a tile or scalar to `shape` by NumPy's rules.

    Args:
        x: tile, scalar or number.
        shape: compile-time sizes.

    Returns:
        Tile of that shape.

    Raises:
        TypeMismatchError: `shape-mismatch` when it does not broadcast.
    """
    ...


@tile_function
def expand_dims(x: TileLike, axis: int | Sequence[int]) -> Tile:
    """Add dimensions of size 1; `x[:, None]` means `expand_dims(x, 1)`.

    Args:
        x: tile.
        axis: positions of the new dimensions in the result.

    Returns:
        Tile with more dimensions.

    Raises:
        TypeMismatchError: `bad-axis` for a position outside the result.
    """
    ...


@tile_function
def stack(parts: Sequence[TileLike], axis: int = 0) -> Tile:
    """Put tiles of one shape, or numbers, side by side along a new dimension.

    Each part costs a selection of the whole result: meant for a few. A table of numbers is such a tile:

        levels = ts.tile.stack((-1.0, -0.5, 0.0, 0.5))
        y[i:i+64] = ts.tile.take(levels, q[i:i+64])

    Args:
        parts: compile-time tuple or list of tiles, or of scalars and Python numbers.
        axis: position of the new dimension in the result, counted from the end when negative.

    Returns:
        Tile with one dimension more, of the promoted dtype.

    Raises:
        TypeMismatchError: `shape-mismatch` for tiles of several shapes, `bad-argument` for no tiles, `bad-axis`.
    """
    ...


@tile_function
def join(a: TileLike, b: TileLike) -> Tile:
    """Return pairs of the elements of two tiles: `stack((a, b), axis=-1)`.

    Args:
        a: tile, or a scalar or number.
        b: tile of the same shape, or a scalar or number.

    Returns:
        Tile `(…, 2)` of the promoted dtype.

    Raises:
        TypeMismatchError: `shape-mismatch`.
    """
    ...


@tile_function
def concatenate(parts: Sequence[TileLike], axis: int = 0) -> Tile:
    """Put tiles one after the other along a dimension that they have.

    Tiles of one size cost a selection of the whole result each; others are moved to their places first, on GPUs through
    shared memory where threads share the dimension.

    Args:
        parts: compile-time tuple or list of tiles, whose sizes may differ along `axis` and are equal along others.
        axis: dimension, counted from the end when negative.

    Returns:
        Tile of the promoted dtype, along `axis` as long as all parts together.

    Raises:
        TypeMismatchError: `shape-mismatch` for tiles that differ elsewhere, `bad-argument` for no tiles, `bad-axis`.
    """
    ...
