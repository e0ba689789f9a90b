"""Intervals hold every result, and indices are tested unless they are known to be inside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import GatherOp, ScatterOp
from tessera.ir.tile.structure import KernelOp
from tessera.lower.bounds import Bounds
from tessera.lower.intervals import BINARY, UNARY, Interval
from tests.unit.lower.support import aligned

EXACT: dict[str, Callable[..., int]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shr": lambda a, b: a >> b,
}
INTERVALS = [Interval(low, high) for low in range(-5, 7) for high in range(low, 8, 3)]


@pytest.mark.parametrize("fn", EXACT)
def test_intervals_hold_every_result(fn: str) -> None:
    arity = 1 if fn in UNARY else 2
    known = 0
    for given in itertools.product(INTERVALS, repeat=arity):
        result = UNARY[fn](*given) if arity == 1 else BINARY[fn](*given)
        if result is None:
            continue
        known += 1
        for values in itertools.product(*(range(part.low, part.high + 1) for part in given)):
            assert result.low <= EXACT[fn](*values) <= result.high
    assert known > 0


def unproven(function: Any) -> list[tuple[int, ...]]:
    module = aligned(function)
    for step in CANONICALIZE:
        step.apply(module)
    bounds = Bounds(next(op for op in module.ops if isinstance(op, KernelOp)))
    return [bounds.unproven(op) for op in module.walk() if isinstance(op, GatherOp | ScatterOp | AtomicOp)]


def masked_by_numbers(x: ts.Tensor[256, ts.i32], at: ts.Tensor[64, ts.i32], b: ts.Tensor[64, ts.u8]):
    for _ in ts.tile.grid((1, 1)):
        i = at[:]
        x[i & 255] = 1
        x[i % 256] = 1
        x[ts.tile.minimum(ts.tile.maximum(i, 0), 255)] = 1
        x[b[:]] = 1
        x[ts.tile.cast(b[:], ts.i32) // 2 + 100] = 1


def test_numbers_that_keep_indices_inside() -> None:
    assert unproven(masked_by_numbers) == [()] * 5


def nearly(x: ts.Tensor[255, ts.i32], at: ts.Tensor[64, ts.i32], b: ts.Tensor[64, ts.u8], n: int):
    for _ in ts.tile.grid((1, 1)):
        i = at[:]
        x[i & 255] = 1
        x[i % 256] = 1
        x[i % n] = 1
        x[ts.tile.minimum(ts.tile.maximum(i, 0), 255)] = 1
        x[ts.tile.minimum(i, 254)] = 1
        x[b[:]] = 1
        x[ts.tile.cast(i & 254, ts.i8)] = 1


def test_numbers_that_do_not() -> None:
    assert unproven(nearly) == [(0,)] * 7


def guarded(x: ts.Tensor["n", ts.i32], y: ts.Tensor["n", "m", ts.i32], z: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((n, 16)):
        at = i + ts.tile.arange(16)
        across = ts.tile.arange(8)
        if at < n:
            ts.tile.atomic_add(x[at], 1)
            ts.tile.atomic_add(z[at], 1)
            ts.tile.atomic_add(x[at - 1], 1)
        if n > at:
            ts.tile.atomic_add(x[at], 1)
        if at <= n:
            ts.tile.atomic_add(x[at], 1)
        if (at[:, None] < n) & (across[None, :] < m):
            ts.tile.atomic_add(y[at[:, None], across[None, :]], 1)
        if (across[:, None] < m) & (across[None, :] < n):
            ts.tile.atomic_add(y[across[:, None], across[None, :]], 1)


def test_guards_count_for_the_index_and_the_dimension_that_they_compare() -> None:
    assert unproven(guarded) == [(), (0,), (0,), (), (0,), (), (0, 1)]


def negative(x: ts.Tensor["n", ts.i32], at: ts.Tensor[16, ts.i32], u: ts.Tensor[16, ts.u32]):
    for _ in ts.tile.grid((1, 1)):
        i, j = at[:], u[:]
        if i < n:
            ts.tile.atomic_add(x[i], 1)
            ts.tile.atomic_add(x[ts.tile.cast(i, ts.u32)], 1)
        if j < n:
            ts.tile.atomic_add(x[j], 1)
        if (i < n) & (i >= 0):
            ts.tile.atomic_add(x[i], 1)
        if (i < n) & (i > -2):
            ts.tile.atomic_add(x[i], 1)


def test_guards_do_not_answer_for_negative_indices() -> None:
    assert unproven(negative) == [(0,), (0,), (), (), (0,)]


def whole(x: ts.Tensor["n", 24, ts.i32], at: ts.Tensor[16, ts.i32], v: ts.Tensor[16, 24, ts.i32]):
    for i in ts.tile.grid((n, 1)):
        v[:, :] = x[at[:], :]
        ts.tile.atomic_add(x[i, 23], 1)
        ts.tile.atomic_add(x[i + 1, 24], 1)


def test_whole_dimensions_and_places_of_the_grid() -> None:
    assert unproven(whole) == [(0,), (), (0, 1)]
