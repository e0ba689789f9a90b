"""Reductions and scans.

16-bit and smaller operands are widened to the accumulation type first (f32, or i32 for integers and bool; the
policy's `accum` if it names one), and the result has that type. Combiners of the user's own compute in the types that
they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Axes, Scalar, Tile, TileLike

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "associative_scan",
    "combine_moments",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "prod",
    "reduce",
    "row_max",
    "row_sum",
    "scan",
    "softmax",
    "sum",
    "var",
]

Reduction = Literal["sum", "max", "min", "prod", "any", "all"]
Combiner = Callable[..., Any]
"""A `@ts.function` that combines elements: of one tile `(a, b) -> a`, of two `(a, x, b, y) -> (a, x)`, and so on."""


@tile_function
def reduce(
    x: TileLike | tuple[TileLike, ...], axis: Axes = None, op: Reduction | Combiner = "sum", keepdims: bool = False
) -> Any:
    """Combine the elements of a tile, or of several together, along one dimension or several, which disappear.

    A combiner of your own is a `@ts.function` that takes an element of each tile and then another one of each, as
    scalars, and returns one for each tile, in the tiles' dtypes:

        @ts.function
        def larger(a, i, b, j):
            first = (a > b) | ((a == b) & (i < j))
            return ts.tile.where(first, a, b), ts.tile.where(first, i, j)

        value, place = ts.tile.reduce((x, ts.tile.arange(64)), 0, larger)

    Args:
        x: tile, or for a combiner of your own a tuple of tiles of one shape.
        axis: dimension, counted from the end when negative, or a tuple of them; None combines all elements to a scalar.
        op: `sum`, `max`, `min`, `prod`, on bool tiles `any` and `all`, or a combiner. It is to be associative and
            commutative, as the order in which elements are combined is not told.
        keepdims: compile-time; keep these dimensions with size 1, so that the result broadcasts with `x`.

    Returns:
        Tile without those dimensions; a scalar when none is left. A tuple of them where `x` is one.

    Raises:
        TypeMismatchError: `bad-axis`, `bad-argument` for an unknown `op`, `shape-mismatch` for tiles of several shapes,
            `dtype-mismatch` for a combiner that returns another type.
        LanguageError: `bad-combiner` for one that does more than compute with its elements.

    Numerics:
        `max` and `min` give NaN when an element is NaN. A combiner computes in the types of the tiles.
    """
    ...


@tile_function
def sum(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the sum along `axis`, or of all elements.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def max(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the largest element along `axis`, or of all; NaN wins.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def min(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the smallest element along `axis`, or of all; NaN wins.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def prod(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the product along `axis`, or of all elements.

    Args:
        x: tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar.
    """
    ...


@tile_function
def any(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return whether an element of a bool tile is true.

    Args:
        x: bool tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Bool tile without those dimensions, or a bool scalar.

    Raises:
        TypeMismatchError: `dtype-mismatch` for another dtype.
    """
    ...


@tile_function
def all(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return whether all elements of a bool tile are true.

    Args:
        x: bool tile.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Bool tile without those dimensions, or a bool scalar.

    Raises:
        TypeMismatchError: `dtype-mismatch` for another dtype.
    """
    ...


@tile_function
def mean(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the mean along `axis`, or of all elements.

    Args:
        x: tile; integers become f32.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Float tile without those dimensions, or a scalar.

    Numerics:
        The sum divided by the number of elements of the tile, those outside a tensor included, which load as zeros.
    """
    ...


@tile_function
def var(x: TileLike, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tile | Scalar:
    """Return the variance along `axis`, or of all elements.

    Args:
        x: tile; integers become f32.
        axis: dimension or tuple of dimensions, None for all.
        keepdims: compile-time; keep these dimensions with size 1.
        ddof: compile-time; the sum is divided by the number of elements less this: 1 estimates a population's variance
            from a sample.

    Returns:
        Float tile without those dimensions, or a scalar.

    Raises:
        TypeMismatchError: `bad-argument` when `ddof` leaves nothing to divide by.

    Numerics:
        Two passes, so that nothing cancels: the mean first, then the sum of the squares of the differences from it,
        less what the rounding of the mean adds to it: means may be many times larger than deviations.
        Elements outside a tensor count as the zeros that they load as.
    """
    ...


@tile_function
def combine_moments(
    count: TileLike, mean: TileLike, deviation: TileLike, more: TileLike, other: TileLike, others: TileLike
) -> tuple[Tile, Tile, Tile]:
    """Combine the statistics of two groups of elements, as sums of squares would not: nothing cancels.

        n, m, d = ts.tile.zeros((64,), ts.f32), ts.tile.zeros((64,), ts.f32), ts.tile.zeros((64,), ts.f32)
        for k in ts.tile.range(0, K, 128):
            x = X[r:r+64, k:k+128]
            n, m, d = ts.tile.combine_moments(n, m, d, 128.0, x.mean(1), x.var(1) * 128.0)
        variance = d / n

    Args:
        count: how many elements the first group has, a float; may be 0.
        mean: their mean.
        deviation: the sum of the squares of their differences from it.
        more: how many elements the second group has.
        other: their mean.
        others: the sum of the squares of their differences from it.

    Returns:
        Count, mean and sum of squared differences of both groups: tiles of the broadcast shape, or scalars.

    Raises:
        TypeMismatchError: `dtype-mismatch` for what is no float.

    Source:
        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    ...


@tile_function
def row_sum(x: TileLike) -> Tile | Scalar:
    """Return the sum along the last dimension.

    Args:
        x: tile `(…, N)`.

    Returns:
        Tile `(…,)`; a scalar for one dimension.
    """
    ...


@tile_function
def row_max(x: TileLike) -> Tile | Scalar:
    """Return the largest element along the last dimension; NaN wins.

    Args:
        x: tile `(…, N)`.

    Returns:
        Tile `(…,)`; a scalar for one dimension.
    """
    ...


@tile_function
def scan(
    x: TileLike | tuple[TileLike, ...], axis: int = -1, op: Reduction | Combiner = "sum", reverse: bool = False
) -> Any:
    """Return the running combination along `axis`, each element included.

    Args:
        x: tile, or for a combiner of your own a tuple of tiles of one shape.
        axis: dimension, counted from the end when negative.
        op: `sum`, `max`, `min`, `prod`, on bool tiles `any` and `all`, or a combiner as `reduce` takes: its first
            elements are what has been combined so far. It is to be associative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`; a tuple of them where `x` is one.

    Raises:
        TypeMismatchError: `bad-axis`, `bad-argument` for an unknown `op`, `shape-mismatch` for tiles of several shapes,
            `dtype-mismatch` for a combiner that returns another type.
        LanguageError: `bad-combiner` for one that does more than compute with its elements.
    """
    ...


@tile_function
def associative_scan(
    x: TileLike | tuple[TileLike, ...], axis: int, op: Reduction | Combiner, reverse: bool = False
) -> Any:
    """Return the running combination along `axis` by an associative combiner: `scan`, in Triton's and JAX's name.

    A linear recurrence `h[t] = a[t] * h[t - 1] + b[t]`, for example:

        @ts.function
        def follow(a, b, c, d):
            return a * c, b * c + d

        _, h = ts.tile.associative_scan((a, b), 1, follow)

    Args:
        x: tile, or a tuple of tiles of one shape.
        axis: dimension, counted from the end when negative.
        op: as `scan` takes.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`; a tuple of them where `x` is one.

    Raises:
        TypeMismatchError: as `scan` does.
        LanguageError: as `scan` does.
    """
    ...


@tile_function
def cumsum(x: TileLike, axis: int = -1, reverse: bool = False) -> Tile:
    """Return the running sum along `axis`.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def cumprod(x: TileLike, axis: int = -1, reverse: bool = False) -> Tile:
    """Return the running product along `axis`.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def cummax(x: TileLike, axis: int = -1, reverse: bool = False) -> Tile:
    """Return the running maximum along `axis`; NaN wins.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def cummin(x: TileLike, axis: int = -1, reverse: bool = False) -> Tile:
    """Return the running minimum along `axis`; NaN wins.

    Args:
        x: tile.
        axis: dimension, counted from the end when negative.
        reverse: start from the end.

    Returns:
        Tile of the shape of `x`.
    """
    ...


@tile_function
def argmax(x: TileLike, axis: int | None = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the place of the largest element along `axis`, or among all; of equal ones the first, and NaN wins.

    Args:
        x: tile of numbers or bool.
        axis: dimension, counted from the end when negative; None counts through all elements in row-major order.
        keepdims: compile-time; keep the dimension with size 1.

    Returns:
        i32 tile without that dimension, or an i32 scalar.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    ...


@tile_function
def argmin(x: TileLike, axis: int | None = None, keepdims: bool = False) -> Tile | Scalar:
    """Return the place of the smallest element along `axis`, or among all; of equal ones the first, and NaN wins.

    Args:
        x: tile of numbers or bool.
        axis: dimension, counted from the end when negative; None counts through all elements in row-major order.
        keepdims: compile-time; keep the dimension with size 1.

    Returns:
        i32 tile without that dimension, or an i32 scalar.

    Raises:
        TypeMismatchError: `bad-axis`.
    """
    ...


@tile_function
def logsumexp(x: TileLike, axis: Axes = None, keepdims: bool = False) -> Tile | Scalar:
    """Return `log(sum(exp(x)))` along `axis`, or of all elements, without overflow.

    Args:
        x: tile; what is no float is taken as f32.
        axis: dimension, counted from the end when negative, or a tuple of them; None for all.
        keepdims: compile-time; keep these dimensions with size 1.

    Returns:
        Tile without those dimensions, or a scalar, of the accumulation type.

    Raises:
        TypeMismatchError: `bad-axis`.

    Numerics:
        -inf where all elements are; +inf where one is.
    """
    ...


@tile_function
def log_softmax(x: TileLike, axis: Axes = -1) -> Tile:
    """Return `log(softmax(x))` along `axis`, without overflow, and precise where that is close to 0 or far below.

    Args:
        x: tile; what is no float is taken as f32.
        axis: dimension, counted from the end when negative, or a tuple of them; None for all.

    Returns:
        Tile of the shape of `x`, of the accumulation type.

    Raises:
        TypeMismatchError: `bad-axis`.

    Numerics:
        NaN along a dimension whose elements all are -inf.
    """
    ...


@tile_function
def softmax(x: TileLike, axis: Axes = -1) -> Tile:
    """Return `exp(x) / sum(exp(x))` along `axis`, without overflow.

    Args:
        x: tile; what is no float is taken as f32.
        axis: dimension, counted from the end when negative, or a tuple of them; None for all.

    Returns:
        Tile of the shape of `x`, of the accumulation type.

    Raises:
        TypeMismatchError: `bad-axis`.

    Numerics:
        NaN along a dimension whose elements all are -inf.
    """
    ...
