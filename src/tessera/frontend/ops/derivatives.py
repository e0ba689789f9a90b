"""Compiles derivatives: each op of an inlined function is followed by that of its tangent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.ir import Block, Operation, SSAValue

from tessera.autodiff.partials import PARTIALS
from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.calls import call
from tessera.frontend.convert import apply, broadcast_to, constant, operand, to_ssa
from tessera.frontend.function import DeviceFunction
from tessera.frontend.registry import compiles
from tessera.frontend.structure import StructureValue
from tessera.frontend.values import Value, is_number, show, wrap
from tessera.ir.locations import location_of
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, RoundTf32Op, SplatOp
from tessera.ir.tile.reduce import ReduceOp, ScanOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of

LINEAR = (SplatOp, BroadcastOp, ReshapeOp, TransposeOp, SubtileOp, RoundTf32Op, CastOp)
"""Ops whose tangent is the same op of their operand's."""

Tangents = dict[SSAValue, SSAValue]


@compiles(tile.jvp)
def _jvp(b: Builder, function: Any, primals: Any, tangents: Any) -> Any:
    if not isinstance(function, DeviceFunction | StructureValue):
        raise LanguageError(
            f"jvp: the function is {show(function)}",
            code="bad-call",
            help="pass a function decorated with @ts.function",
        )
    given = _pairs(b, primals, tangents)
    moving = [value for value, tangent in given if tangent is not None]
    block = Block(arg_types=[value.ssa.type for value in moving])
    inputs = dict(zip(map(id, moving), block.args, strict=True))
    outer = b.block
    with b.into(block):
        args = [wrap(inputs[id(value)], value.policy) if tangent is not None else value for value, tangent in given]
        found = call(b, function, args, {})
        seeds = [tangent for _, tangent in given if tangent is not None]
        along = _follow(b, block, dict(zip(block.args, seeds, strict=True)))
        results = cast(tuple[Any, ...], found) if isinstance(found, tuple) else (found,)
        values = [operand(b, result, "jvp: a result") for result in results]
        slopes = [_slope(b, value, along) for value in values]
    for argument, value in zip(block.args, moving, strict=True):
        argument.replace_all_uses_with(value.ssa)
    back: dict[SSAValue, Any] = dict(zip(block.args, moving, strict=True))
    for op in list(block.ops):
        op.detach()
        outer.add_op(op)
    values = [back.get(value.ssa, value) if isinstance(value, Value) else value for value in values]
    return (tuple(values), tuple(slopes)) if isinstance(found, tuple) else (values[0], slopes[0])


def _pairs(b: Builder, primals: Any, tangents: Any) -> list[tuple[Any, SSAValue | None]]:
    """Return each primal with its tangent, None where it stays as it is."""
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise TypeMismatchError(
            "jvp: primals and tangents are tuples", code="bad-argument", help="ts.tile.jvp(f, (x, y), (1.0, 0))"
        )
    ours, theirs = cast(tuple[Any, ...], primals), cast(tuple[Any, ...], tangents)
    if len(ours) != len(theirs):
        raise TypeMismatchError(
            f"jvp: {len(ours)} primals, {len(theirs)} tangents", code="bad-argument", help="0 for what stays as it is"
        )
    return [_pair(b, primal, tangent) for primal, tangent in zip(ours, theirs, strict=True)]


def _pair(b: Builder, primal: Any, tangent: Any) -> tuple[Any, SSAValue | None]:
    if is_number(tangent) and tangent == 0:
        return primal, None
    value = operand(b, primal, "jvp: a primal")
    if not isinstance(value, Value) or not value.dtype.is_float:
        raise TypeMismatchError(
            f"jvp: {show(value)} has the tangent {show(tangent)}",
            code="bad-argument",
            help="tiles and scalars of floats have tangents; give 0",
        )
    along = to_ssa(b, operand(b, tangent, "jvp: a tangent"), element_of(value.ssa.type))
    return value, broadcast_to(b, along, shape_of(value.ssa.type), "jvp: a tangent")


def _slope(b: Builder, value: Any, along: Tangents) -> Any:
    """Return the tangent of a result."""
    if not isinstance(value, Value):
        return 0.0
    if value.ssa in along:
        return wrap(along[value.ssa])
    if not value.dtype.is_float:
        return 0
    zero = constant(b, 0.0, element_of(value.ssa.type))
    return wrap(broadcast_to(b, zero, value.shape) if value.shape else zero)


def _follow(b: Builder, block: Block, along: Tangents) -> Tangents:
    """Emit the tangents of a block's ops behind them; those of its arguments are given."""
    for op in list(block.ops):
        active = [value for value in _read(op) if value in along]
        if not active:
            continue
        if isinstance(op, ElementwiseOp):
            tangent = _elementwise(b, op, along)
        elif isinstance(op, CastOp) and not dtype_of(element_of(op.result.type)).is_float:
            tangent = None
        elif isinstance(op, LINEAR) or (isinstance(op, ReduceOp | ScanOp) and op.fn.data == "sum"):
            tangent = b.emit(op.clone({active[0]: along[active[0]]})).results[0]
        else:
            raise _no_derivative(op, op.name.rsplit(".", 1)[-1])
        if tangent is not None:
            along[op.results[0]] = tangent
    return along


def _read(op: Operation) -> Sequence[SSAValue]:
    """Return what the results of an op may depend on, inside it too."""
    return [value for one in op.walk() for value in one.operands] if op.results else ()


def _elementwise(b: Builder, op: ElementwiseOp, along: Tangents) -> SSAValue | None:
    """Return the tangent of a function's result: each operand's by the derivative, added."""
    fn, args = op.fn.data, [wrap(value) for value in op.args]
    if fn == "select":
        parts = [wrap(along[value]) if value in along else 0.0 for value in op.args[1:]]
        return apply(b, "select", args[0], *parts).ssa if parts != [0.0, 0.0] else None
    if not dtype_of(element_of(op.result.type)).is_float:
        return None
    if fn not in PARTIALS:
        raise _no_derivative(op, fn)

    def applied(name: str, *values: Any) -> Any:
        return apply(b, name, *values)

    total: Any = None
    for value, partial in zip(op.args, PARTIALS[fn], strict=True):
        if partial is None or value not in along:
            continue
        tangent, by = wrap(along[value]), partial(applied, args, wrap(op.result))
        if is_number(by):
            part = tangent if by == 1 else apply(b, "neg", tangent) if by == -1 else apply(b, "mul", tangent, by)
        else:
            part = apply(b, "mul", tangent, by)
        total = part if total is None else apply(b, "add", total, part)
    return None if total is None else total.ssa


def _no_derivative(op: Operation, what: str) -> LanguageError:
    return LanguageError(
        f"jvp: {what} has no derivative here",
        code="no-derivative",
        location=location_of(op),
        help="elementwise functions, casts, broadcasts, transposes and sums have one; or compute it by hand",
    )
