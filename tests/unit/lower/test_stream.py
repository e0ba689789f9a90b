"""What the programs of a launch that shares out steps do: the arithmetic that is written for the GPU, executed here."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from xdsl.dialects.builtin import UNKNOWN_LOC
from xdsl.ir import Block, Operation, SSAValue

from tessera.interp.stream import _items
from tessera.ir.target.arithmetic import ConstantOp, ElementwiseOp
from tessera.ir.types import element_type
from tessera.lower.scalars import Scalars
from tessera.lower.simt.stream import Walk
from tessera.numerics import dtypes

U32 = element_type(dtypes.u32)
FUNCTIONS: dict[str, Any] = {
    "add": lambda a, b: (a + b) % 2**32,
    "sub": lambda a, b: (a - b) % 2**32,
    "mul": lambda a, b: (a * b) % 2**32,
    "floordiv": lambda a, b: a // b,
    "minimum": min,
    "maximum": max,
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "and": lambda a, b: a and b,
    "select": lambda which, a, b: a if which else b,
}


class Builder:
    """The part of a lowering that scalar arithmetic needs."""

    def __init__(self) -> None:
        self.ops: list[Operation] = []
        self.scalars = Scalars(self.ops.append, lambda: UNKNOWN_LOC)

    def value(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]


class Written:
    """The walk, as ops and as a function."""

    def __init__(self, sharers: int) -> None:
        self.sharers = sharers
        self.build: Any = Builder()
        self.block = Block(arg_types=[U32] * 5)
        *given, number = self.block.args
        self.walk = Walk.of(self.build, sharers, *given)
        self.results = (self.walk.items, *self.walk.item(number))

    def run(self, *given: int) -> tuple[int, ...]:
        known: dict[SSAValue, Any] = dict(zip(self.block.args, given, strict=True))
        for op in self.build.ops:
            if isinstance(op, ConstantOp):
                known[op.results[0]] = op.python_value
            else:
                assert isinstance(op, ElementwiseOp)
                known[op.results[0]] = FUNCTIONS[op.fn.data](*(known[value] for value in op.operands))
        return tuple(known[value] for value in self.results)


@pytest.fixture(scope="module", params=[8, 32])
def written(request: pytest.FixtureRequest) -> Written:
    return Written(request.param)


def cases() -> list[tuple[int, int, int]]:
    chosen = random.Random(0)
    fixed = [
        (1, 1, 1),
        (1, 8, 1),
        (1, 8, 3),
        (7, 8, 16),
        (8, 8, 4),
        (16, 8, 5),
        (17, 8, 5),
        (31, 8, 1),
        (5, 13, 40),
        (1, 20, 64),
        (2, 40, 64),
        (1, 40, 3),
    ]
    return fixed + [(chosen.randint(1, 60), chosen.randint(1, 14), chosen.randint(1, 20)) for _ in range(40)]


@pytest.mark.parametrize(("tiles", "programs", "steps"), cases())
def test_every_step_is_done_once_and_nobody_waits_for_ever(
    written: Written, tiles: int, programs: int, steps: int
) -> None:
    done: dict[tuple[int, int], int] = {}
    loads: list[int] = []
    left: set[int] = set()
    waits: list[tuple[int, int, int]] = []
    for program in range(programs):
        items = written.run(program, programs, tiles, steps, 0)[0]
        loads.append(0)
        for number in range(items):
            _, tile, first, last, owner, others = written.run(program, programs, tiles, steps, number)
            assert 0 <= first < last <= steps
            for step in range(first, last):
                assert done.setdefault((tile, step), program) == program
            loads[-1] += last - first
            assert owner == (last == steps)
            if not owner:
                assert number == 0, "partial sums are left before anything else"
                left.add(program)
            if others:
                assert number == items - 1, "what others help with comes last"
                waits.append((program, tile, others))
            assert bool(others) == (owner and first > 0)
    assert len(done) == tiles * steps
    crew = min(programs // tiles, written.sharers)
    if crew >= 2:  # equally many share each tile
        assert Counter(loads) == Counter(
            [len(range(place, steps, crew)) for place in range(crew)] * tiles + [0] * (programs - tiles * crew)
        )
    else:
        assert max(loads) - min(loads) <= (steps if tiles % programs == 0 else 1)
    assert max(others for *_, others in [(0, 0, 0), *waits]) <= written.sharers
    helpers = [program - back for program, _, others in waits for back in range(1, others + 1)]
    assert sorted(helpers) == sorted(left), "who leaves sums is waited for, once"
    for program, tile, others in waits:
        by = [done[tile, step] for step in range(steps)]
        assert sorted(set(by)) == list(range(program - others, program + 1))


@pytest.mark.parametrize(("tiles", "programs", "steps"), cases())
def test_the_interpreter_shares_steps_out_in_the_same_way(
    written: Written, tiles: int, programs: int, steps: int
) -> None:
    found = {
        (written.run(program, programs, tiles, steps, number)[1], program, *item)
        for program in range(programs)
        for number in range(written.run(program, programs, tiles, steps, 0)[0])
        for item in [written.run(program, programs, tiles, steps, number)[2:]]
    }
    assert found == {(one.tile, one.number, *one.share) for one in _items(tiles, programs, steps, written.sharers)}
