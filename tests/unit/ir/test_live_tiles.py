"""How many registers tiles take at a time, as one counts them by hand."""

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.ir.live_tiles import live_registers
from tessera.ir.tile.structure import GridOp
from tests.unit.frontend.support import built

N = 64
ROWS = ts.Tensor["m", N, ts.f32]
HALVES = ts.Tensor["m", N, ts.bf16]


def doubled(x: ROWS, y: ROWS):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 2 + 1


def added(x: ROWS, w: HALVES, y: ROWS):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row + w[i, :].to(ts.f32)


def softmax(x: HALVES, y: HALVES):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[i, :] = (powers / ts.tile.sum(powers)).to(ts.bf16)


def norm(x: HALVES, w: HALVES, y: HALVES):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        scaled = row / ts.tile.sum(row * row)
        y[i, :] = (scaled * w[i, :].to(ts.f32)).to(ts.bf16)


def kept(x: HALVES, y: HALVES):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :].to(ts.f32)
        powers = ts.tile.exp(row)
        y[i, :] = (powers / ts.tile.sum(powers) + row).to(ts.bf16)


def places(y: ts.Tensor["m", N, ts.i32]):
    for i in ts.tile.grid((m, 1)):
        at = ts.tile.arange(N)
        y[i, :] = at * 3 - ts.tile.sum(at * at, 0)


def shaped(x: ROWS, y: ROWS):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        square = ts.tile.reshape(row, (8, 8))
        y[i, :] = ts.tile.reshape(square - ts.tile.sum(square, 1, keepdims=True), (64,)) * row


def looped(x: ROWS, w: HALVES, y: ROWS):
    for i in ts.tile.grid((m, 1)):
        total, row = ts.tile.zeros((N,), ts.f32), x[i, :]
        for k in ts.tile.range(0, m):
            total = total + w[k, :].to(ts.f32)
        y[i, :] = total * row


@pytest.mark.parametrize(
    ("kernel", "rows"),
    [
        (doubled, 1.0),
        (added, 1.5),  # the row, and the halves of the other
        (softmax, 1.0),  # the row, then its powers
        (norm, 1.5),
        (kept, 2.0),  # the row and its powers while the sum is awaited
        (places, 0.0),
        (shaped, 1.0),  # other shapes of the row take nothing
        (looped, 2.5),  # the sums, the row, and a row that is loaded
    ],
)
def test_registers_are_those_of_tiles_that_wait(kernel: Callable[..., Any], rows: float) -> None:
    (grid,) = (op for op in built(kernel).module.walk() if isinstance(op, GridOp))
    assert live_registers(grid.body.block) == rows * N
