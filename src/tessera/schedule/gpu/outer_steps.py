"""Several steps at once of a loop around small loops that only add up.

A loop of few steps inside another one has few bytes in flight, whatever it does at once itself. Where all that a nest
does is to add up, what the inner loop does last is done for several steps of the outer loop together.

Before::

    %sum = scf.for %i = %lo to %hi step 1 iter_args(%s = %first) {
      %most = scf.for ... iter_args(%t = %s) { several steps }
      %rest = scf.for %k = %from to %to step 32 iter_args(%t = %most) { %x = load %X[%i, %k] ...; add %t, %x }
      scf.yield %rest
    }

After::

    %sum = scf.for %i = %lo to %hi - 1 step 2 iter_args(%s = %first) {
      %most = scf.for %j = %i to %i + 2 step 1 iter_args(%u = %s) { scf.for ... iter_args(%t = %u) { several steps } }
      %rest = scf.for %k = %from to %to step 32 iter_args(%t = %most) {
        %x0 = load %X[%i, %k] ...; %t0 = add %t, %x0
        %x1 = load %X[%i + 1, %k] ...; %t1 = add %t0, %x1
      }
      scf.yield %rest
    }
    (and the loop as it was, for what is left)
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.carried_sums import combining_functions, is_in_order
from tessera.ir.inserter import Inserter
from tessera.ir.loops import depends_on
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.walking import ops_in
from tessera.lower.facts import MOST_INDEX, nonnegative
from tessera.schedule.gpu.steps import Known, at_once, copy_ops, only_reads, split_loop

ELEMENTS = 2048
"""Of the largest tiles of the steps that are done together: 64 for each thread of a warp."""


def do_together(loop: scf.ForOp, profile: str) -> bool:
    """Let a loop around a small loop do several steps at once where both only add up; return whether it does.

    Args:
        loop: the outer loop.
        profile: the numerics profile, which may give the order of sums.
    """
    step, rest = constant_value(loop.step), _last_loop(loop)
    if rest is None or step is None or not nonnegative(loop.lb) or not _adds_in_any_order(loop, profile):
        return False
    count = at_once(list(rest.body.block.ops)[:-1], loop, ELEMENTS)
    behind = (count - 1) * int(step)
    if count == 1 or behind + int(step) > MOST_INDEX:
        return False
    split_loop(loop, count * int(step), behind, _steps(loop, rest, int(step), count))
    return True


def _last_loop(loop: scf.ForOp) -> scf.ForOp | None:
    """Return the loop whose results a loop carries on, if nothing that both do stands in the way."""
    block = loop.body.block
    *body, end = block.ops
    rest = body[-1] if body else None
    if not isinstance(rest, scf.ForOp) or list(end.operands) != list(rest.results) or not rest.results:
        return None
    before = body[:-1]
    ops = [inner for op in before for inner in ops_in(op) if not isinstance(inner, scf.ForOp | scf.YieldOp)]
    if not all(only_reads(op) for op in [*ops, *list(rest.body.block.ops)[:-1]]):
        return None
    sums = {*block.args[1:], *(result for op in before if isinstance(op, scf.ForOp) for result in op.results)}
    apart = [*(op for op in before if not isinstance(op, scf.ForOp)), *rest.body.block.ops]
    if any(operand in sums for op in apart for operand in op.operands):
        return None
    return None if any(depends_on(bound, block) for bound in (rest.lb, rest.ub, rest.step)) else rest


def _adds_in_any_order(loop: scf.ForOp, profile: str) -> bool:
    """Return whether what a loop carries may be added up in any order."""
    try:
        functions = combining_functions(loop)
    except Unfit:
        return False
    return not any(is_in_order(fn, result.type, profile) for fn, result in zip(functions, loop.results, strict=True))


def _steps(loop: scf.ForOp, rest: scf.ForOp, step: int, count: int) -> Block:
    """Return a loop's body that does several steps, the last loop of them together."""
    old = loop.body.block
    new = Block(arg_types=[arg.type for arg in old.args])
    insert = Inserter(InsertPoint.at_end(new), loop)
    before = list(old.ops)[:-2]
    carried: Sequence[SSAValue] = new.args[1:]
    if any(isinstance(op, scf.ForOp) for op in before):
        end = insert.binary("add", new.args[0], insert.constant(count * step))
        each = scf.ForOp(new.args[0], end, loop.step, carried, Region(_first_loops(loop, rest)))
        insert.add(each)
        carried = each.results
    steps = list[Known]()
    for number in range(count):
        place = insert.binary("add", new.args[0], insert.constant(number * step)) if number else new.args[0]
        steps.append({old.args[0]: place})
        copy_ops([op for op in before if not isinstance(op, scf.ForOp)], steps[-1], insert)
    start, end, length = (steps[0].get(value, value) for value in (rest.lb, rest.ub, rest.step))
    together = scf.ForOp(start, end, length, carried, Region(_together(rest, steps)))
    insert.add(together)
    insert.add(scf.YieldOp(*together.results))
    return new


def _first_loops(loop: scf.ForOp, rest: scf.ForOp) -> Block:
    """Return a loop's body without its last loop."""
    old = loop.body.block
    new = Block(arg_types=[arg.type for arg in old.args])
    insert = Inserter(InsertPoint.at_end(new), loop)
    known: Known = dict(zip(old.args, new.args, strict=True))
    copy_ops(list(old.ops)[:-2], known, insert)
    insert.add(scf.YieldOp(*(known.get(value, value) for value in rest.iter_args)))
    return new


def _together(rest: scf.ForOp, steps: Sequence[Known]) -> Block:
    """Return the body of the last loop, for several steps of the loop around it one after the other."""
    old = rest.body.block
    *body, end = old.ops
    new = Block(arg_types=[arg.type for arg in old.args])
    insert = Inserter(InsertPoint.at_end(new), rest)
    carried: Sequence[SSAValue] = list(new.args[1:])
    for outside in steps:
        known: Known = outside | dict(zip(old.args, [new.args[0], *carried], strict=True))
        copy_ops(body, known, insert)
        carried = [known.get(value, value) for value in end.operands]
    insert.add(scf.YieldOp(*carried))
    return new
