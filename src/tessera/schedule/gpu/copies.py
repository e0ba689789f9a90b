"""Stages the operands of products in shared memory, and pipelines the copies of a loop.

Before::

    scf.for %k ... iter_args(%acc) {
      %a = load %A[%m, %k]
      %b = load %B[%k, %n]
      %next = mma %a, %b, %acc
    }

After, with a ring of S buffers::

    %ra = alloc_shared [S, BM, BK]; %rb = alloc_shared [S, BK, BN]
    cp_async %ra[0] ...; cp_async %rb[0] ...; commit_group        (S - 1 times, for the first iterations)
    scf.for %k ... iter_args(%acc, %read = 0, %write = S - 1) {
      wait_group (S - 2); barrier
      scf.if %k + (S-1)*BK < %end { cp_async %ra[%write], %A[%m, %k + (S-1)*BK]; cp_async %rb[%write], ... }
      commit_group
      %next = mma %ra[%read], %rb[%read], %acc
    }
    wait_group 0; barrier

A load qualifies when nothing but products (or transposes that feed products) use it. No iteration starts copies for
one past the end, which would cost a short loop as much as those it needs; those before the loop are bounded like all
slices, and what they read past the end is never used. Where rows may begin at any element, which takes many copies,
all iterations but the last start them without bounds along the terms. The one barrier of an iteration both publishes
the stage that is read and says that the stage to be overwritten, read one iteration ago, is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.errors import ResourceError
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.locations import location_of
from tessera.ir.loops import movable, remade, with_arguments
from tessera.ir.tile.atomics import orders_accesses
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import (
    AllocSharedOp,
    BarrierOp,
    CommitGroupOp,
    CpAsyncOp,
    SharedTransposeOp,
    SharedViewOp,
    WaitGroupOp,
)
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import DYNAMIC, TensorType, TileType, element_of, shape_of
from tessera.ir.tile.writes import stored_memories
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import ends_by, nonnegative
from tessera.lower.simt.placement import ACCESS_BYTES
from tessera.schedule.gpu.instructions import by_threads
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import stage_bytes
from tessera.schedule.scheduled_pass import ScheduledPass, launches
from tessera.target.records import TargetRecord

MOST_STAGES = 4
THREAD_STAGES = 2
"""Depth of rings that threads fill by loads and stores, complete when an iteration has begun: more would only keep
other programs off the multiprocessor."""
MOST_SUMS = 1 << 14
"""Elements of a loop's sums beside which threads have registers for the addresses of two kinds of copies."""
LEAST_ASYNC_BYTES = 4
"""Bytes that `cp.async` moves at least, from an address that is a multiple of them."""


@dataclass
class Staged:
    """A load that becomes a copy to shared memory.

    Args:
        load: the load.
        transposed: whether the buffer is stored with its two axes exchanged (the tensor's contiguous one last).
        swizzle: how the buffer is stored.
        tf32: whether the copy rounds f32 to tf32.
    """

    load: LoadOp
    transposed: bool
    swizzle: str = "xor"
    tf32: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the buffer as stored."""
        assert isinstance(self.load.result.type, TileType)
        shape = self.load.result.type.shape
        return tuple(reversed(shape)) if self.transposed else shape

    @property
    def size_bytes(self) -> int:
        """Bytes of one stage, sizes rounded up to powers of two."""
        assert isinstance(self.load.result.type, TileType)
        return stage_bytes(self.shape, self.load.result.type.dtype)


@dataclass(frozen=True)
class StageCopiesPass(ScheduledPass):
    """Stages operands of products in shared memory and pipelines the copies of loops.

    Args:
        target: the GPU.
        knobs: `stages` forces the depth of the rings.
    """

    name: ClassVar[str] = "stage-copies"

    def apply(self, module: ModuleOp) -> None:
        """Rewrite every kernel of the module in place.

        Raises:
            ResourceError: `shared-memory` when even one stage does not fit, with the sizes.
        """
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for unit in launches(kernel):
                _stage_launch(kernel, unit, self.target, self.knobs)


def _stage_launch(kernel: KernelOp, unit: GridOp | KernelOp, target: TargetRecord, knobs: Knobs) -> None:
    found = [_staged(kernel, op, target) for op in ops_in(unit) if isinstance(op, LoadOp) and qualifies(op)]
    if not found:
        return
    loops: dict[scf.ForOp, list[Staged]] = {}
    single: list[Staged] = []
    stored = stored_memories(unit)
    for staged in found:
        loop = staged.load.parent_op()
        # A copy for a later iteration must not miss a store: of this launch, or of others that the loop waits for. The
        # copies of a loop start after all that stands before it, and have arrived before what stands after it.
        waits = any(orders_accesses(op) for op in ops_in(loop)) if isinstance(loop, scf.ForOp) else True
        ahead = memory_of(staged.load.tensor) not in stored and not waits
        if ahead and isinstance(loop, scf.ForOp) and all(movable(o, loop) for o in staged.load.offsets):
            loops.setdefault(loop, []).append(staged)
        else:
            single.append(staged)
    allocated = sum(
        prod(op.result.type.shape) * op.result.type.dtype.bytes for op in ops_in(unit) if isinstance(op, AllocSharedOp)
    )
    once = allocated + sum(s.size_bytes for s in single)
    ring = sum(s.size_bytes for group in loops.values() for s in group)
    by_hand = not any(_may_be_async(kernel, s.load) for group in loops.values() for s in group)
    stages = _stages(target, knobs, once, ring, found, THREAD_STAGES if by_hand else MOST_STAGES)
    body = unit.body.block
    for staged in single:
        _stage_once(staged, body)
    for loop, group in loops.items():
        if stages == 1:
            for staged in group:
                _stage_once(staged, body)
        else:
            _pipeline(kernel, loop, group, stages, body)


def _may_be_async(kernel: KernelOp, op: LoadOp) -> bool:
    """Return whether what is known of a tensor's address and strides lets `cp.async` copy its rows."""
    return _known_alignment(kernel, op) % LEAST_ASYNC_BYTES == 0


def _known_alignment(kernel: KernelOp, op: LoadOp) -> int:
    """Return the bytes that divide the addresses of a tensor's rows, 1 where its elements are not neighbours."""
    info, size = kernel.info_of(op.tensor), dtype_of(element_of(op.result.type)).bytes
    steps = [
        divisor if stride == DYNAMIC else stride for stride, divisor in zip(info.strides, info.stride_div, strict=True)
    ]
    others = [step * size for stride, step in zip(info.strides, steps, strict=True) if stride != 1]
    return gcd(info.align, *others) if 1 in info.strides else 1


def _stages(target: TargetRecord, knobs: Knobs, once: int, ring: int, found: Sequence[Staged], most: int) -> int:
    """Return the depth of the rings: what was asked for, else the most that fits (one without `cp.async`)."""
    fitting = (target.shared_bytes - once) // ring if ring else 1
    wanted = knobs.stages or (min(most, fitting) if target.has("cp_async") else 1)
    if once + ring * max(wanted, 1) > target.shared_bytes:
        sizes = ", ".join(f"{'x'.join(map(str, s.shape))}: {s.size_bytes}" for s in found)
        raise ResourceError(
            f"{max(wanted, 1)} stages need {once + ring * max(wanted, 1)} bytes of shared memory, "
            f"{target.name} has {target.shared_bytes}",
            code="shared-memory",
            location=location_of(found[0].load),
            help=f"use smaller tiles or fewer stages; bytes of one stage: {sizes}",
        )
    return wanted


def qualifies(op: LoadOp) -> bool:
    """Return whether `op` is a two-dimensional load that only products use."""
    if not isinstance(op.result.type, TileType):
        return False
    if op.result.type.rank != 2 or op.mask is not None or op.fill is not None or not op.result.uses.get_length():
        return False
    return _only_products(op.result)


def _only_products(value: SSAValue) -> bool:
    for use in value.uses:
        user = use.operation
        if isinstance(user, MmaOp) and use.index < 2:
            continue
        if isinstance(user, TransposeOp) and _only_products(user.result) and user.result.uses.get_length():
            continue
        return False
    return True


def _staged(kernel: KernelOp, op: LoadOp, target: TargetRecord) -> Staged:
    """Return how the buffer of a load is stored.

    Where a warpgroup instruction reads it, in panels. Rows of terms are permuted, as those who read them read a column
    at a time. Threads that multiply and add read rows of what they hold side by side, at addresses that are known: what
    is copied by 4 bytes anyway is put into such rows on the way.
    """
    users, along_memory = list(_products(op.result)), stored_transposed(kernel, op)
    if any(decisions.WARPGROUP.on(user) for user, _ in users):
        return Staged(op, along_memory, "panels")
    terms_last = {last for _, last in users}
    if len(terms_last) > 1 or not all(by_threads(target, user) for user, _ in users):
        return Staged(op, along_memory, "xor")
    (transposed,) = terms_last
    if transposed == along_memory:
        return Staged(op, transposed, "none")
    single = dtype_of(element_of(op.result.type)).bytes == _known_alignment(kernel, op) == LEAST_ASYNC_BYTES
    return Staged(op, transposed if single and target.has("cp_async") else along_memory, "xor")


def _products(value: SSAValue, turned: bool = False) -> Iterator[tuple[MmaOp, bool]]:
    """Yield the products that read a tile, and for each whether the tile's last axis is that of the terms."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, MmaOp):
            yield user, (use.index == 0) != turned
        elif isinstance(user, TransposeOp):
            yield from _products(user.result, not turned)


def stored_transposed(kernel: KernelOp, op: LoadOp) -> bool:
    """Return whether the tensor is contiguous along the tile's first axis and not its last."""
    info = kernel.info_of(op.tensor)
    first, last = op.kept
    return info.strides[last] != 1 and info.strides[first] == 1


def allocate(staged: Staged, stages: int, body: Block) -> SSAValue:
    """Allocate the buffer (or ring) at the start of the program."""
    tensor = staged.load.tensor.type
    assert isinstance(tensor, TensorType)
    shape = (stages, *staged.shape) if stages > 1 else staged.shape
    op = AllocSharedOp(shape, tensor.element, staged.swizzle)
    op.location = staged.load.location
    Rewriter.insert_op(op, InsertPoint.at_start(body))
    return op.result


def logical(insert: Inserter, buffer: SSAValue, staged: Staged) -> SSAValue:
    """Return the buffer with the tile's axis order."""
    return insert.value(SharedTransposeOp(buffer, [1, 0])) if staged.transposed else buffer


def _copy(insert: Inserter, buffer: SSAValue, staged: Staged, offsets: Sequence[SSAValue], inside: int = 0) -> None:
    load = staged.load
    copy = CpAsyncOp(logical(insert, buffer, staged), load.tensor, offsets, load.size_list, load.dropped)
    if inside:
        decisions.INSIDE.write(copy, inside)
    insert.add(copy)


def replace_load(staged: Staged, buffer: SSAValue) -> None:
    """Let products read the buffer instead of the loaded tile; transposes become views."""
    for use in list(staged.load.result.uses):
        user = use.operation
        if isinstance(user, TransposeOp):
            insert = Inserter(InsertPoint.before(user), user)
            view = insert.value(SharedTransposeOp(buffer, user.permutation))
            for inner in list(user.result.uses):
                inner.operation.operands[inner.index] = view
            Rewriter.erase_op(user)
        else:
            user.operands[use.index] = buffer
    Rewriter.erase_op(staged.load)


def _stage_once(staged: Staged, body: Block) -> None:
    """Copy where the load stands, and wait for it."""
    load = staged.load
    buffer = allocate(staged, 1, body)
    insert = Inserter(InsertPoint.before(load), load)
    insert.add(BarrierOp())
    _copy(insert, buffer, staged, list(load.offsets))
    insert.add(CommitGroupOp())
    insert.add(WaitGroupOp(0))
    insert.add(BarrierOp())
    replace_load(staged, logical(insert, buffer, staged))


def _pipeline(kernel: KernelOp, loop: scf.ForOp, group: list[Staged], stages: int, body: Block) -> None:
    """Replace the loads of a loop by a ring of `stages` buffers each, filled `stages - 1` iterations ahead."""
    full = _full_axes(kernel, loop, group)
    rings = [allocate(staged, stages, body) for staged in group]
    before = Inserter(InsertPoint.before(loop), loop)
    counter = loop.body.block.args[0]
    for stage in range(stages - 1):
        at = before.binary("add", loop.lb, before.binary("mul", loop.step, before.constant(stage)))
        _fill(before, loop, group, rings, before.constant(stage), {counter: at})
        before.add(CommitGroupOp())
    first, last = before.constant(0), before.constant(stages - 1)
    ahead = before.binary("mul", loop.step, before.constant(stages - 1))
    loop = with_arguments(loop, [first, last])
    block = loop.body.block
    read, write = block.args[-2:]
    start = Inserter(InsertPoint.at_start(block), loop)
    start.add(WaitGroupOp(stages - 2))
    start.add(BarrierOp())
    later = start.binary("add", block.args[0], ahead)

    def copies(inside: Sequence[int] = ()) -> Region:
        filling = Block()
        insert = Inserter(InsertPoint.at_end(filling), loop)
        _fill(insert, loop, group, rings, write, {block.args[0]: later}, inside)
        insert.add(scf.YieldOp())
        return Region(filling)

    needed = copies()
    if any(full):
        apart = Inserter(InsertPoint.at_end(needed_block := Block()), loop)
        is_full = apart.binary("le", apart.binary("add", later, loop.step), loop.ub)
        apart.add(scf.IfOp(is_full, [], copies(full), needed))
        apart.add(scf.YieldOp())
        needed = Region(needed_block)
    is_needed = start.binary("lt", later, loop.ub)
    start.add(scf.IfOp(is_needed, [], needed, Region(Block([scf.YieldOp()]))))
    start.add(CommitGroupOp())
    for staged, ring in zip(group, rings, strict=True):
        insert = Inserter(InsertPoint.before(staged.load), staged.load)
        stage = insert.value(SharedViewOp(ring, read))
        replace_load(staged, logical(insert, stage, staged))
    _advance(loop, stages)
    decisions.STAGES.write(loop, stages)
    after = Inserter(InsertPoint.after(loop), loop)
    after.add(WaitGroupOp(0))
    after.add(BarrierOp())


def _fill(
    insert: Inserter,
    loop: scf.ForOp,
    group: list[Staged],
    rings: list[SSAValue],
    stage: SSAValue,
    known: dict[SSAValue, SSAValue],
    inside: Sequence[int] = (),
) -> None:
    """Start the copies of one iteration into a stage, of boxes that lie inside along some axes."""
    for number, (staged, ring) in enumerate(zip(group, rings, strict=True)):
        offsets = [remade(insert, offset, loop, known) for offset in staged.load.offsets]
        _copy(insert, insert.value(SharedViewOp(ring, stage)), staged, offsets, inside[number] if inside else 0)


def _full_axes(kernel: KernelOp, loop: scf.ForOp, group: Sequence[Staged]) -> list[int]:
    """Return along which axes, bit by bit, the box of each load lies inside in all iterations but the last.

    None are told where all loads move 16 bytes at a time: few bounds are tested then.
    """
    sums = sum(prod(shape_of(op.acc.type)) for op in ops_in(loop) if isinstance(op, MmaOp))
    is_aligned = all(_known_alignment(kernel, s.load) % ACCESS_BYTES == 0 for s in group)
    if not nonnegative(loop.lb) or is_aligned or sums > MOST_SUMS:
        return [0] * len(group)
    step, counter = constant_value(loop.step), loop.body.block.args[0]
    return [
        sum(
            1 << axis
            for axis, (offset, size) in enumerate(zip(s.load.offsets, s.load.size_list, strict=True))
            if offset is counter and size == step and ends_by(kernel, loop.ub, s.load.tensor, axis)
        )
        for s in group
    ]


def _advance(loop: scf.ForOp, stages: int) -> None:
    """Yield the next stages to read and to write, around the ring."""
    block = loop.body.block
    end = block.last_op
    assert end is not None
    insert = Inserter(InsertPoint.before(end), end)
    nexts: list[SSAValue] = []
    for argument in block.args[-2:]:
        following = insert.binary("add", argument, insert.constant(1))
        wraps = insert.binary("eq", following, insert.constant(stages))
        nexts.append(insert.value(ElementwiseOp("select", [wraps, insert.constant(0), following])))
    end.operands = [*end.operands, *nexts]
