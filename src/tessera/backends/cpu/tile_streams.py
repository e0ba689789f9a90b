"""Products with few rows by the matrix unit: the right operand is read once, where it lies.

A pass goes along one tile of its depth: 32 columns at a time are grouped into tiles, which stay in the first cache, and
are multiplied with registers that hold as many rows as there are. Longer passes would load and store sums less often,
but a core follows few streams of addresses: even so lines are prefetched.
"""

from __future__ import annotations

from tessera.backends.cpu import amx
from tessera.backends.cpu.amx import TILE, TILE_BYTES, WIDE
from tessera.backends.cpu.streams import RightRows, Stream
from tessera.backends.cpu.texts import Loops, Size, prefetch, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType
from tessera.target.products import GROUPS

AHEAD = 256
"""Elements between what is multiplied and what is prefetched."""

_UNROLL = 4


class TileStreamLoops(Loops):
    """Writes the function `void (a, b, c, rows, columns, depth, pitch)` of one product of at most 16 rows.

    Args:
        module: where the kernels go.
        stream: what it is for.
    """

    def __init__(self, module: ModuleText, stream: Stream):
        super().__init__(
            module,
            f"define internal void @{stream.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth, i64 %pitch)",
        )
        self.stream = stream

    def render(self) -> str:
        """Return the function's text."""
        group = GROUPS[self.stream.instruction]
        rows, _, depth = self.stream.sizes
        terms = TILE * group
        full, end = self.divided(sized(depth, "%depth"), terms)
        count = sized(rows, "%rows")
        self.if_any(count, lambda: self._passes(count, full, end))
        self.fn.line("ret void")
        return self.fn.render()

    def _passes(self, rows: Size, full: Size, end: Size) -> None:
        amx.configure(self, rows.text)
        whole = _Pass(self.module, self.stream, partial=False)
        self.repeat(full, lambda i: self._call(self.ops.gep("i32", "%a", self.times(i, TILE)), i, whole, "0"))
        self.if_any(end, lambda: self._end(rows, full.text, end))
        amx.release(self)

    def _end(self, rows: Size, step: str, end: Size) -> None:
        """Multiply the last terms, with rows of the left operand that are padded with zeros."""
        copy = self.fn.entry_assign(f"alloca [{TILE * TILE_BYTES} x i8], align {TILE_BYTES}")
        a = self.ops.gep("i32", "%a", self.times(step, TILE))
        count = self.times(end.text, 4 // GROUPS[self.stream.instruction])

        def row(i: str) -> None:
            source = self.ops.gep("i32", a, self.times(i, self.stream.a_stride))
            amx.copy_end(self, source, self.ops.gep("i8", copy, self.times(i, TILE_BYTES)), count)

        self.repeat(rows, row)
        self._call(copy, step, _Pass(self.module, self.stream, partial=True), end.text)

    def _call(self, a: str, step: str, kernel: _Pass, left: str) -> None:
        if not self.module.has(kernel.name):
            self.module.define(kernel.name, kernel.render())
        row = self.times(step, TILE * GROUPS[self.stream.instruction])
        b = self.moved("%b", self.stream.memory, self.fn.assign(f"mul nsw i64 {row}, %pitch"))
        given = f"ptr {a}, ptr {b}, ptr %c, i64 %columns, i64 %pitch, i64 {left}"
        self.fn.line(f"call void @{kernel.name}({given})")


class _Pass(RightRows):
    """Writes the function that goes along the columns once.

    Args:
        module: where it goes.
        stream: what it is for.
        partial: whether only the first `left` terms of the tiles count.
    """

    def __init__(self, module: ModuleText, stream: Stream, partial: bool):
        self.name = f"{stream.name}_{'end' if partial else 'pass'}"
        super().__init__(module, stream, self.name)
        self.partial = partial
        size = WIDE * TILE * TILE_BYTES
        self.packed = self.fn.entry_assign(f"alloca [{size} x i8], align {TILE_BYTES}")

    def render(self) -> str:
        """Return the function's text."""
        stream = self.stream
        stride = TILE_BYTES if self.partial else 4 * stream.a_stride
        amx.move(self, "tileloadd64", amx.LEFT, "%a", str(stride))
        columns = sized(stream.sizes[1], "%columns")
        wide, rest = self.divided(columns, WIDE * TILE)
        self.repeat(wide, lambda i: self._block(self.times(i, WIDE * TILE), WIDE, None))
        at = self.times(wide.text, WIDE * TILE)

        def last() -> None:
            if rest.known is not None:
                self._block(at, -(-rest.known // TILE), rest)
                return
            narrow = self.ops.compare("sle", I64, rest.text, str(TILE))
            self.choice(narrow, lambda: self._block(at, 1, rest), lambda: self._block(at, WIDE, rest))

        self.if_any(rest, last)
        self.fn.line("ret void")
        return self.fn.render()

    def _block(self, column: str, tiles: int, rest: Size | None) -> None:
        """Group the columns of a few tiles and multiply them."""
        masks: list[str | None] = [None] * tiles
        if rest is not None:
            masks = [self.mask(self.sum(rest.text, str(-TILE * tile)) if tile else rest.text) for tile in range(tiles)]
        self._pack(column, masks)
        stream = self.stream
        sums = [self.ops.gep("i32", "%c", self.sum(column, str(tile * TILE))) for tile in range(tiles)]
        pitch = str(4 * stream.c_stride)
        for tile, place in enumerate(sums):
            amx.move(self, "tileloadd64", tile, place, pitch)
        for tile in range(tiles):
            amx.move(self, "tileloadd64", amx.RIGHT + tile, self._place(tile, "0"), str(TILE_BYTES))
            amx.multiply(self, stream.instruction, tile, amx.LEFT, amx.RIGHT + tile)
        for tile, place in enumerate(sums):
            amx.move(self, "tilestored64", tile, place, pitch)

    def _pack(self, column: str, masks: list[str | None]) -> None:
        """Group the terms of some columns."""
        if self.partial:
            self._pack_end(column, masks)
            return
        ahead = self._ahead(column)

        def some(i: str) -> None:
            first = self.times(i, _UNROLL)
            row = self.fn.assign(f"mul nsw i64 {self.times(first, self.group)}, %pitch")
            base = self.moved("%b", self.stream.memory, row)
            for number in range(_UNROLL):
                starts = [self.start(base, number * self.group + member) for member in range(self.group)]
                for start in starts:
                    self._ask(start, ahead)
                self._store(starts, column, masks, self.sum(first, str(number)), None)

        self.repeat(sized(TILE // _UNROLL, ""), some)

    def _pack_end(self, column: str, masks: list[str | None]) -> None:
        """Group what is left of the depth, with zeros for the rest."""
        for tile in range(len(masks)):
            for row in range(TILE):
                place = self.ops.gep("i8", self._place(tile, "0"), str(row * TILE_BYTES))
                self.fn.line(f"store {self.stream.operand} zeroinitializer, ptr {place}, align {TILE_BYTES}")
        groups, odd = self.divided(Size("%left", None), self.group)

        def whole(i: str, left: str | None = None) -> None:
            row = self.fn.assign(f"mul nsw i64 {self.times(i, self.group)}, %pitch")
            base = self.moved("%b", self.stream.memory, row)
            starts = [self.start(base, member) for member in range(self.group)]
            self._store(starts, column, masks, i, left)

        self.repeat(groups, whole)
        self.if_any(odd, lambda: whole(groups.text, odd.text))

    def _store(self, starts: list[str], column: str, masks: list[str | None], row: str, left: str | None) -> None:
        """Store one row of the packed tiles."""
        for tile, mask in enumerate(masks):
            value = self.vector(starts, self.sum(column, str(tile * TILE)), mask, left)
            place = self._place(tile, row)
            self.fn.line(f"store {self.stream.operand} {value}, ptr {place}, align {TILE_BYTES}")

    def _place(self, tile: int, row: str) -> str:
        first = self.ops.gep("i8", self.packed, str(tile * TILE * TILE_BYTES))
        return self.ops.gep("i8", first, self.times(row, TILE_BYTES))

    def _ahead(self, column: str) -> str:
        """Return how far from a row's start the data needed soon lies: further on, or in the next pass's rows."""
        place = self.sum(column, str(AHEAD))
        over = self.fn.assign(f"sub nsw i64 {place}, %columns")
        rows = self.fn.assign(f"mul nsw i64 %pitch, {TILE * self.group}")
        inside = self.ops.compare("slt", I64, over, "0")
        return self.ops.select(I64, inside, place, self.sum(rows, over))

    def _ask(self, start: str, offset: str) -> None:
        place = self.moved(start, LLVMType(self.stream.memory.element), offset)
        prefetch(self.module, self.fn, place, "read", 3)
