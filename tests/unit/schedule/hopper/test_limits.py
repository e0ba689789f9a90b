"""What plans are told of tiles is what the passes then do: whether roles compute them, and in how many stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.driver.binding import assumed_facts
from tessera.driver.pipeline import schedule_passes
from tessera.driver.variants import points
from tessera.frontend.build import build_kernel
from tessera.frontend.signature import TensorParam
from tessera.frontend.specialize import ArgFacts, Specialization
from tessera.ir import decisions
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import shape_of
from tessera.ops.linalg.grouped import grouped_kernel
from tessera.ops.linalg.plan import Plan, asked_of, plan
from tessera.ops.linalg.prepare import EMPTY, kernel_for, sized
from tessera.ops.linalg.problem import Forced, Options, Problem
from tessera.schedule.hopper.limits import room_of, why_no_tile
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import path_of, why_no_shares
from tessera.target.registry import target_named
from tests.unit.schedule.hopper.kernels import note

HOPPER = target_named("sm_90a")
SIZES = (512, 512, 512)
TRANSPOSES = [(False, False), (False, True), (True, False), (True, True)]
BLOCKS = [(64, 64, 64), (128, 128, 32), (64, 96, 64), (128, 32, 64), (32, 128, 64), (256, 128, 64), (64, 512, 64)]
FORCED = [
    *(Forced(block=block) for block in BLOCKS),
    Forced(block=(128, 256, 64), stages=5),
    Forced(block=(128, 256, 64), stages=4),
    Forced(block=(128, 128, 64), stages=1),
    Forced(block=(64, 64, 64), num_warps=8),
    Forced(block=(128, 256, 64), num_warps=4),
    Forced(block=(128, 256, 64), ping_pong=True),
    Forced(block=(128, 128, 64), split_k=2),
    Forced(block=(128, 256, 64), split_k=2),
    Forced(block=(64, 64, 64), split_k=4, stream_k=1),
    Forced(block=(64, 128, 64), ping_pong=True, stream_k=1),
]


def roles_of(kernel: Any, sizes: tuple[int, int, int] = SIZES) -> ModuleOp:
    """Return a kernel of `ops.linalg` after the pass that splits it into roles."""
    facts = [
        assumed_facts(param, dict(zip("MNK", sizes, strict=True)) | {"G": 4, "OFFSETS": 5}, None)
        if isinstance(param, TensorParam)
        else ArgFacts("scalar", param.dtype)
        for param in kernel.signature.runtime_params
    ]
    (point,) = points(kernel.space)
    module = build_kernel(kernel.signature, Specialization(tuple(facts), config=tuple(point.items()))).module
    for step in schedule_passes(HOPPER, Knobs.from_config(point)):
        step.apply(module)
        if step.name == "warp-specialize":
            return module
    raise AssertionError("no pass splits launches into roles")


def found(module: ModuleOp) -> tuple[int | None, int | None]:
    """Return the consumer warps and the depth of the rings of a launch with roles."""
    (grid,) = [op for op in module.walk() if isinstance(op, GridOp)]
    (stages,) = [at for op in module.walk() if isinstance(op, scf.ForOp) and (at := decisions.STAGES.of(op))]
    return decisions.NUM_WARPS.of(grid), stages


def problem_of(dtype: Any, trans: tuple[bool, bool], sizes: tuple[int, int, int] = SIZES, **options: Any) -> Problem:
    return sized(*sizes, dtype, dtype, Options(trans_a=trans[0], trans_b=trans[1], **options), EMPTY)


def check(problem: Problem, made: Plan) -> None:
    """Check that the pass does with a plan's kernel what the plan was told."""
    product, tiling = asked_of(problem, made)
    reason = why_no_tile(product, tiling, HOPPER)
    module = roles_of(kernel_for(problem, made, EMPTY), (problem.m, problem.n, problem.k))
    roles = any(isinstance(op, RolesOp) for op in module.walk())
    assert note(module) == ("" if reason is None else f"one role: {reason}")
    assert roles == (reason is None)
    assert any("no warpgroup instructions" in text for text in made.notes) == (reason is not None)
    if roles:
        assert found(module) == (made.num_warps, room_of(product, tiling, HOPPER).stages(made.stages))


KINDS = pytest.mark.parametrize(
    ("dtype", "options"),
    [(ts.bf16, {}), (ts.bf16, {"out_dtype": ts.f32}), (ts.f32, {"compute": ts.tf32})],
    ids=["bf16", "bf16 to f32", "tf32"],
)
STORED = pytest.mark.parametrize("trans", TRANSPOSES, ids=["nn", "nt", "tn", "tt"])


@pytest.mark.parametrize("forced", FORCED, ids=str)
@KINDS
@STORED
def test_a_plan_is_told_what_the_pass_does(
    trans: tuple[bool, bool], dtype: Any, options: dict[str, Any], forced: Forced
) -> None:
    problem = problem_of(dtype, trans, **options)
    check(problem, plan(problem, HOPPER, forced))


@pytest.mark.parametrize("sizes", [(16, 512, 512), (64, 2048, 1024), (4096, 32, 512), (4096, 4096, 512)], ids=str)
@KINDS
@STORED
def test_plans_that_nobody_forces_have_roles(
    trans: tuple[bool, bool], dtype: Any, options: dict[str, Any], sizes: tuple[int, int, int]
) -> None:
    problem = problem_of(dtype, trans, sizes, **options)
    made = plan(problem, HOPPER)
    assert made.path == "wgmma"
    assert why_no_tile(*asked_of(problem, made), HOPPER) is None
    check(problem, made)


def test_groups_of_rows_are_found_too_late_for_a_producer() -> None:
    problem = replace(problem_of(ts.bf16, (False, False)), b_batched=True)
    made = plan(problem, HOPPER, Forced(block=(64, 64, 64)))
    assert made.path == "wgmma"
    reason = path_of(replace(problem, grouped=True).product, HOPPER).refused["wgmma"]
    module = roles_of(grouped_kernel(problem, 4, made, EMPTY))
    assert note(module) == f"one role: {reason}"
    assert plan(replace(problem, grouped=True), HOPPER).path == "mma"


@pytest.mark.parametrize(("split", "turns"), [(4, False), (1, True), (1, False)])
def test_who_shares_out_the_last_tiles(split: int, turns: bool) -> None:
    problem = problem_of(ts.bf16, (False, False))
    made = plan(problem, HOPPER, Forced(block=(64, 128, 64)))
    reason = why_no_shares(split, turns)
    module = roles_of(kernel_for(problem, replace(made, split_k=split, ping_pong=turns, stream_k=1), EMPTY))
    assert note(module, "stream_k") == ("" if reason is None else f"stream_k=1 is ignored: {reason}")
    forced = plan(problem, HOPPER, Forced(block=(64, 128, 64), split_k=split, ping_pong=turns, stream_k=1))
    assert forced.stream_k == (reason is None)
    assert (f"stream_k=1: without effect, {reason}" in forced.notes) == (reason is not None)


@pytest.mark.parametrize("trans", TRANSPOSES)
def test_the_product_that_is_computed(trans: tuple[bool, bool]) -> None:
    """Of operands in tf32, only a right one that alone runs across K makes warpgroups compute the transposes."""
    problem = problem_of(ts.f32, trans, compute=ts.tf32)
    module = roles_of(kernel_for(problem, plan(problem, HOPPER, Forced(block=(128, 64, 64))), EMPTY))
    (product,) = [op for op in module.walk() if isinstance(op, MmaOp)]
    assert shape_of(product.acc.type) == ((64, 128) if problem.product.turned else (128, 64))
    assert problem.product.turned == (trans == (False, False))
