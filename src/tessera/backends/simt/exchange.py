"""Exchanges between the threads of a block."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import I1, I32
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.backends.simt.fragments import shuffle
from tessera.backends.simt.memory import load_shared, store_shared
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.exchange import ExchangeOp, ExchangeWarpsOp, KeepInOrderOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


@SIMT.register(ExchangeOp)
def emit_exchange(emitter: SimtEmitter, op: ExchangeOp) -> None:
    """Take registers by other names, and those of another lane by shuffles."""
    type_ = op.source.type
    assert isinstance(type_, FragmentType)
    units = emitter.units(op.source)
    units = [units[r ^ op.register.data] for r in range(len(units))]
    lane: int | str = op.lane.data
    if op.lanes is not None:
        lanes = emitter.unit(op.lanes)
        lane = emitter.ops.binary("xor", I32, lanes, str(lane)) if lane else lanes
    if lane:
        units = [shuffle(emitter, unit, type_.dtype, lane) for unit in units]
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
    other = emitter.entry(("xor", own, flipped), f"xor i32 {own}, {flipped}") if flipped else own
    if op.warps is not None:
        bytes_ = emitter.ops.binary("mul", I32, emitter.unit(op.warps), str(layout.lanes * size))
        other = emitter.ops.binary("xor", I32, other, bytes_)
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


@SIMT.register(KeepInOrderOp)
def emit_order(emitter: SimtEmitter, op: KeepInOrderOp) -> None:
    """Take the smaller or the larger of two; where only the thread decides which, by its place."""
    type_ = op.outputs[0].type
    assert isinstance(type_, FragmentType)
    upper = None
    if constant_value(op.threads) != 0:
        lanes = type_.linear.lanes
        bits = [(emitter.lane(), [1 << bit for bit in range(lanes.bit_length() - 1)])]
        bits.append((emitter.warp(), [lanes << bit for bit in range(type_.linear.warps.bit_length() - 1)]))
        both = emitter.ops.binary("and", I32, emitter.linear(bits), emitter.unit(op.threads))
        upper = emitter.ops.compare("ne", I32, both, "0")
    kinds = [value.type.dtype for value in op.outputs]
    columns = list(zip(*(emitter.units(source) for source in op.sources), strict=True))
    lower, found = op.descending is not None, list[list[str]]()
    for register, column in enumerate(columns):
        own, other, largest = column[: len(kinds)], column[len(kinds) :], lower ^ bool(register & op.register.data)
        found.append(_ordered(emitter, kinds, own, other, largest, upper))
    for output, units in zip(op.outputs, zip(*found, strict=True), strict=True):
        emitter.bind(output, list(units))


def _ordered(
    emitter: SimtEmitter,
    kinds: Sequence[DType],
    own: Sequence[str],
    other: Sequence[str],
    largest: bool,
    upper: str | None,
) -> list[str]:
    """Return the smaller of two tuples, the largest where one of `largest` and `upper` holds."""

    def apply(fn: str, dtype: DType, *args: str) -> str:
        return elementwise.apply(emitter, fn, dtype, 1, args)

    if len(kinds) == 1:
        names = ("maximum", "minimum") if largest else ("minimum", "maximum")
        first = apply(names[0], kinds[0], own[0], other[0])
        if upper is None:
            return [first]
        return [apply("select", kinds[0], upper, apply(names[1], kinds[0], own[0], other[0]), first)]
    before = apply("lt", kinds[0], other[0], own[0])
    ties = apply(
        "and", dtypes.boolean, apply("eq", kinds[0], other[0], own[0]), apply("lt", kinds[1], other[1], own[1])
    )
    taken = apply("or", dtypes.boolean, before, ties)
    if largest:
        taken = emitter.ops.binary("xor", I1, taken, "true")
    if upper is not None:
        taken = emitter.ops.binary("xor", I1, taken, upper)
    return [apply("select", kind, taken, b, a) for kind, a, b in zip(kinds, own, other, strict=True)]
