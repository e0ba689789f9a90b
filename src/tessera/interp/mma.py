"""Matrix multiply-accumulate."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.casts import cut_to_tf32, tf32
from tessera.interp.fused import fma
from tessera.interp.machine import Machine, handles
from tessera.interp.shared import check_fences, read_buffer
from tessera.interp.values import Array, Shared, dtype_at
from tessera.ir import decisions
from tessera.ir.tile.mma import MmaOp
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert
from tessera.numerics.dtypes import DType


def multiply(
    a: Array, b: Array, acc: Array, operand: DType, accumulator: DType, compute: str, profile: str = "fast"
) -> Array:
    """Return `acc + a @ b` in the accumulator's type.

    Float operands are converted exactly to f32 (f64 for f64; `tf32` rounds them first) and the products
    summed in f32 (f64); integers are exact and wrap in the accumulator's type. Under `strict`, which computes tf32 in
    f32, a float's products are added one after the other, each rounded once with its sum.
    """
    with np.errstate(all="ignore"):
        if not operand.is_float:
            # f64 holds sums of products of 16-bit integers exactly, and has a fast product.
            inner = np.float64 if operand.bits <= 16 else np.int64
            product = (a.astype(inner) @ b.astype(inner)).astype(np.int64)
            return (acc.astype(np.int64) + product).astype(accumulator.numpy())
        inner = dtypes.f64 if dtypes.f64 in (operand, accumulator) else dtypes.f32
        if profile == "strict":
            left, right = a.astype(inner.numpy()), b.astype(inner.numpy())
            return convert(chain(left, right, convert(acc, accumulator, inner)), inner, accumulator)
        a, b = (tf32(x) if compute == "tf32" else x.astype(inner.numpy()) for x in (a, b))
        total = convert(acc, accumulator, inner) + a.astype(inner.numpy()) @ b.astype(inner.numpy())
        return convert(total, inner, accumulator)


def chain(a: Array, b: Array, total: Array) -> Array:
    """Return `total + a @ b`, product by product: each is rounded once with its sum.

    Args:
        a: f32 or f64 of shape (M, K), or (B, M, K) of a batch.
        b: of the same dtype and shape (K, N) or (B, K, N).
        total: likewise (M, N) or (B, M, N).
    """
    for k in range(a.shape[-1]):
        left, right = np.broadcast_arrays(a[..., :, k, None], b[..., None, k, :])
        total = fma(left, right, total)
    return total


def given_to_warpgroup(operand: Array, compute: str) -> Array:
    """Return an operand as a warpgroup instruction takes it: what is not rounded before loses the bits tf32 lacks."""
    return cut_to_tf32(operand) if compute == "tf32" else operand


@handles(MmaOp)
def _mma(op: MmaOp, machine: Machine) -> Any:
    values = [machine.get(operand) for operand in (op.a, op.b)]
    if decisions.WARPGROUP.on(op):
        for value in values:
            if isinstance(value, Shared):
                check_fences(value, op, machine)
    a, b = (read_buffer(v, op, machine) if isinstance(v, Shared) else v for v in values)
    if decisions.WARPGROUP.on(op):
        a, b = (given_to_warpgroup(operand, op.compute.data) for operand in (a, b))
    acc_dtype = dtype_at(op.acc.type)
    if not acc_dtype.is_float and dtype_at(op.a.type).is_float:
        raise machine.fault(op, "type-mismatch", "float operands cannot accumulate in an integer type")
    operand, compute = dtype_at(op.a.type), op.compute.data
    return multiply(a, b, machine.get(op.acc), operand, acc_dtype, compute, machine.profile)
