"""Tests of index tiles against the size of a dimension: one unsigned comparison, as narrow and as rare as possible.

Rows that are repeated along columns are tested once for a row, and 32-bit indices in 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.ir.types import dtype_of, element_type, i1
from tessera.lower.vector.nodes import Apply, Convert, Node, Remap, Uniform
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext

U64 = element_type(dtypes.u64)


def below(context: VectorContext, node: Node, size: SSAValue) -> Node:
    """Return where indices lie in `[0, size)`.

    Args:
        context: the lowering.
        node: a tile of integers.
        size: the size of a dimension, not negative.
    """
    key = (node, size, context.writer.block)
    found = context.inside_nodes.get(key)
    if found is None:
        found = context.inside_nodes[key] = _below(context, node, size)
    return found


def _below(context: VectorContext, node: Node, size: SSAValue) -> Node:
    if node.stored is None and isinstance(node, Remap):
        return Remap(node.shape, i1, below(context, node.source, size), node.take)
    if node.stored is None and isinstance(node, Convert) and _widens(node):
        return below(context, node.source, size)
    scalars, dtype = context.writer.scalars, dtype_of(node.element)
    wide = element_type(_compared_in(dtype))
    # A negative index has the sign bit set, so that it is no smaller than the limit.
    most = 1 << dtype_of(wide).bits - 1
    limit = size if most >> 63 else scalars.binary("minimum", size, most)
    ends = Uniform(node.shape, wide, scalars.cast(limit, wide))
    places = node if node.element == wide else Convert(node.shape, wide, node)
    return Apply(node.shape, i1, "lt", (places, ends))


def _compared_in(dtype: DType) -> DType:
    """Return an unsigned dtype for indices of a dtype: of its width if signed, wider if all its bits may be set."""
    if dtype.bits == 64 or (dtype.bits == 32 and dtype.kind == "uint"):
        return dtypes.u64
    return {8: dtypes.u8, 16: dtypes.u16, 32: dtypes.u32}[dtype.bits] if dtype.kind == "int" else dtypes.u32


def _widens(node: Convert) -> bool:
    """Return whether a conversion of integers keeps every number."""
    source, target = dtype_of(node.source.element), dtype_of(node.element)
    if source.is_float or source.kind == "bool":
        return False
    return source.bits < target.bits and (source.kind == "uint" or target.kind == "int")
