"""What the calls of recurrences have in common: their arguments, and exact results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType, f32
from tessera.ops import arrays, rows
from tessera.ops.refusals import refused

_DTYPES = ("f32", "bf16", "f16")


def narrow(array: Any, name: str) -> DType:
    """Return the dtype of an argument whose products are accumulated in f32.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    found = rows.float_dtype(array, name)
    if found.name not in _DTYPES:
        raise refused(f"argument {name!r} has the dtype {found}", "wrong-dtype", "it takes f32, bf16, f16")
    return found


def in_f32(array: Any, name: str) -> Any:
    """Return an argument in f32.

    Raises:
        CallError: `not-an-array` or `wrong-dtype`.
    """
    return array if narrow(array, name).name == "f32" else converted(array, f32)


def converted(array: Any, dtype: DType) -> Any:
    """Return an array of a dtype."""
    if arrays.is_torch(array):
        return array.to(arrays.torch_dtypes()[dtype.name])
    return ts.asarray(array, dtype)


def check_operands(q: Any, k: Any, v: Any, names: Sequence[str]) -> None:
    """Check queries and keys `(B, L, G, N)` and values `(B, L, H, P)`.

    Raises:
        CallError: `not-an-array`, `wrong-rank`, `wrong-dtype` or `wrong-shape`.
    """
    for name, one in zip(names, (q, k, v), strict=True):
        rows.check_rank(one, name, 4)
        narrow(one, name)
        rows.same_dtype(one, name, v, names[2])
    batch, places, groups, size = arrays.shape_of(q, names[0])
    heads, wide = arrays.shape_of(v, names[2])[2:]
    rows.same_shape(k, names[1], (batch, places, groups, size))
    rows.same_shape(v, names[2], (batch, places, heads, wide))
    if groups == 0 or heads % groups:
        message = f"{names[2]} has {heads} heads, {names[1]} {groups}"
        raise refused(message, "wrong-shape", f"heads of {names[1]} divide those of {names[2]}")
    if 0 in (size, wide):
        raise refused(f"heads have {size} and {wide} elements", "wrong-shape", "each has at least one")


def check_state(state: Any, shape: Sequence[Any]) -> None:
    """Check a state that a call begins with.

    Raises:
        CallError: `not-an-array`, `wrong-shape` or `wrong-dtype`.
    """
    if state is None:
        return
    rows.same_shape(state, "initial_state", shape)
    if arrays.dtype_of(state, "initial_state").name != "f32":
        found = arrays.dtype_of(state, "initial_state")
        raise refused(f"argument 'initial_state' has the dtype {found}", "wrong-dtype", "states are f32")


def repeated(array: Any, heads: int) -> Any:
    """Return queries or keys in float64, with those of groups for each of their heads."""
    found = arrays.host(array)
    return np.repeat(found, heads // found.shape[2], 2)


def factor_of(q: Any, scale: float | None) -> float:
    """Return what results of queries are multiplied by."""
    return float(q.shape[3]) ** -0.5 if scale is None else float(scale)


def first_state(state: Any, shape: Sequence[int]) -> Any:
    """Return the state before the first step in float64."""
    return np.zeros(tuple(shape)) if state is None else arrays.host(state)


def recurrence(q: Any, k: Any, v: Any, rates: Any, weights: Any, state: Any, scale: float) -> tuple[Any, Any]:
    """Return the results of a recurrence and its last state, step by step.

    Args:
        q: queries `(B, L, H, N)`.
        k: keys.
        v: values `(B, L, H, P)`.
        rates: logarithms of decays `(B, L, H)`.
        weights: what keys and values are multiplied by.
        state: the first one, `(B, H, N, P)`.
        scale: of results.
    """
    out = np.empty(v.shape)
    for t in range(v.shape[1]):
        added = weights[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        state = np.exp(rates[:, t])[..., None, None] * state + added
        out[:, t] = scale * np.einsum("bhn,bhnp->bhp", q[:, t], state)
    return out, state
