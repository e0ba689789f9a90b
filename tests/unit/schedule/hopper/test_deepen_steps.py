"""Which loops of products take other steps than they were written with, and why others do not."""

from typing import Any

import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.ir.passes import PassRunner
from tessera.ir.tile.elementwise import constant_value
from tessera.schedule.hopper.deepen_steps import DeepenStepsPass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import note

SIZES = {"M": 256, "N": 256}
A, B, C = ts.Tensor["M", "K", ts.bf16], ts.Tensor["K", "N", ts.bf16], ts.Tensor["M", "N", ts.f32]


def product(rows: int, columns: int, terms: int) -> Any:
    def kernel(a: A, b: B, c: C) -> None:
        for m, n in ts.tile.grid((M, rows), (N, columns)):
            acc = ts.tile.zeros((rows, columns), ts.f32)
            for k in ts.tile.range(0, K, terms):
                acc = ts.tile.mma(a[m : m + rows, k : k + terms], b[k : k + terms, n : n + columns], acc)
            c[m : m + rows, n : n + columns] = acc

    return kernel


def half(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K // 2, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def longer(a: A, b: ts.Tensor["L", "N", ts.bf16], c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def counted(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc, steps = ts.tile.zeros((64, 64), ts.f32), 0.0
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
            steps = steps + 1.0
        c[m : m + 64, n : n + 64] = acc * steps


def decayed(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc * 0.5)
        c[m : m + 64, n : n + 64] = acc


def filled(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(ts.tile.load(a[m : m + 64, k : k + 32], fill=1.0), b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def apart(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def powers(a: ts.Tensor["M", "M", ts.bf16], c: ts.Tensor["M", "M", ts.f32]) -> None:
    for m in ts.tile.grid((M, 32)):
        acc = ts.tile.zeros((32, 32), ts.f32)
        for k in ts.tile.range(0, M, 32):
            x = a[k : k + 32, k : k + 32]
            acc = ts.tile.mma(x, x, acc)
        c[m : m + 32, m : m + 32] = acc


def repeated(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        x, y = a[m : m + 64, 0:32], b[0:32, n : n + 64]
        for _ in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(x, y, acc)
        c[m : m + 64, n : n + 64] = acc


def one_repeated(a: A, b: B, c: C) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        x = a[m : m + 64, 0:32]
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(x, b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def step_of(kernel: Any, target: str = "sm_90a", **knobs: int) -> tuple[Any, str]:
    """Return the step of the only loop after the pass, and its note."""
    module = aligned(kernel, SIZES)
    PassRunner().run(module, "canonicalize", CANONICALIZE)
    DeepenStepsPass(target_named(target), Knobs(**knobs)).apply(module)
    module.verify()
    (loop,) = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    return constant_value(loop.step), note(module, "terms")


@pytest.mark.parametrize(
    ("block", "after"),
    [
        ((128, 256, 32), 64),
        ((128, 256, 64), 64),
        ((128, 256, 128), 128),
        ((128, 256, 48), 64),
        ((128, 256, 96), 64),
        ((64, 128, 32), 128),
        ((64, 96, 64), 128),
        ((64, 64, 32), 64),
        ((96, 96, 64), 64),
    ],
)
def test_the_terms_of_a_step(block: tuple[int, int, int], after: int) -> None:
    told = "" if block[2] == after else f"steps of {block[2]} terms are computed as steps of {after}"
    assert step_of(product(*block)) == (after, told)


def test_what_is_asked_for() -> None:
    assert step_of(product(128, 128, 64), terms=32)[0] == 32
    assert step_of(product(128, 256, 32), terms=32)[0] == 32
    assert step_of(product(128, 256, 32), stages=4)[0] == 32  # four of 48 KB leave no room
    assert step_of(product(128, 256, 32), target="sm_80")[0] == 32


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (half, "goes on behind its end"),
        (longer, "goes on behind its end"),
        (counted, "does more than to add products"),
        (decayed, "does more than to add products"),
        (filled, "under a mask or with a fill"),
        (apart, "does not move on by what it reads"),
        (powers, "does not move on by what it reads"),
        (repeated, "an operand of a product is not loaded by the loop"),
        (one_repeated, "an operand of a product is not loaded by the loop"),
    ],
)
def test_loops_that_stay_as_they_are(kernel: Any, reason: str) -> None:
    step, told = step_of(kernel, terms=128)
    assert step in (32, 64)
    assert told.startswith("terms=128 is ignored: ")
    assert reason in told
