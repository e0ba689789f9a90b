"""What steps of an epilogue do, in NumPy and float64."""

from __future__ import annotations

from math import erf
from typing import Any, cast

import numpy as np

from tessera.numerics.dtypes import DType


def gelu_tanh(x: Any) -> Any:
    """Return GELU by its tanh formula."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: Any) -> Any:
    """Return `x·Φ(x)`."""
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x / np.sqrt(2)))


def silu(x: Any) -> Any:
    """Return `x·sigmoid(x)`."""
    return x / (1 + np.exp(-x))


def rounded(x: Any, dtype: DType, saturate: bool) -> Any:
    """Return numbers rounded to a dtype, clamped to its finite range with `saturate`."""
    kind = dtype.numpy()
    if saturate:
        import ml_dtypes

        limits = cast(Any, ml_dtypes.finfo if dtype.is_float else np.iinfo)(kind)
        x = np.clip(x, float(limits.min), float(limits.max))
    return x.astype(np.float32).astype(kind).astype(np.float64)


def dropout(x: Any, p: float, key: int, *, fours: bool = False) -> Any:
    """Return dropout of a whole result, by the same Philox numbers as kernels draw.

    Args:
        x: the result; an element's number in it is its counter.
        p: probability of a zero.
        key: seed as a signed 64-bit number.
        fours: whether four elements share a counter, and each has one of its words.
    """
    from tessera.interp.random import philox4x32

    number = cast(Any, np.arange(x.size, dtype=np.uint64))
    counter = number // 4 if fours else number
    low, half, zero = np.uint64(0xFFFFFFFF), np.uint64(32), np.zeros(x.size, np.uint64)
    words = philox4x32((counter & low, counter >> half, zero, zero), (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF))
    word = np.choose((number % 4).astype(np.int64), words) if fours else words[0]
    uniform = ((word >> 8).astype(np.float64) * 2.0**-24).reshape(x.shape)
    return np.where(uniform >= np.float32(p), x / (1 - np.float32(p)), 0.0)
