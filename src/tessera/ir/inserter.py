"""Adds ops to a block one after the other: what rewrites of tile IR build new ops with."""

from __future__ import annotations

from math import copysign, isinf

import numpy as np
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp
from tessera.ir.types import NarrowFloatType, dtype_of, element_type, index
from tessera.numerics import dtypes
from tessera.numerics.conversions import convert, largest


class Inserter:
    """Adds ops before a fixed op (or at a block's start), all with one location."""

    def __init__(self, point: InsertPoint, like: Operation):
        self.point = point
        self.like = like

    def add(self, op: Operation) -> Operation:
        """Add an op."""
        op.location = self.like.location
        Rewriter.insert_op(op, self.point)
        return op

    def value(self, op: Operation) -> SSAValue:
        """Add an op and return its result."""
        return self.add(op).results[0]

    def constant(self, value: int) -> SSAValue:
        """Add an index constant."""
        return self.value(ConstantOp(value, index))

    def zero(self, element: Attribute) -> SSAValue:
        """Add a zero of an element type."""
        return self.number(0, element)

    def number(self, value: float, element: Attribute) -> SSAValue:
        """Add a constant of an element type; of an infinity that the type lacks its largest number.

        Floats narrower than 16 bits have no constants of their own.
        """
        if isinstance(element, NarrowFloatType):
            dtype = dtype_of(element)
            if isinf(value) and not isinf(convert(np.float32(value), dtypes.f32, dtype)):
                value = copysign(largest(dtype), value)
            return self.value(CastOp(self.value(ConstantOp(float(value), element_type(dtypes.f32))), element))
        return self.value(ConstantOp(value, element))

    def binary(self, fn: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """Add index arithmetic."""
        return self.value(ElementwiseOp(fn, [a, b]))


def ceildiv(insert: Inserter, value: SSAValue, by: SSAValue, one: SSAValue) -> SSAValue:
    """Return `value / by`, rounded up."""
    return insert.binary("floordiv", insert.binary("add", value, insert.binary("sub", by, one)), by)
