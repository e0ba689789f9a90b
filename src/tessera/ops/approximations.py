"""Functions to 2^-17 of themselves, for numbers of 16 bits: a quarter of the instructions of those for f32."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile

BF16 = "bf16"
LN2 = 0.6931471805599453
LOG2_E = 1.4426950408889634
NEAR = 1.0 / 24.0
"""Up to here logarithms of 1 + f are a polynomial in f: those of GPUs' units are right to 2^-22, however small."""
SQUARE, CUBE = -0.50032513, 0.33362061
"""Its coefficients beside 1: the error is 2^-17.7 of the logarithm at most."""


def suffice(dtype: DType, simt: bool) -> str:
    """Return the dtype's name where kernels compute so with its numbers, else nothing.

    Args:
        dtype: what the numbers are given as and rounded to.
        simt: whether a GPU computes: CPUs have no unit for logarithms.
    """
    return dtype.name if simt and dtype.bits == 16 and current_profile() == "fast" else ""


@ts.function
def _log2(x: Any) -> Any:
    return ts.tile.log2(x)


@ts.function
def _units_log(x: Any) -> Any:
    """Return log(x), where x is near 1 to an absolute error of 2^-22."""
    return LN2 * ts.tile.inline_asm(x, meaning=_log2, ptx="lg2.approx.f32 $0, $1;")


@ts.function
def log2_of_normal(x: Any, rough: Any) -> Any:
    """Return the logarithm to base 2 of 0 and of numbers that are no subnormal ones of f32, to that error if `rough`.

    A subnormal number may count as 0: three instructions of four are for those.
    """
    return ts.tile.inline_asm(x, meaning=_log2, ptx="lg2.approx.ftz.f32 $0, $1;") if rough else ts.tile.log2(x)


@ts.function
def _log_beside(f: Any, far: Any) -> Any:
    """Return log(1 + f), which is `far` where f is not small."""
    return ts.tile.where(ts.tile.abs(f) < NEAR, f * (1.0 + f * (SQUARE + f * CUBE)), far)


@ts.function
def log(x: Any, rough: Any) -> Any:
    """Return the natural logarithm."""
    return _log_beside(x - 1.0, _units_log(x)) if rough else ts.tile.log(x)


@ts.function
def log_of_given(x: Any, rough: Any) -> Any:
    """Return the natural logarithm of numbers as they were given: of bf16, the next to 1 is 2^-8 away."""
    return _units_log(x) if rough == BF16 else log(x, rough)


@ts.function
def log1p(x: Any, rough: Any) -> Any:
    """Return log(1 + x)."""
    return _log_beside(x, LN2 * log2_of_normal(1.0 + x, rough)) if rough else ts.tile.log1p(x)


@ts.function
def exp(x: Any, rough: Any) -> Any:
    """Return e to the power of x."""
    return ts.tile.exp2(x * LOG2_E) if rough else ts.tile.exp(x)


@ts.function
def _inverse(x: Any) -> Any:
    return 1.0 / x


@ts.function
def quotient(x: Any, y: Any, rough: Any) -> Any:
    """Return x / y, where y is not beyond 2^126, for numbers not above it."""
    return x * ts.tile.inline_asm(y, meaning=_inverse, ptx="rcp.approx.f32 $0, $1;") if rough else x / y


@ts.function
def sigmoid(x: Any, rough: Any) -> Any:
    """Return 1 / (1 + e^-x)."""
    if rough:
        below = 1.0 + ts.tile.exp2(x * -LOG2_E)
        return ts.tile.inline_asm(below, meaning=_inverse, ptx="rcp.approx.ftz.f32 $0, $1;")
    return ts.tile.sigmoid(x)


@ts.function
def silu(x: Any, rough: Any) -> Any:
    """Return x / (1 + e^-x)."""
    return x * sigmoid(x, rough) if rough else ts.tile.silu(x)


@ts.function
def exp_for(x: Any, dtype: Any) -> Any:
    """Return e to the power of x, for results of a dtype."""
    return exp(x, dtype.bits == 16)
