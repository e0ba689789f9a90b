"""Plans and what they compile to; no device is needed."""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil
from unittest import mock

import numpy as np
import pytest

import tessera as ts
from tessera import ops as op
from tessera.ops.linalg import prepare
from tessera.ops.linalg.grouped import grouped_kernel
from tessera.ops.linalg.machine import Choice, predict
from tessera.ops.linalg.plan import plan, points, ranked, tuning_space
from tessera.ops.linalg.prepare import EMPTY, kernel_for, sized
from tessera.ops.linalg.problem import Forced, Options
from tessera.target.registry import target_named
from tests.unit.ops.support import BOUND, error, random
from tests.unit.ops.test_flash_attention import emulated

E, gemm = op.epilogue, op.linalg.gemm
HOPPER = target_named("sm_90a")

BF16_SHAPES = [
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (8192, 28672, 4096),
    (8192, 8192, 1024),
    (4096, 14336, 4096),
    (16, 4096, 4096),
    (128, 8192, 8192),
    (1000, 777, 333),
    (4096, 4096, 64),
]


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


TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("trans", TRANSPOSES)
@pytest.mark.parametrize("chain", [EMPTY, E.chain([E.bias(OUT), E.gelu()])], ids=["plain", "gelu"])
def test_no_default_schedule_of_tf32_spills(trans, chain):
    options = dict(compute=ts.tf32, trans_a=trans[0], trans_b=trans[1], epilogue=chain)
    made = gemm.compile(4096, 4096, 4096, ts.f32, target="sm_90a", dump=("ptx",), **options)
    assert spills(made) == 0
    assert uses(made, "wgmma")
    assert "wgmma.mma_async.sync.aligned.m64n" in made.dumps["ptx"]
    assert "k8.f32.tf32.tf32" in made.dumps["ptx"]
    assert "roles" not in made.reflection
    assert not any("serialized_products" in facts for facts in made.reflection["kernels"].values())
    # Operands along K come rounded by the copy engine, others are rounded by threads.
    assert ("cvt.rn.tf32.f32" in made.dumps["ptx"]) == (trans != (False, True))


def test_tf32_takes_the_instructions_asked_for():
    made = gemm.compile(512, 512, 512, ts.f32, target="sm_90a", compute=ts.tf32, mma_kind="mma_sync")
    assert uses(made, "mma.")
    assert not uses(made, "wgmma")
    assert gemm.plan(512, 512, 512, ts.f32, target="sm_90a", compute=ts.tf32, mma_kind="wgmma").path == "wgmma"
    with pytest.raises(ts.CallError, match="computes this product of f32 and f32 with fma"):
        gemm.plan(512, 512, 64, ts.f32, target="sm_90a", mma_kind="wgmma")
    with pytest.raises(ts.CallError, match="in tf32 with mma"):
        gemm.plan(512, 510, 512, ts.f32, target="sm_90a", compute=ts.tf32, mma_kind="wgmma", pack=False)
    copied = gemm.plan(512, 510, 512, ts.f32, target="sm_90a", compute=ts.tf32, mma_kind="wgmma")
    assert (copied.path, copied.pack_a, copied.pack_b) == ("wgmma", "", "other")


@pytest.mark.parametrize("name", CASES)
def test_no_default_schedule_of_the_family_spills(name):
    dtype, options = CASES[name]
    made = gemm.compile(4096, 4096, 4096, dtype, target="sm_90a", **options)
    assert spills(made) == 0
    assert uses(made, "wgmma")


@pytest.mark.parametrize(
    "steps",
    [[E.relu()], [E.gelu()], [E.silu(), E.scale(0.5)], [E.residual(FULL)], [E.residual(FULL, 0.5), E.relu()]],
)
def test_epilogues_of_whole_tiles_hand_nothing_through_shared_memory(steps):
    made = gemm.compile(4096, 4096, 4096, target="sm_90a", epilogue=E.chain(steps), dump=("ptx",))
    assert "stmatrix" in made.dumps["ptx"]  # the result itself goes there, for the bulk store
    assert "ld.shared" not in made.dumps["ptx"]
    assert "st.shared" not in made.dumps["ptx"]


@pytest.mark.parametrize(
    ("block", "options"),
    [
        *(((rows, columns, 64), {}) for rows, columns in [(128, 128), (128, 256), (256, 128), (64, 256), (128, 192)]),
        *(((rows, columns, 64), {"ping_pong": True}) for rows, columns in [(128, 128), (64, 256)]),
        ((128, 256, 64), {"trans_a": True}),
    ],
)
def test_results_of_odd_rows_are_put_into_rows_before_they_are_stored(block, options):
    made = gemm.compile(2048, 2003, 512, target="sm_90a", block=block, dump=("ptx",), **options)
    assert uses(made, "wgmma")
    assert "stmatrix" in made.dumps["ptx"]
    assert "ld.shared.b16" in made.dumps["ptx"], "neighbouring threads store neighbouring elements"
    assert spills(made) == 0


@pytest.mark.parametrize("trans", [(False, False), (True, False)])
@pytest.mark.parametrize(("tile", "resident"), [((64, 64), 4), ((64, 48), 4), ((128, 32), 3)])
def test_products_by_threads_leave_registers_for_as_many_programs_as_plans_count_on(trans, tile, resident):
    options = dict(block=(*tile, 32), num_warps=4, split_k=1, mma_kind="fma", trans_a=trans[0], trans_b=trans[1])
    for sizes in ((1001, 67, 1167), (1000, 64, 1168)):  # rows that begin anywhere, and aligned ones
        made = gemm.compile(*sizes, ts.f32, target="sm_90a", **options)
        assert made.reflection["schedule"]["resident"] == resident
        assert spills(made) == 0, "a limit that would put registers into memory is given up"


STREAMED = [
    ((4096, 4096, 4096), (128, 256, 64), {}),
    ((128, 8192, 8192), (128, 128, 64), {}),
    ((16, 4096, 4096), None, {}),
    ((4096, 4096, 4096), None, dict(CASES["linear bias gelu"][1])),
    ((4096, 4096, 4096), None, dict(CASES["row sums"][1])),
    ((4096, 4096, 4096), None, dict(dtype=ts.f32, compute=ts.tf32)),  # computed as the transpose
    ((4096, 4096, 4096), None, dict(dtype=ts.f32, compute=ts.tf32, trans_a=True)),
]


@pytest.mark.parametrize(("shape", "block", "options"), STREAMED)
def test_products_whose_last_tiles_are_shared_out_do_not_spill(shape, block, options):
    made = gemm.compile(*shape, target="sm_90a", stream_k=1, block=block, **options)
    assert spills(made) == 0
    assert uses(made, "wgmma")
    assert uses(made, "tma")
    assert "stream_k" not in made.reflection
    (launch,) = made.launches
    assert launch.slot_bytes % 128 == 0
    assert launch.slot_bytes >= 64 * 16 * 4


def test_scaled_and_batched_products_are_split_into_roles():
    base = sized(4096, 4096, 4096, ts.fp8_e4m3, ts.fp8_e4m3, Options(trans_b=True))
    scaled = replace(base, scale_a="row", scale_b="block", promote=128)
    batched = replace(sized(512, 1024, 512, ts.bf16, ts.bf16, Options()), batch=3, a_batched=True, b_batched=True)
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
    assert gemm.compile(1024, 1024, 1024, target="sm_90a", mma_kind="wgmma").reflection["instructions"]["wgmma"]
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
    streamed = plan(problem, HOPPER, Forced(stream_k=1))
    assert (streamed.stream_k, streamed.split_k, streamed.space()["stream_k"]) == (1, 1, (1,))
    assert "stream_k" in str(streamed)
    assert "without effect" in plan(problem, target_named("sm_80"), Forced(stream_k=1)).notes[-1]
    turns = plan(problem, HOPPER, Forced(stream_k=1, ping_pong=True))
    assert (turns.ping_pong, turns.stream_k) == (True, 0)
    assert turns.notes[-1].startswith("stream_k=1: without effect")
    assert got.explain()["block_n"] == 128
    assert "64x128x64, 2 stages, 4 warps" in str(got)


def test_groups_that_take_turns_are_planned_when_asked_for():
    chain = E.chain([E.bias(np.zeros(16384, np.float32)), E.gelu("tanh")])
    for options in (
        {},
        {"epilogue": chain},
        {"block": (64, 256, 64)},
        {"block": (64, 128, 64), "trans_a": True},
    ):
        got = gemm.plan(8192, 16384, 4096, target="sm_90a", ping_pong=True, **options)
        assert (got.ping_pong, got.num_warps, got.space()["ping_pong"]) == (True, 4, (1,))
        assert "ping-pong" in str(got)
        made = gemm.compile(8192, 16384, 4096, target="sm_90a", ping_pong=True, **options)
        assert made.reflection["schedule"]["ping_pong"] == 1
        assert spills(made) == 0
    for target, options in (("sm_80", {}), ("sm_90a", {"split_k": 2}), ("sm_90a", {"mma_kind": "mma_sync"})):
        got = gemm.plan(4096, 4096, 4096, target=target, ping_pong=True, **options)
        assert not got.ping_pong
        assert any("ping_pong: without effect" in note for note in got.notes)
    assert gemm.space(4096, 4096, 4096, target="sm_90a")["ping_pong"] == (0, 1)


def test_the_ends_of_tiles_decide_whether_groups_take_turns():
    """Long ends beside short products are what turns hide; alone, products are faster together."""
    chain = E.chain([E.bias(np.zeros(8192, np.float32)), E.gelu("tanh")])

    def turns(k, **options):
        return gemm.plan(8192, 8192, k, target="sm_90a", **options).ping_pong

    assert [turns(k) for k in (8192, 4096)] == [False, False]
    assert [turns(k, epilogue=chain) for k in (16384, 4096, 1024, 512)] == [False, False, True, True]
    assert not turns(512, epilogue=chain, ping_pong=False)
    assert not turns(512, block=(128, 256, 64))


def test_the_plan_is_the_first_of_the_ranked_schedules():
    for shape in ((4096, 4096, 4096), (16, 4096, 4096), (1000, 777, 333), (97, 371, 2048)):
        problem = sized(*shape, ts.bf16, ts.bf16, Options())
        found = ranked(problem, HOPPER)
        assert found[0].space() == plan(problem, HOPPER).space()
        assert [each.seconds for each in found] == sorted(each.seconds for each in found)
    assert {bool(each.pack_b) for each in found} == {False, True}


def test_few_tiles_of_many_terms_are_shared_out():
    """Clusters of eight would leave multiprocessors idle; programs that share a round of tiles each fetch all alone."""

    def shared(size, k, **options):
        chosen = gemm.plan(size, size, k, target="sm_90a", **options)
        return bool(chosen.stream_k) or chosen.parts > 8

    sizes = (128, 65536), (256, 65536), (256, 1024), (2304, 8192), (4096, 8192)
    assert [shared(*size) for size in sizes] == [True, True, False, False, False]
    assert not shared(256, 65536, stream_k=0)
    assert not shared(256, 65536, triangular_only="lower")
    assert not shared(256, 65536, block=(128, 64, 128))


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


def test_promoted_sums_are_added_with_all_bits():
    """On Hopper the matrix units keep fewer: each block of terms joins the sums by additions in f32."""
    shape = dict(dtype=ts.fp8_e4m3, target="sm_90a", dump=("ptx",), trans_b=True, block=(128, 128, 128))
    plain, promoted = (gemm.compile(512, 512, 512, promote=promote, **shape) for promote in (0, 128))
    sums = [len(re.findall(r"add(?:\.rn)?\.f32", made.dumps["ptx"])) for made in (plain, promoted)]
    assert sums[0] == 0
    assert sums[1] >= 128 * 128 // 256, "one for each element of a thread"


ZEN5 = replace(
    target_named("x86-64-v4"),
    features=target_named("x86-64-v4").features | {"avx512bf16", "avx512vnni"},
    l1_bytes=48 << 10,
    l2_bytes=1 << 20,
    cores=2,
)


def cpu_plan(*sizes: int, target=ZEN5, dtype=ts.f32, **options):
    """Return the plan of a product on a CPU."""
    return plan(sized(*sizes, dtype, dtype, Options(**options)), target)


@pytest.mark.parametrize("target", [ZEN5, target_named("x86-64-v3"), target_named("aarch64")], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [ts.f32, ts.f64, ts.bf16, ts.i8])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 64), (1000, 333, 777), (4096, 4096, 4096), (33, 9000, 5)])
@pytest.mark.parametrize("turned", [False, True])
def test_blocks_of_a_cpu_fit_its_caches(target, dtype, sizes, turned):
    found = cpu_plan(*sizes, target=target, dtype=dtype, trans_a=turned)
    total = 8 if dtype is ts.f64 else 4
    assert found.block_m * found.block_n * total <= target.l2_bytes
    assert found.block_n * found.block_k * max(dtype.bytes, 1) <= target.l2_bytes // 2
    assert found.block_k * dtype.bytes >= min(sizes[2] * dtype.bytes, 64)


def test_blocks_of_a_cpu_share_the_work_evenly():
    found = cpu_plan(1000, 333, 777)
    tiles = [
        min(found.block_m, 1000 - m) * min(found.block_n, 333 - n)
        for m in range(0, 1000, found.block_m)
        for n in range(0, 333, found.block_n)
    ]
    busy = [0, 0]
    for tile in tiles:
        busy[busy.index(min(busy))] += tile
    assert max(busy) <= 1.05 * 1000 * 333 / 2


def programs(found, m, n):
    """Return how many programs a plan has."""
    return -(-m // found.block_m) * -(-n // found.block_n)


def test_a_core_that_is_late_is_waited_for_a_part_of_the_work_only():
    """Four blocks of 512x512 would leave one core half of the work, however slow it is."""
    assert programs(cpu_plan(1024, 1024, 1024), 1024, 1024) >= 8
    alone = cpu_plan(512, 512, 512, target=replace(ZEN5, cores=1))
    assert 2 * programs(alone, 512, 512) < programs(cpu_plan(512, 512, 512), 512, 512)


def test_cores_whose_prefetchers_reach_far_share_rows_rather_than_columns():
    far = replace(ZEN5, features=ZEN5.features | {"amx-bf16", "amx-tile"}, l2_bytes=2 << 20)
    assert cpu_plan(256, 256, 256, target=far).block_n == 256
    assert cpu_plan(256, 256, 256).block_n < 256


def test_steps_of_a_cpu_are_of_equal_length():
    assert cpu_plan(1000, 333, 777).block_k == 88  # nine steps; of 96 terms the ninth would have nine
    assert cpu_plan(1000, 333, 777, dtype=ts.bf16).block_k == 160
    assert cpu_plan(2048, 2048, 2048).block_k == 96


@pytest.mark.parametrize("columns", [3, 16, 24, 40])
def test_blocks_of_narrow_results_are_narrow(columns):
    """What lies beyond a result takes no part in the time of many blocks, either."""
    amx = replace(ZEN5, features=ZEN5.features | {"amx-tile", "amx-bf16"}, cores=1)
    for batch in (0, 48):
        problem = replace(sized(512, columns, 320, ts.bf16, ts.bf16, Options()), batch=batch)
        found = plan(problem, amx)
        assert columns <= found.block_n < columns + 16


def test_many_shapes_share_few_blocks_of_a_cpu():
    rng = np.random.default_rng(2)
    blocks = {
        (found.block_m, found.block_n) for found in (cpu_plan(*map(int, rng.integers(32, 3000, 3))) for _ in range(300))
    }
    assert len(blocks) <= 60


def test_short_products_are_not_computed_in_pairs():
    deep = sized(2048, 3000, 3000, ts.bf16, ts.bf16, Options())
    assert plan(deep, HOPPER).cluster == 2
    assert plan(replace(deep, k=32), HOPPER).cluster == 1


def test_batches_of_few_odd_rows_are_not_copied_but_deep_products_of_such_are():
    few = sized(8, 512, 128, ts.f16, ts.f16, Options())
    batch = replace(few, batch=640, a_batched=True, b_batched=True, a_aligned=False, b_aligned=False)
    chosen = plan(batch, HOPPER)
    assert (chosen.path, chosen.pack_a, chosen.pack_b) == ("mma", "", "")
    deep = plan(sized(3867, 4409, 499, ts.bf16, ts.bf16, Options()), HOPPER)
    assert (deep.path, deep.pack_a, deep.pack_b) == ("wgmma", "k", "other")


@pytest.mark.parametrize("sizes", [(192, 56, 18616), (64, 64, 57408), (16, 104, 24320), (256, 64, 11904)])
def test_many_programs_share_long_sums_of_few_small_tiles(sizes):
    chosen = plan(sized(*sizes, ts.bf16, ts.bf16, Options()), HOPPER)
    assert (chosen.path, chosen.stream_k) == ("wgmma", 0)
    assert max(chosen.split_k, chosen.parts) >= 8


@pytest.mark.parametrize("sizes", [(576, 512, 29472), (1280, 192, 65536), (256, 1024, 16384)])
def test_all_programs_share_long_sums_of_more_tiles(sizes):
    chosen = plan(sized(*sizes, ts.bf16, ts.bf16, Options()), HOPPER)
    assert (chosen.path, chosen.split_k) == ("wgmma", 1)
    tiles = ceil(sizes[0] / chosen.block_m) * ceil(sizes[1] / chosen.block_n)
    assert chosen.stream_k or 0.75 * HOPPER.machine.units < tiles * chosen.parts <= HOPPER.machine.units


def test_deep_products_by_threads_leave_it_to_the_launch_how_many_programs_share_their_tiles():
    deep = plan(sized(167, 37, 97905, ts.f32, ts.f32, Options()), HOPPER)
    assert (deep.path, deep.split_k) == ("fma", 1)
    shallow = plan(sized(32, 256, 1024, ts.f32, ts.f32, Options()), HOPPER)
    assert (shallow.path, shallow.split_k) == ("fma", 4)


@pytest.mark.parametrize("terms", [1, 8, 13, 16, 24, 40, 48, 72])
def test_products_of_few_terms_by_threads_multiply_little_beside_them(terms: int) -> None:
    """Steps of 32 terms would multiply up to 32 times as many, most of them zeros."""
    made = plan(sized(4096, 4096, terms, ts.f32, ts.f32, Options()), HOPPER)
    assert made.path == "fma"
    assert -(-terms // made.block_k) * made.block_k < terms + 8 or made.block_k == 8


FEW_TERMS = [
    (3, (13, 151, 17), "NN", ts.f32, "sm_90a"),
    (None, (70, 133, 37), "NT", ts.f32, "sm_90a"),
    (2, (97, 41, 9), "TN", ts.f32, "sm_80"),
    (None, (5, 200, 20), "TT", ts.f32, "sm_80"),
    (None, (130, 15, 128), "NN", ts.f32, "sm_90a"),
    (2, (33, 66, 100), "TN", ts.f32, "sm_90a"),
    (2, (30, 45, 11), "NT", ts.f64, "sm_75"),
    (2, (66, 31, 13), "NN", ts.f16, "sm_90a"),
]


@pytest.mark.parametrize(("batch", "sizes", "layout", "dtype", "target"), FEW_TERMS, ids=str)
def test_products_of_few_terms_equal_float64(batch, sizes, layout, dtype, target):
    """Rows begin anywhere, tiles reach past every end, and steps are fewer than the rings are deep."""
    (m, n, k), lead = sizes, () if batch is None else (batch,)
    options = Options(trans_a=layout[0] == "T", trans_b=layout[1] == "T")
    given = replace(sized(m, n, k, dtype, dtype, options), batch=batch, a_batched=batch is not None)
    given = replace(given, b_batched=given.a_batched)
    a, b = random(*lead, m, k, dtype=dtype), random(*lead, k, n, dtype=dtype)
    stored = [np.ascontiguousarray(x.swapaxes(-1, -2)) if t == "T" else x for x, t in zip((a, b), layout, strict=True)]
    out = np.full((*lead, m, n), np.nan, dtype.numpy())
    kernel = kernel_for(given, plan(given, target_named(target)), EMPTY)
    dims = {"M": m, "N": n, "K": k} | ({} if batch is None else {"B": batch})
    emulated(kernel, target, [*stored, out], dims, ())
    assert error(out, a.astype(np.float64) @ b.astype(np.float64)) <= BOUND[dtype.name]


@pytest.mark.parametrize("terms", [5, 17, 64, 300])
def test_programs_with_few_steps_have_no_ring_deeper_than_them(terms):
    made = plan(sized(3000, 3001, terms, ts.f32, ts.f32, Options(mma_kind="fma")), HOPPER)
    steps = -(-terms // made.block_k)
    assert made.stages <= max(2 * steps - 1, 1)
    assert (made.split_sums, made.space()["split_sums"]) == (1, (1,))
    deep = plan(sized(300, 301, 3000, ts.f32, ts.f32, Options(mma_kind="fma")), HOPPER)
    assert (deep.split_sums, "split_sums" in deep.space()) == (None, False), "programs may share tiles at the launch"


@pytest.mark.parametrize(("first", "aligned"), [(0, True), (4, True), (1, False)])
def test_plans_know_where_rows_of_a_given_result_begin(first, aligned):
    torch, found = pytest.importorskip("torch"), []

    def noted(problem, target, forced):
        found.append(problem.out_aligned)
        return plan(problem, target, forced)

    a, b, wide = torch.ones(8, 16), torch.ones(16, 32), torch.zeros(8, 36)
    with mock.patch.object(prepare, "plan", noted):
        call = type(gemm)()
        for out in (wide[:, first : first + 32], torch.zeros(8, 32), None):
            call(a, b, out=out)
    assert found == [aligned, True, True]


def test_products_of_many_terms_by_threads_take_whole_lines_a_step() -> None:
    made = plan(sized(4096, 4096, 4096, ts.f32, ts.f32, Options(mma_kind="fma")), HOPPER)
    assert (made.path, made.block_k) == ("fma", 32)


@pytest.mark.parametrize("tile", [(128, 128), (64, 128)])
def test_tiles_that_fill_the_gpu_are_shared_at_no_other_rate(tile: tuple[int, int]) -> None:
    """One tile more than run at once takes longer, not a time by another rate of the units."""

    def seconds(columns: int) -> float:
        problem = sized(tile[0], columns * tile[1], 8192, ts.bf16, ts.bf16, Options())
        choice = Choice("wgmma", *tile, 64, 8, shared=True)
        return predict(problem, HOPPER, choice)[0]

    units = HOPPER.machine.units
    assert seconds(units) < seconds(units + 1) < 1.1 * seconds(units)
