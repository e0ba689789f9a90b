"""Reading elements at places that are computed, and arrays that are read in that way."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def, var_operand_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Ints
from tessera.ir.graph.types import ArrayType, array_type
from tessera.ir.graph.views import SameOp
from tessera.target.dims import Dim


@op_definition
class TakeOp(TesseraOp):
    """Takes elements of an array in memory: `result[p] = source[c_0, …]`; what lies outside of the source is 0.

    `c_i` is the place `p[along[i]]` itself, or, where `along[i]` is not below the rank of the result, what the index
    array `along[i] - rank` has at `p`. Index arrays have the result's shape; none counts from the end.
    """

    name = "tessera_graph.take"
    source = operand_def(ArrayType)
    indices = var_operand_def(ArrayType)
    along = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = (
        "$source `at` $indices `along` custom<Ints>($along) attr-dict "
        "`:` type($source) `at` type($indices) `->` type($result)"
    )

    def __init__(self, source: SSAValue, indices: Sequence[SSAValue], along: Sequence[int], dims: Sequence[Dim]):
        super().__init__(
            operands=[source, list(indices)],
            properties={"along": ints(along)},
            result_types=[ArrayType.of(dims, array_type(source).dtype)],
        )

    @property
    def places(self) -> tuple[int | SSAValue, ...]:
        """For each dimension of the source the result's dimension, or the index array."""
        rank = array_type(self.result).rank
        numbers = [axis.data for axis in self.along.data]
        return tuple(number if number < rank else self.indices[number - rank] for number in numbers)

    def verify_(self) -> None:
        """Check that there is a place for each dimension, shapes and dtypes."""
        source, result = array_type(self.source), array_type(self.result)
        indices = [array_type(index) for index in self.indices]
        numbers = [axis.data for axis in self.along.data]
        if len(numbers) != source.rank or not all(0 <= n < result.rank + len(indices) for n in numbers):
            raise VerifyException("take has a dimension of the result, or an index array, for each of the source")
        if any(not index.dtype.is_int or index.sizes != result.sizes for index in indices):
            raise VerifyException("index arrays are of integers, and have the result's shape")
        if any(n < result.rank and result.dims[n] != dim for n, dim in zip(numbers, source.dims, strict=True)):
            raise VerifyException("a dimension that stays has the source's size")
        if source.element != result.element:
            raise VerifyException("take keeps the dtype")


@op_definition
class AddRowsOp(TesseraOp):
    """Adds up the rows `(l, n)` that have the same number: row `i` of the result is the sum of those with `i`.

    Rows whose number is none of the result's are left out. Sums of 16-bit floats are rounded once.
    """

    name = "tessera_graph.add_rows"
    source = operand_def(ArrayType)
    index = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source `at` $index attr-dict `:` type($source) `at` type($index) `->` type($result)"

    def __init__(self, source: SSAValue, index: SSAValue, count: Dim):
        dims = [count, array_type(source).dims[1]]
        super().__init__(operands=[source, index], result_types=[ArrayType.of(dims, array_type(source).dtype)])

    def verify_(self) -> None:
        """Check shapes and dtypes."""
        source, index, result = map(array_type, (self.source, self.index, self.result))
        if source.rank != 2 or index.rank != 1 or index.dims[0] != source.dims[0] or not index.dtype.is_int:
            raise VerifyException("add_rows takes rows, and a number for each")
        if result.rank != 2 or result.dims[1] != source.dims[1] or result.element != source.element:
            raise VerifyException("add_rows gives rows of the same length and dtype")


@op_definition
class StoredOp(SameOp):
    """The source itself, as an array in memory, of which any element can be read."""

    name = "tessera_graph.stored"
    source = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"
