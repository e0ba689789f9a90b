"""Computes what a function of TIR-T makes every thread of a program compute, all threads in step.

A fragment is an array of registers by threads, so that a wrong layout, a wrong lane or a missing exchange gives wrong
results here as on a GPU. What a store takes from one of several threads, all of them must hold alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.interp.casts import tf32
from tessera.interp.elementwise import apply, scalar
from tessera.interp.mma import chain
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, reduction
from tessera.ir.target import arithmetic as ops
from tessera.ir.target import exchange, memory
from tessera.ir.target.structure import FuncOp, GridWaitOp, ProgramCountOp, ProgramIdOp, ReturnOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.conversions import convert
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import COMBINE
from tessera.target.extents import evaluate
from tessera.tools.fuzz.arrays import Guarded
from tessera.tools.fuzz.races import Unknown

Array = Any
"""A NumPy array; of a fragment `(registers, threads)`."""

POISON = 0xCB
"""The bytes of shared memory that nothing wrote, and of old values that a thread does not get."""

MOST_PROGRAMS = 64
"""Launches of more are not computed: it takes as long as an interpreter of one thread would."""

HANDLERS: dict[type[Operation], Callable[[Any, Any], Any]] = {}


class Fault(Exception):
    """Threads disagree on what is one value, or an access lies outside of memory."""


def handles(*classes: type[Operation]) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    """Register how ops are computed: a function of the machine and the op that gives the results."""

    def register(handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        HANDLERS.update(dict.fromkeys(classes, handler))
        return handler

    return register


def poisoned(shape: Sequence[int], dtype: DType) -> Array:
    """Return an array of bytes that are unlikely to pass for a result."""
    result = np.empty(shape, dtype.numpy())
    result.view(np.uint8)[...] = POISON if dtype.kind != "bool" else 1
    return result


@cache
def places(layout: LinearLayout) -> tuple[Array, ...]:
    """Return, along each axis, the coordinate of every register of every thread."""
    count = tuple(layout.in_size(dim) for dim in (REGISTER, LANE, WARP))
    flat = np.zeros(count, int)
    for place, dim in enumerate((REGISTER, LANE, WARP)):
        index = np.arange(count[place]).reshape([-1 if a == place else 1 for a in range(3)])
        for bit, column in enumerate(layout.columns(dim)):
            flat = flat ^ np.where(index >> bit & 1, column, 0)
    flat = flat.transpose(0, 2, 1).reshape(count[0], -1)  # thread = lane + lanes x warp
    table = np.array([layout.unflatten(at) for at in range(layout.size)]).reshape(layout.size, layout.rank)
    return tuple(table[flat, axis] for axis in range(layout.rank))


@cache
def owners(layout: LinearLayout) -> Array:
    """Return which thread, of several with copies of an element, writes it."""
    masks = layout.free_variable_masks()
    threads = np.arange(layout.lanes * layout.warps)
    lane, warp = threads % layout.lanes, threads // layout.lanes
    return ((lane & masks.get(LANE, 0)) | (warp & masks.get(WARP, 0))) == 0


class InStep:
    """One program of a launch.

    Args:
        func: the function.
        arrays: the tensor arguments by position, in guarded memory, which the program changes.
        scalars: the scalar arguments by position.
        program: the program's number.
        count: how many programs the launch has.
    """

    def __init__(
        self, func: FuncOp, arrays: Mapping[int, Guarded], scalars: Mapping[int, Any], program: int, count: int
    ) -> None:
        self.func, self.program, self.count = func, program, count
        self.values: dict[SSAValue, Any] = {}
        self.memory: dict[SSAValue, tuple[Array, int]] = {}
        self.transient: Array = None
        for value, record in zip(func.body.block.args, func.parameters, strict=True):
            if record.kind == "pointer":
                self.memory[value] = _block_of(arrays[record.arg])
            elif record.kind == "size":
                self.values[value] = np.int64(arrays[record.arg].view.shape[record.axis])
            elif record.kind == "stride":
                view = arrays[record.arg].view
                self.values[value] = np.int64(view.strides[record.axis] // view.itemsize)
            elif record.kind == "scalar":
                self.values[value] = scalar(scalars[record.arg], dtype_of(value.type))

    def run(self) -> None:
        """Run the program.

        Raises:
            Fault: a thread holds what it must not, or an access lies outside of memory.
            Unknown: an op that this machine does not know.
        """
        self.block(self.func.body.block)

    def block(self, block: Block, given: Sequence[Any] = ()) -> list[Any]:
        """Run a block, and return what its last op hands on."""
        self.values.update(zip(block.args, given, strict=True) if block.parent_op() is not self.func else ())
        for op in block.ops:
            if isinstance(op, scf.YieldOp | scf.ConditionOp):
                return self.all(op.operands)
            self.step(op)
        return []

    def step(self, op: Operation) -> None:
        """Compute one op."""
        handler = HANDLERS.get(type(op))
        if handler is None:
            raise Unknown(op.name)
        with np.errstate(all="ignore"):
            given = handler(self, op)
        results = cast(tuple[Any, ...], given) if isinstance(given, tuple) else (given,)
        self.values.update(zip(op.results, results, strict=bool(op.results)))

    def get(self, value: SSAValue) -> Any:
        """Return a value; an op that was not run gave none."""
        if value not in self.values:
            raise Unknown("a value of an unknown kind")
        return self.values[value]

    def all(self, values: Sequence[SSAValue]) -> list[Any]:
        """Return several values."""
        return [self.get(value) for value in values]


def run_launch(func: FuncOp, arrays: Mapping[int, Guarded], scalars: Mapping[int, Any]) -> None:
    """Run all programs of a launch, one after the other.

    Args:
        func: the function.
        arrays: the tensor arguments by position, in memory of theirs, which the programs change.
        scalars: the scalar arguments by position.

    Raises:
        Fault: a thread holds what it must not, or an access lies outside of memory.
        Unknown: an op that this machine does not know, or very many programs.
    """
    whole = {at: value for at, value in scalars.items() if isinstance(value, int)}
    views = {at: guarded.view for at, guarded in arrays.items()}
    strides = {at: [stride // view.itemsize for stride in view.strides] for at, view in views.items()}
    count = programs_of(func, {at: view.shape for at, view in views.items()}, whole, strides)
    if count > MOST_PROGRAMS:
        raise Unknown("many programs")
    for number in range(count):
        InStep(func, arrays, scalars, number, count).run()


def programs_of(
    func: FuncOp,
    sizes: Mapping[int, tuple[int, ...]],
    scalars: Mapping[int, int],
    strides: Mapping[int, Sequence[int]],
) -> int:
    """Return how many programs a launch has for arguments of given sizes and strides."""
    grid: list[tuple[Any, int]] = json.loads(func.grid.data)
    return prod(max(-(-evaluate(extent, sizes, scalars, strides) // block), 0) for extent, block in grid)


def _block_of(guarded: Guarded) -> tuple[Array, int]:
    """Return the block of memory an array lies in, and where its first element is."""
    view, base = guarded.view, guarded.base
    first = (view.ctypes.data - base.ctypes.data) // base.itemsize if view.size else 0
    return base, first


def _dtype(value: SSAValue) -> DType:
    return dtype_of(element_of(value.type))


def _layout(type_: Attribute) -> LinearLayout | None:
    return type_.linear if isinstance(type_, FragmentType) else None


def _wide(type_: Attribute, value: Any) -> Array:
    """Return a scalar as an array of one register and one thread; a fragment as it is."""
    return value if isinstance(type_, FragmentType) else np.asarray(value).reshape(1, 1)


@handles(ReturnOp, GridWaitOp, memory.CommitOp, memory.WaitOp, memory.BarrierOp, memory.PrefetchOp)
def _nothing(_machine: InStep, _op: Operation) -> tuple[Any, ...]:
    return ()


@handles(ProgramIdOp)
def _program_id(machine: InStep, _op: ProgramIdOp) -> Any:
    return np.int64(machine.program)


@handles(ProgramCountOp)
def _program_count(machine: InStep, _op: ProgramCountOp) -> Any:
    return np.int64(machine.count)


# Control


@handles(scf.ForOp)
def _for(machine: InStep, op: scf.ForOp) -> Any:
    low, high, step = (int(value) for value in machine.all([op.lb, op.ub, op.step]))
    carried = machine.all(op.iter_args)
    for counter in range(low, high, step):
        carried = machine.block(op.body.block, [np.int64(counter), *carried])
    return tuple(carried)


@handles(scf.IfOp)
def _if(machine: InStep, op: scf.IfOp) -> Any:
    region = op.true_region if machine.get(op.cond) else op.false_region
    return tuple(machine.block(region.block)) if region.blocks else ()


@handles(scf.WhileOp)
def _while(machine: InStep, op: scf.WhileOp) -> Any:
    carried = machine.all(op.arguments)
    while True:
        condition, *passed = machine.block(op.before_region.block, carried)
        if not condition:
            return tuple(passed)
        carried = machine.block(op.after_region.block, passed)


# Arithmetic


@handles(ops.ConstantOp)
def _constant(_machine: InStep, op: ops.ConstantOp) -> Any:
    return scalar(op.python_value, dtype_of(op.result.type))


@handles(ops.ElementwiseOp)
def _elementwise(machine: InStep, op: ops.ElementwiseOp) -> Any:
    return apply(op.fn.data, tuple(machine.all(op.args)), _dtype(op.args[-1]), machine.func.profile.data)


@handles(ops.CastOp)
def _cast(machine: InStep, op: ops.CastOp) -> Any:
    return convert(machine.get(op.source), _dtype(op.source), _dtype(op.result), op.saturate is not None)


@handles(ops.RoundTf32Op)
def _round_tf32(machine: InStep, op: ops.RoundTf32Op) -> Any:
    return tf32(machine.get(op.source))


@handles(ops.SplatOp)
def _splat(machine: InStep, op: ops.SplatOp) -> Any:
    layout = _layout(op.result.type)
    assert layout is not None
    return np.full((layout.registers, layout.lanes * layout.warps), machine.get(op.value))


@handles(ops.IotaOp)
def _iota(_machine: InStep, op: ops.IotaOp) -> Any:
    layout = _layout(op.result.type)
    assert layout is not None
    return places(layout)[op.axis.data].astype(_dtype(op.result).numpy())


@handles(ops.RelayoutOp)
def _relayout(machine: InStep, op: ops.RelayoutOp) -> Any:
    return machine.get(op.source)[[register.data for register in op.source_registers.data]]


@handles(ops.ReduceRegistersOp)
def _reduce_registers(machine: InStep, op: ops.ReduceRegistersOp) -> Any:
    source, layout, dtype = machine.get(op.source), _layout(op.source.type), _dtype(op.source)
    assert layout is not None

    def combined(group: Sequence[int]) -> Array:
        values: list[Array] = [source[register] for register in group]
        while len(values) > 1:
            pairs = zip(values[::2], values[1::2], strict=False)
            rest = values[len(values) & ~1 :]
            values = [apply(COMBINE[op.fn.data], pair, dtype) for pair in pairs] + rest
        return values[0]

    return np.stack([combined(group) for group in reduction(layout, op.axis.data).groups])


def _exchanged(machine: InStep, source: SSAValue, mask: int) -> tuple[Array, Array]:
    """Return what the lane `lane ^ mask` holds, and each thread's lane."""
    layout = _layout(source.type)
    if layout is None:
        raise Unknown("lanes exchange a scalar")
    threads = np.arange(layout.lanes * layout.warps)
    return machine.get(source)[:, threads ^ mask], threads % layout.lanes


@handles(ops.ReduceLanesOp)
def _reduce_lanes(machine: InStep, op: ops.ReduceLanesOp) -> Any:
    other, _ = _exchanged(machine, op.source, op.mask.data)
    return apply(COMBINE[op.fn.data], (machine.get(op.source), other), _dtype(op.source))


@handles(ops.ExchangeLanesOp)
def _exchange_lanes(machine: InStep, op: ops.ExchangeLanesOp) -> Any:
    mask, own = op.mask.data, machine.get(op.source)
    other, lane = _exchanged(machine, op.source, mask)
    upper = (lane & mask & -mask) != 0
    return np.where(upper, other, own), np.where(upper, own, other)


@handles(exchange.ExchangeOp)
def _exchange(machine: InStep, op: exchange.ExchangeOp) -> Any:
    more = 0 if op.lanes is None else int(machine.get(op.lanes))
    return _of_others(machine, op.source, op.register.data, op.lane.data ^ more)


@handles(exchange.ExchangeWarpsOp)
def _exchange_warps(machine: InStep, op: exchange.ExchangeWarpsOp) -> Any:
    layout = _layout(op.source.type)
    assert layout is not None
    warp = op.warp.data ^ (0 if op.warps is None else int(machine.get(op.warps)))
    return _of_others(machine, op.source, op.register.data, warp * layout.lanes + op.lane.data)


@handles(exchange.KeepInOrderOp)
def _order(machine: InStep, op: exchange.KeepInOrderOp) -> Any:
    count = len(op.outputs)
    values = [machine.get(source) for source in op.sources]
    own, other = values[:count], values[count:]
    registers, threads = (np.arange(int(size)) for size in own[0].shape)
    upper = np.logical_or(registers[:, None] & op.register.data, threads[None] & int(machine.get(op.threads)))
    taken = _is_before(other, own) != np.logical_xor(upper, op.descending is not None)
    found: list[Array] = [np.where(taken, b, a) for a, b in zip(own, other, strict=True)]
    return tuple(found) if count > 1 else found[0]


def _is_before(first: Sequence[Array], second: Sequence[Array]) -> Array:
    """Return which tuples are smaller than others."""
    before = first[0] < second[0]
    return before if len(first) == 1 else before | ((first[0] == second[0]) & (first[1] < second[1]))


def _of_others(machine: InStep, source: SSAValue, register: int, thread: int) -> Array:
    value = machine.get(source)
    registers, threads = value.shape
    return value[np.arange(registers) ^ register][:, np.arange(threads) ^ thread]


@handles(ops.ExtractOp)
def _extract(machine: InStep, op: ops.ExtractOp) -> Any:
    value = machine.get(op.source)
    if not _alike(value.reshape(-1), np.broadcast_to(value[0, 0], value.size)).all():
        raise Fault(f"{op.name}: threads hold different scalars")
    return value[0, 0]


def _alike(a: Array, b: Array) -> Array:
    """Return which elements are the same, bit by bit."""
    return np.ascontiguousarray(a).view(f"u{a.itemsize}") == np.ascontiguousarray(b).view(f"u{b.itemsize}")


@handles(TensorCoreOp)
def _product(machine: InStep, op: TensorCoreOp) -> Any:
    a, b, acc = (_whole(machine, operand) for operand in (op.a, op.b, op.acc))
    dtype, layout = _dtype(op.acc), _layout(op.acc.type)
    if layout is None:
        raise Unknown("an accumulator in memory")
    if dtype.is_float and machine.func.profile.data == "strict":
        return chain(a.astype(acc.dtype), b.astype(acc.dtype), acc)[places(layout)]
    wide = np.float64 if dtype.is_float else np.int64
    total = acc.astype(wide) + a.astype(wide) @ b.astype(wide)
    return total.astype(dtype.numpy())[places(layout)]


def _whole(machine: InStep, value: SSAValue) -> Array:
    """Return the tile that a buffer holds, or that threads hold the parts of.

    Raises:
        Fault: threads hold different copies of an element.
    """
    if isinstance(value.type, BufferType):
        return machine.get(value).transpose(value.type.permutation)
    layout = _layout(value.type)
    assert layout is not None
    tile = poisoned(layout.out_sizes, _dtype(value))
    held = machine.get(value)
    tile[places(layout)] = held
    if not _alike(tile[places(layout)].reshape(-1), held.reshape(-1)).all():
        raise Fault("threads hold different copies of an element")
    return tile


# Memory


@handles(memory.AllocOp)
def _alloc(machine: InStep, op: memory.AllocOp) -> Any:
    type_ = op.result.type
    assert isinstance(type_, BufferType)
    buffer = poisoned(type_.stored_shape, type_.dtype)
    if op.transient is not None:
        if machine.transient is not None:  # its bytes are taken
            machine.transient.view(np.uint8)[...] = POISON if machine.transient.dtype != np.bool_ else 1
        machine.transient = buffer
    return buffer


@handles(memory.ViewOp)
def _view(machine: InStep, op: memory.ViewOp) -> Any:
    source = machine.get(op.source)
    return source if op.at is None else source[int(machine.get(op.at))]


def _at(machine: InStep, op: Any, fragment: Attribute) -> list[Array]:
    """Return the coordinates in a buffer or tensor that a fragment's elements stand for: an array for each axis."""
    offsets = [int(value) for value in machine.all(op.offsets)]
    layout = _layout(fragment)
    count = (layout.registers, layout.lanes * layout.warps) if layout is not None else (1, 1)
    axes = [axis.data for axis in op.axes.data]
    rank = len(op.offsets) or (len(op.buffer.type.shape) if not hasattr(op, "pointer") else 0)
    result = [np.full(count, offset) for offset in (offsets or [0] * rank)]
    for axis, place in zip(axes, places(layout) if layout is not None else (), strict=layout is not None):
        result[axis] = result[axis] + place
    return result


def _stored(type_: BufferType, at: Sequence[Array]) -> tuple[Array, ...]:
    """Return coordinates in stored order."""
    result: list[Any] = [None] * len(at)
    for axis, coordinates in zip(type_.permutation, at, strict=True):
        result[axis] = coordinates
    return tuple(result)


def _inside(shape: Sequence[int], at: Sequence[Array]) -> Array:
    result = np.ones(at[0].shape if at else (1, 1), bool)
    for size, coordinates in zip(shape, at, strict=True):
        result &= (coordinates >= 0) & (coordinates < size)
    return result


def _chosen(condition: Array, first: Any, second: Any) -> Array:
    return cast(Array, np.where(condition, first, second))


def _shaped(type_: Attribute, value: Array) -> Any:
    return value if isinstance(type_, FragmentType) else value[0, 0]


@handles(memory.BufferLoadOp)
def _buffer_load(machine: InStep, op: memory.BufferLoadOp) -> Any:
    type_ = op.buffer.type
    assert isinstance(type_, BufferType)
    at = _at(machine, op, op.result.type)
    inside = _inside(type_.shape, at)
    if op.fill is None and not inside.all():
        raise Fault(f"{op.name} reads outside of its buffer")
    safe = [np.where(inside, coordinates, 0) for coordinates in at]
    values: Array = machine.get(op.buffer)[_stored(type_, safe)]
    if op.fill is not None:
        values = _chosen(inside, values, machine.get(op.fill))
    return _shaped(op.result.type, values)


@handles(memory.LdmatrixOp)
def _ldmatrix(machine: InStep, op: memory.LdmatrixOp) -> Any:
    type_, layout = op.buffer.type, _layout(op.result.type)
    assert isinstance(type_, BufferType)
    assert layout is not None
    offsets = [int(value) for value in machine.all(op.offsets)] or [0] * len(type_.shape)
    at = [offset + place for offset, place in zip(offsets, places(layout), strict=True)]
    return machine.get(op.buffer)[_stored(type_, at)]


@handles(memory.BufferGatherOp)
def _buffer_gather(machine: InStep, op: memory.BufferGatherOp) -> Any:
    flat = machine.get(op.buffer).reshape(-1)
    return flat[np.asarray(machine.get(op.offsets)).astype(np.int64)]


@handles(memory.BufferScatterOp)
def _buffer_scatter(machine: InStep, op: memory.BufferScatterOp) -> Any:
    flat = machine.get(op.buffer).reshape(-1)
    where = _wide(op.offsets.type, machine.get(op.offsets)).astype(np.int64)
    wanted = _of_owners(op.offsets.type, _masked(machine, op.mask, np.ones(where.shape, bool)))
    flat[where[wanted]] = _wide(op.value.type, machine.get(op.value))[wanted]
    return ()


@handles(memory.BufferStoreOp)
def _buffer_store(machine: InStep, op: memory.BufferStoreOp) -> Any:
    type_, layout = op.buffer.type, _layout(op.value.type)
    assert isinstance(type_, BufferType)
    at, held = _at(machine, op, op.value.type), _wide(op.value.type, machine.get(op.value))
    if not _inside(type_.shape, at).all():
        raise Fault(f"{op.name} writes outside of its buffer")
    where, buffer = _stored(type_, at), machine.get(op.buffer)
    if op.owned is not None and layout is not None:
        mine = owners(layout)
        buffer[tuple(np.broadcast_to(w, held.shape)[:, mine] for w in where)] = held[:, mine]
        return ()
    buffer[where] = held
    if not _alike(buffer[where].reshape(-1), held.reshape(-1)).all():
        raise Fault(f"{op.name}: threads write different values to one element")
    return ()


def _addresses(machine: InStep, op: Any, at: Sequence[Array]) -> tuple[Array, Array]:
    """Return places in the block of memory, and which elements the checks of a box leave."""
    _, first = machine.memory[op.pointer]
    strides, sizes = machine.all(op.strides), machine.all(op.sizes)
    inside = np.ones(at[0].shape if at else (1, 1), bool)
    for axis in op.checked_list:  # as they are compared: unsigned
        inside &= at[axis].astype(np.uint64) < np.uint64(int(sizes[axis]) % 2**64)
    if isinstance(op, memory.LoadOp | memory.StoreOp) and len(op.tile):
        layout = _layout(op.result.type if isinstance(op, memory.LoadOp) else op.value.type)
        assert layout is not None
        for coordinates, size in zip(places(layout), op.tile, strict=True):
            inside &= coordinates < size.data
    places_ = np.full(inside.shape, first)
    for coordinates, stride in zip(at, strides, strict=True):
        places_ = places_ + coordinates * int(stride)
    return places_, inside


def _masked(machine: InStep, mask: SSAValue | None, inside: Array) -> Array:
    return inside if mask is None else inside & _wide(mask.type, machine.get(mask))


def _read(machine: InStep, op: Any, where: Array, wanted: Array, dtype: DType, fill: SSAValue | None) -> Array:
    base, _ = machine.memory[op.pointer]
    if (wanted & ((where < 0) | (where >= len(base)))).any():
        raise Fault(f"{op.name} reads outside of memory")
    other: Any = scalar(0, dtype) if fill is None else machine.get(fill)
    if not len(base):
        return np.broadcast_to(np.asarray(other, dtype.numpy()), where.shape)
    return _chosen(wanted, base[np.where(wanted, where, 0)], other)


def _write(machine: InStep, op: Any, where: Array, wanted: Array, values: Array) -> None:
    base, _ = machine.memory[op.pointer]
    places_ = where[wanted]
    if ((places_ < 0) | (places_ >= len(base))).any():
        raise Fault(f"{op.name} writes outside of memory")
    base[places_] = values[wanted]


def _of_owners(type_: Attribute, wanted: Array) -> Array:
    """Leave of several copies of an element the one that counts; also of registers, of which the first does."""
    layout = _layout(type_)
    return wanted if layout is None else wanted & owners(layout)


@handles(memory.LoadOp)
def _load(machine: InStep, op: memory.LoadOp) -> Any:
    where, inside = _addresses(machine, op, _at(machine, op, op.result.type))
    wanted = _masked(machine, op.mask, inside)
    return _shaped(op.result.type, _read(machine, op, where, wanted, _dtype(op.result), op.fill))


@handles(memory.StoreOp)
def _store(machine: InStep, op: memory.StoreOp) -> Any:
    where, inside = _addresses(machine, op, _at(machine, op, op.value.type))
    wanted = _of_owners(op.value.type, _masked(machine, op.mask, inside))
    _write(machine, op, where, wanted, _wide(op.value.type, machine.get(op.value)))
    return ()


def _elements(machine: InStep, op: Any) -> tuple[Array, Array]:
    """Return places in memory of single elements, and which of them count."""
    _, first = machine.memory[op.pointer]
    where = first + _wide(op.offsets.type, machine.get(op.offsets)).astype(np.int64)
    return where, _masked(machine, op.mask, np.ones(where.shape, bool))


@handles(memory.GatherOp)
def _gather(machine: InStep, op: memory.GatherOp) -> Any:
    where, wanted = _elements(machine, op)
    return _shaped(op.result.type, _read(machine, op, where, wanted, _dtype(op.result), op.fill))


@handles(memory.ScatterOp)
def _scatter(machine: InStep, op: memory.ScatterOp) -> Any:
    where, wanted = _elements(machine, op)
    _write(machine, op, where, _of_owners(op.offsets.type, wanted), _wide(op.value.type, machine.get(op.value)))
    return ()


@handles(memory.MemcpyOp)
def _memcpy(machine: InStep, op: memory.MemcpyOp) -> Any:
    type_ = op.buffer.type
    assert isinstance(type_, BufferType)
    coordinates = [c.reshape(1, -1) for c in np.indices(type_.shape)]
    offsets = [int(value) for value in machine.all(op.offsets)]
    at = [np.full((1, prod(type_.shape)), offset) for offset in offsets]
    for axis, place in zip(op.axis_list, coordinates, strict=True):
        at[axis] = at[axis] + place
    where, inside = _addresses(machine, op, at)
    machine.get(op.buffer)[_stored(type_, coordinates)] = _read(machine, op, where, inside, type_.dtype, None)
    return ()
