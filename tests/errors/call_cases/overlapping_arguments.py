"""An array that a kernel stores to begins within another one; with TESSERA_DEBUG=1 at every call."""

import numpy as np
import pytest

import tessera as ts
from tessera.driver.settings import settings


@ts.kernel
def shift(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 64)):
        y[i : i + 64] = x[i : i + 64] + 1.0


def call():
    a = np.zeros(65, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings(), "debug", True)
        shift(a[:64], a[1:])
