"""Loops that do several of their steps at once: how many, and the loop for what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.types import TileType, shape_of
from tessera.lower.facts import MOST_INDEX, near

Known = dict[SSAValue, SSAValue]
"""Values of copies by those of the originals."""

MOST_STEPS = 8
"""Steps that a loop does at once."""


def only_reads(op: Operation) -> bool:
    """Return whether an op without regions changes nothing, so that it can be done earlier or later."""
    return not op.regions and (effect_of(op) <= Effect.PURE or reads_only(op))


def copy_ops(ops: Iterable[Operation], known: Known, insert: Inserter) -> list[Operation]:
    """Copy ops, whose operands and then also results `known` gives for those of the originals; return the copies."""
    copies = [op.clone(known) for op in ops]
    for copy in copies:
        Rewriter.insert_op(copy, insert.point)
    return copies


def at_once(body: Sequence[Operation], loop: scf.ForOp, elements: int, steps: int = MOST_STEPS) -> int:
    """Return how many steps of a loop are done at once: a power of two, and no more than there are.

    Args:
        body: the ops that each step does.
        loop: the loop.
        elements: of the largest tile of `body`, all steps at once have no more.
        steps: how many are done at once at most.
    """
    types = [value.type for op in body for value in op.results if isinstance(value.type, TileType)]
    largest = max((prod(shape_of(type_)) for type_ in types), default=elements)
    if not any(isinstance(op, LoadOp) for op in body):
        return 1
    most = min(elements // largest, steps)
    bounds = [constant_value(bound) for bound in (loop.lb, loop.ub, loop.step)]
    if None not in bounds:
        first, last, step = (int(bound or 0) for bound in bounds)
        most = min(most, (last - first) // step)
    return 1 << max(most, 1).bit_length() - 1


def split_loop(loop: scf.ForOp, length: int, behind: int, body: Block) -> None:
    """Do the first steps of a loop several at once, in a loop of their own before the one for what is left.

    Args:
        loop: the loop, which does not begin before 0.
        length: how far its counter goes in the steps that are done at once.
        behind: how far before the loop's end they begin, at least.
        body: does them.
    """
    insert = Inserter(InsertPoint.before(loop), loop)
    end = insert.binary("sub", _near_end(insert, loop.ub), insert.constant(behind))
    together, zero = insert.constant(length), insert.constant(0)
    most = scf.ForOp(loop.lb, end, together, list(loop.iter_args), Region(body))
    insert.add(most)
    some = insert.binary("maximum", insert.binary("sub", end, loop.lb), zero)
    times = ceildiv(insert, some, together, insert.constant(1))
    loop.operands[0] = insert.binary("add", loop.lb, insert.binary("mul", times, together))
    for place, result in enumerate(most.results):
        loop.operands[3 + place] = result


def _near_end(insert: Inserter, end: SSAValue) -> SSAValue:
    """Return the end of a loop from no less than 0, moved to where no sum with it wraps around."""
    if near(end):
        return end
    return insert.binary("minimum", insert.binary("maximum", end, insert.constant(0)), insert.constant(MOST_INDEX))
