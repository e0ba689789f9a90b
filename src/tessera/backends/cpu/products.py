"""Products of tiles: the loops over panels and blocks of rows around the register-blocked kernels.

The depth is cut so that the part of a panel in use stays in the first-level cache while the rows go by. Sizes may be
known only at run time: then there is a kernel for each size that blocks of rows and rests of a panel are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.instructions import GROUPS, VECTOR_PART, multiply_add
from tessera.backends.cpu.microkernel import BYTES, FLIP, UNROLL, Block, block_kernel, block_rows
from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, llvm_element
from tessera.ir.target.product import GroupChunksOp, ProductOp
from tessera.ir.target.types import BufferType
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
        operand: vector of operands.
        total: vector of sums.
    """

    instruction: str
    sizes: tuple[int | None, int | None, int | None]
    a_stride: int
    c_stride: int
    panel: tuple[int, int]
    operand: LLVMType
    total: LLVMType

    @property
    def name(self) -> str:
        """A symbol that tells functions apart."""
        sizes = "x".join("n" if size is None else str(size) for size in self.sizes)
        strides = f"{self.a_stride}_{self.c_stride}_{self.panel[0]}x{self.panel[1]}"
        return f"tessera_product_{self.instruction}_{self.total.mangled}_{sizes}_{strides}"


@CPU.register(ProductOp)
def emit_product(emitter: CpuEmitter, op: ProductOp) -> None:
    """Call the function of the product, which is made once for each kind."""
    product = _product_of(emitter, op)
    sizes = [emitter.unit(value) for value in (op.rows, op.columns, op.depth)]
    if not emitter.module.has(product.name):
        emitter.module.define(product.name, _Loops(emitter.module, emitter.target, product).render())
    pointers = ", ".join(f"ptr {emitter.unit(value)}" for value in (op.a, op.b, op.acc))
    given = ", ".join(f"i64 {size}" for size in sizes)
    emitter.fn.line(f"call void @{product.name}({pointers}, {given})")


def _product_of(emitter: CpuEmitter, op: ProductOp) -> Product:
    a, b, acc = op.a.type, op.b.type, op.acc.type
    assert isinstance(a, BufferType)
    assert isinstance(b, BufferType)
    assert isinstance(acc, BufferType)
    lanes = max(emitter.target.vector_bytes // acc.dtype.bytes, 1)
    texts = [emitter.unit(value) for value in (op.rows, op.columns, op.depth)]
    rows, columns, depth = (int(text) if text.isdigit() else None for text in texts)
    return Product(
        op.instruction.data, (rows, columns, depth), a.strides[0], acc.strides[0], (b.shape[1], b.shape[2]),
        LLVMType(llvm_element(dtype_of(a.element)), lanes), LLVMType(llvm_element(acc.dtype), lanes),
    )  # fmt: skip


class _Loops:
    """Writes the function of one product.

    Args:
        module: where the kernels go.
        target: the CPU.
        product: what it is for.
    """

    def __init__(self, module: ModuleText, target: TargetRecord, product: Product):
        attributes = module.attributes("nounwind noinline")
        self.fn = FunctionText(
            f"define internal void @{product.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %rows, "
            f"i64 %columns, i64 %depth) {attributes}"
        )
        self.module, self.target, self.product = module, target, product
        self.ops = Ops(module, self.fn)
        self.group = GROUPS[product.instruction]
        self.instruction = VECTOR_PART.get(product.instruction, product.instruction)
        self.width = product.panel[1]
        self.vectors = self.width // product.total.width
        limit = int(target.l1_bytes * PANEL_SHARE) // (self.width * BYTES[product.operand.element])
        self.cut = max(limit // UNROLL * UNROLL, UNROLL)

    def render(self) -> str:
        """Return the function's text."""
        rows, columns, depth = self.product.sizes
        if depth is not None:
            groups = _sized(-(-depth // self.group), "")
        else:
            raised = self.fn.assign(f"add nsw i64 %depth, {self.group - 1}")
            groups = _Size(self.fn.assign(f"sdiv i64 {raised}, {self.group}"), None)
        self._vector_part(_sized(rows, "%rows"), _sized(columns, "%columns"), groups)
        self.fn.line("ret void")
        return self.fn.render()

    def _vector_part(self, rows: _Size, columns: _Size, groups: _Size) -> None:
        def piece(first: str, length: _Size) -> None:
            a = self._moved("%a", self.product.operand, first)
            b = self._moved("%b", self.product.operand, self._times(first, self.width))
            self._panels(a, b, rows, columns, length)

        if groups.known is not None and groups.known <= self.cut:
            piece("0", groups)
            return
        full, rest = self._divided(groups, self.cut)
        self._repeat(full, lambda i: piece(self._times(i, self.cut), _Size(str(self.cut), self.cut)))
        self._if_any(rest, lambda: piece(self._times(full.text, self.cut), rest))

    def _panels(self, a: str, b: str, rows: _Size, columns: _Size, groups: _Size) -> None:
        full, rest = self._divided(columns, self.width)

        def panel(number: str, vectors: int) -> None:
            size = self._times(number, self.product.panel[0] * self.width)
            place = self._moved(b, self.product.operand, size)
            c = self._moved("%c", self.product.total, self._times(number, self.width))
            self._rows(a, place, c, rows, vectors, groups)

        self._repeat(full, lambda number: panel(number, self.vectors))
        lanes = self.product.total.width
        if rest.known is not None:
            self._if_any(rest, lambda: panel(full.text, -(-(rest.known or 1) // lanes)))
            return

        def choose(widths: list[int]) -> None:
            """Take the narrowest of the kernels that covers the rest."""
            if len(widths) == 1:
                panel(full.text, widths[0])
                return
            fits = self.ops.compare("sle", I64, rest.text, str(widths[0] * lanes))
            self._choice(fits, lambda: panel(full.text, widths[0]), lambda: choose(widths[1:]))

        self._if_any(rest, lambda: choose(_halves(self.vectors)[::-1]))

    def _rows(self, a: str, b: str, c: str, rows: _Size, vectors: int, groups: _Size) -> None:
        """Run the blocks of rows: whole ones, and halves of them for what is left."""
        product = self.product
        whole = groups.known is not None and groups.known % UNROLL == 0
        block = Block(
            self.instruction, 0, vectors, product.a_stride, self.width, product.c_stride, product.operand,
            product.total, whole, self.instruction != product.instruction and self.group == 4,
        )  # fmt: skip
        shift = self._shift(b, block, groups) if block.shifted else "null"
        first, left = "0", rows
        limit = block_rows(self.target, vectors)
        sizes = [limit, *([left.known % limit] if left.known is not None else _halves(limit)[1:])]
        for size in sizes:
            if not size:
                continue
            count, rest = self._divided(left, size)
            kernel = replace(block, rows=size)
            start = first
            self._repeat(
                count,
                lambda i, s=size, k=kernel, f=start: self._call(
                    k, a, b, c, self._sum(f, self._times(i, s)), groups, shift
                ),
            )
            first, left = self._sum(first, self._times(count.text, size)), rest

    def _call(self, block: Block, a: str, b: str, c: str, row: str, groups: _Size, shift: str) -> None:
        symbol = block_kernel(self.module, self.target, block)
        a = self._moved(a, block.operand, self._times(row, block.a_stride))
        c = self._moved(c, block.total, self._times(row, block.c_stride))
        self.fn.line(f"call void @{symbol}(ptr {a}, ptr {b}, ptr {c}, i64 {groups.text}, ptr {shift})")

    def _shift(self, b: str, block: Block, groups: _Size) -> str:
        """Return where 128 times the sums of each column of a panel are."""
        ops, type_ = self.ops, block.operand
        place = self.fn.entry_assign(f"alloca [{block.vectors} x {type_}], align 64")
        zero = "zeroinitializer"
        for vector in range(block.vectors):
            target = ops.gep(type_.element, place, str(vector * type_.width))
            self.fn.line(f"store {type_} {zero}, ptr {target}, align 64")

        def step(k: str) -> None:
            for vector in range(block.vectors):
                offset = self._sum(self._times(k, self.width), str(vector * type_.width))
                value = self.fn.assign(f"load {type_}, ptr {self._moved(b, type_, offset)}, align 4")
                target = ops.gep(type_.element, place, str(vector * type_.width))
                total = self.fn.assign(f"load {type_}, ptr {target}, align 64")
                many = ops.integer(type_, FLIP)
                types = (type_, block.total)
                total = multiply_add(ops, self.target, self.instruction, types, many, value, total)
                self.fn.line(f"store {type_} {total}, ptr {target}, align 64")

        self._repeat(groups, step)
        return place

    # Text

    def _moved(self, pointer: str, type_: LLVMType, offset: str) -> str:
        return self.ops.gep(type_.element, pointer, offset)

    def _times(self, value: str, factor: int) -> str:
        if value.isdigit():
            return str(int(value) * factor)
        return value if factor == 1 else self.fn.assign(f"mul nsw i64 {value}, {factor}")

    def _sum(self, a: str, b: str) -> str:
        if a == "0" or b == "0":
            return b if a == "0" else a
        if a.isdigit() and b.isdigit():
            return str(int(a) + int(b))
        return self.fn.assign(f"add nsw i64 {a}, {b}")

    def _divided(self, size: _Size, by: int) -> tuple[_Size, _Size]:
        if size.known is not None:
            full, rest = divmod(size.known, by)
            return _Size(str(full), full), _Size(str(rest), rest)
        full = self.fn.assign(f"sdiv i64 {size.text}, {by}")
        return _Size(full, None), _Size(self.fn.assign(f"srem i64 {size.text}, {by}"), None)

    def _repeat(self, count: _Size, body: Callable[[str], None]) -> None:
        """Loop `count` times; `body` takes the counter as text."""
        fn = self.fn
        if count.known is not None and count.known <= 1:
            if count.known:
                body("0")
            return
        before, head, exit_ = fn.block, fn.label("head"), fn.label("exit")
        inside = fn.label("body")
        fn.branch(head)
        fn.start(head)
        place, counter = fn.reserve(), fn.fresh("i")
        fn.branch_if(self.ops.compare("slt", I64, counter, count.text), inside, exit_)
        fn.start(inside)
        body(counter)
        following = fn.assign(f"add nsw i64 {counter}, 1")
        fn.fill(place, f"{counter} = phi i64 [ 0, %{before} ], [ {following}, %{fn.block} ]")
        fn.branch(head, f", !llvm.loop {self.module.loop()}")
        fn.start(exit_)

    def _if_any(self, size: _Size, body: Callable[[], None]) -> None:
        if size.known is not None:
            if size.known:
                body()
            return
        self._choice(self.ops.compare("sgt", I64, size.text, "0"), body, lambda: None)

    def _choice(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        fn = self.fn
        labels = fn.label("then"), fn.label("else")
        join = fn.label("join")
        fn.branch_if(condition, *labels)
        for label, body in zip(labels, (then, otherwise), strict=True):
            fn.start(label)
            body()
            fn.branch(join)
        fn.start(join)


@dataclass(frozen=True)
class _Size:
    """A size as text, and as a number where it is known."""

    text: str
    known: int | None


def _sized(known: int | None, name: str) -> _Size:
    return _Size(name if known is None else str(known), known)


def _halves(number: int) -> list[int]:
    """Return a number and its halves down to 1."""
    found = [number]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found
