"""Rules of arithmetic: scalars are computed at once, tiles become expressions."""

from __future__ import annotations

from math import prod

from tessera.ir.target.arithmetic import BitcastOp as TargetBitcastOp
from tessera.ir.target.arithmetic import CastOp as TargetCastOp
from tessera.ir.target.arithmetic import ElementwiseOp as TargetElementwiseOp
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.structure import DimOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import U32, Apply, Convert, Iota, Node, Philox, RandomWord, Reinterpret, Remap, Uniform
from tessera.lower.vector.rules import lowers
from tessera.numerics import dtypes


@lowers(ConstantOp)
def lower_constant(context: VectorContext, op: ConstantOp) -> None:
    """Keep one constant of each value, at the start of the function."""
    context.define_scalar(op.result, context.writer.scalars.constant(op.python_value, op.result.type))


@lowers(DimOp)
def lower_dim(context: VectorContext, op: DimOp) -> None:
    """A size is a constant or a parameter."""
    arg, axis = context.params.position(op.tensor), op.axis.data
    known = context.params.known_size(arg, axis)
    size = context.params.size(arg, axis) if known is None else context.writer.scalars.constant(known)
    context.define_scalar(op.result, size)


@lowers(ElementwiseOp)
def lower_elementwise(context: VectorContext, op: ElementwiseOp) -> None:
    """Apply a function to scalars, or note it for tiles."""
    fn, type_ = op.fn.data, op.result.type
    if isinstance(type_, TileType):
        args = tuple(context.node(arg) for arg in op.args)
        func = context.params.func
        if fn == "div" and func.profile.data == "fast" and func.divides_exactly is None:
            fn, args = _by_reciprocal(context, *args)
        context.define(op.result, Apply(type_.shape, type_.element, fn, args))
        return
    scalars = [context.scalar(arg) for arg in op.args]
    if type_ == index and len(scalars) == 2 and scalars[0].type == index:
        context.define_scalar(op.result, context.writer.scalars.binary(fn, scalars[0], scalars[1]))
    else:
        context.define_scalar(op.result, context.writer.value(TargetElementwiseOp(fn, scalars)))


def _by_reciprocal(context: VectorContext, left: Node, right: Node) -> tuple[str, tuple[Node, Node]]:
    """Return a quotient as a product where many elements share a divisor: one division for all of them.

    A divisor that was stored is no longer what it was made of: that may have changed in memory since.
    """
    if right.stored is not None:
        return "div", (left, right)
    shared = right.source if isinstance(right, Remap) else right
    many = isinstance(shared, Uniform) or prod(shared.shape) < prod(right.shape)
    if not many or dtype_of(right.element).bits < 32:
        return "div", (left, right)
    one = context.writer.scalars.constant(1.0, shared.element)
    inverse: Node
    if isinstance(shared, Uniform):
        quotient = context.writer.value(TargetElementwiseOp("div", [one, shared.value]))
        inverse = Uniform(shared.shape, shared.element, quotient)
    else:
        ones = Uniform(shared.shape, shared.element, one)
        inverse = Apply(shared.shape, shared.element, "div", (ones, shared))
    if isinstance(right, Remap):
        inverse = Remap(right.shape, right.element, inverse, right.take)
    return "mul", (left, inverse)


@lowers(CastOp)
def lower_cast(context: VectorContext, op: CastOp) -> None:
    """Convert a scalar, or note the conversion of a tile."""
    type_, saturate = op.result.type, op.saturate is not None
    if isinstance(type_, TileType):
        if context.has_node(op.result):  # a nest that computes the source has stored it
            return
        source = context.node(op.source)
        context.define(op.result, Convert(type_.shape, type_.element, source, saturate))
    else:
        cast = TargetCastOp(context.scalar(op.source), type_, saturate)
        context.define_scalar(op.result, context.writer.value(cast))


@lowers(BitcastOp)
def lower_bitcast(context: VectorContext, op: BitcastOp) -> None:
    """Take the bits of a scalar for another dtype, or note that for a tile."""
    type_ = op.result.type
    if isinstance(type_, TileType):
        context.define(op.result, Reinterpret(type_.shape, type_.element, context.node(op.source)))
    else:
        context.define_scalar(op.result, context.writer.value(TargetBitcastOp(context.scalar(op.source), type_)))


@lowers(SplatOp)
def lower_splat(context: VectorContext, op: SplatOp) -> None:
    """Note that all elements are one scalar."""
    result = op.result.type
    node = Uniform(shape_of(result), element_of(result), context.scalar(op.value))
    context.define(op.result, node)


@lowers(ArangeOp)
def lower_arange(context: VectorContext, op: ArangeOp) -> None:
    """Note that elements are their own positions."""
    context.define(op.result, Iota(shape_of(op.result.type), element_of(op.result.type)))


@lowers(PhiloxOp)
def lower_philox(context: VectorContext, op: PhiloxOp) -> None:
    """Split the seed into its two words; the rounds run where a word is used."""
    writer, u64 = context.writer, element_type(dtypes.u64)
    seed = writer.value(TargetCastOp(context.scalar(op.seed), u64))
    low = writer.value(TargetCastOp(seed, U32))
    shifted = writer.value(TargetElementwiseOp("shr", [seed, writer.scalars.constant(32, u64)]))
    high = writer.value(TargetCastOp(shifted, U32))
    group = Philox((low, high), context.node(op.counter))
    for number, result in enumerate(op.results):
        context.define(result, RandomWord(shape_of(result.type), U32, group, number))
    used = [result for result in op.results if result.uses.get_length()]
    group.words += [context.node(result) for result in used]
    if context.liveness.loops(used) > 1:
        # One run of the rounds gives all words, and different loops want them.
        nodes = [context.node(result) for result in used]
        buffers = [context.new_buffer(node.shape, node.element) for node in nodes]
        context.write_together(nodes[0].shape, list(zip(nodes, buffers, strict=True)))
        for result, buffer in zip(used, buffers, strict=True):
            context.define(result, buffer)
