"""Scalars in the iterations of loops: progressions and cycles, compared with the loops run in Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.inserter import Inserter
from tessera.ir.sequences import period, sequence_of
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.types import index

Values = Callable[..., "SSAValue | int"]


class Body:
    """Builds one loop `for k in range(low, …, step)` that carries values."""

    def __init__(self, low: int, step: int, first: list[int]):
        outer = Block()
        start = Inserter(InsertPoint.at_end(outer), ConstantOp(0, index))
        self.block = Block(arg_types=[index] * (1 + len(first)))
        bounds = [start.constant(low), start.constant(10**6), start.constant(step)]
        self.insert = Inserter(InsertPoint.at_end(self.block), start.like)
        self.start, self.bounds, self.first = start, bounds, [start.constant(one) for one in first]

    def __call__(self, fn: str, *args: SSAValue | int) -> SSAValue:
        """Compute something in the loop."""
        values = [self.insert.constant(arg) if isinstance(arg, int) else arg for arg in args]
        return self.insert.value(ElementwiseOp(fn, values))

    def end(self, following: list[SSAValue]) -> scf.ForOp:
        """End the loop with the next carried values."""
        self.insert.add(scf.YieldOp(*following))
        loop = scf.ForOp(*self.bounds, self.first, Region(self.block))
        self.start.add(loop)
        return loop


@pytest.mark.parametrize(("low", "step", "stages"), [(0, 8, 3), (16, 8, 4), (0, 6, 4), (5, 1, 7)])
def test_stages_that_follow_from_the_counter(low: int, step: int, stages: int) -> None:
    body = Body(low, step, [])
    k = body.block.args[0]
    exact = body("mod", k, stages)
    ahead = body("mod", body("floordiv", body("add", k, 2 * step), step), stages)
    loop = body.end([])
    for value, expected in ((exact, lambda k: k % stages), (ahead, lambda k: (k + 2 * step) // step % stages)):
        found = sequence_of(value, loop)
        assert found is not None
        assert period(found) is not None
        assert [found.at(i) for i in range(40)] == [expected(low + i * step) for i in range(40)]


def test_stages_that_change_places_or_are_counted() -> None:
    body = Body(0, 1, [0, 1, 2, 0, 5])
    _, here, there, far, count, back = body.block.args
    wrapped = body("select", body("eq", body("add", count, 1), 3), 0, body("add", count, 1))
    use = body("add", here, body("mul", count, 10))
    slot = body("mod", back, 4)
    loop = body.end([there, far, here, wrapped, body("add", back, 3)])
    expected: dict[SSAValue, Callable[[int], int]] = {
        here: lambda i: i % 3,
        far: lambda i: (i + 2) % 3,
        count: lambda i: i % 3,
        use: lambda i: 11 * (i % 3),
        back: lambda i: 5 + 3 * i,
        slot: lambda i: (5 + 3 * i) % 4,
    }
    for value, at in expected.items():
        found = sequence_of(value, loop)
        assert found is not None
        assert [found.at(i) for i in range(50)] == [at(i) for i in range(50)]


def test_what_is_not_known() -> None:
    body = Body(0, 1, [0, 1])
    k, one, other = body.block.args
    quarter, product, bit = body("floordiv", k, 4), body("mul", k, k), body("lt", k, 7)
    loop = body.end([body("add", one, other), body("add", other, one)])  # Fibonacci: comes back to nothing
    for value in (quarter, product, bit, one, other, body.block.args[1]):
        assert sequence_of(value, loop) is None
