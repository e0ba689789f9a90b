"""Compiles `mma` and `causal_mask`."""

from __future__ import annotations

from typing import Any, cast

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, operand, reshape_to, to_index, to_policy, to_tile
from tessera.frontend.ops.create import filled
from tessera.frontend.registry import compiles
from tessera.frontend.values import Scalar, Shared, Tile, show
from tessera.ir.tile.elementwise import ArangeOp
from tessera.ir.tile.mma import MmaOp, batch_of
from tessera.ir.tile.types import describe
from tessera.ir.types import element_type
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType, Policy, accumulator_of

MAX_BATCH = 64
"""Products of a batch, each of which becomes one of its own."""


@compiles(tile.mma)
def _mma(b: Builder, a: Any, b_: Any, acc: Any, accumulator: Any, compute: Any) -> Tile:
    left, right = _operand(b, a, "lhs"), _operand(b, b_, "rhs")
    if left.shape[-1] != right.shape[-2]:
        raise TypeMismatchError(
            f"mma: lhs {describe(left.type)}, rhs {describe(right.type)}: {left.shape[-1]} != {right.shape[-2]}",
            code="shape-mismatch",
            help=_shape_help(left, right),
        )
    precision = _compute(left, right, compute)
    shape = (*_batch(left, right), left.shape[-2], right.shape[-1])
    total = _accumulator(b, left, right, acc, accumulator, shape)
    return Tile(b.emit(MmaOp(left.ssa, right.ssa, total.ssa, precision)).result)


compiles(tile.mma_sync)(_mma)
compiles(tile.dot)(_mma)


def dot(b: Builder, a: Any, b_: Any) -> Tile:
    """Multiply without a sum to add to."""
    return _mma(b, a, b_, None, None, None)


def _batch(left: Tile | Shared, right: Tile | Shared) -> tuple[int, ...]:
    """Return the size of the batch, if there is one.

    Raises:
        TypeMismatchError: `shape-mismatch` for two sizes, `tile-too-large` for too many products.
    """
    sizes = {*left.shape[:-2], *right.shape[:-2]} - {1}
    if len(sizes) > 1:
        raise TypeMismatchError(
            f"mma: lhs {describe(left.type)}, rhs {describe(right.type)}: batches of {left.shape[0]} and "
            f"{right.shape[0]}",
            code="shape-mismatch",
            help="batches have one size, or the size 1, or one side is a matrix",
        )
    if sizes and max(sizes) > MAX_BATCH:
        raise TypeMismatchError(
            f"mma: lhs {describe(left.type)}, rhs {describe(right.type)}: a batch of {max(sizes)} products",
            code="tile-too-large",
            help=f"each is a product of its own; loop over batches of at most {MAX_BATCH} with ts.tile.range",
        )
    return batch_of(left.shape, right.shape)


def _operand(b: Builder, value: Any, side: str) -> Tile | Shared:
    ready = value if isinstance(value, Shared) else to_tile(b, value, f"mma: {side}")
    if len(ready.shape) not in (2, 3):
        raise TypeMismatchError(
            f"mma: {side} {describe(ready.type)} is {len(ready.shape)}-dimensional, not 2, or 3 with a batch",
            code="rank-mismatch",
            help="index leading dimensions with an integer: A[b, m:m+64, k:k+64]; a vector is a row x[None, :]",
        )
    return ready


def _shape_help(left: Tile | Shared, right: Tile | Shared) -> str:
    if left.shape[-1] == right.shape[-1]:
        return f"transpose rhs (.T) or load a ({left.shape[-1]}, {right.shape[-2]}) tile"
    return f"the last size of lhs and the first of rhs are one dimension: load a ({left.shape[-1]}, n) rhs"


def _compute(left: Tile | Shared, right: Tile | Shared, wanted: Any) -> str:
    """Return the operand precision.

    Raises:
        TypeMismatchError: `dtype-mismatch`.
    """
    if left.dtype != right.dtype:
        if left.dtype.name.startswith("fp8") and right.dtype.name.startswith("fp8"):
            return "fp8"
        raise TypeMismatchError(
            f"mma: lhs {describe(left.type)}, rhs {describe(right.type)}: {left.dtype} != {right.dtype}",
            code="dtype-mismatch",
            help=_dtype_help(left, right),
        )
    if left.dtype.kind == "bool" or (left.dtype.is_int and left.dtype.bits != 8):
        raise TypeMismatchError(
            f"mma is not defined for {left.dtype}", code="dtype-mismatch", help="use i8, u8 or a float type"
        )
    if wanted is None:
        policies = [value.policy for value in (left, right) if value.policy is not None]
        return "tf32" if any(policy.dtype == dtypes.tf32 for policy in policies) else left.dtype.name
    precision = to_policy(wanted, "mma: compute").dtype
    if precision != left.dtype and not (precision == dtypes.tf32 and left.dtype == dtypes.f32):
        raise TypeMismatchError(
            f"mma: {left.dtype} operands cannot be computed in {precision}",
            code="dtype-mismatch",
            help="compute=ts.tf32 is for f32 operands; cast them for anything else",
        )
    return precision.name


def _dtype_help(left: Tile | Shared, right: Tile | Shared) -> str:
    if {left.dtype, right.dtype} == {dtypes.i8, dtypes.u8}:
        return "convert both: .to(ts.f16) holds their numbers, and sums are f32"
    wide, narrow = ("lhs", right) if left.dtype.bits > right.dtype.bits else ("rhs", left)
    return f"convert {wide}: .to({narrow.dtype!r}), or the other side to the wider type"


def _accumulator(
    b: Builder, left: Tile | Shared, right: Tile | Shared, acc: Any, wanted: Any, shape: tuple[int, ...]
) -> Tile:
    if acc is None:
        dtype = to_policy(wanted, "mma: accumulator").dtype if wanted is not None else _default(left, right)
        _check_accumulator(left.dtype, dtype)
        return filled(b, shape, 0, Policy(dtype), "mma")
    total = operand(b, acc, "mma: acc")
    if isinstance(total, DType) or not isinstance(total, Tile):
        raise TypeMismatchError(
            f"mma: acc is {show(total)}, not a tile",
            code="not-a-tile",
            help=f"start with ts.tile.zeros({shape}, ts.f32)",
        )
    if total.shape != shape:
        raise TypeMismatchError(
            f"mma: acc {describe(total.type)}, product {shape}: {total.shape} != {shape}",
            code="shape-mismatch",
            help=f"start with ts.tile.zeros({shape}, ts.{_default(left, right)})",
        )
    if wanted is not None and to_policy(wanted, "mma: accumulator").dtype != total.dtype:
        raise TypeMismatchError(
            f"mma: acc {describe(total.type)}, accumulator {to_policy(wanted, 'mma').dtype}",
            code="dtype-mismatch",
            help="leave accumulator out; acc has a dtype already",
        )
    _check_accumulator(left.dtype, total.dtype)
    return total


def _default(left: Tile | Shared, right: Tile | Shared) -> DType:
    for value in (left, right):
        if value.policy is not None and value.policy.accum is not None:
            return value.policy.accum
    return accumulator_of(left.dtype)


def _check_accumulator(operands: DType, acc: DType) -> None:
    """Refuse accumulators that lose what the products hold.

    Raises:
        TypeMismatchError: `dtype-mismatch`.
    """
    default = accumulator_of(operands)
    half = acc == dtypes.f16 and operands.is_float and operands.bits <= 16 and operands != dtypes.bf16
    wider = operands.is_float and acc == dtypes.f64
    integers = operands.is_int and acc == dtypes.i32
    if acc != default and not half and not wider and not integers:
        raise TypeMismatchError(
            f"mma: products of {operands} cannot accumulate in {acc}",
            code="dtype-mismatch",
            help=f"use ts.{'i32' if operands.is_int else default}, and convert the result",
        )


@compiles(tile.causal_mask)
def _causal_mask(b: Builder, scores: Any, q0: Any, k0: Any, value: Any) -> Tile:
    source = to_tile(b, scores, "causal_mask")
    if len(source.shape) != 2:
        raise TypeMismatchError(
            f"causal_mask: {describe(source.type)} is not two-dimensional",
            code="rank-mismatch",
            help="scores are (queries, keys)",
        )
    rows, columns = source.shape
    first = Scalar(to_index(b, q0, "causal_mask: q0")), Scalar(to_index(b, k0, "causal_mask: k0"))
    # Compared as differences, so that one i64 subtraction serves the whole tile and the rest is i32: an addition per
    # row and a comparison per element.
    queries = Tile(reshape_to(b, b.emit(ArangeOp(rows, element_type(dtypes.i32))).result, (rows, 1)))
    keys = Tile(b.emit(ArangeOp(columns, element_type(dtypes.i32))).result)
    limit = apply(b, "sub", first[0], first[1])
    last = apply(b, "add", queries, _narrowed(b, limit, rows + columns))
    visible = apply(b, "le", keys, last)
    return cast(Tile, apply(b, "select", visible, source, value, what="causal_mask"))


def _narrowed(b: Builder, limit: Any, reach: int) -> Any:
    """Return an index clamped to where it still decides anything, as i32."""
    from tessera.frontend.ops.math import convert

    clamped = apply(b, "minimum", apply(b, "maximum", limit, -reach), reach)
    return convert(b, clamped, dtypes.i32)
