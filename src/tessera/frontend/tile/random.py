"""Counter-based random numbers: the same seed and offset give the same number on every backend."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike
from tessera.numerics.dtypes import DType, i32

__all__ = ["dropout", "philox", "rand", "randint", "randn"]


@tile_function
def philox(seed: TileLike, offsets: TileLike) -> tuple[Tile, Tile, Tile, Tile]:
    """Return four tiles of 32 random bits from Philox4x32-10.

    Args:
        seed: 64-bit key.
        offsets: integer tile of counters, such as element numbers, or a scalar.

    Returns:
        Four u32 tiles of the shape of `offsets`, or scalars.

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
        offsets: integer tile of counters, or a scalar, which gives a scalar.

    Returns:
        Tile of f32 of the shape of `offsets`: the first Philox word's upper 24 bits.
    """
    ...


@tile_function
def randn(seed: TileLike, offsets: TileLike) -> Tile:
    """Return random numbers of the normal distribution with mean 0 and variance 1.

    Args:
        seed: 64-bit key.
        offsets: integer tile of counters, or a scalar, which gives a scalar.

    Returns:
        Tile of f32 of the shape of `offsets`: `sqrt(-2 log u) cos(2 pi v)`, where `u` is the first Philox word as a
        number in (0, 1] and `v` the upper 24 bits of the second.

    Raises:
        TypeMismatchError: `dtype-mismatch` when seed or offsets are not integers.

    Numerics:
        Backends agree to the errors of `log`, `sqrt` and `cos`, not to the bit. No number is larger than 6.8.

    Source:
        Box and Muller, "A note on the generation of random normal deviates", 1958.
    """
    ...


@tile_function
def randint(seed: TileLike, offsets: TileLike, low: TileLike, high: TileLike, dtype: DType | str = i32) -> Tile:
    """Return random integers from `low` up to but without `high`, all about equally likely.

    Args:
        seed: 64-bit key.
        offsets: integer tile of counters, or a scalar, which gives a scalar.
        low: the least integer, a number or a scalar.
        high: the integer after the largest, a number or a scalar, less than 2**32 above `low`.
        dtype: integer type of the result, which holds both.

    Returns:
        Tile of the shape of `offsets`: `low` and the upper half of the first Philox word times `high - low`.

    Raises:
        TypeMismatchError: `dtype-mismatch` when seed, offsets, a bound or the dtype is no integer, `bad-argument` for
            constant bounds without integers between them, `constant-range` for those that the dtype does not hold.

    Numerics:
        The probability of a number is off by at most 2**-32.
    """
    ...


@tile_function
def dropout(x: TileLike, p: TileLike, seed: TileLike, offsets: TileLike) -> Tile:
    """Zero each element with probability `p` and scale the others by `1 / (1 - p)`.

    Args:
        x: float tile or scalar.
        p: probability in [0, 1).
        seed: 64-bit key.
        offsets: integer tile of counters, or a scalar, that broadcasts with `x`; one number per element.

    Returns:
        Tile of the shape and dtype of `x`.

    Raises:
        TypeMismatchError: `bad-argument` for a constant `p` outside [0, 1).
    """
    ...
