"""Lets a product add to what it would be added to: matrix units sum into their accumulators for nothing.

Before::

    %p = mma %a, %b, 0; %sum = add %x, %p

After::

    %sum = mma %a, %b, %x

The product's accumulators then are the sum's registers, which a loop carries anyway. Sums of floats change their order,
which only the `fast` profile allows; a product of shared buffers keeps its place between the barriers around it.
Products of 8-bit floats stay apart: Hopper's matrix units sum them with fewer bits than f32 has, and who adds by hand
wants all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.ir.effects import Effect, effect_of
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.schedule.copies import Inserter
from tessera.schedule.knobs import Knobs, default_gpu
from tessera.target.records import TargetRecord


@dataclass(frozen=True)
class SumsOfProductsPass(Pass):
    """Adds with products where they are added to something.

    Args:
        target: the GPU.
        knobs: not used.
    """

    name: ClassVar[str] = "sums-of-products"
    target: TargetRecord = field(default_factory=default_gpu)
    knobs: Knobs = field(default_factory=Knobs)

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every kernel of the module in place."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            if kernel.profile.data == "fast":
                for op in [
                    op for op in kernel.walk() if isinstance(op, ElementwiseOp) and op.fn.data == "add"
                ]:
                    _try(op)

    def options(self) -> str:
        """Return the pass with its target."""
        return f"{self.name}{{target={self.target.name}}}"


def _try(op: ElementwiseOp) -> None:
    first, second = op.args
    for product, other in ((second.owner, first), (first.owner, second)):
        if not isinstance(product, MmaOp) or product.parent is not op.parent or not _is_zero(product.acc):
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


def _is_zero(value: SSAValue) -> bool:
    owner = value.owner
    scalar = owner.value.owner if isinstance(owner, SplatOp) else None
    return isinstance(scalar, ConstantOp) and scalar.python_value == 0
