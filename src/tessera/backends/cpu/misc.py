"""The other ops of the vector model: program number, lane numbers, combining lanes, print and assert."""

from __future__ import annotations

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
    """Interleave row i with row i + n/2, log2(n) times over: that transposes an n x n square."""
    values = emitter.all_units(list(op.rows))
    type_ = emitter.unit_type(op.rows[0].type)
    half = type_.width // 2
    low = [lane // 2 + (lane % 2) * type_.width for lane in range(type_.width)]
    masks = [", ".join(f"i32 {lane + first}" for lane in low) for first in (0, half)]
    for _ in range(type_.width.bit_length() - 1):
        values = [
            emitter.fn.assign(
                f"shufflevector {type_} {values[i]}, {type_} {values[i + half]}, <{type_.width} x i32> <{mask}>"
            )
            for i in range(half)
            for mask in masks
        ]
    for result, value in zip(op.columns, values, strict=True):
        emitter.bind(result, [value])


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
