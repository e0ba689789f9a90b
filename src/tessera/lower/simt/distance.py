"""What can be said of the distance between two offsets of TIR-T."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.affine import Affine, affine
from tessera.ir.target.arithmetic import constant_value


def step_of(loop: Operation) -> int | None:
    """Return by how much a loop's counter grows, where that is known."""
    step = constant_value(loop.step) if isinstance(loop, scf.ForOp) else None
    return step if isinstance(step, int) else None


def counter_loop(value: SSAValue) -> scf.ForOp | None:
    """Return the loop whose counter a scalar is."""
    owner = value.owner
    if isinstance(owner, Block) and owner.args and owner.args[0] is value:
        parent = owner.parent_op()
        return parent if isinstance(parent, scf.ForOp) else None
    return None


def divisor(value: SSAValue) -> int:
    """Return a number that divides a scalar."""
    loop = counter_loop(value)
    step = step_of(loop) if loop is not None else None
    if loop is None or step is None:
        return 1
    first = affine(loop.lb)
    return gcd(step, first.constant, *(factor * divisor(term) for term, factor in first.terms.items()))


def _counted(value: SSAValue) -> tuple[float, float]:
    """Return the least and the largest number that a scalar can be: a loop's counter between known bounds."""
    loop, unknown = counter_loop(value), (float("-inf"), float("inf"))
    if loop is None:
        return unknown
    first, end, step = (constant_value(bound) for bound in (loop.lb, loop.ub, loop.step))
    if first is None or end is None or step is None:
        return unknown
    return first, max(first, end - 1 - (end - 1 - first) % step)


@dataclass(frozen=True)
class Distance:
    """How far an offset lies behind an earlier one.

    Args:
        before: the earlier offset.
        after: the later one.
        varies: whether a scalar may be another one by then.
        crossed: loops that have begun another iteration in between.
    """

    before: Affine
    after: Affine
    varies: Callable[[SSAValue], bool]
    crossed: frozenset[Operation]

    def divisible(self, size: int) -> bool:
        """Return whether the distance is known to be a multiple of `size`."""
        if (self.after.constant - self.before.constant) % size:
            return False
        return all(self._divisible(term, size) for term in {**self.before.terms, **self.after.terms})

    def _divisible(self, term: SSAValue, size: int) -> bool:
        first, second = self.before.terms.get(term, 0), self.after.terms.get(term, 0)
        if not self.varies(term):
            return (second - first) * divisor(term) % size == 0
        loop = counter_loop(term)
        step = step_of(loop) if loop is not None else None
        if first == second and step is not None:
            return first * step % size == 0
        return first * divisor(term) % size == 0 and second * divisor(term) % size == 0

    def apart(self, size_before: int, size_after: int) -> bool:
        """Return whether ranges of these sizes that begin at the two offsets are known to have nothing in common."""
        nearest, farthest = self._range()
        if nearest >= size_before or farthest <= -size_after:
            return True
        least = self._steps()
        if least is None:
            return False
        near = self.after.constant - self.before.constant + least
        return (near >= size_before and least >= 0) or (near <= -size_after and least <= 0)

    def _range(self) -> tuple[float, float]:
        """Return the least and the largest distance that known bounds of counters leave."""
        low = high = float(self.after.constant - self.before.constant)
        for term in {**self.before.terms, **self.after.terms}:
            first, second = self.before.terms.get(term, 0), self.after.terms.get(term, 0)
            factors = (-first, second) if self.varies(term) else (second - first,)
            for factor in filter(None, factors):
                ends = [factor * end for end in _counted(term)]
                low, high = low + min(ends), high + max(ends)
        return low, high

    def _steps(self) -> int | None:
        """Return the least distance, in its own direction, that counters of crossed loops make; None if unknown."""
        total = 0
        for term in {**self.before.terms, **self.after.terms}:
            first, second = self.before.terms.get(term, 0), self.after.terms.get(term, 0)
            if not self.varies(term):
                if first != second:
                    return None
                continue
            loop = counter_loop(term)
            step = step_of(loop) if loop is not None else None
            others = [crossed for crossed in self.crossed if crossed is not loop]
            if first != second or step is None or step <= 0 or total or others:
                return None
            total = first * step
        return total
