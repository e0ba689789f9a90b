"""Folds an addition into the product before it: matrix units accumulate for free.

Before::

    %p = mma %a, %b, 0; %sum = add %x, %p

After::

    %sum = mma %a, %b, %x

The accumulators are then the registers of the sum, which a loop carries anyway. This reassociates sums of floats, which
only the `fast` profile allows; a product of shared buffers keeps its place between the barriers around it. Products of
8-bit floats are left alone: Hopper's matrix units accumulate them with fewer bits than f32 has, and a kernel that adds
them itself wants all of them.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.tile.elementwise import ElementwiseOp, is_zero
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.numerics.dtypes import DType
from tessera.schedule.scheduled_pass import ScheduledPass


@dataclass(frozen=True)
class SumsOfProductsPass(ScheduledPass):
    """Folds additions into products."""

    name: ClassVar[str] = "sums-of-products"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every kernel of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            if kernel.profile.data == "fast":
                for op in [op for op in ops_in(kernel) if isinstance(op, ElementwiseOp) and op.fn.data == "add"]:
                    _try(op)


def _try(op: ElementwiseOp) -> None:
    first, second = op.args
    for product, other in ((second.owner, first), (first.owner, second)):
        if not isinstance(product, MmaOp) or product.parent is not op.parent or not is_zero(product.acc):
            continue
        if effect_of(product) > Effect.PURE or product.result.uses.get_length() > 1:
            continue
        if any(dtype.is_float and dtype.bits == 8 for dtype in map(_dtype, (product.a, product.b))):
            continue
        new = MmaOp(product.a, product.b, other, product.compute.data)
        new.attributes.update(product.attributes)
        Inserter(InsertPoint.before(op), op).add(new)
        op.result.replace_all_uses_with(new.result)
        Rewriter.erase_op(op)
        Rewriter.erase_op(product)
        return


def _dtype(value: SSAValue) -> DType:
    return dtype_of(element_of(value.type))
