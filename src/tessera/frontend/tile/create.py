"""Making tiles."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike
from tessera.numerics.dtypes import DType, Policy, f32, i32

__all__ = ["arange", "full", "full_like", "zeros", "zeros_like"]

Shape = int | tuple[int, ...]


@tile_function
def zeros(shape: Shape, dtype: DType | Policy | str = f32) -> Tile:
    """Return a tile of zeros.

    Args:
        shape: compile-time sizes.
        dtype: element type.

    Returns:
        Tile of that shape and dtype.

    Raises:
        LanguageError: `not-static` or `dim-not-static` for a size that is not known at compile time.
    """
    ...


@tile_function
def full(shape: Shape, value: TileLike, dtype: DType | Policy | str | None = None) -> Tile:
    """Return a tile whose elements all are `value`.

    Args:
        shape: compile-time sizes.
        value: a number or run-time scalar.
        dtype: element type; by default the scalar's own, f32 for a Python float, i32 for a Python
            int, or i64 where it needs that.

    Returns:
        Tile of that shape and dtype.

    Raises:
        LanguageError: `not-static` for a size that is not known at compile time.
        TypeMismatchError: `constant-range` when an integer dtype cannot hold the value; beyond a float dtype's largest
            number it is infinite.
    """
    ...


@tile_function
def zeros_like(x: TileLike, dtype: DType | Policy | str | None = None) -> Tile:
    """Return zeros of the shape and, unless `dtype` is given, the dtype of `x`.

    Args:
        x: tile, slice or shared buffer.
        dtype: element type, by default that of `x`.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def full_like(x: TileLike, value: TileLike, dtype: DType | Policy | str | None = None) -> Tile:
    """Return a tile of the shape of `x` whose elements all are `value`.

    Args:
        x: tile, slice or shared buffer.
        value: a number or run-time scalar.
        dtype: element type, by default that of `x`.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def arange(start: int, stop: int | None = None, dtype: DType | str = i32) -> Tile:
    """Return `0, 1, …, start-1`, or `start, …, stop-1` when `stop` is given.

    Args:
        start: the size, or the first value.
        stop: value after the last.
        dtype: integer or float type.

    Returns:
        Tile of one dimension.

    Raises:
        LanguageError: `not-static` for bounds that are not known at compile time.
        TypeMismatchError: `bad-shape` for an empty range.
    """
    ...
