"""Combiners of reductions and scans: a `@ts.function` of elements as a block of scalar ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from xdsl.dialects.scf import IfOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.calls import inline
from tessera.frontend.convert import cast_to, constant, operand
from tessera.frontend.function import DeviceFunction
from tessera.frontend.values import Value, is_number, show, wrap
from tessera.ir.locations import location_of
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.reduce import COMBINER_OPS, CombinedOp
from tessera.ir.tile.types import describe, shape_of
from tessera.ir.types import dtype_of


def combiner(b: Builder, function: DeviceFunction[..., Any], elements: Sequence[Attribute], what: str) -> Block:
    """Return the block that combines an element of each tile with another one of each.

    Args:
        b: the builder.
        function: takes the elements on the left and then those on the right, and returns as many as are on one side.
        elements: element type of each tile.
        what: the reduction or scan, for diagnostics.

    Raises:
        LanguageError: `bad-combiner` for another number of results, or for what is no arithmetic on elements.
        TypeMismatchError: `dtype-mismatch` for results of other types.
    """
    block = Block(arg_types=[*elements, *elements])
    with b.into(block):
        given = inline(b, function.function, [wrap(argument) for argument in block.args], {})
        results = cast(tuple[Any, ...], given) if isinstance(given, tuple) else (given,)
        if len(results) != len(elements):
            raise LanguageError(
                f"{what}: {function.function.__name__} returns {len(results)} values for {len(elements)} tiles",
                code="bad-combiner",
                help="it takes an element of each tile, then another one of each, and returns one for each tile",
            )
        name = f"{what}: {function.function.__name__}"
        values = [_result(b, value, element, name) for value, element in zip(results, elements, strict=True)]
        b.emit(CombinedOp(values))
    _flatten(block)
    _check(block, what)
    return block


def _result(b: Builder, value: Any, element: Attribute, name: str) -> SSAValue:
    """Return one result of a combiner, which has the element's dtype; a size among them counts as i64."""
    ready = operand(b, value, name)
    if is_number(ready):
        return constant(b, ready, element)
    assert isinstance(ready, Value)
    if shape_of(ready.type) or ready.dtype != dtype_of(element):
        raise TypeMismatchError(
            f"{name} returns {show(ready)} for an element of type {describe(element)}",
            code="dtype-mismatch",
            help="cast the result with ts.tile.cast, or the tile before it is combined",
        )
    return cast_to(b, ready.ssa, element)


def _flatten(block: Block) -> None:
    """Compute both sides of every branch, and select: a combiner runs for many elements at once."""
    for op in list(block.ops):
        if not isinstance(op, IfOp):
            continue
        ends: list[Sequence[SSAValue]] = []
        for region in op.regions:
            inner = region.block
            _flatten(inner)
            last = cast(Operation, inner.last_op)
            ends.append(list(last.operands))
            last.detach()
            last.erase()
            for each in list(inner.ops):
                each.detach()
                block.insert_op_before(each, op)
        for result, first, second in zip(op.results, *ends, strict=True):
            chosen = ElementwiseOp("select", [op.cond, first, second])
            chosen.location = op.location
            block.insert_op_before(chosen, op)
            result.replace_all_uses_with(chosen.result)
        op.detach()
        op.erase()


def _check(block: Block, what: str) -> None:
    """Refuse what cannot be done for many elements at once."""
    for op in block.ops:
        if not isinstance(op, (*COMBINER_OPS, CombinedOp)):
            raise LanguageError(
                f"{what}: a combiner computes with its elements only, {op.name.rsplit('.', 1)[-1]} cannot stand in it",
                code="bad-combiner",
                location=location_of(op),
                help="use arithmetic, comparisons, ts.tile.where, casts and functions such as ts.tile.exp",
            )
