"""Arithmetic of TIR-T on scalars and fragments, alike in every model: unit by unit."""

from __future__ import annotations

from tessera.backends.llvm import casts, elementwise
from tessera.backends.llvm.assembly import emit_acting, emit_assembly
from tessera.backends.llvm.emitter import Emitter, Handlers
from tessera.ir.target.arithmetic import BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.target.debug import AssemblyOp
from tessera.ir.target.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.assembly import is_assembly

ARITHMETIC = Handlers()


@ARITHMETIC.register(ConstantOp)
def emit_constant(emitter: Emitter, op: ConstantOp) -> None:
    """Bind the literal; no instruction is needed."""
    emitter.bind(op.result, [emitter.literal(op.python_value, dtype_of(op.result.type))])


@ARITHMETIC.register(ElementwiseOp)
def emit_elementwise(emitter: Emitter, op: ElementwiseOp) -> None:
    """Apply the function to each unit."""
    if is_assembly(op.fn.data):
        emit_assembly(emitter, op)
        return
    type_ = op.args[-1].type
    dtype, width = dtype_of(element_of(type_)), emitter.unit_width(type_)
    columns = zip(*(emitter.units(arg) for arg in op.args), strict=True)
    units = [elementwise.apply(emitter, op.fn.data, dtype, width, column) for column in columns]
    emitter.bind(op.result, units)


ARITHMETIC.register(AssemblyOp)(emit_acting)


@ARITHMETIC.register(CastOp)
def emit_cast(emitter: Emitter, op: CastOp) -> None:
    """Convert each unit."""
    source, result = dtype_of(element_of(op.source.type)), dtype_of(element_of(op.result.type))
    width, saturate = emitter.unit_width(op.source.type), op.saturate is not None
    units = emitter.units(op.source)
    emitter.bind(op.result, [casts.cast(emitter, u, source, result, width, saturate) for u in units])


@ARITHMETIC.register(BitcastOp)
def emit_bitcast(emitter: Emitter, op: BitcastOp) -> None:
    """Name the bits of each unit by the other type."""
    source, result = emitter.unit_type(op.source.type), emitter.unit_type(op.result.type)
    units = emitter.units(op.source)
    if source != result:
        units = [emitter.reinterpret(unit, source, result) for unit in units]
    emitter.bind(op.result, units)


@ARITHMETIC.register(SplatOp)
def emit_splat(emitter: Emitter, op: SplatOp) -> None:
    """Repeat the scalar in every lane of every unit."""
    unit = emitter.ops.splat(emitter.unit_type(op.result.type), emitter.unit(op.value))
    emitter.bind(op.result, [unit] * emitter.unit_count(op.result.type))
