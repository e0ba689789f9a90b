"""Global and shared memory in the SIMT model."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from math import gcd
from typing import Any

from xdsl.ir import SSAValue

from tessera.backends.llvm.ops import I32, I64
from tessera.backends.llvm.types import LLVMType
from tessera.backends.simt.around import Load, load_around, shared_load
from tessera.backends.simt.emitter import SIMT, Access, SimtEmitter, copies, register_accesses
from tessera.backends.simt.shifted_stores import access_behind, passes_on, store_shifted
from tessera.ir.layouts import LANE, OFFSET, REGISTER, WARP, LinearLayout, blocked
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.memory import (
    AllocOp,
    BarrierOp,
    BufferGatherOp,
    BufferLoadOp,
    BufferScatterOp,
    BufferStoreOp,
    GatherOp,
    LoadOp,
    MisalignmentOp,
    ScatterOp,
    StoreOp,
    ViewOp,
)
from tessera.ir.target.types import BufferType, FragmentType, PointerType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.target.divisors import WIDEST

WORD_BYTES = 4
"""Of the words in which accesses are loaded in which a tensor may end."""


class BoxAddresses:
    """Addresses and bounds of a box of a tensor, as one thread sees them.

    Args:
        emitter: the emitter.
        op: a TIR-T op with a box.
        layout: layout of the fragment, None for a scalar.
        dtype: element dtype.
    """

    def __init__(self, emitter: SimtEmitter, op: Any, layout: LinearLayout | None, dtype: DType):
        self.emitter = emitter
        self.op = op
        self.layout = layout
        self.element = LLVMType(f"i{dtype.bytes * 8}")
        self.strides: list[int | float | None] = [constant_value(stride) for stride in op.strides]
        self.axes: tuple[int, ...] = op.axis_list
        self.checked: tuple[int, ...] = op.checked_list
        self._limits: dict[tuple[int, int], str] = {}
        self._steps: dict[tuple[int, int], str] = {}
        self._behind: dict[int, str] = {}
        self._ends: dict[tuple[int, int], str] = {}
        self._rests: dict[int, str] = {}
        self.early = early_axis(op)
        self.tile = [size.data for size in op.tile] if isinstance(op, LoadOp | StoreOp) else []
        self.starts = [self._start(axis) for axis in range(len(op.offsets))]
        self.base = self._base()

    def _start(self, axis: int) -> str:
        """Return offset + thread part of a tensor dimension, an i64."""
        emitter, offset = self.emitter, self.emitter.unit(self.op.offsets[axis])
        if self.layout is None or axis not in self.axes:
            return offset
        part = emitter.thread_part(self.layout, self.axes.index(axis))
        if part == "0":
            return offset
        wide = emitter.entry(("zext", part), f"zext i32 {part} to i64")
        return wide if offset == "0" else emitter.ops.binary("add", I64, offset, wide)

    def _base(self) -> str:
        emitter, total = self.emitter, "0"
        for axis, start in enumerate(self.starts):
            term = self._scaled(start, axis)
            total = term if total == "0" else total if term == "0" else emitter.ops.binary("add", I64, total, term)
        return self._moved(emitter.unit(self.op.pointer), total)

    def _scaled(self, value: str, axis: int) -> str:
        if self.strides[axis] == 1 or value == "0":
            return value
        if self.strides[axis] == 0:
            return "0"
        return self.emitter.ops.binary("mul", I64, value, self.emitter.unit(self.op.strides[axis]))

    def _moved(self, pointer: str, elements: str) -> str:
        if elements == "0":
            return pointer
        return self.emitter.fn.assign(f"getelementptr {self.element}, ptr addrspace(1) {pointer}, i64 {elements}")

    def pointer(self, at: Sequence[int]) -> str:
        """Return the address of the element whose register part is `at` (one number per fragment axis)."""
        constant, pointer = 0, self.base
        for axis, step in zip(self.axes, at, strict=True):
            stride = self.strides[axis]
            if stride is not None:
                constant += step * int(stride)
            elif step:
                if (axis, step) not in self._steps:
                    self._steps[axis, step] = self._scaled(str(step), axis)
                pointer = self._moved(pointer, self._steps[axis, step])
        return self._moved(pointer, str(constant))

    @contextmanager
    def branch(self) -> Generator[None]:
        """Forget afterwards what is computed of places in a branch: it is not there behind it."""
        kept = dict(self._limits), dict(self._steps), dict(self._ends)
        yield
        self._limits, self._steps, self._ends = kept

    def behind(self, bytes_: int = WIDEST) -> str:
        """Return how far what a thread accesses lies behind a multiple of so many bytes, which it moves at once."""
        if bytes_ not in self._behind:
            address = self.emitter.fn.assign(f"ptrtoint ptr addrspace(1) {self.base} to i64")
            self._behind[bytes_] = self.emitter.ops.binary("and", I64, address, str(bytes_ - 1))
        return self._behind[bytes_]

    def predicate(self, at: Sequence[int], apart: int | None = None) -> str | None:
        """Return whether that element is inside the tensor, None when it always is.

        Comparisons are unsigned, so that one test covers both ends.

        Args:
            at: the register part of the element.
            apart: a fragment axis along which it need not be inside.
        """
        result: str | None = None
        for axis in self.checked:
            if apart is not None and axis == self.axes[apart]:
                continue
            step = self._step(axis, at)
            first, last, known = self._reached(axis, step)
            if known is not None and 0 <= first and last < known:
                continue
            if (axis, step) not in self._limits:
                place = self.starts[axis]
                if step:
                    place = self.emitter.ops.binary("add", I64, place, str(step))
                size = self.emitter.unit(self.op.sizes[axis])
                self._limits[axis, step] = self.emitter.ops.compare("ult", I64, place, size)
            result = self.emitter.both(result, self._limits[axis, step])
        for along, size in enumerate(self.tile):
            if along != apart and self.axes[along] not in self.checked:
                result = self.emitter.both(result, self._in_tile(at, along, size))
        return result

    def _in_tile(self, at: Sequence[int], along: int, size: int) -> str | None:
        """Return whether an element lies in the tile along an axis that has no other bounds, None if it always does."""
        assert self.layout is not None
        if at[along] + self._reach(along) < size:
            return None
        place = self.emitter.ops.binary("add", I32, self.emitter.thread_part(self.layout, along), str(at[along]))
        return self.emitter.ops.compare("ult", I32, place, str(size))

    def touches(self, at: Sequence[int], along: int, count: int, behind: str = "0") -> str | None:
        """Return whether the tensor has one of neighbours of a box that begins early, None when it always has.

        Args:
            at: the register part of the first of them.
            along: the fragment axis of neighbours.
            count: of neighbours.
            behind: how far before that element they begin, less than `count`, an i64.
        """
        axis, ops = self.axes[along], self.emitter.ops
        others, step = self.predicate(at, along), self._step(axis, at)
        first, last, known = self._reached(axis, step)
        margin = 0 if behind == "0" else count - 1
        if known is not None and first >= margin and last < known:
            return others
        end = ops.binary("add", I64, self.starts[axis], str(step + count - 1))
        if behind != "0":
            end = ops.binary("sub", I64, end, behind)
        size = ops.binary("add", I64, self.emitter.unit(self.op.sizes[axis]), str(count - 1))
        return self.emitter.both(others, ops.compare("ult", I64, end, size))

    def before_end(self, at: Sequence[int], along: int, place: int) -> str:
        """Return whether an element lies before the tensor's end along an axis; those of lower places may do, too.

        Args:
            at: the register part of an element.
            along: a fragment axis.
            place: how far behind that one along the axis the element lies.
        """
        axis, ops = self.axes[along], self.emitter.ops
        step = self._step(axis, at) + place
        if (axis, step) not in self._ends:
            assert self.layout is not None
            part = self.emitter.thread_part(self.layout, along)
            here = ops.binary("add", I32, part, str(step)) if step else part
            self._ends[axis, step] = ops.compare("ult", I32, here, self._rest(axis))
        return self._ends[axis, step]

    def _rest(self, axis: int) -> str:
        """Return how much of a dimension is left where the box starts, at most what 31 bits hold, an i32."""
        if axis not in self._rests:
            emitter, ops = self.emitter, self.emitter.ops
            rest = ops.binary("sub", I64, emitter.unit(self.op.sizes[axis]), emitter.unit(self.op.offsets[axis]))
            least = ops.intrinsic("umin", I64, rest, str(2**31 - 1))
            self._rests[axis] = ops.convert("trunc", I64, least, I32)
        return self._rests[axis]

    def is_whole(self, at: Sequence[int], along: int, count: int) -> bool:
        """Return whether so many elements along an axis, from one that is inside on, are known to be inside."""
        axis = self.axes[along]
        first, last, known = self._reached(axis, self._step(axis, at))
        return axis not in self.checked or (known is not None and 0 <= first and last + count <= known)

    def is_outside(self, at: Sequence[int]) -> bool:
        """Return whether that element of every thread is known to be outside the tensor, or the tile."""
        if any(step >= size for step, size in zip(at, self.tile, strict=False)):
            return True
        for axis in self.checked:
            first, _, size = self._reached(axis, self._step(axis, at))
            if size is not None and first >= size:
                return True
        return False

    def _step(self, axis: int, at: Sequence[int]) -> int:
        return at[self.axes.index(axis)] if axis in self.axes else 0

    def _reached(self, axis: int, step: int) -> tuple[int, int, int | None]:
        """Return the first and last place along a dimension of what the threads access, and its size where known."""
        start, size = constant_value(self.op.offsets[axis]), constant_value(self.op.sizes[axis])
        sooner = self.op.early.data[0].data if axis == self.early else 0
        if sooner:
            start = 0
        if start is None or size is None:
            return 0, 0, None
        reach = self._reach(self.axes.index(axis)) if axis in self.axes else 0
        return int(start) + step - sooner, int(start) + step + reach, int(size)

    def _reach(self, along: int) -> int:
        """Return the place along an axis of the fragment of the last thread."""
        reach = 0
        if self.layout is not None:
            for dim in (LANE, WARP):
                for vector in self.layout.in_bases(dim):
                    reach |= vector[along]
        return reach


def early_axis(op: Any) -> int | None:
    """Return the dimension along which a box begins before the tensor, of a load that says so."""
    if not isinstance(op, LoadOp) or not len(op.early):
        return None
    return next(axis for axis in op.axis_list if constant_value(op.strides[axis]) == 1)


def box_vector(op: Any, layout: LinearLayout, dtype: DType) -> tuple[int, int]:
    """Return the fragment axis along which elements neighbour in memory, and how many move at once."""
    unit = next((i for i, axis in enumerate(op.axis_list) if constant_value(op.strides[axis]) == 1), None)
    if unit is None:
        return len(op.axis_list) - 1, 1
    vector = min(op.vector.data, layout.contiguous_per_thread(unit), WIDEST // dtype.bytes)
    return unit, max(1, vector)


def masked_alike(layout: LinearLayout, axis: int, vector: int, masks: Sequence[str] | None) -> int:
    """Return how many neighbours move at once, at most a given number, that are masked by one value each time.

    A mask of whole rows is one value for all that a thread has of a row.
    """
    while vector > 1 and masks is not None:
        accesses = register_accesses(layout.sublayout([REGISTER]), axis, vector)
        if all(len({masks[register] for register in access.registers}) == 1 for access in accesses):
            break
        vector //= 2
    return vector


@SIMT.register(LoadOp)
def emit_load(emitter: SimtEmitter, op: LoadOp) -> None:
    """Load a box: vectors where memory and layout allow, each under its own predicate."""
    type_ = op.result.type
    dtype = dtype_of(element_of(type_))
    fill = emitter.unit(op.fill) if op.fill is not None else None
    if not isinstance(type_, FragmentType):
        box = BoxAddresses(emitter, op, None, dtype)
        mask = emitter.unit(op.mask) if op.mask is not None else None
        emitter.bind(op.result, _load_run(emitter, box, (), 1, dtype, mask, fill))
        return
    layout = type_.linear
    axis, vector = box_vector(op, layout, dtype)
    box = BoxAddresses(emitter, op, layout, dtype)
    masks = emitter.units(op.mask) if op.mask is not None else None
    vector = masked_alike(layout, axis, vector, masks)
    shifted = op.seen is not None and masks is None and vector * dtype.bytes == WIDEST and fill is None
    cut = op.cut is not None and vector * dtype.bytes >= WORD_BYTES
    wide = box.early is None or (masks is None and fill is None and vector * dtype.bytes == WIDEST)
    if (op.seen is not None and not shifted) or (op.cut is not None and not cut) or not wide:
        vector = 1
    behind = op.behind.data[0].data % vector if len(op.behind) else 0
    if behind and vector <= 2 * gcd(behind, vector):
        vector, behind = gcd(behind, vector), 0
    units: dict[int, str] = {}
    load: Load = partial(_load_plain, emitter, box, dtype)
    if masks is None and fill is None:
        load = shared_load(emitter, op, layout, axis, load)
    for access in register_accesses(layout.sublayout([REGISTER]), axis, vector):
        mask = masks[access.registers[0]] if masks is not None else None
        if box.early is not None and vector > 1:
            loaded = _load_early(emitter, box, access.at, axis, vector, dtype, shifted)
        elif shifted:
            loaded = _load_shifted(emitter, box, access.at, vector, dtype)
        elif behind:
            loaded = load_around(load, access.at, axis, vector, behind)
        elif cut and not box.is_whole(access.at, axis, vector):
            loaded = _load_cut(emitter, box, access.at, axis, vector, dtype, fill)
        elif masks is None and fill is None:
            loaded = load(access.at, vector)
        else:
            loaded = _load_run(emitter, box, access.at, vector, dtype, mask, fill)
        units.update(zip(access.registers, loaded, strict=True))
    emitter.bind(op.result, [units[first] for first in copies(layout.sublayout([REGISTER]))])


def _load_shifted(
    emitter: SimtEmitter, box: BoxAddresses, at: Sequence[int], count: int, dtype: DType, early: int | None = None
) -> list[str]:
    """Load 16 bytes from anywhere in a tensor: the aligned 16 bytes that hold their beginning, the next, and a shift.

    The next are left out where the first hold all. How far the beginning lies behind them is alike in all threads. Rows
    that are not there become zeros. With `early`, an axis along which the tensor may begin and end within them, what
    holds none of its elements is not loaded.
    """
    ops, fn = emitter.ops, emitter.fn
    behind = box.behind()
    aligned = fn.assign(
        f"getelementptr i8, ptr addrspace(1) {box.pointer(at)}, i64 {ops.binary('sub', I64, '0', behind)}"
    )
    after = fn.assign(f"getelementptr i8, ptr addrspace(1) {aligned}, i64 {WIDEST}")
    inside = box.predicate(at) if early is None else None
    next_inside = inside
    if early is not None:
        apart = ops.binary("lshr", I64, behind, str(dtype.bytes.bit_length() - 1))
        inside = box.touches(at, early, count, apart)
        next_inside = box.touches(moved_along(at, early, count), early, count, apart)
    both = emitter.both(next_inside, ops.compare("ne", I64, behind, "0"))
    words = emitter.load_holding(aligned, inside, 4) + emitter.load_holding(after, both, 4)
    return emitter.unpack(access_behind(emitter, words, behind, dtype), dtype, count)


def _load_early(
    emitter: SimtEmitter, box: BoxAddresses, at: Sequence[int], axis: int, count: int, dtype: DType, shifted: bool
) -> list[str]:
    """Load 16 bytes of a box that begins before the tensor, and reaches behind its end: zeros are what is not there."""
    if box.is_outside(at):
        return [emitter.zero(dtype)] * count
    if shifted:
        units = _load_shifted(emitter, box, at, count, dtype, axis)
    else:
        words = emitter.load_holding(box.pointer(at), box.touches(at, axis, count), WIDEST // WORD_BYTES)
        units = emitter.unpack(words, dtype, count)
    if box.is_whole(at, axis, count):
        return units
    element, zero = LLVMType(_register_element(dtype)), emitter.zero(dtype)
    there = [box.predicate(moved_along(at, axis, place)) for place in range(count)]
    return [
        unit if each is None else emitter.ops.select(element, each, unit, zero)
        for each, unit in zip(there, units, strict=True)
    ]


def moved_along(at: Sequence[int], axis: int, place: int) -> list[int]:
    """Return the register part of an element so far behind another one along an axis."""
    return [step + place if number == axis else step for number, step in enumerate(at)]


def _load_cut(
    emitter: SimtEmitter, box: BoxAddresses, at: Sequence[int], axis: int, count: int, dtype: DType, fill: str | None
) -> list[str]:
    """Load aligned neighbours of which the first ones are inside, or none; the others become the fill.

    All are loaded at once: what is aligned as a whole lies in one page with its first element.
    """
    otherwise = emitter.zero(dtype) if fill is None else fill
    if box.is_outside(at):
        return [otherwise] * count
    inside, element = box.predicate(at), LLVMType(_register_element(dtype))
    words = emitter.load_holding(box.pointer(at), inside, count * dtype.bytes // WORD_BYTES)
    units = emitter.unpack(words, dtype, count)
    ends = [box.before_end(at, axis, place) for place in range(1, count)]
    # Where none is inside, what was loaded is 0.
    there = [None, *ends] if fill is None else [inside, *(emitter.both(inside, end) for end in ends)]
    return [
        unit if each is None else emitter.ops.select(element, each, unit, otherwise)
        for each, unit in zip(there, units, strict=True)
    ]


def _load_plain(emitter: SimtEmitter, box: BoxAddresses, dtype: DType, at: Sequence[int], count: int) -> list[str]:
    return _load_run(emitter, box, at, count, dtype, None, None)


def _load_run(
    emitter: SimtEmitter,
    box: BoxAddresses,
    at: Sequence[int],
    count: int,
    dtype: DType,
    mask: str | None,
    fill: str | None,
) -> list[str]:
    if box.is_outside(at):
        return [emitter.zero(dtype) if fill is None else fill] * count
    predicate = emitter.both(box.predicate(at), mask)
    otherwise = None
    if predicate is not None and fill is not None:
        otherwise = [word for _, word in emitter.pack([fill] * count, dtype)]
    words = emitter.load_words(box.pointer(at), emitter.word_types(dtype, count), predicate, otherwise)
    return emitter.unpack(words, dtype, count)


def _register_element(dtype: DType) -> str:
    from tessera.backends.llvm.types import llvm_element

    return llvm_element(dtype)


@SIMT.register(StoreOp)
def emit_store(emitter: SimtEmitter, op: StoreOp) -> None:
    """Store a box; of several copies of an element one is written."""
    type_ = op.value.type
    dtype = dtype_of(element_of(type_))
    if not isinstance(type_, FragmentType):
        box = BoxAddresses(emitter, op, None, dtype)
        first = _first_thread(emitter)
        mask = emitter.unit(op.mask) if op.mask is not None else None
        predicate = emitter.both(emitter.both(first, mask), box.predicate(()))
        emitter.store_words(box.pointer(()), emitter.pack(emitter.units(op.value), dtype), predicate)
        return
    layout = type_.linear
    axis, vector = box_vector(op, layout, dtype)
    masks = emitter.units(op.mask) if op.mask is not None else None
    vector = masked_alike(layout, axis, vector, masks)
    box = BoxAddresses(emitter, op, layout, dtype)
    owner = emitter.owner_predicate(layout)
    units = emitter.units(op.value)

    def store(count: int) -> None:
        for access in register_accesses(layout.sublayout([REGISTER]), axis, count):
            if box.is_outside(access.at):
                continue
            predicate = emitter.both(owner, box.predicate(access.at))
            if masks is not None:
                predicate = emitter.both(predicate, masks[access.registers[0]])
            values = [units[r] for r in access.registers]
            if op.cut is None or count == 1 or box.is_whole(access.at, axis, count):
                emitter.store_words(box.pointer(access.at), emitter.pack(values, dtype), predicate)
            else:
                _store_cut(emitter, box, access.at, axis, values, dtype, predicate)

    def store_runs() -> None:
        for access in register_accesses(layout.sublayout([REGISTER]), axis, vector):
            if not box.is_outside(access.at):
                inside = emitter.both(owner, box.predicate(access.at))
                store_shifted(emitter, box, layout, access.at, [units[r] for r in access.registers], dtype, inside)

    if op.seen is None or vector == 1:
        store(vector)
        return
    aligned = emitter.ops.compare("eq", I64, box.behind(vector * dtype.bytes), "0")
    with emitter.some_threads(aligned, "wide"), box.branch():
        store(vector)
    # runs are inside as a whole
    whole = box.axes[axis] not in box.checked and (not box.tile or box.tile[axis] % (vector * layout.lanes) == 0)
    shifts = masks is None and op.cut is None and whole
    with emitter.some_threads(emitter.fn.assign(f"xor i1 {aligned}, true"), "single"), box.branch():
        if shifts and passes_on(layout, axis, vector, dtype):
            store_runs()
        else:
            store(1)


def _store_cut(
    emitter: SimtEmitter,
    box: BoxAddresses,
    at: Sequence[int],
    axis: int,
    values: Sequence[str],
    dtype: DType,
    predicate: str | None,
) -> None:
    """Store neighbours of which the first ones are inside, or none where the predicate is false: at once, or singly."""
    whole = box.before_end(at, axis, len(values) - 1)
    emitter.store_words(box.pointer(at), emitter.pack(values, dtype), emitter.both(predicate, whole))
    some = emitter.both(predicate, emitter.fn.assign(f"xor i1 {whole}, true"))
    with emitter.some_threads(some, "cut"), box.branch():
        for place, value in enumerate(values[:-1]):
            here = [step + place if number == axis else step for number, step in enumerate(at)]
            inside = box.before_end(at, axis, place) if place else None
            emitter.store_words(box.pointer(here), emitter.pack([value], dtype), inside)


@SIMT.register(MisalignmentOp)
def emit_misalignment(emitter: SimtEmitter, op: MisalignmentOp) -> None:
    """Compute the address, and what of it exceeds a multiple of 16 bytes."""
    type_ = op.pointer.type
    assert isinstance(type_, PointerType)
    size, ops = dtype_of(type_.element).bytes, emitter.ops
    total = "0"
    for offset, stride in zip(op.offsets, op.strides, strict=True):
        term = ops.binary("mul", I64, emitter.unit(offset), emitter.unit(stride))
        total = term if total == "0" else ops.binary("add", I64, total, term)
    start = emitter.fn.assign(f"ptrtoint ptr addrspace(1) {emitter.unit(op.pointer)} to i64")
    address = ops.binary("add", I64, start, ops.binary("mul", I64, total, str(size)))
    behind = ops.binary("and", I64, address, str(WIDEST - 1))
    emitter.bind(op.result, [ops.binary("udiv", I64, behind, str(size))])


def _first_thread(emitter: SimtEmitter) -> str:
    lane, warp = emitter.lane(), emitter.warp()
    both = emitter.entry(("or", lane, warp), f"or i32 {lane}, {warp}")
    return emitter.entry(("first", both), f"icmp eq i32 {both}, 0")


def owned_registers(emitter: SimtEmitter, value_type: Any) -> tuple[list[int], str | None]:
    """Return the registers that write (one per element) and the predicate of the thread that does."""
    if not isinstance(value_type, FragmentType):
        return [0], _first_thread(emitter)
    first = copies(value_type.linear.sublayout([REGISTER]))
    return [r for r, f in enumerate(first) if r == f], emitter.owner_predicate(value_type.linear)


def element_pointer(
    emitter: SimtEmitter, pointer: str, offset: str, dtype: DType, kind: str = "ptr addrspace(1)"
) -> str:
    """Return the address of a single element of a tensor, or of another kind of memory."""
    return emitter.fn.assign(f"getelementptr i{dtype.bytes * 8}, {kind} {pointer}, i64 {offset}")


@SIMT.register(GatherOp)
def emit_gather(emitter: SimtEmitter, op: GatherOp) -> None:
    """Load elements one by one, or vectors of neighbours."""
    type_: Any = op.result.type
    dtype = dtype_of(element_of(type_))
    masks = emitter.units(op.mask) if op.mask is not None else None
    pointer, offsets, units = emitter.unit(op.pointer), emitter.units(op.offsets), dict[int, str]()
    for registers in _runs(op, type_, range(len(offsets))):
        predicate, count = masks[registers[0]] if masks is not None else None, len(registers)
        address = element_pointer(emitter, pointer, offsets[registers[0]], dtype)
        loaded = emitter.unpack(emitter.load_words(address, emitter.word_types(dtype, count), predicate), dtype, count)
        if predicate is not None and op.fill is not None:
            fill, element = emitter.unit(op.fill), LLVMType(_register_element(dtype))
            loaded = [emitter.ops.select(element, predicate, unit, fill) for unit in loaded]
        units.update(zip(registers, loaded, strict=True))
    first = copies(type_.linear.sublayout([REGISTER])) if len(op.vector) else range(len(offsets))
    emitter.bind(op.result, [units[register] for register in first])


def _runs(op: GatherOp | ScatterOp, type_: Any, single: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the registers that each access moves: those of neighbours, where there are any, else each alone."""
    if not len(op.vector):
        return [(register,) for register in single]
    axis, count = (number.data for number in op.vector)
    return [access.registers for access in register_accesses(type_.linear.sublayout([REGISTER]), axis, count)]


@SIMT.register(ScatterOp)
def emit_scatter(emitter: SimtEmitter, op: ScatterOp) -> None:
    """Store elements one by one, or vectors of neighbours."""
    dtype = dtype_of(element_of(op.value.type))
    masks = emitter.units(op.mask) if op.mask is not None else None
    values, offsets = emitter.units(op.value), emitter.units(op.offsets)
    single, owner = owned_registers(emitter, op.value.type)
    for registers in _runs(op, op.value.type, single):
        predicate = emitter.both(owner, masks[registers[0]] if masks is not None else None)
        address = element_pointer(emitter, emitter.unit(op.pointer), offsets[registers[0]], dtype)
        emitter.store_words(address, emitter.pack([values[register] for register in registers], dtype), predicate)


# Shared memory


@SIMT.register(AllocOp)
def emit_alloc(emitter: SimtEmitter, op: AllocOp) -> None:
    """Bind the buffer's byte offset, fixed before emission."""
    emitter.bind(op.result, [str(op.offset.data)])


@SIMT.register(ViewOp)
def emit_view(emitter: SimtEmitter, op: ViewOp) -> None:
    """Move to a stage, or rename the axes."""
    base = emitter.unit(op.source)
    if op.at is None:
        emitter.bind(op.result, [base])
        return
    result = op.result.type
    assert isinstance(result, BufferType)
    stage = emitter.ops.convert("trunc", I64, emitter.unit(op.at), I32)
    moved = emitter.ops.binary("mul", I32, stage, str(result.size_bytes))
    emitter.bind(op.result, [moved if base == "0" else emitter.ops.binary("add", I32, moved, base)])


@SIMT.register(BarrierOp)
def emit_barrier(emitter: SimtEmitter, _op: BarrierOp) -> None:
    """Wait for all threads."""
    emitter.barrier()


def embedded(layout: LinearLayout, shape: Sequence[int], axes: Sequence[int]) -> LinearLayout:
    """Return a fragment's layout in the coordinates of the buffer it is a part of."""
    bases = {
        dim: [[v[axes.index(axis)] if axis in axes else 0 for axis in range(len(shape))] for v in vectors]
        for dim, vectors in layout.bases
    }
    return LinearLayout.make(bases, shape)


class SharedAddresses:
    """Byte offsets in shared memory of a fragment's registers.

    Args:
        emitter: the emitter.
        buffer: type of the buffer.
        base: byte offset of the buffer (i32).
        layout: where each register is, in buffer coordinates or already in element offsets.
        offset: constant coordinates added.
    """

    def __init__(
        self, emitter: SimtEmitter, buffer: BufferType, base: str, layout: LinearLayout, offset: Sequence[int]
    ):
        shared = buffer.shared_layout().inverse()
        self.emitter = emitter
        self.bytes = buffer.dtype.bytes
        self.map = layout if layout.out_dims == (OFFSET,) else layout.compose(shared)
        start = shared.apply(**{f"dim{axis}": x for axis, x in enumerate(offset)})[0]
        self.start = start * self.bytes
        lanes, warps = ([v[0] * self.bytes for v in self.map.in_bases(dim)] for dim in (LANE, WARP))
        self.reachable = 0
        for column in (*lanes, *warps):
            self.reachable |= column
        self.thread = emitter.linear([(emitter.lane(), lanes), (emitter.warp(), warps)])
        self.base = base

    def offset(self, element: int) -> str:
        """Return the byte offset (i32) at which the register part is `element` elements.

        Bits that threads also flip are XORed; the others are added, so that they fold into the instruction.
        """
        constant = element * self.bytes ^ self.start
        flipped, added = constant & self.reachable, constant & ~self.reachable
        emitter, at = self.emitter, self.thread
        if flipped:
            at = emitter.entry(("xor", at, flipped), f"xor i32 {at}, {flipped}") if at != "0" else str(flipped)
        terms = [t for t in (at, self.base) if t != "0"]
        total = terms[0] if terms else "0"
        if len(terms) == 2:
            total = emitter.ops.binary("add", I32, terms[0], terms[1])
        return total if added == 0 else emitter.ops.binary("add", I32, total, str(added))


def _constant_offsets(op: Any, rank: int) -> list[int] | None:
    if not len(op.offsets):
        return [0] * rank
    known = [constant_value(offset) for offset in op.offsets]
    if any(value is None or value < 0 for value in known) or getattr(op, "fill", None) is not None:
        return None
    return [int(value) for value in known if value is not None]


def shared_runs(addresses: SharedAddresses, dtype: DType) -> tuple[list[Access], int]:
    """Return the accesses of a thread to shared memory, and how many elements each moves."""
    registers = addresses.map.sublayout([REGISTER])
    vector = min(addresses.map.contiguous_per_thread(0), WIDEST // dtype.bytes)
    return register_accesses(registers, 0, vector), vector


@SIMT.register(BufferLoadOp)
def emit_buffer_load(emitter: SimtEmitter, op: BufferLoadOp) -> None:
    """Read a fragment from shared memory in the widest accesses that both layouts allow."""
    buffer, type_ = op.buffer.type, op.result.type
    assert isinstance(buffer, BufferType)
    assert isinstance(type_, FragmentType)
    offsets = _constant_offsets(op, len(buffer.shape))
    if offsets is None:
        _emit_shifted_load(emitter, op, buffer, type_)
        return
    axes = [axis.data for axis in op.axes.data]
    layout = embedded(type_.linear, buffer.shape, axes)
    addresses = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), layout, offsets)
    units: dict[int, str] = {}
    packed: dict[int, str] = {}
    runs, vector = shared_runs(addresses, type_.dtype)
    words = emitter.word_types(type_.dtype, vector)
    for access in runs:
        loaded = load_shared(emitter, addresses.offset(access.at[0]), words)
        units.update(zip(access.registers, emitter.unpack(loaded, type_.dtype, vector), strict=True))
        packed.update(zip(access.registers[:: vector // len(words)], loaded, strict=True))
    registers = copies(addresses.map.sublayout([REGISTER]))
    emitter.bind(op.result, [units[first] for first in registers])
    _keep_words(emitter, op.result, registers, packed, words[0])


def _keep_words(
    emitter: SimtEmitter, value: SSAValue, registers: Sequence[int], packed: dict[int, str], word: LLVMType
) -> None:
    """Remember 32-bit words whose elements are neighbouring registers."""
    assert isinstance(value.type, FragmentType)
    per_word = 4 // value.type.dtype.bytes
    in_order = all(
        list(registers[at : at + per_word]) == list(range(at, at + per_word)) and at in packed
        for at in range(0, len(registers), max(per_word, 1))
    )
    if word == I32 and 2 <= per_word and in_order:
        emitter.words[value] = [packed[at] for at in range(0, len(registers), per_word)]


@SIMT.register(BufferGatherOp)
def emit_buffer_gather(emitter: SimtEmitter, op: BufferGatherOp) -> None:
    """Read elements one by one at run-time places."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    words, base = emitter.word_types(buffer.dtype, 1), emitter.unit(op.buffer)
    units: list[str] = []
    for offset in emitter.units(op.offsets):
        place = emitter.ops.binary("mul", I32, offset, str(buffer.dtype.bytes))
        loaded = load_shared(emitter, emitter.ops.binary("add", I32, place, base), words)
        units += emitter.unpack(loaded, buffer.dtype, 1)
    emitter.bind(op.result, units)


@SIMT.register(BufferScatterOp)
def emit_buffer_scatter(emitter: SimtEmitter, op: BufferScatterOp) -> None:
    """Write elements one by one at run-time places."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    masks = emitter.units(op.mask) if op.mask is not None else None
    values, offsets, base = emitter.units(op.value), emitter.units(op.offsets), emitter.unit(op.buffer)
    registers, owner = owned_registers(emitter, op.value.type)
    with emitter.some_threads(owner, "owner"):
        for register in registers:
            place = emitter.ops.binary("mul", I32, offsets[register], str(buffer.dtype.bytes))
            words = emitter.pack([values[register]], buffer.dtype)
            with emitter.some_threads(masks[register] if masks is not None else None, "inside"):
                store_shared(emitter, emitter.ops.binary("add", I32, place, base), words)


def load_shared(emitter: SimtEmitter, offset: str, words: Sequence[LLVMType]) -> list[str]:
    """Load words from shared memory."""
    vector = LLVMType(words[0].element, len(words))
    size = int(words[0].element[1:]) // 8 * len(words)
    pointer = emitter.shared_pointer(offset)
    value = emitter.fn.assign(f"load {vector}, ptr addrspace(3) {pointer}, align {size}")
    return [emitter.ops.extract(vector, value, lane) for lane in range(len(words))]


def store_shared(emitter: SimtEmitter, offset: str, words: Sequence[tuple[LLVMType, str]]) -> None:
    """Store words to shared memory."""
    vector = LLVMType(words[0][0].element, len(words))
    size = int(words[0][0].element[1:]) // 8 * len(words)
    value = "poison" if len(words) > 1 else words[0][1]
    if len(words) > 1:
        for lane, (_type, word) in enumerate(words):
            value = emitter.ops.insert(vector, value, word, lane)
    pointer = emitter.shared_pointer(offset)
    emitter.fn.line(f"store {vector} {value}, ptr addrspace(3) {pointer}, align {size}")


def _emit_shifted_load(emitter: SimtEmitter, op: BufferLoadOp, buffer: BufferType, type_: FragmentType) -> None:
    """Read element by element at run-time offsets of a plain buffer; what is outside becomes the fill."""
    layout, dtype = type_.linear, type_.dtype
    units: list[str] = []
    for register in range(layout.in_size(REGISTER)):
        at = layout.apply(register=register)
        inside: str | None = None
        total = emitter.unit(op.buffer)
        for axis, size in enumerate(buffer.shape):
            part = emitter.thread_part(layout, axis)
            place = emitter.ops.binary("add", I32, part, str(at[axis])) if at[axis] else part
            shift = emitter.ops.convert("trunc", I64, emitter.unit(op.offsets[axis]), I32)
            place = emitter.ops.binary("add", I32, place, shift)
            inside = emitter.both(inside, emitter.ops.compare("ult", I32, place, str(size)))
            step = str(buffer.strides[axis] * dtype.bytes)
            total = emitter.ops.binary("add", I32, total, emitter.ops.binary("mul", I32, place, step))
        assert inside is not None
        safe = emitter.ops.select(I32, inside, total, emitter.unit(op.buffer))
        words = load_shared(emitter, safe, emitter.word_types(dtype, 1))
        (unit,) = emitter.unpack(words, dtype, 1)
        fill = emitter.unit(op.fill) if op.fill is not None else emitter.zero(dtype)
        units.append(emitter.ops.select(LLVMType(_register_element(dtype)), inside, unit, fill))
    emitter.bind(op.result, units)


@SIMT.register(BufferStoreOp)
def emit_buffer_store(emitter: SimtEmitter, op: BufferStoreOp) -> None:
    """Write a fragment to shared memory; copies write the same value, or only the owner's is written."""
    buffer, type_ = op.buffer.type, op.value.type
    assert isinstance(buffer, BufferType)
    assert isinstance(type_, FragmentType)
    axes: list[int] = [axis.data for axis in op.axes.data]
    layout = embedded(type_.linear, buffer.shape, axes)
    offsets = _constant_offsets(op, len(buffer.shape))
    assert offsets is not None
    addresses = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), layout, offsets)
    units = emitter.units(op.value)
    owner = emitter.owner_predicate(type_.linear) if op.owned is not None else None
    with emitter.some_threads(owner, "owner"):
        for access in shared_runs(addresses, type_.dtype)[0]:
            words = emitter.pack([units[r] for r in access.registers], type_.dtype)
            store_shared(emitter, addresses.offset(access.at[0]), words)


TURNED = 8
"""Neighbours in memory of which a warp reads runs, where what it copies becomes neighbours along another axis."""


def copy_layout(shape: Sequence[int], fast: int, vector: int, warp_size: int, num_warps: int) -> LinearLayout:
    """Return how a copy is split over the threads: each moves `vector` elements along `fast` at a time.

    Lanes follow one another along `fast`, warps across it: what a thread moves beside its first elements lies at
    constant distances along `fast` as far as can be, so that few addresses are computed.
    """
    others = [axis for axis in reversed(range(len(shape))) if axis != fast]
    per_thread = [min(vector, size) if axis == fast else 1 for axis, size in enumerate(shape)]
    left = [size // box for size, box in zip(shape, per_thread, strict=True)]
    boxes: list[list[int]] = []
    for count, order in ((warp_size, [fast, *others]), (num_warps, [*others, fast])):
        box = [1] * len(shape)
        for axis in order:
            box[axis] = min(count, left[axis])
            count //= box[axis]
        box[order[-1]] *= count
        left = [max(1, size // b) for size, b in zip(left, box, strict=True)]
        boxes.append(box)
    return blocked(shape, per_thread, boxes[0], boxes[1], [fast, *others])


def turning_layout(shape: Sequence[int], stored: int, loaded: int, warp_size: int, num_warps: int) -> LinearLayout:
    """Return how a copy is split over the threads whose elements are neighbours along other axes than where they go.

    Lanes lie along both axes: each warp reads runs of eight elements, and writes runs of the others side by side. Warps
    follow one another along `stored`: what a thread moves beside its first elements lies at constant distances.

    Args:
        shape: of the buffer.
        stored: the axis along which elements are neighbours in the buffer.
        loaded: the axis along which they are in the tensor.
        warp_size: lanes of a warp.
        num_warps: warps of a program.
    """
    lanes, warps = [1] * len(shape), [1] * len(shape)
    lanes[stored] = min(warp_size // min(TURNED, shape[loaded]), shape[stored])
    lanes[loaded] = warp_size // lanes[stored]
    warps[stored] = min(num_warps, max(shape[stored] // lanes[stored], 1))
    warps[loaded] = num_warps // warps[stored]
    others = [axis for axis in range(len(shape)) if axis not in (stored, loaded)]
    return blocked(shape, [1] * len(shape), lanes, warps, [loaded, stored, *others])
