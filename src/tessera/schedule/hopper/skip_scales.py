"""Leaves sums of products as they are where the factors that they are multiplied by are all one (Hopper).

Before, in an online softmax, where a row's factor is one unless its maximum has moved::

    %top = maximum %before, %most; %kept = exp2(%before * c - %top * c)
    %scaled = mul (broadcast %kept), %sums

After, the same with `{tessera_schedule.skips_ones = 1}`: a warp of whose rows no maximum has moved does not multiply.
The result is the same to the bit. Maxima move less the longer a row is read, so that most of the iterations of a long
one do without: 64 of some 400 instructions of an attention's iteration, heads of 128.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.types import TileType, element_of
from tessera.ir.tile.warpgroup import MmaStartOp, MmaWaitOp
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.dtypes import f32
from tessera.schedule.costs import registers_of
from tessera.schedule.scheduled_pass import ScheduledPass

LEAST = 16
"""Registers of a thread from which on a branch around them is worth a vote of the warp."""


@dataclass(frozen=True)
class SkipScalesPass(ScheduledPass):
    """Marks what multiplies carried sums of products by factors of rows that are one while maxima stand."""

    name: ClassVar[str] = "skip-scales"

    def apply(self, module: ModuleOp) -> None:
        """Mark such ops of the loops of consumers."""
        for roles in [op for op in ops_in(module) if isinstance(op, RolesOp)]:
            grid = roles.parent_op()
            warps = decisions.NUM_WARPS.of(grid) if grid is not None else None
            if warps is not None:
                _mark(roles, warps)


def _mark(roles: RolesOp, warps: int) -> None:
    for op in ops_in(roles):
        if isinstance(op, ElementwiseOp) and _scales_sums(op) and registers_of(op.result.type, warps) >= LEAST:
            decisions.SKIPS_ONES.write(op)


def _scales_sums(op: ElementwiseOp) -> bool:
    """Return whether an op multiplies sums that a loop carries by factors of their rows that may all be one."""
    type_ = op.result.type
    if op.fn.data != "mul" or not isinstance(type_, TileType) or dtype_of(element_of(type_)) != f32:
        return False
    return any(_is_sum(sums) and _keeps(factors) for factors, sums in (op.args, reversed(op.args)))


def _is_sum(value: SSAValue) -> bool:
    """Return whether products add to a tile before and after."""
    owner = value.owner
    carried = isinstance(value, BlockArgument) and isinstance(owner.parent_op(), scf.ForOp)
    return carried or isinstance(owner, MmaWaitOp | MmaOp | MmaStartOp)


def _keeps(value: SSAValue) -> bool:
    """Return whether a tile has a power of the difference of each row's maximum before and after, which may be none."""
    if not isinstance(value.owner, BroadcastOp):
        return False
    while isinstance(value.owner, BroadcastOp | ReshapeOp):
        value = value.owner.source
    power = value.owner
    if not isinstance(power, ElementwiseOp) or power.fn.data not in ("exp", "exp2"):
        return False
    difference = _unscaled(power.args[0]).owner
    if not isinstance(difference, ElementwiseOp) or difference.fn.data != "sub":
        return False
    before, after = map(_unscaled, difference.args)
    return _is_maximum_of(after, before)


def _unscaled(value: SSAValue) -> SSAValue:
    """Return what was multiplied by a scalar, or put in place of infinite numbers."""
    owner = value.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "mul":
        first, second = owner.args
        return _unscaled(first) if isinstance(second.owner, SplatOp) else value
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "select":
        return owner.args[2]
    return value


def _is_maximum_of(value: SSAValue, other: SSAValue) -> bool:
    owner = value.owner
    return isinstance(owner, ElementwiseOp) and owner.fn.data == "maximum" and other in owner.args
