"""Loops and the parallel grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Context, Tile

__all__ = ["context", "grid", "linear_id", "range", "static_range"]


@tile_function
def grid(*dims: tuple[Any, Any]) -> Iterable[Any]:
    """Declare the parallel grid: one program runs the loop's body for each tile.

    The loop variables are the offsets of the program's tile, in elements. Programs may run in any order and
    at the same time; raster order, persistence and clusters belong to the schedule. Two grids one after the
    other in a kernel are two launches in that order.

        for m, n in ts.tile.grid((M, 64), (N, 64)):
            C[m:m+64, n:n+64] = A[m:m+64, n:n+64]

    Args:
        *dims: one `(extent, block)` pair per dimension; the block is known at compile time. The last
            dimension varies fastest.

    Returns:
        The iterable of a `for` loop: one offset for one dimension, a tuple of offsets for several.

    Raises:
        LanguageError: `nested-grid` inside another loop or a branch, `bad-grid` for anything but pairs,
            `not-static` for a block that is not known at compile time.
    """
    ...


@tile_function
def range(*bounds: Any) -> Iterable[Any]:
    """Loop in order within a program: `range(hi)`, `range(lo, hi)` or `range(lo, hi, step)`.

    Names that the body rebinds are carried from one iteration to the next and must keep their type. The
    schedule may overlap the loads of later iterations with the arithmetic of earlier ones.

    The variable takes the values `lo`, `lo + step`, … below `hi`, also where these lie near the ends of the 64-bit
    range: it never wraps. A step that is not positive when the kernel runs gives no iteration; `TESSERA_DEBUG=1` and
    the interpreter report it.

    Args:
        *bounds: integers, constants or run-time values, as for Python's `range`; the step is positive.

    Returns:
        The iterable of a `for` loop.

    Raises:
        LanguageError: `bad-range` for a step that is not positive.
        TypeMismatchError: `loop-type-changed` when a carried name changes its type.
    """
    ...


@tile_function
def static_range(*bounds: int) -> Iterable[int]:
    """Repeat the body once per value at compile time; the loop variable is a constant.

    Args:
        *bounds: compile-time integers, as for Python's `range`.

    Returns:
        The iterable of a `for` loop.

    Raises:
        LanguageError: `not-static` for a bound that is not known at compile time.
    """
    ...


@tile_function
def linear_id() -> Tile:
    """Return a tile of global element numbers: program `p` of block size `B` sees `p*B … p*B + B-1` as i64.

    The kernel becomes a one-dimensional grid over the elements of the tensor it returns (or, when it returns
    none, the first one it stores to other than by an atomic). The last program's ids may reach past the end;
    guard them:

        i = ts.tile.linear_id()
        if i < n:
            y[i] = 2.0 * x[i]

    Returns:
        Tile of shape `(B,)`, dtype i64.

    Raises:
        LanguageError: `linear-id-in-grid` in a kernel that declares a grid.
    """
    ...


@tile_function
def context() -> Context:
    """Return the kernel's constants: its tuning point (`ctx.BLOCK_M`) and its dimensions (`ctx.S`).

    Returns:
        An object whose attributes are the tunables, the constexpr parameters and the dimensions.

    Raises:
        LanguageError: `unknown-name` for an attribute that is none of these.
    """
    ...
