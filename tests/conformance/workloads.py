"""Cases of kernels as their users write them, and what their references share."""

from typing import Any

import numpy as np

from tessera.numerics.tolerances import Tolerance
from tests.conformance.harness import Case

EVERYWHERE = ("interp", "cpu", "cuda", "ptx-sm_80", "ptx-sm_90a")
NEAR = Tolerance(relative=2e-5, scaled=2e-6, absolute=1e-6)


def case(name: str, kernel: Any, make: Any, reference: Any, tolerance: Any = NEAR, **more: Any) -> Case:
    """Return a case that runs everywhere."""
    return Case(name, kernel, make, reference, tolerance, **{"backends": EVERYWHERE, **more})


def wide(x: np.ndarray) -> np.ndarray:
    """Return floats as f64."""
    return x.astype(np.float32).astype(np.float64) if x.dtype != np.float64 else x
