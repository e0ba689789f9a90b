"""Which loops of products take shorter steps so that roles have room for them, and why others do not."""

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.interp import interpret
from tessera.ir.passes import PassRunner
from tessera.ir.tile.elementwise import constant_value
from tessera.schedule.hopper.shorten_steps import ShortenStepsPass
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper.kernels import note

A, B, C = ts.Tensor["M", 128, ts.bf16], ts.Tensor["K", 128, ts.bf16], ts.Tensor["M", 128, ts.f32]
SIZES = {"M": 256}
"""Of 128 x 128, the products of a step and the sums leave no registers, and of 128 x 64 they do."""


def weights(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T)
            scores = ts.tile.where((k + ts.tile.arange(128))[None, :] < K, scores, 0.0)
            acc = ts.tile.mma(scores.to(ts.bf16), y, acc)
        c[m : m + 128, :] = acc


def causal(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, ts.tile.minimum(K, m + 128), 128):
            y = b[k : k + 128, :]
            scores = ts.tile.causal_mask(ts.tile.mma(x, y.T), m, k)
            found = ts.tile.where(scores > -1e30, ts.tile.mma(x * 2, y.T) * scores, 0.0)
            acc = ts.tile.mma(found.to(ts.bf16), y, acc)
        c[m : m + 128, :] = acc


def by_blocks(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T) * ts.tile.cast(k // 128, ts.f32)
            acc = ts.tile.mma(scores.to(ts.bf16), y, acc)
        c[m : m + 128, :] = acc


def in_blocks(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T) * ts.tile.arange(128)[None, :].to(ts.f32)
            acc = ts.tile.mma(scores.to(ts.bf16), y, acc)
        c[m : m + 128, :] = acc


def of_whole_steps(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T)
            scores = scores - ts.tile.row_max(scores)[:, None]
            acc = ts.tile.mma(scores.to(ts.bf16), y, acc)
        c[m : m + 128, :] = acc


def with_the_same(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T)
            acc = ts.tile.mma(scores.to(ts.bf16), y, acc) + 1.0
        c[m : m + 128, :] = acc


def of_the_first(a: A, b: B, c: C) -> None:
    for (m,) in ts.tile.grid((M, 128)):
        x, acc = a[m : m + 128, :], ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 128):
            y = b[k : k + 128, :]
            scores = ts.tile.mma(x, y.T) * ts.tile.mma(x * 2, y.T)
            acc = ts.tile.mma(scores.to(ts.bf16), b[0:128, :], acc)
        c[m : m + 128, :] = acc


def shortened(kernel: Any, target: str = "sm_90a", **knobs: int) -> Any:
    """Return a module after the pass."""
    module = aligned(kernel, SIZES)
    PassRunner().run(module, "canonicalize", CANONICALIZE)
    ShortenStepsPass(target_named(target), Knobs(**knobs)).apply(module)
    module.verify()
    return module


def step_of(module: Any) -> Any:
    (loop,) = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    return constant_value(loop.step)


@pytest.mark.parametrize("kernel", [weights, causal], ids=lambda one: one.__name__)
def test_shorter_steps(kernel: Any) -> None:
    module = shortened(kernel)
    assert step_of(module) == 64
    assert note(module, "terms") == "steps of 128 are computed as steps of 64: roles have room"
    rng, keys = np.random.default_rng(3), 200
    a, b = (rng.integers(-2, 3, (n, 128)).astype(ts.bf16.numpy()) for n in (256, keys))
    c = np.full((256, 128), np.nan, np.float32)
    interpret(module, [a, b, c])
    x, y = a.astype(np.float64), b.astype(np.float64)
    scores = 2 * (x @ y.T) ** 2
    if kernel is causal:
        scores = np.where(np.tri(256, keys, dtype=bool), scores, 0.0)
    wanted = scores.astype(ts.bf16.numpy()).astype(np.float64) @ y
    np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "kernel", [by_blocks, in_blocks, of_whole_steps, with_the_same, of_the_first], ids=lambda one: one.__name__
)
def test_steps_that_stay(kernel: Any) -> None:
    assert step_of(shortened(kernel)) == 128


def test_where_roles_are_not_wanted() -> None:
    assert step_of(shortened(weights, stages=1)) == 128
    assert step_of(shortened(weights, "sm_80")) == 128
