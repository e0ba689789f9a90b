"""The rule of `mma`: operands are packed once into scratch memory, the accumulator is updated in place.

`a` becomes rows of the compute type, `b` panels of a few vectors' width stored one after the other, each
[k][n]: the form the register-blocked micro-kernel of the backend reads (`backends/cpu/microkernel.py`).
"""

from __future__ import annotations

from xdsl.ir import Attribute, Operation, SSAValue

from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.types import dtype_of, element_type
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Convert, Coord, Node, Stored
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site, versions
from tessera.lower.vector.transposed import against_order, squares
from tessera.numerics import dtypes


def compute_element(a: Attribute, acc: Attribute) -> Attribute:
    """Return the type products are computed in: f64, i32 (exact for 8-bit integers), i64, or f32."""
    operand, total = dtype_of(a), dtype_of(acc)
    if total.is_int:
        return element_type(dtypes.i64 if total.bits == 64 else dtypes.i32)
    return element_type(dtypes.f64 if dtypes.f64 in (operand, total) else dtypes.f32)


def panel_width(context: VectorContext, element: Attribute) -> int:
    """Return the columns of one panel of b: as many vectors as leave room for enough rows of accumulators."""
    target = context.target
    lanes = max(target.vector_bytes // dtype_of(element).bytes, 1)
    return lanes * (4 if target.has("avx512f") or target.has("neon") else 2)


@lowers(MmaOp)
def lower_mma(context: VectorContext, op: MmaOp) -> None:
    """Pack what is not packed yet and multiply."""
    element = compute_element(context.node(op.a).element, context.node(op.acc).element)
    a = _packed(context, op.a, "a", element)
    b = _packed(context, op.b, "b", element)
    acc = context.node(op.acc)
    if acc.element == element:
        total = context.own_buffer(op.acc)
    else:
        total = context.new_buffer(acc.shape, element)
        context.write(Convert(acc.shape, element, acc), total)
    for buffer in (a, b, total):
        context.scratch.touch(buffer.root, context.position_end(buffer.root))
    context.writer.insert(TensorCoreOp(a.buffer, b.buffer, total.buffer, "fma"))
    result: Node = total if acc.element == element else Convert(acc.shape, acc.element, total)
    context.define(op.result, result)


def pack_before(context: VectorContext, region_op: Operation) -> None:
    """Pack, before a loop, the operands of products inside it that the loop does not change."""
    outside = set(context.liveness.used_inside(region_op))
    for op in region_op.walk():
        if not isinstance(op, MmaOp):
            continue
        for value, role in ((op.a, "a"), (op.b, "b")):
            if value in outside and context.is_tile(value):
                element = compute_element(context.node(value).element, op.acc.type.element)  # pyright: ignore
                context.packed[value, role] = _packed(context, value, role, element)


def _packed(context: VectorContext, value: SSAValue, role: str, element: Attribute) -> Stored:
    if (value, role) in context.packed:
        return context.packed[value, role]
    node = context.node(value)
    converted = node if node.element == element else Convert(node.shape, element, node)
    return _rows(context, converted) if role == "a" else _panels(context, converted)


def _rows(context: VectorContext, node: Node) -> Stored:
    """Return the buffer of a left operand: its own if it has one with contiguous rows."""
    stored = node.stored or node
    if isinstance(stored, Stored) and stored.type.strides[-1] == 1:
        return stored
    return context.materialise(node)


def _panels(context: VectorContext, node: Node) -> Stored:
    """Write a right operand of shape (K, N) as panels [n / width][k][n % width]."""
    (depth, columns), width = node.shape, panel_width(context, node.element)
    panels = -(-columns // width)
    target = context.new_buffer((panels, depth, width), node.element, dense=True)
    full, rest = divmod(columns, width)

    def chunk(site: Site, panel: SSAValue | int, k: SSAValue | int, at: Coord) -> None:
        value = site.chunk(node, (Coord(k), _column(site, panel, at, width)))
        site.store(target, (Coord(panel), Coord(k), at), value)

    def fill(site: Site, panel: SSAValue | int, count: int) -> None:
        turned = against_order([node], depth, count, site.width)
        if turned:
            squares(
                site, turned, depth, count, lambda at: _column(site, panel, at, width),
                lambda s, k, at: chunk(s, panel, k, at),
            )  # fmt: skip
        else:
            site.each(depth, lambda k: site.chunks(count, lambda at: chunk(site, panel, k, at)))

    def nest(site: Site) -> list[SSAValue]:
        if full:
            site.each(full, lambda panel: fill(site, panel, width))
        if rest:
            fill(site, full, rest)
        return []

    # Chunks are whole vectors even where the tile is narrower: the micro-kernel reads whole vectors.
    versions(context, context.lanes, [node], nest)
    return target


def _column(site: Site, panel: SSAValue | int, at: Coord, width: int) -> Coord:
    """Return the column of the operand that position `at` of a panel is."""
    scalars = site.writer.scalars
    first = panel * width if isinstance(panel, int) else scalars.mul(panel, width)
    return at if first == 0 else Coord(scalars.add(site.index(first), at.base), at.lanes)
