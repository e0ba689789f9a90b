"""Which types hold every value of which, by enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.canonicalize.merge_casts import holds_all
from tessera.interp.casts import convert
from tessera.numerics import dtypes

SMALL = [d for d in dtypes.ALL if d.bits <= 16]
TARGETS = [d for d in dtypes.ALL if d.name != "tf32"]


def every_value(dtype: dtypes.DType) -> np.ndarray:
    if dtype.kind == "bool":
        return np.array([False, True])
    stored = np.arange(2**dtype.bits).astype(f"u{dtype.bytes}").view(dtype.numpy())
    if dtype.is_float:
        with np.errstate(invalid="ignore"):
            return stored[np.isfinite(stored.astype(np.float32))]
    return stored


@pytest.mark.parametrize("narrow", SMALL, ids=str)
@pytest.mark.parametrize("wide", TARGETS, ids=str)
def test_against_enumeration(wide: dtypes.DType, narrow: dtypes.DType) -> None:
    values = every_value(narrow)
    there = convert(values, narrow, wide)
    back = convert(there, wide, narrow)
    exact = np.array_equal(there.astype(np.float64), values.astype(np.float64)) and np.array_equal(
        back.astype(np.float64), values.astype(np.float64)
    )
    assert not holds_all(wide, narrow) or exact, "claims a type that loses values"
    assert holds_all(wide, narrow) or not exact or wide.kind == "bool" or narrow.is_float != wide.is_float
