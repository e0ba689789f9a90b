"""64-bit integers become bf16 without f64, whose conversions to f32 ptxas of CUDA 13.0 may merge."""

import pytest

import tessera as ts
from tessera.numerics.dtypes import DType


def chosen(dtype: DType):
    @ts.kernel
    def kernel(a: ts.Tensor["n", dtype], b: ts.Tensor["n", dtype], y: ts.Tensor["n", ts.bf16]):
        for i in ts.tile.grid((n, 128)):
            u, v = a[i : i + 128], b[i : i + 128]
            y[i : i + 128] = ts.tile.where(u < v, u.to(ts.bf16), v.to(ts.bf16))

    return kernel


@pytest.mark.parametrize("dtype", [ts.i64, ts.u64])
@pytest.mark.parametrize("target", ["sm_75", "sm_90a"])
def test_ptx_has_no_f64(dtype, target):
    ptx = ts.compile(chosen(dtype), target=target, dump=["ptx"]).dumps["ptx"]
    assert "clz.b64" in ptx
    code = [line for line in ptx.splitlines() if not line.startswith("//")]
    assert not any("f64" in line for line in code)
