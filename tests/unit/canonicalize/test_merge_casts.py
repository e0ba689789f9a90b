"""Which types hold every value of which, by enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.canonicalize.merge_casts import holds_all, skips
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert

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


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("source", SMALL, ids=str)
def test_two_casts_are_one_only_where_every_value_agrees(source: dtypes.DType, saturates: bool) -> None:
    values = every_value(source)
    if source.is_float:
        infinite = np.array([np.inf, -np.inf]).astype(source.numpy())
        values = np.concatenate([values, infinite[np.isinf(infinite.astype(np.float32))]])
    merged = 0
    for middle in TARGETS:
        there = convert(values, source, middle, saturates)
        for target in TARGETS:
            if skips(source, middle, target, saturates):
                merged += 1
                twice, once = convert(there, middle, target), convert(values, source, target)
                assert np.array_equal(twice.astype(np.float64), once.astype(np.float64), equal_nan=True), (
                    f"{source} -> {middle} -> {target}"
                )
    assert merged or saturates
