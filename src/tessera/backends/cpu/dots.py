"""Products with few rows whose right operand is contiguous along the depth: inner products, read in place.

A kernel keeps a block of vectors of partial sums in registers while it goes along rows of both operands.
"""

from __future__ import annotations

from tessera.backends.cpu.emitter import widened
from tessera.backends.cpu.instructions import multiply_add
from tessera.backends.cpu.microkernel import BYTES, FLIP, register_count
from tessera.backends.cpu.streams import AHEAD, Stream, ask_for_row
from tessera.backends.cpu.texts import Loops, Size, first_lanes, halves, masked_load, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText, phi_text
from tessera.backends.llvm.types import LLVMType
from tessera.target.products import GROUPS
from tessera.target.records import TargetRecord

SIDE = 4
"""Rows, and columns, of a block of sums, where there are registers for so many."""

IN_LANE = 4
"""Sums in 128 bits, within which vectors are shuffled fastest."""


def dot_name(stream: Stream) -> str:
    """Return the symbol of a product's function."""
    return stream.name.replace("tessera_stream", "tessera_dots")


class DotLoops(Loops):
    """Writes the function `void (a, b, c, rows, columns, depth, pitch)` of one product.

    Args:
        module: where the kernels go.
        target: the CPU.
        stream: what it is for.
    """

    def __init__(self, module: ModuleText, target: TargetRecord, stream: Stream):
        super().__init__(
            module,
            f"define internal void @{dot_name(stream)}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth, i64 %pitch)",
        )
        self.target, self.stream = target, stream
        self.group = GROUPS[stream.instruction]

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, _ = self.stream.sizes
        side = self._side(min(rows or SIDE, SIDE))
        full, rest = self.divided(sized(columns, "%columns"), side)
        self.repeat(full, lambda i: self._rows(self.times(i, side), side, sized(rows, "%rows")))
        first = self.times(full.text, side)
        self.repeat(rest, lambda i: self._rows(self.sum(first, i), 1, sized(rows, "%rows")))
        self.fn.line("ret void")
        return self.fn.render()

    def _side(self, rows: int) -> int:
        """Return how many columns a block of so many rows has: sums, vectors of columns and one of a row fit."""
        room = register_count(self.target) - 1
        return max(side for side in halves(SIDE) if (rows + 1) * side <= room)

    def _rows(self, column: str, columns: int, rows: Size) -> None:
        stream = self.stream
        offset = self.fn.assign(f"mul nsw i64 {column}, %pitch")
        b = self.moved("%b", stream.memory, offset)
        if stream.asks(stream.a_stride * self.group):
            size = sized(stream.sizes[1], "%columns").text
            for number in range(columns):
                ask_for_row(self, stream, self.sum(column, str(AHEAD + number)), size, stream.a_stride * self.group)
        first, left = "0", rows
        sizes = [SIDE, left.known % SIDE] if left.known is not None else halves(SIDE)
        for size in sizes:
            if not size:
                continue
            count, rest = self.divided(left, size)

            def block(i: str, size: int = size, start: str = first) -> None:
                row = self.sum(start, self.times(i, size))
                a = self.moved("%a", stream.operand, self.times(row, stream.a_stride))
                c = self.moved("%c", stream.total, self.sum(self.times(row, stream.c_stride), column))
                symbol = self._kernel(size, columns)
                self.fn.line(
                    f"call void @{symbol}(ptr {a}, ptr {b}, ptr {c}, i64 {sized(stream.sizes[2], '%depth').text}, "
                    f"i64 %pitch)"
                )

            self.repeat(count, block)
            first, left = self.sum(first, self.times(count.text, size)), rest

    def _kernel(self, rows: int, columns: int) -> str:
        name = f"{dot_name(self.stream)}_{rows}x{columns}"
        if not self.module.has(name):
            self.module.define(name, _Kernel(self.module, self.target, self.stream, name, rows, columns).render())
        return name


class _Kernel(Loops):
    """Writes the function that goes along the depth once."""

    def __init__(self, module: ModuleText, target: TargetRecord, stream: Stream, name: str, rows: int, columns: int):
        super().__init__(
            module,
            f"define internal void @{name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %depth, i64 %pitch)",
        )
        self.target, self.stream, self.rows, self.columns = target, stream, rows, columns
        self.group, self.lanes = GROUPS[stream.instruction], stream.total.width
        self.shifted = stream.instruction == "dot_u8_i8"
        self.starts: list[str] = []

    def render(self) -> str:
        """Return the function's text."""
        stream, fn, ops = self.stream, self.fn, self.ops
        for column in range(self.columns):
            offset = fn.assign(f"mul nsw i64 %pitch, {column}") if column else "0"
            self.starts.append(self.moved("%b", stream.memory, offset))
        step = self.lanes * self.group
        full, rest = self.divided(sized(stream.sizes[2], "%depth"), step)
        count = self.rows * self.columns + self.columns * self.shifted
        totals = self._loop(full, ["zeroinitializer"] * count)
        before, body, join = fn.block, fn.label("rest"), fn.label("sums")
        fn.branch_if(ops.compare("sgt", I64, rest.text, "0"), body, join)
        fn.start(body)
        last = self._add(self.times(full.text, self.lanes), totals, rest.text)
        fn.branch(join)
        fn.start(join)
        totals = [fn.phi(str(stream.total), [(a, before), (b, body)]) for a, b in zip(totals, last, strict=True)]
        self._finish(totals)
        fn.line("ret void")
        return fn.render()

    def _loop(self, count: Size, totals: list[str]) -> list[str]:
        fn, type_ = self.fn, str(self.stream.total)
        before, head, exit_ = fn.block, fn.label("loop"), fn.label("done")
        fn.branch_if(self.ops.compare("sgt", I64, count.text, "0"), head, exit_)
        fn.start(head)
        k, names = fn.fresh("k"), [fn.fresh("acc") for _ in totals]
        places = [fn.reserve() for _ in range(len(totals) + 1)]
        sums = self._add(self.times(k, self.lanes), names, None)
        following = fn.assign(f"add nuw nsw i64 {k}, 1")
        fn.fill(places[0], f"{k} = {phi_text('i64', [('0', before), (following, head)])}")
        for place, name, start, total in zip(places[1:], names, totals, sums, strict=True):
            fn.fill(place, f"{name} = {phi_text(type_, [(start, before), (total, head)])}")
        again = self.ops.compare("slt", I64, following, count.text)
        fn.branch_if(again, head, exit_, f", !llvm.loop {self.module.loop()}")
        fn.start(exit_)
        return [fn.phi(type_, [(a, before), (b, head)]) for a, b in zip(totals, sums, strict=True)]

    def _add(self, k: str, totals: list[str], left: str | None) -> list[str]:
        """Append one step at element `k` of rows of a, of which only `left` terms count."""
        stream, ops = self.stream, self.ops
        types = (stream.operand, stream.total)

        def add(a: str, b: str, c: str) -> str:
            return multiply_add(ops, self.target, stream.instruction, types, a, b, c)

        right = [
            self._right(self.moved(start, stream.memory, self.times(k, self.group)), left) for start in self.starts
        ]
        found: list[str] = []
        for row in range(self.rows):
            place = self.moved("%a", stream.operand, self.sum(k, str(row * stream.a_stride)))
            value = self._load(place, self._terms(stream.operand), stream.operand, left)
            found += [add(value, b, totals[row * self.columns + i]) for i, b in enumerate(right)]
        if self.shifted:
            flip = ops.integer(stream.operand, FLIP)
            found += [add(flip, b, totals[self.rows * self.columns + i]) for i, b in enumerate(right)]
        return found

    def _terms(self, operand: LLVMType) -> LLVMType:
        """Return a vector of operands as one of the terms that they hold."""
        return operand if self.group == 1 else LLVMType(self.stream.memory.element, self.lanes * self.group)

    def _right(self, place: str, left: str | None) -> str:
        """Return a vector of the right operand."""
        stream, widens = self.stream, self.stream.widens
        if widens is None:
            return self._load(place, self._terms(stream.operand), stream.operand, left)
        narrow = LLVMType(stream.memory.element, self.lanes)
        return widened(self.ops, self.target, self._load(place, narrow, narrow, left), widens, self.lanes)

    def _load(self, place: str, terms: LLVMType, operand: LLVMType, left: str | None) -> str:
        """Return a vector of operands; with `left`, zeros after so many terms."""
        align = max(BYTES[operand.element] // self.group, 1)
        if left is None:
            return self.fn.assign(f"load {operand}, ptr {place}, align {align}")
        mask = first_lanes(self.fn, self.ops, terms.width, left)
        value = masked_load(self.module, self.fn, terms, place, align, mask)
        return value if terms == operand else self.ops.convert("bitcast", terms, value, operand)

    def _finish(self, totals: list[str]) -> None:
        """Add the lanes of each vector of sums to its element of c."""
        if self.columns > 1 and self.lanes >= IN_LANE and BYTES[self.stream.total.element] == 4 and not self.shifted:
            self._finish_together(totals)
            return
        ops, element = self.ops, LLVMType(self.stream.total.element)
        add = "fadd" if element.is_float else "add"
        shifts = [self._lanes(value, add) for value in totals[self.rows * self.columns :]]
        for row in range(self.rows):
            for column in range(self.columns):
                value = self._lanes(totals[row * self.columns + column], add)
                if self.shifted:
                    value = ops.binary("sub", element, value, shifts[column])
                place = self.moved("%c", element, str(row * self.stream.c_stride + column))
                old = self.fn.assign(f"load {element}, ptr {place}, align {BYTES[element.element]}")
                total = ops.binary(add, element, old, value)
                self.fn.line(f"store {element} {total}, ptr {place}, align {BYTES[element.element]}")

    def _finish_together(self, totals: list[str]) -> None:
        """Add the lanes of several vectors at a time, and their sums to neighbours in c."""
        columns, ops = self.columns, self.ops
        add, element = ("fadd" if self.stream.total.is_float else "add"), self.stream.total.element
        type_, bytes_ = LLVMType(element, columns), BYTES[element]
        for first in range(0, len(totals), IN_LANE):
            some = totals[first : first + IN_LANE]
            found = self._sums(some, add)
            for at in range(0, len(some), columns):
                row = (first + at) // columns
                value = self._picked(found, LLVMType(element, IN_LANE), range(at, at + columns))
                place = self.moved("%c", self.stream.total, str(row * self.stream.c_stride))
                old = self.fn.assign(f"load {type_}, ptr {place}, align {bytes_}")
                self.fn.line(f"store {type_} {ops.binary(add, type_, old, value)}, ptr {place}, align {bytes_}")

    def _sums(self, values: list[str], add: str) -> str:
        """Return the sums of the lanes of two or four vectors, in as many lanes of 128 bits."""
        type_ = self.stream.total
        for _ in range(2):
            pairs = list(zip(values[::2], values[1::2], strict=True)) if len(values) > 1 else [(values[0], values[0])]
            values = [self._neighbours(a, b, add) for a, b in pairs]
        (value,) = values
        while type_.width > IN_LANE:
            half = LLVMType(type_.element, type_.width // 2)
            parts = [self._picked(value, type_, range(at, at + half.width)) for at in (0, half.width)]
            value, type_ = self.ops.binary(add, half, *parts), half
        return value

    def _neighbours(self, a: str, b: str, add: str) -> str:
        """Return the sums of neighbours of two vectors, those of the first before those of the second in 128 bits."""
        type_ = self.stream.total
        parts: list[str] = []
        for odd in (0, 1):
            lanes = [
                at + odd + step
                for at in range(0, type_.width, IN_LANE)
                for step in (0, 2, type_.width, type_.width + 2)
            ]
            mask = f"<{type_.width} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
            parts.append(self.fn.assign(f"shufflevector {type_} {a}, {type_} {b}, {mask}"))
        return self.ops.binary(add, type_, *parts)

    def _picked(self, value: str, type_: LLVMType, lanes: range) -> str:
        """Return some lanes of a vector as one."""
        if len(lanes) == type_.width:
            return value
        mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
        return self.fn.assign(f"shufflevector {type_} {value}, {type_} poison, {mask}")

    def _lanes(self, value: str, add: str) -> str:
        type_ = self.stream.total
        while type_.width > 1:
            half = LLVMType(type_.element, type_.width // 2)
            parts: list[str] = []
            for first in (0, half.width):
                lanes = ", ".join(f"i32 {first + lane}" for lane in range(half.width))
                mask = f"<{half.width} x i32> <{lanes}>"
                parts.append(self.fn.assign(f"shufflevector {type_} {value}, {type_} poison, {mask}"))
            if half.width == 1:
                one = f"<1 x {half}>"
                parts = [self.fn.assign(f"extractelement {one} {part}, i64 0") for part in parts]
            value, type_ = self.ops.binary(add, half, parts[0], parts[1]), half
        return value
