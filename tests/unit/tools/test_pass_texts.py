"""Passes as texts: what one prints is what `tessera opt` reads, and a mistake names what there is."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.errors import CallError, LanguageError, TargetError
from tessera.ir.passes import Pass, pass_of
from tessera.schedule.gpu.warps import ChooseWarpsPass
from tessera.schedule.hopper.warp_specialize import WarpSpecializePass
from tessera.schedule.knobs import Knobs, read_by
from tessera.schedule.scheduled_pass import ScheduledPass
from tessera.target.registry import known_targets, target_named
from tessera.tools.opt import opt_text, registered_passes

VALUES: dict[str, tuple[int | str, ...]] = {
    "num_warps": (1, 4, 32),
    "stages": (1, 3, 12),
    "terms": (16, 64),
    "group_m": (1, 7),
    "batch": (1, 64),
    "chunk": (0, 8, 4096),
    "bulk_stores": (0, 1),
    "split_k": (1, 8),
    "stream_k": (0, 1),
    "fit_blocks": (0, 1),
    "split_sums": (1, 8),
    "hold_rows": (0, 2),
    "share_rows": (1, 4),
    "cluster": (1, 4),
    "pipeline": (0, 1),
    "ping_pong": (0, 1),
    "mma_kind": ("wgmma", "mma_sync", "fma"),
    "producer_registers": (24, 40),
    "consumer_registers": (160, 240),
    "keep_copies": (0, 1),
    "in_place": (0, 1),
    "panel": (8, 64),
    "pack_before": (0, 1),
    "begin_sums": (0, 1),
    "squares": (0, 1),
    "trim": (0, 1),
    "prefetch": (0, 1),
    "stream": (0, 64),
    "strip": (0, 64),
}
ALL = Knobs(**{name: values[-1] for name, values in VALUES.items()})  # pyright: ignore[reportArgumentType]


def again(step: Pass) -> Pass:
    return pass_of(str(step), registered_passes())[1]


@pytest.mark.parametrize("target", known_targets())
def test_what_a_target_runs_is_read_back(target: str) -> None:
    record = target_named(target)
    for knobs in (Knobs(), ALL):
        for step in (*CANONICALIZE, *schedule_passes(record, knobs)):
            assert again(step) == step
            assert str(again(step)) == str(step)


@pytest.mark.parametrize("name", sorted(registered_passes()))
def test_every_pass_is_read_back_with_all_its_options(name: str) -> None:
    cls = registered_passes()[name]
    assert pass_of(name, registered_passes()) == (name.removesuffix(f"-{cls.name}"), cls())
    assert again(cls()) == cls()
    if not issubclass(cls, ScheduledPass):
        assert cls.option_names() == ()
        return
    for knob in read_by(cls.name):
        for value in VALUES[knob]:
            step = cls(knobs=Knobs.from_config({knob: value}))
            assert again(step) == step
            assert f"{knob}={value}" in str(step)
    for target in known_targets():
        step = cls(target_named(target), ALL)
        assert again(step) == step
        assert str(step).startswith(f"{cls.name}{{target={target}")


def test_every_knob_is_read_by_a_pass() -> None:
    passes = [cls for cls in registered_passes().values() if issubclass(cls, ScheduledPass)]
    read = {name for cls in passes for name in read_by(cls.name)}
    assert read == {field.name for field in fields(Knobs)} == set(VALUES)


def test_what_is_printed() -> None:
    target = target_named("sm_90a")
    assert str(ChooseWarpsPass(target)) == "choose-warps{target=sm_90a}"
    asked = WarpSpecializePass(target, Knobs(cluster=2, stages=3, num_warps=8))
    assert str(asked) == "warp-specialize{target=sm_90a,num_warps=8,stages=3}"
    assert pass_of(" schedule-warp-specialize { stages = 3, num_warps=8 } ", registered_passes()) == ("schedule", asked)


def test_a_pass_has_no_knobs_but_those_it_reads() -> None:
    assert ChooseWarpsPass(knobs=ALL).knobs == Knobs(num_warps=32, group_m=7)


@pytest.mark.parametrize(
    ("text", "error", "code", "shown"),
    [
        ("warp-specialise", CallError, "unknown-pass", "schedule-warp-specialize"),
        ("warp-specialize{stages=3", CallError, "unknown-pass", "schedule-warp-specialize"),
        ("warp-specialize{depth=3}", CallError, "unknown-option", "target, num_warps, stages, bulk_stores"),
        ("warp-specialize{num_stages=3}", CallError, "unknown-option", "did you mean stages?"),
        ("warp-specialize{stages}", CallError, "bad-option", "target, num_warps, stages, bulk_stores"),
        ("warp-specialize{stages=}", CallError, "bad-option", "name=value"),
        ("warp-specialize{stages=2,stages=3}", CallError, "bad-option", "given twice"),
        ("warp-specialize{stages=2,}", CallError, "bad-option", "name=value"),
        ("warp-specialize{stages=few}", LanguageError, "bad-knob", "positive integer"),
        ("warp-specialize{stages=0}", LanguageError, "bad-knob", "positive integer"),
        ("warp-specialize{stages=-1}", LanguageError, "bad-knob", "positive integer"),
        (f"warp-specialize{{stages={2**70}}}", LanguageError, "bad-knob", "positive integer"),
        ("warp-specialize{ping_pong=2}", LanguageError, "bad-knob", "0, 1"),
        ("warp-specialize{mma_kind=3}", LanguageError, "bad-knob", "wgmma, mma_sync, fma"),
        ("pair-tiles{cluster=3}", LanguageError, "bad-knob", "1, 2, 4"),
        ("choose-warps{num_warps=3}", LanguageError, "bad-knob", "1, 2, 4, 8, 16, 32"),
        ("choose-warps{target=sm_1}", TargetError, "unknown-target", "sm_90a"),
        ("dead-code{stages=3}", CallError, "unknown-option", "it has none"),
        ("dead-code{x}", CallError, "bad-option", "it has none"),
    ],
)
def test_a_mistake_names_what_there_is(text: str, error: type[Exception], code: str, shown: str) -> None:
    with pytest.raises(error) as caught:
        opt_text("builtin.module {}", [text])
    assert getattr(caught.value, "code", None) == code
    assert shown in str(caught.value)
