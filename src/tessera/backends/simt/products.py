"""Emulated matrix products: fused multiply-adds over operands in shared memory."""

from __future__ import annotations

from tessera.backends.llvm import casts, elementwise
from tessera.backends.llvm.ops import I32
from tessera.backends.llvm.text import phi_text
from tessera.backends.llvm.types import of_dtype
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.backends.simt.memory import load_shared
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.numerics.dtypes import DType


class _Operand:
    """One operand in shared memory, read one K index at a time.

    Args:
        emitter: the emitter.
        buffer: its type.
        base: its byte offset.
        layout: layout of the accumulator.
        axis: the accumulator's axis that the operand shares (0 for A, 1 for B).
    """

    def __init__(self, emitter: SimtEmitter, buffer: BufferType, base: str, layout: LinearLayout, axis: int):
        self.emitter, self.buffer, self.base = emitter, buffer, base
        self.axis = axis
        self.shared = buffer.shared_layout().inverse()
        columns = {dim: [self._offset(v[axis], 0) for v in layout.in_bases(dim)] for dim in (LANE, WARP)}
        self.thread = emitter.linear([(emitter.lane(), columns[LANE]), (emitter.warp(), columns[WARP])])
        self.steps = sorted({layout.apply(register=r)[axis] for r in range(layout.in_size(REGISTER))})

    def _offset(self, along: int, k: int) -> int:
        at = (along, k) if self.axis == 0 else (k, along)
        return self.shared.apply(dim0=at[0], dim1=at[1])[0] * self.buffer.dtype.bytes

    def read(self, k: str, depth: int, accumulate: DType) -> dict[int, str]:
        """Return the elements of K index `k` (i32) that this thread needs, by their step along the shared axis."""
        emitter, dtype = self.emitter, self.buffer.dtype
        moved = self.thread
        for bit in range(depth.bit_length() - 1):
            column = self._offset(0, 1 << bit)
            at = emitter.ops.binary("and", I32, emitter.ops.binary("lshr", I32, k, str(bit)), "1")
            moved = emitter.ops.binary("xor", I32, moved, emitter.ops.binary("mul", I32, at, str(column)))
        found: dict[int, str] = {}
        for step in self.steps:
            place = emitter.ops.binary("xor", I32, moved, str(self._offset(step, 0)))
            address = emitter.ops.binary("add", I32, place, self.base)
            words = load_shared(emitter, address, emitter.word_types(dtype, 1))
            (unit,) = emitter.unpack(words, dtype, 1)
            found[step] = casts.cast(emitter, unit, dtype, accumulate, 1)
        return found


@SIMT.register(TensorCoreOp)
def emit_emulated_product(emitter: SimtEmitter, op: TensorCoreOp) -> None:
    """Emit a loop over K: one read of each row and column the thread holds, then a multiply-add per register."""
    a, b, type_ = op.a.type, op.b.type, op.acc.type
    assert isinstance(a, BufferType)
    assert isinstance(b, BufferType)
    assert isinstance(type_, FragmentType)
    assert op.result is not None
    fn, layout, dtype = emitter.fn, type_.linear, type_.dtype
    rows = _Operand(emitter, a, emitter.unit(op.a), layout, 0)
    columns = _Operand(emitter, b, emitter.unit(op.b), layout, 1)
    units, unit_type = emitter.units(op.acc), of_dtype(dtype)
    head, end, before = fn.label("k.head"), fn.label("k.end"), fn.block
    fn.branch(head)
    fn.start(head)
    k, carried = fn.fresh("k"), [fn.fresh("acc") for _ in units]
    places = [fn.reserve() for _ in (k, *carried)]
    depth = a.shape[1]
    left, right = rows.read(k, depth, dtype), columns.read(k, depth, dtype)
    results: list[str] = []
    for register, value in enumerate(carried):
        row, column = layout.apply(register=register)
        if dtype.is_float:
            results.append(elementwise.apply(emitter, "fma", dtype, 1, [left[row], right[column], value]))
        else:
            product = emitter.ops.binary("mul", unit_type, left[row], right[column])
            results.append(emitter.ops.binary("add", unit_type, value, product))
    following = emitter.ops.binary("add", I32, k, "1")
    rows_phi = zip(places, [k, *carried], ["0", *units], [following, *results], strict=True)
    for number, (place, name, first, back) in enumerate(rows_phi):
        phi_type = "i32" if number == 0 else str(unit_type)
        fn.fill(place, f"{name} = {phi_text(phi_type, [(first, before), (back, fn.block)])}")
    more = emitter.ops.compare("ult", I32, following, str(depth))
    fn.branch_if(more, head, end, f", !llvm.loop {emitter.module.loop()}")
    fn.start(end)
    emitter.bind(op.result, results)
