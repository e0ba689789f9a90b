"""Chooses, before a kernel is lowered, between inline assembly and what it means in the language."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint

from tessera.ir.inserter import Inserter
from tessera.ir.tile.debug import AssemblyOp
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.types import TileType, element_of
from tessera.ir.walking import ops_in
from tessera.numerics.assembly import assembly, is_assembly, texts_of


def choose_assembly(module: ModuleOp, machine: str) -> bool:
    """Keep the text for a machine, or put the meaning in its place; what acts goes where there is no text.

    Args:
        module: scheduled TIR-H, changed in place.
        machine: one of `numerics.assembly.MACHINES`, or "" for one that has no assembly of its own.

    Returns:
        Whether meanings may be left that nothing uses.
    """
    acting = [op for op in ops_in(module) if isinstance(op, AssemblyOp)]
    for op in acting:
        text = texts_of(op.fn.data).get(machine)
        if text is not None:
            op.properties["fn"] = StringAttr(assembly({machine: text}))
        else:
            op.detach()
            op.erase()
    found = [op for op in ops_in(module) if isinstance(op, ElementwiseOp) and is_assembly(op.fn.data)]
    for op in found:
        text = texts_of(op.fn.data).get(machine)
        meaning = op.args[-1]
        if text is None:
            op.result.replace_all_uses_with(meaning)
            op.detach()
            op.erase()
            continue
        insert = Inserter(InsertPoint.before(op), op)
        chosen = insert.value(ElementwiseOp(assembly({machine: text}), [*op.args[:-1], _nothing(insert, meaning)]))
        op.result.replace_all_uses_with(chosen)
        op.detach()
        op.erase()
    return bool(found)


def _nothing(insert: Inserter, like: SSAValue) -> SSAValue:
    """Return zeros in place of a meaning: the result's type is theirs."""
    zero = insert.value(ConstantOp(0, element_of(like.type)))
    return insert.value(SplatOp(zero, like.type.shape)) if isinstance(like.type, TileType) else zero
