"""Which form a product of TIR-H takes on a CPU."""

from __future__ import annotations

from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.target.products import Form, form_of
from tessera.target.records import TargetRecord


def product_form(target: TargetRecord, kernel: KernelOp, op: MmaOp) -> Form:
    """Return the fastest exact form of a product.

    Args:
        target: the CPU.
        kernel: the kernel that holds it.
        op: the product.
    """
    a, b, total = (dtype_of(element_of(value.type)) for value in (op.a, op.b, op.acc))
    return form_of(target, a, b, total, kernel.profile.data == "strict")
