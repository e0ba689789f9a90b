"""Bits of integers, and of other types through `bitcast`.

Operands broadcast and are promoted as in arithmetic, but for the counts of rotations; numbers of bits have the type of
what they are counted in.
"""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike
from tessera.numerics.dtypes import DType, Policy

__all__ = ["bitcast", "byte_perm", "clz", "ctz", "popcount", "rotl", "rotr"]


@tile_function
def bitcast(x: TileLike, dtype: DType | Policy | str) -> Tile:
    """Return the same bits as another dtype of the same width; `cast` converts numbers.

    Args:
        x: tile or scalar of 8, 16, 32 or 64 bits.
        dtype: a dtype of that width, not bool.

    Returns:
        Tile of the shape of `x`.

    Raises:
        TypeMismatchError: `dtype-mismatch` for bool, another width, or a Python number, which has none.
    """
    ...


@tile_function
def popcount(x: TileLike) -> Tile:
    """Return how many bits are set.

    Args:
        x: integer tile or scalar.

    Returns:
        Integer tile of the same shape and dtype.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def clz(x: TileLike) -> Tile:
    """Return how many bits above the highest set one are zero; the width for 0.

    Args:
        x: integer tile or scalar.

    Returns:
        Integer tile of the same shape and dtype.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def ctz(x: TileLike) -> Tile:
    """Return how many bits below the lowest set one are zero; the width for 0.

    Args:
        x: integer tile or scalar.

    Returns:
        Integer tile of the same shape and dtype.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def rotl(x: TileLike, n: TileLike) -> Tile:
    """Return the bits moved up by `n`, those that leave at the top back at the bottom.

    Args:
        x: integer tile or scalar.
        n: integer tile, scalar or number of any dtype, taken modulo the width of `x`.

    Returns:
        Tile of the broadcast shape and the dtype of `x`.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def rotr(x: TileLike, n: TileLike) -> Tile:
    """Return the bits moved down by `n`, those that leave at the bottom back at the top.

    Args:
        x: integer tile or scalar.
        n: integer tile, scalar or number of any dtype, taken modulo the width of `x`.

    Returns:
        Tile of the broadcast shape and the dtype of `x`.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
    """
    ...


@tile_function
def byte_perm(x: TileLike, y: TileLike, selector: TileLike) -> Tile:
    """Return four of the eight bytes of two words: CUDA's `__byte_perm`, one `prmt` on NVIDIA GPUs.

    Byte `i` of the result is the one whose number stands in bits `4 * i` to `4 * i + 2` of the selector: 0 to 3 are the
    bytes of `x` from the lowest, 4 to 7 those of `y`. The other bits of the selector mean nothing.

    Args:
        x: tile, scalar or number of 32-bit integers.
        y: the same.
        selector: the same, such as `0x0123` to reverse the bytes of `x`.

    Returns:
        u32 tile of the broadcast shape.

    Raises:
        TypeMismatchError: `dtype-mismatch` for other dtypes.
    """
    ...
