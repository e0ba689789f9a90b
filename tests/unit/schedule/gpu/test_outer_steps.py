"""Loops around small loops that only add up: how many of their steps are done at once, and which stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE, schedule_passes
from tessera.ir.passes import PassRunner
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.structure import KernelOp
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned

Kernel = Callable[..., None]


def sums_of(rows: int, columns: int) -> Kernel:
    def sums(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32]) -> None:
        for c in ts.tile.grid((C, columns)):
            total = ts.tile.zeros((columns,), ts.f32)
            for a in ts.tile.range(A):
                for b in ts.tile.range(0, B, rows):
                    total = total + ts.tile.sum(x[a, b : b + rows, c : c + columns], 0)
            y[c : c + columns] = total

    return sums


def triangle(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            for b in ts.tile.range(a):
                total = total + x[a, b, c : c + 16]
        y[c : c + 16] = total


def scaled(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            total = total * 0.5
            for b in ts.tile.range(B):
                total = total + x[a, b, c : c + 16]
        y[c : c + 16] = total


def weighted(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            weight = ts.tile.zeros((16,), ts.f32)
            for b in ts.tile.range(B):
                weight = ts.tile.maximum(weight, x[a, b, c : c + 16])
            for b in ts.tile.range(B):
                total = total + weight * x[a, b, c : c + 16]
        y[c : c + 16] = total


def most(x: ts.Tensor["A", "B", "C", ts.f32], y: ts.Tensor["C", ts.f32]) -> None:
    for c in ts.tile.grid((C, 16)):
        total = ts.tile.zeros((16,), ts.f32)
        for a in ts.tile.range(A):
            for b in ts.tile.range(B):
                total = ts.tile.maximum(total, x[a, b, c : c + 16])
        y[c : c + 16] = total


def loads_together(kernel: Kernel, profile: str = "fast", target: str = "sm_90a") -> int:
    """Return how many loads, of different steps of the outer loop, the innermost loop with most of them has."""
    module: ModuleOp = aligned(kernel)
    for op in module.walk():
        if isinstance(op, KernelOp):
            op.profile = StringAttr(profile)
    passes = schedule_passes(target_named(target), Knobs())
    PassRunner(verify="pass").run(module, "schedule", (*CANONICALIZE, *passes))
    found = [0]
    for loop in module.walk():
        if isinstance(loop, scf.ForOp):
            loads = [op for op in loop.body.block.ops if isinstance(op, LoadOp)]
            found.append(len({op.offsets[0] for op in loads}))
    return max(found)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("rows", "columns", "steps"), [(32, 8, 8), (8, 8, 8), (32, 16, 4), (32, 32, 2), (64, 32, 1)])
def test_steps_are_done_together_as_far_as_tiles_are_small(rows: int, columns: int, steps: int, target: str) -> None:
    assert loads_together(sums_of(rows, columns), target=target) == steps


@pytest.mark.parametrize(("kernel", "steps"), [(triangle, 1), (scaled, 1), (weighted, 1), (most, 8)])
def test_loops_that_do_more_than_add_up_or_differ_by_step_do_one(kernel: Kernel, steps: int) -> None:
    assert loads_together(kernel) == steps


@pytest.mark.parametrize(("kernel", "steps"), [(sums_of(32, 8), 1), (most, 8)])
def test_strict_keeps_the_order_of_sums(kernel: Kernel, steps: int) -> None:
    assert loads_together(kernel, "strict") == steps
