"""Elements that change places: exchanges, sorting."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["argsort", "exchange", "sort", "topk"]


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


@tile_function
def topk(x: TileLike, k: int, axis: int = -1, largest: bool = True) -> tuple[Tile, Tile]:
    """Return the `k` largest elements along `axis`, in order, and where they are; NaNs count as the largest.

    Args:
        x: tile of numbers or bool.
        k: compile-time; from 1 to the size of the dimension.
        axis: dimension, counted from the end when negative.
        largest: compile-time; False for the smallest.

    Returns:
        Tile of the dtype of `x` and i32 tile, both with `k` elements along `axis`. Of equal elements the first comes
        first; zeros of at most 32 bits come out positive.

    Raises:
        TypeMismatchError: `bad-axis`; `bad-argument` for another `k`.
    """
    ...
