"""Ops that move no number: which element of the source each element of the result is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def, var_operand_def, var_result_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.formats import Int, Ints
from tessera.ir.graph.types import ONE, ArrayType, array_type, dim_of, dims_of, texts
from tessera.target.dims import Dim


@op_definition
class BroadcastOp(TesseraOp):
    """Repeats an array along dimensions that it lacks: source dimension `i` is result dimension `axes[i]`."""

    name = "tessera_graph.broadcast"
    source = operand_def(ArrayType)
    axes = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($axes) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, dims: Sequence[Dim], axes: Sequence[int]):
        super().__init__(
            operands=[source],
            properties={"axes": ints(axes)},
            result_types=[ArrayType.of(dims, array_type(source).dtype)],
        )

    @property
    def places(self) -> tuple[int, ...]:
        """The result's dimension of each of the source's."""
        return tuple(axis.data for axis in self.axes.data)

    def verify_(self) -> None:
        """Check that the source's dimensions stay in order, and are 1 where they grow."""
        source, result = dims_of(self.source), dims_of(self.result)
        if len(self.places) != len(source) or list(self.places) != sorted(set(self.places)):
            raise VerifyException("broadcast takes each dimension of the source to one of the result, in order")
        if any(
            not 0 <= at < len(result) or dim not in (ONE, result[at])
            for dim, at in zip(source, self.places, strict=True)
        ):
            raise VerifyException("only dimensions of size 1 are repeated")


@op_definition
class ReshapeOp(TesseraOp):
    """Reads an array's elements, in row-major order, as another shape."""

    name = "tessera_graph.reshape"
    source = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, dims: Sequence[Dim]):
        super().__init__(operands=[source], result_types=[ArrayType.of(dims, array_type(source).dtype)])

    def verify_(self) -> None:
        """Check that the dtype stays; sizes are compared when the graph is called."""
        if array_type(self.source).element != array_type(self.result).element:
            raise VerifyException("a reshape keeps the dtype")

    @property
    def places(self) -> tuple[int | None, ...] | None:
        """The source's dimension of each of the result's that is not 1; None where more than ones come and go."""
        return _kept(dims_of(self.source), dims_of(self.result))


@lru_cache(maxsize=4096)
def _kept(old: tuple[Dim, ...], new: tuple[Dim, ...]) -> tuple[int | None, ...] | None:
    """Return the old dimension of each new one that is not 1; None where more than ones come and go."""
    source = [axis for axis, dim in enumerate(old) if dim != ONE]
    result = [axis for axis, dim in enumerate(new) if dim != ONE]
    if [old[axis] for axis in source] != [new[axis] for axis in result]:
        return None
    of = dict(zip(result, source, strict=True))
    return tuple(of.get(axis) for axis in range(len(new)))


@op_definition
class TransposeOp(TesseraOp):
    """Permutes dimensions: result dimension `i` is source dimension `perm[i]`."""

    name = "tessera_graph.transpose"
    source = operand_def(ArrayType)
    perm = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($perm) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, perm: Sequence[int]):
        dims = dims_of(source)
        super().__init__(
            operands=[source],
            properties={"perm": ints(perm)},
            result_types=[ArrayType.of([dims[axis] for axis in perm], array_type(source).dtype)],
        )

    @property
    def permutation(self) -> tuple[int, ...]:
        """The source's dimension of each of the result's."""
        return tuple(axis.data for axis in self.perm.data)

    def verify_(self) -> None:
        """Check that the dimensions are those of the source."""
        dims = dims_of(self.source)
        if sorted(self.permutation) != list(range(len(dims))):
            raise VerifyException(f"{self.permutation} is not a permutation of {len(dims)} dimensions")
        if dims_of(self.result) != tuple(dims[axis] for axis in self.permutation):
            raise VerifyException("a transpose permutes the sizes")


class _Part(TesseraOp):
    """What takes, or is, every `steps[i]`-th element from `starts[i]` on in each dimension of an array."""

    if TYPE_CHECKING:  # at run time xDSL takes every annotation for a field of the op
        source: Any
        starts: Any
        steps: Any
        result: Any

    def __init__(self, source: SSAValue, starts: Sequence[Dim], steps: Sequence[int], dims: Sequence[Dim]):
        super().__init__(
            operands=[source],
            properties={"starts": texts(starts), "steps": ints(steps)},
            result_types=[ArrayType.of(dims, array_type(source).dtype)],
        )

    @property
    def first(self) -> tuple[Dim, ...]:
        """Where the part starts in each dimension."""
        return tuple(dim_of(start.data) for start in self.starts.data)

    @property
    def apart(self) -> tuple[int, ...]:
        """How far its elements are apart in each dimension."""
        return tuple(step.data for step in self.steps.data)

    def verify_(self) -> None:
        """Check that there is a start and a step for each dimension, and that the dtype stays."""
        one, other = array_type(self.source), array_type(self.result)
        if not len(self.first) == len(self.apart) == one.rank == other.rank:
            raise VerifyException("a slice has a start and a step for each dimension, which all stay")
        if any(dim.is_static and dim.scale < 0 for dim in self.first) or any(step < 1 for step in self.apart):
            raise VerifyException("a slice starts inside and goes forwards")
        if one.element != other.element:
            raise VerifyException("a slice keeps the dtype")


@op_definition
class SliceOp(_Part):
    """Takes every `steps[i]`-th element from `starts[i]` on, as many as the result has, in each dimension."""

    name = "tessera_graph.slice"
    source = operand_def(ArrayType)
    starts = prop_def(ArrayAttr[StringAttr])
    steps = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source `from` $starts `by` custom<Ints>($steps) attr-dict `:` type($source) `->` type($result)"


@op_definition
class PlaceOp(_Part):
    """Zeros with the source's elements where `slice` would take them from: its adjoint, and padding."""

    name = "tessera_graph.place"
    source = operand_def(ArrayType)
    starts = prop_def(ArrayAttr[StringAttr])
    steps = prop_def(ArrayAttr[IntAttr])
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source `at` $starts `by` custom<Ints>($steps) attr-dict `:` type($source) `->` type($result)"


@op_definition
class ConcatOp(TesseraOp):
    """Arrays one after another along a dimension."""

    name = "tessera_graph.concat"
    sources = var_operand_def(ArrayType)
    axis = prop_def(IntAttr)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    custom_directives = (Int,)
    assembly_format = "$sources `along` custom<Int>($axis) attr-dict `:` type($sources) `->` type($result)"

    def __init__(self, sources: Sequence[SSAValue], axis: int):
        dims = list(dims_of(sources[0]))
        dims[axis] = sum((dims_of(source)[axis] for source in sources[1:]), dims[axis])
        super().__init__(
            operands=[list(sources)],
            properties={"axis": number(axis)},
            result_types=[ArrayType.of(dims, array_type(sources[0]).dtype)],
        )

    def verify_(self) -> None:
        """Check that the other dimensions are equal."""
        types, at = [array_type(source) for source in self.sources], self.axis.data
        shapes = {(*type_.dims[:at], *type_.dims[at + 1 :]) for type_ in (*types, array_type(self.result))}
        if len(shapes) != 1 or len({type_.element for type_ in (*types, array_type(self.result))}) != 1:
            raise VerifyException("arrays are joined that differ in one dimension only")


class SameOp(TesseraOp):
    """What gives its operand itself, and says something of it."""

    if TYPE_CHECKING:  # at run time xDSL takes every annotation for a field of the op
        source: Any
        result: Any

    def __init__(self, source: SSAValue):
        super().__init__(operands=[source], result_types=[source.type])

    def verify_(self) -> None:
        """Check that the type stays."""
        if self.source.type != self.result.type:
            raise VerifyException(f"{self.name.partition('.')[2]} keeps the type")


@op_definition
class StopOp(SameOp):
    """The source itself, without influence on what is differentiated."""

    name = "tessera_graph.stop"
    source = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"


@op_definition
class AliasOp(SameOp):
    """The source itself, as a value that derivatives can be by alone."""

    name = "tessera_graph.alias"
    source = operand_def(ArrayType)
    result = result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"


@op_definition
class OwnOp(TesseraOp):
    """The first operands themselves, whose derivatives, by the others, are a rule's in place of those of their ops.

    The name stands for the rule; who made the graph knows which.
    """

    name = "tessera_graph.own"
    rule = prop_def(StringAttr)
    sources = var_operand_def(ArrayType)
    outputs = var_result_def(ArrayType)
    traits = traits_def(*PURE)
    assembly_format = "$rule `(` $sources `)` attr-dict `:` `(` type($sources) `)` `->` `(` type($outputs) `)`"

    def __init__(self, rule: str, values: Sequence[SSAValue], inputs: Sequence[SSAValue]):
        super().__init__(
            operands=[[*values, *inputs]],
            properties={"rule": text(rule)},
            result_types=[[value.type for value in values]],
        )

    @property
    def values(self) -> Sequence[SSAValue]:
        """What the results are."""
        return self.sources[: len(self.outputs)]

    @property
    def inputs(self) -> Sequence[SSAValue]:
        """What the derivatives are by."""
        return self.sources[len(self.outputs) :]

    def verify_(self) -> None:
        """Check that the results are the first operands."""
        if [value.type for value in self.values] != [value.type for value in self.outputs]:
            raise VerifyException("own gives its first operands")


def memory_of(value: SSAValue, through: tuple[type[Operation], ...] = ()) -> SSAValue:
    """Return the value in whose memory one may lie.

    Args:
        value: the value.
        through: ops beside views whose results are their operands.
    """
    kinds: tuple[type[Operation], ...] = (BroadcastOp, ReshapeOp, SliceOp, TransposeOp, *through)
    owner = value.owner
    while isinstance(owner, kinds):
        value = owner.operands[owner.results.index(cast(Any, value))]
        owner = value.owner
    return value
