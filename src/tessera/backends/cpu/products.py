"""Products of tiles: the loops over panels and blocks of rows around the register-blocked kernels.

The depth is cut so that the part of a panel in use stays in the first-level cache while the rows go by. Sizes may be
known only at run time: then there is a kernel for each size that blocks of rows and rests of a panel are made of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.backends.cpu import amx
from tessera.backends.cpu.dots import DotLoops, dot_name
from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.instructions import GROUPS, VECTOR_PART
from tessera.backends.cpu.microkernel import BYTES, FLIP, UNROLL, Block, block_kernel, block_rows
from tessera.backends.cpu.streams import Stream, StreamLoops
from tessera.backends.cpu.texts import Loops, Size, halves, sized
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.ir.target.product import GroupChunksOp, ProductOp
from tessera.ir.target.types import BufferType, PointerType
from tessera.ir.types import dtype_of
from tessera.target.records import TargetRecord

PANEL_SHARE = 0.7
"""Part of the first-level cache that a panel may take; rows of the left operand and sums pass through the rest."""


@CPU.register(GroupChunksOp)
def emit_group(emitter: CpuEmitter, op: GroupChunksOp) -> None:
    """Join by shuffles, interleave by shifts, which also load and widen in one instruction."""
    ops, fn = emitter.ops, emitter.fn
    values = emitter.all_units(list(op.chunks))
    narrow = emitter.unit_type(op.chunks[0].type)
    wide, bits = LLVMType("i32", narrow.width), 32 // len(values)
    if op.order.data == "interleave":
        total = ""
        for number, value in enumerate(values):
            part = ops.convert("zext", narrow, value, wide)
            if number:
                shifted = ops.binary("shl", wide, part, ops.integer(wide, number * bits))
                part = ops.binary("or", wide, total, shifted)
            total = part
        emitter.bind(op.result, [total])
        return
    type_ = narrow
    while len(values) > 1:
        lanes = ", ".join(f"i32 {lane}" for lane in range(2 * type_.width))
        mask = f"<{2 * type_.width} x i32> <{lanes}>"
        values = [
            fn.assign(f"shufflevector {type_} {values[i]}, {type_} {values[i + 1]}, {mask}")
            for i in range(0, len(values), 2)
        ]
        type_ = LLVMType(type_.element, 2 * type_.width)
    emitter.bind(op.result, [ops.convert("bitcast", type_, values[0], wide)])


@dataclass(frozen=True)
class Product:
    """What a product's function is specialised for.

    Args:
        instruction: a key of `instructions.GROUPS`.
        sizes: rows, columns and depth, None where a size is known only at run time.
        a_stride: elements between two rows of the left operand.
        c_stride: elements between two rows of the sums.
        panel: steps and columns of a panel of the right operand.
        room: rows and columns of the sums.
        operand: vector of operands.
        total: vector of sums.
    """

    instruction: str
    sizes: tuple[int | None, int | None, int | None]
    a_stride: int
    c_stride: int
    panel: tuple[int, int]
    room: tuple[int, int]
    operand: LLVMType
    total: LLVMType

    @property
    def name(self) -> str:
        """A symbol that tells functions apart."""
        sizes = "x".join("n" if size is None else str(size) for size in self.sizes)
        strides = (
            f"{self.a_stride}_{self.c_stride}_{self.room[0]}x{self.room[1]}_{self.panel[0]}x{self.panel[1]}"
        )
        return f"tessera_product_{self.instruction}_{self.total.mangled}_{sizes}_{strides}"


@CPU.register(ProductOp)
def emit_product(emitter: CpuEmitter, op: ProductOp) -> None:
    """Call the function of the product, which is made once for each kind."""
    module, target, sizes = emitter.module, emitter.target, [op.rows, op.columns, op.depth]
    a, b, c = (emitter.unit(value) for value in (op.a, op.b, op.acc))
    given = [f"i64 {size}" for size in emitter.all_units(sizes)]
    product = _product_of(emitter, op)
    name = product.name
    if isinstance(product, Stream):
        offset, row, column = emitter.all_units(list(op.place))
        b = emitter.ops.gep(product.memory.element, b, offset)
        turned = column != "1"
        given.append(f"i64 {column if turned else row}")
        name = dot_name(product) if turned else name
        loops: Loops = (DotLoops if turned else StreamLoops)(module, target, product)
    else:
        loops = _Loops(module, target, product)
    if not module.has(name):
        module.define(name, loops.render())
    emitter.fn.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {c}, {', '.join(given)})")


def _product_of(emitter: CpuEmitter, op: ProductOp) -> Product | Stream:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    assert isinstance(a, BufferType)
    assert isinstance(acc, BufferType)
    lanes = max(emitter.target.vector_bytes // acc.dtype.bytes, 1)
    texts = [emitter.unit(value) for value in (op.rows, op.columns, op.depth)]
    rows, columns, depth = (int(text) if text.isdigit() else None for text in texts)
    sizes, name = (rows, columns, depth), op.instruction.data
    types = LLVMType(llvm_element(dtype_of(a.element)), lanes), LLVMType(llvm_element(acc.dtype), lanes)
    if isinstance(b, BufferType):
        return Product(
            name,
            sizes,
            a.strides[0],
            acc.strides[0],
            (b.shape[1], b.shape[2]),
            (acc.shape[0], acc.shape[1]),
            *types,
        )
    assert isinstance(b, PointerType)
    return Stream(name, sizes, a.strides[0], acc.strides[0], emitter.memory_type(b.dtype, 1), *types)


class _Loops(Loops):
    """Writes the function of one product.

    Args:
        module: where the kernels go.
        target: the CPU.
        product: what it is for.
    """

    def __init__(self, module: ModuleText, target: TargetRecord, product: Product):
        super().__init__(
            module,
            f"define internal void @{product.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth)",
        )
        self.target, self.product = target, product
        self.group = GROUPS[product.instruction]
        self.instruction = VECTOR_PART.get(product.instruction, product.instruction)
        self.width = product.panel[1]
        self.vectors = self.width // product.total.width
        limit = int(target.l1_bytes * PANEL_SHARE) // (self.width * BYTES[product.operand.element])
        self.cut = max(limit // amx.TILE, 1) * amx.TILE

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, depth = self.product.sizes
        if depth is not None:
            groups = sized(-(-depth // self.group), "")
        else:
            raised = self.fn.assign(f"add nsw i64 %depth, {self.group - 1}")
            groups = Size(self.fn.assign(f"sdiv i64 {raised}, {self.group}"), None)
        extents = sized(rows, "%rows"), sized(columns, "%columns"), groups
        if self.product.instruction in VECTOR_PART:
            self._tiles(extents)
            self._rests(extents)
        else:
            self._part("%a", "%b", "%c", extents)
        self.fn.line("ret void")
        return self.fn.render()

    def _tiles(self, extents: tuple[Size, Size, Size]) -> None:
        """Run the matrix unit on whole panels, whole tiles of rows and whole steps."""
        rows, columns, groups = extents
        amx.configure(self)
        cut = max(self.cut // amx.TILE, 1)
        panels, high = self.divided(columns, self.width)[0], self.divided(rows, amx.TILE)[0]
        full, rest = self.divided(self.divided(groups, amx.TILE)[0], cut)

        def piece(first: str, count: Size) -> None:
            a, b = self._at_depth("%a", "%b", self.times(first, cut * amx.TILE))
            self.repeat(
                panels, lambda panel: self._tile_rows(a, *self._at_panel(b, "%c", panel), high, count)
            )

        self.repeat(full, lambda i: piece(i, sized(cut, "")))
        self.if_any(rest, lambda: piece(full.text, rest))
        amx.release(self)

    def _tile_rows(self, a: str, b: str, c: str, high: Size, count: Size) -> None:
        pairs, single = self.divided(high, 2)

        def blocks(row: str, height: int) -> None:
            product, at = self.product, self.times(row, amx.TILE)
            left = self.moved(a, product.operand, self.times(at, product.a_stride))
            for column in range(0, self.width, 2 * amx.TILE):
                sums = self.sum(self.times(at, product.c_stride), str(column))
                block = amx.TileBlock(
                    product.instruction, height, 2, product.a_stride, self.width, product.c_stride
                )
                symbol = amx.tile_kernel(self.module, block)
                right = self.moved(b, product.operand, str(column))
                target = self.moved(c, product.total, sums)
                self.fn.line(f"call void @{symbol}(ptr {left}, ptr {right}, ptr {target}, i64 {count.text})")

        self.repeat(pairs, lambda i: blocks(self.times(i, 2), 2))
        self.if_any(single, lambda: blocks(self.times(pairs.text, 2), 1))

    def _rests(self, extents: tuple[Size, Size, Size]) -> None:
        """Run the vector units on what fills no tile: rows below, the columns beside, the end of the depth."""
        rows, columns, groups = extents
        panels, side = self.divided(columns, self.width)
        high, low = self.divided(rows, amx.TILE)
        steps, end = self.divided(groups, amx.TILE)
        tiled = [
            self._scaled(panels, self.width),
            self._scaled(high, amx.TILE),
            self._scaled(steps, amx.TILE),
        ]
        product = self.product

        def below() -> None:
            a = self.moved("%a", product.operand, self.times(tiled[1].text, product.a_stride))
            c = self.moved("%c", product.total, self.times(tiled[1].text, product.c_stride))
            self._part(a, "%b", c, (low, tiled[0], tiled[2]))

        def beside() -> None:
            self._part("%a", *self._at_panel("%b", "%c", panels.text), (rows, side, tiled[2]))

        self.if_any(low, below)
        self.if_any(side, beside)
        self.if_any(
            end, lambda: self._part(*self._at_depth("%a", "%b", tiled[2].text), "%c", (rows, columns, end))
        )

    def _scaled(self, size: Size, factor: int) -> Size:
        return Size(self.times(size.text, factor), None if size.known is None else size.known * factor)

    def _at_depth(self, a: str, b: str, first: str) -> tuple[str, str]:
        operand = self.product.operand
        return self.moved(a, operand, first), self.moved(b, operand, self.times(first, self.width))

    def _at_panel(self, b: str, c: str, number: str) -> tuple[str, str]:
        size = self.times(number, self.product.panel[0] * self.width)
        return (
            self.moved(b, self.product.operand, size),
            self.moved(c, self.product.total, self.times(number, self.width)),
        )

    def _part(self, a: str, b: str, c: str, extents: tuple[Size, Size, Size]) -> None:
        """Run the vector units on a part of the product, cut along the depth."""
        rows, columns, groups = extents
        full, rest = self.divided(groups, self.cut)

        def piece(first: str, length: Size) -> None:
            self._panels(*self._at_depth(a, b, first), c, rows, columns, length)

        self.repeat(full, lambda i: piece(self.times(i, self.cut), sized(self.cut, "")))
        self.if_any(rest, lambda: piece(self.times(full.text, self.cut), rest))

    def _panels(self, a: str, b: str, c: str, rows: Size, columns: Size, groups: Size) -> None:
        full, rest = self.divided(columns, self.width)

        def panel(number: str, vectors: int) -> None:
            self._rows(a, *self._at_panel(b, c, number), rows, vectors, groups)

        self.repeat(full, lambda number: panel(number, self.vectors))
        lanes = self.product.total.width
        if rest.known is not None:
            self.if_any(rest, lambda: panel(full.text, -(-(rest.known or 1) // lanes)))
            return

        def choose(widths: list[int]) -> None:
            """Take the narrowest of the kernels that covers the rest."""
            if len(widths) == 1:
                panel(full.text, widths[0])
                return
            fits = self.ops.compare("sle", I64, rest.text, str(widths[0] * lanes))
            self.choice(fits, lambda: panel(full.text, widths[0]), lambda: choose(widths[1:]))

        self.if_any(rest, lambda: choose(self._widths()))

    def _widths(self) -> list[int]:
        """Return the widths, in vectors, of the kernels for a rest of columns that is known only at run time."""
        room = self.product.room[1]
        if room % self.width == 0:  # computing a little too much stays inside the row of sums
            return halves(self.vectors)[::-1]
        return list(range(1, min(self.vectors, -(-room // self.product.total.width)) + 1))

    def _rows(self, a: str, b: str, c: str, rows: Size, vectors: int, groups: Size) -> None:
        """Run the blocks of rows: whole ones, and halves of them for what is left."""
        product = self.product
        depth = self.product.sizes[2]
        whole = depth is not None and -(-depth // self.group) % UNROLL == 0 and self.cut % amx.TILE == 0
        block = Block(
            self.instruction, 0, vectors, product.a_stride, self.width, product.c_stride, product.operand,
            product.total, whole, self.instruction != product.instruction and self.group == 4,
            self.instruction == "dot_u8_i8",
        )  # fmt: skip
        shift = self._shift(b, block, groups) if block.shifted else "null"
        first, left = "0", rows
        limit = block_rows(self.target, vectors)
        sizes = [limit, left.known % limit] if left.known is not None else self._heights(limit, vectors)
        for size in sizes:
            if not size:
                continue
            count, rest = self.divided(left, size)
            kernel = replace(block, rows=size)
            start = first
            self.repeat(
                count,
                lambda i, s=size, k=kernel, f=start: self._call(
                    k, a, b, c, self.sum(f, self.times(i, s)), groups, shift
                ),
            )
            first, left = self.sum(first, self.times(count.text, size)), rest

    def _heights(self, limit: int, vectors: int) -> list[int]:
        """Return the rows of the kernels for a number of rows that is known only at run time: mostly the tile's."""
        if vectors < self.vectors:
            return [limit, limit // 4, 1]
        return sorted({limit, self.product.room[0] % limit, limit // 2, 1} - {0}, reverse=True)

    def _call(self, block: Block, a: str, b: str, c: str, row: str, groups: Size, shift: str) -> None:
        symbol = block_kernel(self.module, self.target, block)
        a = self.moved(a, block.operand, self.times(row, block.a_stride))
        c = self.moved(c, block.total, self.times(row, block.c_stride))
        self.fn.line(f"call void @{symbol}(ptr {a}, ptr {b}, ptr {c}, i64 {groups.text}, ptr {shift})")

    def _shift(self, b: str, block: Block, groups: Size) -> str:
        """Return where 128 times the sums of each column of a panel are: the products with a row of 128s."""
        type_ = block.total
        place = self.fn.entry_assign(f"alloca [{block.vectors} x {type_}], align 64")
        for vector in range(block.vectors):
            target = self.moved(place, type_, str(vector * type_.width))
            self.fn.line(f"store {type_} zeroinitializer, ptr {target}, align 64")
        many = ", ".join([f"i32 {FLIP}"] * self.cut)
        row = self.module.add_global(
            f"tessera_shift_{self.cut}",
            f"private unnamed_addr constant [{self.cut} x i32] [{many}], align 64",
        )
        single = replace(block, rows=1, a_stride=0, c_stride=0, flip=False, shifted=False)
        symbol = block_kernel(self.module, self.target, single)
        self.fn.line(f"call void @{symbol}(ptr {row}, ptr {b}, ptr {place}, i64 {groups.text}, ptr null)")
        return place
