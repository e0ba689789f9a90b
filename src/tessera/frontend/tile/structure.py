"""Loops and the parallel grid."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Context, Tile

__all__ = ["assume", "context", "grid", "linear_id", "range", "role", "static_range"]


@tile_function
def assume(condition: Any) -> None:
    """Say what holds in every call, so that the kernel can be compiled for it; each call is checked.

    `ts.assume(n % 16 == 0)` lets accesses along a dimension of `n` elements do without a test for the end where tiles
    divide it, and slices that begin at multiples of a scalar move aligned vectors. Divisors of sizes and of integer
    arguments (`x % 8 == 0`), and bounds of arguments (`0 <= k`, `k < 64`), make code faster; other conditions are
    checked only.

    Args:
        condition: bool, computed from sizes, integer and bool arguments and constants. It is said of the whole call,
            wherever it stands.

    Raises:
        LanguageError: `bad-assumption` for a condition that depends on more, such as on an element or an offset of
            the grid, and inside a loop or branch whose course a call decides.
        CallError: `assumption`, at a call for which it does not hold: before anything runs, with the line.
    """
    ...


@tile_function
def grid(*dims: tuple[Any, Any], order: tuple[int, ...] | None = None) -> Iterable[Any]:
    """Declare the parallel grid: one program runs the loop's body for each tile.

    The loop variables are the offsets of the program's tile, in elements. Programs may run in any order and
    at the same time; persistence and clusters belong to the schedule. Two grids one after the other in a kernel
    are two launches in that order. Every program begins with the values that names have before the grid, and what
    it binds is its own: nothing is summed from program to program but in a tensor, by an atomic.

        for m, n in ts.tile.grid((M, 64), (N, 64)):
            C[m:m+64, n:n+64] = A[m:m+64, n:n+64]

    Args:
        *dims: one `(extent, block)` pair per dimension; the block is known at compile time. The last
            dimension varies fastest.
        order: compile-time; a hint in which order programs start: the dimensions, from the one that varies slowest to
            the one that varies fastest. With `order=(1, 0)` programs of one column follow each other, which share
            columns of an operand in caches. Results do not depend on it.

    Returns:
        The iterable of a `for` loop: one offset for one dimension, a tuple of offsets for several.

    Raises:
        LanguageError: `nested-grid` inside another loop or a branch, `bad-grid` for anything but pairs, or for an
            order that is no permutation, `not-static` for a block that is not known at compile time.
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


@tile_function
def role(
    kind: Literal["producer", "consumer"], warps: int | None = None, registers: int | None = None
) -> AbstractContextManager[None]:
    """Mark statements as those of a producer, which copies, or of a consumer, which computes.

        for k in ts.tile.range(0, K, 64):
            with ts.tile.role("producer", registers=40):
                ts.tile.async_copy_2d(a, A[m:m+64, k:k+64])
                ts.tile.pipeline.commit()
            with ts.tile.role("consumer", warps=8):
                ts.tile.pipeline.wait()
                acc = ts.tile.mma(a, b, acc)

    The statements mean what they mean in program order, on every target. Where the schedule splits a program's warps
    (Hopper), copies are the producer's, with the warps and registers that are asked for; `kernel.explain()` says where
    it does not.

    Args:
        kind: `producer` or `consumer`.
        warps: compile-time; of consumers the knob `num_warps`, producers have 4.
        registers: compile-time registers of a thread of the role, the knob `producer_registers` or
            `consumer_registers`.

    Returns:
        What a `with` statement takes.

    Raises:
        LanguageError: `bad-argument`; `nested-role` in another role; `role-jump` for a `break`, `continue` or `return`
            that leaves it; `producer-computes` for anything but copies, waits and scalars in a producer;
            `consumer-copies` for an asynchronous copy in a consumer; `role-conflict` where two regions of one kind
            ask for different numbers.
    """
    ...
