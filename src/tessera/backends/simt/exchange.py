"""Exchanges between the threads of a block."""

from __future__ import annotations

from tessera.backends.llvm.ops import I32
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.backends.simt.fragments import shuffle
from tessera.backends.simt.memory import load_shared, store_shared
from tessera.ir.target.exchange import ExchangeOp, ExchangeWarpsOp
from tessera.ir.target.types import BufferType, FragmentType


@SIMT.register(ExchangeOp)
def emit_exchange(emitter: SimtEmitter, op: ExchangeOp) -> None:
    """Take registers by other names, and those of another lane by shuffles."""
    type_ = op.source.type
    assert isinstance(type_, FragmentType)
    units = emitter.units(op.source)
    units = [units[r ^ op.register.data] for r in range(len(units))]
    if op.lane.data:
        units = [shuffle(emitter, unit, type_.dtype, op.lane.data) for unit in units]
    emitter.bind(op.result, units)


@SIMT.register(ExchangeWarpsOp)
def emit_exchange_warps(emitter: SimtEmitter, op: ExchangeWarpsOp) -> None:
    """Store some registers, wait, and load what the other thread stored; as many rounds as the buffer asks for."""
    type_, buffer = op.source.type, op.buffer.type
    assert isinstance(type_, FragmentType)
    assert isinstance(buffer, BufferType)
    layout, dtype = type_.linear, type_.dtype
    rows, row = buffer.shape
    together = row // (layout.lanes * layout.warps)
    size = together * dtype.bytes
    own = emitter.linear(
        [
            (emitter.lane(), [size << bit for bit in range(layout.lanes.bit_length() - 1)]),
            (emitter.warp(), [size * layout.lanes << bit for bit in range(layout.warps.bit_length() - 1)]),
        ]
    )
    flipped = (op.warp.data * layout.lanes + op.lane.data) * size
    other = emitter.entry(("xor", own, flipped), f"xor i32 {own}, {flipped}")
    units, words = emitter.units(op.source), emitter.word_types(dtype, together)
    loaded: list[str] = []

    def place(thread: str, number: int) -> str:
        at = emitter.ops.binary("add", I32, thread, emitter.unit(op.buffer))
        return emitter.ops.binary("add", I32, at, str(number * row * dtype.bytes)) if number else at

    parts = [units[first : first + together] for first in range(0, len(units), together)]
    for start in range(0, len(parts), rows):
        if start:
            emitter.barrier()
        round_ = parts[start : start + rows]
        for number, part in enumerate(round_):
            store_shared(emitter, place(own, number), emitter.pack(part, dtype))
        emitter.barrier()
        for number in range(len(round_)):
            loaded += emitter.unpack(load_shared(emitter, place(other, number), words), dtype, together)
    emitter.bind(op.result, [loaded[r ^ op.register.data] for r in range(len(loaded))])
