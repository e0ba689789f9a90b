"""saxpy, y = alpha * x + y: the smallest kernel. `linear_id` numbers the elements of the returned tensor."""

import numpy as np
from harness import TOLERANCE, Case, Place, host, main

import tessera as ts


@ts.kernel
def saxpy(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], alpha: ts.f32) -> ts.Tensor["n", ts.f32]:
    """Simple SAXPY: y = alpha * x + y."""
    i = ts.tile.linear_id()
    if i < n:
        y[i] = alpha * x[i] + y[i]
    return y


def reference(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """Return the result in float64."""
    return alpha * x + y


def case(place: Place, n: int = 1_000_003) -> Case:
    """Return a call and its expected result."""
    x, y = place.normal(n, dtype=ts.f32), place.normal(n, dtype=ts.f32)
    expected = reference(host(x), host(y), 2.5)
    return Case(f"saxpy {n}", place, lambda: saxpy(x, y, 2.5), expected, TOLERANCE["f32"])


if __name__ == "__main__":
    raise SystemExit(main(case))
