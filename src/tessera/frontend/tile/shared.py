"""The explicit memory level: shared buffers, asynchronous copies and barriers.

Plain slices need none of this; staging is then the compiler's.
"""

from __future__ import annotations

from typing import Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Shared, TileLike
from tessera.numerics.dtypes import DType, Policy

__all__ = [
    "alloc_shared",
    "async_copy_2d",
    "async_copy_3d",
    "barrier",
    "commit_group",
    "cp_async",
    "wait_group",
]


@tile_function
def alloc_shared(
    shape: int | tuple[int, ...], dtype: DType | Policy | str, swizzle: Literal["none", "xor"] = "none"
) -> Shared:
    """Allocate a buffer in the program's shared memory; its contents are undefined.

    Args:
        shape: compile-time sizes.
        dtype: element type.
        swizzle: `xor` permutes columns within rows so that reading a column has no bank conflicts. Such a buffer is
            accessed whole or by stages, not in parts.

    Returns:
        Shared buffer.

    Raises:
        LanguageError: `not-static` for a size not known at compile time, `alloc-in-loop` inside a loop.
        ResourceError: `shared-memory`, when compiled for a target that has less.
    """
    ...


@tile_function
def cp_async(buffer: TileLike, source: TileLike) -> None:
    """Start copying a slice of a tensor to a shared buffer; elements outside the tensor become zero.

    The copy joins the next `commit_group`. The buffer may be read after `wait_group` and a `barrier`, or
    after a `barrier` alone when no group was committed.

    Args:
        buffer: shared buffer of the slice's shape and dtype.
        source: `A[...]` of slices and integers.

    Raises:
        TypeMismatchError: `shape-mismatch`, `dtype-mismatch`, or `not-a-slice` for anything but a slice.
        LanguageError: `predicated` inside an `if` on a tile.
    """
    ...


@tile_function
def async_copy_2d(buffer: TileLike, source: TileLike) -> None:
    """Another name of `cp_async`, for slices of two dimensions.

    Args:
        buffer: shared buffer `(M, N)`.
        source: `A[...]`.

    Raises:
        TypeMismatchError: `rank-mismatch` for another number of dimensions.
    """
    ...


@tile_function
def async_copy_3d(buffer: TileLike, source: TileLike) -> None:
    """Another name of `cp_async`, for slices of three dimensions.

    Args:
        buffer: shared buffer `(L, M, N)`.
        source: `A[...]`.

    Raises:
        TypeMismatchError: `rank-mismatch` for another number of dimensions.
    """
    ...


@tile_function
def commit_group() -> None:
    """Close the group of asynchronous copies started since the last one."""
    ...


@tile_function
def wait_group(pending: int = 0) -> None:
    """Wait until at most `pending` of the newest committed groups are unfinished.

    Args:
        pending: compile-time number of groups that may stay in flight.

    Raises:
        LanguageError: `not-static`, or `bad-argument` for a negative number.
    """
    ...


@tile_function
def barrier() -> None:
    """Wait for every lane of the program, and order their accesses to shared memory.

    When copies were started and not committed before, the barrier also commits and waits for all copies, so
    that `cp_async` followed by `barrier` alone is correct.

    Raises:
        LanguageError: `predicated` inside an `if` on a tile.
    """
    ...
