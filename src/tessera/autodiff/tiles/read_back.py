"""Reads what a kernel has stored, where an adjoint would have to compute it again by a loop of products.

An adjoint that has only to multiply by a result, as that of an attention has by `acc / l`, needs no products for it: it
is what the kernel has left in memory, rounded. Where a difference of results is needed (`1 − tanh(x)²`), rounding would
be felt, and the result is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.autodiff.tiles.emitter import Emitter
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in


def read_back(emit: Emitter, stores: Sequence[StoreOp], values: dict[SSAValue, SSAValue]) -> None:
    """Read results back in the adjoint of a program.

    Args:
        emit: has written it, to the end of its block.
        stores: the stores of the kernel whose tensors hold what they have stored. They are all that the program writes:
            a factor from another result would be wanted beyond what this one's tensor holds, or exacter.
        values: what stands for the values of the kernel.
    """
    for store in stores:
        value = store.value
        if isinstance(value.owner, CastOp) and dtype_of(element_of(value.owner.source.type)).is_float:
            value = value.owner.source
        if value not in values or len(shape_of(value.type)) < 2:
            continue
        held = values[value]
        if not _is_costly(held) or not _only_multiplies(held, emit.block):
            continue
        first = held.owner
        assert isinstance(first, Operation), "it is computed"
        insert = Inserter(InsertPoint.before(first), first)
        offsets = [values[offset] for offset in store.offsets]
        if not all(_is_ahead(offset, first) for offset in offsets):
            continue
        part = insert.value(LoadOp(values[store.tensor], offsets, store.size_list, store.dropped))
        if element_of(part.type) != element_of(held.type):
            part = insert.value(CastOp(part, element_of(held.type)))
        held.replace_all_uses_with(part)


def _is_ahead(value: SSAValue, op: Operation) -> bool:
    """Return whether a value is there before an op."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.parent is not op.parent or owner.is_before_in_block(op)


def _is_costly(value: SSAValue) -> bool:
    """Return whether a value follows from a loop of products."""
    seen, work = set[Operation | Block](), [value.owner]
    while work:
        op = work.pop()
        if op in seen or not isinstance(op, Operation):
            continue
        seen.add(op)
        if isinstance(op, ForOp) and any(isinstance(one, MmaOp) for one in ops_in(op)):
            return True
        work += [operand.owner for operand in op.operands]
    return False


def _only_multiplies(value: SSAValue, block: Block) -> bool:
    """Return whether a value is used, where that matters, as a factor of what does not follow from it."""
    for use in value.uses:
        op = use.operation
        if not any(result.uses for result in op.results) and op.results:
            continue  # what it gives is not needed
        if not isinstance(op, ElementwiseOp) or op.fn.data != "mul" or op.parent is not block:
            return False
        if _follows(op.args[1 - use.index], value):
            return False
    return True


def _follows(value: SSAValue, source: SSAValue) -> bool:
    seen, work = set[SSAValue](), [value]
    while work:
        one = work.pop()
        if one is source:
            return True
        if one not in seen and isinstance(one.owner, Operation):
            seen.add(one)
            work += one.owner.operands
    return False
