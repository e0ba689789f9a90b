"""Rules of device print and assert."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from tessera.ir.target.debug import AssemblyOp as TargetAssemblyOp
from tessera.ir.target.debug import AssertOp as TargetAssertOp
from tessera.ir.target.debug import PrintOp as TargetPrintOp
from tessera.ir.target.memory import BufferLoadOp, ViewOp
from tessera.ir.target.types import BufferType, element_of
from tessera.ir.tile.debug import AssemblyOp, AssertOp, PrintOp
from tessera.ir.tile.types import TileType
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Coords
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site


@lowers(PrintOp)
def lower_print(context: VectorContext, op: PrintOp) -> None:
    """Print a line for each element of the tiles."""
    writer = context.writer
    shape = next((arg.type.shape for arg in op.args if isinstance(arg.type, TileType)), None)
    if shape is None:
        writer.insert(TargetPrintOp(op.format.data, [context.scalar(arg) for arg in op.args]))
        return
    flat = [_flat(context, arg) if isinstance(arg.type, TileType) else None for arg in op.args]

    def line(at: SSAValue, _carried: object) -> list[SSAValue]:
        values: list[SSAValue] = []
        for arg, buffer in zip(op.args, flat, strict=True):
            if buffer is None:
                values.append(context.scalar(arg))
            else:
                values.append(writer.value(BufferLoadOp(buffer, element_of(buffer.type), [at], [])))
        writer.insert(TargetPrintOp(op.format.data, values))
        return []

    writer.loop(0, prod(shape), 1, [], line)


def _flat(context: VectorContext, value: SSAValue) -> SSAValue:
    node = context.node(value)
    dense = context.new_buffer(node.shape, node.element, dense=True)
    context.write(node, dense)
    view = BufferType.of([prod(node.shape)], node.element, "scratch")
    return context.writer.value(ViewOp(dense.buffer, view))


@lowers(AssemblyOp)
def lower_assembly(context: VectorContext, op: AssemblyOp) -> None:
    """Run it once."""
    context.writer.insert(TargetAssemblyOp(op.fn.data, [context.scalar(arg) for arg in op.args]))


@lowers(AssertOp)
def lower_assert(context: VectorContext, op: AssertOp) -> None:
    """Test a scalar, or every chunk of a tile."""
    message = op.message.data
    if not isinstance(op.condition.type, TileType):
        context.writer.insert(TargetAssertOp(context.scalar(op.condition), message))
        return
    node = context.node(op.condition)

    def body(site: Site, coords: Coords) -> None:
        value = site.chunk(node, coords)
        valid = site.valid() if any(c.lanes for c in coords) else None
        if valid is not None:
            value = site.apply("or", [value, site.apply("not", [valid])])
        site.writer.insert(TargetAssertOp(value, message))

    context.nest([node], body)
