"""Matrix multiplication, and the mask that attention puts on its result."""

from __future__ import annotations

from tessera.frontend.tile.stub import tile_function
from tessera.frontend.tile.values import Tile, TileLike
from tessera.numerics.dtypes import DType

__all__ = ["causal_mask", "dot", "mma", "mma_sync"]


@tile_function
def mma(
    a: TileLike,
    b: TileLike,
    acc: TileLike | None = None,
    accumulator: DType | None = None,
    compute: DType | None = None,
) -> Tile:
    """Return `acc + a @ b`, on the matrix units where the target has them for these types.

    Operands of three dimensions are batches: `(B, M, K)` times `(B, K, N)` is `(B, M, N)`, where a side with a batch of
    1, or without one, is every product's. Each is a product of its own, and so are sums that a loop carries.

    Args:
        a: tile, slice or shared buffer `(M, K)` or `(B, M, K)`.
        b: tile, slice or shared buffer `(K, N)` or `(B, K, N)` of the same dtype (fp8 formats may be mixed).
        acc: accumulator tile `(M, N)` or `(B, M, N)`; zeros when left out.
        accumulator: dtype of the zeros when `acc` is left out. Default: the operands' policy, else f32 for
            16-bit floats and smaller and for f32, f64 for f64, i32 for 8-bit integers (u32 where both are unsigned).
        compute: `ts.tf32` multiplies f32 operands with 10-bit mantissas. Implied when an operand comes from a
            tensor annotated `ts.tf32`.

    Returns:
        Tile `(M, N)` or `(B, M, N)` of the accumulator's dtype.

    Raises:
        TypeMismatchError: `rank-mismatch`, `shape-mismatch`, `dtype-mismatch`, or `tile-too-large` for a batch of more
            than 64.

    Numerics:
        Products are exact for 16-bit and smaller operands; the order of the sum along K is the target's.
    """
    ...


@tile_function
def mma_sync(
    a: TileLike,
    b: TileLike,
    acc: TileLike | None = None,
    accumulator: DType | None = None,
    compute: DType | None = None,
) -> Tile:
    """Another name of `mma`.

    Args:
        a: `(M, K)`.
        b: `(K, N)`.
        acc: accumulator `(M, N)`.
        accumulator: dtype of the zeros when `acc` is left out.
        compute: operand precision.

    Returns:
        Tile `(M, N)`.
    """
    ...


@tile_function
def dot(
    a: TileLike,
    b: TileLike,
    acc: TileLike | None = None,
    accumulator: DType | None = None,
    compute: DType | None = None,
) -> Tile:
    """Another name of `mma`, Triton's; `a @ b` is `dot(a, b)`.

    Args:
        a: `(M, K)` or `(B, M, K)`.
        b: `(K, N)` or `(B, K, N)`.
        acc: accumulator `(M, N)` or `(B, M, N)`.
        accumulator: dtype of the zeros when `acc` is left out.
        compute: operand precision.

    Returns:
        Tile `(M, N)` or `(B, M, N)` of the accumulator's dtype: f32 for 16-bit floats.

    Raises:
        TypeMismatchError: as `mma`.
    """
    ...


@tile_function
def causal_mask(scores: TileLike, q0: TileLike, k0: TileLike, value: float = float("-inf")) -> Tile:
    """Hide the keys after a query: element `(i, j)` stays where `k0 + j <= q0 + i`, else is `value`.

    Args:
        scores: tile `(M, N)` of attention scores.
        q0: position of the first query, row 0.
        k0: position of the first key, column 0.
        value: what hidden scores become.

    Returns:
        Tile `(M, N)` of the dtype of `scores`.

    Raises:
        TypeMismatchError: `rank-mismatch` when `scores` is not two-dimensional.
    """
    ...
