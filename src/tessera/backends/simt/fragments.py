"""Fragments in the SIMT model: coordinates, renamed registers and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.backends.llvm import elementwise
from tessera.backends.llvm.arithmetic import emit_elementwise as emit_elementwise_units
from tessera.backends.llvm.ops import F32, I32
from tessera.backends.llvm.types import LLVMType, of_dtype
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.ir.layouts import REGISTER, reduction
from tessera.ir.target.arithmetic import (
    CastOp,
    ElementwiseOp,
    ExchangeLanesOp,
    ExtractOp,
    IotaOp,
    ReduceLanesOp,
    ReduceRegistersOp,
    RelayoutOp,
)
from tessera.ir.target.structure import ProgramCountOp, ProgramIdOp, ReturnOp
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import COMBINE


@SIMT.register(ReturnOp)
def emit_return(emitter: SimtEmitter, _op: ReturnOp) -> None:
    """End the function."""
    emitter.fn.line("ret void")


@SIMT.register(ProgramIdOp)
def emit_program_id(emitter: SimtEmitter, op: ProgramIdOp) -> None:
    """Bind the program's number."""
    emitter.bind(op.result, [emitter.program_id()])


@SIMT.register(ProgramCountOp)
def emit_program_count(emitter: SimtEmitter, op: ProgramCountOp) -> None:
    """Bind the number of programs."""
    emitter.bind(op.result, [emitter.program_count()])


@SIMT.register(IotaOp)
def emit_iota(emitter: SimtEmitter, op: IotaOp) -> None:
    """Compute each register's coordinate: the thread's part plus a constant."""
    type_ = op.result.type
    assert isinstance(type_, FragmentType)
    layout, axis = type_.linear, op.axis.data
    part = emitter.thread_part(layout, axis)
    target = of_dtype(type_.dtype)
    if target.element == "i64" and part != "0":
        part = emitter.entry(("zext", part), f"zext i32 {part} to i64")
    elif target.element not in ("i32", "i64") and part != "0":
        part = emitter.entry(("trunc", part, target.element), f"trunc i32 {part} to {target.element}")
    units: list[str] = []
    for register in range(layout.in_size(REGISTER)):
        step = layout.apply(register=register)[axis]
        if part == "0":
            units.append(str(step))
        else:
            units.append(emitter.ops.binary("add", target, part, str(step)) if step else part)
            emitter.positions[units[-1]] = (part, step)
    emitter.bind(op.result, units)


@SIMT.register(ElementwiseOp)
def emit_elementwise(emitter: SimtEmitter, op: ElementwiseOp) -> None:
    """Apply the function to each register; coordinates are compared by their constant parts."""
    if op.fn.data in _MIRRORED and dtype_of(element_of(op.args[0].type)).name in ("i32", "i64"):
        first, second = (emitter.units(arg) for arg in op.args)
        for fn, left, right in ((op.fn.data, first, second), (_MIRRORED[op.fn.data], second, first)):
            if all(u in emitter.positions for u in left) and not any(u in emitter.positions for u in right):
                emitter.bind(op.result, _compare_positions(emitter, fn, op, left, right))
                return
    emit_elementwise_units(emitter, op)


_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def _compare_positions(
    emitter: SimtEmitter, fn: str, op: ElementwiseOp, left: Sequence[str], right: Sequence[str]
) -> list[str]:
    """Compare coordinates, `part + step`, with other values: `step` with `value - part`, which registers share.

    The sum does not overflow, and the difference is saturated, so that the results are the same.
    """
    type_ = of_dtype(dtype_of(element_of(op.args[0].type)))
    limits: dict[tuple[str, str], str] = {}
    units: list[str] = []
    for position, value in zip(left, right, strict=True):
        part, step = emitter.positions[position]
        if (value, part) not in limits:
            limits[value, part] = emitter.ops.intrinsic("ssub.sat", type_, value, part)
        units.append(emitter.ops.compare(f"s{fn}", type_, str(step), limits[value, part]))
    return units


@SIMT.register(RelayoutOp)
def emit_relayout(emitter: SimtEmitter, op: RelayoutOp) -> None:
    """Rename registers; packed words stay packed where their elements stay together."""
    units = emitter.units(op.source)
    wanted = [r.data for r in op.source_registers.data]
    emitter.bind(op.result, [units[r] for r in wanted])
    words = emitter.words.get(op.source)
    if words is None:
        return
    per_word = len(units) // len(words)
    groups = [wanted[i : i + per_word] for i in range(0, len(wanted), per_word)]
    if all(g[0] % per_word == 0 and g == list(range(g[0], g[0] + per_word)) for g in groups):
        emitter.words[op.result] = [words[g[0] // per_word] for g in groups]


@SIMT.register(ExtractOp)
def emit_extract(emitter: SimtEmitter, op: ExtractOp) -> None:
    """Take the only register."""
    emitter.bind(op.result, [emitter.units(op.source)[0]])


def combine(emitter: SimtEmitter, fn: str, dtype: DType, values: Sequence[str]) -> str:
    """Combine values pairwise, as a balanced tree: short chains, and a fixed order."""
    rest = list(values)
    while len(rest) > 1:
        pairs = [
            elementwise.apply(emitter, COMBINE[fn], dtype, 1, rest[i : i + 2]) if i + 1 < len(rest) else rest[i]
            for i in range(0, len(rest), 2)
        ]
        rest = pairs
    return rest[0]


@SIMT.register(ReduceRegistersOp)
def emit_reduce_registers(emitter: SimtEmitter, op: ReduceRegistersOp) -> None:
    """Combine the registers that differ only along the axis."""
    type_ = op.source.type
    assert isinstance(type_, FragmentType)
    plan = reduction(type_.linear, op.axis.data)
    units = emitter.units(op.source)
    emitter.bind(
        op.result,
        [combine(emitter, op.fn.data, type_.dtype, [units[r] for r in group]) for group in plan.groups],
    )


@SIMT.register(ReduceLanesOp)
def emit_reduce_lanes(emitter: SimtEmitter, op: ReduceLanesOp) -> None:
    """Exchange each register with the lane `lane ^ mask` and combine."""
    dtype = dtype_of(element_of(op.source.type))
    units: list[str] = []
    for unit in emitter.units(op.source):
        other = shuffle(emitter, unit, dtype, op.mask.data)
        units.append(elementwise.apply(emitter, COMBINE[op.fn.data], dtype, 1, [unit, other]))
    emitter.bind(op.result, units)


@SIMT.register(ExchangeLanesOp)
def emit_exchange_lanes(emitter: SimtEmitter, op: ExchangeLanesOp) -> None:
    """Exchange each register with the lane `lane ^ mask`, and choose which of the two is the lower one's."""
    dtype, ops, mask = dtype_of(element_of(op.source.type)), emitter.ops, op.mask.data
    bit = ops.binary("and", I32, emitter.lane(), str(mask & -mask))
    is_upper = ops.compare("ne", I32, bit, "0")
    lower: list[str] = []
    upper: list[str] = []
    for unit in emitter.units(op.source):
        other = shuffle(emitter, unit, dtype, mask)
        lower.append(ops.select(of_dtype(dtype), is_upper, other, unit))
        upper.append(ops.select(of_dtype(dtype), is_upper, unit, other))
    emitter.bind(op.lower, lower)
    emitter.bind(op.upper, upper)


def shuffle(emitter: SimtEmitter, unit: str, dtype: DType, mask: int | str) -> str:
    """Return the value that lane `lane ^ mask` holds in this register."""
    ops, type_ = emitter.ops, of_dtype(dtype)
    if type_ == F32:
        moved = emitter.shuffle_xor(ops.convert("bitcast", F32, unit, I32), mask)
        return ops.convert("bitcast", I32, moved, F32)
    if type_.element in ("double", "i64"):
        halves = LLVMType("i32", 2)
        pair = ops.convert("bitcast", type_, unit, halves)
        moved = [emitter.shuffle_xor(ops.extract(halves, pair, lane), mask) for lane in range(2)]
        both = ops.insert(halves, ops.insert(halves, "poison", moved[0], 0), moved[1], 1)
        return ops.convert("bitcast", halves, both, type_)
    if type_.element == "i32":
        return emitter.shuffle_xor(unit, mask)
    narrow = LLVMType({"half": "i16", "bfloat": "i16"}.get(type_.element, type_.element))
    bits = unit if narrow == type_ else ops.convert("bitcast", type_, unit, narrow)
    moved_bits = emitter.shuffle_xor(ops.convert("zext", narrow, bits, I32), mask)
    back = ops.convert("trunc", I32, moved_bits, narrow)
    return back if narrow == type_ else ops.convert("bitcast", narrow, back, type_)


@SIMT.register(CastOp)
def emit_cast(emitter: SimtEmitter, op: CastOp) -> None:
    """Convert each register; f32 to a 16-bit float goes two at a time and stays packed for the matrix unit."""
    from tessera.backends.llvm.arithmetic import emit_cast as emit_cast_units

    source, result = dtype_of(element_of(op.source.type)), dtype_of(element_of(op.result.type))
    units = emitter.units(op.source)
    narrow = emitter.native_narrow(result)
    if (
        source.name != "f32"
        or narrow is None
        or op.saturate is not None
        or len(units) % 2
        or not isinstance(op.source.type, FragmentType)
    ):
        emit_cast_units(emitter, op)
        return
    ops, pair, packed = emitter.ops, LLVMType("float", 2), LLVMType(narrow, 2)
    words: list[str] = []
    narrowed: list[str] = []
    for i in range(0, len(units), 2):
        both = ops.insert(pair, ops.insert(pair, "poison", units[i], 0), units[i + 1], 1)
        value = ops.convert("fptrunc", pair, both, packed)
        words.append(ops.convert("bitcast", packed, value, I32))
        narrowed += [ops.extract(packed, value, lane) for lane in range(2)]
    emitter.bind(op.result, narrowed)
    emitter.words[op.result] = words
