"""Roundings that kernels leave out where they go on computing: those of functions' results to 16-bit floats.

    %s = tessera_graph.map "add"(%x, %y) : f32                 %s = tessera_graph.map "add"(%x, %y) : f32
    %r = tessera_graph.cast %s loose : f32 -> bf16       →     %t = tessera_graph.map "tanh"(%s) : f32
    %w = tessera_graph.cast %r : bf16 -> f32
    %t = tessera_graph.map "tanh"(%w) : f32

What is stored is rounded. Kernels that compute the same array each for itself may then differ in its last bits, so that
graphs that compare what they compute, the elements of a maximum with it for instance, keep all roundings.

A product that something is added to is not rounded either. Of what becomes a whole number kernels round it: one that
computes where an image is read, and one that computes how much each pixel counts, have to agree on the pixel.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation

from tessera.ir.graph.deciding import compares, makes_whole, maps_before
from tessera.ir.graph.points import CastOp, MapOp
from tessera.ir.graph.structure import GraphOp
from tessera.ir.graph.types import array_type
from tessera.schedule.fuse.places import LOOSE, origin_of, root_of


def keep_compared(graph: GraphOp) -> None:
    """Keep the roundings of a graph that compares floating point numbers which it computes."""
    ops = list(graph.body.block.ops)
    if not any(isinstance(op, MapOp) and _compares(op) for op in ops):
        return
    for op in ops:
        if isinstance(op, CastOp):
            op.loose = None


def round_whole(graph: GraphOp) -> None:
    """Round the products that become whole numbers, or places that are compared, before anything is added to them."""
    for op in graph.body.block.ops:
        if makes_whole(op) or (compares(op) and _is_of_places(op)):
            _round_before(op)


def _is_of_places(op: Operation) -> bool:
    """Return whether an op follows from places and numbers alone."""
    values = (value for one in (op, *maps_before(op)) for value in one.operands)
    return all(isinstance(root_of(value).owner, (MapOp, CastOp, *LOOSE)) for value in values)


def _round_before(op: Operation) -> None:
    """Round the products from which an op follows."""
    for one in maps_before(op):
        if isinstance(one, MapOp) and one.fn.data == "mul" and array_type(one.result).dtype.is_float:
            one.fn = StringAttr("rounded_mul")


def _compares(op: MapOp) -> bool:
    """Return whether an op compares two numbers, none of which is known."""
    if not compares(op):
        return False
    left, right = map(origin_of, op.args)
    return left is not right and not any(isinstance(one.owner, LOOSE) for one in (left, right))
