"""Runs the skeleton of a kernel for one program at a time, without data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from random import Random
from typing import Any

import numpy as np
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.interp import casts as casts
from tessera.interp import parts as parts
from tessera.interp import shapes as shapes
from tessera.interp.machine import HANDLERS, Machine
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import SharedType
from tessera.ir.types import is_scalar
from tessera.verify.buffers import Access, Memory
from tessera.verify.samples import Samples
from tessera.verify.skeleton import COMPUTED, Skeleton

_MOST_OPS = 20_000
"""How many ops are run of a kernel; the check says nothing of what follows."""

Step = Callable[[Any, "Run"], None]
STEPS: dict[type[Operation], Step] = {}
"""How ops that touch shared buffers or decide what runs are run; see `steps`."""


class Enough(Exception):
    """What follows cannot be told without data, or takes too long."""


def run_samples(kernel: KernelOp) -> None:
    """Run a few programs of a kernel.

    Raises:
        LanguageError: `race` or `uninitialized-read`.
    """
    skeleton, samples = Skeleton.of(kernel), Samples(kernel)
    ops = 0
    with np.errstate(all="ignore"):
        for last in (True, False):
            for draw in range(samples.draws):
                run = Run(kernel, skeleton, samples, last, draw, Random(draw), ops=ops)
                run.kernel_body()
                ops = run.ops
                if not run.drawn:
                    break


@dataclass(eq=False, slots=True)
class Run:
    """One program of each grid of a kernel.

    Args:
        last: whether it is the last program of the grid, else the first.
        number: which of the values of data are taken.
        random: draws some of them.
        values: scalars, tiles that do not depend on data, and views of shared buffers.
        free: the scalars that depend on data.
        memory: the shared memory of the program that runs.
        turns: the loops around what runs, outermost first, each with the number of its iteration.
        ops: how many ops were run, in this run and those before.
        drawn: whether a value of data decided anything.
    """

    kernel: KernelOp
    skeleton: Skeleton
    samples: Samples
    last: bool
    number: int
    random: Random
    values: dict[SSAValue, Any] = field(default_factory=dict[SSAValue, Any])
    free: set[SSAValue] = field(default_factory=set[SSAValue])
    memory: Memory = field(default_factory=Memory)
    turns: tuple[tuple[Operation, int], ...] = ()
    ops: int = 0
    drawn: bool = False

    def kernel_body(self) -> None:
        """Run all grids of the kernel."""
        block = self.kernel.body.block
        for argument in block.args:
            if is_scalar(argument.type):
                self.draw(argument)
        with suppress(Enough):
            self.block(block)

    def block(self, block: Block) -> None:
        """Run what matters of a block."""
        for op in self.skeleton.blocks.get(block, ()):
            self.ops += 1
            if self.ops > _MOST_OPS:
                raise Enough
            step = STEPS.get(type(op))
            if step is not None:
                step(op, self)
            elif type(op) in COMPUTED and self._computed(op):
                continue
            else:
                self._unknown(op)

    def _unknown(self, op: Operation) -> None:
        """Take what an op gives for data, and what it does to shared buffers for anything."""
        for result in op.results:
            self.draw(result)
        for operand in op.operands:
            if isinstance(operand.type, SharedType):
                self.values[operand].buffer.lost = True

    def draw(self, value: SSAValue) -> None:
        """Take a scalar for data."""
        if is_scalar(value.type):
            self.set(value, self.samples.draw(value.type, self.number, self.random), free=True)
        else:
            self.values.pop(value, None)

    def set(self, value: SSAValue, number: Any, *, free: bool = False) -> None:
        """Let an SSA value be something, which depends on data where it is `free`."""
        self.values[value] = number
        (self.free.add if free else self.free.discard)(value)

    def give(self, targets: Sequence[SSAValue], sources: Sequence[SSAValue]) -> None:
        """Give values on, all at once; those that nothing needs are None."""
        given = [(self.values.get(source), source in self.free) for source in sources]
        for target, (value, free) in zip(targets, given, strict=True):
            self.set(target, value, free=free)

    def decide(self, *values: SSAValue) -> list[Any]:
        """Return scalars that decide what runs."""
        self.drawn = self.drawn or not self.free.isdisjoint(values)
        return [self.values[value] for value in values]

    def access(self, op: Operation) -> Access:
        """Return the access that an op makes now."""
        return Access(op, self.turns)

    def known(self, value: SSAValue) -> Any:
        """Return a value that does not depend on data, None for another."""
        return None if value in self.free else self.values.get(value)

    def _computed(self, op: Operation) -> bool:
        """Compute an op whose operands have values; those of tiles are known, or they have none."""
        free = not self.free.isdisjoint(op.operands)
        if any(self.values.get(operand) is None for operand in op.operands):
            return False
        if free and not is_scalar(op.results[0].type):
            return False
        machine = Machine("", False, sys.stdout, values=self.values)
        self.set(op.results[0], HANDLERS[type(op)](op, machine), free=free)
        return True
