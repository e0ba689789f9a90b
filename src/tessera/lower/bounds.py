"""Which single elements lie inside their tensor: intervals of integers, and guards in the mask of an access.

Gathers, scatters and atomics leave out what lies outside their tensor. Both lowerings test each index against its
dimension, before anything is multiplied, unless this file shows that the test always holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.atomics import AtomicOp, SharedAtomicOp
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import GatherOp, ScatterOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.shared import SharedGatherOp, SharedScatterOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import DYNAMIC, TensorType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.lower.facts import stays_inside
from tessera.lower.intervals import BINARY, UNARY, Interval, range_of
from tessera.numerics.dtypes import DType

MOST_ELEMENTS = (1 << 63) - (1 << 32)
"""No dimension is larger: the place of a tile in it plus positions in the tile does not overflow."""

GUARDS = 64
"""How many parts of a mask are looked at."""

DEPTH = 32
"""How many operations back an interval is followed."""

Element = GatherOp | ScatterOp | AtomicOp
SharedElement = SharedGatherOp | SharedScatterOp | SharedAtomicOp
View = tuple[object, ...]

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _dtype(value: SSAValue) -> DType:
    return dtype_of(element_of(value.type))


@dataclass
class Bounds:
    """What is known of the integers of a kernel.

    Args:
        kernel: the kernel.
        known: intervals found so far.
    """

    kernel: KernelOp
    known: dict[SSAValue, Interval] = field(default_factory=dict[SSAValue, Interval])

    def unproven(self, op: Element) -> tuple[int, ...]:
        """Return the dimensions in which an element that counts may lie outside the tensor."""
        return tuple(axis for axis, value in enumerate(op.indices) if not self._inside(op, value, axis))

    def unproven_of_buffer(self, op: SharedElement) -> tuple[int, ...]:
        """Return the dimensions in which an element may lie outside its shared buffer."""
        known = [self.interval(value) for value in op.indices]
        sizes = shape_of(op.buffer.type)
        return tuple(axis for axis, at in enumerate(known) if at.low < 0 or at.high >= sizes[axis])

    def _inside(self, op: Element, value: SSAValue, axis: int) -> bool:
        interval, type_ = self.interval(value), op.tensor.type
        assert isinstance(type_, TensorType)
        size = type_.shape[axis]
        fixed = size != DYNAMIC
        low, high = interval.low >= 0, fixed and interval.high < size
        if low and high:
            return True
        root, views = self._root(value)
        if isinstance(root.owner, SplatOp):
            root = self._root(root.owner.value)[0]
        if not shape_of(root.type) and stays_inside(self.kernel, root, op.tensor, axis):
            return True
        for left, fn, right, seen in self._guards(op.mask):
            if left is root and seen == views:
                low = low or (fn in ("gt", "ge") and self.interval(right).low >= (fn == "ge") - 1)
                high = high or (fn == "lt" and self._is_size(right, op.tensor, axis))
                high = high or (fixed and fn in ("lt", "le") and self.interval(right).high < size + (fn == "lt"))
        return low and high

    # Guards

    def _root(self, value: SSAValue) -> tuple[SSAValue, tuple[View, ...]]:
        """Return the same numbers before conversions and changes of shape, and those changes."""
        views: list[View] = []
        while True:
            owner = value.owner
            if isinstance(owner, CastOp) and self.keeps_numbers(owner):
                value = owner.source
            elif isinstance(owner, ReshapeOp | BroadcastOp):
                views.append((type(owner), shape_of(value.type)))
                value = owner.source
            elif isinstance(owner, TransposeOp):
                views.append((type(owner), owner.permutation))
                value = owner.source
            else:
                return value, tuple(reversed(views))

    def keeps_numbers(self, op: CastOp) -> bool:
        """Return whether a cast from integers to integers changes none of its numbers."""
        source, target = _dtype(op.source), _dtype(op.result)
        return not source.is_float and not target.is_float and self.interval(op.source).within(range_of(target))

    def _guards(self, mask: SSAValue | None) -> Iterator[tuple[SSAValue, str, SSAValue, tuple[View, ...]]]:
        """Yield comparisons `left fn scalar` that hold where the mask does, and the changes of shape since `left`."""
        if mask is None:
            return
        parts = [(mask, ())]
        for _ in range(GUARDS):
            if not parts:
                break
            part, after = parts.pop()
            root, views = self._root(part)
            views += after
            op = root.owner
            if not isinstance(op, ElementwiseOp):
                continue
            fn = op.fn.data
            if fn == "and":
                parts += [(arg, views) for arg in op.args]
            elif fn in _MIRRORED and not _dtype(op.args[0]).is_float:
                for left, right, name in ((0, 1, fn), (1, 0, _MIRRORED[fn])):
                    source, before = self._root(op.args[left])
                    limit = self._root(op.args[right])[0]
                    limit = self._root(limit.owner.value)[0] if isinstance(limit.owner, SplatOp) else limit
                    if not shape_of(limit.type):
                        yield source, name, limit, before + views

    def _is_size(self, value: SSAValue, tensor: SSAValue, axis: int) -> bool:
        """Return whether a scalar is the size of a tensor's dimension, or of one of its name."""
        op = value.owner
        if not isinstance(op, DimOp):
            return False
        if op.tensor is tensor and op.axis.data == axis:
            return True
        name = self._dim_name(tensor, axis)
        return name != "" and name == self._dim_name(op.tensor, op.axis.data)

    def _dim_name(self, tensor: SSAValue, axis: int) -> str:
        """Return the name of a parameter's dimension, "" where it has none; a call gives a name one size."""
        dims = self.kernel.infos[list(self.kernel.body.block.args).index(tensor)].dims  # pyright: ignore[reportArgumentType]
        return dims[axis] if axis < len(dims) else ""

    # Intervals

    def is_exact(self, op: ElementwiseOp) -> bool:
        """Return whether no number of a sum, difference or product of integers is too large for its dtype."""
        result = BINARY[op.fn.data](*(self.interval(arg) for arg in op.args))
        return result is not None and result.within(range_of(_dtype(op.result)))

    def interval(self, value: SSAValue, depth: int = 0) -> Interval:
        """Return an interval that the integers of a scalar or tile lie in."""
        found = self.known.get(value)
        if found is None:
            limits = range_of(_dtype(value))
            self.known[value] = limits  # what a cycle through a loop sees
            found = self._computed(value, depth + 1) if depth < DEPTH else None
            found = found if found is not None and found.within(limits) else limits
            self.known[value] = found
        return found

    def _computed(self, value: SSAValue, depth: int) -> Interval | None:
        """Return where the exact result of an operation lies, None where that is not known."""
        owner = value.owner
        if isinstance(owner, Block):
            return self._argument(owner, value, depth)
        if isinstance(owner, ConstantOp):
            number = int(owner.python_value)
            return Interval(number, number)
        if isinstance(owner, DimOp):
            type_ = owner.tensor.type
            assert isinstance(type_, TensorType)
            size = type_.shape[owner.axis.data]
            return Interval(0, MOST_ELEMENTS) if size == DYNAMIC else Interval(size, size)
        if isinstance(owner, ArangeOp):
            return Interval(0, shape_of(value.type)[0] - 1)
        if isinstance(owner, SplatOp):
            return self.interval(owner.value, depth)
        if isinstance(owner, ReshapeOp | BroadcastOp | TransposeOp):
            return self.interval(owner.source, depth)
        if isinstance(owner, CastOp):
            return None if _dtype(owner.source).is_float else self.interval(owner.source, depth)
        return self._function(owner, depth) if isinstance(owner, ElementwiseOp) else None

    def _function(self, op: ElementwiseOp, depth: int) -> Interval | None:
        fn = op.fn.data
        if _dtype(op.args[-1]).is_float:
            return None
        if fn in UNARY:
            return UNARY[fn](self.interval(op.args[0], depth))
        return BINARY[fn](*(self.interval(arg, depth) for arg in op.args[-2:])) if fn in BINARY else None

    def _argument(self, block: Block, value: SSAValue, depth: int) -> Interval | None:
        parent = block.parent_op()
        position = list(block.args).index(value)  # pyright: ignore[reportArgumentType]
        if isinstance(parent, KernelOp):
            info, limits = parent.infos[position], range_of(_dtype(value))
            low = limits.low if info.low is None else max(info.low, limits.low)
            return Interval(low, limits.high if info.high is None else min(info.high, limits.high))
        if isinstance(parent, GridOp):
            return Interval(0, max(self.interval(parent.extents[position], depth).high - 1, 0))
        if isinstance(parent, scf.ForOp) and position == 0:  # the language's steps are positive
            first, end = self.interval(parent.lb, depth), self.interval(parent.ub, depth)
            return Interval(first.low, max(end.high - 1, first.low))
        return None
