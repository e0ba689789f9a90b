"""Products with few rows: the right operand is read once, where it lies, several of its rows at a time.

Such a product is as fast as memory gives the right operand. A kernel goes along a few of its rows, so that accesses
are sequential, and keeps a block of sums in registers for as many columns as fit.
"""

from __future__ import annotations

from tessera.backends.cpu.emitter import widened
from tessera.backends.cpu.instructions import multiply_add
from tessera.backends.cpu.microkernel import BYTES, FLIP, register_count
from tessera.backends.cpu.texts import LINE_BYTES, Loops, Size, first_lanes, halves, masked_load, prefetch, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType
from tessera.data import dataclass
from tessera.numerics.dtypes import DType
from tessera.target.products import GROUPS
from tessera.target.records import TargetRecord

STEPS = 8
"""Elements of the depth that one pass over the columns takes."""

MOST_ROWS = 8
MOST_VECTORS = 4
"""Vectors of columns that a kernel takes at a time, where there are registers for their sums."""


AHEAD = 8
"""How many rows of the right operand before its turn one is prefetched."""
MOST_ASKED = 1 << 10
"""Bytes of a row up to which it is prefetched: the hardware follows what is longer."""


@dataclass(frozen=True)
class Stream:
    """What a product in place is specialised for.

    Args:
        instruction: a vector instruction of `instructions`.
        sizes: rows, columns and depth, None where a size is known only at run time.
        a_stride: elements between two rows of the left operand.
        c_stride: elements between two rows of the sums.
        memory: type of the right operand's elements in memory.
        operand: vector of operands.
        total: vector of sums.
        widens: the narrow float that the right operand's elements are in memory, None where they are multiplied as
            they are.
    """

    instruction: str
    sizes: tuple[int | None, int | None, int | None]
    a_stride: int
    c_stride: int
    memory: LLVMType
    operand: LLVMType
    total: LLVMType
    widens: DType | None = None

    @property
    def name(self) -> str:
        """A symbol that tells functions apart."""
        sizes = "x".join("n" if size is None else str(size) for size in self.sizes)
        kind = self.instruction if self.widens is None else f"{self.instruction}_{self.widens}"
        return f"tessera_stream_{kind}_{self.total.mangled}_{sizes}_{self.a_stride}_{self.c_stride}"

    def asks(self, length: int) -> bool:
        """Return whether rows of so many elements are prefetched."""
        return length * self.align <= MOST_ASKED

    @property
    def align(self) -> int:
        """The bytes of one of the right operand's elements in memory."""
        if self.widens is not None:
            return self.widens.bytes
        return max(BYTES[self.operand.element] // GROUPS[self.instruction], 1)


def ask_for_row(loops: Loops, stream: Stream, row: str, count: str, length: int) -> None:
    """Prefetch a row of the right operand, or its last one.

    Args:
        loops: what is written.
        stream: what it is for.
        row: the row's number.
        count: how many rows there are, as text.
        length: how many elements a row has.
    """
    last = str(int(count) - 1) if count.isdigit() else loops.fn.assign(f"sub nsw i64 {count}, 1")
    place = loops.ops.intrinsic("smin", I64, row, last)
    start = loops.moved("%b", stream.memory, loops.fn.assign(f"mul nsw i64 {place}, %pitch"))
    for offset in range(0, length * stream.align, LINE_BYTES):
        prefetch(loops.module, loops.fn, loops.ops.gep("i8", start, str(offset)), "read", 3)


class StreamLoops(Loops):
    """Writes the function `void (a, b, c, rows, columns, depth, pitch)` of one product.

    Args:
        module: where the kernels go.
        target: the CPU.
        stream: what it is for.
    """

    def __init__(self, module: ModuleText, target: TargetRecord, stream: Stream):
        super().__init__(
            module,
            f"define internal void @{stream.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth, i64 %pitch)",
        )
        self.target, self.stream = target, stream
        self.group = GROUPS[stream.instruction]

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, depth = self.stream.sizes
        terms = sized(depth, "%depth")
        full, rest = self.divided(terms, STEPS * self.group)
        single, last = self.divided(rest, self.group)
        extents = sized(rows, "%rows"), sized(columns, "%columns")
        self.repeat(full, lambda i: self._pass(self.times(i, STEPS), STEPS, extents, "0"))
        first = self.times(full.text, STEPS)
        self.repeat(single, lambda i: self._pass(self.sum(first, i), 1, extents, "0"))
        at = self.sum(first, single.text)
        self.if_any(last, lambda: self._pass(at, 1, extents, last.text))
        self.fn.line("ret void")
        return self.fn.render()

    def _pass(self, k: str, steps: int, extents: tuple[Size, Size], left: str) -> None:
        """Add the products of `steps` elements of the depth from `k` on, of the last of which only `left` count."""
        rows, columns = extents
        stream = self.stream
        a = self.moved("%a", stream.operand, k)
        offset = self.fn.assign(f"mul nsw i64 {self.times(k, self.group)}, %pitch")
        b = self.moved("%b", stream.memory, offset)
        if steps == STEPS and stream.asks(stream.c_stride):
            self._ask(k)
        first, remaining = "0", rows
        limit = min(MOST_ROWS, rows.known or MOST_ROWS)
        sizes = [limit, *([rows.known % limit] if rows.known is not None else halves(limit)[1:])]
        for size in sizes:
            if not size:
                continue
            count, rest = self.divided(remaining, size)
            start = first

            def block(i: str, size: int = size, start: str = start) -> None:
                row = self.sum(start, self.times(i, size))
                symbol = self._kernel(size, steps, columns, left != "0")
                left_rows = self.moved(a, stream.operand, self.times(row, stream.a_stride))
                sums = self.moved("%c", stream.total, self.times(row, stream.c_stride))
                self.fn.line(
                    f"call void @{symbol}(ptr {left_rows}, ptr {b}, ptr {sums}, i64 {columns.text}, i64 %pitch, "
                    f"i64 {left})"
                )

            self.repeat(count, block)
            first, remaining = self.sum(first, self.times(count.text, size)), rest

    def _ask(self, k: str) -> None:
        """Prefetch the rows of the next pass over the columns."""
        stream, depth = self.stream, sized(self.stream.sizes[2], "%depth").text
        first = self.times(self.sum(k, str(STEPS)), self.group)
        count = sized(STEPS * self.group, "")
        self.repeat(count, lambda i: ask_for_row(self, stream, self.sum(first, i), depth, stream.c_stride))

    def _kernel(self, rows: int, steps: int, columns: Size, partial: bool) -> str:
        known = "n" if columns.known is None else str(columns.known)
        name = f"{self.stream.name}_{rows}x{steps}x{known}{'_p' * partial}"
        if not self.module.has(name):
            text = _Kernel(self.module, self.target, self.stream, name, (rows, steps, columns.known), partial)
            self.module.define(name, text.render())
        return name


class RightRows(Loops):
    """Writes a function `void (a, b, c, columns, pitch, left)` that takes vectors of the right operand's rows.

    Args:
        module: where it goes.
        stream: what it is for.
        name: its symbol.
    """

    def __init__(self, module: ModuleText, stream: Stream, name: str):
        super().__init__(
            module,
            f"define internal void @{name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %columns, i64 %pitch, "
            f"i64 %left)",
        )
        self.stream, self.group = stream, GROUPS[stream.instruction]
        self.lanes = stream.total.width

    def start(self, base: str, row: int) -> str:
        """Return where a row begins."""
        offset = self.fn.assign(f"mul nsw i64 %pitch, {row}") if row else "0"
        return self.moved(base, self.stream.memory, offset)

    def vector(self, starts: list[str], column: str, mask: str | None, left: str | None = None) -> str:
        """Return a vector of the right operand: one row, or several with their members grouped.

        Args:
            starts: where the rows begin.
            column: the first column.
            mask: which columns there are, None for all.
            left: how many of the rows there are; None for all.
        """
        ops, stream = self.ops, self.stream
        narrow = LLVMType(stream.memory.element, self.lanes)
        rows = [
            self._load(self.moved(start, stream.memory, column), mask, narrow)
            if left is None or not member
            else self._optional(start, (left, member), column, mask, narrow)
            for member, start in enumerate(starts)
        ]
        if self.group == 1:
            return rows[0]
        total = ""
        for member, row in enumerate(rows):
            part = ops.convert("zext", narrow, row, stream.operand)
            if member:
                bits = ops.integer(stream.operand, member * 32 // self.group)
                part = ops.binary("or", stream.operand, total, ops.binary("shl", stream.operand, part, bits))
            total = part
        return total

    def _optional(self, start: str, counts: tuple[str, int], column: str, mask: str | None, type_: LLVMType) -> str:
        """Return a row that may lie past the depth's end: zeros there, and no access."""
        inside = self.ops.compare("sgt", I64, counts[0], str(counts[1]))
        found: list[tuple[str, str]] = []

        def read() -> None:
            found.append((self._load(self.moved(start, self.stream.memory, column), mask, type_), self.fn.block))

        def none() -> None:
            found.append(("zeroinitializer", self.fn.block))

        self.choice(inside, read, none)
        return self.fn.phi(str(type_), found)

    def _load(self, place: str, mask: str | None, type_: LLVMType) -> str:
        align = self.stream.align
        if mask is None:
            return self.fn.assign(f"load {type_}, ptr {place}, align {align}")
        return masked_load(self.module, self.fn, type_, place, align, mask)

    def mask(self, count: str) -> str:
        """Return the mask of the first `count` lanes."""
        return first_lanes(self.fn, self.ops, self.lanes, count)


class _Kernel(RightRows):
    """Writes the function that goes along the columns once."""

    def __init__(
        self,
        module: ModuleText,
        target: TargetRecord,
        stream: Stream,
        name: str,
        sizes: tuple[int, int, int | None],
        partial: bool,
    ):
        super().__init__(module, stream, name)
        self.target, self.partial = target, partial
        self.rows, self.steps, self.columns = sizes
        room = register_count(target) - 1
        self.vectors = max((v for v in halves(MOST_VECTORS) if (self.rows + 1) * v <= room), default=1)
        self.members: list[list[str]] = []

    def render(self) -> str:
        """Return the function's text."""
        starts = [self.start("%b", row) for row in range(self.steps * self.group)]
        self.members = [starts[at : at + self.group] for at in range(0, len(starts), self.group)]
        columns = sized(self.columns, "%columns")
        wide, rest = self.divided(columns, self.vectors * self.lanes)
        self.repeat(wide, lambda i: self._block(self.times(i, self.vectors * self.lanes), self.vectors, None))
        at = self.times(wide.text, self.vectors * self.lanes)
        single, tail = self.divided(rest, self.lanes)
        self.repeat(single, lambda i: self._block(self.sum(at, self.times(i, self.lanes)), 1, None))
        last = self.sum(at, self.times(single.text, self.lanes))
        self.if_any(tail, lambda: self._block(last, 1, tail.text))
        self.fn.line("ret void")
        return self.fn.render()

    def vector(self, starts: list[str], column: str, mask: str | None, left: str | None = None) -> str:
        """Return a vector of the right operand, as wide as it is multiplied."""
        value, widens = super().vector(starts, column, mask, left), self.stream.widens
        return value if widens is None else widened(self.ops, self.target, value, widens, self.lanes)

    def _block(self, column: str, vectors: int, tail: str | None) -> None:
        ops, stream = self.ops, self.stream
        mask = None if tail is None else self.mask(tail)
        align = BYTES[stream.total.element]
        places = [
            self.moved("%c", stream.total, self.sum(column, str(row * stream.c_stride + v * self.lanes)))
            for row in range(self.rows)
            for v in range(vectors)
        ]
        # Rows of the sums are padded to whole vectors.
        totals = [self.fn.assign(f"load {stream.total}, ptr {place}, align {align}") for place in places]
        shifts = ["zeroinitializer"] * vectors
        types = (stream.operand, stream.total)

        def add(a: str, b: str, c: str) -> str:
            return multiply_add(ops, self.target, stream.instruction, types, a, b, c)

        for step in range(self.steps):
            left = "%left" if self.partial else None
            right = [
                self.vector(self.members[step], self.sum(column, str(v * self.lanes)), mask, left)
                for v in range(vectors)
            ]
            if stream.instruction == "dot_u8_i8":
                flip = ops.integer(stream.operand, FLIP)
                shifts = [add(flip, b, c) for b, c in zip(right, shifts, strict=True)]
            for row in range(self.rows):
                place = self.moved("%a", stream.operand, str(row * stream.a_stride + step))
                scalar = self.fn.assign(f"load {stream.operand.element}, ptr {place}, align {align}")
                spread = ops.splat(stream.operand, scalar)
                for v, value in enumerate(right):
                    totals[row * vectors + v] = add(spread, value, totals[row * vectors + v])
        for number, (place, total) in enumerate(zip(places, totals, strict=True)):
            if stream.instruction == "dot_u8_i8":
                total = ops.binary("sub", stream.total, total, shifts[number % vectors])
            self.fn.line(f"store {stream.total} {total}, ptr {place}, align {align}")
