"""The order in which programs take the tiles of a grid: each tile once, whatever the sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from xdsl.ir import SSAValue

import tessera as ts
from tessera.ir.target.arithmetic import CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.target.memory import StoreOp
from tessera.ir.target.structure import FuncOp, ProgramIdOp
from tests.unit.lower.support import lowered

FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "minimum": min,
    "maximum": max,
}


def any_size(x: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 1), (n, 1)):
        x[i, j] = 1.0


def wide(x: ts.Tensor["m", 2**28, ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 1), (2**28, 1)):
        x[i, j] = 1.0


def narrow(x: ts.Tensor["m", 7, ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 1), (7, 1)):
        x[i, j] = 1.0


def tile_of(func: FuncOp, program: int, sizes: tuple[int, int]) -> tuple[int, ...]:
    """Return where a program stores: what its arithmetic gives, in 32 bits where that is so."""
    known: dict[SSAValue, int] = dict(zip(func.body.block.args, sizes, strict=False))
    for op in func.body.walk():
        if isinstance(op, StoreOp):
            return tuple(known[offset] for offset in op.offsets)
        if isinstance(op, ProgramIdOp):
            value = program
        elif isinstance(op, ConstantOp):
            value = int(constant_value(op.result) or 0)
        elif isinstance(op, CastOp):
            value = known[op.source]
        elif isinstance(op, ElementwiseOp) and op.fn.data in FUNCTIONS:
            value = FUNCTIONS[op.fn.data](*(known[operand] for operand in op.operands))
        else:
            continue
        known[op.results[0]] = value % 2**32 if "ui32" in str(op.results[0].type) else value
    raise AssertionError("it stores nothing")


@pytest.mark.parametrize(
    ("kernel", "rows", "columns"),
    [
        (any_size, 3, 2**28),
        (any_size, 37, 5),
        (any_size, 16, 2**20),
        (any_size, 1, 7),
        (wide, 3, 2**28),
        (narrow, 40, 7),
    ],
)
def test_each_program_takes_a_tile_of_its_own(kernel: Callable[..., None], rows: int, columns: int) -> None:
    func, total = lowered(kernel), rows * columns
    programs = range(total) if total < 1000 else (0, 1, 2, 3, 5, 2**20 - 1, columns, columns + 1, total // 2, total - 1)
    tiles = [tile_of(func, program, (rows, columns)) for program in programs]
    assert len(set(tiles)) == len(tiles)
    assert all(0 <= row < rows and 0 <= column < columns for row, column in tiles)
    if total < 1000:
        assert len(set(tiles)) == total
