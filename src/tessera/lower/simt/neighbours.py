"""Which elements at index tiles are neighbours in memory, so that one access moves several.

`x[::2, :]` and `x[rows, :]` have one row along the last dimension of the tile, and columns that count up by one: where
rows are aligned and the columns start at a multiple of a vector, vectors are moved, as for slices without steps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.layouts import LinearLayout
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import GatherOp, ScatterOp, shape_at
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.lower.bounds import Bounds
from tessera.lower.boxes import aligned_elements
from tessera.lower.launch import Parameters
from tessera.lower.simt.context import SimtContext

DEPTH = 16
"""How many operations back an index is followed."""

_ANY = 1 << 20
"""What divides 0, of numbers that vectors can have."""


@dataclass(frozen=True)
class Known:
    """What a launch knows of the numbers of its kernel.

    Args:
        params: the kernel's arguments.
        bounds: intervals of integers.
        divisor: a number that divides an index.
    """

    params: Parameters
    bounds: Bounds
    divisor: Callable[[SSAValue], int]


def vector_of(context: SimtContext, op: GatherOp | ScatterOp, layout: LinearLayout | None) -> tuple[int, int] | None:
    """Return the tile's axis along which elements are neighbours, and how many one access moves; None where one.

    Args:
        context: the state of the lowering.
        op: the access.
        layout: where the elements are, None for a single one.
    """
    found = neighbours_of(Known(context.params, context.bounds, context.divisor), op) if layout is not None else None
    if found is None or layout is None:
        return None
    axis, most = found
    limit = min(most, layout.contiguous_per_thread(axis))
    return (axis, limit) if limit > 1 else None


def neighbours_of(known: Known, op: GatherOp | ScatterOp) -> tuple[int, int] | None:
    """Return the tile's axis along which elements are neighbours, and how many an access could move; None where none.

    Args:
        known: what is known of the kernel's numbers.
        op: the access.
    """
    params, arg = known.params, known.params.position(op.tensor)
    rank, shape = len(op.indices), shape_at(op.indices)
    unit = next((axis for axis in range(rank) if params.known_stride(arg, axis) == 1), None)
    if unit is None:
        return None
    others = [index for axis, index in enumerate(op.indices) if axis != unit]
    others += [op.mask] if op.mask is not None else []
    for axis, size in enumerate(shape):
        follow = _Along(known, axis)
        divisor = follow.counts(op.indices[unit])
        if not divisor or not all(follow.agrees(index) for index in others):
            continue
        limit = gcd(aligned_elements(params, arg, unit, rank, dtype_of(element_of(op.tensor.type)).bytes), divisor)
        limit = gcd(limit, size)
        if unit in known.bounds.unproven(op):  # then all of an access is inside, or nothing is
            whole = params.known_size(arg, unit)
            limit = gcd(limit, params.infos[arg].dim_div[unit] if whole is None else whole)
        return axis, limit
    return None


@dataclass(frozen=True)
class _Along:
    """How index tiles change along an axis of the tile that they have the shape of."""

    known: Known
    axis: int

    def agrees(self, value: SSAValue, depth: int = DEPTH) -> bool:
        """Return whether a tile is known to have one number along the axis."""
        shape, owner = shape_of(value.type), value.owner
        if not shape or shape[self.axis] == 1 or isinstance(owner, SplatOp | ConstantOp):
            return True
        if not isinstance(owner, Operation) or not depth:
            return False
        if isinstance(owner, ElementwiseOp | CastOp):
            return all(self.agrees(operand, depth - 1) for operand in owner.operands)
        if isinstance(owner, BroadcastOp) and len(shape_of(owner.source.type)) == len(shape):
            return self.agrees(owner.source, depth - 1)
        source = self._before(owner)
        return source is not None and source[0].agrees(source[1], depth - 1)

    def counts(self, value: SSAValue, depth: int = DEPTH) -> int:
        """Return a number that divides where a tile that counts up by one along the axis starts; 0 for others."""
        owner = value.owner
        if isinstance(owner, ArangeOp):
            return _ANY
        if not depth or not isinstance(owner, Operation) or not shape_of(value.type):
            return 0
        if isinstance(owner, CastOp):
            exact = dtype_of(element_of(owner.source.type)).is_int and self.known.bounds.keeps_numbers(owner)
            return self.counts(owner.source, depth - 1) if exact else 0
        if isinstance(owner, ElementwiseOp):
            return self._sum(owner, depth)
        source = self._before(owner)
        return source[0].counts(source[1], depth - 1) if source is not None else 0

    def _sum(self, owner: ElementwiseOp, depth: int) -> int:
        """Return what divides the start of a sum of a tile that counts and one that does not change."""
        wide = dtype_of(element_of(owner.result.type)).bits == 64
        if owner.fn.data not in ("add", "sub") or not (wide or self.known.bounds.is_exact(owner)):
            return 0
        first, second = owner.args
        pairs = [(first, second)] if owner.fn.data == "sub" else [(first, second), (second, first)]
        for counted, steady in pairs:
            divisor = self.counts(counted, depth - 1) if self.agrees(steady) else 0
            if divisor:
                scalar = _scalar(steady)
                return gcd(divisor, self.known.divisor(scalar)) if scalar is not None else 1
        return 0

    def _before(self, owner: Operation) -> tuple[_Along, SSAValue] | None:
        """Return the axis in what a tile is a view or repetition of; None where its numbers are along several."""
        if isinstance(owner, BroadcastOp):
            source = owner.source
            if len(shape_of(source.type)) != len(shape_of(owner.result.type)):
                return None
            return (self, source) if shape_of(source.type)[self.axis] != 1 else None
        if not isinstance(owner, ReshapeOp):
            return None
        old, new = shape_of(owner.source.type), shape_of(owner.result.type)
        axes = [[axis for axis, size in enumerate(shape) if size != 1] for shape in (old, new)]
        if [old[axis] for axis in axes[0]] != [new[axis] for axis in axes[1]] or self.axis not in axes[1]:
            return None
        return _Along(self.known, axes[0][axes[1].index(self.axis)]), owner.source


def _scalar(value: SSAValue) -> SSAValue | None:
    """Return the scalar that a tile repeats."""
    for _ in range(DEPTH):
        owner = value.owner
        if not shape_of(value.type):
            return value
        if not isinstance(owner, SplatOp | BroadcastOp | ReshapeOp | CastOp):
            return None
        value = owner.operands[0]
    return None
