"""Writes the ops of an adjoint kernel, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.autodiff.partials import Apply
from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import TileType, element_of, shape_of, with_element
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics.dtypes import computed_in


def wide(element: Attribute) -> Attribute:
    """Return the type that cotangents of an element type have: 16-bit and smaller floats have those of f32."""
    return element_type(computed_in(dtype_of(element)))


def cotangent_type(type_: Attribute) -> Attribute:
    """Return the type of the cotangent of a tile or scalar."""
    return with_element(type_, wide(element_of(type_)))


def unwidened(value: SSAValue, element: Attribute) -> SSAValue | None:
    """Return what a value of floats was before it was widened from elements of a type, None where it was not."""
    op = value.owner
    if not isinstance(op, CastOp) or element_of(op.source.type) != element:
        return None
    small, large = dtype_of(element), dtype_of(element_of(value.type))
    is_exact = small.is_float and large.is_float and small.bits <= 16 and large.bits >= 32
    return op.source if is_exact else None


class Emitter:
    """Adds ops to the end of a block.

    Args:
        block: the block.
        location: the location of ops, until another op is differentiated.
    """

    def __init__(self, block: Block, location: LocationAttr = UNKNOWN_LOC) -> None:
        self.block = block
        self.location = location
        self.near: set[SSAValue] = set()
        """Values that are finite wherever the numbers that a kernel loads are, and zero where nothing comes back."""

    @contextmanager
    def into(self, block: Block) -> Generator[None]:
        """Add ops to another block for a while."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    def add(self, op: Operation) -> Operation:
        """Add an op."""
        op.location = self.location
        self.block.add_op(op)
        return op

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its first result."""
        return self.add(op).results[0]

    def index(self, number: int) -> SSAValue:
        """Return a constant index."""
        return self.value(ConstantOp(number, index))

    def binary(self, fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """Return a function of two values of one type."""
        return self.value(ElementwiseOp(fn, [a, b]))

    def ceildiv(self, value: SSAValue, by: SSAValue) -> SSAValue:
        """Return a quotient of indices, rounded up."""
        most = self.binary("add", value, self.binary("sub", by, self.index(1)))
        return self.binary("floordiv", most, by)

    def full(self, number: float, type_: Attribute) -> SSAValue:
        """Return a tile or scalar of one number."""
        scalar = self.value(ConstantOp(number, element_of(type_)))
        shape = shape_of(type_)
        return self.value(SplatOp(scalar, shape)) if shape else scalar

    def zero(self, type_: Attribute) -> SSAValue:
        """Return zeros of a type whose elements have constants."""
        return self.full(0, type_)

    def cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        """Return a value with elements of another type; a float that was widened is what it was before."""
        if element_of(value.type) == element:
            return value
        before = unwidened(value, element)
        return self.value(CastOp(value, element)) if before is None else before

    def widened(self, value: SSAValue) -> SSAValue:
        """Return a value in the type of its cotangent."""
        return self.cast(value, wide(element_of(value.type)))

    def applier(self, type_: Attribute) -> Apply:
        """Return how functions are applied to values of a type, and to numbers, which take it."""

        def apply(fn: str, *values: Any) -> SSAValue:
            found: list[SSAValue] = [v if isinstance(v, SSAValue) else self.full(v, type_) for v in values]
            return self.value(ElementwiseOp(fn, found))

        return apply

    def summed(self, value: SSAValue, axes: Sequence[int]) -> SSAValue:
        """Return the sum along some dimensions, which disappear."""
        for axis in sorted(axes, reverse=True):
            value = self.value(ReduceOp(value, axis, "sum"))
        return value

    def reshaped(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        """Return a tile's elements as another shape; a scalar becomes a tile of one element."""
        if shape_of(value.type) == tuple(shape):
            return value
        return self.value(ReshapeOp(value, shape) if isinstance(value.type, TileType) else SplatOp(value, shape))

    def spread(self, value: SSAValue, axis: int, shape: Sequence[int]) -> SSAValue:
        """Return the result of a reduction, repeated along the dimension that it lacks."""
        thin = [1 if at == axis else size for at, size in enumerate(shape)]
        if not isinstance(value.type, TileType):
            return self.value(SplatOp(value, shape))
        tile = self.reshaped(value, thin)
        return tile if tuple(thin) == tuple(shape) else self.value(BroadcastOp(tile, shape))
