"""Random operands, and how far results may be from exact ones."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts


def random(*shape: int, dtype: ts.DType = ts.f32, seed: int = 0) -> Any:
    """Return normally distributed numbers, or small integers."""
    rng = np.random.default_rng(seed + sum(shape))
    if dtype.is_int:
        return rng.integers(0 if dtype.kind == "uint" else -100, 100, shape).astype(dtype.numpy())
    return rng.standard_normal(shape, np.float32).astype(dtype.numpy())


def error(got: Any, exact: Any) -> float:
    """Return the largest error over the largest exact value."""
    exact = np.asarray(exact, np.float64)
    return float(np.abs(np.asarray(got, np.float64) - exact).max() / max(np.abs(exact).max(), 1e-30))


BOUND = {"f64": 1e-14, "f32": 3e-6, "f16": 2e-3, "bf16": 1.2e-2, "i32": 0.0}
"""Largest error of a result by its dtype: a few roundings of it."""
