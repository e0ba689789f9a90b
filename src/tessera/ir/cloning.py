"""Clones modules in one walk: xDSL makes ops without operands first, and goes through all of them again."""

from __future__ import annotations

from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

Op = TypeVar("Op", bound=Operation)


def clone(module: ModuleOp) -> ModuleOp:
    """Return a copy of a module; uses of a value are in the order in which `module.clone()` has them.

    Args:
        module: has no branches between blocks, and no value is used before it is made.
    """
    return _op(module, {})


def _op(op: Op, values: dict[SSAValue, SSAValue]) -> Op:
    """Return a copy of an op; `values` are those of the copy by the original's."""
    operands, successors = op._operands, op._successors  # pyright: ignore[reportPrivateUsage]
    assert not successors, "ops of Tessera's IR have no successors"
    copy = op.create(
        operands=[values.get(operand, operand) for operand in operands],
        result_types=[result.type for result in op.results],
        properties=op.properties,
        attributes=op.attributes,
        location=op.location,
        regions=[Region() for _ in op.regions],
    )
    for old, new in zip(op.results, copy.results, strict=True):
        _name(values, old, new)
    for region, other in zip(op.regions, copy.regions, strict=True):
        other.add_block([_block(block, values) for block in region.blocks])
    return copy


def _block(block: Block, values: dict[SSAValue, SSAValue]) -> Block:
    copy = Block(arg_types=block.arg_types)
    for old, new in zip(block.args, copy.args, strict=True):
        new.location = old.location
        _name(values, old, new)
    for op in block.ops:
        copy.add_op(_op(op, values))
    return copy


def _name(values: dict[SSAValue, SSAValue], old: SSAValue, new: SSAValue) -> None:
    values[old] = new
    if old.name_hint is not None:
        new.name_hint = old.name_hint
