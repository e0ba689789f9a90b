"""Knobs: declared once, checked alike wherever they are given, and told on the page."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera.errors import CallError, LanguageError
from tessera.ops.linalg.gemm import gemm
from tessera.ops.linalg.problem import CHOICES, Forced, Options
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.knobs import KNOBS, Knob, Knobs, read_by
from tessera.schedule.scheduled_pass import AskedPass, ScheduledPass
from tessera.target.gpu_rates import CLUSTERED
from tessera.target.registry import known_targets, target_named
from tessera.tools.opt import registered_passes

DOCS = Path(__file__).resolve().parents[3] / "docs"
SCHEDULED = {cls.name: cls for cls in registered_passes().values() if issubclass(cls, ScheduledPass)}


@ts.kernel.autotune(space={"num_warp": [4]})
def misspelt(y: ts.Tensor["n", ts.f32]):
    for m in ts.tile.grid((n, 64)):
        y[m : m + 64] = 1.0


@ts.kernel.autotune(space={"GROUP_M": [64], "PIPELINED": [0], "GROUPS": [8]})
def like_knobs(y: ts.Tensor["n", ts.f32]):
    context = ts.tile.context()
    for m in ts.tile.grid((n, context.GROUP_M)):
        if context.PIPELINED:
            y[m : m + 64] = 1.0 * context.GROUPS
        else:
            y[m : m + 64] = 2.0


def test_declarations_agree_with_the_code() -> None:
    assert list(KNOBS) == [field.name for field in fields(Knobs)] == [knob.name for knob in KNOBS.values()]
    assert {name for knob in KNOBS.values() for name in knob.passes} <= set(SCHEDULED)
    features = {feature for name in known_targets() for feature in target_named(name).features}
    for knob in (*KNOBS.values(), *CHOICES.values()):
        assert set(knob.needs) <= features
        assert bool(knob.needs) == bool(knob.lacks)
        assert knob.takers
        assert ("kernels" in knob.takers) == bool(knob.passes)
        assert isinstance(knob.default, str) or knob.accepts(knob.default)


def test_a_pass_that_does_what_a_knob_asks_has_that_knob() -> None:
    asked = {name: cls.knob for name, cls in SCHEDULED.items() if issubclass(cls, AskedPass)}
    assert asked == {"split-k": "split_k", "stream-k": "stream_k", "pair-tiles": "cluster"}
    assert all(knob in read_by(name) for name, knob in asked.items())


def test_products_take_what_is_declared() -> None:
    assert set(CHOICES) == {field.name for field in fields(Forced)} | {"mma_kind", "cta_pairs"}
    assert {name for name, knob in CHOICES.items() if name in KNOBS} == {
        name for name, knob in KNOBS.items() if "linalg" in knob.takers
    }
    call = inspect.signature(gemm.__call__).parameters
    assert all(call[name].default is None for name in CHOICES)
    assert set(CHOICES) <= {field.name for field in fields(Options)}
    assert tuple(CLUSTERED) == KNOBS["split_k"].values


def bad_values(knob: Knob) -> list[Any]:
    others: list[Any] = ["few", 1.0, [2]]
    if knob.count > 1:
        return [*others, 64, (64, 64), (64, 64, 0), (64, 64, True), (64, 64, 2**31)]
    if isinstance(knob.values, range):
        return [*others, 0, True, knob.values[-1] + knob.values.step, *([25] if knob.values.step > 1 else [])]
    return [*others, 3, 48] if knob.values else [*others, 0, -1, True, 2**31, 2**70]


@pytest.mark.parametrize("name", CHOICES)
def test_products_refuse_what_knobs_cannot_be(name: str) -> None:
    for value in bad_values(CHOICES[name]):
        with pytest.raises(CallError) as caught:
            gemm.plan(64, 64, 64, target="sm_90a", **{name: value})
        assert caught.value.code == "bad-argument"
        assert caught.value.message.startswith(f"{name} is ")
        assert CHOICES[name].range in caught.value.message


@pytest.mark.parametrize("name", KNOBS)
def test_schedules_refuse_what_knobs_cannot_be(name: str) -> None:
    for value in bad_values(KNOBS[name]):
        with pytest.raises(LanguageError) as caught:
            Knobs.of({name: value})
        assert caught.value.code == "bad-knob"
        assert KNOBS[name].range in caught.value.message


def test_a_name_that_is_no_knob() -> None:
    with pytest.raises(LanguageError, match="no knob of the schedule is called 'ping_pongs'") as caught:
        Knobs.of({"ping_pongs": 1})
    assert caught.value.code == "unknown-knob"
    assert str(caught.value.help).startswith("did you mean ping_pong? there are num_warps, stages")
    assert Knobs.from_config({"BM": 64, "num_warps": 4}) == Knobs(num_warps=4)


def test_the_other_name_of_a_knob() -> None:
    assert Knobs.of({"num_stages": 3}) == Knobs.of({"stages": 3, "num_stages": 3}) == Knobs(stages=3)
    with pytest.raises(LanguageError, match="num_stages is 3 and stages is 2") as caught:
        Knobs.of({"stages": 2, "num_stages": 3})
    assert caught.value.code == "bad-knob"
    with pytest.raises(LanguageError, match=r"num_stages is a positive integer below 2\^31, got 'two'"):
        Knobs.of({"num_stages": "two"})


def test_a_misspelt_knob_of_a_kernel_is_an_error() -> None:
    with pytest.raises(LanguageError, match="num_warp'") as caught:
        misspelt.compile(target="sm_80")
    assert caught.value.code == "unknown-knob"
    assert "did you mean num_warps?" in str(caught.value.help)


def test_names_that_a_kernel_reads_may_be_like_those_of_knobs() -> None:
    assert like_knobs.compile(target="sm_80").reflection["config"]["GROUP_M"] == 64


@pytest.mark.parametrize("name", ["split_k", "stream_k"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a"])
def test_plans_and_passes_agree_where_a_knob_works(name: str, target: str) -> None:
    value = KNOBS[name].values[1]
    notes = gemm.plan(512, 512, 4096, target=target, **{name: value}).notes
    refused = f"{name}={value}: without effect, {target} has no {KNOBS[name].lacks}"
    assert (refused in notes) != KNOBS[name].works_on(target_named(target))


def test_the_pages_tell_all_knobs() -> None:
    pages = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("cpu.md", "gpu-schedules.md")}
    for knob in {**KNOBS, **CHOICES}.values():
        cpu = bool(knob.passes) and all(issubclass(SCHEDULED[name], CpuPass) for name in knob.passes)
        names = f"`{knob.name}`" + (f" (`{knob.alias}`)" if knob.alias else "")
        values = knob.range.removeprefix("one of ")
        shared = not knob.passes or any(SCHEDULED[name].__module__.count(".") == 2 for name in knob.passes)
        anything = "any CPU" if cpu else "any target" if shared else "any GPU"
        needs = ", ".join(f"`{feature}`" for feature in knob.needs) or anything
        takers = ", ".join({"kernels": "kernels", "linalg": "`ops.linalg`"}[taker] for taker in knob.takers)
        passes = ", ".join(f"`{name}`" for name in knob.passes) or "plans"
        row = f"| {names} | {values} | {knob.meaning} | {knob.default} | {needs} | {takers} | {passes} |\n"
        page = "cpu.md" if cpu else "gpu-schedules.md"
        assert row in pages[page], f"docs/{page} lacks the row {row}"
