"""16-bit floats that become f32 on a GPU, from words of two, and where bf16 and f16 meet."""

import numpy as np
import pytest

import tessera as ts
from tests.unit.ops.test_flash_attention import emulated


@ts.kernel
def difference(x: ts.Tensor["n", ts.bf16], y: ts.Tensor["n", ts.f16]):
    for i in ts.tile.grid((n, 128)):
        v = x[i : i + 128].to(ts.f32)
        y[i : i + 128] = (v + v * (-1.0)).to(ts.f16)


def test_no_sum_is_narrowed_to_the_type_with_the_smaller_range():
    # 3e38 - 3e38 is 0 in f32; in f16 it would be inf - inf.
    ptx = ts.compile(difference, target="sm_90a", dump=["ptx"]).dumps["ptx"]
    assert not any(op in ptx for op in ("sub.f16", "add.f16", "sub.rn.f16", "add.rn.f16", "fma.rn.f16"))
    assert any(op in ptx for op in ("sub.f32", "sub.rn.f32", "add.rn.f32", "add.f32", "fma.rn.f32"))


@ts.kernel
def widened(x: ts.Tensor["n", ts.bf16], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 1024)):
        y[i : i + 1024] = x[i : i + 1024].to(ts.f32) + 0.0


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
def test_every_number_of_bf16_is_itself_in_f32(target):
    codes = np.arange(1 << 16, dtype=np.uint16)
    x, found = codes.view(ts.bf16.numpy()), np.empty(codes.size, np.float32)
    emulated(widened, target, [x, found], {"n": x.size}, ())
    assert np.array_equal(found, x.astype(np.float32), equal_nan=True)


def test_the_upper_half_of_a_word_takes_one_instruction():
    ptx = ts.compile(widened, target="sm_90a", dims={"n": 1 << 16}, dump=["ptx"]).dumps["ptx"]
    assert ptx.count("-65536;") == ptx.count("cvt.f32.bf16") > 0
