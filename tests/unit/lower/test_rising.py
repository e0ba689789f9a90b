"""Which integers of a tile are known to rise, and what that settles in a combiner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdsl.dialects.builtin import i1

import tessera as ts
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.reduce import ReduceByOp
from tessera.ir.tile.structure import KernelOp
from tessera.lower.bounds import Bounds
from tessera.lower.rising import in_order, rises
from tests.unit.lower.support import aligned


@ts.function
def larger(a, i, b, j):
    """The larger value and its place; of equal ones the first."""
    take = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(take, a, b), ts.tile.where(take, i, j)


@ts.function
def with_sum(a, i, b, j):
    """The value at the smaller place, and the sum of places, which is no place."""
    return ts.tile.where(i < j, a, b), i + j


def rows(places: Any, combiner: Any = larger) -> Callable[..., Any]:
    def kernel(x: ts.Tensor["m", 100, ts.f32], y: ts.Tensor["m", ts.f32], s: ts.i32):
        for i in ts.tile.grid((m, 1)):
            y[i], _ = ts.tile.reduce((x[i, :], places(ts.tile.arange(0, 100, ts.i32), s)), 0, combiner)

    return kernel


def found(function: Callable[..., Any]) -> tuple[ReduceByOp, Bounds]:
    """Return the reduction of a kernel, and what is known of the kernel's integers."""
    module = aligned(function)
    (kernel,) = [op for op in module.ops if isinstance(op, KernelOp)]
    (reduction,) = [op for op in module.walk() if isinstance(op, ReduceByOp)]
    return reduction, Bounds(kernel)


@ts.function
def as_they_are(c, s):
    """Places."""
    return c


@ts.function
def moved(c, s):
    """Places from 5 on."""
    return c + 5


@ts.function
def wide(c, s):
    """Places in 64 bits."""
    return ts.tile.cast(c, ts.i64)


@ts.function
def maybe_wrapped(c, s):
    """Places from a number on that is not known: they may wrap."""
    return c + s


@ts.function
def falling(c, s):
    """Places from the end."""
    return 100 - c


@ts.function
def pairs(c, s):
    """Each place twice."""
    return c // 2


@ts.function
def wrapped(c, s):
    """Places that wrap in 8 bits."""
    return ts.tile.cast(c, ts.i8) + 100


@pytest.mark.parametrize(
    ("places", "known"),
    [
        (as_they_are, True),
        (moved, True),
        (wide, True),
        (maybe_wrapped, False),
        (falling, False),
        (pairs, False),
        (wrapped, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_places_that_are_known_to_rise(places: Any, known: bool) -> None:
    reduction, bounds = found(rows(places))
    assert rises(bounds, reduction.sources[1], 0) == known
    assert not rises(bounds, reduction.sources[0], 0)


def comparisons(combiner: Any, rising: list[int]) -> tuple[int, list[Any]]:
    """Return how many comparisons a combiner has in order, and the bools that stand for others."""
    reduction, _ = found(rows(as_they_are, combiner))
    ops = list(in_order(reduction.combiner.block, rising).ops)
    constants = [op.python_value for op in ops if isinstance(op, ConstantOp) and op.result.type == i1]
    return sum(isinstance(op, ElementwiseOp) and op.fn.data in ("lt", "gt", "eq") for op in ops), constants


def test_comparisons_of_places_in_order_are_settled() -> None:
    assert comparisons(larger, []) == (3, [])
    assert comparisons(larger, [1]) == (2, [True])


def test_places_that_are_not_chosen_are_compared() -> None:
    assert comparisons(with_sum, [1]) == comparisons(with_sum, []) == (1, [])
