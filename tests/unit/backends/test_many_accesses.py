"""Programs of very many loads and stores on CPUs: LLVM is not told how addresses follow from the last program's."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.backends.cpu.emitter import MOST_ADDRESSES


def blocks(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], count: ts.constexpr):
    for i in ts.tile.grid((n, 4 * count)):
        for k in ts.tile.static_range(count):
            y[i + 4 * k : i + 4 * k + 4] = x[i + 4 * k : i + 4 * k + 4] + k


@pytest.mark.parametrize("count", [4, MOST_ADDRESSES])
def test_programs_of_few_and_of_very_many_accesses(count: int) -> None:
    kernel = ts.kernel(blocks)
    text = ts.compile(kernel, target="cpu", dump=["ll"], count=count).dumps["ll"]
    assert isinstance(text, str)
    assert ('asm ""' in text) == (count > 4)
    x = np.arange(9 * count + 3, dtype=np.float32)
    y = np.zeros_like(x)
    kernel(x, y, count)
    np.testing.assert_array_equal(y, x + np.arange(x.size) % (4 * count) // 4)
