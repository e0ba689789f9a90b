"""SIMT lowering of matrix products: the target's best mma instruction, step by step along K.

Operands come from shared memory (`ldmatrix` where the stored order allows it) or straight from registers when the
layouts agree. Where the target has no instruction for the dtypes, narrow floats go through f16 (exactly), and the
rest is emulated with fused multiply-adds over shared memory.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.layouts import LANE, REGISTER, LinearLayout, blocked, conversion_kind, from_fragment, ldmatrix
from tessera.ir.target import memory as target
from tessera.ir.target.arithmetic import CastOp, RelayoutOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shared import (
    SharedGatherOp,
    SharedLoadOp,
    SharedScatterOp,
    SharedTransposeOp,
    SharedViewOp,
    allocation_of,
    views_of,
)
from tessera.ir.tile.types import SharedType, shape_of
from tessera.ir.tile.types import element_of as tile_element
from tessera.ir.tile.warpgroup import MmaStartOp, start_of, sums_type
from tessera.ir.types import dtype_of, element_type
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.placement import MATRIX, Placements, infers, padded_shape
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.target.fragments import (
    Fragment,
    MmaInstruction,
    WgmmaInstruction,
    mma_for,
    wgmma_instruction,
)
from tessera.target.records import TargetRecord


@dataclass(frozen=True)
class OperandPlan:
    """Where threads hold an operand.

    Args:
        step: layout of what one issue of the instruction reads.
        whole: layout of the operand.
    """

    step: LinearLayout
    whole: LinearLayout

    @classmethod
    def of(cls, fragment: Fragment, shape: tuple[int, ...], warps: tuple[int, int], k_axis: int) -> OperandPlan:
        """Return the layouts of an operand of a shape, whose axis `k_axis` is summed over step by step."""
        step = tuple(fragment.shape[axis] if axis == k_axis else shape[axis] for axis in range(2))
        return cls(from_fragment(fragment, step, warps), from_fragment(fragment, shape, warps))


@dataclass(frozen=True)
class MmaPlan:
    """How one product is computed.

    Args:
        instruction: the matrix instruction, None for emulation by fused multiply-adds.
        operand: dtype the operands are converted to first, None when they stay.
        warps: warps along M and N.
        accumulator: layout of the accumulator.
        left: layouts of the left operand; None where it is read from shared memory as it is, or emulated.
        right: those of the right one, likewise.
        fallback: what `explain()` reports when this is not what was asked for.
        warpgroup: the asynchronous warpgroup instruction, where the schedule chose it.
    """

    instruction: MmaInstruction | None
    operand: str | None
    warps: tuple[int, int]
    accumulator: LinearLayout
    left: OperandPlan | None = None
    right: OperandPlan | None = None
    fallback: str = ""
    warpgroup: WgmmaInstruction | None = None


def choose_instruction(target: TargetRecord, op: MmaOp | MmaStartOp) -> tuple[MmaInstruction | None, str | None, str]:
    """Return the instruction, the dtype operands are converted to, and the reason for a fallback.

    sm_70's quad-pair instruction is tried like the others; its fragments replicate operands.
    """
    a, b = (dtype_of(tile_element(v.type)).name for v in (op.a, op.b))
    acc = dtype_of(tile_element(sums_type(op.acc))).name
    acc = "i32" if acc == "u32" else acc  # sums that wrap have the same bits
    if op.compute.data == "tf32":
        a = b = "tf32"
    if decisions.MULTIPLY_ADDS.on(op):
        asks = "the strict profile" if isinstance(op, MmaOp) and op.sums_in_order else "mma_kind=fma"
        return None, None, f"multiply-adds, which {asks} asks for"
    m, k = padded_shape(shape_of(op.a.type))
    n = padded_shape(shape_of(op.b.type))[1]
    found, operand = mma_for(a, b, acc, target, (m, n, k))
    if found is not None:
        why = f"{a} mma through {operand} (exact): {target.name} has none for this tile"
        return found, operand, "" if operand is None else why
    how = "computed in f32" if a == "tf32" else "emulated"
    least, _ = mma_for(a, b, acc, target)
    why = f"{target.name} has no instruction for it"
    if least is not None:
        smallest = f"{least.a.shape[0]}x{least.b.shape[1]}x{least.k}"
        why = f"no matrix unit is used, as instructions of {target.name} take tiles of {smallest} and more"
    return None, None, f"{a} mma of {m}x{n}x{k} {how} with fma: {why}"


def warpgroup_instruction(target: TargetRecord, op: MmaOp | MmaStartOp) -> WgmmaInstruction | None:
    """Return the warpgroup instruction of a product that the schedule marked for it, else None."""
    if not decisions.WARPGROUP.on(op):
        return None
    a, b = (dtype_of(tile_element(v.type)).name for v in (op.a, op.b))
    if op.compute.data == "tf32":
        a = b = "tf32"
    acc = dtype_of(sums_type(op.acc).element).name
    return wgmma_instruction(a, b, acc, shape_of(sums_type(op.acc))[1])


def split_warps(num_warps: int, m: int, n: int, unit: tuple[int, int], rows_only: bool) -> tuple[int, int]:
    """Return the warps along M and N that read the fewest operand bytes."""
    options = [(w, num_warps // w) for w in (1 << i for i in range(num_warps.bit_length())) if num_warps % w == 0]
    usable = [(wm, wn) for wm, wn in options if wm * unit[0] <= m and wn * unit[1] <= n]
    if rows_only:
        usable = [(wm, wn) for wm, wn in usable if wn == 1]
    if not usable:
        along_m = min(num_warps, max(1, m // unit[0]))
        return along_m, num_warps // along_m
    return min(usable, key=lambda w: m / w[0] + n / w[1])


def plan_mma(placements: Placements, op: MmaOp | MmaStartOp) -> MmaPlan:
    """Return the instruction, warps and layouts of a product, which are chosen once."""
    if op not in placements.products:
        warpgroup = warpgroup_instruction(placements.target, op)
        placements.products[op] = (
            _plan_warp_wide(placements, op) if warpgroup is None else _plan_warpgroup(placements, op, warpgroup)
        )
    return placements.products[op]


def _plan_warpgroup(placements: Placements, op: MmaOp | MmaStartOp, instruction: WgmmaInstruction) -> MmaPlan:
    warps = (placements.num_warps, 1)
    sums = _with_rows(op, from_fragment(instruction.c, padded_shape(shape_of(sums_type(op.acc))), warps))
    left = None
    if not isinstance(op.a.type, SharedType):
        whole = _with_rows(op, from_fragment(instruction.a, padded_shape(shape_of(op.a.type)), warps))
        left = OperandPlan(whole, whole)  # the instruction takes all of K
    return MmaPlan(None, None, warps, sums, left, warpgroup=instruction)


def _plan_warp_wide(placements: Placements, op: MmaOp | MmaStartOp) -> MmaPlan:
    m, n = padded_shape(shape_of(sums_type(op.acc)))
    instruction, operand, fallback = choose_instruction(placements.target, op)
    if instruction is None:
        return MmaPlan(None, None, (1, 1), _threads_layout(placements, op, m, n), fallback=fallback)
    unit = (instruction.a.shape[0], instruction.b.shape[1])
    warps = split_warps(placements.num_warps, m, n, unit, decisions.ROWS_ONLY.on(op))
    sums = from_fragment(instruction.c, (m, n), warps).unique_registers()
    left = OperandPlan.of(instruction.a, padded_shape(shape_of(op.a.type)), warps, 1)
    right = OperandPlan.of(instruction.b, padded_shape(shape_of(op.b.type)), warps, 0)
    return MmaPlan(instruction, operand, warps, sums, left, right, fallback)


_BOX, _LANES_N = 4, 8
"""Rows or columns that a thread reads as one vector, and lanes of a warp side by side along the columns."""


def _threads_layout(placements: Placements, op: MmaOp | MmaStartOp, m: int, n: int) -> LinearLayout:
    """Return the layout of sums that threads compute by multiply-adds, for the fewest reads of shared memory.

    A thread's sums are as near to a square as can be: 8x8 of them take 16 elements for 64 multiply-adds. Where rows (or
    columns) lie side by side in shared memory, a thread takes runs of them, read as vectors; where terms do, lanes
    take neighbouring rows, which the swizzle spreads over the banks.
    """
    lanes, warps = placements.target.warp_size, placements.num_warps
    box = _box(op, m, n, max(1, m * n // (lanes * warps)))
    most = (lanes if decisions.ROWS_ONLY.on(op) else lanes * warps).bit_length()
    threads = [(lanes * warps >> bit, 1 << bit) for bit in range(most)]
    fitting = [(tm, tn) for tm, tn in threads if tm * box[0] <= m and tn * box[1] <= n] or threads
    along_m, along_n = min(fitting, key=lambda t: (max(m // t[0], box[0]) + max(n // t[1], box[1]), -t[1]))
    lanes_n = max(min(_LANES_N, along_n), lanes // along_m)
    warps_n = max(1, along_n // lanes_n)
    layout = blocked((m, n), box, (lanes // lanes_n, lanes_n), (warps // warps_n, warps_n), (1, 0))
    return _pairs_of_rows(layout, lanes_n.bit_length() - 1)


def _box(op: MmaOp | MmaStartOp, m: int, n: int, share: int) -> tuple[int, int]:
    """Return the rows and columns of the boxes that a thread, which has `share` sums, takes."""
    rows, columns = (
        1
        if _terms_lie_together(value, axis)
        else max(1, min(_BOX, 16 // dtype_of(tile_element(value.type)).bytes, size))
        for value, axis, size in ((op.a, 1, m), (op.b, 0, n))
    )
    while rows * columns > share:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    return rows, columns


def _terms_lie_together(value: SSAValue, k_axis: int) -> bool:
    """Return whether terms of one row are neighbours in the buffer that a product reads."""
    type_ = value.type
    return k_axis == (type_.permutation.index(1) if isinstance(type_, SharedType) else 1)


def _pairs_of_rows(layout: LinearLayout, column_bits: int) -> LinearLayout:
    """Return a layout whose lanes 2i and 2i + 1 share their columns: a vector that two of them read is read once."""
    bases = dict(layout.bases)
    lanes = list(bases[LANE])
    if column_bits < len(lanes):
        lanes.insert(0, lanes.pop(column_bits))
    return LinearLayout.make({**bases, LANE: lanes}, layout.out_sizes)


def register_operand(placements: Placements, op: MmaOp | MmaStartOp) -> LinearLayout | None:
    """Return the layout of a warpgroup product's left operand in registers, None where it is in shared memory."""
    plan = plan_mma(placements, op)
    return None if plan.warpgroup is None or plan.left is None else plan.left.whole


_SPREAD = {4: 16, 8: 4, 16: 8}
"""Which of a warpgroup's 64 rows serves as which row of the instruction, by their binary digits.

Lanes of a warp read 4 terms of 8 rows of a left operand of 32-bit elements. Where these are stored with rows side by
side, 128 bytes of them for each term, rows 0 to 3 and 16 to 19 lie in all 32 banks, rows 0 to 7 in half of them.
"""


def _with_rows(op: MmaOp | MmaStartOp, layout: LinearLayout) -> LinearLayout:
    """Return a layout of a product's left operand or sums, with the rows that the schedule lets the product take."""
    if not decisions.SPREAD_ROWS.on(op):
        return layout
    bases = {dim: [(_spread(row), column) for row, column in vectors] for dim, vectors in layout.bases}
    return LinearLayout.make(bases, layout.out_sizes)


def _spread(row: int) -> int:
    return sum(_SPREAD.get(1 << bit, 1 << bit) for bit in range(row.bit_length()) if row >> bit & 1)


def pending_layout(placements: Placements, product: SSAValue) -> LinearLayout:
    """Return the layout of accumulators in flight, which is that of the products that add to them."""
    users = [use.operation for use in product.uses if not isinstance(use.operation, scf.YieldOp)]
    user = users[0] if users else None
    if isinstance(user, scf.ForOp):
        return pending_layout(placements, user.body.block.args[1 + list(user.iter_args).index(product)])
    start = user if isinstance(user, MmaStartOp) else start_of(product)
    return plan_mma(placements, start).accumulator


@infers(MmaOp)
def _place_mma(placements: Placements, op: MmaOp) -> None:
    placements.place(op.result, plan_mma(placements, op).accumulator, MATRIX)


@lowers(MmaOp)
def _mma(context: SimtContext, op: MmaOp) -> None:
    plan = plan_mma(context.placements, op)
    acc = context.tile(op.acc, plan.accumulator)
    if plan.fallback:
        context.note("fallbacks" if plan.operand or op.compute.data == "tf32" else "emulations", plan.fallback)
    if plan.warpgroup is not None:
        _warpgroup_product(context, op, plan.warpgroup, acc)
        return
    if plan.instruction is None:
        a, b = _as_buffer(context, op.a, 1), _as_buffer(context, op.b, 0)
        own = element_of(acc.type)
        wide = op.sums_in_order and dtype_of(own).bits < 32  # rounded once, at the end
        acc = context.value(CastOp(acc, element_type(dtypes.f32))) if wide else acc
        total = context.value(TensorCoreOp(a, b, acc, "fma"))
        context.define(op.result, context.value(CastOp(total, own)) if wide else total)
        return
    instruction = plan.instruction
    assert plan.left is not None
    assert plan.right is not None
    a = Operand(context, op.a, plan.left, plan.operand, ks_axis=1)
    b = Operand(context, op.b, plan.right, plan.operand, ks_axis=0)
    depth = padded_shape(shape_of(op.a.type))[1]
    for k in range(0, depth, instruction.k):
        acc = context.value(TensorCoreOp(a.step(k), b.step(k), acc, instruction.name))
    context.define(op.result, acc)


def _warpgroup_product(context: SimtContext, op: MmaOp, instruction: WgmmaInstruction, acc: SSAValue) -> None:
    """Issue a whole product at once and wait for it."""
    a, b = warpgroup_operands(context, op)
    context.define(op.result, context.value(TensorCoreOp(a, b, acc, instruction.name)))


def warpgroup_operands(context: SimtContext, op: MmaOp | MmaStartOp) -> tuple[SSAValue, SSAValue]:
    """Return a product's operands: B in shared memory, A in registers where it is there already."""
    layout = register_operand(context.placements, op)
    a = context.scalar(op.a) if layout is None else context.tile(op.a, layout)
    return a, context.scalar(op.b)


def _logical_k_is_padded(value: SSAValue, axis: int) -> bool:
    shape = shape_of(value.type)
    return padded_shape(shape)[axis] != shape[axis]


def _ends_in_zeros(value: SSAValue, axis: int) -> bool:
    """Return whether what pads a product's terms in a shared buffer is zero, as writing all of an operand leaves it."""
    if not _logical_k_is_padded(value, axis):
        return True
    views = list(views_of(allocation_of(value)))
    own = next(taken for view, taken in views if view is value)
    reads = (SharedViewOp, SharedTransposeOp, SharedLoadOp, SharedGatherOp, MmaOp)
    uses = [(use.operation, taken) for view, taken in views for use in view.uses]
    by_parts = any(isinstance(user, SharedScatterOp) for user, _ in uses)
    return not by_parts and not any(taken > own and not isinstance(user, reads) for user, taken in uses)


def _as_buffer(context: SimtContext, value: SSAValue, axis: int, element: str | None = None) -> SSAValue:
    """Return an operand as a shared buffer, its padding along `axis` as zeros; a tile is stored there first."""
    if not isinstance(value.type, SharedType):
        fragment = context.tile(value, context.layout_of(value))
    elif _ends_in_zeros(value, axis):
        return context.scalar(value)
    else:
        layout = context.placements.default(shape_of(value.type))
        fragment = context.value(
            target.BufferLoadOp(context.scalar(value), FragmentType.of(tile_element(value.type), layout))
        )
    fragment = context.fill_outside(fragment, shape_of(value.type), 0)
    if element is not None:
        fragment = context.value(CastOp(fragment, element_type(dtypes.BY_NAME[element])))
    type_ = fragment.type
    assert isinstance(type_, FragmentType)
    buffer = context.value(target.AllocOp(BufferType.of(type_.shape, type_.element, "shared", "xor")))
    context.emit(target.BarrierOp())
    context.emit(target.BufferStoreOp(fragment, buffer))
    context.emit(target.BarrierOp())
    return buffer


def _lies_in_registers(context: SimtContext, value: SSAValue, plan: OperandPlan) -> bool:
    """Return whether threads hold an operand as a product's instruction reads it."""
    if isinstance(value.type, SharedType) or context.values.get(value) is None:
        return False
    return conversion_kind(context.layout_of(value), plan.whole.unique_registers()) in ("identity", "registers")


class Operand:
    """One operand of a product, handed out one K step at a time.

    Args:
        context: the lowering.
        value: the TIR-H tile or shared buffer.
        plan: where threads hold it.
        convert_to: dtype that it is converted to, None where it stays.
        ks_axis: which axis of the operand is K.
    """

    def __init__(
        self, context: SimtContext, value: SSAValue, plan: OperandPlan, convert_to: str | None, ks_axis: int
    ) -> None:
        self.context = context
        self.axis = ks_axis
        self.convert_to = convert_to
        self.layout = plan.step
        self.source: SSAValue | None = None
        self.buffer: SSAValue | None = None
        if isinstance(value.type, SharedType) and _ends_in_zeros(value, ks_axis):
            self.buffer = context.scalar(value)
        elif _lies_in_registers(context, value, plan) and not _logical_k_is_padded(value, ks_axis):
            self.source = self._converted(context.tile(value, context.layout_of(value)))
        else:
            self.buffer = _as_buffer(context, value, ks_axis, convert_to)
            self.convert_to = None

    def _converted(self, fragment: SSAValue) -> SSAValue:
        if self.convert_to is None:
            return fragment
        return self.context.value(CastOp(fragment, element_type(dtypes.BY_NAME[self.convert_to])))

    def step(self, k: int) -> SSAValue:
        """Return the fragment of the K step that starts at `k`."""
        if self.source is not None:
            return self._from_registers(self.source, k)
        assert self.buffer is not None
        return self._converted(self._from_shared(self.buffer, k))

    def _from_registers(self, source: SSAValue, k: int) -> SSAValue:
        type_ = source.type
        assert isinstance(type_, FragmentType)
        held = {type_.linear.apply(register=r): r for r in reversed(range(type_.linear.in_size(REGISTER)))}
        wanted: list[int] = []
        for register in range(self.layout.in_size(REGISTER)):
            at = list(self.layout.apply(register=register))
            at[self.axis] += k
            wanted.append(held[tuple(at)])
        return self.context.value(RelayoutOp(source, self.layout, wanted))

    def _from_shared(self, buffer: SSAValue, k: int) -> SSAValue:
        type_ = buffer.type
        assert isinstance(type_, BufferType)
        zero, at = self.context.scalars.constant(0), self.context.scalars.constant(k)
        offsets = [at if axis == self.axis else zero for axis in range(2)]
        result = FragmentType.of(element_of(type_), self.layout)
        found = None
        if self.context.target.has("ldmatrix"):
            embedded = LinearLayout.make(dict(self.layout.bases), type_.shape)
            found = ldmatrix(embedded, type_.shared_layout(), type_.dtype.bytes)
        if found is not None:
            return self.context.value(target.LdmatrixOp(buffer, result, found.trans, offsets))
        return self.context.value(target.BufferLoadOp(buffer, result, offsets))
