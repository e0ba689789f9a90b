"""The other ops of the vector model: program number, lane numbers, combining lanes, print and assert."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import F64, I64, PTR, Typed
from tessera.backends.llvm.types import LLVMType
from tessera.ir.target.arithmetic import HalvesOp, IotaOp, ReduceRegistersOp, RelayoutOp, TransposeChunksOp
from tessera.ir.target.debug import AssertOp, PrintOp
from tessera.ir.target.structure import ProgramIdOp, ReturnOp
from tessera.ir.target.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType


@CPU.register(ProgramIdOp)
def emit_program_id(emitter: CpuEmitter, op: ProgramIdOp) -> None:
    """The counter of the entry's loop."""
    emitter.bind(op.result, [emitter.program])


@CPU.register(ReturnOp)
def emit_return(emitter: CpuEmitter, op: ReturnOp) -> None:
    """Nothing: the entry's loop goes on to the next program."""


@CPU.register(IotaOp)
def emit_iota(emitter: CpuEmitter, op: IotaOp) -> None:
    """A constant vector."""
    emitter.bind(op.result, [emitter.iota(emitter.unit_type(op.result.type))])


@CPU.register(ReduceRegistersOp)
def emit_reduce_registers(emitter: CpuEmitter, op: ReduceRegistersOp) -> None:
    """Combine the lanes, the upper half with the lower one until one is left."""
    dtype, width = dtype_of(element_of(op.source.type)), emitter.unit_width(op.source.type)
    value = emitter.unit(op.source)
    while width > 1:
        halves = _halves(emitter, value, emitter.value_type(dtype, width))
        width //= 2
        value = elementwise.apply(emitter, op.fn.data, dtype, width, halves)
    emitter.bind(op.result, [value])


def _halves(emitter: CpuEmitter, value: str, type_: LLVMType) -> list[str]:
    """Return the first and the second half of a vector; scalars where a half is one lane."""
    width, fn = type_.width // 2, emitter.ops.fn
    halves: list[str] = []
    for first in (0, width):
        lanes = ", ".join(f"i32 {first + lane}" for lane in range(width))
        mask = f"<{width} x i32> <{lanes}>"
        halves.append(fn.assign(f"shufflevector {type_} {value}, {type_} poison, {mask}"))
    if width > 1:
        return halves
    one = LLVMType(type_.element)
    return [fn.assign(f"extractelement <1 x {one}> {half}, i64 0") for half in halves]


@CPU.register(HalvesOp)
def emit_halves(emitter: CpuEmitter, op: HalvesOp) -> None:
    """Take each half by a shuffle."""
    first, second = _halves(emitter, emitter.unit(op.source), emitter.unit_type(op.source.type))
    emitter.bind(op.first, [first])
    emitter.bind(op.second, [second])


@CPU.register(RelayoutOp)
def emit_relayout(emitter: CpuEmitter, op: RelayoutOp) -> None:
    """Put the elements of a chunk in another order."""
    type_, order = emitter.unit_type(op.source.type), [number.data for number in op.source_registers.data]
    lanes = ", ".join(f"i32 {number}" for number in order)
    source = emitter.unit(op.source)
    shuffled = f"shufflevector {type_} {source}, {type_} poison, <{len(order)} x i32> <{lanes}>"
    emitter.bind(op.result, [emitter.fn.assign(shuffled)])


@CPU.register(TransposeChunksOp)
def emit_transpose(emitter: CpuEmitter, op: TransposeChunksOp) -> None:
    """Interleave row i with row i + n/2, log2(n) times over: that transposes an n x n square.

    Rows that are longer than they are many are cut into squares. Shorter ones are joined, each with those n, 2n, …
    further on: then squares that lie side by side are transposed together.
    """
    values, count = emitter.all_units(list(op.rows)), len(op.rows)
    width = emitter.unit_type(op.rows[0].type).width
    if width < count:
        joined = [_joined(emitter, op, values[first::width]) for first in range(width)]
        values = _blocks_transposed(emitter, emitter.unit_type(op.columns[0].type), joined)
    else:
        parts = [[_piece(emitter, op, value, first) for value in values] for first in range(0, width, count)]
        values = [
            column for part in parts for column in _transposed(emitter, emitter.unit_type(op.columns[0].type), part)
        ]
    for result, value in zip(op.columns, values, strict=True):
        emitter.bind(result, [value])


def _transposed(emitter: CpuEmitter, type_: LLVMType, values: list[str]) -> list[str]:
    """Return the columns of a square."""
    half = type_.width // 2
    low = [lane // 2 + (lane % 2) * type_.width for lane in range(type_.width)]
    for _ in range(type_.width.bit_length() - 1):
        values = [
            _shuffled(emitter, type_, (values[i], values[i + half]), [lane + first for lane in low])
            for i in range(half)
            for first in (0, half)
        ]
    return values


def _blocks_transposed(emitter: CpuEmitter, type_: LLVMType, values: list[str]) -> list[str]:
    """Return the rows of squares side by side, as many rows as a square has, with each square transposed."""
    for bit in (1 << place for place in range(len(values).bit_length() - 1)):
        lanes, width, found = range(type_.width), type_.width, list(values)
        for low in (number for number in range(len(values)) if not number & bit):
            pair = values[low], values[low | bit]
            found[low] = _shuffled(emitter, type_, pair, [k + width - bit if k & bit else k for k in lanes])
            found[low | bit] = _shuffled(emitter, type_, pair, [k + width if k & bit else k + bit for k in lanes])
        values = found
    return values


def _joined(emitter: CpuEmitter, op: TransposeChunksOp, values: list[str]) -> str:
    """Return vectors as one."""
    type_ = emitter.unit_type(op.rows[0].type)
    while len(values) > 1:
        lanes = range(2 * type_.width)
        values = [_shuffled(emitter, type_, pair, lanes) for pair in zip(values[::2], values[1::2], strict=True)]
        type_ = LLVMType(type_.element, 2 * type_.width)
    return values[0]


def _piece(emitter: CpuEmitter, op: TransposeChunksOp, value: str, first: int) -> str:
    """Return as many elements of a row as there are rows."""
    count, type_ = len(op.rows), emitter.unit_type(op.rows[0].type)
    if count == type_.width:
        return value
    return _shuffled(emitter, type_, (value, "poison"), range(first, first + count))


def _shuffled(emitter: CpuEmitter, type_: LLVMType, pair: tuple[str, str], lanes: Sequence[int]) -> str:
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return emitter.fn.assign(f"shufflevector {type_} {pair[0]}, {type_} {pair[1]}, <{len(lanes)} x i32> <{order}>")


@CPU.register(PrintOp)
def emit_print(emitter: CpuEmitter, op: PrintOp) -> None:
    """Write a line to standard output with `dprintf`: `%g` for floats, `%lld` for the rest."""
    parts = [part.replace("%", "%%") for part in op.format.data.split("{}")]
    text, args = parts[0], list[Typed]()
    for value, part in zip(op.args, parts[1:], strict=True):
        code, typed = _printable(emitter, emitter.unit(value), dtype_of(value.type))
        text += code + part
        args.append(typed)
    emitter.module.declare("declare i32 @dprintf(i32, ptr, ...)")
    given = ", ".join(f"{type_} {value}" for type_, value in [(PTR, emitter.module.string(text + "\n")), *args])
    emitter.fn.line(f"call i32 (i32, ptr, ...) @dprintf(i32 1, {given})")


def _printable(emitter: CpuEmitter, value: str, dtype: DType) -> tuple[str, Typed]:
    ops = emitter.ops
    if dtype.is_float:
        if dtype.bits < 32:
            value = emitter.widen(value, dtype, 1)
        if dtype.bits < 64:
            value = ops.convert("fpext", LLVMType("float"), value, F64)
        return "%g", (F64, value)
    return ("%llu" if dtype.name == "u64" else "%lld"), (I64, emitter.to_index(value, dtype))


@CPU.register(AssertOp)
def emit_assert(emitter: CpuEmitter, op: AssertOp) -> None:
    """Leave the function, with the assertion's number in the error word, when a lane is false."""
    fn, ops = emitter.fn, emitter.ops
    type_ = emitter.unit_type(op.condition.type)
    condition = emitter.unit(op.condition)
    if type_.width > 1:
        condition = ops.reduce("and", type_, condition)
    failed, passed = fn.label("assert.failed"), fn.label("assert.passed")
    fn.branch_if(condition, passed, failed)
    fn.start(failed)
    number = emitter.asserts.number(op)
    fn.line(f"store atomic i64 {number}, ptr {emitter.error} monotonic, align 8")
    fn.line("ret void")
    fn.start(passed)
