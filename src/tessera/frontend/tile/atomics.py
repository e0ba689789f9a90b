"""Atomic accesses, and fences.

[The memory of a program](memory-model.md) says what orders and scopes mean.
"""

from __future__ import annotations

from typing import Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Scalar, Tile, TileLike

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_compare_exchange",
    "atomic_exchange",
    "atomic_load",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_store",
    "atomic_xor",
    "fence",
]

Order = Literal["relaxed", "acquire", "release", "acq_rel", "seq_cst"]
LoadOrder = Literal["relaxed", "acquire", "seq_cst"]
StoreOrder = Literal["relaxed", "release", "seq_cst"]
FenceOrder = Literal["acquire", "release", "acq_rel", "seq_cst"]
Scope = Literal["group", "cluster", "device", "mesh"]


@tile_function
def atomic_add(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Add to elements of a tensor or shared buffer, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: tile or scalar, broadcast to the slice and converted to its dtype.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        LanguageError: `nondeterministic-atomic` for floats unless the profile is `fast`.
        TypeMismatchError: `bad-argument` for an unknown order or scope.

    Numerics:
        Float additions happen in no fixed order, so results differ in the last bits from run to run.
    """
    ...


@tile_function
def atomic_max(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Raise elements of a tensor or shared buffer to at least `value`, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: tile or scalar, broadcast to the slice and converted to its dtype.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_min(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Lower elements of a tensor or shared buffer to at most `value`, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: tile or scalar, broadcast to the slice and converted to its dtype.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_and(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Clear the bits that `value` lacks in integers.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: integer tile or scalar.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_or(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Set the bits of `value` in integers.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: integer tile or scalar.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_xor(target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Flip the bits of `value` in integers.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: integer tile or scalar.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `dtype-mismatch` for floats.
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_exchange(
    target: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device"
) -> Tile | Scalar:
    """Replace elements of a tensor or shared buffer, each in one indivisible step.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: tile or scalar, broadcast to the slice and converted to its dtype.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; zero for elements outside, which are left alone.

    Raises:
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_compare_exchange(
    target: TileLike, compare: TileLike, value: TileLike, order: Order = "relaxed", scope: Scope = "device"
) -> Tile | Scalar:
    """Replace the elements whose bits are those of `compare`, each in one indivisible step.

    Floats are compared by their bits, too: -0.0 is not 0.0, and a NaN is itself.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        compare: expected values.
        value: new values.
        order: memory order; any of them.
        scope: the programs that the order holds for.

    Returns:
        The old values; where they are `compare`, the exchange took place. Elements outside are left
        alone, and their old value is zero.

    Raises:
        TypeMismatchError: `bad-argument` for an unknown order or scope.
    """
    ...


@tile_function
def atomic_load(target: TileLike, order: LoadOrder = "relaxed", scope: Scope = "device") -> Tile | Scalar:
    """Read elements of a tensor or shared buffer, each in one indivisible step, whatever others do meanwhile.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        order: `relaxed`, `acquire` (nothing after it happens before it) or `seq_cst`.
        scope: the programs that the order holds for.

    Returns:
        The values; zero for elements outside.

    Raises:
        TypeMismatchError: `bad-argument` for an order that a load cannot have, or an unknown scope.
    """
    ...


@tile_function
def atomic_store(target: TileLike, value: TileLike, order: StoreOrder = "relaxed", scope: Scope = "device") -> None:
    """Write elements of a tensor or shared buffer, each in one indivisible step. None outside is written.

    Args:
        target: `A[...]` with slices, integers or index tiles, a shared buffer, or elements of one (`hist[idx]`).
        value: tile or scalar, broadcast to the slice and converted to its dtype.
        order: `relaxed`, `release` (nothing before it happens after it) or `seq_cst`.
        scope: the programs that the order holds for.

    Raises:
        TypeMismatchError: `bad-argument` for an order that a store cannot have, or an unknown scope.
    """
    ...


@tile_function
def fence(order: FenceOrder = "acq_rel", scope: Scope = "device") -> None:
    """Order all that the program has accessed before all that it accesses afterwards.

    Args:
        order: `acquire` (atomic loads before it acquire), `release` (atomic stores after it release), `acq_rel` (both)
            or `seq_cst` (all such fences have one order, too).
        scope: the programs that the order holds for.

    Raises:
        TypeMismatchError: `bad-argument` for an order that a fence cannot have, or an unknown scope.
    """
    ...
