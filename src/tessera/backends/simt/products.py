"""Products by multiply-adds of threads, over operands in shared memory."""

from __future__ import annotations

import itertools

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
from tessera.target.divisors import WIDEST

UNROLLED = 1024
"""Multiply-adds of a thread up to which a product is straight code; more are a loop over runs of terms."""
ALONG_TERMS = 8
"""Bytes of a row of terms that one access reads where threads hold many rows and columns: more take registers."""
MANY = 64
"""Sums of a thread from which on that is so."""


class _Operand:
    """One operand in shared memory, as a thread reads it: vectors of neighbours, along its rows or along K.

    Args:
        emitter: the emitter.
        buffer: its type.
        base: its byte offset.
        layout: layout of the accumulator.
        axis: the accumulator's axis that the operand shares (0 for A, 1 for B).
        widest: bytes of a vector along K.
    """

    def __init__(
        self, emitter: SimtEmitter, buffer: BufferType, base: str, layout: LinearLayout, axis: int, widest: int
    ):
        self.emitter, self.dtype, self.base = emitter, buffer.dtype, base
        self.axis, self.depth = axis, buffer.shape[1 - axis]
        self.shared = buffer.shared_layout().inverse()
        columns = {dim: [self._offset(v[axis], 0) for v in layout.in_bases(dim)] for dim in (LANE, WARP)}
        self.flipped = 0
        for column in (*columns[LANE], *columns[WARP]):
            self.flipped |= column
        self.thread = emitter.linear([(emitter.lane(), columns[LANE]), (emitter.warp(), columns[WARP])])
        self.steps = sorted({layout.apply(register=r)[axis] for r in range(layout.in_size(REGISTER))})
        self.terms = self._run(range(self.depth), widest, along_terms=True)
        self.rows = 1 if self.terms > 1 else self._run(self.steps, WIDEST, along_terms=False)

    def _offset(self, along: int, k: int) -> int:
        at = (along, k) if self.axis == 0 else (k, along)
        return self.shared.apply(dim0=at[0], dim1=at[1])[0] * self.dtype.bytes

    def _run(self, held: range | list[int], widest: int, *, along_terms: bool) -> int:
        """Return how many neighbours one access moves: a power of two that the thread holds side by side."""
        count, places = 1, set(held)
        while count * 2 * self.dtype.bytes <= widest and count in places:
            if self._offset(*((0, count) if along_terms else (count, 0))) != count * self.dtype.bytes:
                break
            count *= 2
        return count

    def start(self, k: str, length: int) -> None:
        """Begin a run of `length` terms at K index `k` (i32): a multiple of `length`, a power of two.

        Args:
            k: the index.
            length: the terms.
        """
        ops = self.emitter.ops
        for bit in range(length.bit_length() - 1, self.depth.bit_length() - 1):
            column = self._offset(0, 1 << bit)
            at = ops.binary("and", I32, ops.binary("lshr", I32, k, str(bit)), "1")
            self.thread = ops.binary("xor", I32, self.thread, ops.binary("mul", I32, at, str(column)))
            self.flipped |= column

    def read(self, k: int, accumulate: DType) -> dict[tuple[int, int], str]:
        """Return the elements of the next `terms` terms from the `k`-th of the run on, by row or column, and term."""
        found: dict[tuple[int, int], str] = {}
        count = self.terms * self.rows
        for step in self.steps[:: self.rows]:
            words = load_shared(self.emitter, self._address(step, k), self.emitter.word_types(self.dtype, count))
            for place, unit in enumerate(self.emitter.unpack(words, self.dtype, count)):
                at = (step, k + place) if self.terms > 1 else (step + place, k)
                found[at] = casts.cast(self.emitter, unit, self.dtype, accumulate, 1)
        return found

    def _address(self, step: int, k: int) -> str:
        """Return a byte offset. Bits that threads also flip are XORed; the others fold into the instruction."""
        ops, constant = self.emitter.ops, self._offset(step, k)
        place = self.thread
        if constant & self.flipped:
            place = ops.binary("xor", I32, place, str(constant & self.flipped))
        return ops.binary("add", I32, ops.binary("add", I32, place, self.base), str(constant & ~self.flipped))


class _Product:
    """A product that is being emitted.

    Args:
        emitter: the emitter.
        op: the op.
    """

    def __init__(self, emitter: SimtEmitter, op: TensorCoreOp):
        a, b, type_ = op.a.type, op.b.type, op.acc.type
        assert isinstance(a, BufferType)
        assert isinstance(b, BufferType)
        assert isinstance(type_, FragmentType)
        self.emitter, self.layout, self.dtype = emitter, type_.linear, type_.dtype
        self.registers, self.depth = self.layout.in_size(REGISTER), a.shape[1]
        widest = ALONG_TERMS if self.registers >= MANY else WIDEST
        self.left = _Operand(emitter, a, emitter.unit(op.a), self.layout, 0, widest)
        self.right = _Operand(emitter, b, emitter.unit(op.b), self.layout, 1, widest)
        self.lines = self._lines()

    def _lines(self) -> list[list[int]]:
        """Return the registers of each row, or of each column, every other line from its end.

        A register file gives an instruction two operands a cycle, and what the one before it read costs nothing: those
        of a line share a factor, and so do neighbours of two lines. It is one of those that threads hold side by side,
        where one operand is read along terms: of the other the next terms are there already.
        """
        by_columns = self.left.terms > 1 and self.right.terms == 1
        found: dict[int, dict[int, int]] = {}
        for register in range(self.registers):
            row, column = self.layout.apply(register=register)
            line, place = (column, row) if by_columns else (row, column)
            found.setdefault(line, {})[place] = register
        lines = [[found[line][place] for place in sorted(found[line])] for line in sorted(found)]
        return [line[::-1] if number % 2 else line for number, line in enumerate(lines)]

    def run_length(self) -> int:
        """Return the terms of straight code."""
        return min(self.depth, max(UNROLLED // self.registers, self.left.terms, self.right.terms))

    def add(self, sums: list[str], length: int) -> list[str]:
        """Return the sums with a run of terms added, one after the other."""
        sums, group = list(sums), max(self.left.terms, self.right.terms)
        for start in range(0, length, group):
            terms = range(start, start + group)
            left, right = (self._read(operand, terms) for operand in (self.left, self.right))
            for line, k in itertools.product(self.lines, terms):
                for register in line:
                    sums[register] = self._multiply_add(left, right, register, k, sums[register])
        return sums

    def _read(self, operand: _Operand, terms: range) -> dict[tuple[int, int], str]:
        """Return an operand's elements by row or column, and term."""
        found: dict[tuple[int, int], str] = {}
        for k in terms[:: operand.terms]:
            found |= operand.read(k, self.dtype)
        return found

    def _multiply_add(
        self, left: dict[tuple[int, int], str], right: dict[tuple[int, int], str], register: int, k: int, value: str
    ) -> str:
        row, column = self.layout.apply(register=register)
        emitter, factors = self.emitter, [left[row, k], right[column, k]]
        if self.dtype.is_float:
            return elementwise.apply(emitter, "fma", self.dtype, 1, [*factors, value])
        unit = of_dtype(self.dtype)
        return emitter.ops.binary("add", unit, value, emitter.ops.binary("mul", unit, *factors))


@SIMT.register(TensorCoreOp)
def emit_emulated_product(emitter: SimtEmitter, op: TensorCoreOp) -> None:
    """Emit a multiply-add per term and register: straight code, or a loop over runs of terms where that is long."""
    product = _Product(emitter, op)
    assert op.result is not None
    length, sums = product.run_length(), emitter.units(op.acc)
    if length == product.depth:
        emitter.bind(op.result, product.add(list(sums), length))
        return
    fn, unit = emitter.fn, of_dtype(product.dtype)
    head, end, before = fn.label("k.head"), fn.label("k.end"), fn.block
    fn.branch(head)
    fn.start(head)
    k, carried = fn.fresh("k"), [fn.fresh("acc") for _ in sums]
    places = [fn.reserve() for _ in (k, *carried)]
    product.left.start(k, length)
    product.right.start(k, length)
    results = product.add(list(carried), length)
    following = emitter.ops.binary("add", I32, k, str(length))
    rows = zip(places, [k, *carried], ["0", *sums], [following, *results], strict=True)
    for number, (place, name, first, back) in enumerate(rows):
        phi_type = "i32" if number == 0 else str(unit)
        fn.fill(place, f"{name} = {phi_text(phi_type, [(first, before), (back, fn.block)])}")
    more = emitter.ops.compare("ult", I32, following, str(product.depth))
    fn.branch_if(more, head, end, f", !llvm.loop {emitter.module.loop()}")
    fn.start(end)
    emitter.bind(op.result, results)
