"""Skips masks that hide nothing: tests once per tile what a mask would test once per element.

Before, in a consumer's loop::

    %visible = le %keys, %last; %masked = select %visible, %scores, -inf

After::

    %masked = scf.if <the largest key is not beyond the smallest last one> { yield %scores }
              else { %visible = le ...; %m = select %visible, %scores, -inf; yield %m }

A causal loop has one block on the diagonal, and a ragged one a single block at the end; all others skip the mask.
A mask qualifies when its comparisons are between positions, each a scalar plus numbers known at compile time, or when
a scalar makes it true everywhere: `ts.tile.where(whole | mask, x, y)`.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import TileType, element_of
from tessera.ir.tile.writes import is_settled
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in
from tessera.lower.facts import value_range
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class Reach:
    """Where the elements of an integer tile lie: between `low` and `high`, above the sum of `bases` if there are any.

    Args:
        bases: scalars known at run time: one, or several that are so small that their sum never overflows.
        low: the smallest offset from it.
        high: the largest.
        bits: width of the elements, in which the sum must not overflow for this to be true.
    """

    bases: tuple[SSAValue, ...]
    low: int
    high: int
    bits: int


@dataclass(frozen=True)
class SkipMasksPass(ScheduledPass):
    """Branches around masks in the loops of consumers."""

    name: ClassVar[str] = "skip-masks"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every loop of the module in place."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            for loop in [op for op in roles.consumer.block.ops if isinstance(op, scf.ForOp)]:
                for op in [op for op in loop.body.block.ops if _is_mask(op)]:
                    _try(op)


def _is_mask(op: Operation) -> bool:
    """Return whether an op selects between a matrix and something else, element by element."""
    if not isinstance(op, ElementwiseOp) or op.fn.data != "select":
        return False
    return isinstance(op.result.type, TileType) and op.result.type.rank == 2


def _try(op: Operation) -> None:
    if isinstance(op.operands[0].owner, SplatOp):  # a choice of one scalar is no mask
        return
    insert = Inserter(InsertPoint.before(op), op)
    all_true = holds_everywhere(insert, op.operands[0])
    if all_true is None:
        return
    then, otherwise = Block([scf.YieldOp(op.operands[1])]), Block()
    branch = scf.IfOp(all_true, [op.results[0].type], Region(then), Region(otherwise))
    decisions.SKIPS_MASK.write(branch)
    insert.add(branch)
    op.results[0].replace_all_uses_with(branch.results[0])
    for moved in only_for(op):
        moved.detach()
        otherwise.add_op(moved)
    otherwise.add_op(scf.YieldOp(op.results[0]))


def is_testable(condition: SSAValue) -> bool:
    """Return whether scalars tell that a condition holds for all elements of a tile."""
    return bool(_comparisons(condition))


def holds_everywhere(insert: Inserter, condition: SSAValue) -> SSAValue | None:
    """Return a scalar test, added where it is wanted, that a condition holds for all elements; None if none is known.

    It may be false though the condition holds, never true where it does not.
    """
    tests = [test for one in _comparisons(condition) for test in _tests(insert, one)]
    if not tests:
        return None
    all_true = tests[0]
    for test in tests[1:]:
        all_true = insert.binary("and", all_true, test)
    return all_true


Comparison = tuple[Reach, Reach, int]
"""The first lies at least the gap below the second."""


def _comparisons(condition: SSAValue) -> list[Comparison | SSAValue]:
    """Return what makes a condition true everywhere, comparisons and scalars; empty where that is not known."""
    owner = condition.owner
    if isinstance(owner, SplatOp):
        return [owner.value]
    if isinstance(owner, BroadcastOp | ReshapeOp):
        return _comparisons(owner.source)
    if not isinstance(owner, ElementwiseOp):
        return []
    if owner.fn.data == "and":
        both = [_comparisons(arg) for arg in owner.args]
        return both[0] + both[1] if all(both) else []
    if owner.fn.data == "or":
        first, second = (_comparisons(arg) for arg in owner.args)
        return min(first, second, key=len) if first and second else first or second
    if owner.fn.data not in ("lt", "le", "gt", "ge"):
        return []
    left, right = (_reach(arg) for arg in owner.args)
    if left is None or right is None or not (left.bases or right.bases):
        return []
    below, above = (left, right) if owner.fn.data[0] == "l" else (right, left)
    return [(below, above, int(owner.fn.data[1] == "t"))]


def _reach(value: SSAValue) -> Reach | None:
    """Return where a tile's elements lie, None where that is not known."""
    dtype = dtype_of(element_of(value.type))
    owner = value.owner
    if dtype.kind != "int" or not isinstance(owner, Operation):
        return None
    if isinstance(owner, ArangeOp):
        assert isinstance(owner.result.type, TileType)
        return Reach((), 0, owner.result.type.shape[0] - 1, dtype.bits)
    if isinstance(owner, SplatOp):
        constant = owner.value.owner
        if isinstance(constant, ConstantOp):
            number = int(constant.python_value)
            return Reach((), number, number, dtype.bits)
        return Reach((owner.value,), 0, 0, dtype.bits)
    if isinstance(owner, BroadcastOp | ReshapeOp):
        return _reach(owner.source)
    if isinstance(owner, CastOp):
        inner = _reach(owner.source)
        fits = inner is not None and not inner.bases and inner.bits <= dtype.bits
        return Reach((), inner.low, inner.high, dtype.bits) if inner is not None and fits else None
    if isinstance(owner, ElementwiseOp) and owner.fn.data in ("add", "sub"):
        return _combined(owner.fn.data, *(_reach(arg) for arg in owner.args))
    return None


def _combined(fn: str, left: Reach | None, right: Reach | None) -> Reach | None:
    if left is None or right is None or (fn == "sub" and right.bases):
        return None
    low, high = (right.low, right.high) if fn == "add" else (-right.high, -right.low)
    both = Reach(left.bases + right.bases, left.low + low, left.high + high, left.bits)
    return both if len(both.bases) <= 1 or _is_small(both) else None


def _is_small(reach: Reach) -> bool:
    """Return whether no sum of some of the scalars, with any offset, overflows the type of the tile."""
    ends = [(reach.low, reach.high), *map(value_range, reach.bases)]
    return sum(max(abs(low), abs(high)) for low, high in ends) < 1 << reach.bits - 1


def _tests(insert: Inserter, comparison: Comparison | SSAValue) -> list[SSAValue]:
    """Return scalar tests that a comparison holds for all elements."""
    if isinstance(comparison, SSAValue):
        return [comparison]
    below, above, gap = comparison
    tests = [test for reach in (below, above) for test in _no_overflow(insert, reach)]
    highest, lowest = _end(insert, below, below.high + gap), _end(insert, above, above.low)
    return [*tests, insert.value(ElementwiseOp("le", [highest, lowest]))]


def _no_overflow(insert: Inserter, reach: Reach) -> list[SSAValue]:
    """Return tests that no sum of base and offset overflows the type of the tile, nor its ends that of an index."""
    if len(reach.bases) != 1:
        return []
    base, most = _as_index(insert, reach.bases[0]), (1 << reach.bits - 1) - 1
    tests: list[SSAValue] = []
    if reach.high >= 0:
        tests.append(insert.value(ElementwiseOp("le", [base, insert.constant(most - reach.high - 1)])))
    if reach.low < 0:
        tests.append(insert.value(ElementwiseOp("ge", [base, insert.constant(-most - reach.low)])))
    return tests


def _end(insert: Inserter, reach: Reach, offset: int) -> SSAValue:
    total = insert.constant(offset)
    for base in reach.bases:
        total = insert.binary("add", _as_index(insert, base), total)
    return total


def _as_index(insert: Inserter, scalar: SSAValue) -> SSAValue:
    return scalar if scalar.type == index else insert.value(CastOp(scalar, index))


def only_for(op: Operation) -> list[Operation]:
    """Return the pure ops, and loads of what stays as it is, that only `op` needs, in order, and `op` last."""
    block = op.parent
    found: dict[Operation, None] = {op: None}
    assert block is not None
    for other in reversed(list(block.ops)):
        users = [use.operation for result in other.results for use in result.uses]
        if other is not op and users and all(user in found for user in users) and not other.regions:
            if effect_of(other) == Effect.PURE or is_settled(other):
                found[other] = None
    return list(reversed(found))
