"""Plans and what they compile to; no device is needed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.linalg.grouped import grouped_kernel
from tessera.ops.linalg.plan import plan, points, tuning_space
from tessera.ops.linalg.prepare import EMPTY, kernel_for, sized
from tessera.ops.linalg.problem import Forced, Options
from tessera.target.records import target_named

E, gemm = op.epilogue, op.linalg.gemm
HOPPER = target_named("sm_90a")

BF16_SHAPES = [
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096), (8192, 8192, 1024),
    (4096, 14336, 4096), (16, 4096, 4096), (128, 8192, 8192), (1000, 777, 333), (4096, 4096, 64),
]  # fmt: skip


def spills(artifact) -> int:
    """Return the bytes that any kernel of an artefact spills."""
    facts = artifact.reflection["kernels"].values()
    return sum(fact["spill_store_bytes"] + fact["spill_load_bytes"] for fact in facts)


def uses(artifact, name: str) -> bool:
    """Return whether an instruction whose name starts so is in an artefact."""
    return any(found.startswith(name) for found in artifact.reflection["instructions"])


@pytest.mark.parametrize("shape", BF16_SHAPES, ids=lambda s: "x".join(map(str, s)))
def test_no_default_schedule_of_bf16_spills(shape):
    made = gemm.compile(*shape, target="sm_90a")
    assert spills(made) == 0
    if shape != (1000, 777, 333):  # rows that are no multiples of 16 bytes: bulk copies cannot fetch them
        assert uses(made, "wgmma")
        assert uses(made, "tma")
        assert "roles" not in made.reflection


COL = np.ones(4096, ts.bf16.numpy())
FULL = np.ones((4096, 4096), ts.bf16.numpy())
OUT = np.ones(4096, np.float32)

CASES = {
    "transposed": (ts.bf16, dict(trans_a=True, trans_b=True)),
    "f16": (ts.f16, {}),
    "fp8": (ts.fp8_e4m3, dict(trans_b=True)),
    "fp8 promoted": (ts.fp8_e5m2, dict(trans_b=True, promote=128)),
    "linear bias gelu": (ts.bf16, dict(trans_b=True, epilogue=E.chain([E.bias(COL), E.gelu("tanh")]))),
    "bias gelu by erf": (ts.bf16, dict(epilogue=E.chain([E.bias(COL), E.gelu()]))),
    "silu, residual": (ts.bf16, dict(epilogue=E.chain([E.silu(), E.residual(FULL)]))),
    "dropout": (ts.bf16, dict(epilogue=E.chain([E.dropout(0.1, 7)]))),
    "row sums": (ts.bf16, dict(epilogue=E.chain([E.row_sum(OUT)]))),
    "triangular": (ts.bf16, dict(triangular_only="lower")),
    "scales and a bias": (
        ts.fp8_e4m3,
        dict(trans_b=True, epilogue=E.chain([E.scale(OUT), E.bias(OUT), E.relu()])),
    ),
    "scales": (ts.fp8_e4m3, dict(trans_b=True, epilogue=E.chain([E.scale(OUT, "col"), E.scale(OUT, "row")]))),
}


@pytest.mark.parametrize("name", CASES)
def test_no_default_schedule_of_the_family_spills(name):
    dtype, options = CASES[name]
    made = gemm.compile(4096, 4096, 4096, dtype, target="sm_90a", **options)
    assert spills(made) == 0
    assert uses(made, "wgmma")


def test_scaled_and_batched_products_are_split_into_roles():
    base = sized(4096, 4096, 4096, ts.fp8_e4m3, ts.fp8_e4m3, Options(trans_b=True))
    scaled = replace(base, scale_a="row", scale_b="block", promote=128)
    batched = replace(
        sized(512, 1024, 512, ts.bf16, ts.bf16, Options()), batch=3, a_batched=True, b_batched=True
    )
    for problem in (scaled, batched):
        kernel = kernel_for(problem, plan(problem, HOPPER), EMPTY)
        made = kernel.compile(target="sm_90a", dims=dict(M=problem.m, N=problem.n, K=problem.k))
        assert spills(made) == 0
        assert uses(made, "wgmma")


def test_grouped_products_compile_for_hopper():
    problem = replace(sized(4096, 1024, 512, ts.bf16, ts.bf16, Options(mma_kind="mma_sync")), b_batched=True)
    dims = dict(G=8, OFFSETS=9, M=4096, N=1024, K=512)
    made = grouped_kernel(problem, 8, plan(problem, HOPPER), EMPTY).compile(target="sm_90a", dims=dims)
    assert spills(made) == 0
    assert uses(made, "mma.")


@ts.kernel.autotune(space=dict(BM=[128], BN=[128], BK=[64], num_warps=[8]))
def gated(
    X: ts.Tensor["M", "K", ts.bf16],
    G: ts.Tensor["K", "N", ts.bf16],
    U: ts.Tensor["K", "N", ts.bf16],
    gate_epilogue: E.Epilogue["M", "N"],
    Y: ts.Tensor["M", "N", ts.bf16],
):
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        gate = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        up = ts.tile.zeros((ctx.BM, ctx.BN), ts.f32)
        for k in ts.tile.range(0, K, ctx.BK):
            x = X[m : m + ctx.BM, k : k + ctx.BK]
            gate = ts.tile.mma(x, G[k : k + ctx.BK, n : n + ctx.BN], gate)
            up = ts.tile.mma(x, U[k : k + ctx.BK, n : n + ctx.BN], up)
        Y[m : m + ctx.BM, n : n + ctx.BN] = gate_epilogue(gate, m, n) * up


def test_a_gated_product_with_a_chain_does_not_spill():
    dims = dict(M=4096, N=4096, K=4096)
    made = ts.compile(gated, target="sm_90a", dims=dims, gate_epilogue=E.chain([E.silu()]))
    assert spills(made) == 0
    assert uses(made, "wgmma")


OLDER = [
    ("sm_80", ts.bf16, {}, "mma.m16n8k16.row.col.f32.bf16"),
    ("sm_80", ts.f32, dict(compute=ts.tf32), "mma.m16n8k8.row.col.f32.tf32"),
    ("sm_80", ts.i8, dict(trans_b=True), "mma.m16n8k32.row.col.s32.s8"),
    ("sm_89", ts.fp8_e4m3, dict(trans_b=True), "mma.m16n8k32.row.col.f32.e4m3"),
    ("sm_100a", ts.bf16, {}, "mma.m16n8k16.row.col.f32.bf16"),
    ("sm_100a", ts.fp8_e4m3, dict(trans_b=True), "mma.m16n8k32.row.col.f32.e4m3"),
    ("sm_120a", ts.f16, {}, "mma.m16n8k16.row.col.f32.f16"),
    ("sm_90a", ts.f64, {}, "mma.m16n8k16.row.col.f64"),
]


@pytest.mark.parametrize(("target", "dtype", "options", "instruction"), OLDER)
def test_other_targets_use_their_instructions(target, dtype, options, instruction):
    made = gemm.compile(1024, 1024, 1024, dtype, target=target, dump=("ptx",), **options)
    assert uses(made, instruction)
    assert uses(made, "cp.async")
    assert spills(made) == 0
    assert "mma.sync.aligned.m16n8k" in made.dumps["ptx"]


def test_mma_kind_is_followed_or_refused():
    made = gemm.compile(1024, 1024, 1024, target="sm_90a", mma_kind="mma_sync")
    assert uses(made, "mma.")
    assert not uses(made, "wgmma")
    assert gemm.compile(1024, 1024, 1024, target="sm_90a", mma_kind="wgmma").reflection["instructions"][
        "wgmma"
    ]
    for target, dtype in (("sm_80", ts.bf16), ("sm_90a", ts.f32), ("cpu", ts.f32)):
        with pytest.raises(ts.CallError) as caught:
            gemm.plan(64, 64, 64, dtype, target=target, mma_kind="wgmma")
        assert caught.value.code == "unsupported-mma-kind"


def test_large_products_take_the_large_tile_and_small_ones_fill_the_machine():
    large = gemm.plan(8192, 8192, 8192, target="sm_90a")
    assert (large.block_m, large.block_n, large.block_k, large.num_warps, large.path) == (
        128,
        256,
        64,
        8,
        "wgmma",
    )
    skinny = gemm.plan(16, 4096, 4096, target="sm_90a")
    assert (skinny.block_m, skinny.turned) == (16, True)
    assert 64 <= -(-4096 // skinny.block_n) * skinny.split_k <= 132
    assert gemm.plan(4096, 4096, 4096, ts.fp8_e4m3, trans_b=True, target="sm_90a").block_k == 128
    assert large.seconds > gemm.plan(4096, 4096, 4096, target="sm_90a").seconds > skinny.seconds


def test_what_is_forced_is_followed():
    problem = sized(4096, 4096, 4096, ts.bf16, ts.bf16, Options())
    got = plan(problem, HOPPER, Forced(block=(64, 128, 64), stages=2, num_warps=4))
    assert (got.block_m, got.block_n, got.block_k, got.stages, got.num_warps) == (64, 128, 64, 2, 4)
    assert "forced" in got.notes[-1]
    assert plan(problem, HOPPER, Forced(split_k=4)).split_k == 4
    assert "without effect" in plan(problem, target_named("sm_80"), Forced(split_k=4)).notes[-1]
    assert got.explain()["block_n"] == 128
    assert "64x128x64, 2 stages, 4 warps" in str(got)


def test_plans_fit_shared_memory_on_every_target():
    for name in ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"):
        target = target_named(name)
        for dtype in (ts.bf16, ts.f32, ts.f64, ts.fp8_e4m3, ts.i8):
            got = gemm.plan(3000, 500, 700, dtype, target=target)
            ring = got.block_k * (got.block_m + got.block_n) * dtype.bytes
            assert 2 * ring <= target.shared_bytes, (name, dtype)


def test_the_tuning_space_starts_with_the_plan():
    space = gemm.space(4096, 4096, 4096, target="sm_90a")
    best = gemm.plan(4096, 4096, 4096, target="sm_90a")
    assert (space["BM"][0], space["BN"][0], space["BK"][0]) == (best.block_m, best.block_n, best.block_k)
    assert {64, 128, 256} <= set(space["BN"])
    problem = sized(64, 64, 64, ts.f32, ts.f32, Options())
    assert points(tuning_space(problem, target_named("x86-64-v3"))) > 10


def test_too_much_shared_memory_is_a_typed_error():
    with pytest.raises(ts.ResourceError) as caught:
        gemm.compile(4096, 4096, 4096, target="sm_90a", block=(256, 256, 256), num_warps=8)
    assert caught.value.code in ("no-valid-point", "shared-memory")
