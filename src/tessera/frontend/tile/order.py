"""Elements that change places: exchanges, sorting."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["argsort", "exchange", "sort"]


@tile_function
def exchange(x: TileLike, bits: int, axis: int = -1) -> Tile:
    """Return a tile whose element `i` along `axis` is that of `i ^ bits`; one that has no such partner keeps its own.

    The step of butterflies: of sorting networks, of Fourier and Hadamard transforms. On GPUs it is a shuffle within a
    warp, and goes through shared memory between warps.

    Args:
        x: tile.
        bits: compile-time; which bits of the index differ.
        axis: dimension, counted from the end when negative.

    Returns:
        Tile of the type of `x`.

    Raises:
        TypeMismatchError: `bad-axis`; `bad-argument` for negative bits.
    """
    ...


@tile_function
def sort(x: TileLike, axis: int = -1, descending: bool = False) -> Tile:
    """Return the elements in order along `axis`; NaNs count as the largest.

    Args:
        x: tile of numbers or bool.
        axis: dimension, counted from the end when negative.
        descending: compile-time; the largest first.

    Returns:
        Tile of the type of `x`. Zeros of both signs are in no order among themselves.

    Raises:
        TypeMismatchError: `bad-axis`.

    Source:
        Batcher, "Sorting networks and their applications", AFIPS 1968: the bitonic network, with mirrored first steps.
    """
    ...


@tile_function
def argsort(x: TileLike, axis: int = -1, descending: bool = False) -> Tile:
    """Return where the elements that `sort` gives come from; of equal elements the first comes first.

    Args:
        x: tile of numbers or bool.
        axis: dimension, counted from the end when negative.
        descending: compile-time; the largest first.

    Returns:
        i32 tile of the shape of `x`.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    ...
