"""Seeded random arguments, special values included."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import smallest_normal, smallest_subnormal


def finfo_max(dtype: DType) -> float:
    """Return the largest finite number of a float dtype."""
    return float(ml_dtypes.finfo(dtype.numpy()).max)


def box_of(x: np.ndarray, rows: Sequence[int] | np.ndarray, columns: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return elements of a matrix, zero outside."""
    found = np.zeros((len(rows), len(columns)), x.dtype)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if 0 <= row < x.shape[0] and 0 <= column < x.shape[1]:
                found[i, j] = x[row, column]
    return found


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, scale: float = 1.0) -> np.ndarray:
    """Return numbers of moderate size: normal for floats, small for integers, either for bool."""
    if dtype.is_float:
        values = rng.standard_normal(shape) * scale
        limit = finfo_max(dtype)
        return (
            np.clip(values, -limit, limit)
            .astype(np.float32 if dtype.bits < 32 else dtype.numpy())
            .astype(dtype.numpy())
        )
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    low = -9 if dtype.kind == "int" else 0
    return rng.integers(low, 10, shape).astype(dtype.numpy())


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return integers over the whole range of an integer dtype, its ends and zero among them."""
    info = np.iinfo(dtype.numpy())
    values = rng.integers(info.min, info.max, shape, dtype=dtype.numpy(), endpoint=True)
    return with_specials(rng, values, [info.min, info.max, 0, 1, info.max - 1])


def positive(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return positive floats over a few orders of magnitude."""
    return (
        np.exp(rng.standard_normal(shape))
        .astype(np.float32 if dtype.bits < 32 else dtype.numpy())
        .astype(dtype.numpy())
    )


def with_specials(rng: np.random.Generator, values: np.ndarray, specials: list[float]) -> np.ndarray:
    """Return `values` with some elements replaced by the special ones."""
    flat = values.copy().reshape(-1)
    count = min(len(specials), flat.size // 2)
    wide = values.dtype if values.dtype.kind in "iu" else np.float64
    flat[rng.permutation(flat.size)[:count]] = np.array(specials[:count], wide).astype(values.dtype)
    return flat.reshape(values.shape)


def float_specials(dtype: DType) -> list[float]:
    """Return zeros, infinities, NaN, the smallest and largest numbers, and some near one."""
    tiny, least, most = smallest_normal(dtype), smallest_subnormal(dtype), finfo_max(dtype)
    eps = 2.0**-dtype.mantissa
    numbers = [
        0.0,
        np.inf,
        tiny,
        least,
        most,
        1.0,
        1.0 + eps,
        1.0 - eps / 2,
        0.5,
        1.5,
        2.5,
        3.0,
        least * 3,
        most / 2,
    ]
    return [np.nan, *numbers, *(-number for number in numbers)]
