"""Programs after the plans of real kernels lead to the schedules that matrix units have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.errors import ResourceError
from tessera.ir.passes import PassRunner
from tessera.ir.tile.roles import BulkCopyOp, BulkStoreOp, RolesOp
from tessera.ir.tile.shared import CpAsyncOp
from tessera.ir.tile.split import PartialSumOp
from tessera.ir.tile.stream import CollectSumsOp
from tessera.ir.tile.warpgroup import MmaStartOp
from tessera.numerics.profiles import profile
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.serial import dumps, loads
from tessera.tools.fuzz.steps import built

SEEDS = range(60)
PLANS = Options(plans=1.0)
"""Every program follows a plan."""


def scheduled(seed: int, folder: Path, **knobs: int | str) -> ModuleOp:
    program = generate(seed, PLANS)
    values = {tensor.name: contents(tensor, seed) for tensor in program.tensors}
    with profile(program.profile):  # pyright: ignore[reportArgumentType]
        module = built(program, folder, values)
    passes = schedule_passes(target_named("sm_90a"), Knobs.from_config(knobs))
    PassRunner().run(module, "schedule", (*CANONICALIZE, *passes))
    return module


@pytest.mark.parametrize(
    ("kind", "knobs"),
    [
        (RolesOp, {}),
        (BulkStoreOp, {}),
        (MmaStartOp, {"pipeline": 1}),
        (PartialSumOp, {"split_k": 2}),
        (CollectSumsOp, {"stream_k": 1}),
        (CpAsyncOp, {"num_stages": 2}),
    ],
)
def test_a_plan_leads_to_what_a_schedule_makes(kind: type[Any], knobs: dict[str, int], tmp_path: Path) -> None:
    modules = (scheduled(seed, tmp_path, **knobs) for seed in SEEDS)
    assert any(isinstance(op, kind) for module in modules for op in module.walk())


def shares_copies(op: Any) -> bool:
    return isinstance(op, BulkCopyOp) and op.programs.data > 1


@pytest.mark.parametrize(
    ("knob", "shows"),
    [
        ("cluster", shares_copies),
        ("split_k", lambda op: isinstance(op, PartialSumOp)),
        ("stream_k", lambda op: isinstance(op, CollectSumsOp)),
        ("ping_pong", lambda op: isinstance(op, RolesOp) and op.groups.data > 1),
    ],
)
def test_what_a_program_asks_for_it_often_gets(knob: str, shows: Callable[[Any], bool], tmp_path: Path) -> None:
    programs = [generate(seed, PLANS) for seed in range(250)]
    found = 0
    for program in programs:
        if knob in dict(program.knobs):
            with suppress(ResourceError):
                module = scheduled(program.seed, tmp_path, **{knob: dict(program.knobs)[knob]})
                found += any(shows(op) for op in module.walk())
    assert found >= 2


def test_knobs_are_kept_when_a_program_is_saved() -> None:
    programs = [generate(seed, PLANS) for seed in SEEDS]
    assert any(isinstance(value, str) for program in programs for _, value in program.knobs)
    assert [loads(dumps(program)) for program in programs] == programs
