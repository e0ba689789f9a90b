"""Gives the steps of loops of products as many terms as the copy engine and warpgroups are fastest with (Hopper).

Before::

    scf.for %k = 0 to %K step 32 iter_args(%acc) {
      %a = load %A[%m, %k] [128, 32]; %b = load %B[%k, %n] [32, 128]
      yield mma %a, %b, %acc
    }

After::

    scf.for %k = 0 to %K step 64 iter_args(%acc) {
      %a = load %A[%m, %k] [128, 64]; %b = load %B[%k, %n] [64, 128]
      yield mma %a, %b, %acc
    }

A step costs a wait for its copies and one for its products, whatever its size, and rows of 128 bytes are what the copy
engine moves and swizzles best. A loop that does nothing but add products may take any number of terms a step: the sums
are added up in the same order. What the last step reads behind the end is zero, as both tensors end where the loop
does, or else whole steps remain whole.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.notes import Unfit, note
from tessera.ir.splitting import Axis, Dimensions, Splitter
from tessera.ir.tile.elementwise import CastOp, RoundTf32Op, constant_value
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.loops import only_loop
from tessera.schedule.products import GROUP_ROWS, has_roles
from tessera.schedule.scheduled_pass import GridPass
from tessera.target.fragments import PANEL_BYTES

SMALL = range(129, 193)
"""Rows and columns of a tile, together, with which a step takes twice the terms: of 64 x 64 it gains nothing."""
RINGS = 0.75
"""Part of shared memory that the stages which were asked for may take after this."""


@dataclass(frozen=True)
class DeepenStepsPass(GridPass):
    """Changes how many terms the steps of a launch's loop of products have.

    Args:
        target: the GPU.
        knobs: `terms` says how many, `stages` limits them.
    """

    name: ClassVar[str] = "deepen-steps"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the loop of a launch, or note why what was asked for is not possible."""
        if not has_roles(self.target) or not any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        try:
            change_steps(kernel, grid, self._chosen)
        except Unfit as reason:
            if self.knobs.terms is not None:
                note(grid, "terms", [f"terms={self.knobs.terms} is ignored: {reason}"])

    def _chosen(self, loop: scf.ForOp, loads: dict[LoadOp, int], before: int) -> int:
        """Return the terms of a step: rows of a panel, or two for small tiles; more where a power of two has more."""
        if self.knobs.terms is not None:
            return self.knobs.terms
        products = [op for op in loop.body.block.ops if isinstance(op, MmaOp)]
        bytes_ = max(dtype_of(element_of(value.type)).bytes for op in products for value in (op.a, op.b))
        sizes = [shape_of(op.acc.type) for op in products]
        fits = any(size % GROUP_ROWS == 0 for shape in sizes for size in shape)
        small = max(map(sum, sizes)) in SMALL and fits and bytes_ > 1
        wanted = PANEL_BYTES // bytes_ * (2 if small else 1)
        if before & (before - 1) == 0 and before >= wanted:
            return before
        stage = sum(prod(op.size_list) // before * wanted * _bytes_of(op.result) for op in loads)
        if (self.knobs.stages or 2) * stage > RINGS * self.target.shared_bytes:
            return before
        return wanted


def change_steps(kernel: KernelOp, grid: GridOp, chosen: Callable[[scf.ForOp, dict[LoadOp, int], int], int]) -> GridOp:
    """Change how many terms the steps of a launch have, and return the launch.

    Args:
        kernel: the kernel.
        grid: the launch.
        chosen: gives their number from the loop, its loads with the axes along which they move, and the number so far.

    Raises:
        Unfit: that is impossible.
    """
    loop = only_loop(grid)
    before = _step(loop)
    dimensions = Dimensions(grid)
    terms, loads = _terms(loop, dimensions)
    after = chosen(loop, loads, before)
    if after == before:
        return grid
    _check_end(kernel, loop, loads, before, after)
    new = Splitter(dimensions, {terms: (after,)}, {loop: after}).grid_of_parts(grid)
    Rewriter.insert_op(new, InsertPoint.before(grid))
    Rewriter.erase_op(grid)
    note(new, "terms", [f"steps of {before} terms are computed as steps of {after}"])
    return new


def _bytes_of(value: SSAValue) -> int:
    return dtype_of(element_of(value.type)).bytes


def _step(loop: scf.ForOp) -> int:
    step = constant_value(loop.step)
    if not isinstance(step, int):
        raise Unfit("the loop's step is not known")
    return step


def _terms(loop: scf.ForOp, dimensions: Dimensions) -> tuple[Axis, dict[LoadOp, int]]:
    """Return the dimension that products sum over, and the axis along which each load moves with the loop's counter.

    Raises:
        Unfit: the loop does more than to add products of what it loads.
    """
    block = loop.body.block
    loads, products = dict[LoadOp, int](), list[MmaOp]()
    for op in block.ops:
        if isinstance(op, LoadOp):
            places = [axis for axis, offset in enumerate(op.offsets) if offset is block.args[0]]
            if len(places) != 1 or places[0] not in op.kept or op.size_list[places[0]] != _step(loop):
                raise Unfit("a load of the loop does not move on by what it reads")
            if op.mask is not None or op.fill is not None:
                raise Unfit("the loop loads under a mask or with a fill")
            loads[op] = places[0]
        elif isinstance(op, MmaOp):
            products.append(op)
        elif op is not block.last_op and not isinstance(op, TransposeOp | CastOp | RoundTf32Op):
            raise Unfit("the loop does more than to add products of what it loads")
    if any(not isinstance(use.operation, LoadOp) for use in block.args[0].uses):
        raise Unfit("the loop's counter says more than where to load")
    if any(_source(operand) not in loads for op in products for operand in (op.a, op.b)):
        raise Unfit("an operand of a product is not loaded by the loop, so that each step adds it once more")
    if not products or not all(_is_sum(loop, place) for place in range(len(loop.iter_args))):
        raise Unfit("the loop carries more than sums of products")
    found = {dimensions.of(op.a, 1) for op in products}
    found |= {dimensions.of(op.result, op.kept.index(axis)) for op, axis in loads.items()}
    others = {dimensions.of(op.acc, axis) for op in products for axis in (0, 1)}
    if len(found) != 1 or found & others or dimensions.why_whole(next(iter(found))) is not None:
        raise Unfit("products sum over more than one dimension, or over one that has other uses")
    return next(iter(found)), loads


def _source(value: SSAValue) -> Operation | Block:
    """Return what gives the elements of an operand, in whatever order and type."""
    owner = value.owner
    while isinstance(owner, TransposeOp | CastOp | RoundTf32Op):
        owner = owner.operands[0].owner
    return owner


def _is_sum(loop: scf.ForOp, place: int) -> bool:
    """Return whether what a loop carries at a place is a tile to which products add."""
    block, end = loop.body.block, loop.body.block.last_op
    assert end is not None
    value = end.operands[place]
    while isinstance(value.owner, MmaOp) and value.owner.parent is block and value.uses.get_length() == 1:
        value = value.owner.acc
    return isinstance(value.type, TileType) and value is block.args[1 + place] and value.uses.get_length() == 1


def _check_end(kernel: KernelOp, loop: scf.ForOp, loads: dict[LoadOp, int], before: int, after: int) -> None:
    """Check that steps of another size read nothing else, or zeros of both operands.

    Raises:
        Unfit: they may read what lies behind the loop's end.
    """
    first, last = constant_value(loop.lb), constant_value(loop.ub)
    if isinstance(first, int) and isinstance(last, int) and (last - first) % after == 0 == (last - first) % before:
        return
    owner = loop.ub.owner
    size = str(last) if isinstance(last, int) else None
    if isinstance(owner, DimOp):
        size = kernel.info_of(owner.tensor).dims[owner.axis.data]
    if any(kernel.info_of(op.tensor).dims[axis] != size for op, axis in loads.items()):
        raise Unfit("what the loop reads goes on behind its end")
