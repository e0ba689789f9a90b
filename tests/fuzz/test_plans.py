"""Programs after the plans of real kernels lead to the schedules that matrix units have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import click
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
from tessera.schedule.gpu import full_boxes
from tessera.schedule.gpu.outer_steps import do_together
from tessera.schedule.knobs import KNOBS, Knobs
from tessera.target.registry import target_named
from tessera.tools.fuzz.arrays import contents
from tessera.tools.fuzz.campaign import Job, Summary, one
from tessera.tools.fuzz.command import fuzz
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_knobs import VALUES
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.run import Device
from tessera.tools.fuzz.serial import dumps, loads
from tessera.tools.fuzz.steps import built

SEEDS = range(60)
PLANS = Options(plans=1.0)
"""Every program follows a plan."""


NESTS = Options(nests=1.0)
"""Every program is of loops in loops."""


def scheduled(seed: int, folder: Path, options: Options, **knobs: int | str) -> ModuleOp:
    program = generate(seed, options)
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
    modules = (scheduled(seed, tmp_path, PLANS, **knobs) for seed in SEEDS)
    assert any(isinstance(op, kind) for module in modules for op in module.walk())


def test_loops_in_loops_often_do_several_outer_steps_at_once(tmp_path: Path) -> None:
    asked: list[bool] = []

    def together(*args: Any) -> bool:
        asked.append(do_together(*args))
        return asked[-1]

    with mock.patch.object(full_boxes, "do_together", together):
        for seed in SEEDS[:24]:
            scheduled(seed, tmp_path, NESTS)
    assert sum(asked) > 3
    assert not all(asked)


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
    programs = [generate(seed, PLANS) for seed in range(320)]
    found = 0
    for program in programs:
        if knob in dict(program.knobs):
            with suppress(ResourceError):
                module = scheduled(program.seed, tmp_path, PLANS, **{knob: dict(program.knobs)[knob]})
                found += any(shows(op) for op in module.walk())
    assert found >= 2


def test_knobs_are_kept_when_a_program_is_saved() -> None:
    programs = [generate(seed, PLANS) for seed in SEEDS]
    assert any(isinstance(value, str) for program in programs for _, value in program.knobs)
    assert [loads(dumps(program)) for program in programs] == programs


def test_values_are_those_of_the_knobs_that_there_are() -> None:
    assert list(VALUES) == list(KNOBS)
    for name, values in VALUES.items():
        assert all(map(KNOBS[name].accepts, values))


@pytest.mark.parametrize("options", [PLANS, Options(plans=0.0, small=0.0)])
def test_every_knob_is_drawn(options: Options) -> None:
    drawn = {name for seed in range(1500) for name, _ in generate(seed, options).knobs}
    assert drawn == set(KNOBS)


def test_programs_take_the_knobs_that_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--set", "plans=1", "--set", "chunk=64", "--set", "stages=3", "--set", "mma_kind=fma", "--seed", "3"]
    fuzz.main([*asked, "--show"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("chunk=[64]", "stages=[3]", "mma_kind=['fma']"))


@pytest.mark.parametrize("wrong", ["chunk=3", "chunks=3"])
def test_other_knobs_are_refused(wrong: str) -> None:
    with pytest.raises(click.BadParameter, match="chunk"):
        fuzz.main(["--set", wrong, "--show"], standalone_mode=False)


def test_a_campaign_counts_knobs(tmp_path: Path) -> None:
    job = Job(Device("compile", "sm_90a"), replace(PLANS, fixed=(("chunk", 64),)))
    summary = Summary()
    for seed in range(3):
        summary.add(one(seed, job, tmp_path))
    assert summary.knobs["chunk=64"] == 3
