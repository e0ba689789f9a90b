"""What ops do in a check: control flow, sizes, and all that touches shared buffers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from xdsl.dialects.scf import ConditionOp, ForOp, IfOp, WhileOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.ir.tile.atomics import SharedAtomicOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    SharedGatherOp,
    SharedLoadOp,
    SharedScatterOp,
    SharedStoreOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)
from tessera.ir.tile.structure import DimOp, GridOp
from tessera.ir.tile.types import SharedType
from tessera.verify.buffers import Buffer, Memory, Places, View
from tessera.verify.run import STEPS, Enough, Run
from tessera.verify.skeleton import viewed_dims

OpT = TypeVar("OpT", bound=Operation)


def runs(cls: type[OpT]) -> Callable[[Callable[[OpT, Run], None]], Callable[[OpT, Run], None]]:
    """Register the decorated function as the step of an op."""

    def register(function: Callable[[OpT, Run], None]) -> Callable[[OpT, Run], None]:
        STEPS[cls] = function
        return function

    return register


@runs(DimOp)
def _dim(op: DimOp, run: Run) -> None:
    run.set(op.result, np.int64(run.samples.size(op)))


@runs(GridOp)
def _grid(op: GridOp, run: Run) -> None:
    drawn = zip(op.extents, run.decide(*op.extents), strict=True)
    # Of an argument that is drawn a program runs where there would be none: some call will have it.
    extents = [max(extent, np.int64(1)) if value in run.free else extent for value, extent in drawn]
    if any(extent < 1 for extent in extents):
        return
    for offset, extent, size in zip(op.body.block.args, extents, op.block_sizes, strict=True):
        run.set(offset, np.int64((extent - 1) // size * size if run.last else 0))
    run.memory = Memory()
    with suppress(Enough):
        run.block(op.body.block)
    run.turns = ()


@runs(ForOp)
def _for(op: ForOp, run: Run) -> None:
    lower, upper, step = run.decide(op.lb, op.ub, op.step)
    turns = range(int(lower), int(upper), max(int(step), 1))
    if not turns and not run.free.isdisjoint((op.lb, op.ub)):
        raise Enough  # whether data make a loop run no iteration is not for us to say
    carried: tuple[SSAValue, ...] = tuple(op.iter_args)
    for turn, position in enumerate(turns):
        run.give(op.body.block.args[1:], carried)
        run.set(op.body.block.args[0], type(lower)(position), free=op.lb in run.free or op.step in run.free)
        _turn(op, turn, op.body.block, run)
        carried = _end(op.body.block)
    run.give(op.results, carried)


def _turn(op: Operation, turn: int, block: Block, run: Run) -> None:
    """Run an iteration of a loop."""
    outside = run.turns
    run.turns = (*outside, (op, turn))
    run.block(block)
    run.turns = outside


def _end(block: Block) -> tuple[SSAValue, ...]:
    """Return what a block yields."""
    end = block.last_op
    assert end is not None
    return tuple(end.operands)


@runs(IfOp)
def _if(op: IfOp, run: Run) -> None:
    (condition,) = run.decide(op.cond)
    region = op.true_region if condition else op.false_region
    if region.blocks:
        run.block(region.block)
        run.give(op.results, _end(region.block))


@runs(WhileOp)
def _while(op: WhileOp, run: Run) -> None:
    before, after = op.before_region.block, op.after_region.block
    condition = before.last_op
    assert isinstance(condition, ConditionOp)
    run.give(before.args, op.arguments)
    turn = 0
    while True:
        _turn(op, turn, before, run)
        if not run.decide(condition.condition)[0]:
            break
        run.give(after.args, condition.args)
        _turn(op, turn, after, run)
        run.give(before.args, _end(after))
        turn += 1
    run.give(op.results, condition.args)


@runs(AllocSharedOp)
def _alloc(op: AllocSharedOp, run: Run) -> None:
    shape, viewed = op.result.type.shape, viewed_dims(op.result)
    run.set(op.result, View(Buffer.of(run.access(op), tuple(shape[:viewed]), tuple(shape[viewed:]))))


@runs(SharedViewOp)
def _view(op: SharedViewOp, run: Run) -> None:
    source: View = run.values[op.source]
    at = None if op.index in run.free else int(run.values[op.index])
    run.set(op.result, View(source.buffer, (*source.at, at)))


@runs(SharedTransposeOp)
def _transpose(op: SharedTransposeOp, run: Run) -> None:
    run.set(op.result, run.values[op.source])


@runs(SharedLoadOp)
def _load(op: SharedLoadOp, run: Run) -> None:
    run.memory.read(run.values[op.buffer], run.access(op))


@runs(MmaOp)
def _mma(op: MmaOp, run: Run) -> None:
    for operand in (op.a, op.b):
        if isinstance(operand.type, SharedType):
            run.memory.read(run.values[operand], run.access(op))


@runs(SharedStoreOp)
def _store(op: SharedStoreOp, run: Run) -> None:
    run.memory.write(run.values[op.buffer], run.access(op))


def _places(op: SharedAtomicOp | SharedGatherOp | SharedScatterOp, run: Run) -> Places | None:
    """Return the elements that an op accesses, along the dimensions as they are stored; None where data decide."""
    type_, masks = op.buffer.type, [] if op.mask is None else [op.mask]
    values = [run.known(value) for value in (*op.indices, *masks)]
    if any(value is None for value in values):
        return None
    assert isinstance(type_, SharedType)
    indices = [np.atleast_1d(value).astype(np.int64) for value in values[: len(op.indices)]]
    inside = np.broadcast_to(np.atleast_1d(values[-1]) if masks else np.True_, indices[0].shape).copy()
    stored: list[npt.NDArray[np.int64]] = indices[:]
    for index, size, axis in zip(indices, type_.shape, type_.permutation, strict=True):
        inside &= (index >= 0) & (index < size)
        stored[axis] = index
    return tuple(index[inside] for index in stored)


@runs(SharedGatherOp)
def _gather(op: SharedGatherOp, run: Run) -> None:
    run.memory.read_elements(run.values[op.buffer], _places(op, run), run.access(op))
    run.draw(op.result)


@runs(SharedScatterOp)
def _scatter(op: SharedScatterOp, run: Run) -> None:
    run.memory.write_elements(run.values[op.buffer], _places(op, run), run.access(op))


@runs(SharedAtomicOp)
def _atomic(op: SharedAtomicOp, run: Run) -> None:
    run.memory.update(run.values[op.buffer], _places(op, run), run.access(op), op.writes)
    if op.result is not None:
        run.draw(op.result)


@runs(CpAsyncOp)
def _copy(op: CpAsyncOp, run: Run) -> None:
    run.memory.copy(run.values[op.buffer], run.access(op))


@runs(CommitGroupOp)
def _commit(op: CommitGroupOp, run: Run) -> None:
    run.memory.commit()


@runs(WaitGroupOp)
def _wait(op: WaitGroupOp, run: Run) -> None:
    run.memory.wait(op.pending.data)


@runs(BarrierOp)
def _barrier(op: BarrierOp, run: Run) -> None:
    run.memory.barriers += 1
