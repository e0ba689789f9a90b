"""Applies a combiner of the user's own to scalars, chunks or fragments: its ops work on any number of elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Attribute, Block, SSAValue

from tessera.ir.target import arithmetic as target
from tessera.ir.target.types import fragment_of
from tessera.ir.tile.elementwise import CastOp, ConstantOp, ElementwiseOp
from tessera.ir.tile.reduce import CombinedOp

Values = list[SSAValue]
"""An element (a chunk, a fragment) of each tile that is combined."""


def combine(
    combiner: Block,
    operands: Sequence[SSAValue],
    outer: Callable[[SSAValue], SSAValue],
    write: Callable[[target.ElementwiseOp | target.CastOp], SSAValue],
    constant: Callable[[ConstantOp], SSAValue],
    splat: Callable[[SSAValue, Attribute], SSAValue],
) -> Values:
    """Return what a combiner makes of its operands.

    Args:
        combiner: the block of `reduce_by` or `scan_by`.
        operands: what its arguments are: scalars, or chunks or fragments of one layout.
        outer: gives what a scalar from outside the combiner has become.
        write: adds an op and returns its result.
        constant: gives a scalar constant.
        splat: repeats a scalar in the layout of a chunk or fragment, which is given by its type.
    """
    shaped = next((o.type for o in operands if fragment_of(o.type) is not None), None)
    known: dict[SSAValue, SSAValue] = dict(zip(combiner.args, operands, strict=True))

    def value(operand: SSAValue) -> SSAValue:
        found = known.get(operand)
        return outer(operand) if found is None else found

    for op in combiner.ops:
        match op:
            case ConstantOp():
                known[op.result] = constant(op)
            case ElementwiseOp():
                args = [value(arg) for arg in op.args]
                if any(fragment_of(arg.type) is not None for arg in args):
                    args = _alike(args, shaped, splat)
                known[op.result] = write(target.ElementwiseOp(op.fn.data, args))
            case CastOp():
                cast = target.CastOp(value(op.source), op.result.type, op.saturate is not None)
                known[op.result] = write(cast)
            case CombinedOp():
                return _alike([value(each) for each in op.values], shaped, splat)
            case _:
                raise AssertionError(f"{op.name} is in a combiner")
    raise AssertionError("a combiner ends by tessera_tile.combined")


def _alike(values: Values, shaped: Attribute | None, splat: Callable[[SSAValue, Attribute], SSAValue]) -> Values:
    """Repeat scalars in the layout of a type, where there is one."""
    if shaped is None:
        return values
    return [value if fragment_of(value.type) is not None else splat(value, shaped) for value in values]
