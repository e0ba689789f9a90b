"""Which blocks a launch of products gets, and which of several launches runs."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.canonicalize.stages import CANONICALIZE
from tessera.entry.tables import grid_steps
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.structure import GridOp
from tessera.schedule.hopper.blocks import TileWork, blocks_for
from tessera.schedule.hopper.fit_blocks import FitBlocksPass
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import MatrixProduct, Operand
from tessera.target.extents import evaluate
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.ops.test_flash_attention import emulated
from tests.unit.schedule.hopper.kernels import product_of

BF16 = ml_dtypes.bfloat16
SIZES = {"M": 4096, "N": 4096, "K": 4096}
ANY = [(128, 256), (128, 192), (128, 128), (64, 192), (64, 128), (64, 64), (64, 64)]
"""Tiles of a plain product; the steps of the last ones are shared out."""


def in_f32(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 104), (N, 72)):
        acc = ts.tile.zeros((104, 72), ts.f32)
        for k in ts.tile.range(0, K, 16):
            acc = ts.tile.mma(a[m : m + 104, k : k + 16], b[k : k + 16, n : n + 72], acc)
        c[m : m + 104, n : n + 72] = acc


def gated(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    c: ts.Tensor["K", "N", ts.bf16],
    y: ts.Tensor["M", "N", ts.bf16],
) -> None:
    for m, n in ts.tile.grid((M, 104), (N, 72)):
        left, right = ts.tile.zeros((104, 72), ts.f32), ts.tile.zeros((104, 72), ts.f32)
        for k in ts.tile.range(0, K, 48):
            left = ts.tile.mma(a[m : m + 104, k : k + 48], b[k : k + 48, n : n + 72], left)
            right = ts.tile.mma(a[m : m + 104, k : k + 48], c[k : k + 48, n : n + 72], right)
        y[m : m + 104, n : n + 72] = left * right


def dequantised(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.i8], c: ts.Tensor["M", "N", ts.bf16]
) -> None:
    for m, n in ts.tile.grid((M, 104), (N, 72)):
        acc = ts.tile.zeros((104, 72), ts.f32)
        for k in ts.tile.range(0, K, 48):
            acc = ts.tile.mma(a[m : m + 104, k : k + 48], b[k : k + 48, n : n + 72].to(ts.bf16), acc)
        c[m : m + 104, n : n + 72] = acc


def fitted(
    kernel: Any, target: str = "sm_90a", sizes: dict[str, int] | None = SIZES, knobs: Knobs | None = None
) -> ModuleOp:
    module = aligned(kernel, sizes)
    for step in CANONICALIZE:
        step.apply(module)
    FitBlocksPass(target_named(target), knobs or Knobs()).apply(module)
    module.verify()
    return module


def blocks(module: ModuleOp) -> list[tuple[int, ...]]:
    return [op.block_sizes for op in module.walk() if isinstance(op, GridOp)]


def said(module: ModuleOp) -> str:
    notes: Any = next(op for op in module.walk() if isinstance(op, GridOp)).attributes.get("tessera_notes.blocks")
    return "" if notes is None else notes.data[0].data


@pytest.mark.parametrize("block", [(104, 200, 80), (168, 48, 56), (96, 192, 48), (128, 96, 64), (256, 160, 32)])
def test_launches_choose_among_tiles_of_warpgroups(block: tuple[int, int, int]) -> None:
    module = fitted(product_of(*block))
    assert blocks(module) == ANY
    tiles = "128x256 or 128x192 or 128x128 or 64x192 or 64x128 or 64x64 or 64x64 by steps"
    assert said(module) == f"tiles of {block[0]}x{block[1]} are computed as {tiles}, as the sizes of a launch say"


@pytest.mark.parametrize("block", [(128, 256, 64), (256, 128, 64), (128, 128, 64), (64, 64, 32), (192, 128, 64)])
def test_launches_choose_whatever_they_are_written_in(block: tuple[int, int, int]) -> None:
    assert blocks(fitted(product_of(*block))) == ANY


@pytest.mark.parametrize(("block", "own"), [((64, 32, 16), [(64, 32)]), ((32, 32, 32), [])])
def test_smaller_tiles_are_one_more_choice_if_instructions_take_them(
    block: tuple[int, int, int], own: list[tuple[int, int]]
) -> None:
    assert blocks(fitted(product_of(*block))) == [*ANY[:-1], *own, ANY[-1]]


def begun(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]):
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        acc = c[m : m + 128, n : n + 128].to(ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 128, k : k + 64], b[k : k + 64, n : n + 128], acc)
        c[m : m + 128, n : n + 128] = acc


def added(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] += acc


def turned(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    r: ts.Tensor["N", "M", ts.bf16],
    c: ts.Tensor["M", "N", ts.bf16],
):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc + r[n : n + 64, m : m + 64].T


def beside(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    r: ts.Tensor["M", "N", ts.bf16],
    c: ts.Tensor["M", "N", ts.bf16],
):
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc + r[m : m + 64, n : n + 64]


@pytest.mark.parametrize(("kernel", "launches"), [(begun, 1), (added, 1), (turned, 1), (beside, 7)])
def test_what_ends_of_tiles_load_has_room(kernel: Callable[..., None], launches: int) -> None:
    made = ts.compile(ts.kernel(kernel), target="sm_90a", dims=SIZES)
    measured = made.reflection["kernels"].values()
    assert len(measured) == launches
    assert all(each["spill_store_bytes"] == 0 for each in measured)


@pytest.mark.parametrize("given", [{"fit_blocks": 1}, {"cluster": 1}, {"split_k": 1}])
def test_knobs_that_change_nothing_keep_no_tiles(given: dict[str, Any]) -> None:
    assert blocks(fitted(product_of(64, 64, 32), knobs=Knobs(**given))) == ANY


def test_programs_share_no_steps_where_that_is_refused() -> None:
    assert blocks(fitted(product_of(104, 200, 80), knobs=Knobs(stream_k=0))) == ANY[:-1]
    assert blocks(fitted(product_of(104, 200, 80), knobs=Knobs(split_k=2))) == ANY[:-1]


def test_few_tiles_are_shared_out() -> None:
    """One program for each of six tiles would do 32 steps; results are those of float64 on an emulated GPU."""
    sizes = {"M": 72, "N": 136, "K": 2048}
    rng = np.random.default_rng(2)
    a, b, bias = (rng.standard_normal(shape).astype(BF16) for shape in ((72, 2048), (2048, 136), (136,)))
    out = np.full((72, 136), np.nan, BF16)
    kernel = ts.kernel(product_of(104, 72, 80))
    shapes = [one.shape for one in (a, b, bias, out)]
    launches = ts.compile(kernel, target="sm_90a", dims=sizes).launches
    counts = [prod(max(evaluate(extent, shapes, ()), 0) for extent, _ in one.grid) > 0 for one in launches]
    assert counts == [False] * 6 + [True]
    emulated(kernel, "sm_90a", [a, b, bias, out], sizes, ())
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=2**-7, atol=2**-7 * np.abs(exact).max())


def test_sums_in_the_order_of_strict_stay() -> None:
    with ts.numerics.profile("strict"):
        made = ts.compile(ts.kernel(product_of(64, 64, 32)), target="sm_90a", dims=SIZES)
    assert list(made.reflection["kernels"]) == ["kernel"]


@pytest.mark.parametrize(
    "given", [{"stages": 3}, {"terms": 64}, {"num_warps": 4}, {"cluster": 2}, {"split_k": 2}, {"mma_kind": "mma_sync"}]
)
def test_small_tiles_stay_where_knobs_belong_to_them(given: dict[str, Any]) -> None:
    assert blocks(fitted(product_of(64, 64, 32), knobs=Knobs(**given))) == [(64, 64)]


@pytest.mark.parametrize("block", [(128, 64), (64, 64)])
def test_loops_that_compute_more_stay_in_blocks_that_instructions_take(block: tuple[int, int]) -> None:
    rows, columns = block

    def summed(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]):
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc, sums = ts.tile.zeros((rows, columns), ts.f32), ts.tile.zeros((rows,), ts.f32)
            for k in ts.tile.range(0, K, 64):
                left = a[m : m + rows, k : k + 64]
                acc = ts.tile.mma(left, b[k : k + 64, n : n + columns], acc)
                sums += ts.tile.sum(left.to(ts.f32), 1)
            c[m : m + rows, n : n + columns] = acc * sums[:, None]

    module = fitted(summed)
    assert blocks(module) == [block]
    assert said(module) == ""


@pytest.mark.parametrize(("terms", "after"), [(128, 64), (80, 64), (64, 64), (16, 16)])
def test_steps_are_powers_of_two_and_leave_room(terms: int, after: int) -> None:
    loads = [op for op in fitted(product_of(104, 200, terms), sizes=None).walk() if isinstance(op, LoadOp)]
    assert {op.size_list for op in loads} == {(128, after), (after, 128), (128,), (64, after), (after, 64), (64,)}


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_rows_that_begin_anywhere_take_tiles_of_warps(target: str) -> None:
    assert blocks(fitted(product_of(104, 200, 80), target, None)) == [(128, 128), (64, 64)]


def test_other_gpus_keep_rows_in_16s() -> None:
    assert blocks(fitted(product_of(96, 200, 48), "sm_80")) == [(96, 200)]
    assert blocks(fitted(product_of(168, 200, 48), "sm_80")) == [(128, 128), (64, 64)]


def test_several_sums_take_smaller_tiles() -> None:
    assert blocks(fitted(gated)) == [(128, 128), (64, 128), (64, 64), (64, 64)]


def test_operands_that_threads_compute_take_tiles_whose_transposes_have_roles() -> None:
    assert blocks(fitted(dequantised)) == [(128, 256), (128, 128), (64, 128), (64, 64)]
    artifact = ts.compile(ts.kernel(dequantised), target="sm_90a", dims=SIZES)
    assert "roles" not in artifact.reflection
    assert all(launch.persistent for launch in artifact.launches)


@pytest.mark.parametrize(
    ("kernel", "knobs", "reason"),
    [
        (product_of(104, 200, 80), Knobs(fit_blocks=0), ""),
        (product_of(104, 200, 80), Knobs(num_warps=8), "num_warps=8 was asked for"),
        (in_f32, Knobs(), ""),
        (product_of(104, 72, 80, "number"), Knobs(), "the number of a program says more than where its boxes start"),
        (product_of(104, 72, 80, "columns"), Knobs(), "a dimension of tiles is not its block alone"),
    ],
)
def test_blocks_stay(kernel: Any, knobs: Knobs, reason: str) -> None:
    module = fitted(kernel, knobs=knobs)
    assert len(blocks(module)) == 1
    assert said(module) == (f"blocks stay as they are: {reason}" if reason else "")


@pytest.mark.parametrize("block", [(256, 256), (128, 256), (256, 128), (128, 128), (64, 64), (128, 64)])
def test_large_tiles_without_roles_are_others(block: tuple[int, int]) -> None:
    """Sums of more than 128 x 128 leave few registers to threads that load rows which begin anywhere."""
    odd = {"M": 4097, "N": 4097, "K": 4097}
    module = fitted(product_of(*block, 32), sizes=odd)
    assert blocks(module) == ([(128, 128), (64, 64)] if prod(block) > 128 * 128 else [block])


@pytest.mark.parametrize("shape", [(6400, 2048, 128), (7616, 3352, 88), (20000, 4096, 64)])
def test_many_tiles_of_few_terms_are_not_shared_out(shape: tuple[int, int, int]) -> None:
    """Each tile has an end: 6400 x 2048 x 128 took 25 µs by steps on an H200, and 15 by tiles of 128 x 256."""
    m, n, k = shape
    launches = ts.compile(ts.kernel(product_of(160, 96, 48)), target="sm_90a", dims=SIZES).launches
    sizes = ((m, k), (k, n), (n,), (m, n))
    counts = [prod(max(evaluate(extent, sizes, ()), 0) for extent, _ in one.grid) > 0 for one in launches]
    assert sum(counts) == 1
    assert not counts[-1]


@pytest.mark.parametrize("strided", [False, True])
def test_one_launch_runs_the_fastest_one(strided: bool) -> None:
    """A launch has programs for the sizes that the model finds it fastest for, and none for others."""
    dims = {"M": 4097, "N": 4097, "K": 4097} if strided else SIZES
    artifact = ts.compile(ts.kernel(product_of(104, 200, 80)), target="sm_90a", dims=dims)
    work = TileWork(
        MatrixProduct(Operand("a", ts.bf16, "k", not strided), Operand("b", ts.bf16, "other", not strided), ts.f32),
        104,
        200,
        ts.bf16,
    )
    choices = blocks_for(work, target_named("sm_90a"), (True, True), True)
    assert len(artifact.launches) == len(choices) == (2 if strided else 7)
    chosen = set[int]()
    rng = np.random.default_rng(0)
    for _ in range(200):
        m, n, k = (int(size) for size in np.exp(rng.uniform(0, 9.5, 3)))
        sizes = ((m, k), (k, n), (n,), (m, n))
        started = []
        for launch in artifact.launches:
            counts = [-(-max(evaluate(extent, sizes, ()), 0) // block) for extent, block in launch.grid]
            started.append(prod(counts) > 0)
        assert sum(started) == 1
        times = [one.time(-(-m // one.rows) * -(-n // one.columns), k) for one in choices]
        assert started.index(True) == times.index(min(times))
        chosen.add(started.index(True))
    block: Any = SimpleNamespace(size=lambda *_: 0)
    assert all(grid_steps(launch.grid, block) for launch in artifact.launches)  # the compiled entry takes them
    assert len(chosen) == len(choices)


A, B, C = ts.Tensor["M", 192, ts.bf16], ts.Tensor[192, 192, ts.bf16], ts.Tensor["M", 192, ts.f32]


@ts.kernel.autotune(space={"stages": [3]})
def four_operands(a: A, b: B, c: B, d: A, y: C, z: C):
    for m, n in ts.tile.grid((M, 64), (192, 96)):
        left, right = ts.tile.zeros((64, 96), ts.f32), ts.tile.zeros((64, 96), ts.f32)
        for k in ts.tile.range(0, 192, 64):
            x, w = a[m : m + 64, k : k + 64], d[m : m + 64, k : k + 64]
            left = ts.tile.mma(x, b[k : k + 64, n : n + 96], left)
            right = ts.tile.mma(x, c[k : k + 64, n : n + 96], left)
            left = ts.tile.mma(w, c[k : k + 64, n : n + 96], left)
        y[m : m + 64, n : n + 96] = left
        z[m : m + 64, n : n + 96] = right


def test_tiles_stay_where_others_lack_memory_for_the_rings_that_are_asked_for() -> None:
    reflection = ts.compile(four_operands, target="sm_90a").reflection
    assert reflection["schedule"]["stages"] == 3
