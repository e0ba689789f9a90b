"""Decides which products begin their sums: zeros that they would be added to are neither written nor read.

The first iteration of a loop begins the sums that the loop carries, as it is told at run time. Outside of such a loop
vector units begin where the depth is known: a product of no terms would leave what it finds.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import DYNAMIC, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.boxes import stays_in_tensor
from tessera.lower.facts import divisor
from tessera.lower.forms import product_form
from tessera.lower.vector.packing import FEW_ROWS
from tessera.schedule.cpu.boxes import source_box
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.scheduled_pass import launches


@dataclass(frozen=True)
class BeginSumsPass(CpuPass):
    """Writes `tessera_schedule.begins_sums` on products.

    Args:
        target: the CPU.
        knobs: `begin_sums` forces the choice.
    """

    name: ClassVar[str] = "begin-sums"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the products of every kernel of the module."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)] if self.knobs.begin_sums != 0 else []:
            for unit in launches(kernel):
                for op in [op for op in ops_in(unit) if isinstance(op, MmaOp)]:
                    if self._begins(kernel, unit, op):
                        decisions.BEGINS_SUMS.write(op)

    def _begins(self, kernel: KernelOp, unit: GridOp | KernelOp, op: MmaOp) -> bool:
        if decisions.why_not_from_zero(op) is not None or decisions.RIGHT_IN_PLACE.on(op):
            return False
        if decisions.carried_sum(op) is None:
            return decisions.MATRIX_UNIT.on(op) or _depth_is_known(kernel, op)
        total = product_form(self.target, kernel, op).total
        few = decisions.MATRIX_UNIT.on(op) and shape_of(op.a.type)[0] <= FEW_ROWS
        return not few and dtype_of(element_of(op.acc.type)) == total


def _depth_is_known(kernel: KernelOp, op: MmaOp) -> bool:
    """Return whether it is known how many terms of a product's sums lie in the tensors that it reads."""
    return _terms_are_known(kernel, op.a, 1) and _terms_are_known(kernel, op.b, 0)


def _terms_are_known(kernel: KernelOp, value: SSAValue, axis: int) -> bool:
    """Return whether it is known how much along one axis of an operand lies in its tensor; all of what is computed."""
    source = source_box(value)
    if source is None:
        return True
    load, dimensions = source
    dimension, known = dimensions[axis], dict[SSAValue, int]()
    sizes = load.tensor.type.shape
    fixed = sizes[dimension] != DYNAMIC and constant_value(load.offsets[dimension]) is not None
    return fixed or stays_in_tensor(kernel, load, dimension, lambda offset: divisor(known, kernel, offset))
