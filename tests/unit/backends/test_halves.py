"""bf16 and f16 in one GPU function: sums of bf16 are computed in f32 before they become f16."""

import tessera as ts


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
