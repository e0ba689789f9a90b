"""Computes boxes that lie inside their tensors without bounds, and several steps of a small loop at once.

A box that may reach past its tensor is loaded element by element where a dimension does not divide by more, each under
a predicate of its own. All boxes but the last lie inside: programs and loops do those without predicates, in accesses
as wide as addresses allow.

Before::

    %x = load %X[%i] [8192]; ...
    %sum = scf.for %k = %lo to %hi step 64 iter_args(%part = %first) { %x = load %X[%k, %j] [64, 128]; ... }

After::

    scf.if %i + 8192 <= %size { %x = load %X[%i] [8192] {inside = 1}; ... } else { as before }
    %most = scf.for %k = %lo to %hi - 63 step 64 iter_args(%part = %first) { load %X[%k, %j] ... {inside = 1}; ... }
    %sum = scf.for %k = <the first step that is left> to %hi step 64 iter_args(%part = %most) { as before }

Loops of small tiles that only add up do as many steps at once as have 1024 elements: enough bytes are in flight then.
What is left of such a loop is done for several steps of the loop around it (`outer_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.carried_sums import combining_functions
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.walking import ops_in
from tessera.lower.boxes import stays_in_tensor
from tessera.lower.facts import MOST_INDEX, divisor, ends_by, lies_inside, nonnegative
from tessera.schedule.gpu.outer_steps import do_together
from tessera.schedule.gpu.steps import at_once, copy_ops, only_reads, split_loop
from tessera.schedule.scheduled_pass import GridPass

ELEMENTS = 1024
"""Of the steps that a loop does at once: 32 for each thread of a warp."""


@dataclass(frozen=True)
class FullBoxesPass(GridPass):
    """Tells boxes that lie inside their tensors from those that may not."""

    name: ClassVar[str] = "full-boxes"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the loops of a launch that only add up, or, without loops, its body where it reduces."""
        ops = ops_in(grid)
        if any(isinstance(op, MmaOp | RolesOp) for op in ops):
            return
        loops = [op for op in ops if isinstance(op, scf.ForOp)]
        boxes = _Boxes(kernel, partial(divisor, {}, kernel))
        if not loops:
            _programs_apart(grid, boxes)
            return
        steps = [boxes.in_steps(loop) for loop in loops]
        outer = [do_together(loop, kernel.profile.data) for loop in reversed(loops)]
        if any(count is not None for count in steps) or any(outer):
            note(grid, "full_boxes", ["loops do the steps without bounds first, and then what is left"])


@dataclass(frozen=True, slots=True)
class _Boxes:
    """The boxes that a kernel loads and stores.

    Args:
        kernel: the kernel.
        divisor: a number that divides an index.
    """

    kernel: KernelOp
    divisor: Callable[[SSAValue], int]

    def reach(self, ops: Iterable[Operation], start: SSAValue, end: SSAValue) -> dict[tuple[int, int], int]:
        """Return how far boxes that begin at an index reach from there, where they may reach past their tensors.

        Args:
            ops: loads and stores, and others.
            start: an index that is not negative.
            end: what it is less than, no more than the sizes that count.

        Returns:
            The reach by the number of the op and the dimension.
        """
        found = dict[tuple[int, int], int]()
        for number, op in enumerate(ops):
            if not isinstance(op, LoadOp | StoreOp):
                continue
            for axis, (offset, size) in enumerate(zip(op.offsets, op.size_list, strict=True)):
                further = _further(offset, start)
                if further is None or not ends_by(self.kernel, end, op.tensor, axis) or self._is_inside(op, axis):
                    continue
                found[number, axis] = further + size
        return found

    def _is_inside(self, op: LoadOp | StoreOp, axis: int) -> bool:
        """Return whether a box needs no bound along a dimension as it is."""
        length, size = op.size_list[axis], op.tensor.type.shape[axis]
        padded = length & (length - 1)
        inside = size > 0 and lies_inside(op.offsets[axis], length, size)
        return bool(padded) or inside or stays_in_tensor(self.kernel, op, axis, self.divisor)

    def are_neighbours(self, op: Operation, axis: int) -> bool:
        """Return whether an op loads elements that lie side by side along a dimension."""
        return isinstance(op, LoadOp) and self.kernel.info_of(op.tensor).strides[axis] == 1

    def in_steps(self, loop: scf.ForOp) -> int | None:
        """Let a loop that only adds up do full steps first; return how many at once, None where it stays as it is."""
        step = constant_value(loop.step)
        body = list(loop.body.block.ops)[:-1]
        if step is None or not nonnegative(loop.lb) or not all(only_reads(op) for op in body):
            return None
        try:
            combining_functions(loop)
        except Unfit:
            return None
        reach = self.reach(body, loop.body.block.args[0], loop.ub)
        count = at_once(body, loop, ELEMENTS)
        behind = (count - 1) * int(step) + max(reach.values(), default=1) - 1
        if (count == 1 and not reach) or max(behind, count * int(step)) > MOST_INDEX:
            return None
        split_loop(loop, count * int(step), behind, _steps(loop, int(step), count, reach))
        return count


def _further(offset: SSAValue, start: SSAValue) -> int | None:
    """Return how far behind an index another one is, None where that is not known or it is before it."""
    if offset is start:
        return 0
    owner = offset.owner
    if not isinstance(owner, ElementwiseOp) or owner.fn.data != "add" or start not in owner.args:
        return None
    other = constant_value(owner.args[1 - list(owner.args).index(start)])
    return None if other is None or other < 0 else int(other)


def _steps(loop: scf.ForOp, step: int, count: int, reach: dict[tuple[int, int], int]) -> Block:
    """Return a loop's body that does several steps, of which all boxes that reach so far lie inside."""
    old = loop.body.block
    new = Block(arg_types=[arg.type for arg in old.args])
    insert = Inserter(InsertPoint.at_end(new), loop)
    carried: list[SSAValue] = list(new.args[1:])
    for number in range(count):
        place = insert.binary("add", new.args[0], insert.constant(number * step)) if number else new.args[0]
        known = dict[SSAValue, SSAValue](zip(old.args, [place, *carried], strict=True))
        carried = _cloned(old, known, insert, reach)
    insert.add(scf.YieldOp(*carried))
    return new


def _cloned(
    old: Block, known: dict[SSAValue, SSAValue], insert: Inserter, inside: dict[tuple[int, int], int]
) -> list[SSAValue]:
    """Copy a block's ops but the last, boxes that lie inside marked, and return what the last one is given."""
    *body, end = old.ops
    for number, copy in enumerate(copy_ops(body, known, insert)):
        axes = sum(1 << axis for at, axis in inside if at == number)
        if axes:
            decisions.INSIDE.write(copy, axes | (decisions.INSIDE.of(copy) or 0))
    return [known.get(value, value) for value in end.operands]


def _programs_apart(grid: GridOp, boxes: _Boxes) -> None:
    """Compute the programs of a grid that reduce without bounds where their boxes lie inside."""
    block = grid.body.block
    body = list(block.ops)
    if any(op.regions for op in body) or not any(isinstance(op, ReduceOp) for op in body):
        return
    for argument, extent in zip(block.args, grid.extents, strict=True):
        reach = boxes.reach(body, argument, extent)
        if not any(boxes.are_neighbours(body[number], axis) for number, axis in reach):
            continue
        rest = Block()
        for op in body:
            op.detach()
            rest.add_op(op)
        insert = Inserter(InsertPoint.at_end(block), grid)
        last = insert.binary("add", argument, insert.constant(max(reach.values())))
        inside = insert.value(ElementwiseOp("le", [last, extent]))
        Inserter(InsertPoint.at_end(rest), grid).add(scf.YieldOp())
        full = Block()
        _cloned(rest, {}, Inserter(InsertPoint.at_end(full), grid), reach)
        Inserter(InsertPoint.at_end(full), grid).add(scf.YieldOp())
        insert.add(scf.IfOp(inside, [], Region(full), Region(rest)))
        note(grid, "full_boxes", ["programs whose boxes lie inside their tensors have no bounds"])
        return
