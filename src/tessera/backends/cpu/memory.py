"""Memory ops of the vector model: boxes of tensors, single elements and scratch buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.backends.cpu.emitter import CPU, CpuEmitter
from tessera.backends.cpu.texts import prefetch
from tessera.backends.llvm.ops import I1, I32, I64, PTR
from tessera.backends.llvm.types import LLVMType
from tessera.ir.target.arithmetic import ElementwiseOp, IotaOp, SplatOp, constant_value
from tessera.ir.target.atomics import AtomicOp
from tessera.ir.target.memory import (
    AllocOp,
    BufferGatherOp,
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


class Access:
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
        """Find the address and tests of a box of a tensor.

        What is masked off as a whole has an address in the tensor: at one that is not mapped, a masked access of no
        lanes takes a hundred nanoseconds.
        """
        e = self.emitter
        offsets, strides, sizes = (e.all_units(list(v)) for v in (op.offsets, op.strides, op.sizes))
        lane_axis = op.axis_list[0] if self.width > 1 else None
        if lane_axis is not None:
            self.lane_stride = "1" if op.vector.data > 1 else strides[lane_axis]
        places = list(offsets)
        for axis in op.checked_list:
            offset, size = offsets[axis], sizes[axis]
            if axis == lane_axis:
                self.mask_lanes(offset, size)
                if self.lane_stride == "1":
                    places[axis] = self._some_inside(offset, size)
            else:
                # One unsigned comparison tests both bounds.
                inside = e.ops.compare("ult", I64, offset, size)
                self._require(inside)
                if self.width > 1 and self._masks_natively:
                    places[axis] = e.ops.select(I64, inside, offset, "0")
        self.address = e.ops.gep(self.memory.element, e.unit(op.pointer), e.dot(places, strides))
        if op.mask is not None and self.width > 1 and isinstance(op.mask.owner, SplatOp):
            self._require(e.unit(op.mask.owner.value))
        elif op.mask is not None:
            self.and_mask(e.unit(op.mask))

    def _some_inside(self, offset: str, size: str) -> str:
        """Return the offset of a chunk of which lanes lie in [0, size), 0 for one that lies outside."""
        ops, before = self.emitter.ops, str(self.width - 1)
        reach, room = (ops.binary("add", I64, one, before) for one in (offset, size))
        return ops.select(I64, ops.compare("ult", I64, reach, room), offset, "0")

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
        e = self.emitter
        default = e.ops.splat(self.memory, fill) if fill is not None else "zeroinitializer"
        if self.condition is None or (self.width > 1 and self._masks_natively):
            value = self._loaded(self.lanes(), default)
        else:
            value = self._load_guarded(default)
        return e.from_memory(value, self.dtype, self.width)

    def _loaded(self, mask: str | None, default: str) -> str:
        if self.width > 1 and self.lane_stride != "1":
            return self.gather(self.pointers(), mask, default)
        if mask is not None:
            return self._masked_load(mask, default)
        return self.emitter.fn.assign(f"load {self.memory}, ptr {self.address}, align {self.align}")

    @property
    def _masks_natively(self) -> bool:
        """Return whether the target has masked instructions, for elements of any size."""
        return self.emitter.target.has("avx512f")

    def asks_each_lane(self, mask: SSAValue | None) -> bool:
        """Return whether LLVM has to test and branch for each lane of a mask, as there is no masked instruction.

        It need not for lanes past the end of a row: those are known at compile time.
        """
        return mask is not None and not self._masks_natively and not _is_constant(mask)

    def all_lanes(self, mask: SSAValue) -> str:
        """Return whether all lanes of a mask are true."""
        if isinstance(mask.owner, SplatOp):
            return self.emitter.unit(mask.owner.value)
        kind = LLVMType(f"i{self.width}")
        bits = self.emitter.ops.convert("bitcast", LLVMType("i1", self.width), self.emitter.unit(mask), kind)
        return self.emitter.ops.compare("eq", kind, bits, "-1")

    def spared(self, pointers: str, mask: str) -> str:
        """Return the addresses, with those masked off replaced by a spare place."""
        kind, ops = LLVMType("ptr", self.width), self.emitter.ops
        return ops.select(kind, mask, pointers, ops.splat(kind, self.emitter.spare()))

    def gather(self, pointers: str, mask: str | None, default: str) -> str:
        """Load single elements."""
        bools, pointer_type = LLVMType("i1", self.width), LLVMType("ptr", self.width)
        given = mask if mask is not None else bools.splat("true")
        return self._masked("gather", pointer_type, pointers, given, default)

    def _masked_load(self, mask: str, default: str) -> str:
        """Load under a mask: register by register, where LLVM would take a wider load apart.

        LLVM (22) loses the size of the parts: it aborts where one is stored, or takes elements of another place.
        """
        registers = self._registers()
        if registers == 1:
            return self._masked("load", PTR, self.address, mask, default)
        ops, values = self.emitter.ops, list[str]()
        for part in self._parts(registers):
            given = self._lanes_of(self.memory, default, part)
            place = ops.gep(self.memory.element, self.address, str(part.start))
            lanes = self._lanes_of(LLVMType("i1", self.width), mask, part)
            access = Access(self.emitter, self.dtype, len(part))
            values.append(access._masked("load", PTR, place, lanes, given))
        width = len(self._parts(registers)[0])
        while len(values) > 1:
            pairs, type_ = zip(values[::2], values[1::2], strict=True), LLVMType(self.memory.element, width)
            order = ", ".join(f"i32 {lane}" for lane in range(2 * width))
            values = [
                self.emitter.fn.assign(f"shufflevector {type_} {a}, {type_} {b}, <{2 * width} x i32> <{order}>")
                for a, b in pairs
            ]
            width *= 2
        return values[0]

    def _registers(self) -> int:
        """Return how many vector registers with masked instructions a chunk takes; 1 where there are none."""
        size = self.width * self.dtype.bytes
        return max(size // self.emitter.target.vector_bytes, 1) if self.emitter.target.has("avx2") else 1

    def _parts(self, count: int) -> list[range]:
        lanes = self.width // count
        return [range(first, first + lanes) for first in range(0, self.width, lanes)]

    def _lanes_of(self, type_: LLVMType, value: str, part: range) -> str:
        order = ", ".join(f"i32 {lane}" for lane in part)
        return self.emitter.fn.assign(f"shufflevector {type_} {value}, {type_} poison, <{len(part)} x i32> <{order}>")

    def _masked(self, name: str, kind: LLVMType, where: str, mask: str, default: str) -> str:
        bools = LLVMType("i1", self.width)
        symbol = f"llvm.masked.{name}.{self.memory.mangled}.{kind.mangled}"
        self.emitter.module.declare(f"declare {self.memory} @{symbol}({kind}, {bools}, {self.memory})")
        where = f"{kind} align {self.align} {where}"
        return self.emitter.fn.assign(f"call {self.memory} @{symbol}({where}, {bools} {mask}, {self.memory} {default})")

    def _load_guarded(self, default: str) -> str:
        """Load under the condition: one branch, where a mask of equal lanes would have LLVM ask each of them."""
        fn, before = self.emitter.fn, self.emitter.fn.block
        assert self.condition is not None
        inside, join = fn.label("read"), fn.label("join")
        fn.branch_if(self.condition, inside, join)
        fn.start(inside)
        value = self._loaded(self.mask, default)
        fn.branch(join)
        fn.start(join)
        return fn.phi(str(self.memory), [(default, before), (value, inside)])

    def store(self, value: str, stream: str | None = None) -> None:
        """Write a value (not in memory form) where the tests allow.

        Args:
            value: what is written.
            stream: whether to write past the caches, where the address allows it.
        """
        value = self.emitter.to_memory(value, self.dtype, self.width)
        if self.condition is None or (self.width > 1 and self._masks_natively):
            self._stored(value, self.lanes(), stream)
        else:
            self.guarded(lambda: self._stored(value, self.mask, stream))

    def _stored(self, value: str, mask: str | None, stream: str | None) -> None:
        if self.width > 1 and self.lane_stride != "1":
            self.scatter(self.pointers(), value, mask)
        elif mask is not None:
            self._masked_store("store", PTR, self.address, value, mask)
        elif self.width > 1 and stream is not None and stream != "false":
            self._stream(value, stream)
        else:
            self.emitter.fn.line(f"store {self.memory} {value}, ptr {self.address}, align {self.align}")

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
            mask = fn.assign(f"shufflevector {bools} {mask}, {bools} zeroinitializer, <{width} x i32> <{lanes}>")
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


def _is_constant(mask: SSAValue) -> bool:
    """Return whether a mask compares lane numbers with a constant."""
    op = mask.owner
    if not isinstance(op, ElementwiseOp) or not isinstance(op.args[0].owner, IotaOp):
        return False
    limit = op.args[-1].owner
    return isinstance(limit, SplatOp) and constant_value(limit.value) is not None


def access_of(emitter: CpuEmitter, value: SSAValue) -> Access:
    """Return the access that loads or stores a value."""
    return Access(emitter, dtype_of(element_of(value.type)), emitter.unit_width(value.type))


def _fill(emitter: CpuEmitter, fill: SSAValue | None, dtype: DType) -> str | None:
    return None if fill is None else emitter.to_memory(emitter.unit(fill), dtype, 1)


@CPU.register(LoadOp)
def emit_load(emitter: CpuEmitter, op: LoadOp) -> None:
    """Load a chunk or element of a box."""
    access = access_of(emitter, op.result)
    access.box(op)
    emitter.bind(op.result, [access.load(_fill(emitter, op.fill, access.dtype))])


@CPU.register(StoreOp)
def emit_store(emitter: CpuEmitter, op: StoreOp) -> None:
    """Store a chunk or element of a box."""
    access = access_of(emitter, op.value)
    access.box(op)
    access.store(emitter.unit(op.value), None if op.stream is None else emitter.unit(op.stream))


@CPU.register(PrefetchOp)
def emit_prefetch(emitter: CpuEmitter, op: PrefetchOp) -> None:
    """Prefetch a line to the second-level cache: the first-level one holds the current row."""
    offset = emitter.dot(emitter.all_units(list(op.offsets)), emitter.all_units(list(op.strides)))
    element = emitter.memory_type(dtype_of(element_of(op.pointer.type)), 1).element
    address = emitter.ops.gep(element, emitter.unit(op.pointer), offset)
    prefetch(emitter.module, emitter.fn, address, "read", 2)


def set_single(emitter: CpuEmitter, access: Access, op: GatherOp | ScatterOp | AtomicOp) -> None:
    """Set the address and condition of a single element."""
    access.address = emitter.ops.gep(access.memory.element, emitter.unit(op.pointer), emitter.unit(op.offsets))
    if op.mask is not None:
        access.and_mask(emitter.unit(op.mask))


@CPU.register(GatherOp)
def emit_gather(emitter: CpuEmitter, op: GatherOp) -> None:
    """Load single elements."""
    access = access_of(emitter, op.result)
    fill = _fill(emitter, op.fill, access.dtype)
    if access.width == 1:
        set_single(emitter, access, op)
        emitter.bind(op.result, [access.load(fill)])
        return
    pointers = access.element_pointers(emitter.unit(op.pointer), emitter.unit(op.offsets))
    mask = None if op.mask is None else emitter.unit(op.mask)
    default = "zeroinitializer" if fill is None else emitter.ops.splat(access.memory, fill)
    if op.mask is not None and access.asks_each_lane(op.mask):
        value = _gather_at_once(access, pointers, op.mask, default)
    else:
        value = access.gather(pointers, mask, default)
    emitter.bind(op.result, [emitter.from_memory(value, access.dtype, access.width)])


def _gather_at_once(access: Access, pointers: str, mask: SSAValue, default: str) -> str:
    """Load single elements after one test for all lanes; where some are masked off, they load a spare element."""
    fn, ops = access.emitter.fn, access.emitter.ops
    whole, some, join = fn.label("all"), fn.label("some"), fn.label("join")
    fn.branch_if(access.all_lanes(mask), whole, some)
    fn.start(whole)
    loaded = access.gather(pointers, None, "poison")
    fn.branch(join)
    fn.start(some)
    chosen = default
    if not isinstance(mask.owner, SplatOp):
        lanes = access.emitter.unit(mask)
        spared = access.gather(access.spared(pointers, lanes), None, "poison")
        chosen = ops.select(access.memory, lanes, spared, default)
    fn.branch(join)
    fn.start(join)
    return fn.phi(str(access.memory), [(loaded, whole), (chosen, some)])


@CPU.register(ScatterOp)
def emit_scatter(emitter: CpuEmitter, op: ScatterOp) -> None:
    """Store single elements."""
    access = access_of(emitter, op.value)
    value = emitter.unit(op.value)
    if access.width == 1:
        set_single(emitter, access, op)
        access.store(value)
        return
    pointers = access.element_pointers(emitter.unit(op.pointer), emitter.unit(op.offsets))
    mask = None if op.mask is None else emitter.unit(op.mask)
    if mask is not None and access.asks_each_lane(op.mask):
        pointers, mask = access.spared(pointers, mask), None
    access.scatter(pointers, emitter.to_memory(value, access.dtype, access.width), mask)


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
) -> Access:
    type_ = buffer.type
    assert isinstance(type_, BufferType)
    access = access_of(emitter, value)
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


@CPU.register(BufferGatherOp)
def emit_buffer_gather(emitter: CpuEmitter, op: BufferGatherOp) -> None:
    """Read single elements of a buffer."""
    access = access_of(emitter, op.result)
    base, offsets = emitter.unit(op.buffer), emitter.unit(op.offsets)
    if access.width == 1:
        access.address = emitter.ops.gep(access.memory.element, base, offsets)
        emitter.bind(op.result, [access.load(None)])
        return
    values = access.gather(access.element_pointers(base, offsets), None, "poison")
    emitter.bind(op.result, [emitter.from_memory(values, access.dtype, access.width)])


@CPU.register(BufferStoreOp)
def emit_buffer_store(emitter: CpuEmitter, op: BufferStoreOp) -> None:
    """Write a chunk or element of a buffer."""
    axes = tuple(axis.data for axis in op.axes.data)
    access = _buffer_access(emitter, op.value, op.buffer, list(op.offsets), axes, op.vector.data, op.vector.data == 1)
    access.store(emitter.unit(op.value))
