"""Rotary position embedding: elements j and j + D/2 of a head turn by the position's angle.

`"2*R"` is a compound dimension: the head size must be even, and its half is `R` in the kernel.
"""

import functools
from typing import Any

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@functools.cache
def rope_for(dtype: ts.DType) -> Any:
    """Return the kernel for an element type; the arithmetic is f32 for all of them."""

    @ts.kernel
    def rope(
        X: ts.Tensor["B*H", "S", "2*R", dtype],
        COS: ts.Tensor["S", "R", ts.f32],
        SIN: ts.Tensor["S", "R", ts.f32],
        Y: ts.Tensor["B*H", "S", "2*R", dtype],
    ):
        for h, s in ts.tile.grid((B * H, 1), (S, 32)):
            low = ts.tile.cast(X[h, s : s + 32, 0:R], ts.f32)
            high = ts.tile.cast(X[h, s : s + 32, R : 2 * R], ts.f32)
            cos, sin = COS[s : s + 32, :], SIN[s : s + 32, :]
            Y[h, s : s + 32, 0:R] = low * cos - high * sin
            Y[h, s : s + 32, R : 2 * R] = high * cos + low * sin
        return Y

    return rope


def angles(positions: int, half: int, base: float = 10000.0) -> np.ndarray:
    """Return the angle of each position and pair, `(S, R)`, in float64."""
    return np.arange(positions)[:, None] * base ** (-np.arange(half) / half)


def reference(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return the result in float64: each pair as a complex number, turned."""
    low, high = np.split(x, 2, axis=-1)
    turned = (low + 1j * high) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def case(place: Place, heads: int = 6, s: int = 333, d: int = 128) -> Case:
    """Return a call and its expected result."""
    kernel, x, y = rope_for(place.dtype), place.normal(heads, s, d), place.empty(heads, s, d)
    angle = angles(s, d // 2)
    cos, sin = place.array(np.cos(angle), ts.f32), place.array(np.sin(angle), ts.f32)
    name = f"rope {place.dtype} {heads}x{s}x{d}"
    return Case(name, place, lambda: kernel(x, cos, sin, y), reference(host(x), angle), TOLERANCE[place.dtype.name])


if __name__ == "__main__":
    raise SystemExit(main(case))
