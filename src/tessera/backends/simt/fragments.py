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


SHUFFLE_COST, WORTH = 4, 0.8
"""Time of a shuffle, in that of an operation of all lanes, and the part of it that another way to reduce may take."""


@SIMT.register(ReduceLanesOp)
def emit_reduce_lanes(emitter: SimtEmitter, op: ReduceLanesOp) -> None:
    """Exchange each register with the lane `lane ^ mask` and combine; several steps in a row are done by the last."""
    if _step_after(op) is not None:
        return
    steps = [op]
    while isinstance(before := steps[0].source.owner, ReduceLanesOp) and _step_after(before) is steps[0]:
        steps.insert(0, before)
    source, masks = steps[0].source, [step.mask.data for step in steps]
    dtype, fn, units = dtype_of(element_of(source.type)), COMBINE[op.fn.data], emitter.units(source)
    dealt = _dealt_levels(len(units), masks)
    kept = _deal(emitter, fn, dtype, units, masks[:dealt]) if dealt else list(units)
    for mask in masks[dealt:]:
        others = [shuffle(emitter, unit, dtype, mask) for unit in kept]
        kept = [elementwise.apply(emitter, fn, dtype, 1, [*both]) for both in zip(kept, others, strict=True)]
    emitter.bind(op.result, _collected(emitter, dtype, kept, masks[:dealt]) if dealt else kept)


def _step_after(op: ReduceLanesOp) -> ReduceLanesOp | None:
    """Return the step that alone reads what a step gives, if it goes on with the same function."""
    users = [use.operation for use in op.result.uses]
    after = users[0] if len(users) == 1 else None
    return after if isinstance(after, ReduceLanesOp) and after.fn == op.fn and after.parent is op.parent else None


def _dealt_levels(count: int, masks: Sequence[int]) -> int:
    """Return in how many steps lanes deal the registers out among themselves; 0 where each reduces all.

    What lanes reduce together, each reduces in all its registers: the same work in each. Dealt out, a lane goes on with
    half of the registers after each step, and at the end they tell each other the results.

    Args:
        count: registers of a lane.
        masks: of the steps.
    """
    levels = min(count.bit_length() - 1, len(masks))
    single = len(set(masks)) == len(masks) and all(mask & (mask - 1) == 0 for mask in masks)
    if levels < 1 or count & (count - 1) or not single:
        return 0
    dealt, rest = count - (count >> levels), (count >> levels) * (len(masks) - levels)
    cost = SHUFFLE_COST * (dealt + rest + count) + 3 * dealt + rest
    return levels if cost < WORTH * (SHUFFLE_COST + 1) * count * len(masks) else 0


def _deal(emitter: SimtEmitter, fn: str, dtype: DType, units: Sequence[str], masks: Sequence[int]) -> list[str]:
    """Let lanes whose bit of a mask is set go on with the upper half of the registers, and the others with the lower.

    Each is combined with what the other lane has of it, in the order of the masks: the result has the same bits as if
    each lane did all.
    """
    ops, type_, kept = emitter.ops, of_dtype(dtype), list(units)
    for mask in masks:
        is_upper = ops.compare("ne", I32, ops.binary("and", I32, emitter.lane(), str(mask)), "0")
        halves = list(zip(kept[: len(kept) // 2], kept[len(kept) // 2 :], strict=True))
        own = [ops.select(type_, is_upper, upper, lower) for lower, upper in halves]
        given = [ops.select(type_, is_upper, lower, upper) for lower, upper in halves]
        got = [shuffle(emitter, unit, dtype, mask) for unit in given]
        kept = [elementwise.apply(emitter, fn, dtype, 1, [*both]) for both in zip(own, got, strict=True)]
    return kept


def _collected(emitter: SimtEmitter, dtype: DType, kept: Sequence[str], masks: Sequence[int]) -> list[str]:
    """Return all registers in each lane, from those that lanes have after they were dealt out."""
    ops, together = emitter.ops, sum(masks)
    here = ops.binary("and", I32, emitter.lane(), str(together))
    units: list[str] = []
    for place in range(1 << len(masks)):
        bits = reversed(range(len(masks)))
        lane = sum(mask for mask, bit in zip(masks, bits, strict=True) if place >> bit & 1)
        away = ops.binary("xor", I32, here, str(lane))
        units += [shuffle(emitter, unit, dtype, away) for unit in kept]
    return units


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
