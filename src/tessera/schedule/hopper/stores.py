"""Stores tiles through shared memory by bulk copies, which complete while the role goes on with the next tile (Hopper).

Before, at the end of the consumers' role::

    store %tile -> C[%m, %n]

After, for each part of the tile, with a ring of D buffers (a part is 128 bytes wide, or, where rows of the tensor run
across the warps, some rows)::

    bulk_wait (D - 1); %part = <columns 64 * i to 64 * i + 63 of %tile>; shared_store %part, %ring_i
    bulk_store %ring_i -> C[%m, %n + 64 * i]

Work that leads to the tile alone is done part by part as well (`schedule.hopper.parts`). `bulk_wait` leaves as many
stores in flight as were started after the last one from the same buffer, counted around the loop over tiles. A store
that the copy engine cannot do stays as it is; the reason is noted on its grid, and eight consumer warps leave some of
their registers to the producer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.affine import boxes_apart
from tessera.ir.inserter import Inserter
from tessera.ir.notes import Unfit, note
from tessera.ir.target.types import SWIZZLE_BYTES
from tessera.ir.tile.atomics import AtomicOp, orders_accesses
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import BulkStoreOp, BulkWaitOp, RolesOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import AllocSharedOp, SharedStoreOp, SharedTransposeOp
from tessera.ir.tile.split import PartialSumOp
from tessera.ir.tile.stream import CollectSumsOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TensorType, TileType, element_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import nonnegative
from tessera.numerics.dtypes import DType
from tessera.schedule.hopper.limits import (
    LEAST_BUFFERS,
    REGISTERS,
    STORING_REGISTERS,
    least_store_bytes,
    parts_across,
)
from tessera.schedule.hopper.parts import Parts
from tessera.schedule.hopper.skip_masks import is_testable
from tessera.schedule.hopper.tensor_maps import check_tensor
from tessera.schedule.products import ALIGN_BYTES, BUFFER_BYTES
from tessera.schedule.resources import free_shared_bytes
from tessera.schedule.scheduled_pass import GridPass
from tessera.target.fragments import PANEL_BYTES

MOST_BUFFERS = 4


@dataclass
class Bulk:
    """A store that becomes bulk stores.

    Args:
        op: the store.
        flipped: whether the tile is the transpose of the matrix that is written to shared memory.
        transposed: whether the tensor is contiguous along that matrix's first dimension.
        parts: how many parts it is stored in.
        buffers: buffers of the ring, a power of two that divides the parts.
    """

    op: StoreOp
    flipped: bool
    transposed: bool
    parts: int
    buffers: int = 0

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The sizes of a part of the matrix."""
        assert isinstance(self.op.value.type, TileType)
        rows, columns = reversed(self.op.value.type.shape) if self.flipped else self.op.value.type.shape
        return rows, columns // self.parts

    @property
    def part_bytes(self) -> int:
        """Bytes of a buffer."""
        assert isinstance(self.op.value.type, TileType)
        return prod(self.part_shape) * self.op.value.type.dtype.bytes


@dataclass(frozen=True)
class BulkStoresPass(GridPass):
    """Rewrites the stores at the end of consumer roles.

    Args:
        target: the GPU.
        knobs: `bulk_stores` = 0 keeps the stores as they are.
    """

    name: ClassVar[str] = "bulk-stores"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Rewrite the stores of a launch that has roles."""
        for roles in [op for op in grid.body.block.ops if isinstance(op, RolesOp)]:
            if self.knobs.bulk_stores != 0:
                self._rewrite(kernel, grid, roles)
            if final_stores(roles.consumer.block) and _registers(roles) == REGISTERS[8]:
                roles.producer_registers, roles.consumer_registers = map(IntAttr, STORING_REGISTERS)

    def _rewrite(self, kernel: KernelOp, grid: GridOp, roles: RolesOp) -> None:
        found: list[Bulk] = []
        notes: list[str] = []
        groups = roles.groups.data
        for op in final_stores(roles.consumer.block):
            try:
                bulk = candidate(kernel, grid, op)
                if op.mask is not None:
                    raise _masked(kernel, op)
                if groups > 1 and bulk.part_bytes % SWIZZLE_BYTES:
                    raise Unfit(f"buffers of {bulk.part_bytes} bytes for each group would start within a swizzle")
                found.append(bulk)
            except Unfit as reason:
                notes.append(f"stored from registers: {reason}")
        free = free_shared_bytes(self.target, grid) // groups
        # Two groups leave room for what else threads exchange, lest it cost a stage of the ring.
        spare = BUFFER_BYTES if groups > 1 else 0
        if found and not any(_share(found, free, least, spare) for least in range(LEAST_BUFFERS[groups], 0, -1)):
            notes.append("stored from registers: no shared memory is left for a buffer")
            found = []
        for together in _by_block(found):  # a branch may be left out, and with it all of its stores
            for number in range(len(together)):
                _replace(grid, together, number)
        if found:
            decisions.STORE_BUFFERS.write(grid, max(bulk.buffers for bulk in found))
        if notes:
            note(grid, "stores", notes)


def _by_block(found: Sequence[Bulk]) -> list[list[Bulk]]:
    """Return stores with those of the same block."""
    blocks = dict[Block | None, list[Bulk]]()
    for bulk in found:
        blocks.setdefault(bulk.op.parent, []).append(bulk)
    return list(blocks.values())


def _registers(roles: RolesOp) -> tuple[int, int]:
    return roles.producer_registers.data, roles.consumer_registers.data


def final_stores(block: Block) -> list[StoreOp]:
    """Return the stores of tiles that a role does once for each of its program's tiles."""
    found: list[StoreOp] = []
    for op in block.ops:
        if isinstance(op, StoreOp) and isinstance(op.value.type, TileType):
            found.append(op)
        elif isinstance(op, scf.IfOp) and (decisions.LEADER.on(op) or decisions.WHOLE_STORE.on(op)):
            found += final_stores(op.true_region.block)
    return found


def _masked(kernel: KernelOp, op: StoreOp) -> Unfit:
    return Unfit(f"{kernel.info_of(op.tensor).name} is stored under a mask or not as a matrix")


def candidate(kernel: KernelOp, grid: GridOp, op: StoreOp) -> Bulk:
    """Return how the copy engine would store a tile; one under a mask where the mask hides nothing.

    Raises:
        Unfit: it cannot.
    """
    tile = op.value.type
    assert isinstance(tile, TileType)
    name = kernel.info_of(op.tensor).name
    if any(orders_accesses(other) for other in ops_in(grid)):
        raise Unfit("a fence, or an atomic with an order, needs its stores to be complete")
    if tile.rank != 2 or (op.mask is not None and not is_testable(op.mask)):
        raise _masked(kernel, op)
    memory = memory_of(op.tensor)
    alike = [
        other
        for other in ops_in(grid)
        if isinstance(other, LoadOp | GatherOp | AtomicOp | StoreOp | ScatterOp) and memory_of(other.tensor) is memory
    ]
    readers = [r for r in alike if isinstance(r, LoadOp | GatherOp | AtomicOp)]
    others = [w for w in alike if isinstance(w, StoreOp | ScatterOp) and w is not op and not _apart(w, op)]
    others = [w for w in others if not _is_instead(w, op)]
    if others or any(r.parent_block() is not op.parent_block() or op.is_before_in_block(r) for r in readers):
        raise Unfit(f"{name} is also written or read elsewhere in the launch")
    if not all(isinstance(r, LoadOp) and (_same_box(r, op) or _apart(r, op)) for r in readers):
        raise Unfit(f"{name} is also read, at other places than the tile that is stored")
    contiguous = check_tensor(kernel, op.tensor, op.offsets, op.kept, op.size_list, tile.dtype, plain=True)
    _check_ends(kernel, op, contiguous, tile.dtype)
    flipped = _transposed_source(op.value) is not None or bool(_is_turned(op.value))
    transposed = (op.kept.index(contiguous) == 0) != flipped
    # A product's rows are spread over warps, so that parts along them would first have to move between warps.
    along = max(op.size_list[contiguous] * tile.dtype.bytes // PANEL_BYTES, 1)
    return Bulk(op, flipped, transposed, parts_across(_bytes_of(tile)) if transposed else along)


def _check_ends(kernel: KernelOp, op: StoreOp, contiguous: int, dtype: DType) -> None:
    """Check that the copy engine leaves alone what lies outside of a tensor.

    It writes whole units of 16 bytes, of which a row may have only the first elements, and takes a box that begins
    before a tensor for an illegal instruction (both measured on an H200; boxes that end behind it are cut off).

    Raises:
        Unfit: it might write outside, or stop.
    """
    info = kernel.info_of(op.tensor)
    if info.dim_div[contiguous] * dtype.bytes % ALIGN_BYTES:
        raise Unfit(f"rows of {info.name} are not known to be multiples of {ALIGN_BYTES} bytes long")
    if op.mask is None and not all(map(nonnegative, op.offsets)):
        raise Unfit(f"a tile of {info.name} may begin before it")


def _same_box(load: LoadOp, store: StoreOp) -> bool:
    """Return whether a load reads what a store overwrites, element by element."""
    return (
        load.tensor is store.tensor
        and list(load.offsets) == list(store.offsets)
        and (load.size_list, load.dropped) == (store.size_list, store.dropped)
    )


def _apart(access: LoadOp | StoreOp | ScatterOp, store: StoreOp) -> bool:
    """Return whether an access in the same block, to the same tensor, is known to touch no element of a store."""
    return (
        not isinstance(access, ScatterOp)
        and access.tensor is store.tensor
        and access.parent_block() is store.parent_block()
        and boxes_apart(access.offsets, access.size_list, store.offsets, store.size_list)
    )


def _is_instead(access: Operation, store: StoreOp) -> bool:
    """Return whether an access is in the other region of a branch: where the one is done the other is not."""
    branch = store.parent_op()
    return isinstance(branch, scf.IfOp) and access.parent_op() is branch and access.parent is not store.parent


def _bytes_of(tile: TileType) -> int:
    return prod(tile.shape) * tile.dtype.bytes


def bytes_across(stores: Sequence[StoreOp], groups: int) -> int:
    """Return the shared memory that the largest of some stores needs for a group, if sums lie across its rows."""
    totals = [_bytes_of(op.value.type) for op in stores if isinstance(op.value.type, TileType)]
    return max((least_store_bytes(total, parts_across(total), groups) for total in totals), default=0)


def _transposed_source(value: SSAValue) -> SSAValue | None:
    """Return the matrix of which a value is the transpose, perhaps cast."""
    owner = value.owner
    if isinstance(owner, CastOp):
        owner = owner.source.owner
    return owner.source if isinstance(owner, TransposeOp) else None


def _is_turned(value: SSAValue) -> bool | None:
    """Return whether a tile is computed from the transpose of sums of products, None if from no such sums."""
    owner = value.owner
    if isinstance(owner, TransposeOp):
        turned = _is_turned(owner.source)
        return None if turned is None else not turned
    if isinstance(owner, PartialSumOp | CollectSumsOp):
        place = next(i for i, total in enumerate(owner.sums) if total is value)
        return _is_turned(owner.partials[place])
    if isinstance(owner, ElementwiseOp | CastOp):
        found = [_is_turned(operand) for operand in owner.operands if isinstance(operand.type, TileType)]
        return next((turned for turned in found if turned is not None), None)
    return False if isinstance(owner, scf.ForOp | MmaOp) else None


def least_bytes(kernel: KernelOp, grid: GridOp, stores: Sequence[StoreOp], groups: int) -> int:
    """Return the least shared memory that a launch's stores need for each group of consumers.

    Tiles of 16-bit elements that the copy engine cannot store go through shared memory as a whole: stored as matrix
    instructions leave them, each warp would write a few bytes of eight rows at a time.
    """
    total = 0
    for op in stores:
        assert isinstance(op.value.type, TileType)
        try:
            bulk = candidate(kernel, grid, op)
            total += least_store_bytes(bulk.part_bytes * bulk.parts, bulk.parts, groups)
        except Unfit:
            total += _bytes_of(op.value.type) if op.value.type.dtype.bytes <= 2 else 0
    return total


def _share(found: Sequence[Bulk], free: int, least: int, spare: int) -> bool:
    """Give each store as many buffers as fit and leave bytes to spare; return whether the least fit."""
    for bulk in found:
        bulk.buffers = min(least, bulk.parts)
    used = sum(bulk.buffers * bulk.part_bytes for bulk in found)
    if used > free:
        return False
    for bulk in found:
        while (
            bulk.buffers * 2 <= min(bulk.parts, MOST_BUFFERS) and used + bulk.buffers * bulk.part_bytes <= free - spare
        ):
            used += bulk.buffers * bulk.part_bytes
            bulk.buffers *= 2
    return True


def _replace(grid: GridOp, found: Sequence[Bulk], number: int) -> None:
    """Replace one store by its parts."""
    bulk = found[number]
    op = bulk.op
    tensor, tile = op.tensor.type, op.value.type
    assert isinstance(tensor, TensorType)
    assert isinstance(tile, TileType)
    shape = tuple(reversed(bulk.part_shape)) if bulk.transposed else bulk.part_shape
    ring: list[SSAValue] = []
    for _ in range(bulk.buffers):
        buffer = AllocSharedOp(shape, tensor.element, "panels")
        buffer.location = op.location
        Rewriter.insert_op(buffer, InsertPoint.at_start(grid.body.block))
        ring.append(buffer.result)
    insert = Inserter(InsertPoint.before(op), op)
    matrix = _transposed_source(op.value)
    if matrix is None:
        matrix = insert.value(TransposeOp(op.value, [1, 0])) if bulk.flipped else op.value
    elif element_of(matrix.type) != tile.element:
        matrix = insert.value(CastOp(matrix, tile.element))
    width, moving = bulk.part_shape[1], op.kept[0 if bulk.flipped else 1]
    total = sum(other.parts for other in found)
    parts = Parts.of(matrix, width, op)
    for part in range(bulk.parts):
        since = bulk.buffers if part >= bulk.buffers else total - bulk.parts + bulk.buffers
        insert.add(BulkWaitOp(since - 1))
        value = parts.at(insert, part * width) if bulk.parts > 1 else matrix
        buffer = ring[part % bulk.buffers]
        turned = insert.value(SharedTransposeOp(buffer, [1, 0])) if bulk.transposed or bulk.flipped else buffer
        insert.add(SharedStoreOp(value, turned if bulk.transposed else buffer))
        offsets, sizes = list(op.offsets), list(op.size_list)
        if part:
            offsets[moving] = insert.binary("add", offsets[moving], insert.constant(part * width))
        sizes[moving] = width
        outer = turned if bulk.transposed != bulk.flipped else buffer
        insert.add(BulkStoreOp(outer, op.tensor, offsets, sizes, op.dropped))
    Rewriter.erase_op(op)
