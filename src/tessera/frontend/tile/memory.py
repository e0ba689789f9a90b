"""Access to tensors in global memory. Plain slices (`A[m:m+64, :]`) do the same with less text."""

from __future__ import annotations

from typing import Any, Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Scalar, Tile, TileLike

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_compare_exchange",
    "atomic_exchange",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xor",
    "load",
    "store",
]

Order = Literal["relaxed", "acquire", "release", "acq_rel"]
Scope = Literal["group", "cluster", "device", "mesh"]


@tile_function
def load(source: TileLike, fill: Any = None) -> Tile:
    """Load a slice of a tensor, or read a shared buffer.

    Elements outside the tensor are `fill` and are not read. `A[m:m+64]` alone means `load(A[m:m+64])`.

    Args:
        source: `A[...]` with slices, integers or index tiles, or a shared buffer.
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
        target: `A[...]` with slices, integers or index tiles, or a shared buffer.
        value: tile, scalar or number.

    Raises:
        TypeMismatchError: `shape-mismatch` when the value does not broadcast to the slice.
    """
    ...


@tile_function
def atomic_add(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Add to elements of a tensor, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: tile or scalar, broadcast to the slice and converted to the tensor's dtype.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.

    Raises:
        LanguageError: `nondeterministic-atomic` for a float tensor unless the profile is `fast`.
        TypeMismatchError: `bad-argument` for an unknown order or scope.

    Numerics:
        Float additions happen in no fixed order, so results differ in the last bits from run to run.
    """
    ...


@tile_function
def atomic_max(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Raise elements of a tensor to at least `value`, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: tile or scalar, broadcast to the slice and converted to the tensor's dtype.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.
    """
    ...


@tile_function
def atomic_min(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Lower elements of a tensor to at most `value`, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: tile or scalar, broadcast to the slice and converted to the tensor's dtype.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.
    """
    ...


@tile_function
def atomic_and(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Clear the bits that `value` lacks in elements of an integer tensor.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: integer tile or scalar.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for a float tensor.
    """
    ...


@tile_function
def atomic_or(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Set the bits of `value` in elements of an integer tensor.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: integer tile or scalar.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for a float tensor.
    """
    ...


@tile_function
def atomic_xor(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Flip the bits of `value` in elements of an integer tensor.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: integer tile or scalar.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for a float tensor.
    """
    ...


@tile_function
def atomic_exchange(
    target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device"
) -> Tile | Scalar:
    """Replace elements of a tensor, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        value: tile or scalar, broadcast to the slice and converted to the tensor's dtype.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; zero for elements outside the tensor, which are left alone.
    """
    ...


@tile_function
def atomic_compare_exchange(
    target: TileLike, compare: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device"
) -> Tile | Scalar:
    """Replace the elements of a tensor that equal `compare`, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles.
        compare: expected values.
        value: new values.
        order: memory order.
        scope: which programs see the order.

    Returns:
        The old values; where they equal `compare`, the exchange took place. Elements outside the tensor are left
        alone, and their old value is zero.
    """
    ...
