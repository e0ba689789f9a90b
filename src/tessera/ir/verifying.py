"""Verifies modules as xDSL does, at a third of its cost.

What is asked here of each op is what `Operation.verify` asks. Where the answer is no, or is not known, xDSL's verifier
has the last word: it says what is wrong, with the ops around.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.scf import YieldOp
from xdsl.ir import Operation, Region
from xdsl.ir.core import ErasedSSAValue
from xdsl.traits import IsTerminator, NoTerminator
from xdsl.utils.exceptions import VerifyException

from tessera.ir.decisions import check_decisions
from tessera.ir.fitting import fits
from tessera.ir.traits import has_trait
from tessera.ir.walking import ops_in

_FITS_YIELD = fits(YieldOp.get_irdl_definition())
"""Ops that yield check nothing but their definition."""


def verify(module: ModuleOp) -> None:
    """Check that a module's ops are well formed, and carry only decisions that hold.

    Raises:
        VerifyException: they are not.
    """
    if not _is_well_formed(module):
        module.verify()
    for op in ops_in(module):
        if op.attributes:
            check_decisions(op)


def _is_well_formed(op: Operation) -> bool:
    """Return whether an op and those inside it are known to be as xDSL's verifier wants them."""
    held, successors = op._operands, op._successors  # pyright: ignore[reportPrivateUsage]
    if successors or ErasedSSAValue in map(type, held):
        return False
    for region in op.regions:
        if not _is_closed(region, op):
            return False
    if type(op) is YieldOp and _FITS_YIELD is not None:
        return _FITS_YIELD(op)
    try:
        op.verify_()
    except VerifyException:
        return False
    return True


def _is_closed(region: Region, parent: Operation) -> bool:
    """Return whether a region has at most one block, of well formed ops, and the last one ends it where one must."""
    block = region.first_block
    if block is None:
        return True
    if region.parent is not parent or block.next_block is not None or block.parent is not region:
        return False
    op = block.first_op
    while op is not None:
        if op.parent is not block or not _is_well_formed(op):
            return False
        op = op.next_op
    last = block.last_op
    return has_trait(parent, NoTerminator) or (last is not None and has_trait(last, IsTerminator))
