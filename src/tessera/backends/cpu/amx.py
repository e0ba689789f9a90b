"""The matrix unit of x86-64 (AMX): blocks of 32 x 32 sums in four tile registers.

A tile register holds 16 rows of 64 bytes. Rows of a left operand and panels of a right one, as the vector kernels
read them, are tiles already: only strides differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from tessera.backends.cpu.texts import Loops, Size
from tessera.backends.llvm.text import ModuleText

TILE = 16
"""Rows of a tile, and its 32-bit columns."""

_DOT = {"amx_bf16": "tdpbf16ps", "amx_i8": "tdpbssd"}
WIDE = 2
"""Tiles beside each other in a block of sums, and below each other."""

_LEFT, _RIGHT = 4, 6
"""The first tile register of each operand; sums are in the registers before."""


def configure(loops: Loops) -> None:
    """Set all eight tile registers to 16 rows of 64 bytes."""
    shape = [1, *([0] * 15), *([64, 0] * 8), *([0] * 16), *([TILE] * 8), *([0] * 8)]
    body = ", ".join(f"i8 {byte}" for byte in shape)
    table = loops.module.add_global(
        "tessera_tiles", f"private unnamed_addr constant [64 x i8] [{body}], align 64"
    )
    loops.module.declare("declare void @llvm.x86.ldtilecfg(ptr)")
    loops.fn.line(f"call void @llvm.x86.ldtilecfg(ptr {table})")


def release(loops: Loops) -> None:
    """Give the tile registers up, so that the system need not save them."""
    loops.module.declare("declare void @llvm.x86.tilerelease()")
    loops.fn.line("call void @llvm.x86.tilerelease()")


@dataclass(frozen=True)
class TileBlock:
    """What one kernel is specialised for; strides are in 32-bit elements.

    Args:
        instruction: a key of `_DOT`.
        rows: rows of tiles, one or two.
        columns: columns of tiles, one or two.
        a_stride: distance of two rows of the left operand.
        b_stride: distance of two steps in a panel.
        c_stride: distance of two rows of sums.
    """

    instruction: str
    rows: int
    columns: int
    a_stride: int
    b_stride: int
    c_stride: int

    @property
    def name(self) -> str:
        """A symbol that tells kernels apart."""
        sizes = f"{self.rows}x{self.columns}_{self.a_stride}_{self.b_stride}_{self.c_stride}"
        return f"tessera_{self.instruction}_{sizes}"


def tile_kernel(module: ModuleText, block: TileBlock) -> str:
    """Define the kernel `void (a, b, c, count)` once, and return its symbol; `count` steps are 16 elements each."""
    if not module.has(block.name):
        module.define(block.name, _TileKernel(module, block).render())
    return block.name


class _TileKernel(Loops):
    """Writes one kernel."""

    def __init__(self, module: ModuleText, block: TileBlock):
        signature = (
            f"define internal void @{block.name}(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %count)"
        )
        super().__init__(module, signature)
        self.block = block

    def render(self) -> str:
        """Return the function's text."""
        block = self.block
        sums = [
            (row * block.columns + column, str(row * TILE * block.c_stride + column * TILE))
            for row in range(block.rows)
            for column in range(block.columns)
        ]
        for register, offset in sums:
            self._move("tileloadd64", register, "%c", offset, block.c_stride)
        self.repeat(Size("%count", None), self._step)
        for register, offset in sums:
            self._move("tilestored64", register, "%c", offset, block.c_stride)
        self.fn.line("ret void")
        return self.fn.render()

    def _step(self, step: str) -> None:
        """Load each tile just before it is first multiplied: loads and products of tiles run side by side."""
        block = self.block
        symbol = f"llvm.x86.{_DOT[block.instruction]}"
        self.module.declare(f"declare void @{symbol}(i8 immarg, i8 immarg, i8 immarg)")
        for row in range(block.rows):
            offset = self.sum(self.times(step, TILE), str(row * TILE * block.a_stride))
            self._move("tileloadd64", _LEFT + row, "%a", offset, block.a_stride)
            for column in range(block.columns):
                if row == 0:
                    offset = self.sum(self.times(step, TILE * block.b_stride), str(column * TILE))
                    self._move("tileloadd64", _RIGHT + column, "%b", offset, block.b_stride)
                registers = (row * block.columns + column, _LEFT + row, _RIGHT + column)
                self.fn.line(f"call void @{symbol}({', '.join(f'i8 {number}' for number in registers)})")

    def _move(self, name: str, register: int, base: str, offset: str, stride: int) -> None:
        self.module.declare(f"declare void @llvm.x86.{name}(i8 immarg, ptr, i64)")
        place = self.ops.gep("i32", base, offset)
        self.fn.line(f"call void @llvm.x86.{name}(i8 {register}, ptr {place}, i64 {4 * stride})")
