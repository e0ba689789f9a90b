"""The matrix unit of x86-64 (AMX): blocks of 32 x 32 sums in four tile registers.

A tile register holds 16 rows of 64 bytes. Rows of a left operand and panels of a right one, as the vector kernels
read them, are tiles already: only strides differ.
"""

from __future__ import annotations

from tessera.backends.cpu.texts import Loops, Size, masked_load
from tessera.backends.llvm.ops import I64
from tessera.backends.llvm.text import ModuleText
from tessera.backends.llvm.types import LLVMType
from tessera.data import dataclass
from tessera.target.products import UNITS

TILE = UNITS["amx_bf16"].m
"""Rows of a tile, and its 32-bit columns."""

TILE_BYTES = 4 * TILE
"""Bytes of one of its rows."""

DOTS = {"amx_bf16": "tdpbf16ps", "amx_f16": "tdpfp16ps", "amx_i8": "tdpbssd"}
"""What LLVM calls the products of `target.products.UNITS`."""

WIDE = 2
"""Tiles beside each other in a block of sums, and below each other."""

LEFT, RIGHT = 4, 6
"""The first tile register of each operand; sums are in the registers before."""

_ROWS_AT = 48
"""Where the numbers of rows are in the description of the registers."""


def configure(loops: Loops, rows: str = str(TILE)) -> None:
    """Set the tile registers to rows of `TILE_BYTES`: of sums and of the left operand so many, of the right one 16."""
    shape = [1, *([0] * 15), *([TILE_BYTES, 0] * 8), *([0] * 16), *([TILE] * 8), *([0] * 8)]
    body = ", ".join(f"i8 {byte}" for byte in shape)
    table = loops.module.add_global(
        "tessera_tiles", f"private unnamed_addr constant [{len(shape)} x i8] [{body}], align 64"
    )
    if rows != str(TILE):
        place, type_ = loops.fn.entry_assign(f"alloca [{len(shape)} x i8], align 64"), f"<{len(shape)} x i8>"
        whole = loops.fn.assign(f"load {type_}, ptr {table}, align 64")
        loops.fn.line(f"store {type_} {whole}, ptr {place}, align 64")
        byte = rows if rows.isdigit() else loops.fn.assign(f"trunc i64 {rows} to i8")
        for register in range(RIGHT):
            loops.fn.line(f"store i8 {byte}, ptr {loops.ops.gep('i8', place, str(_ROWS_AT + register))}, align 1")
        table = place
    loops.module.declare("declare void @llvm.x86.ldtilecfg(ptr)")
    loops.fn.line(f"call void @llvm.x86.ldtilecfg(ptr {table})")


def release(loops: Loops) -> None:
    """Release the tile registers, so that the system need not save them."""
    loops.module.declare("declare void @llvm.x86.tilerelease()")
    loops.fn.line("call void @llvm.x86.tilerelease()")


@dataclass(frozen=True)
class TileBlock:
    """What one kernel is specialised for; strides are in bytes.

    Args:
        instruction: a key of `DOTS`.
        rows: rows of tiles, one or two.
        columns: columns of tiles, one or two.
        left: distance of two rows of the left operand, of two tiles below each other, and of two steps.
        b_stride: distance of two rows of tiles in a panel.
        c_stride: distance of two rows of sums.
    """

    instruction: str
    rows: int
    columns: int
    left: tuple[int, int, int]
    b_stride: int
    c_stride: int

    @property
    def name(self) -> str:
        """A symbol that tells kernels apart."""
        strides = "_".join(str(stride) for stride in (*self.left, self.b_stride, self.c_stride))
        return f"tessera_{self.instruction}_{self.rows}x{self.columns}_{strides}"


def tile_kernel(module: ModuleText, block: TileBlock) -> str:
    """Define the kernel `void (a, b, c, count, fresh)` once, and return its symbol.

    `count` steps are 16 groups each; the sums are what is in `c` and the products, or these alone where `fresh` is.
    """
    if not module.has(block.name):
        module.define(block.name, _TileKernel(module, block).render())
    return block.name


class _TileKernel(Loops):
    """Writes one kernel."""

    def __init__(self, module: ModuleText, block: TileBlock):
        signature = (
            f"define internal void @{block.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %count, i1 %fresh)"
        )
        super().__init__(module, signature)
        self.block = block

    def render(self) -> str:
        """Return the function's text."""
        block = self.block
        sums = [
            (
                row * block.columns + column,
                self._at("%c", row * TILE * block.c_stride + column * TILE_BYTES),
            )
            for row in range(block.rows)
            for column in range(block.columns)
        ]

        def load() -> None:
            for register, place in sums:
                move(self, "tileloadd64", register, place, str(block.c_stride))

        def begin() -> None:
            self.module.declare("declare void @llvm.x86.tilezero(i8 immarg)")
            for register, _ in sums:
                self.fn.line(f"call void @llvm.x86.tilezero(i8 {register})")

        self.choice("%fresh", begin, load)
        self.repeat(Size("%count", None), self._step)
        for register, place in sums:
            move(self, "tilestored64", register, place, str(block.c_stride))
        self.fn.line("ret void")
        return self.fn.render()

    def _at(self, base: str, offset: int) -> str:
        return self.ops.gep("i8", base, str(offset))

    def _step(self, number: str) -> None:
        """Multiply one step's tiles.

        All are loaded first: where another thread of the core is busy, products and loads overlap only so far.
        """
        block = self.block
        pitch, below, step = block.left
        a = self.ops.gep("i8", "%a", self.times(number, step))
        b = self.ops.gep("i8", "%b", self.times(number, TILE * block.b_stride))
        for row in range(block.rows):
            move(self, "tileloadd64", LEFT + row, self._at(a, row * below), str(pitch))
        for column in range(block.columns):
            move(self, "tileloadd64", RIGHT + column, self._at(b, column * TILE_BYTES), str(block.b_stride))
        for row in range(block.rows):
            for column in range(block.columns):
                multiply(self, block.instruction, row * block.columns + column, LEFT + row, RIGHT + column)


def move(loops: Loops, name: str, register: int, place: str, pitch: str) -> None:
    """Load or store a tile register whose rows are `pitch` bytes apart in memory."""
    loops.module.declare(f"declare void @llvm.x86.{name}(i8 immarg, ptr, i64)")
    loops.fn.line(f"call void @llvm.x86.{name}(i8 {register}, ptr {place}, i64 {pitch})")


def multiply(loops: Loops, instruction: str, total: int, left: int, right: int) -> None:
    """Add the product of two tile registers to a third."""
    symbol = f"llvm.x86.{DOTS[instruction]}"
    loops.module.declare(f"declare void @{symbol}(i8 immarg, i8 immarg, i8 immarg)")
    loops.fn.line(f"call void @{symbol}(i8 {total}, i8 {left}, i8 {right})")


def copy_end(loops: Loops, source: str, target: str, count: str) -> None:
    """Copy the first `count` bytes, 1 to 63, of a tile's row and fill the rest with zeros."""
    row, bools = LLVMType("i8", TILE_BYTES), LLVMType("i1", TILE_BYTES)
    ones = loops.fn.assign(f"shl i64 1, {count}")
    mask = loops.ops.convert("bitcast", I64, loops.fn.assign(f"sub i64 {ones}, 1"), bools)
    value = masked_load(loops.module, loops.fn, row, source, 1, mask)
    loops.fn.line(f"store {row} {value}, ptr {target}, align {TILE_BYTES}")
