"""Rewrites a loop so that it runs stage 0 of an iteration beside stage 1 of the one before.

Before::

    %r = scf.for %i = %lb to %ub iter_args(%x = %x0) { stage 0; stage 1; yield %y }

After::

    %r = scf.if %lb < %ub {
      stage 0 of the first iteration
      %c = scf.for %i = %lb + %step to %ub iter_args(what stage 1 needs of the iteration before) {
        stage 0 of this iteration and stage 1 of the one before, in the order given
      }
      stage 1 of the last iteration
    } else { %x0 }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.types import SharedType
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp
from tessera.schedule.dependences import is_remade, links_of, operands_within

Emit = Callable[["Instance", "Instance"], None]
"""Emits the new loop's body, given the instances of stage 0 and of stage 1."""


class Instance:
    """The values of one iteration while its ops are being written.

    Args:
        loop: the original loop.
        insert: where ops go.
        elsewhere: gives what this instance does not compute: arguments of the loop and results of the other stage.
    """

    def __init__(self, loop: scf.ForOp, insert: Inserter, elsewhere: Callable[[SSAValue], SSAValue]):
        self.block = loop.body.block
        self.insert = insert
        self.elsewhere = elsewhere
        self.made: dict[SSAValue, SSAValue] = {}

    def get(self, value: SSAValue) -> SSAValue:
        """Return a value of the original loop in this iteration."""
        owner = value.owner
        if value in self.made:
            return self.made[value]
        if owner is self.block:
            return self.elsewhere(value)
        if isinstance(owner, Block) or owner.parent is not self.block:
            return value
        if not is_remade(owner):
            return self.elsewhere(value)
        self.add(owner)
        return self.made[value]

    def add(self, op: Operation) -> None:
        """Write an op, and the products with whose sums it goes on."""
        for link in links_of(op):
            self._add(link)
        self._add(op)

    def _add(self, op: Operation) -> None:
        known = {operand: self.get(operand) for operand in operands_within(op)}
        clone = op.clone(known)
        self.insert.like = op
        self.insert.add(clone)
        self.made.update(zip(op.results, clone.results, strict=True))

    def start(self, op: MmaOp) -> MmaStartOp:
        """Start a product, after those with whose sums it goes on; return the op that starts it."""
        start: MmaStartOp | None = None
        for one in (*links_of(op), op):
            acc = start.result if start is not None else self.get(one.acc)
            start = MmaStartOp(self.get(one.a), self.get(one.b), acc, one.compute.data)
            start.attributes.update(one.attributes)
            self.insert.like = one
            self.insert.add(start)
        assert start is not None
        return start

    def wait(self, op: MmaOp, start: MmaStartOp, pending: int) -> None:
        """Wait for a product."""
        self.insert.like = op
        self.made[op.result] = self.insert.value(MmaWaitOp(start.result, pending))


class _Carried:
    """What the new loop hands from one iteration to the next: values of the iteration before."""

    def __init__(self, block: Block):
        self.block = block
        self.position: dict[SSAValue, int] = {}

    def before(self, value: SSAValue) -> SSAValue:
        """Return a value of the iteration before, as an argument of the new loop."""
        if value not in self.position:
            assert not isinstance(value.type, SharedType)
            self.position[value] = len(self.position)
            self.block.insert_arg(value.type, len(self.block.args))
        return self.block.args[1 + self.position[value]]


def shift(loop: scf.ForOp, stage: dict[Operation, int], emit: Emit) -> scf.ForOp:
    """Replace a loop by its pipelined form and return the new loop.

    Args:
        loop: the loop.
        stage: the stage of each op that is not made anew where it is used.
        emit: emits the new loop's body.
    """
    end = loop.body.block.last_op
    assert end is not None
    then, body = Block(), Block(arg_types=[loop.lb.type])
    first = Instance(loop, Inserter(InsertPoint.at_end(then), loop), _of_the_first(loop))
    for op in (op for op, at in stage.items() if at == 0):
        first.add(op)
    carried = _Carried(body)
    insert = Inserter(InsertPoint.at_end(body), loop)
    before = Instance(loop, insert, carried.before)
    now = Instance(loop, insert, _of_this(loop, before, end))
    emit(now, before)
    for value in end.operands:
        _require(value, loop, stage, before)
    following = _following(carried, now)
    insert.add(scf.YieldOp(*following))
    initial = [first.get(value) for value in carried.position]
    ahead = first.insert.binary("add", loop.lb, loop.step)
    new = scf.ForOp(ahead, loop.ub, loop.step, initial, Region(body))
    new.attributes.update(loop.attributes)
    first.insert.like = loop
    first.insert.add(new)
    last = Instance(loop, first.insert, lambda value: new.results[carried.position[value]])
    for op in (op for op, at in stage.items() if at == 1):
        last.add(op)
    first.insert.add(scf.YieldOp(*(last.get(value) for value in end.operands)))
    _replace(loop, then)
    return new


def reorder(loop: scf.ForOp, emit: Emit) -> scf.ForOp:
    """Replace a loop by one whose iterations do the same in another order, and return the new loop.

    Args:
        loop: the loop.
        emit: emits the new loop's body; all of it is of one iteration.
    """
    end = loop.body.block.last_op
    assert end is not None
    body = Block(arg_types=[argument.type for argument in loop.body.block.args])
    known: dict[SSAValue, SSAValue] = dict(zip(loop.body.block.args, body.args, strict=True))
    now = Instance(loop, Inserter(InsertPoint.at_end(body), loop), known.__getitem__)
    emit(now, now)
    now.insert.add(scf.YieldOp(*map(now.get, end.operands)))
    before = Inserter(InsertPoint.before(loop), loop)
    new = scf.ForOp(loop.lb, loop.ub, loop.step, loop.iter_args, Region(body))
    before.add(new)
    new.attributes.update(loop.attributes)
    for old, result in zip(loop.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    Rewriter.erase_op(loop)
    return new


def _of_the_first(loop: scf.ForOp) -> Callable[[SSAValue], SSAValue]:
    known = dict(zip(loop.body.block.args, [loop.lb, *loop.iter_args], strict=True))
    return lambda value: known[value]  # pyright: ignore[reportArgumentType]


def _of_this(loop: scf.ForOp, before: Instance, end: Operation) -> Callable[[SSAValue], SSAValue]:
    """Return where stage 0 finds the loop's arguments: what the iteration before has yielded."""
    counter, *arguments = loop.body.block.args
    yielded = dict(zip(arguments, end.operands, strict=True))

    def find(value: SSAValue) -> SSAValue:
        if value is counter:
            assert isinstance(before.insert.point.block, Block)
            return before.insert.point.block.args[0]
        return before.get(yielded[value])  # pyright: ignore[reportArgumentType]

    return find


def _require(value: SSAValue, loop: scf.ForOp, stage: dict[Operation, int], before: Instance) -> None:
    """Let the new loop hand on what the value that the last iteration yields is made of."""
    owner = value.owner
    block = loop.body.block
    if owner is block:
        before.elsewhere(value)
    elif isinstance(owner, Operation) and owner.parent is block:
        if is_remade(owner):
            for operand in owner.operands:
                _require(operand, loop, stage, before)
        elif stage[owner] == 0:
            before.elsewhere(value)


def _following(carried: _Carried, now: Instance) -> Sequence[SSAValue]:
    """Return what the next iteration is handed; finding one value may show that another is needed."""
    following: list[SSAValue] = []
    while len(following) < len(carried.position):
        following.append(now.get(list(carried.position)[len(following)]))
    return following


def _replace(loop: scf.ForOp, then: Block) -> None:
    before = Inserter(InsertPoint.before(loop), loop)
    runs = before.value(ElementwiseOp("lt", [loop.lb, loop.ub]))
    otherwise = Block([scf.YieldOp(*loop.iter_args)])
    branch = before.add(scf.IfOp(runs, [r.type for r in loop.results], Region(then), Region(otherwise)))
    for old, new in zip(loop.results, branch.results, strict=True):
        old.replace_all_uses_with(new)
    Rewriter.erase_op(loop)
