"""Memory ops of the vector model: boxes of tensors, single elements, atomics and scratch buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.texts import prefetch
from tessera.backends.llvm import elementwise
from tessera.backends.llvm.ops import I1, I32, I64, PTR
from tessera.backends.llvm.types import LLVMType
from tessera.ir.target.memory import (
    AllocOp,
    AtomicOp,
    BufferLoadOp,
    BufferStoreOp,
    GatherOp,
    LoadOp,
    PrefetchOp,
    ScatterOp,
    StoreOp,
    ViewOp,
)
from tessera.ir.target.types import BufferType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType

ORDERS = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}


class _Access:
    """One chunk or element of memory: its address, the condition on the whole, the mask of its lanes."""

    def __init__(self, emitter: CpuEmitter, dtype: DType, width: int):
        self.emitter = emitter
        self.dtype = dtype
        self.width = width
        self.memory = emitter.memory_type(dtype, width)
        self.align = dtype.bytes
        self.address = "null"
        self.lane_stride = "1"
        self.condition: str | None = None
        self.mask: str | None = None

    def box(self, op: LoadOp | StoreOp) -> None:
        """Find the address and tests of a box of a tensor."""
        e = self.emitter
        offsets, strides, sizes = (e.all_units(list(v)) for v in (op.offsets, op.strides, op.sizes))
        self.address = e.ops.gep(self.memory.element, e.unit(op.pointer), e.dot(offsets, strides))
        lane_axis = op.axis_list[0] if self.width > 1 else None
        if lane_axis is not None:
            self.lane_stride = "1" if op.vector.data > 1 else strides[lane_axis]
        for axis in op.checked_list:
            if axis == lane_axis:
                self.mask_lanes(offsets[axis], sizes[axis])
            else:
                # One unsigned comparison tests both bounds.
                self._require(e.ops.compare("ult", I64, offsets[axis], sizes[axis]))
        if op.mask is not None:
            self.and_mask(e.unit(op.mask))

    def _require(self, condition: str) -> None:
        both = self.condition
        self.condition = condition if both is None else self.emitter.ops.binary("and", I1, both, condition)

    def mask_lanes(self, offset: str, size: str) -> None:
        """Keep the lanes whose position `offset + lane` lies in [0, size)."""
        ops, lanes, i32 = self.emitter.ops, str(self.width), LLVMType("i32", self.width)
        iota = self.emitter.iota(i32)
        room = ops.fn.assign(f"sub nsw i64 {size}, {offset}")
        for bound, predicate in ((room, "ult"), (ops.fn.assign(f"sub nsw i64 0, {offset}"), "uge")):
            if predicate == "uge" and offset.isdigit():
                continue
            clamped = ops.intrinsic("smin", I64, ops.intrinsic("smax", I64, bound, "0"), lanes)
            limit = ops.splat(i32, ops.convert("trunc", I64, clamped, I32))
            self.and_mask(ops.compare(predicate, i32, iota, limit))

    def and_mask(self, mask: str) -> None:
        """Narrow the mask (for a single element: the condition)."""
        if self.width == 1:
            self._require(mask)
        elif self.mask is None:
            self.mask = mask
        else:
            self.mask = self.emitter.ops.binary("and", LLVMType("i1", self.width), self.mask, mask)

    def lanes(self) -> str | None:
        """Return the mask with the whole-access condition in it, None when every lane counts."""
        if self.condition is None:
            return self.mask
        bools = LLVMType("i1", self.width)
        spread = self.emitter.ops.splat(bools, self.condition)
        return spread if self.mask is None else self.emitter.ops.binary("and", bools, self.mask, spread)

    def pointers(self) -> str:
        """Return the address of every lane of a strided access."""
        i64 = LLVMType("i64", self.width)
        steps = self.emitter.iota(i64)
        if self.lane_stride != "1":
            ops = self.emitter.ops
            steps = ops.binary("mul", i64, steps, ops.splat(i64, self.lane_stride))
        return self.element_pointers(self.address, steps)

    def element_pointers(self, base: str, offsets: str) -> str:
        """Return `base + offsets` (elements), lane by lane."""
        given = f"ptr {base}, {LLVMType('i64', self.width)} {offsets}"
        return self.emitter.fn.assign(f"getelementptr {self.memory.element}, {given}")

    def load(self, fill: str | None) -> str:
        """Return what is at the address; `fill` (memory form, zero if None) where it is not read."""
        e, ops = self.emitter, self.emitter.ops
        default = ops.splat(self.memory, fill) if fill is not None else "zeroinitializer"
        if self.width == 1:
            return e.from_memory(self._load_scalar(fill), self.dtype, 1)
        mask = self.lanes()
        if self.lane_stride != "1":
            return e.from_memory(self.gather(self.pointers(), mask, default), self.dtype, self.width)
        if mask is None:
            value = e.fn.assign(f"load {self.memory}, ptr {self.address}, align {self.align}")
        else:
            value = self._masked("load", PTR, self.address, mask, default)
        return e.from_memory(value, self.dtype, self.width)

    def gather(self, pointers: str, mask: str | None, default: str) -> str:
        """Load single elements."""
        bools, pointer_type = LLVMType("i1", self.width), LLVMType("ptr", self.width)
        given = mask if mask is not None else bools.splat("true")
        return self._masked("gather", pointer_type, pointers, given, default)

    def _masked(self, name: str, kind: LLVMType, where: str, mask: str, default: str) -> str:
        bools = LLVMType("i1", self.width)
        symbol = f"llvm.masked.{name}.{self.memory.mangled}.{kind.mangled}"
        self.emitter.module.declare(f"declare {self.memory} @{symbol}({kind}, {bools}, {self.memory})")
        where = f"{kind} align {self.align} {where}"
        return self.emitter.fn.assign(
            f"call {self.memory} @{symbol}({where}, {bools} {mask}, {self.memory} {default})"
        )

    def _load_scalar(self, fill: str | None) -> str:
        fn = self.emitter.fn
        text = f"load {self.memory}, ptr {self.address}, align {self.align}"
        if self.condition is None:
            return fn.assign(text)
        default = fill if fill is not None else "zeroinitializer"
        before, inside, join = fn.block, fn.label("read"), fn.label("join")
        fn.branch_if(self.condition, inside, join)
        fn.start(inside)
        value = fn.assign(text)
        fn.branch(join)
        fn.start(join)
        return fn.phi(str(self.memory), [(default, before), (value, inside)])

    def store(self, value: str, stream: str | None = None) -> None:
        """Write a value (not in memory form) where the tests allow.

        Args:
            value: what is written.
            stream: whether to write past the caches, where the address allows it.
        """
        e, fn = self.emitter, self.emitter.fn
        value = e.to_memory(value, self.dtype, self.width)
        if self.width == 1:
            text = f"store {self.memory} {value}, ptr {self.address}, align {self.align}"
            self.guarded(lambda: fn.line(text))
            return
        mask = self.lanes()
        if self.lane_stride != "1":
            self.scatter(self.pointers(), value, mask)
        elif mask is None and stream is not None and stream != "false":
            self._stream(value, stream)
        elif mask is None:
            fn.line(f"store {self.memory} {value}, ptr {self.address}, align {self.align}")
        else:
            self._masked_store("store", PTR, self.address, value, mask)

    def _stream(self, value: str, stream: str) -> None:
        """Store whole vectors past the caches where the address is aligned to them, else plainly.

        The test stands inside the loop: it is the same for a whole row, so it is predicted, and rows may differ.
        """
        e, fn, ops = self.emitter, self.emitter.fn, self.emitter.ops
        align = min(self.width * self.dtype.bytes, e.target.vector_bytes)
        number = ops.convert("ptrtoint", PTR, self.address, I64)
        low = ops.binary("and", I64, number, str(align - 1))
        condition = ops.binary("and", I1, stream, ops.compare("eq", I64, low, "0"))
        past, plain, join = fn.label("past"), fn.label("plain"), fn.label("join")
        fn.branch_if(condition, past, plain)
        fn.start(past)
        hint = e.module.metadata("!{i32 1}")
        fn.line(f"store {self.memory} {value}, ptr {self.address}, align {align}, !nontemporal {hint}")
        fn.branch(join)
        fn.start(plain)
        fn.line(f"store {self.memory} {value}, ptr {self.address}, align {self.align}")
        fn.branch(join)
        fn.start(join)
        e.streams = True

    def scatter(self, pointers: str, value: str, mask: str | None) -> None:
        """Store single elements (in memory form), lane 0 first."""
        bools, pointer_type = LLVMType("i1", self.width), LLVMType("ptr", self.width)
        self._masked_store("scatter", pointer_type, pointers, value, mask or bools.splat("true"))

    def _masked_store(self, name: str, kind: LLVMType, where: str, value: str, mask: str) -> None:
        bools = LLVMType("i1", self.width)
        if name == "store" and self._may_truncate():
            mask = self._opaque(bools, mask)
        symbol = f"llvm.masked.{name}.{self.memory.mangled}.{kind.mangled}"
        self.emitter.module.declare(f"declare void @{symbol}({self.memory}, {kind}, {bools})")
        where = f"{kind} align {self.align} {where}"
        self.emitter.fn.line(f"call void @{symbol}({self.memory} {value}, {where}, {bools} {mask})")

    def _may_truncate(self) -> bool:
        """Return whether LLVM may merge a masked store with the truncation of what it stores."""
        element = self.memory.element
        return "avx512f" in self.emitter.target.features and element in ("i8", "i16", "i32")

    def _opaque(self, bools: LLVMType, mask: str) -> str:
        """Return a mask that LLVM cannot know, by way of a mask register and no instruction.

        With AVX-512, LLVM (22 at least) makes a masked store of a truncation of which one lane alone is known to count
        a store of the wide element: it writes past the narrow one.
        """
        fn, width = self.emitter.fn, max(self.width, 8)
        wide = LLVMType("i1", width)
        if width != self.width:
            lanes = ", ".join(f"i32 {min(lane, 2 * self.width - 1)}" for lane in range(width))
            mask = fn.assign(
                f"shufflevector {bools} {mask}, {bools} zeroinitializer, <{width} x i32> <{lanes}>"
            )
        attributes = self.emitter.module.attributes("nounwind memory(none)")
        mask = fn.assign(f'call {wide} asm "", "=^Yk,0"({wide} {mask}) {attributes}')
        if width == self.width:
            return mask
        lanes = ", ".join(f"i32 {lane}" for lane in range(self.width))
        return fn.assign(f"shufflevector {wide} {mask}, {wide} poison, <{self.width} x i32> <{lanes}>")

    def guarded(self, body: Callable[[], None]) -> None:
        """Run `body` under the condition."""
        fn = self.emitter.fn
        if self.condition is None:
            body()
            return
        inside, join = fn.label("write"), fn.label("join")
        fn.branch_if(self.condition, inside, join)
        fn.start(inside)
        body()
        fn.branch(join)
        fn.start(join)


def _access(emitter: CpuEmitter, value: SSAValue) -> _Access:
    return _Access(emitter, dtype_of(element_of(value.type)), emitter.unit_width(value.type))


def _fill(emitter: CpuEmitter, fill: SSAValue | None, dtype: DType) -> str | None:
    return None if fill is None else emitter.to_memory(emitter.unit(fill), dtype, 1)


@CPU.register(LoadOp)
def emit_load(emitter: CpuEmitter, op: LoadOp) -> None:
    """Load a chunk or element of a box."""
    access = _access(emitter, op.result)
    access.box(op)
    emitter.bind(op.result, [access.load(_fill(emitter, op.fill, access.dtype))])


@CPU.register(StoreOp)
def emit_store(emitter: CpuEmitter, op: StoreOp) -> None:
    """Store a chunk or element of a box."""
    access = _access(emitter, op.value)
    access.box(op)
    access.store(emitter.unit(op.value), None if op.stream is None else emitter.unit(op.stream))


@CPU.register(PrefetchOp)
def emit_prefetch(emitter: CpuEmitter, op: PrefetchOp) -> None:
    """Ask for a line in the second cache: the first one holds the row at hand."""
    offset = emitter.dot(emitter.all_units(list(op.offsets)), emitter.all_units(list(op.strides)))
    element = emitter.memory_type(dtype_of(element_of(op.pointer.type)), 1).element
    address = emitter.ops.gep(element, emitter.unit(op.pointer), offset)
    prefetch(emitter.module, emitter.fn, address, "read", 2)


def _single(emitter: CpuEmitter, access: _Access, op: GatherOp | ScatterOp | AtomicOp) -> None:
    """Set the address and condition of a single element."""
    access.address = emitter.ops.gep(
        access.memory.element, emitter.unit(op.pointer), emitter.unit(op.offsets)
    )
    if op.mask is not None:
        access.and_mask(emitter.unit(op.mask))


@CPU.register(GatherOp)
def emit_gather(emitter: CpuEmitter, op: GatherOp) -> None:
    """Load single elements."""
    access = _access(emitter, op.result)
    fill = _fill(emitter, op.fill, access.dtype)
    if access.width == 1:
        _single(emitter, access, op)
        emitter.bind(op.result, [access.load(fill)])
        return
    pointers = access.element_pointers(emitter.unit(op.pointer), emitter.unit(op.offsets))
    mask = None if op.mask is None else emitter.unit(op.mask)
    default = "zeroinitializer" if fill is None else emitter.ops.splat(access.memory, fill)
    value = access.gather(pointers, mask, default)
    emitter.bind(op.result, [emitter.from_memory(value, access.dtype, access.width)])


@CPU.register(ScatterOp)
def emit_scatter(emitter: CpuEmitter, op: ScatterOp) -> None:
    """Store single elements."""
    access = _access(emitter, op.value)
    value = emitter.unit(op.value)
    if access.width == 1:
        _single(emitter, access, op)
        access.store(value)
        return
    pointers = access.element_pointers(emitter.unit(op.pointer), emitter.unit(op.offsets))
    mask = None if op.mask is None else emitter.unit(op.mask)
    access.scatter(pointers, emitter.to_memory(value, access.dtype, access.width), mask)


# Atomics


@CPU.register(AtomicOp)
def emit_atomic(emitter: CpuEmitter, op: AtomicOp) -> None:
    """Update elements one after the other."""
    access = _access(emitter, op.value)
    if access.width == 1:
        _single(emitter, access, op)
        compare = None if op.compare is None else emitter.unit(op.compare)
        emitter.bind(op.result, [_guarded_update(emitter, access, op, emitter.unit(op.value), compare)])
        return
    emitter.bind(op.result, [_lane_loop(emitter, access, op)])


def _lane_loop(emitter: CpuEmitter, access: _Access, op: AtomicOp) -> str:
    """Loop over the lanes of a chunk; returns the vector of old values."""
    fn, width = emitter.fn, access.width
    value_type = emitter.unit_type(op.value.type)
    i64 = LLVMType("i64", width)
    head, body, exit_ = fn.label("lane.head"), fn.label("lane"), fn.label("lane.exit")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    lane, old = fn.fresh("lane"), fn.fresh("old")
    places = fn.reserve(), fn.reserve()
    fn.branch_if(emitter.ops.compare("slt", I64, lane, str(width)), body, exit_)
    fn.start(body)
    single = _Access(emitter, access.dtype, 1)

    def pick(type_: LLVMType, value: str) -> str:
        return fn.assign(f"extractelement {type_} {value}, i64 {lane}")

    offset = pick(i64, emitter.unit(op.offsets))
    single.address = emitter.ops.gep(single.memory.element, emitter.unit(op.pointer), offset)
    if op.mask is not None:
        single.and_mask(pick(LLVMType("i1", width), emitter.unit(op.mask)))
    compare = None if op.compare is None else pick(value_type, emitter.unit(op.compare))
    result = _guarded_update(emitter, single, op, pick(value_type, emitter.unit(op.value)), compare)
    updated = fn.assign(f"insertelement {value_type} {old}, {value_type.element} {result}, i64 {lane}")
    following = fn.assign(f"add nsw i64 {lane}, 1")
    fn.fill(places[0], f"{lane} = phi i64 [ 0, %{before} ], [ {following}, %{fn.block} ]")
    fn.fill(places[1], f"{old} = phi {value_type} [ zeroinitializer, %{before} ], [ {updated}, %{fn.block} ]")
    fn.branch(head, f", !llvm.loop {emitter.module.loop()}")
    fn.start(exit_)
    return old


def _guarded_update(
    emitter: CpuEmitter, access: _Access, op: AtomicOp, value: str, compare: str | None
) -> str:
    fn, element = emitter.fn, str(emitter.value_type(access.dtype))
    if access.condition is None:
        return _update(emitter, access, op, value, compare)
    before, inside, join = fn.block, fn.label("update"), fn.label("join")
    fn.branch_if(access.condition, inside, join)
    fn.start(inside)
    old = _update(emitter, access, op, value, compare)
    end = fn.block
    fn.branch(join)
    fn.start(join)
    return fn.phi(element, [(emitter.literal(0, access.dtype), before), (old, end)])


def _update(emitter: CpuEmitter, access: _Access, op: AtomicOp, value: str, compare: str | None) -> str:
    """Update one element and return its old value."""
    dtype, name, order = access.dtype, op.fn.data, ORDERS[op.order.data]
    bits = LLVMType(f"i{dtype.bytes * 8}")
    signed = dtype.kind == "int"
    direct = {
        "add": "add", "max": "max" if signed else "umax", "min": "min" if signed else "umin",
        "and": "and", "or": "or", "xor": "xor", "exchange": "xchg",
    }  # fmt: skip
    if name == "compare_exchange":
        assert compare is not None
        expected, new = (_to_bits(emitter, access, v, bits) for v in (compare, value))
        return _from_bits(emitter, access, _cmpxchg(emitter, access, bits, expected, new, order)[0], bits)
    if not dtype.is_float or name == "exchange":
        new = _to_bits(emitter, access, value, bits)
        text = f"atomicrmw {direct[name]} ptr {access.address}, {bits} {new} {order}, align {dtype.bytes}"
        return _from_bits(emitter, access, emitter.fn.assign(text), bits)
    fn = {"add": "add", "max": "maximum", "min": "minimum"}[name]
    return _compare_exchange_loop(
        emitter, access, bits, order, lambda old: elementwise.apply(emitter, fn, dtype, 1, [old, value])
    )


def _compare_exchange_loop(
    emitter: CpuEmitter, access: _Access, bits: LLVMType, order: str, update: Callable[[str], str]
) -> str:
    fn = emitter.fn
    start = fn.assign(f"load atomic {bits}, ptr {access.address} monotonic, align {access.dtype.bytes}")
    head, exit_ = fn.label("retry"), fn.label("done")
    before = fn.block
    fn.branch(head)
    fn.start(head)
    current, place = fn.fresh("cur"), fn.reserve()
    old = _from_bits(emitter, access, current, bits)
    new = _to_bits(emitter, access, update(old), bits)
    seen, success = _cmpxchg(emitter, access, bits, current, new, order)
    fn.fill(place, f"{current} = phi {bits} [ {start}, %{before} ], [ {seen}, %{fn.block} ]")
    fn.branch_if(success, exit_, head)
    fn.start(exit_)
    return old


def _cmpxchg(
    emitter: CpuEmitter, access: _Access, bits: LLVMType, expected: str, new: str, order: str
) -> tuple[str, str]:
    failure = "acquire" if order in ("acquire", "acq_rel") else "monotonic"
    pair = emitter.fn.assign(
        f"cmpxchg ptr {access.address}, {bits} {expected}, {bits} {new} {order} {failure}, "
        f"align {access.dtype.bytes}"
    )
    kind = f"{{ {bits}, i1 }}"
    return (
        emitter.fn.assign(f"extractvalue {kind} {pair}, 0"),
        emitter.fn.assign(f"extractvalue {kind} {pair}, 1"),
    )


def _to_bits(emitter: CpuEmitter, access: _Access, value: str, bits: LLVMType) -> str:
    value = emitter.to_memory(value, access.dtype, 1)
    memory = access.memory
    return value if memory == bits else emitter.ops.convert("bitcast", memory, value, bits)


def _from_bits(emitter: CpuEmitter, access: _Access, value: str, bits: LLVMType) -> str:
    memory = access.memory
    value = value if memory == bits else emitter.ops.convert("bitcast", bits, value, memory)
    return emitter.from_memory(value, access.dtype, 1)


# Scratch buffers


@CPU.register(AllocOp)
def emit_alloc(emitter: CpuEmitter, op: AllocOp) -> None:
    """A buffer's address is a fixed offset in the worker's scratch memory."""
    emitter.bind(op.result, [emitter.ops.gep("i8", emitter.scratch, str(op.offset.data))])


@CPU.register(ViewOp)
def emit_view(emitter: CpuEmitter, op: ViewOp) -> None:
    """A view moves the address to a stage, or only changes how it is read."""
    source = op.source.type
    assert isinstance(source, BufferType)
    address = emitter.unit(op.source)
    if op.at is not None:
        offset = emitter.mul(emitter.unit(op.at), str(source.stored_strides[0]))
        address = emitter.ops.gep(emitter.memory_type(source.dtype, 1).element, address, offset)
    emitter.bind(op.result, [address])


def _buffer_access(
    emitter: CpuEmitter,
    value: SSAValue,
    buffer: SSAValue,
    offsets: Sequence[SSAValue],
    axes: tuple[int, ...],
    vector: int,
    checked: bool,
) -> _Access:
    type_ = buffer.type
    assert isinstance(type_, BufferType)
    access = _access(emitter, value)
    places = emitter.all_units(offsets)
    offset = emitter.dot(places, [str(s) for s in type_.strides])
    access.address = emitter.ops.gep(access.memory.element, emitter.unit(buffer), offset)
    if access.width > 1:
        axis = axes[0]
        access.lane_stride = "1" if vector > 1 else str(type_.strides[axis])
        if checked:
            access.mask_lanes(places[axis], str(type_.shape[axis]))
    return access


@CPU.register(BufferLoadOp)
def emit_buffer_load(emitter: CpuEmitter, op: BufferLoadOp) -> None:
    """Read a chunk or element of a buffer."""
    axes = tuple(axis.data for axis in op.axes.data)
    checked = op.fill is not None
    access = _buffer_access(emitter, op.result, op.buffer, list(op.offsets), axes, op.vector.data, checked)
    emitter.bind(op.result, [access.load(_fill(emitter, op.fill, access.dtype))])


@CPU.register(BufferStoreOp)
def emit_buffer_store(emitter: CpuEmitter, op: BufferStoreOp) -> None:
    """Write a chunk or element of a buffer."""
    axes = tuple(axis.data for axis in op.axes.data)
    access = _buffer_access(
        emitter, op.value, op.buffer, list(op.offsets), axes, op.vector.data, op.vector.data == 1
    )
    access.store(emitter.unit(op.value))
