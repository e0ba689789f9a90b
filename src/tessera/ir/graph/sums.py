"""Reductions and products of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int, Ints
from tessera.ir.graph.types import ArrayType, array_type, dims_of
from tessera.ir.tile.reduce import REDUCTIONS
from tessera.numerics.dtypes import DType, i32


@op_definition
class ReduceOp(TesseraOp):
    """Combines an array along dimensions, which disappear, by a function of `REDUCTIONS`; the dtype stays."""

    name = "tessera_graph.reduce"
    source = operand_def(ArrayType)
    fn = prop_def(StringAttr)
    axes = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$fn $source `along` custom<Ints>($axes) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, fn: str, axes: Sequence[int]):
        left = [dim for axis, dim in enumerate(dims_of(source)) if axis not in axes]
        super().__init__(
            operands=[source],
            properties={"fn": text(fn), "axes": ints(axes)},
            result_types=[ArrayType.of(left, array_type(source).dtype)],
        )

    @property
    def reduced(self) -> tuple[int, ...]:
        """The dimensions that disappear."""
        return tuple(axis.data for axis in self.axes.data)

    def verify_(self) -> None:
        """Check function, dimensions and the result's type."""
        source, result, axes = array_type(self.source), array_type(self.result), self.reduced
        if self.fn.data not in REDUCTIONS:
            raise VerifyException(f"no reduction is called {self.fn.data}")
        if not axes or list(axes) != sorted(set(axes)) or not 0 <= axes[0] <= axes[-1] < source.rank:
            raise VerifyException(f"{axes} are not dimensions of an array of rank {source.rank}, once each, in order")
        left = tuple(dim for axis, dim in enumerate(source.dims) if axis not in axes)
        if result.dims != left or result.element != source.element:
            raise VerifyException("a reduction drops its dimensions and keeps the dtype")


@op_definition
class PartsOp(TesseraOp):
    """Combines every `count` neighbours along a dimension: of the last ones, as many as there are."""

    name = "tessera_graph.parts"
    source = operand_def(ArrayType)
    fn = prop_def(StringAttr)
    axis = prop_def(IntAttr)
    count = prop_def(IntAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = (
        "$fn $source `along` custom<Int>($axis) `by` custom<Int>($count) attr-dict `:` type($source) `->` type($result)"
    )

    def __init__(self, source: SSAValue, fn: str, axis: int, count: int):
        dims = list(dims_of(source))
        dims[axis] = (dims[axis] + (count - 1)) // count
        super().__init__(
            operands=[source],
            properties={"fn": text(fn), "axis": number(axis), "count": number(count)},
            result_types=[ArrayType.of(dims, array_type(source).dtype)],
        )

    def verify_(self) -> None:
        """Check function, dimension and dtype."""
        source, result = array_type(self.source), array_type(self.result)
        if self.fn.data not in REDUCTIONS or not 0 <= self.axis.data < source.rank or self.count.data < 1:
            raise VerifyException(f"{self.fn.data} of {self.count.data} neighbours along {self.axis.data}")
        if result.rank != source.rank or result.element != source.element:
            raise VerifyException("parts keep rank and dtype")


def product_dtype(value: SSAValue) -> DType:
    """Return the dtype of products of an array."""
    dtype = array_type(value).dtype
    return i32 if dtype.is_int and dtype.bits == 8 else dtype


@op_definition
class ContractOp(TesseraOp):
    """Multiplies matrices `(…, m, k)` and `(…, k, n)` with equal leading dimensions; 8-bit integers give i32."""

    name = "tessera_graph.contract"
    left = operand_def(ArrayType)
    right = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$left `,` $right attr-dict `:` type($left) `,` type($right) `->` type($result)"

    def __init__(self, left: SSAValue, right: SSAValue):
        dims = (*dims_of(left)[:-1], dims_of(right)[-1])
        super().__init__(operands=[left, right], result_types=[ArrayType.of(dims, product_dtype(left))])

    def verify_(self) -> None:
        """Check ranks, the sizes that meet, and dtypes."""
        left, right, result = map(array_type, (self.left, self.right, self.result))
        fits = left.rank == right.rank >= 2 and left.dims[:-2] == right.dims[:-2] and left.dims[-1] == right.dims[-2]
        if not fits or left.element != right.element or result.dtype != product_dtype(self.left):
            raise VerifyException("contract takes (…, m, k) and (…, k, n) of one dtype")
        if result.dims != (*left.dims[:-1], right.dims[-1]):
            raise VerifyException("contract gives (…, m, n)")
