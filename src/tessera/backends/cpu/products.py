"""Products of tiles: the loops over panels and blocks of rows around the register-blocked kernels.

The depth is cut so that the part of a panel in use stays in the first-level cache while the rows go by. Sizes may be
known only at run time: then there is a kernel for each size that blocks of rows and tails of a panel consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tessera.backends.cpu.ahead import Ahead, ask_function
from tessera.backends.cpu.amx import DOTS
from tessera.backends.cpu.dots import DotLoops, dot_name
from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.microkernel import BYTES, FLIP, UNROLL, Block, block_kernel, block_rows
from tessera.backends.cpu.shared import shared_function
from tessera.backends.cpu.streams import Stream, StreamLoops
from tessera.backends.cpu.texts import Loops, Size, sized
from tessera.backends.cpu.tile_streams import TileStreamLoops
from tessera.backends.cpu.tiles import TileLoops
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.data import dataclass
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.product import GroupChunksOp, ProductOp
from tessera.ir.target.types import BufferType, PointerType
from tessera.ir.types import dtype_of
from tessera.target.products import GROUPS
from tessera.target.records import TargetRecord

PANEL_SHARE = 0.5
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
        instruction: a key of `target.products.GROUPS`.
        sizes: rows, columns and depth, None where a size is known only at run time.
        a_stride: elements between two rows of the left operand; None where they are read in place, at a distance
            that is known at run time.
        a_step: elements between two elements of such a row.
        c_stride: elements between two rows of the sums; None where it is an argument (vector units).
        panel: steps and columns of a panel of the right operand.
        room: rows and columns of the sums.
        operand: vector of operands.
        total: vector of sums.
        ahead: bytes of each row that is prefetched meanwhile, 0 for none.
        fresh: whether the sums may begin with this product, which is known at run time.
        begins: whether they do (vector units).
        copy_stride: elements between two rows of the copy that rows in place get if they are crowded, 0 for none.
        exact: whether no column beside those that count is written: the sums may lie in a tensor.
    """

    instruction: str
    sizes: tuple[int | None, int | None, int | None]
    a_stride: int | None
    c_stride: int | None
    panel: tuple[int, int]
    room: tuple[int, int]
    operand: LLVMType
    total: LLVMType
    ahead: int = 0
    a_step: int = 1
    fresh: bool = False
    begins: bool = False
    copy_stride: int = 0
    exact: bool = False

    @property
    def name(self) -> str:
        """A symbol that tells functions apart."""
        sizes = "x".join("n" if size is None else str(size) for size in self.sizes)
        step = f"by{self.a_step}" * (self.a_step > 1)
        strides = f"{_stride_name(self.a_stride)}{step}_{_stride_name(self.c_stride)}"
        shapes = "_".join(f"{shape[0]}x{shape[1]}" for shape in (self.room, self.panel))
        ahead = f"_{self.ahead}" * (self.ahead > 0) + "_f" * self.fresh + "_z" * self.begins + "_m" * self.exact
        ahead += f"_c{self.copy_stride}" * (self.copy_stride > 0)
        return f"tessera_product_{self.instruction}_{self.total.mangled}_{sizes}_{strides}_{shapes}{ahead}"

    @property
    def signature(self) -> str:
        """What the function takes."""
        return (
            f"define internal void @{self.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth{', i64 %step' * (self.c_stride is None)}"
            f"{', i64 %pitch' * (self.a_stride is None)}"
            f"{', ptr noalias %copy' * (self.copy_stride > 0)}"
            f"{', ptr %ahead, i64 %distance, i64 %wanted' * (self.ahead > 0)}{', i1 %fresh' * self.fresh}"
            f"{', i64 %height, i64 %wide' * (self.fresh and self.instruction in DOTS)})"
        )


def _stride_name(stride: int | None) -> str:
    return "n" if stride is None else str(stride)


@CPU.register(ProductOp)
def emit_product(emitter: CpuEmitter, op: ProductOp) -> None:
    """Call the function of the product, which is made once for each kind."""
    module, target, sizes = emitter.module, emitter.target, [op.rows, op.columns, op.depth]
    assert isinstance(op.acc.type, BufferType)
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
        write = _written_stream(target, product, turned)
    else:
        write = _written(target, product)
        if product.c_stride is None:
            c, step = _sums(emitter, op, c)
            given.append(f"i64 {step}")
        if product.a_stride is None:
            a, pitch = _left_in_place(emitter, op, a)
            given.append(pitch)
        if op.room is not None:
            given.append(f"ptr {emitter.unit(op.room)}")
        if product.ahead:
            given += _rows_ahead(emitter, op)
        if product.fresh and op.fresh is not None:
            given.append(f"i1 {emitter.unit(op.fresh)}")
            if product.instruction in DOTS:
                given += [f"i64 {size}" for size in emitter.all_units(list(op.needed)) or op.acc.type.shape]
    if is_shared(product.sizes):
        shared_function(module, target, name, (name, product), write)
    elif not module.has(name):
        module.define(name, write(module))
    emitter.fn.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {c}, {', '.join(given)})")


def is_shared(sizes: Sequence[int | None]) -> bool:
    """Return whether other kernels have the functions of a product: few have one of the same sizes, if it has any."""
    return all(size is None for size in sizes)


def _written(target: TargetRecord, product: Product) -> Callable[[ModuleText], str]:
    """Return what writes a product's function."""
    if product.instruction in DOTS:
        return lambda where: TileLoops(where, product).render()
    return lambda where: _Loops(where, target, product).render()


def _written_stream(target: TargetRecord, stream: Stream, turned: bool) -> Callable[[ModuleText], str]:
    """Return what writes the function of a product whose right operand is read in place, perhaps by columns."""
    if stream.instruction in DOTS:
        return lambda where: TileStreamLoops(where, stream).render()
    return lambda where: (DotLoops if turned else StreamLoops)(where, target, stream).render()


def _left_in_place(emitter: CpuEmitter, op: ProductOp, a: str) -> tuple[str, str]:
    """Return where rows in place begin, and their distance in bytes as an argument."""
    assert isinstance(op.a.type, PointerType)
    offset, distance = emitter.all_units(list(op.left))
    memory, ops = emitter.memory_type(op.a.type.dtype, 1), emitter.ops
    pitch = ops.binary("mul", I64, distance, str(op.a.type.dtype.bytes))
    return ops.gep(memory.element, a, offset), f"i64 {pitch}"


def _sums(emitter: CpuEmitter, op: ProductOp, c: str) -> tuple[str, str]:
    """Return where the sums of vector units begin, and the distance of their rows."""
    assert isinstance(op.acc.type, BufferType)
    step = str(op.acc.type.strides[0])
    if op.tensor is None or op.inside is None:
        return c, step
    (offset, distance), inside = emitter.all_units(list(op.sums)), emitter.unit(op.inside)
    place = emitter.ops.gep(emitter.memory_type(op.acc.type.dtype, 1).element, emitter.unit(op.tensor), offset)
    return (
        emitter.fn.assign(f"select i1 {inside}, ptr {place}, ptr {c}"),
        emitter.fn.assign(f"select i1 {inside}, i64 {distance}, i64 {step}"),
    )


def _rows_ahead(emitter: CpuEmitter, op: ProductOp) -> list[str]:
    """Return where the rows to prefetch begin, their distance in bytes and their number as arguments."""
    assert op.source is not None
    assert isinstance(op.source.type, PointerType)
    offset, distance, rows, _ = emitter.all_units(list(op.ahead))
    dtype, ops = op.source.type.dtype, emitter.ops
    first = ops.gep(emitter.memory_type(dtype, 1).element, emitter.unit(op.source), offset)
    return [f"ptr {first}", f"i64 {ops.binary('mul', I64, distance, str(dtype.bytes))}", f"i64 {rows}"]


def _product_of(emitter: CpuEmitter, op: ProductOp) -> Product | Stream:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    assert isinstance(acc, BufferType)
    lanes = max(emitter.target.vector_bytes // acc.dtype.bytes, 1)
    texts = [emitter.unit(value) for value in (op.rows, op.columns, op.depth)]
    rows, columns, depth = (int(text) if text.isdigit() else None for text in texts)
    sizes, name = (rows, columns, depth), op.instruction.data
    begins = op.fresh is not None and constant_value(op.fresh) == 1
    total = LLVMType(llvm_element(acc.dtype), lanes)
    if isinstance(b, BufferType):
        return Product(
            name,
            sizes,
            a.strides[0] if isinstance(a, BufferType) else None,
            acc.strides[0] if name in DOTS else None,
            (b.shape[1], b.shape[2]),
            (acc.shape[0] * op.strips.data, acc.shape[1]),
            LLVMType(llvm_element(dtype_of(b.element)), lanes),
            total,
            _length_ahead(emitter, op),
            a.strides[1] if isinstance(a, BufferType) else 1,
            op.fresh is not None and (name in DOTS or not begins),
            begins and name not in DOTS,
            op.room.type.strides[0] if op.room is not None and isinstance(op.room.type, BufferType) else 0,
            op.tensor is not None,
        )
    assert isinstance(a, BufferType)
    assert isinstance(b, PointerType)
    left = dtype_of(a.element)
    widens = b.dtype if GROUPS[name] == 1 and b.dtype != left else None
    memory, operand = emitter.memory_type(b.dtype, 1), LLVMType(llvm_element(left), lanes)
    return Stream(name, sizes, a.strides[0], acc.strides[0], memory, operand, total, widens)


def _length_ahead(emitter: CpuEmitter, op: ProductOp) -> int:
    """Return the bytes of each row to prefetch."""
    if op.source is None:
        return 0
    assert isinstance(op.source.type, PointerType)
    return int(emitter.unit(op.ahead[3])) * op.source.type.dtype.bytes


class _Loops(Loops):
    """Writes the function of one product.

    Args:
        module: where the kernels go.
        target: the CPU.
        product: what it is for.
    """

    def __init__(self, module: ModuleText, target: TargetRecord, product: Product):
        super().__init__(module, product.signature)
        self.target, self.product = target, product
        self.in_place = product.a_stride is None
        self.group = GROUPS[product.instruction]
        self.width = product.panel[1]
        self.vectors = self.width // product.total.width
        limit = int(target.l1_bytes * PANEL_SHARE) // (self.width * BYTES[product.operand.element])
        self.cut = max(limit // UNROLL, 1) * UNROLL
        self.odd = "0"
        self.asked = ""
        self.fresh = False
        self.begun = ""
        self.last = ""
        self.left, self.pitch = "%a", "%pitch" if self.in_place else "0"

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, depth = self.product.sizes
        if depth is not None:
            groups = sized(-(-depth // self.group), "")
        else:
            raised = self.fn.assign(f"add nsw i64 %depth, {self.group - 1}")
            groups = Size(self.fn.assign(f"sdiv i64 {raised}, {self.group}"), None)
        extents = sized(rows, "%rows"), sized(columns, "%columns"), groups
        if self.in_place and self.group == 2:  # the last pair may hold one term only
            self.odd = str(depth % 2) if depth is not None else self.fn.assign("and i64 %depth, 1")
        if self.product.ahead:
            self.asked = self.fn.entry_assign("alloca i64, align 8")
            self.fn.line(f"store i64 0, ptr {self.asked}, align 8")
        if self.product.copy_stride:
            self._copy_if_crowded(extents)
        if groups.known is None:
            self._cut(extents)
        else:
            self._part(self.left, "%b", "%c", extents)
        self.fn.line("ret void")
        return self.fn.render()

    def _copy_if_crowded(self, extents: tuple[Size, Size, Size]) -> None:
        """Take a copy of rows in place whose distance would crowd them into a few sets while the panels go by."""
        fn, ops, (rows, columns, _) = self.fn, self.ops, extents
        mask = self.target.crowding_pitch(self.product.room[0]) - 1
        crowded = ops.compare("eq", I64, fn.assign(f"and i64 %pitch, {mask}"), "0")
        again = ops.compare("sgt", I64, columns.text, str(self.width))
        before, copy, join = fn.block, fn.label("copy"), fn.label("rows")
        fn.branch_if(fn.assign(f"and i1 {crowded}, {again}"), copy, join)
        fn.start(copy)
        self.repeat(rows, self._copy_row)
        copied, stride = fn.block, self.product.copy_stride * BYTES[self.product.operand.element]
        fn.branch(join)
        fn.start(join)
        self.left = fn.phi("ptr", [("%a", before), ("%copy", copied)])
        self.pitch = fn.phi("i64", [("%pitch", before), (str(stride), copied)])

    def _copy_row(self, row: str) -> None:
        fn, operand = self.fn, self.product.operand
        source = self.ops.gep("i8", "%a", fn.assign(f"mul nsw i64 {row}, %pitch"))
        target = self.moved("%copy", operand, self.times(row, self.product.copy_stride))
        term = BYTES[operand.element] // self.group
        depth = sized(self.product.sizes[2], "%depth")
        lanes = operand.width * self.group
        vectors, rest = self.divided(depth, lanes)

        def move(type_: str, first: str) -> None:
            value = fn.assign(f"load {type_}, ptr {self.ops.gep('i8', source, first)}, align {term}")
            fn.line(f"store {type_} {value}, ptr {self.ops.gep('i8', target, first)}, align {term}")

        self.repeat(vectors, lambda i: move(str(operand), self.times(i, lanes * term)))
        done = self.times(vectors.text, lanes * term)
        self.repeat(rest, lambda i: move(f"i{8 * term}", self.sum(done, self.times(i, term))))

    def _left(self, a: str, row: str) -> str:
        """Return where a row of the left operand is."""
        if self.product.a_stride is not None:
            return self.moved(a, self.product.operand, self.times(row, self.product.a_stride))
        if row == "0":
            return a
        return self.ops.gep("i8", a, self.fn.assign(f"mul nsw i64 {row}, {self.pitch}"))

    def _at_depth(self, a: str, b: str, first: str) -> tuple[str, str]:
        operand = self.product.operand
        return (
            self.moved(a, operand, self.times(first, self.product.a_step)),
            self.moved(b, operand, self.times(first, self.width)),
        )

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

        def piece(number: str, whole: bool, fresh: bool) -> None:
            self.fresh = fresh
            self._begin(number)
            length, odd = (sized(self.cut, ""), "0") if whole else (rest, self.odd)
            at = self._at_depth(a, b, self.times(number, self.cut))
            self._panels(*at, c, (rows, columns, length), odd)

        if self.product.fresh and not full.known and not rest.known:
            piece("0", False, False)
        self.pieces(full, rest, self.product.begins, piece)

    def _begin(self, number: str) -> None:
        """Note what says at run time whether the sums begin with a part of the depth."""
        if not self.product.fresh:
            return
        first = "true" if number == "0" else "false" if number.isdigit() else self.ops.compare("eq", I64, number, "0")
        self.begun = "%fresh" if first == "true" else self.fn.assign(f"and i1 %fresh, {first}")

    def _cut(self, extents: tuple[Size, Size, Size]) -> None:
        """Run the vector units on parts of the depth, which is known only at run time."""
        rows, columns, groups = extents
        if self.product.panel[0] <= self.cut:
            self._begin("0")
            some = sized(1, "") if self.product.fresh else groups  # sums of no terms begin, too
            self.if_any(some, lambda: self._panels(self.left, "%b", "%c", extents, self.odd))
            return
        raised = self.fn.assign(f"add nsw i64 {groups.text}, {self.cut - 1}")

        def piece(number: str) -> None:
            self._begin(number)
            first = self.times(number, self.cut)
            left = self.fn.assign(f"sub nsw i64 {groups.text}, {first}")
            is_last = self.ops.compare("sle", I64, left, str(self.cut))
            length = self.fn.assign(f"select i1 {is_last}, i64 {left}, i64 {self.cut}")
            odd = self.odd if self.odd == "0" else self.fn.assign(f"select i1 {is_last}, i64 {self.odd}, i64 0")
            at = self._at_depth(self.left, "%b", first)
            self._panels(*at, "%c", (rows, columns, Size(length, None)), odd)

        pieces = self.fn.assign(f"sdiv i64 {raised}, {self.cut}")
        if self.product.fresh:
            none = self.ops.compare("slt", I64, pieces, "1")
            pieces = self.fn.assign(f"select i1 {none}, i64 1, i64 {pieces}")
        self.repeat(Size(pieces, None), piece)

    def _panels(self, a: str, b: str, c: str, extents: tuple[Size, Size, Size], odd: str) -> None:
        rows, columns, groups = extents
        lanes = self.product.total.width

        def panel(number: str, vectors: int) -> None:
            self._rows(a, *self._at_panel(b, c, number), rows, vectors, (groups, odd))

        def last(number: str, vectors: int, rest: Size) -> None:
            """Compute the last panel, of which a part counts."""
            if self.product.exact:
                before = f"-{(vectors - 1) * lanes}"
                self.last = self.sum(rest.text, before) if rest.known is None else str(rest.known + int(before))
            panel(number, vectors)
            self.last = ""

        if columns.known is not None:
            full, rest = self.divided(columns, self.width)
            self.repeat(full, lambda number: panel(number, self.vectors))
            self.if_any(rest, lambda: last(full.text, -(-(rest.known or 1) // lanes), rest))
            return
        # What needs all vectors of a panel is a whole one, where nobody reads its last columns.
        more = 0 if self.product.exact else lanes - 1
        full, _ = self.divided(Size(self.fn.assign(f"add nsw i64 {columns.text}, {more}"), None), self.width)
        rest = Size(self.fn.assign(f"sub nsw i64 {columns.text}, {self.times(full.text, self.width)}"), None)
        widths = self._widths()
        if self.vectors in widths:
            self.repeat(full, lambda number: panel(number, self.vectors))

        def choose(widths: list[int]) -> None:
            """Take the narrowest of the kernels that covers the rest."""
            if len(widths) == 1:
                last(full.text, widths[0], rest)
                return
            fits = self.ops.compare("sle", I64, rest.text, str(widths[0] * lanes))
            self.choice(fits, lambda: last(full.text, widths[0], rest), lambda: choose(widths[1:]))

        if narrow := [width for width in widths if width < self.vectors or self.product.exact]:
            self.if_any(rest, lambda: choose(narrow))

    def _widths(self) -> list[int]:
        """Return the widths, in vectors, of the kernels for a rest of columns that is known only at run time.

        Nothing is packed past the vector in which it ends, so that a wider kernel would add what was there before.
        """
        return list(range(1, min(self.vectors, -(-self.product.room[1] // self.product.total.width)) + 1))

    def _rows(self, a: str, b: str, c: str, rows: Size, vectors: int, depth: tuple[Size, str]) -> None:
        """Run the blocks of rows: whole ones, and halves of them for what is left."""
        product, known = self.product, self.product.sizes[2]
        whole = known is not None and known > 0 and known % (self.group * UNROLL) == 0
        block = Block(
            product.instruction,
            0,
            vectors,
            product.a_stride,
            self.width,
            product.operand,
            product.total,
            whole,
            product.instruction == "dot_u8_i8",
            self.odd != "0",
            product.a_step,
            self.fresh,
            bool(self.last) and product.total.width > 1,
        )
        shift = self._shift(b, block, depth[0]) if block.shifted else "null"
        first, left = "0", rows
        limit = block_rows(self.target, vectors, self.in_place)
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
                    k, a, b, c, self.sum(f, self.times(i, s)), depth, shift
                ),
            )
            first, left = self.sum(first, self.times(count.text, size)), rest

    def _heights(self, limit: int, vectors: int) -> list[int]:
        """Return the rows of the kernels for a number of rows that is known only at run time: mostly the tile's."""
        most = self.product.room[0]
        sizes = {limit, limit // 4, 1} if vectors < self.vectors else {limit, most % limit, limit // 2, 1}
        return sorted({min(size, most) for size in sizes} - {0}, reverse=True)

    def _call(self, block: Block, a: str, b: str, c: str, row: str, depth: tuple[Size, str], shift: str) -> None:
        a = self._left(a, row)
        c = c if row == "0" else self.moved(c, block.total, self.fn.assign(f"mul nsw i64 {row}, %step"))
        if self.asked:
            self._ask()
        given = ["i64 %step", f"i64 {depth[0].text}"]
        given += [f"i64 {self.pitch}"] * (block.a_stride is None)
        given += [f"ptr {shift}"] * block.shifted + [f"i64 {depth[1]}"] * block.odd
        given += [f"i64 {self.last}"] * block.masked

        def call(kernel: Block) -> None:
            symbol = block_kernel(self.module, self.target, kernel, is_shared(self.product.sizes))
            self.fn.line(f"call void @{symbol}(ptr {a}, ptr {b}, ptr {c}, {', '.join(given)})")

        if self.begun:
            self.choice(self.begun, lambda: call(replace(block, fresh=True)), lambda: call(block))
        else:
            call(block)

    def _ask(self) -> None:
        """Prefetch a part of the rows that are packed next: for all of a step by its last block."""
        product, (rows, columns) = self.product, self.product.room
        blocks = max(rows // block_rows(self.target, self.vectors, self.in_place), 1)
        calls = blocks * -(-columns // self.width) * -(-product.panel[0] // self.cut)
        symbol = ask_function(self.module, Ahead.of(product.panel[0] * self.group, product.ahead, calls))
        self.fn.line(f"call void @{symbol}(ptr {self.asked}, ptr %ahead, i64 %distance, i64 %wanted)")

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
        single = replace(block, rows=1, a_stride=0, a_step=1, shifted=False, odd=False, fresh=False, masked=False)
        symbol = block_kernel(self.module, self.target, single, is_shared(self.product.sizes))
        self.fn.line(f"call void @{symbol}(ptr {row}, ptr {b}, ptr {place}, i64 0, i64 {groups.text})")
        return place
