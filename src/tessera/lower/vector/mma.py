"""The rule of `mma`: operands are packed once into scratch memory, the accumulator is updated in place.

The schedule has decided which unit multiplies, which operands are read where they lie and which are packed, and what is
prefetched meanwhile (`schedule/cpu/pack_operands.py`); `packing` says how operands are packed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tessera.errors import VerifyError
from tessera.ir import decisions
from tessera.ir.decisions import Decision
from tessera.ir.locations import location_of
from tessera.ir.notes import add_note
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, element_type, i1
from tessera.ir.walking import ops_in
from tessera.lower.forms import product_form
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.memory import start_of
from tessera.lower.vector.next_rows import next_step
from tessera.lower.vector.nodes import Convert, Load, Node, Remap, Stored, Uniform
from tessera.lower.vector.packing import (
    FEW_ROWS,
    Packed,
    packed_element,
    panels,
    plain_load,
    rows,
    valid_sizes,
)
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import End
from tessera.lower.vector.strips import Operand, Product, store_after
from tessera.numerics.dtypes import widens
from tessera.target.products import Form, panel_width, panel_widths, vector_form


@lowers(MmaOp)
def lower_mma(context: VectorContext, op: MmaOp) -> None:
    """Pack the operands that are not packed yet and multiply."""
    form = _form(context, op)
    _check_together(context, op, form)
    _note_fallback(context, op, form)
    element = element_type(form.total)
    right = _in_place(context, op, form) if decisions.RIGHT_IN_PLACE.on(op) else None
    left = _rows_in_place(context, op, form) if decisions.LEFT_IN_PLACE.on(op) else None
    left = left or Operand.packed(_packed(context, op, "a", form))
    ahead = _ahead(context, op) if decisions.PREFETCH_OPERAND.on(op) else (None, ())
    right = right or Operand.packed(_packed(context, op, "b", form))
    ends = context.ends(context.needs_of(op.result))
    left, right = (_cut(operand, ends.get(axis)) for axis, operand in enumerate((left, right)))
    acc = context.node(op.acc)
    depth = _depth(context, left.depth, right.depth, shape_of(op.a.type)[1])
    fresh = context.fresh.get(op.acc)
    if fresh is None and constant_value(depth) == 0:  # no term lies in the tensors
        context.define(op.result, acc)
        return
    if fresh is None and decisions.BEGINS_SUMS.on(op):
        if not form.tiled and constant_value(depth) is None:
            raise _unknown_depth(op)
        fresh = context.writer.scalars.constant(True, i1)
        total = context.new_buffer(acc.shape, element)
        if not form.tiled:
            _clear_outside(context, op, total, ends, (left.outer, right.outer))
    elif acc.element == element:
        operands = {side.root for side in (left, right) if side.root is not None}
        total = context.own_buffer(op.acc, operands)
        if fresh is not None and not form.tiled:
            _clear_outside(context, op, total, ends, (left.outer, right.outer), fresh)
    else:
        total = context.new_buffer(acc.shape, element)
        context.write(Convert(acc.shape, element, acc), total, context.needs_of(op.result))
    (m, k), n = shape_of(op.a.type), shape_of(op.acc.type)[1]
    copied = left.place and decisions.COPIES_ROWS.on(op)
    room = context.new_buffer((m, -(-k // form.group)), packed_element(form)) if copied else None
    size = _extent(context, right.outer, n), depth
    placed = context.placed.get(op.acc)
    needed: tuple[SSAValue, ...] = ()
    if fresh is not None and form.tiled:
        counts = _needed(ends, acc.shape)
        needed = tuple(context.writer.scalars.constant(one) if isinstance(one, int) else one for one in counts)
    product = Product(left, right, total, size, form.instruction, ahead, fresh, room, placed, needed)
    result: Node = total
    strip = decisions.STRIP.of(op)
    if strip is not None:
        _check_strip(context, op, strip)
        result = product.pending(context, strip)
    else:
        product.write(context)
    context.define(op.result, result if acc.element == element else Convert(acc.shape, acc.element, result))


def _note_fallback(context: VectorContext, op: MmaOp, form: Form) -> None:
    """Note, for `explain()`, operands that are computed in another float format than their own."""
    own, wide, name = dtype_of(element_of(op.a.type)), form.operand.name, context.target.name
    if op.compute.data == "tf32":
        add_note(context.params.func, "fallbacks", f"tf32 mma computed in {wide}: {name} rounds no operands to tf32")
    elif own.is_float and own != form.operand:
        add_note(context.params.func, "fallbacks", f"{own} mma through {wide} (exact): {name} has none of {own}")


def _form(context: VectorContext, op: MmaOp) -> Form:
    """Return how a product is computed: by the instruction for its dtypes of the unit that was decided on."""
    form = product_form(context.target, context.params.kernel, op)
    return form if decisions.MATRIX_UNIT.on(op) else vector_form(form)


def _check_together(context: VectorContext, op: MmaOp, form: Form) -> None:
    """Refuse decisions about a product that cannot both be obeyed.

    Raises:
        VerifyError: there are such.
    """
    pairs = [
        (decisions.RIGHT_IN_PLACE, decisions.LEFT_IN_PLACE),
        (decisions.RIGHT_IN_PLACE, decisions.PREFETCH_OPERAND),
        (decisions.RIGHT_IN_PLACE, decisions.STRIP),
        (decisions.RIGHT_IN_PLACE, decisions.RIGHT_PACKED_BEFORE),
        (decisions.RIGHT_IN_PLACE, decisions.PANEL),
        (decisions.LEFT_IN_PLACE, decisions.LEFT_PACKED_BEFORE),
        (decisions.RIGHT_IN_PLACE, decisions.BEGINS_SUMS),
        (decisions.MATRIX_UNIT, decisions.COPIES_ROWS),
    ]
    both = next((pair for pair in pairs if all(one.on(op) for one in pair)), None)
    if both is not None:
        message = f"{both[0].key} and {both[1].key} are on one product"
    elif decisions.MATRIX_UNIT.on(op) and not form.tiled:
        message = f"{decisions.MATRIX_UNIT.key} is on a product that no matrix unit of the target computes"
    elif decisions.PANEL.of(op) not in (None, *(widths := panel_widths(context.target, form))):
        known = " or ".join(map(str, widths))
        message = f"{decisions.PANEL.key} is {decisions.PANEL.of(op)} on a product whose panels have {known} columns"
    elif decisions.RIGHT_IN_PLACE.on(op) and shape_of(op.a.type)[0] > FEW_ROWS:
        message = f"{decisions.RIGHT_IN_PLACE.key} is on a product of more than {FEW_ROWS} rows"
    else:
        return
    raise VerifyError(message, location=location_of(op), help="`tessera opt --list` names the passes that decide")


def _check_strip(context: VectorContext, op: MmaOp, strip: int) -> None:
    """Refuse strips of a product that cannot be computed by them.

    Raises:
        VerifyError: no matrix unit multiplies, a strip would be incomplete, or not one store alone takes the product.
    """
    rows = shape_of(op.acc.type)[0]
    if not decisions.MATRIX_UNIT.on(op) or rows % strip or store_after(context.liveness, op) is None:
        raise VerifyError(
            f"{decisions.STRIP.key} is {strip} on a product of {rows} rows",
            location=location_of(op),
            help="it divides the rows of a product that a matrix unit computes and that one store alone takes next",
        )


def _unknown_depth(op: MmaOp) -> VerifyError:
    return VerifyError(
        f"{decisions.BEGINS_SUMS.key} is on a product that may have no terms",
        location=location_of(op),
        help="vector units begin sums that a loop carries, or where the depth that lies in the tensors is known",
    )


def _cut(operand: Operand, end: End | None) -> Operand:
    """Return an operand of which rows or columns count that are needed; those that lie in its tensor, where known."""
    return replace(operand, outer=end.count) if end is not None and operand.outer is None else operand


def _needed(ends: Mapping[int, End], shape: Sequence[int]) -> list[SSAValue | int]:
    """Return how many rows and columns of sums anybody reads."""
    return [ends[axis].count if axis in ends else size for axis, size in enumerate(shape)]


def _clear_outside(
    context: VectorContext,
    op: MmaOp,
    total: Stored,
    ends: Mapping[int, End],
    valid: tuple[SSAValue | None, SSAValue | None],
    fresh: SSAValue | None = None,
) -> None:
    """Write zeros to sums of which a product that starts from zero writes a part only of what is needed.

    Args:
        context: the lowering.
        op: the product.
        total: the sums.
        ends: where what is needed of them ends before they do.
        valid: rows and columns that it writes, None for all.
        fresh: whether it starts from zero; it does where that is None.
    """
    scalars, short = context.writer.scalars, None
    zeros, needs = Uniform(total.shape, total.element, scalars.constant(0, total.element)), context.needs_of(op.result)
    for inside, count in zip(valid, _needed(ends, total.shape), strict=True):
        if inside is not None:
            less = scalars.binary("lt", inside, count)
            short = less if short is None else scalars.binary("or", short, less)
    if short is not None:
        short = short if fresh is None else scalars.binary("and", short, fresh)

        def clear() -> list[SSAValue]:
            context.write(zeros, total, needs)
            return []

        context.writer.branch(short, clear)


def _rows_in_place(context: VectorContext, op: MmaOp, form: Form) -> Operand:
    """Return the left operand as it lies in its tensor.

    Raises:
        VerifyError: it is no box of rows that lies there.
    """
    node = context.node(op.a)
    sizes = valid_sizes(context, node)
    if sizes is None or not isinstance(node, Load) or not form.reads_rows or dtype_of(node.element) != form.operand:
        raise _elsewhere(op, decisions.LEFT_IN_PLACE)
    box = node.box
    if not box.unit[box.kept[1]]:
        raise _elsewhere(op, decisions.LEFT_IN_PLACE)
    place = start_of(context, box), box.strides[box.kept[0]]
    return Operand(box.pointer, *sizes, arg=box.memory, place=place)


def _elsewhere(op: MmaOp, decision: Decision) -> VerifyError:
    return VerifyError(
        f"{decision.key} is on a product whose operand does not lie in a tensor as the product reads it",
        location=location_of(op),
        help="it is a bounded slice of the product's own dtype, and contiguous",
    )


def _ahead(context: VectorContext, op: MmaOp) -> tuple[SSAValue | None, tuple[SSAValue, ...]]:
    """Return the rows that the loop's next iteration packs as the right operand: their tensor and its `ahead`.

    Raises:
        VerifyError: it is not known which they are.
    """
    found, loop = plain_load(context.node(op.b)), op.parent_op()
    box = next_step(context, loop, found[0].box) if found is not None and isinstance(loop, scf.ForOp) else None
    if box is None:
        raise _elsewhere(op, decisions.PREFETCH_OPERAND)
    (length,) = (axis for axis in box.kept if box.unit[axis])
    (row,) = (axis for axis in box.kept if axis != length)
    scalars = context.writer.scalars
    left = scalars.binary("minimum", scalars.binary("sub", box.bounds[row], box.offsets[row]), box.sizes[row])
    rows = scalars.binary("maximum", left, 0)
    return box.pointer, (start_of(context, box), box.strides[row], rows, scalars.constant(box.sizes[length]))


def _in_place(context: VectorContext, op: MmaOp, form: Form) -> Operand:
    """Return the right operand as it lies in its tensor.

    Raises:
        VerifyError: it is no box that lies there, or neither its rows nor its columns are contiguous.
    """
    node = context.node(op.b)
    found, sizes = plain_load(node), valid_sizes(context, node, gathered=True)
    if found is None or sizes is None:
        raise _elsewhere(op, decisions.RIGHT_IN_PLACE)
    load, axes = found
    box, (row, column) = load.box, (load.box.kept[axis] for axis in axes)
    readable = box.unit[column] or (box.unit[row] and form.sums_apart)
    if not _becomes_operand(node, load, form) or not readable:
        raise _elsewhere(op, decisions.RIGHT_IN_PLACE)
    place = (start_of(context, box), box.strides[row], box.strides[column])
    return Operand(box.pointer, sizes[1], sizes[0], arg=box.memory, place=place)


def _becomes_operand(node: Node, load: Load, form: Form) -> bool:
    """Return whether a tile has the numbers of a load, and the product's form can take them as they lie there."""
    element = dtype_of(load.element)
    while isinstance(node, Remap | Convert):
        source, target = dtype_of(node.source.element), dtype_of(node.element)
        if source != target and not widens(source, target):
            return False
        node = node.source
    return node is load and (element == form.operand or form.widens(element))


def _extent(context: VectorContext, valid: SSAValue | None, size: int) -> SSAValue:
    return context.writer.scalars.constant(size) if valid is None else valid


def _depth(context: VectorContext, a: SSAValue | None, b: SSAValue | None, size: int) -> SSAValue:
    if a is None or b is None:
        return _extent(context, b if a is None else a, size)
    return context.writer.scalars.binary("minimum", a, b)


_BEFORE = (("a", decisions.LEFT_PACKED_BEFORE), ("b", decisions.RIGHT_PACKED_BEFORE))


def pack_before(context: VectorContext, region_op: Operation) -> None:
    """Pack, before a loop or branch, the operands of products inside it that the schedule wants packed there."""
    outside = set(context.liveness.used_inside(region_op))
    for op in [op for op in ops_in(region_op) if isinstance(op, MmaOp)]:
        for role, decision in _BEFORE:
            value = op.a if role == "a" else op.b
            if decision.on(op) and value in outside and context.is_tile(value):
                form = _form(context, op)
                _check_together(context, op, form)
                context.packed[value, role, form, _panel(context, op, role, form)] = _packed(context, op, role, form)


def _panel(context: VectorContext, op: MmaOp, role: str, form: Form) -> int:
    """Return the columns of a panel of an operand; 0 for a left one, which has none."""
    return 0 if role == "a" else decisions.PANEL.of(op) or panel_width(context.target, form)


def begins_sums(context: VectorContext, loop: scf.ForOp, value: BlockArgument) -> bool:
    """Return whether the first product of a loop begins a sum that it carries.

    Args:
        context: the lowering.
        loop: the loop.
        value: the tile in its body.

    Raises:
        VerifyError: it is not added up in place.
    """
    op = next((use.operation for use in value.uses), None)
    if not isinstance(op, MmaOp) or not decisions.BEGINS_SUMS.on(op) or decisions.carried_sum(op) is not loop:
        return False
    form = _form(context, op)
    if element_of(value.type) != element_type(form.total):
        raise _unknown_depth(op)
    return True


def _packed(context: VectorContext, op: MmaOp, role: str, form: Form) -> Packed:
    """Return an operand of a product as it has been packed already, or pack it."""
    value, panel = op.a if role == "a" else op.b, _panel(context, op, role, form)
    if (value, role, form, panel) in context.packed:
        return context.packed[value, role, form, panel]
    node = context.node(value)
    return rows(context, node, form) if role == "a" else panels(context, node, form, panel)
