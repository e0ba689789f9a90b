"""Barriers of copies by hand: one for each stage of a ring, arrived at and waited for.

    full = ts.tile.mbarrier.alloc(2)
    for k in ts.tile.range(0, K, 64):
        ts.tile.async_copy_2d(a[slot], A[m:m+64, k:k+64])
        ts.tile.mbarrier.arrive(full[slot])
        ts.tile.mbarrier.wait(full[slot])
        acc = ts.tile.mma(a[slot], b, acc)

The compiler counts their phases. Where a schedule splits the program into roles, they become those of its rings;
otherwise a wait is one for all copies.

Source: PTX ISA, "mbarrier".
"""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Barrier, Barriers

__all__ = ["alloc", "arrive", "wait"]


@tile_function
def alloc(count: int = 1) -> Barriers:
    """Allocate barriers.

    Args:
        count: how many, at compile time.

    Returns:
        Barriers, `full[slot]` is one of them.

    Raises:
        LanguageError: `not-static`, or `bad-argument` for less than one.
    """
    ...


@tile_function
def arrive(barrier: Barrier) -> None:
    """Arrive at a barrier: its phase ends when the copies that were started before have arrived.

    Args:
        barrier: `full[slot]`.

    Raises:
        TypeMismatchError: `not-a-barrier`.
    """
    ...


@tile_function
def wait(barrier: Barrier) -> None:
    """Wait until the copies before the last arrival at a barrier have arrived, and for every lane of the program.

    Args:
        barrier: `full[slot]`.

    Raises:
        TypeMismatchError: `not-a-barrier`.
        LanguageError: `never-arrived` where nothing in the kernel arrives at these barriers.
    """
    ...
