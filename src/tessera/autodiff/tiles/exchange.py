"""Exchanges loops, so that a program owns the part of a gradient that it adds to.

In a product of matrices, each program of the grid `(m, n)` reads slices of A in a loop over k, and so do all programs
along n. What comes back to one slice is a sum over n. So a grid `(m, k)` of its own computes it, in which each program
loops over n and adds up in registers: a product of matrices again.

That is done for a slice that moves with some axes of the grid and with a loop by whole blocks, and not at all with the
other axes. What an iteration needs of the program around is computed again where it is little, such as a load of a
cotangent, and kept in memory else. So is what the adjoint of the loop carries to it, where that is small beside the
slice: rows, as of an online softmax. Slices that move alike share a grid.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.scf import ForOp
from xdsl.ir import SSAValue

from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.decays import decays_of
from tessera.autodiff.tiles.footprints import Footprint, Form, is_uniform
from tessera.autodiff.tiles.history import steps_of
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.extents import NotOnHost, host_extent
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, shape_of

SMALL = 4
"""How often what is carried to an iteration fits into the slice that it reads, at least."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A load whose adjoint has a grid of its own.

    Args:
        load: the load.
        loop: the loop around it.
        grid: the grid around that.
        axes: the axes of the grid that the slice moves with, and None for the loop, in the order of the dimensions.
        others: the other axes of the grid.
        covers: whether all slices together are known to be all of the tensor.
        whole: the dimension that the loop goes along, where it may leave out blocks of it; None where it does not.
        alone: whether iterations of the loop's adjoint are independent.
    """

    load: LoadOp
    loop: ForOp
    grid: GridOp
    axes: tuple[int | None, ...]
    others: tuple[int, ...]
    covers: bool
    whole: int | None
    alone: bool

    @property
    def shared(self) -> tuple[object, ...]:
        """What slices of one grid have in common."""
        return self.loop, self.axes, self.whole


def exchange_of(
    load: Footprint, grid: GridOp, apart: set[int], activity: Activity, kernel: KernelOp
) -> Exchange | None:
    """Return how the adjoint of a load can have a grid of its own, None where it cannot.

    Args:
        load: the elements that it reads.
        grid: the grid around.
        apart: the axes along which no two programs read the same element.
        activity: what moves with what.
        kernel: the kernel.
    """
    op, loop = load.op, load.op.parent_op()
    if not isinstance(op, LoadOp) or not isinstance(loop, ForOp):
        return None
    if loop.parent_op() is not grid or grid.guard is not None:
        return None
    if not _is_plain(loop) or not _is_known(loop, grid):
        return None
    axes: dict[int | None, int] = {}
    for dim, form in enumerate(load.forms):
        counted = [key for key in form.steps if isinstance(key, ForOp)]
        if form.wild or form.odd or len(form.programs) + len(counted) > 1 or (counted and counted != [loop]):
            return None
        for axis in [*form.programs, *(None for _ in counted)]:
            if axis in axes or not _is_blocked(form, loop):
                return None
            axes[axis] = dim
    if {*axes} != {*apart, None}:
        return None
    covers = all(_is_covered(op, form, grid, loop, dim, kernel) for dim, form in enumerate(load.forms))
    alone, uniform = _is_of_sums(loop, activity), _is_uniform(loop, grid)
    whole = None if uniform else axes[None]
    if whole is not None and not _moves_from_start(op, load.forms[whole], loop, whole):
        return None
    if not alone and (steps_of(loop, grid) is None or not _is_small(loop, activity, op)):
        return None
    others = tuple(axis for axis in range(len(grid.block_sizes)) if axis not in axes)
    return Exchange(op, loop, grid, tuple(sorted(axes, key=axes.__getitem__)), others, covers, whole, alone)


def _is_plain(loop: ForOp) -> bool:
    """Return whether a loop is without stores and regions."""
    end = loop.body.block.last_op
    ops = [op for op in loop.body.block.ops if op is not end]
    return not any(op.regions or (effect_of(op) > Effect.RANDOM and not reads_only(op)) for op in ops)


def _is_of_sums(loop: ForOp, activity: Activity) -> bool:
    """Return whether iterations of a loop's adjoint are independent: the loop only adds up."""
    end = loop.body.block.last_op
    assert end is not None, "a loop's body ends with its yield"
    for argument, result in zip(loop.body.block.args[1:], end.operands, strict=True):
        uses, op = list(argument.uses), result.owner
        if len(uses) != 1 or uses[0].operation is not op or len(list(result.uses)) != 1:
            return False
        added = isinstance(op, ElementwiseOp) and op.fn.data == "add" and op.args[0] is not op.args[1]
        if not added and not (isinstance(op, MmaOp) and op.acc is argument):
            return False
    return not _outer(loop, activity)


def _outer(loop: ForOp, activity: Activity) -> set[SSAValue]:
    """Return the values from outside of a loop that something comes back to from it."""
    inside = {*loop.body.block.ops}
    used = {v for op in inside for v in op.operands if v in activity and not isinstance(v.type, TensorType)}
    return {value for value in used if value.owner not in inside and value.owner is not loop.body.block}


def _is_small(loop: ForOp, activity: Activity, load: LoadOp) -> bool:
    """Return whether what the adjoint of a loop carries to an iteration is small beside a slice."""
    carried = [n for n, argument in enumerate(loop.body.block.args[1:]) if argument in activity]
    rows = {one.carried: one.exponent for one in decays_of(loop, carried) if one.exponent in activity}
    values = [rows.get(n, loop.body.block.args[n + 1]) for n in carried]
    return sum(prod(shape_of(value.type)) for value in values) * SMALL <= prod(load.size_list)


def _is_known(loop: ForOp, grid: GridOp) -> bool:
    """Return whether the sizes of a grid and the step of a loop are known before a launch."""
    step = constant_value(loop.step)
    try:
        for value in grid.extents:
            host_extent(value)
    except NotOnHost:
        return False
    return isinstance(step, int) and step >= 1


def _is_uniform(loop: ForOp, grid: GridOp) -> bool:
    """Return whether a loop is the same in all programs, and its length known before a launch."""
    if not (is_uniform(loop.lb, grid) and is_uniform(loop.ub, grid)):
        return False
    try:
        for value in (loop.lb, loop.ub):
            host_extent(value)
    except NotOnHost:
        return False
    return True


def _moves_from_start(op: LoadOp, form: Form, loop: ForOp, dim: int) -> bool:
    """Return whether a loop goes along a dimension from its start, by slices side by side."""
    step = constant_value(loop.step)
    plain = not (form.constant or form.uniform or form.programs) and constant_value(loop.lb) == 0
    return plain and form.steps[loop][0] == step == op.size_list[dim]


def _is_blocked(form: Form, loop: ForOp) -> bool:
    """Return whether an index moves by at least as much as a tile has along it."""
    (move,) = [*form.programs.values(), *(form.steps[loop][0] for _ in [0] if loop in form.steps)]
    rest = Form(form.constant, steps={key: step for key, step in form.steps.items() if key is not loop})
    return rest.range[1] - rest.range[0] < abs(move)


def _is_covered(op: LoadOp, form: Form, grid: GridOp, loop: ForOp, dim: int, kernel: KernelOp) -> bool:
    """Return whether the slices go along all of a dimension."""
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    size, width = op.tensor.type.shape[dim], op.size_list[dim]
    if form.constant or form.uniform:
        return False
    if form.programs:
        ((axis, move),) = form.programs.items()
        return move == grid.block_sizes[axis] == width and _is_size(grid.extents[axis], op, dim, kernel)
    if loop in form.steps:
        along = _moves_from_start(op, form, loop, dim)
        return along and (_is_size(loop.ub, op, dim, kernel) or not _is_uniform(loop, grid))
    return 0 <= size <= width


def _is_size(extent: SSAValue, op: LoadOp, dim: int, kernel: KernelOp) -> bool:
    """Return whether an extent is the size of a dimension: of the same name, or the same number."""
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    if isinstance(extent.owner, DimOp):
        name = kernel.info_of(extent.owner.tensor).dims[extent.owner.axis.data]
        return name == kernel.info_of(op.tensor).dims[dim]
    return constant_value(extent) == op.tensor.type.shape[dim]
