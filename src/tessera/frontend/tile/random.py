"""Counter-based random numbers: the same seed and offset give the same number on every backend."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = ["dropout", "philox", "rand"]


@tile_function
def philox(seed: TileLike, offsets: TileLike) -> tuple[Tile, Tile, Tile, Tile]:
    """Return four tiles of 32 random bits from Philox4x32-10.

    Args:
        seed: 64-bit key.
        offsets: integer tile of counters, such as element numbers.

    Returns:
        Four u32 tiles of the shape of `offsets`.

    Raises:
        TypeMismatchError: `dtype-mismatch` when seed or offsets are not integers.

    Source:
        Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    ...


@tile_function
def rand(seed: TileLike, offsets: TileLike) -> Tile:
    """Return uniform random numbers in [0, 1), multiples of 2**-24.

    Args:
        seed: 64-bit key.
        offsets: integer tile of counters.

    Returns:
        Tile of f32 of the shape of `offsets`: the first Philox word's upper 24 bits.
    """
    ...


@tile_function
def dropout(x: TileLike, p: TileLike, seed: TileLike, offsets: TileLike) -> Tile:
    """Zero each element with probability `p` and scale the others by `1 / (1 - p)`.

    Args:
        x: float tile.
        p: probability in [0, 1).
        seed: 64-bit key.
        offsets: integer tile of counters that broadcasts with `x`; one number per element.

    Returns:
        Tile of the shape and dtype of `x`.

    Raises:
        TypeMismatchError: `bad-argument` for a constant `p` outside [0, 1).
    """
    ...
