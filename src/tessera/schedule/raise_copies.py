"""raise-copies: shared buffers that a kernel fills by hand for products become the slices that fill them.

    cp_async A[%m, %k] into %a; cp_async B[%k, %n] into %b; barrier
    %sums = mma %a, %b, %acc; barrier
  becomes
    %x = load A[%m, %k]; %y = load B[%k, %n]
    %sums = mma %x, %y, %acc

Nobody but the program sees its shared buffers, so which of them there are is the schedule's to choose, as for slices:
rings of the depth that fits, the copy engine, warp roles. Rings by hand are read through: where each iteration copies
what a later one multiplies, and the copies before the loop are those of the first iterations, a product reads the
slice of its own iteration.

It is all or nothing for a launch: where one buffer cannot be followed (stages at run-time places, contents that depend
on a branch), all of them, their copies, waits and barriers stay as they are written, and `explain()` says why under
`copies`. `keep_copies` = 1 keeps them anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.affine import Affine
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, CommitGroupOp, CpAsyncOp, WaitGroupOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import SharedType
from tessera.ir.walking import ops_in
from tessera.schedule.buffers import Buffer, Copied, Read, followed, used
from tessera.schedule.scheduled_pass import GridPass


@dataclass(frozen=True)
class RaiseCopiesPass(GridPass):
    """Rewrites launches whose products read buffers that the kernel fills.

    Args:
        target: any.
        knobs: `keep_copies` leaves everything as it is written.
    """

    name: ClassVar[str] = "raise-copies"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Replace the buffers of a launch, or note why not."""
        allocated = [op for op in ops_in(grid) if isinstance(op, AllocSharedOp)]
        if not any(isinstance(op, MmaOp) and _reads_shared(op) for op in ops_in(grid)) or self.knobs.keep_copies:
            return
        try:
            buffers = [used(op) for op in allocated]
            found = [(read, followed(read, buffer, grid)) for buffer in buffers for read in buffer.reads]
        except Unfit as reason:
            note(grid, "copies", [f"as they are written: {reason}"])
            return
        made: dict[tuple[Operation, int], SSAValue] = {}
        for _, content in reversed(found):  # each goes to the start of its loop, before those that are there
            if (key := (content.write.op, content.distance)) not in made:
                made[key] = _content(content)
        replaced = dict[SSAValue, SSAValue]()
        for read, content in found:
            tile = made[content.write.op, content.distance]
            while tile in replaced:  # what fills the buffer was itself read from one
                tile = replaced[tile]
            _replace(read, tile, replaced)
        _erase(grid, buffers)
        note(grid, "copies", ["buffers that the kernel fills by hand are scheduled as slices are"])


def _reads_shared(op: MmaOp) -> bool:
    return any(isinstance(value.type, SharedType) for value in (op.a, op.b))


def _replace(read: Read, tile: SSAValue, replaced: dict[SSAValue, SSAValue]) -> None:
    """Let an op read what fills its buffer; `replaced` learns what became of the tiles that it gave."""
    insert = Inserter(InsertPoint.before(read.op), read.op)
    for perm in read.perms:
        tile = _transposed(insert, tile, perm)
    if isinstance(read.op, MmaOp):
        read.op.operands[read.operand] = tile
        return
    result = read.op.results[0]
    for user in [use.operation for use in result.uses if isinstance(use.operation, TransposeOp)]:
        turned = _transposed(Inserter(InsertPoint.before(user), user), tile, user.permutation)
        replaced[user.result] = turned  # which may be what fills the next buffer
        Rewriter.replace_op(user, [], [turned])
    result.replace_all_uses_with(tile)
    replaced[result] = tile
    Rewriter.erase_op(read.op)


def _transposed(insert: Inserter, tile: SSAValue, perm: Sequence[int]) -> SSAValue:
    """Transpose a tile; of a transpose, its source, as schedules look for transposes of loads."""
    if isinstance(tile.owner, TransposeOp):
        perm, tile = [tile.owner.permutation[axis] for axis in perm], tile.owner.source
    return tile if list(perm) == sorted(perm) else insert.value(TransposeOp(tile, perm))


def _content(content: Copied) -> SSAValue:
    """Return what a write leaves in a buffer, as the iteration that reads it would compute it."""
    op = content.write.op
    if not isinstance(op, CpAsyncOp):
        return op.operands[0]
    if content.loop is None:
        return Inserter(InsertPoint.before(op), op).value(LoadOp(op.tensor, list(op.offsets), op.size_list, op.dropped))
    insert = Inserter(InsertPoint.at_start(content.loop.body.block), op)
    offsets = [_summed(insert, offset) for offset in content.offsets]
    return insert.value(LoadOp(op.tensor, offsets, op.size_list, op.dropped))


def _summed(insert: Inserter, offset: Affine) -> SSAValue:
    """Add up an offset."""
    parts: list[SSAValue] = []
    for value, factor in offset.terms.items():
        parts.append(value if factor == 1 else insert.binary("mul", value, insert.constant(factor)))
    if offset.constant or not parts:
        parts.append(insert.constant(offset.constant))
    total = parts[0]
    for part in parts[1:]:
        total = insert.binary("add", total, part)
    return total


def _erase(grid: GridOp, buffers: list[Buffer]) -> None:
    """Remove the buffers and what ordered the accesses to them."""
    for buffer in buffers:
        for write in buffer.writes:
            Rewriter.erase_op(write.op)
        for view in reversed(buffer.views):
            Rewriter.erase_op(view)
        Rewriter.erase_op(buffer.op)
    for op in [op for op in ops_in(grid) if isinstance(op, BarrierOp | CommitGroupOp | WaitGroupOp)]:
        Rewriter.erase_op(op)
