"""Products none of whose terms lie in their tensors: nothing is added, whatever scratch memory held before."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.runtime.cpu import fill_scratch

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
}


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("depth", [1, 16, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_without_terms(dtype: str, rows: int, depth: int) -> None:
    element: Any = getattr(ts, dtype)
    out: Any = ts.i32 if dtype == "i8" else ts.f32

    def kernel(
        a: ts.Tensor[64, 64, element],
        b: ts.Tensor[4, 32, element],
        c: ts.Tensor[64, 32, out],
        d: ts.Tensor[64, 32, out],
        e: ts.Tensor[64, 32, out],
    ) -> None:
        for i in ts.tile.grid((64, rows)):
            x, y = a[i : i + rows, 0:depth], b[4 : 4 + depth, :]
            c[i : i + rows, :] = ts.tile.mma(x, y)
            acc, new = d[i : i + rows, :], ts.tile.zeros((rows, 32), out)
            for start in ts.tile.static_range(0, 6, 3):
                for k in ts.tile.range(start, 32, 16):
                    acc = ts.tile.mma(x, b[4 + k : 4 + k + depth, :], acc)
                    new = ts.tile.mma(x, b[4 + k : 4 + k + depth, :], new)
            d[i : i + rows, :] = acc
            e[i : i + rows, :] = new

    a, b = (np.ones(shape, DTYPES[dtype]) for shape in ((64, 64), (4, 32)))
    numbers = np.int32 if dtype == "i8" else np.float32
    c, d, e = (np.full((64, 32), value, numbers) for value in (9, 5, 7))
    fill_scratch(0x41)
    try:
        ts.kernel(kernel)(a, b, c, d, e)
    finally:
        fill_scratch(None)
    assert not c.any()
    assert (d == 5).all()
    assert not e.any()
