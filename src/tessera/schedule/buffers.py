"""What a shared buffer that a kernel fills by hand holds where it is read: which copy or store filled it.

Rings are followed by the stages that their iterations write and read (`ir/sequences.py`). Anything that is not certain
is an `Unfit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from math import lcm

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.affine import Affine, affine
from tessera.ir.notes import Unfit
from tessera.ir.sequences import Progression, period, sequence_of
from tessera.ir.sequences import Sequence as Stages
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    CpAsyncOp,
    SharedLoadOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
)
from tessera.ir.tile.structure import GridOp, memory_of
from tessera.ir.tile.types import shape_of
from tessera.ir.tile.writes import stored_memories, written_memories
from tessera.lower.facts import value_range


@dataclass(frozen=True)
class Write:
    """A copy or a store that fills a buffer, or a stage of it.

    Args:
        op: the op.
        stage: the stage, None where the buffer has none.
        guard: the branch that it is in, which holds nothing else that matters here.
    """

    op: CpAsyncOp | SharedStoreOp
    stage: SSAValue | None
    guard: scf.IfOp | None

    @property
    def top(self) -> Operation:
        """The op of the program or loop that does it."""
        return self.op if self.guard is None else self.guard


@dataclass(frozen=True)
class Read:
    """A use of a buffer's contents.

    Args:
        op: the product or load.
        operand: which of its operands the buffer is.
        perms: how views transpose it, in turn.
        stage: the stage, None where the buffer has none.
    """

    op: MmaOp | SharedLoadOp
    operand: int
    perms: tuple[tuple[int, ...], ...]
    stage: SSAValue | None


@dataclass(frozen=True)
class Copied:
    """What a read finds.

    Args:
        write: what filled the buffer.
        distance: how many iterations earlier; 0 without a loop between them.
        loop: the loop of rings that are filled ahead.
        offsets: then the place of the slice that the reading iteration finds.
    """

    write: Write
    distance: int = 0
    loop: scf.ForOp | None = None
    offsets: tuple[Affine, ...] = ()


@dataclass
class Buffer:
    """A buffer and everything that uses it."""

    op: AllocSharedOp
    writes: list[Write] = field(default_factory=list[Write])
    reads: list[Read] = field(default_factory=list[Read])
    views: list[Operation] = field(default_factory=list[Operation])


def used(op: AllocSharedOp) -> Buffer:
    """Return what uses a buffer.

    Raises:
        Unfit: something uses it in another way.
    """
    buffer = Buffer(op)
    _collect(buffer, op.result, (), None)
    stages = {access.stage is None for access in (*buffer.writes, *buffer.reads)}
    if len(stages) > 1:
        raise Unfit("a buffer is used as a whole and by stages")
    for access in (*buffer.writes, *buffer.reads):
        if access.stage is not None and not exists(access.stage, access.op, shape_of(op.result.type)[0]):
            raise Unfit("a stage is not known to exist")
    return buffer


def _collect(buffer: Buffer, value: SSAValue, perms: tuple[tuple[int, ...], ...], stage: SSAValue | None) -> None:
    for use in value.uses:
        op = use.operation
        if isinstance(op, SharedViewOp) and stage is None and not perms:
            buffer.views.append(op)
            _collect(buffer, op.result, perms, op.index)
        elif isinstance(op, SharedTransposeOp):
            buffer.views.append(op)
            perm = tuple(axis.data for axis in op.perm.data)
            _collect(buffer, op.result, (*perms, perm), stage)
        elif isinstance(op, CpAsyncOp | SharedStoreOp) and not perms:
            buffer.writes.append(Write(op, stage, _guard(op)))
        elif isinstance(op, MmaOp | SharedLoadOp):
            buffer.reads.append(Read(op, use.index, perms, stage))
        else:
            raise Unfit(f"{op.name.split('.')[-1]} uses a buffer")


def _guard(op: Operation) -> scf.IfOp | None:
    """Return the branch that only some programs or iterations take to a copy."""
    parent = op.parent_op()
    return parent if isinstance(parent, scf.IfOp) else None


def exists(stage: SSAValue, op: Operation, stages: int) -> bool:
    """Return whether a stage is known to be one that a buffer has."""
    low, high = value_range(stage)
    if 0 <= low and high < stages:
        return True
    loop = _loop_of(op)
    found = sequence_of(stage, loop) if loop is not None else None
    length = period(found) if found is not None else None
    return found is not None and length is not None and all(0 <= found.at(i) < stages for i in range(length))


def _loop_of(op: Operation) -> scf.ForOp | None:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, scf.ForOp):
        parent = parent.parent_op()
    return parent


def followed(read: Read, buffer: Buffer, grid: GridOp) -> Copied:
    """Return what a read finds in a buffer.

    Raises:
        Unfit: that is not certain.
    """
    at: Operation = read.op
    while True:
        for op in _before(at):
            writes = [write for write in buffer.writes if op.is_ancestor(write.op)]
            if any(op not in (write.op, write.guard) for write in writes):
                raise Unfit("a branch or an inner loop fills a buffer that is read behind it")
            if len(writes) == 1 and writes[0].op is op and _same(writes[0].stage, read.stage):
                return _direct(writes[0], read)
            if not all(_apart(write.stage, read.stage) for write in writes):
                return _ring(read, buffer, grid)
        parent = at.parent_op()
        if isinstance(parent, scf.ForOp) and any(parent.is_ancestor(write.op) for write in buffer.writes):
            return _ring(read, buffer, grid)
        if not isinstance(parent, scf.ForOp | scf.IfOp):
            raise Unfit("a buffer is read that is not known to be filled")
        at = parent


def _before(op: Operation) -> Iterator[Operation]:
    """Yield the ops before one in its block, the nearest first."""
    previous = op.prev_op
    while previous is not None:
        yield previous
        previous = previous.prev_op


def _same(first: SSAValue | None, second: SSAValue | None) -> bool:
    """Return whether two stages are one."""
    if first is None or second is None or first is second:
        return first is second
    number = constant_value(first)
    return number is not None and number == constant_value(second)


def _apart(first: SSAValue | None, second: SSAValue | None) -> bool:
    """Return whether two stages are known to be different ones."""
    if first is None or second is None:
        return False
    numbers = constant_value(first), constant_value(second)
    return None not in numbers and numbers[0] != numbers[1]


def _direct(write: Write, read: Read) -> Copied:
    """Return what was written before the read, in its block or around that."""
    inner = read.op.parent is not write.op.parent
    if inner and not isinstance(read.op, MmaOp):
        raise Unfit("threads read a buffer again in an inner loop or a branch")
    return Copied(write)


def _ring(read: Read, buffer: Buffer, grid: GridOp) -> Copied:
    """Return what the read of a ring finds that each iteration fills for a later one."""
    block = read.op.parent
    loop = block.parent_op() if block is not None else None
    if block is None or not isinstance(loop, scf.ForOp):
        raise Unfit("a ring is read in a branch or an inner loop")
    inside = [write for write in buffer.writes if write.top.parent is block]
    around = [write for write in buffer.writes if write.top.parent is loop.parent]
    before = [write for write in around if write.top.is_before_in_block(loop)]
    if len(inside) + len(before) < len(buffer.writes):
        raise Unfit("a ring is filled in other places than its loop and before")
    write, distance = _latest(read, inside, loop)
    if not isinstance(write.op, CpAsyncOp):
        raise Unfit("a ring holds what was computed")
    step = constant_value(loop.step)
    if not isinstance(step, int):
        raise Unfit("the step of a ring's loop is not known")
    if (why := why_written(grid, memory_of(write.op.tensor))) is not None:
        raise Unfit(f"a tensor that is copied ahead {why}")
    _check_guard(write.guard, loop, Affine({loop.body.block.args[0]: 1}), distance * step, "iteration")
    offsets = [_known(affine(offset), loop) for offset in write.op.offsets]
    for ahead in range(distance):
        _check_first(read, write, [_moved(o, loop, ahead - distance, step) for o in offsets], before, ahead, loop)
    counter = loop.body.block.args[0]
    shift = Affine(constant=-distance * step)
    read_at = tuple(offset.plus(shift.scaled(offset.terms.get(counter, 0))) for offset in offsets)
    return Copied(write, distance, loop, read_at)


def _latest(read: Read, inside: Sequence[Write], loop: scf.ForOp) -> tuple[Write, int]:
    """Return the write that fills the stage of a read in every iteration, and how many iterations earlier."""
    stages = [_stages(access.stage, loop) for access in (read, *inside)]
    found = stages[0]
    length = lcm(*(period(one) or 1 for one in stages))
    order = sorted(zip(inside, stages[1:], strict=True), key=lambda pair: _place(pair[0].top), reverse=True)
    results: set[tuple[int, int]] = set()
    for iteration in range(length, 2 * length):
        results.add(_last(read, found.at(iteration), order, iteration, length))
    if len(results) > 1:
        raise Unfit("a ring is filled at different distances")
    number, distance = results.pop()
    return order[number][0], distance


def _last(
    read: Read, stage: int, order: Sequence[tuple[Write, Stages]], iteration: int, length: int
) -> tuple[int, int]:
    """Return which write, of those in descending order, filled a stage last, and how many iterations earlier."""
    for distance in range(length + 1):
        for number, (write, stages) in enumerate(order):
            earlier = distance or write.top.is_before_in_block(read.op)
            if earlier and stages.at(iteration - distance) == stage:
                return number, distance
    raise Unfit("a stage is read that the loop does not fill")


def _stages(stage: SSAValue | None, loop: scf.ForOp) -> Stages:
    """Return the stages of a loop's iterations; a buffer without stages has one."""
    found = Progression(0) if stage is None else sequence_of(stage, loop)
    if found is None or period(found) is None:
        raise Unfit("the stages of a ring are not known")
    return found


def _place(op: Operation) -> int:
    block = op.parent
    assert block is not None
    return block.get_operation_index(op)


def _check_guard(guard: scf.IfOp | None, loop: scf.ForOp, counter: Affine, ahead: int | None, whose: str) -> None:
    """Raise unless a copy is made whenever there is an iteration to read it: always, or `if k + ahead < K`.

    Args:
        guard: the branch that the copy is in.
        loop: the loop that reads it.
        counter: the loop's counter where the copy is made.
        ahead: how far behind that the iteration is that reads it; None where that is not known.
        whose: what does not always make the copy, for the message.
    """
    if guard is None:
        return
    bounds = _less(guard)
    if bounds is not None and ahead is not None:
        gap = bounds.plus(affine(loop.ub)).plus(counter.scaled(-1))
        if not gap.terms and gap.constant <= ahead:
            return
    raise Unfit(f"a copy that not every {whose} makes fills a ring")


def _less(guard: scf.IfOp) -> Affine | None:
    """Return `a - b` for a branch `if a < b` without an else, None for another."""
    owner = guard.cond.owner
    if not isinstance(owner, ElementwiseOp) or owner.fn.data not in ("lt", "gt"):
        return None
    if any(isinstance(op, CpAsyncOp | SharedStoreOp) for op in guard.false_region.walk()):
        return None
    first, second = (affine(arg) for arg in (owner.args if owner.fn.data == "lt" else reversed(owner.args)))
    return first.plus(second.scaled(-1))


def _known(offset: Affine, loop: scf.ForOp) -> Affine:
    """Return an offset that follows from the counter and what the loop does not change."""
    body = loop.body.block
    for value in offset.terms:
        owner = value.owner
        changes = owner is body if isinstance(owner, Block) else body.is_ancestor(owner)
        if changes and value is not body.args[0]:
            raise Unfit("where a ring's copies come from is not known before")
    return offset


def _moved(offset: Affine, loop: scf.ForOp, iteration: int, step: int) -> Affine:
    """Return an offset in an iteration that is counted from the first one."""
    factor = offset.terms.get(loop.body.block.args[0], 0)
    rest = Affine({v: f for v, f in offset.terms.items() if v is not loop.body.block.args[0]}, offset.constant)
    return rest.plus(affine(loop.lb).plus(Affine(constant=iteration * step)).scaled(factor))


def _check_first(
    read: Read, write: Write, offsets: Sequence[Affine], before: Sequence[Write], iteration: int, loop: scf.ForOp
) -> None:
    """Raise unless a copy before the loop is what an iteration before it would have copied."""
    stage = _stages(read.stage, loop).at(iteration)
    fills = [one for one in before if one.stage is None or constant_value(one.stage) == stage]
    if any(one.stage is not None and constant_value(one.stage) is None for one in before) or not fills:
        raise Unfit("the first stages of a ring are not known to be filled")
    last = max(fills, key=lambda one: _place(one.top))
    if not isinstance(last.op, CpAsyncOp) or not isinstance(write.op, CpAsyncOp):
        raise Unfit("a ring holds what was computed")
    step = constant_value(loop.step)
    ahead = iteration * step if isinstance(step, int) else None
    _check_guard(last.guard, loop, affine(loop.lb), ahead, "program")
    same = last.op.tensor is write.op.tensor and last.op.size_list == write.op.size_list
    found = [affine(offset) for offset in last.op.offsets]
    if not same or last.op.dropped != write.op.dropped or not all(map(_equal, found, offsets)):
        raise Unfit("the copies before a ring's loop are not those of its first iterations")


def _equal(first: Affine, second: Affine) -> bool:
    rest = first.plus(second.scaled(-1))
    return not rest.terms and not rest.constant


def why_written(unit: Operation, memory: SSAValue) -> str | None:
    """Return why copies ahead of a memory may miss a store to it, for `explain()`; None where they cannot.

    Args:
        unit: the launch.
        memory: the memory (`memory_of`).
    """
    if memory in stored_memories(unit):
        return "is stored to by the same launch"
    if memory in written_memories(unit):
        return "may be stored to by other programs that a fence, or an atomic with an order, waits for"
    return None
