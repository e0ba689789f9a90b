"""Loops that only add up, shared by the programs of a tile: which are split, into what, and how many programs run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.passes import PassRunner
from tessera.ir.tile.stream import CollectSumsOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.schedule.knobs import Knobs
from tessera.target.artifact import FILLING_THREADS, FLAG_BYTES, Launch, Parameter
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned

Kernel = Callable[..., None]


def columns(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(0, M, 2):
            total = total + ts.tile.sum(x[m : m + 2, n : n + 16], 0)
        y[n : n + 16] = total


def fixed_columns(x: ts.Tensor["M", 4096, ts.f32], y: ts.Tensor[4096, ts.f32]) -> None:
    for n in ts.tile.grid((4096, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = total + x[m, n : n + 16]
        y[n : n + 16] = total


def three_rows(x: ts.Tensor[3, "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(3):
            total = total + x[m, n : n + 16]
        y[n : n + 16] = total


def running(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = total + x[m, n : n + 16]
            y[m, n : n + 16] = total


def large(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor[128, "N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 256)):
        total = ts.tile.zeros((128, 256), ts.f32)
        for m in ts.tile.range(0, M, 128):
            total = total + x[m : m + 128, n : n + 256]
        y[:, n : n + 256] = total


def decaying(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = total * 0.5 + x[m, n : n + 16]
        y[n : n + 16] = total


def looked_at(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total, crossed = ts.tile.zeros((16,), ts.f32), ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = total + x[m, n : n + 16]
            crossed = ts.tile.maximum(crossed, total)
        y[n : n + 16] = crossed


def mixed(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = ts.tile.maximum(total + x[m, n : n + 16], 0.0)
        y[n : n + 16] = total


def centred(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            total = total + x[m, n : n + 16]
        apart = ts.tile.zeros((16,), ts.f32)
        for m in ts.tile.range(M):
            less = x[m, n : n + 16] - total / M
            apart = apart + less * less
        y[n : n + 16] = apart


def waiting(x: ts.Tensor["N", ts.i32]) -> None:
    for n in ts.tile.grid((N, 1)):
        for _ in ts.tile.range(x[n]):
            while x[n] < 0:
                pass


def largest(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["N", ts.f32]) -> None:
    for n in ts.tile.grid((N, 16)):
        most = ts.tile.full((16,), -1.0, ts.f32)
        for m in ts.tile.range(M):
            most = ts.tile.maximum(most, x[m, n : n + 16])
        y[n : n + 16] = most


def product_of(BM: int, BN: int, BK: int) -> Kernel:
    def product(
        a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
    ) -> None:
        for m, n in ts.tile.grid((M, BM), (N, BN)):
            acc = ts.tile.zeros((BM, BN), ts.f32)
            for k in ts.tile.range(0, K, BK):
                acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
            c[m : m + BM, n : n + BN] = acc

    return product


def rows(x: ts.Tensor["M", 4096, ts.f32], y: ts.Tensor["M", ts.f32]) -> None:
    for m in ts.tile.grid((M, 1)):
        y[m] = ts.tile.sum(x[m, :])


def softmax(x: ts.Tensor["M", 4096, ts.f32], y: ts.Tensor["M", 4096, ts.f32]) -> None:
    for m in ts.tile.grid((M, 1)):
        row = x[m, :]
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[m, :] = powers / ts.tile.sum(powers)


def scheduled(kernel: Kernel, profile: str = "fast", target: str = "sm_90a", **knobs: Any) -> ModuleOp:
    module = aligned(kernel)
    for op in module.walk():
        if isinstance(op, KernelOp):
            op.profile = StringAttr(profile)
    passes = schedule_passes(target_named(target), Knobs.from_config(knobs))
    PassRunner(verify="pass").run(module, "schedule", (*CANONICALIZE, *passes))
    return module


def grid_of(module: ModuleOp) -> GridOp:
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    return grid


def said(module: ModuleOp) -> str:
    notes: Any = grid_of(module).attributes.get("tessera_notes.split_sums")
    return "" if notes is None else notes.data[0].data


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kernel", [columns, largest])
def test_loops_that_add_up_are_split(kernel: Kernel, target: str) -> None:
    module = scheduled(kernel, target=target, batch=1)
    assert decisions.SPLIT_SUMS.of(grid_of(module)) == 256
    assert said(module) == "up to 256 programs share a tile's loop where the grid does not fill the GPU"
    assert decisions.SPLIT_SUMS.of(grid_of(scheduled(kernel, target=target, split_sums=5, batch=1))) == 5


@pytest.mark.parametrize(
    ("sizes", "steps", "programs"), [((64, 64, 64), 4, 396), ((32, 32, 64), 4, 1024), ((64, 64, 128), 2, 396)]
)
def test_parts_of_products_have_terms_enough_and_all_run_at_once(
    sizes: tuple[int, int, int], steps: int, programs: int
) -> None:
    grid = grid_of(scheduled(product_of(*sizes)))
    assert decisions.PART_STEPS.of(grid) == steps
    assert decisions.SHARING_PROGRAMS.of(grid) == programs
    asked = grid_of(scheduled(product_of(*sizes), split_sums=4))
    assert decisions.PART_STEPS.of(asked) is decisions.SHARING_PROGRAMS.of(asked) is None


def test_shared_tiles_of_products_have_warps_for_what_others_leave() -> None:
    assert decisions.NUM_WARPS.of(grid_of(scheduled(product_of(128, 128, 32), target="sm_80"))) == 8
    assert decisions.NUM_WARPS.of(grid_of(scheduled(product_of(128, 128, 32), target="sm_80", split_sums=1))) == 4
    assert decisions.NUM_WARPS.of(grid_of(scheduled(product_of(64, 64, 32), target="sm_80"))) == 4


def test_one_program_a_tile_is_a_choice() -> None:
    module = scheduled(columns, split_sums=1)
    assert decisions.SPLIT_SUMS.of(grid_of(module)) is None
    assert said(module) == ""


@pytest.mark.parametrize("kernel", [fixed_columns, three_rows, large])
def test_what_could_not_help_or_has_no_room_is_not_split_unless_asked_for(kernel: Kernel) -> None:
    assert decisions.SPLIT_SUMS.of(grid_of(scheduled(kernel))) is None
    assert decisions.SPLIT_SUMS.of(grid_of(scheduled(kernel, split_sums=8))) == 8


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (running, "something is written, or otherwise done, before the sums are complete"),
        (decaying, "the loop carries something that is not a sum, a maximum or the like"),
        (looked_at, "the loop carries something that is not a sum, a maximum or the like"),
        (mixed, "the loop carries something that is not a sum, a maximum or the like"),
        (centred, "a loop needs the sums of another one"),
        (waiting, "its loops carry nothing"),
    ],
)
def test_other_loops_stay_and_say_why_where_asked(kernel: Kernel, reason: str) -> None:
    assert said(scheduled(kernel, split_sums=4)) == f"split_sums=4 is ignored: {reason}"
    module = scheduled(kernel)
    assert decisions.SPLIT_SUMS.of(grid_of(module)) is None
    assert said(module) == ""


def test_strict_sums_of_floats_stay_and_maxima_do_not() -> None:
    assert said(scheduled(columns, "strict", split_sums=4)) == "split_sums=4 is ignored: strict gives the order of sums"
    assert decisions.SPLIT_SUMS.of(grid_of(scheduled(largest, "strict", batch=1))) == 256


def test_the_chunks_of_a_row_are_reduced_before_they_are_left() -> None:
    (collect,) = [op for op in scheduled(rows, chunk=256).walk() if isinstance(op, CollectSumsOp)]
    assert [partial.type.shape for partial in collect.partials] == [(1,)]


def test_rows_that_are_passed_over_again_stay() -> None:
    assert decisions.SPLIT_SUMS.of(grid_of(scheduled(softmax, chunk=256))) is None


@pytest.mark.parametrize("programs", [1, 2, 3, 16])
@pytest.mark.parametrize("size", [0, 1, 5, 40])
def test_any_number_of_programs_gives_the_sums(size: int, programs: int) -> None:
    x = np.random.default_rng(size).integers(-9, 9, (size, 37)).astype(np.float32)
    y = np.full(37, np.nan, np.float32)
    interpret(scheduled(columns), [x, y], programs=programs)
    np.testing.assert_array_equal(y, x.sum(0))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_programs_run_does_not_matter(seed: int) -> None:
    x, y = np.arange(40 * 37, dtype=np.float32).reshape(40, 37), np.full(37, np.nan, np.float32)
    interpret(scheduled(columns), [x, y], order_seed=seed)
    np.testing.assert_array_equal(y, x.sum(0))


def launch(threads: int, parts: int, slot_bytes: int = 1024) -> Launch:
    return Launch("k", (Parameter("workspace", -1, slot_bytes=slot_bytes, parts=parts),), (), threads)


@pytest.mark.parametrize(("threads", "programs"), [(256, 6), (1024, 1), (128, 131), (256, 529), (32, 1), (64, 10**6)])
def test_as_many_programs_start_as_fill_the_gpu(threads: int, programs: int) -> None:
    one, multiprocessors = launch(threads, 64), 132
    room = min(multiprocessors * FILLING_THREADS // threads, FLAG_BYTES // 4)
    started = one.started(programs, multiprocessors)
    each, odd = divmod(started, programs)
    assert odd == 0
    assert each <= 64
    assert each == 1 or started <= room == one.most_programs(multiprocessors)
    assert each == 64 or started + programs > room  # one more for each would be too many
    assert one.started(0, multiprocessors) == 0
