"""Reductions of losses: elements or rows to one number, by a fixed number of partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod
from typing import Any, Literal

import numpy as np

import tessera as ts
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows
from tessera.ops.annotations import F64, Constant

Reduction = Literal["mean", "sum", "none"]
BatchReduction = Literal["mean", "sum", "none", "batchmean"]

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
P = ts.dims("P")


@ts.kernel
def total(
    parts: ts.Tensor[P, S],
    shares: ts.Tensor[P, S] | None,
    out: ts.Tensor[1, T],
    whole: ts.Tensor[1, S] | None,
    scale: F64,
    acc: Constant,
    B: Constant = 1024,
):
    """Add up partial sums in one order; with `shares` divide by their sum, which `whole` keeps, else by `whole`."""
    for _ in ts.tile.grid((1, 1)):
        losses = ts.tile.zeros((B,), acc)
        weights = ts.tile.zeros((B,), acc)
        for i in ts.tile.range(0, P, B):
            losses = losses + parts[i : i + B]
            if shares is not None:
                weights = weights + shares[i : i + B]
        result = ts.tile.sum(losses) * scale.to(acc)
        if shares is not None and whole is not None:
            divisor = ts.tile.sum(weights)
            result = result / divisor
            whole[0] = divisor
        if shares is None and whole is not None:
            result = result / whole[0]
        out[0] = result


def check_reduction(reduction: str, allowed: Sequence[str] = ("mean", "sum", "none")) -> None:
    """Check the name of a reduction.

    Raises:
        CallError: `bad-argument`.
    """
    if reduction not in allowed:
        raise CallError(
            f"reduction is {reduction!r:.60}",
            code="bad-argument",
            location=caller_location(),
            help=f"one of {', '.join(map(repr, allowed))}",
        )


def divisor_of(reduction: str, shape: Sequence[Any]) -> Any:
    """Return what a sum of elements of a shape is divided by: a size, which PyTorch may trace."""
    if reduction in ("sum", "none"):
        return 1
    return prod(shape) if reduction == "mean" else shape[0] if shape else 1


def scale(divisor: int) -> float:
    """Return what a sum is multiplied by; NaN for a mean of none."""
    return 1.0 / divisor if divisor else nan


def same_dtype(array: Any, name: str, wanted: DType) -> None:
    """Check that an argument has the dtype of `input`.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    found = rows.float_dtype(array, name)
    if found.name != wanted.name:
        raise CallError(
            f"input has the dtype {wanted}, {name} {found}",
            code="wrong-dtype",
            location=caller_location(),
            help="convert one of them",
        )


def given_out(out: Any, result: Any) -> Any:
    """Return a result, or `out` with it."""
    if out is None:
        return result
    out[...] = result
    return out


def reduced_exactly(losses: Any, reduction: str) -> Any:
    """Return a reduction of losses in NumPy and float64, for references."""
    if reduction == "none":
        return losses
    with np.errstate(invalid="ignore"):
        return np.asarray(losses.sum() * scale(divisor_of(reduction, losses.shape)))


def fill(array: Any, value: float) -> None:
    """Set an array that a step made to a number, where there is nothing to compute it from."""
    if arrays.is_torch(array):
        array.fill_(value)
    else:
        array.fill(value)
