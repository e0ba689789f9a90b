"""Decides what multiplies, and which operands of products are packed and which are read where they lie.

Left operands are multiplied in place where their rows are contiguous: the kernels read a few elements of a few rows at
a time, so that packing would gain nothing. Right ones are packed into panels; with few rows of the left operand that
would take longer than to multiply, so that they are read once in place if their rows, or long columns, are contiguous;
narrow floats are widened on the way.
Under `strict` none are read along contiguous columns: the lanes of inner products are sums apart.
A matrix unit multiplies where it can, unless so few rows read a right operand in place that vector units are as fast as
memory, or unless its columns are contiguous.

What comes from outside of a loop or branch is packed once, before it. Packing waits for memory, multiplying does not:
so what the next iteration packs is prefetched meanwhile.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import near
from tessera.lower.forms import product_form
from tessera.lower.vector.packing import FEW_ROWS
from tessera.numerics.dtypes import DType
from tessera.schedule.cpu.boxes import Boxes, PlainBox
from tessera.schedule.cpu.cpu_pass import CpuPass
from tessera.schedule.knobs import Knobs
from tessera.schedule.scheduled_pass import launches
from tessera.target.products import Form, panel_widths, vector_form
from tessera.target.records import TargetRecord

VECTOR_ROWS = 4
"""Up to so many rows, vector units multiply as fast as memory gives the right operand."""
NARROW_ROWS = 8
"""Up to so many rows, floats of 8 bits are widened faster for each block of rows than packed."""
LONG = 128
"""From so many terms on, adding the lanes of inner products at a step's end takes little of its time."""
LEAST_AHEAD = 2 << 10
"""Bytes of what is packed next from which on it is prefetched; the hardware reads ahead what is shorter."""


@dataclass(frozen=True)
class PackOperandsPass(CpuPass):
    """Writes on products what multiplies them, and where their operands lie.

    That is `matrix_unit`, `left_in_place`, `right_in_place`, `copies_rows`, `prefetch_operand`, `panel`,
    `left_packed_before` and `right_packed_before`.

    Args:
        target: the CPU.
        knobs: `in_place`, `prefetch`, `panel` and `pack_before` force the choice.
    """

    name: ClassVar[str] = "pack-operands"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the products of every kernel of the module."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for unit in launches(kernel):
                self._annotate(kernel, unit)

    def _annotate(self, kernel: KernelOp, unit: GridOp | KernelOp) -> None:
        products = [op for op in ops_in(unit) if isinstance(op, MmaOp)]
        if not products:
            return
        boxes = Boxes(kernel, unit)
        for op in products:
            choice = _Choice(self.target, boxes, op, product_form(self.target, kernel, op), self.knobs)
            form = choice.right_in_place() if self.knobs.in_place != 0 else None
            if form is not None:
                decisions.RIGHT_IN_PLACE.write(op)
            elif self.knobs.in_place != 0 and choice.left_in_place():
                decisions.LEFT_IN_PLACE.write(op)
                if choice.copies_rows():
                    decisions.COPIES_ROWS.write(op)
            if (form or choice.form).tiled:
                decisions.MATRIX_UNIT.write(op)
            if form is None and self.knobs.prefetch != 0 and choice.prefetches_operand():
                decisions.PREFETCH_OPERAND.write(op)
            choice.write_packing()


@dataclass(frozen=True)
class _Choice:
    """What is decided of one product.

    Args:
        target: the CPU.
        boxes: the boxes of its launch.
        op: the product.
        form: its fastest form.
        knobs: what was asked for.
    """

    target: TargetRecord
    boxes: Boxes
    op: MmaOp
    form: Form
    knobs: Knobs

    def right_in_place(self) -> Form | None:
        """Return the form in which a product takes its right operand in place, None where it is packed."""
        op, form = self.op, self.form
        rows, depth = shape_of(op.a.type)
        box = self._box(op.b, 1) if rows <= FEW_ROWS else None
        if box is None or not box.forward or not box.exact:
            return None
        by_rows, by_columns = box.unit[1], box.unit[0]
        if not by_rows or rows <= VECTOR_ROWS:
            form = vector_form(form)
        fits = by_rows or (by_columns and depth >= LONG and form.sums_apart)
        element = _element(box)
        widens = form.widens(element) and (element.bits > 8 or rows <= NARROW_ROWS)
        return form if fits and (element == form.operand or widens) else None

    def left_in_place(self) -> bool:
        """Return whether a product takes its left operand in place."""
        box = self._box(self.op.a, 0) if self.form.reads_rows else None
        if box is None or not box.forward or not box.inside or box.converted or box.turned:
            return False
        return box.unit[1] and _element(box) == self.form.operand

    def copies_rows(self) -> bool:
        """Return whether rows in place are copied where they crowd a set of the cache.

        Rows that one panel reads are read once; the matrix unit's are copied anyway.
        """
        columns = shape_of(self.op.acc.type)[1]
        return not self.form.tiled and columns > self.panel

    @property
    def panel(self) -> int:
        """The columns of a panel of the right operand."""
        widths = panel_widths(self.target, self.form)
        return self.knobs.panel if self.knobs.panel in widths else widths[-1]

    def write_packing(self) -> None:
        """Write how wide the panels are, and which operands are packed before a loop or branch."""
        op = self.op
        if not decisions.RIGHT_IN_PLACE.on(op):
            decisions.PANEL.write(op, self.panel)
        for value, decision in ((op.a, decisions.LEFT_PACKED_BEFORE), (op.b, decisions.RIGHT_PACKED_BEFORE)):
            known = isinstance(value.type, TileType) and _home(value) is not op.parent_block()
            if known and self.knobs.pack_before != 0:
                decision.write(op)

    def prefetches_operand(self) -> bool:
        """Return whether it is known, and worth it to prefetch, what the loop's next iteration packs."""
        loop, box = self.op.parent_op(), self._box(self.op.b, 1)
        if not isinstance(loop, scf.ForOp) or box is None or sum(box.unit) != 1:
            return False
        counter = loop.body.block.args[0]
        size = prod(box.load.size_list) * _element(box).bytes
        moves = sum(offset is counter for offset in box.load.offsets)
        return moves == 1 and near(counter) and LEAST_AHEAD <= size <= self.target.l2_bytes // 4

    def _box(self, value: SSAValue, role: int) -> PlainBox | None:
        """Return the box that an operand is, None where it is none or has been packed before."""
        return None if self._packed_before(value, role) else self.boxes.plain(value, self.op)

    def _packed_before(self, value: SSAValue, role: int) -> bool:
        """Return whether a loop or branch packs an operand before it, for a product in it of this form."""
        if self.knobs.pack_before == 0:
            return False
        order, home = self.boxes.liveness.order, _home(value)
        for use in value.uses:
            other = use.operation
            if not isinstance(other, MmaOp) or use.index != role or other not in order:
                continue
            if product_form(self.target, self.boxes.kernel, other) != self.form:
                continue
            around: Operation = other
            while around.parent_block() is not home:
                parent = around.parent_op()
                assert parent is not None, "a value is used where it is known"
                around = parent
            if around is not other and order[around] < order[self.op]:
                return True
        return False


def _home(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent_block()


def _element(box: PlainBox) -> DType:
    return dtype_of(element_of(box.load.tensor.type))
