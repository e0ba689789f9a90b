"""Lowering takes time linear in a program's size, whatever its form, and no more of Python's stack."""

import time
from typing import Any

import pytest
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE, lower, schedule_passes
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned

TARGETS = ("x86-64-v3", "sm_90a")


def chain(count: int) -> Any:
    def kernel(x: ts.Tensor["n", ts.u32], y: ts.Tensor["n", ts.u32]):
        for i in ts.tile.grid((n, 64)):
            h = x[i : i + 64]
            for t in ts.tile.static_range(count):
                h = (h ^ (h >> 13)) + t
            y[i : i + 64] = h

    return kernel


def stored_each(count: int) -> Any:
    def kernel(x: ts.Tensor[64, ts.f32], y: ts.Tensor["n", 64, ts.f32]):
        for _ in ts.tile.grid((1, 1)):
            v = x[:]
            for t in ts.tile.static_range(count):
                v = v * 0.5 + 1.0
                y[t, :] = v

    return kernel


def gathers(count: int) -> Any:
    def kernel(x: ts.Tensor["n", ts.i32], y: ts.Tensor[64, ts.i32]):
        for _ in ts.tile.grid((1, 1)):
            v = ts.tile.arange(64)
            for _ in ts.tile.static_range(count):
                v = x[v]
            y[:] = v

    return kernel


def hashed_rows(count: int) -> Any:
    def kernel(x: ts.Tensor["n", ts.u32], t: ts.Tensor["m", 64, ts.f32], y: ts.Tensor[16, 64, ts.f32]):
        for _ in ts.tile.grid((1, 1)):
            h = x[0:16]
            for k in ts.tile.static_range(count):
                h = (h ^ (h >> 13)) + k
            y[:, :] = t[h, :]

    return kernel


def transposes(count: int) -> Any:
    def kernel(x: ts.Tensor[20, 20, ts.f32], y: ts.Tensor[20, 20, ts.f32]):
        for _ in ts.tile.grid((1, 1)):
            v = x[:, :]
            for _ in ts.tile.static_range(count):
                v = ts.tile.exp(v).T
            y[:, :] = v

    return kernel


def masks(count: int) -> Any:
    def kernel(x: ts.Tensor[64, ts.f32], y: ts.Tensor[64, ts.f32], p: int):
        for _ in ts.tile.range(p):
            a = ts.tile.arange(64)
            for _ in ts.tile.static_range(count):
                a = a + a
            y[:] = ts.tile.where(a < p, x[:], 0.0)

    return kernel


def loops(count: int) -> Any:
    def kernel(x: ts.Tensor[64, ts.f32], y: ts.Tensor[64, ts.f32], p: int):
        v = x[:]
        w = x[:] * 2.0
        for _ in ts.tile.static_range(count):
            for _ in ts.tile.range(p):
                v, w = w, v + 1.0
        y[:] = v + w

    return kernel


def seconds(module: ModuleOp, target: str) -> float:
    """Return the processor time of scheduling and lowering, less where the machine was busy with other things."""
    best = 1e9
    record = target_named(target)
    for _ in range(2):
        copy, start = module.clone(), time.process_time()
        for step in schedule_passes(record, Knobs.from_config({})):
            step.apply(copy)
        lower(copy, record)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", [chain, stored_each, gathers, hashed_rows, transposes, masks, loops])
def test_lowering_is_linear(form: Any, target: str) -> None:
    times = list[float]()
    for count in (20, 80):
        module = aligned(form(count))
        for step in CANONICALIZE:
            step.apply(module)
        times.append(seconds(module, target))
    assert times[1] < 10 * times[0] + 0.1  # four times as much; sixteen times where it is quadratic


@pytest.mark.parametrize("target", TARGETS)
def test_chains_are_longer_than_pythons_stack(target: str) -> None:
    module = aligned(chain(500))
    for step in CANONICALIZE:
        step.apply(module)
    lower(module, target_named(target))


def test_a_hundred_loops_compile() -> None:
    # In a process of its own: LLVM's value numbering used to abort it.
    assert ts.compile(ts.kernel(loops(100)), target="x86-64-v3").code
