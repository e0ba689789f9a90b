"""Products by the matrix unit: loops over blocks of rows and panels around the kernels of tiles.

Rows that are read in place are copied, 32 at a time, to tiles that stay in the first-level cache while the panels go
by: rows far apart would crowd into few sets of it. Tiles cover everything. Where rows end inside a tile, registers of
fewer rows take the rest of them. Where the depth ends inside a step, both operands are padded with zeros: what follows
a row in memory is not a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tessera.backends.cpu import amx
from tessera.backends.cpu.ahead import Ahead, ask_function
from tessera.backends.cpu.amx import TILE, TILE_BYTES, WIDE
from tessera.backends.cpu.texts import Loops, Size, prefetch, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType
from tessera.target.products import GROUPS

if TYPE_CHECKING:
    from tessera.backends.cpu.products import Product

_VECTOR = LLVMType("i32", TILE)
STEPS = 32
"""Tiles of the depth that are multiplied before the next block of rows: with more of them sums are loaded and stored
less often, with fewer the copies of rows stay in the first-level cache."""

_TILE_SIZE = TILE * TILE_BYTES


class TileLoops(Loops):
    """Writes the function of one product.

    Args:
        module: where the kernels go.
        product: what it is for.
    """

    def __init__(self, module: ModuleText, product: Product):
        super().__init__(module, product.signature)
        self.product = product
        self.width = product.panel[1]
        assert product.c_stride is not None
        self.group, self.c_stride = GROUPS[product.instruction], product.c_stride
        self.end = Size("0", 0)
        self.strip = self.asked = ""
        if product.a_stride is None:
            size = (STEPS + 1) * WIDE * _TILE_SIZE
            self.strip = self.fn.entry_assign(f"alloca [{size} x i8], align {TILE_BYTES}")

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, depth = (
            sized(size, name) for size, name in zip(self.product.sizes, ("%rows", "%columns", "%depth"), strict=True)
        )
        if self.product.ahead:
            self.asked = self.fn.entry_assign("alloca i64, align 8")
            self.fn.line(f"store i64 0, ptr {self.asked}, align 8")
        steps, self.end = self.divided(depth, TILE * self.group)
        self.if_any(self.end, lambda: self._pad(rows, columns, steps))
        if self.product.fresh:
            self.choice("%fresh", lambda: self._begin(rows, columns, depth), lambda: None)
        full, rest = self.divided(steps, STEPS)
        ends = self._ends()
        last = self._plus(rest, ends)

        def pieces(body: Callable[[str, Size, Size], None]) -> None:
            self.repeat(full, lambda i: body(self.times(i, STEPS), sized(STEPS, ""), sized(0, "")))
            self.if_any(last, lambda: body(self.times(full.text, STEPS), rest, ends))

        pairs, left = self.divided(rows, WIDE * TILE)
        single, low = self.divided(left, TILE)
        first = self.times(pairs.text, WIDE * TILE)

        def whole(step: str, count: Size, ends: Size) -> None:
            piece = columns, step, count, ends
            self.repeat(pairs, lambda i: self._rows(self.times(i, WIDE * TILE), None, *piece))
            self.if_any(single, lambda: self._rows(first, sized(TILE, ""), *piece))

        amx.configure(self)
        pieces(whole)

        def below() -> None:
            amx.configure(self, low.text)
            row = self.sum(first, self.times(single.text, TILE))
            pieces(lambda step, count, ends: self._rows(row, low, columns, step, count, ends))

        self.if_any(low, below)
        amx.release(self)
        self.fn.line("ret void")
        return self.fn.render()

    def _plus(self, a: Size, b: Size) -> Size:
        if a.known is not None and b.known is not None:
            return sized(a.known + b.known, "")
        return Size(self.sum(a.text, b.text), None)

    def _ends(self) -> Size:
        """Return how many steps at the end of the depth are incomplete."""
        if self.end.known is not None:
            return sized(min(self.end.known, 1), "")
        some = self.ops.compare("ne", I64, self.end.text, "0")
        return Size(self.fn.assign(f"zext i1 {some} to i64"), None)

    def _fresh(self, step: str) -> str:
        """Return whether sums begin with the piece of the depth from a step on."""
        if not self.product.fresh or step == "0":
            return "%fresh" if self.product.fresh else "false"
        first = self.ops.compare("eq", I64, step, "0")
        return self.fn.assign(f"and i1 %fresh, {first}")

    def _begin(self, rows: Size, columns: Size, depth: Size) -> None:
        """Set the sums to zero that no tile covers, up to `%height` rows and `%wide` columns."""
        covered = self._covered(columns)
        vectors = self.fn.assign(f"sdiv i64 {self.fn.assign(f'add nsw i64 %wide, {TILE - 1}')}, {TILE}")

        def fill(row: str, first: Size) -> None:
            start = self.ops.gep("i32", "%c", self.times(row, self.c_stride))
            start = self.ops.gep("i32", start, self.times(first.text, TILE))

            def vector(number: str) -> None:
                place = self.ops.gep("i32", start, self.times(number, TILE))
                self.fn.line(f"store {_VECTOR} zeroinitializer, ptr {place}, align 4")

            self.repeat(Size(self.fn.assign(f"sub nsw i64 {vectors}, {first.text}"), None), vector)

        some = self.ops.compare("sgt", I64, depth.text, "0")
        high = Size(self.ops.select(LLVMType("i64"), some, rows.text, "0"), None)
        self.repeat(high, lambda row: fill(row, covered))
        below = Size(self.fn.assign(f"sub nsw i64 %height, {high.text}"), None)
        self.repeat(below, lambda i: fill(self.sum(high.text, i), sized(0, "")))

    def _covered(self, columns: Size) -> Size:
        """Return the columns of tiles that hold some columns."""
        return self.divided(self._plus(columns, sized(TILE - 1, "")), TILE)[0]

    def _less(self, total: int, size: Size) -> Size:
        if size.known is not None:
            return sized(total - size.known, "")
        return Size(self.fn.assign(f"sub nsw i64 {total}, {size.text}"), None)

    # Padding

    def _pad(self, rows: Size, columns: Size, steps: Size) -> None:
        """Pad the last step of packed operands with zeros."""
        if self.product.a_stride is not None:

            def row(number: str) -> None:
                place = self.ops.gep("i8", self._row(number), self.times(steps.text, TILE_BYTES))
                amx.copy_end(self, place, place, self._end_bytes())

            self.repeat(rows, row)
        raised = self._plus(columns, sized(self.width - 1, ""))
        self.repeat(self.divided(raised, self.width)[0], lambda number: self._pad_panel(number, steps))

    def _end_bytes(self) -> str:
        return self.times(self.end.text, 4 // self.group)

    def _pad_panel(self, number: str, steps: Size) -> None:
        filled = self.divided(self._plus(self.end, sized(self.group - 1, "")), self.group)[0]
        empty = self._less(TILE, filled)
        first = self.sum(self.times(steps.text, TILE), filled.text)
        panel = self._panel(number)

        def row(i: str) -> None:
            for column in range(0, self.width, TILE):
                place = self.sum(self.times(self.sum(first, i), self.width), str(column))
                target = self.ops.gep("i32", panel, place)
                self.fn.line(f"store {_VECTOR} zeroinitializer, ptr {target}, align 4")

        self.repeat(empty, row)

    # Blocks

    def _rows(self, row: str, some: Size | None, columns: Size, step: str, count: Size, ends: Size) -> None:
        """Multiply one or two rows of tiles with all panels; `some` are the rows of one that may hold fewer."""
        height = WIDE if some is None else 1
        a = self.ops.gep("i8", self._row(row), self.times(step, TILE_BYTES))
        left = (0, 0, 0)
        if self.product.a_stride is None:
            for tile in range(height):
                self._copy(a, tile, some or sized(TILE, ""), count, ends)
            a, left = self.strip, (TILE_BYTES, _TILE_SIZE, WIDE * _TILE_SIZE)
        else:
            pitch = 4 * self.product.a_stride
            left = (pitch, TILE * pitch, TILE_BYTES)
        steps, fresh = self._plus(count, ends).text, self._fresh(step)
        offset = self.times(step, TILE * self.width)
        sums = self.ops.gep("i32", "%c", self.times(row, self.c_stride))
        full, rest = self.divided(columns, self.width)

        def panel(number: str, tiles: int) -> None:
            product = self.product
            kernel = amx.TileBlock(product.instruction, height, tiles, left, 4 * self.width, 4 * self.c_stride)
            symbol = amx.tile_kernel(self.module, kernel)
            if self.asked:
                self._ask()
            b = self.ops.gep("i32", self._panel(number), offset)
            c = self.ops.gep("i32", sums, self.times(number, self.width))
            self.fn.line(f"call void @{symbol}(ptr {a}, ptr {b}, ptr {c}, i64 {steps}, i1 {fresh})")

        self.repeat(full, lambda number: panel(number, WIDE))

        def last() -> None:
            if rest.known is not None:
                panel(full.text, -(-rest.known // TILE))
                return
            narrow = self.ops.compare("sle", I64, rest.text, str(TILE))
            self.choice(narrow, lambda: panel(full.text, 1), lambda: panel(full.text, WIDE))

        self.if_any(rest, last)

    def _copy(self, a: str, tile: int, rows: Size, count: Size, ends: Size) -> None:
        """Copy a row of tiles, and prefetch the one that is copied two later."""

        def row(number: str) -> None:
            start = self.fn.assign(f"mul nsw i64 {self.sum(number, str(tile * TILE))}, %pitch")
            source = self.ops.gep("i8", a, start)
            ahead = self.ops.gep("i8", source, self.fn.assign(f"mul nsw i64 %pitch, {WIDE * TILE}"))
            target = self.ops.gep("i8", self.strip, str(tile * _TILE_SIZE))
            target = self.ops.gep("i8", target, self.times(number, TILE_BYTES))

            def step(i: str) -> None:
                offset = self.times(i, TILE_BYTES)
                value = self.fn.assign(f"load {_VECTOR}, ptr {self.ops.gep('i8', source, offset)}, align 1")
                asked = self.ops.gep("i8", ahead, offset)
                prefetch(self.module, self.fn, asked, "read", 2)
                self.fn.line(f"store {_VECTOR} {value}, ptr {self._step_of(target, i)}, align {TILE_BYTES}")

            self.repeat(count, step)

            def end() -> None:
                place = self.ops.gep("i8", source, self.times(count.text, TILE_BYTES))
                amx.copy_end(self, place, self._step_of(target, count.text), self._end_bytes())

            self.if_any(ends, end)

        self.repeat(rows, row)

    def _ask(self) -> None:
        """Prefetch a part of the rows that are packed next: for all of a step by its last block."""
        product, (rows, columns) = self.product, self.product.room
        pieces = max(product.panel[0] // (STEPS * TILE), 1)
        calls = max(rows // (WIDE * TILE), 1) * -(-columns // self.width) * pieces
        symbol = ask_function(self.module, Ahead.of(product.panel[0] * self.group, product.ahead, calls))
        self.fn.line(f"call void @{symbol}(ptr {self.asked}, ptr %ahead, i64 %distance, i64 %wanted)")

    def _step_of(self, tile: str, step: str) -> str:
        return self.ops.gep("i8", tile, self.times(step, WIDE * _TILE_SIZE))

    def _panel(self, number: str) -> str:
        return self.ops.gep("i32", "%b", self.times(number, self.product.panel[0] * self.width))

    def _row(self, row: str) -> str:
        """Return where a row of the left operand is."""
        if row == "0":
            return "%a"
        if self.product.a_stride is not None:
            return self.ops.gep("i32", "%a", self.times(row, self.product.a_stride))
        return self.ops.gep("i8", "%a", self.fn.assign(f"mul nsw i64 {row}, %pitch"))
