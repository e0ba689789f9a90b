"""What the pipeline records for `explain()`: why a kernel did not get what its target could give."""

from __future__ import annotations

import tessera as ts
from tessera.driver.explain import Explanation


@ts.kernel
def product(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def test_known_sizes_get_roles_and_say_nothing():
    reflection = ts.compile(product, target="sm_90a", dims={"M": 64, "N": 64, "K": 64}).reflection
    assert reflection["instructions"]["wgmma"] > 0
    assert "roles" not in reflection
    assert "copies" not in reflection


def test_unknown_sizes_say_why_copies_and_roles_are_plain():
    artifact = ts.compile(product, target="sm_90a")
    assert "wgmma" not in artifact.reflection["instructions"]
    text = str(Explanation.of(artifact, "cuda:0", "fast"))
    assert "roles: one role: stride 0 of a is not known to be a multiple of 16 bytes" in text
    assert "copies: a: known alignment, strides and sizes allow 2 bytes at a time" in text


def test_an_older_gpu_says_what_it_lacks():
    artifact = ts.compile(product, target="sm_75", dims={"M": 64, "N": 64, "K": 64})
    text = str(Explanation.of(artifact, "cuda:0", "fast"))
    assert "emulations: bf16 mma of 64x64x64 emulated with fma: sm_75 has no instruction for it" in text
    assert "copies: a: sm_75 has no cp.async" in text
