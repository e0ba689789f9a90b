"""What tests of library ops share: operands of every library and dtype, and how far results may be from exact ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.ops import arrays
from tessera.target.artifact import Artifact

FLOATS = (ts.f64, ts.f32, ts.bf16, ts.f16)
ROUNDING = {"f64": 2.0**-49, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
"""A step at 1."""
LIBRARIES = ("numpy", "torch")


def of_library(library: str, values: Any) -> Any:
    """Return a NumPy array as one of a library."""
    if library == "numpy" or values is None:
        return values
    torch = pytest.importorskip("torch")
    kinds = arrays.torch_dtypes()
    name = next(one.name for one in (*FLOATS, ts.i64, ts.i32) if one.numpy() == values.dtype)
    wide = values.astype(np.float64) if name in ROUNDING else values
    return torch.from_numpy(wide.copy()).to(kinds[name])


def normal(rng: Any, *shape: int, dtype: ts.DType = ts.f32, scale: float = 1.0, shift: float = 0.0) -> Any:
    """Return normally distributed numbers."""
    return (rng.standard_normal(shape) * scale + shift).astype(dtype.numpy())


def close(got: Any, exact: Any, dtype: ts.DType, roundings: float = 2.0) -> None:
    """Check a result against the exact one: so many roundings of its dtype beside its own size and the whole's."""
    found, exact = arrays.host(got), np.asarray(exact, np.float64)
    assert found.shape == exact.shape
    if not exact.size:
        return
    finite = np.isfinite(exact)
    size = np.abs(exact) + (np.abs(exact[finite]).max() if finite.any() else 0.0)
    with np.errstate(invalid="ignore"):
        far = np.abs(found - exact) > roundings * ROUNDING[dtype.name] * size
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    assert not (far & ~same).any(), f"{int((far & ~same).sum())} of {exact.size} elements are wrong"
    assert (np.isnan(found) == np.isnan(exact)).all()


def differences(function: Callable[[Mapping[str, Any]], float], at: Mapping[str, Any], step: float = 1e-5) -> Any:
    """Return the gradients of a number by central differences in f64, by the arguments' names."""
    found: dict[str, Any] = {}
    for name, array in at.items():
        slopes = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * step
                ends.append(function({**at, name: moved}))
            slopes[place] = (ends[0] - ends[1]) / (2 * step)
        found[name] = slopes
    return found


def spills(artifact: Artifact) -> int:
    """Return the bytes of registers that the kernels of an artefact spill."""
    return sum(one["spill_store_bytes"] for one in artifact.reflection["kernels"].values())
