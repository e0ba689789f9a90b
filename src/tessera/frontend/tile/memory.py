"""Access to tensors in global memory. Plain slices (`A[m:m+64, :]`) do the same with less text."""

from __future__ import annotations

from typing import Any

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike

__all__ = [
    "load",
    "store",
]


@tile_function
def load(source: TileLike, fill: Any = None) -> Tile:
    """Load a slice of a tensor, or read a shared buffer.

    Elements outside the tensor are `fill` and are not read. `A[m:m+64]` alone means `load(A[m:m+64])`.

    Args:
        source: `A[...]` with slices, integers or index tiles, a shared buffer, or a part of one.
        fill: value of elements outside the tensor or masked off by an `if`; zero by default.

    Returns:
        Tile of the slice's shape and the tensor's dtype; a scalar when every dimension has an integer index.

    Raises:
        TypeMismatchError: `not-a-slice` when `source` is neither.
    """
    ...


@tile_function
def store(target: TileLike, value: TileLike) -> None:
    """Store to a slice of a tensor or to a shared buffer; `A[...] = value` means the same.

    The value is broadcast to the slice's shape and converted to the tensor's dtype. Elements outside the
    tensor are not written.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or a part of one.
        value: tile, scalar or number.

    Raises:
        TypeMismatchError: `shape-mismatch` when the value does not broadcast to the slice.
    """
    ...
