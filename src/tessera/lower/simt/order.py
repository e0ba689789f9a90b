"""Places the barriers that keep a program's accesses to global memory in the order of the program.

A tile's elements are spread over threads, each of which runs its own accesses in order. What one thread wrote another
one may read too early, or overwrite before it was read::

    %x = load %X[%i]              (layout 1)            %x = load %X[%i]
    store %y, %X[%i]              (layout 2)      =>    barrier
    %z = load %X[%i]              (layout 1)            store %y, %X[%i]
                                                        barrier
                                                        %z = load %X[%i]

No barrier is needed where every element is touched by one and the same thread in both accesses (boxes that are equal or
disjoint, in one layout), where the boxes are known to be disjoint, or where there is a barrier between them already.
What an iteration of a loop leaves behind meets the accesses of the next one; the tiles that a persistent launch walks
are programs of their own, which nothing orders.

A barrier among the threads of a block orders their accesses to global memory as well (PTX ISA, "Memory consistency
model", causality order).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir.affine import Affine, affine
from tessera.ir.layouts import LANE, WARP, LinearLayout
from tessera.ir.locations import location_of
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.atomics import AtomicOp
from tessera.ir.target.cluster import ClusterBarrierOp, ClusterWaitOp
from tessera.ir.target.memory import (
    BarrierOp,
    GatherOp,
    LoadOp,
    MemcpyOp,
    ScatterOp,
    StoreOp,
    WaitOp,
)
from tessera.ir.target.roles import BulkCopyOp, BulkStoreOp, RolesOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.simt.distance import Distance
from tessera.target.artifact import Parameter

TILE_LOOP = "tessera_target.tiles"
"""Marks the loop of a persistent launch, whose iterations are programs of their own."""

MOST_PENDING = 64
"""Accesses of one memory after which a barrier costs less than comparing each with every later one."""

_COMMUTE = ("add", "min", "max", "and", "or", "xor")


@dataclass(frozen=True)
class _Access:
    """An access of a program to global memory.

    Args:
        op: the op.
        memory: which memory; different ones never overlap.
        arg: the kernel's argument; boxes of different ones are not compared.
        writes: whether it writes.
        offsets: where its box starts in each dimension of the tensor; None for single elements.
        sizes: the sizes of the box.
        layout: which thread touches what, and the dimension of each axis; None where two threads touch an element.
        updates: the function and dtype of an atomic whose order among others of its kind does not matter: of those of
            another dtype at the same address a carry, or where a number begins, makes it matter.
        crossed: the loops whose next iteration has begun since.
        copying: whether it is an asynchronous copy that has not been waited for.
    """

    op: Operation
    memory: int
    arg: int
    writes: bool
    offsets: tuple[Affine, ...] | None = None
    sizes: tuple[int, ...] = ()
    layout: tuple[LinearLayout, tuple[int, ...]] | None = None
    updates: str | None = None
    crossed: frozenset[Operation] = frozenset()
    copying: bool = False


Pending = dict[tuple[Operation, frozenset[Operation]], _Access]
"""Accesses that no barrier has followed yet."""


def order_accesses(func: FuncOp, memory_of: Callable[[int], int]) -> None:
    """Add the barriers that a function of TIR-T needs.

    Args:
        func: the function.
        memory_of: gives, for the position of a kernel's argument, a number that arguments that may overlap share.
    """
    records: dict[SSAValue, Parameter] = {
        value: record
        for value, record in zip(func.body.block.args, func.parameters, strict=True)
        if record.kind in ("pointer", "tensor_map")
    }
    order = _Order(records, memory_of)
    order.find_contested(func)
    if order.contested:
        order.run(func.body.block, {})


def mark_tile_loop(loop: Operation) -> None:
    """Say that the iterations of a loop are programs of their own."""
    loop.attributes[TILE_LOOP] = UnitAttr()


@dataclass
class _Order:
    """The walk over a function.

    Args:
        records: the parameters that lead to tensors.
        memory_of: the memory of an argument.
        contested: the memories in which something is written and accessed again.
    """

    records: dict[SSAValue, Parameter]
    memory_of: Callable[[int], int]
    contested: frozenset[int] = frozenset()
    _described: dict[Operation, _Access | None] = field(default_factory=dict[Operation, "_Access | None"])

    def find_contested(self, func: FuncOp) -> None:
        """Find the memories whose accesses may have to be ordered.

        Raises:
            CompilerFault: a role fetches ahead what the launch writes.
        """
        count: dict[int, int] = {}
        written: set[int] = set()
        for op in ops_in(func):
            access = self._describe(op)
            if access is not None:
                count[access.memory] = count.get(access.memory, 0) + (2 if _in_loop(op) else 1)
                if access.writes:
                    written.add(access.memory)
        self.contested = frozenset(memory for memory in written if count[memory] > 1)
        for op in ops_in(func):
            if isinstance(op, BulkCopyOp) and self.memory_of(self.records[op.map].arg) in written:
                raise CompilerFault("a copy runs ahead of stores to its tensor", location=location_of(op))

    # The walk. A block updates `pending` in place.

    def run(self, block: Block, pending: Pending) -> None:
        """Order the accesses of a block after the pending ones; it then holds what is pending at the end."""
        for op in list(block.ops):
            if isinstance(op, BarrierOp | ClusterBarrierOp | ClusterWaitOp):
                _pass_barrier(pending)
            elif isinstance(op, WaitOp):
                if not op.pending.data:
                    pending.update({key: replace(access, copying=False) for key, access in pending.items()})
            elif isinstance(op, scf.ForOp | scf.WhileOp):
                self._loop(op, pending)
            elif isinstance(op, RolesOp):
                self.run(op.consumer.block, pending)
            elif op.regions:
                self._branch(op, pending)
            elif (access := self._contested(op)) is not None:
                if len(pending) >= MOST_PENDING or _meets(pending, [access]):
                    _barrier_before(op, pending)
                pending[op, access.crossed] = access

    def _branch(self, op: Operation, pending: Pending) -> None:
        before, blocks = dict(pending), [region.block for region in op.regions if region.blocks]
        for block in blocks:
            taken = dict(before)
            self.run(block, taken)
            pending.update(taken)

    def _loop(self, op: Operation, pending: Pending) -> None:
        blocks = [region.block for region in op.regions]
        inside = [a for block in blocks for inner in block.walk() if (a := self._contested(inner)) is not None]
        if not inside:
            return
        if len(pending) + len(inside) > MOST_PENDING or _meets(pending, inside):
            _barrier_before(op, pending)
        state: Pending = {}
        if len(inside) > MOST_PENDING:
            first = blocks[0].first_op
            assert first is not None
            _barrier_before(first, state)
        elif TILE_LOOP not in op.attributes:
            left = [replace(access, crossed=frozenset((op,))) for access in self._left_behind(blocks)]
            state = {(access.op, access.crossed): access for access in left}
        for block in blocks:
            self.run(block, state)
            pending.update(state)  # a `while` ends behind its condition, the first block

    def _left_behind(self, blocks: Sequence[Block]) -> list[_Access]:
        """Return the accesses of an iteration that no barrier at its own level follows."""
        found: list[_Access] = []
        for block in reversed(blocks):
            op = block.last_op
            while op is not None:
                if isinstance(op, BarrierOp | ClusterBarrierOp | ClusterWaitOp):
                    return found
                found += [access for inner in ops_in(op) if (access := self._contested(inner)) is not None]
                op = op.prev_op
        return found

    def _contested(self, op: Operation) -> _Access | None:
        access = self._describe(op)
        return access if access is not None and access.memory in self.contested else None

    # What an op accesses

    def _describe(self, op: Operation) -> _Access | None:
        if op not in self._described:
            self._described[op] = self._access_of(op)
        return self._described[op]

    def _access_of(self, op: Operation) -> _Access | None:
        if isinstance(op, BulkStoreOp):
            return self._bulk_store(op)
        if not isinstance(op, LoadOp | StoreOp | MemcpyOp | GatherOp | ScatterOp | AtomicOp):
            return None
        if op.pointer not in self.records:
            return None  # a shared buffer
        arg = self.records[op.pointer].arg
        writes = isinstance(op, StoreOp | ScatterOp) or (isinstance(op, AtomicOp) and op.writes)
        access = _Access(op, self.memory_of(arg), arg, writes)
        if isinstance(op, AtomicOp):
            if op.fn.data not in _COMMUTE or op.value is None or op.result is None or op.result.uses.get_length():
                return access
            type_ = op.value.type
            dtype = type_.dtype if isinstance(type_, FragmentType) else dtype_of(type_)
            return replace(access, updates=f"{op.fn.data} {dtype}")
        if isinstance(op, GatherOp | ScatterOp):
            return access
        offsets, sizes, axes = tuple(map(affine, op.offsets)), [1] * len(op.offsets), op.axis_list
        if isinstance(op, MemcpyOp):
            assert isinstance(op.buffer.type, BufferType)
            shape, layout = op.buffer.type.shape, None
        else:
            tile = op.result.type if isinstance(op, LoadOp) else op.value.type
            shape = tile.shape if isinstance(tile, FragmentType) else ()
            layout = (tile.linear, axes) if isinstance(tile, FragmentType) and exclusive(tile.linear) else None
        for axis, size in zip(axes, shape, strict=True):
            sizes[axis] = _extent(op.sizes[axis], offsets[axis], size)
        copying = isinstance(op, MemcpyOp) and op.engine.data == "cp.async"
        return replace(access, offsets=offsets, sizes=tuple(sizes), layout=layout, copying=copying)

    def _bulk_store(self, op: BulkStoreOp) -> _Access:
        record = self.records[op.map]
        assert record.order is not None
        assert isinstance(op.buffer.type, BufferType)
        stored = op.buffer.type.stored_shape
        offsets, sizes = [Affine()] * len(record.order), [1] * len(record.order)
        for place, (axis, coordinate, size) in enumerate(zip(record.order, op.coordinates, op.box_sizes, strict=True)):
            offsets[axis] = affine(coordinate)
            sizes[axis] = stored[-1] if place == 0 else max(size, stored[0])
        memory = self.memory_of(record.arg)
        return _Access(op, memory, record.arg, True, tuple(offsets), tuple(sizes))


def _in_loop(op: Operation) -> bool:
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, scf.ForOp | scf.WhileOp) and TILE_LOOP not in parent.attributes:
            return True
        parent = parent.parent_op()
    return False


def _extent(bound: SSAValue, offset: Affine, padded: int) -> int:
    """Return the size of a box along a dimension: less than the fragment's where its bound cuts the padding off."""
    owner = bound.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "minimum":
        end = owner.args[1]
        if isinstance(end.owner, ElementwiseOp) and end.owner.fn.data == "maximum":  # with 0
            end = end.owner.args[0]
        length = affine(end).plus(offset.scaled(-1))
        if not length.terms and 0 < length.constant < padded:
            return length.constant
    return padded


def exclusive(layout: LinearLayout) -> bool:
    """Return whether no two threads hold an element."""
    masks = layout.free_variable_masks()
    return not masks.get(LANE, 0) and not masks.get(WARP, 0)


def _pass_barrier(pending: Pending) -> None:
    """Forget what a barrier orders: all but copies that are still in flight."""
    for key in [key for key, access in pending.items() if not access.copying]:
        del pending[key]


def _barrier_before(op: Operation, pending: Pending) -> None:
    barrier = BarrierOp()
    barrier.location = op.location
    block = op.parent_block()
    assert block is not None
    block.insert_op_before(barrier, op)
    _pass_barrier(pending)


def _meets(pending: Pending, accesses: Sequence[_Access]) -> bool:
    return any(_conflict(before, after) for before in pending.values() for after in accesses)


def _conflict(before: _Access, after: _Access) -> bool:
    """Return whether two threads may touch one element in the wrong order."""
    if before.memory != after.memory or not (before.writes or after.writes):
        return False
    if before.updates is not None and before.updates == after.updates:
        return False
    if before.arg != after.arg or before.offsets is None or after.offsets is None:
        return True
    distances = [
        Distance(first, second, lambda value: _varies(value, before.crossed), before.crossed)
        for first, second in zip(before.offsets, after.offsets, strict=True)
    ]
    if any(d.apart(*sizes) for d, *sizes in zip(distances, before.sizes, after.sizes, strict=True)):
        return False
    return not (
        _same_threads(before, after)
        and before.sizes == after.sizes
        and all(d.divisible(size) for d, size in zip(distances, before.sizes, strict=True))
    )


def _same_threads(before: _Access, after: _Access) -> bool:
    if before.layout is None or after.layout is None or before.layout[1] != after.layout[1]:
        return False
    return before.layout[0].same_up_to_registers(after.layout[0])


def _varies(value: SSAValue, crossed: frozenset[Operation]) -> bool:
    """Return whether a scalar may have changed since loops began another iteration."""
    owner = value.owner
    op = owner.parent_op() if isinstance(owner, Block) else owner
    while op is not None:
        if op in crossed:
            return True
        op = op.parent_op()
    return False
