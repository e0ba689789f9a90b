"""Reductions over all lanes of a program, however many warps and lanes a target gives it."""

from __future__ import annotations

from typing import Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Scalar, TileLike

__all__ = ["all", "any", "barrier", "max", "min", "prod", "reduce", "sum"]


@tile_function
def sum(x: TileLike) -> Scalar:
    """Return the sum of all elements, which every lane gets.

    Args:
        x: tile of numbers.

    Returns:
        Scalar of the dtype that `ts.tile.sum` gives.
    """
    ...


@tile_function
def prod(x: TileLike) -> Scalar:
    """Return the product of all elements, which every lane gets.

    Args:
        x: tile of numbers.

    Returns:
        Scalar of the dtype that `ts.tile.prod` gives.
    """
    ...


@tile_function
def max(x: TileLike) -> Scalar:
    """Return the largest element, which every lane gets; NaN wins.

    Args:
        x: tile of numbers.

    Returns:
        Scalar of the tile's dtype.
    """
    ...


@tile_function
def min(x: TileLike) -> Scalar:
    """Return the smallest element, which every lane gets; NaN wins.

    Args:
        x: tile of numbers.

    Returns:
        Scalar of the tile's dtype.
    """
    ...


@tile_function
def all(x: TileLike) -> Scalar:
    """Return whether all elements are true.

    Args:
        x: bool tile.

    Returns:
        Bool scalar.
    """
    ...


@tile_function
def any(x: TileLike) -> Scalar:
    """Return whether an element is true.

    Args:
        x: bool tile.

    Returns:
        Bool scalar.
    """
    ...


@tile_function
def reduce(x: TileLike, op: Literal["sum", "prod", "max", "min", "all", "any"]) -> Scalar:
    """Return a reduction over all elements, by name.

    Args:
        x: tile.
        op: which.

    Returns:
        Scalar, as the function of that name returns.

    Raises:
        LanguageError: `bad-argument` for another name.
    """
    ...


@tile_function
def barrier() -> None:
    """Wait for every lane of the program, as `ts.tile.barrier` does."""
    ...
