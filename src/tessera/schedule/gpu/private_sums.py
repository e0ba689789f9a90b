"""Adds up what many programs add to few elements of a tensor in shared memory first: histograms.

Atomic additions of all multiprocessors to a few hundred elements meet in a few banks of the L2 cache. A program that
adds to elements of its own, in shared memory, meets its own threads alone, and adds its sums to the tensor at the end.
So that there are few of those, as many programs run as fit the machine, and each does the work of many.

Before::

    grid(%n) by [1024] { %x = load %X[%i] [1024]; atomic "add" %Y[%x] value %one }

After, of a launch for calls with a small tensor and many elements, beside the one for others::

    grid(minimum(%n / 1024, 528)) by [1] {
      %own = alloc_shared [4096]; shared_store zeros, %own; barrier
      scf.for %t = %p to %n / 1024 step 528 { %x = load %X[%t * 1024] [1024]; shared_atomic "add" %own[%x] value %one }
      barrier; atomic "add" %Y[arange 4096] value shared_load %own
    }

What lies outside of the tensor is left alone either way: elements of the program's own that the tensor has not are not
added to it. Additions without a result that take no part in any order (`relaxed`) are rewritten, where nothing else in
the launch touches the tensor.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import note
from tessera.ir.tile.atomics import AtomicOp, SharedAtomicOp
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import shape_at
from tessera.ir.tile.shared import AllocSharedOp, BarrierOp, SharedLoadOp, SharedStoreOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TensorType, element_of
from tessera.ir.types import dtype_of, element_type
from tessera.ir.walking import ops_in
from tessera.numerics import dtypes
from tessera.schedule.launch_guards import put_beside
from tessera.schedule.scheduled_pass import GridPass

ELEMENTS = 4096
"""Of a tensor that is added up so, at most."""
TIMES = 1024
"""As many elements for each of the tensor's are worth it: 528 programs add each of theirs to the tensor."""
PROGRAMS_PER_MULTIPROCESSOR = 4
LEAST = 32
"""Elements that an atomic operation adds at once."""
KINDS = (dtypes.i32, dtypes.u32, dtypes.f32)
"""Dtypes that are added so: integers by one instruction, floats by a loop, 10 to 50 times as fast as in memory."""


@dataclass(frozen=True)
class PrivateSumsPass(GridPass):
    """Lets programs add up in shared memory what they add to few elements.

    Args:
        target: the GPU.
        knobs: none.
    """

    name: ClassVar[str] = "private-sums"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Leave a launch for calls with a small tensor and many programs beside the one for others."""
        tensor = _added_to(grid)
        if tensor is None or len(grid.extents) != 1:
            return
        (size,) = tensor.type.shape if isinstance(tensor.type, TensorType) else (0,)
        if size > ELEMENTS:
            return
        insert = Inserter(InsertPoint.before(grid), grid)
        one, (extent,) = insert.constant(1), grid.extents
        count = insert.value(DimOp(tensor, 0))
        many = insert.binary("mul", insert.binary("maximum", count, one), insert.constant(TIMES))
        guard = insert.binary("minimum", insert.binary("floordiv", extent, many), one)
        large = insert.binary("minimum", insert.binary("floordiv", count, insert.constant(ELEMENTS + 1)), one)
        guard = insert.binary("mul", guard, insert.binary("sub", one, large))
        if grid.guard is not None:
            guard = insert.binary("mul", guard, grid.guard)
        other = insert.binary("sub", one if grid.guard is None else grid.guard, guard)
        new = self._launch(grid, tensor, guard)
        put_beside(grid, new, other)
        note(new, "private_sums", [f"programs add to {ELEMENTS} elements of their own in shared memory first"])

    def _launch(self, grid: GridOp, tensor: SSAValue, guard: SSAValue) -> GridOp:
        """Return the launch whose programs do the work of many, not inserted."""
        before = Inserter(InsertPoint.before(grid), grid)
        (extent,), (step,), most = (
            grid.extents,
            grid.block_sizes,
            PROGRAMS_PER_MULTIPROCESSOR * self.target.machine.units,
        )
        programs = ceildiv(before, extent, before.constant(step), before.constant(1))
        new = GridOp([before.binary("minimum", programs, before.constant(most))], [1], guard)
        new.location = grid.location
        new.attributes.update(grid.attributes)
        body, element = new.body.block, element_of(tensor.type)
        insert = Inserter(InsertPoint.at_end(body), grid)
        own = insert.value(AllocSharedOp([ELEMENTS], element))
        nothing = insert.value(SplatOp(insert.zero(element), [ELEMENTS]))
        insert.add(SharedStoreOp(nothing, own))
        insert.add(BarrierOp())
        every = ceildiv(insert, extent, insert.constant(step), insert.constant(1))
        stride = insert.binary("minimum", every, insert.constant(most))
        insert.add(scf.ForOp(body.args[0], every, stride, [], Region(_work(grid, own, step))))
        insert.add(BarrierOp())
        sums = insert.value(SharedLoadOp(own))
        places = insert.value(
            CastOp(insert.value(ArangeOp(ELEMENTS, element_type(dtypes.i32))), element_type(dtypes.i64))
        )
        some = insert.value(ElementwiseOp("ne", [sums, nothing]))
        insert.add(AtomicOp("add", sums, tensor, [places], some))
        return new


def _work(grid: GridOp, own: SSAValue, step: int) -> Block:
    """Return what a program does, which adds to elements of its own, as a loop's body whose argument is its number."""
    copy = grid.clone()
    block, old = Block(arg_types=[copy.body.block.args[0].type]), copy.body.block
    insert = Inserter(InsertPoint.at_end(block), grid)
    old.args[0].replace_all_uses_with(insert.binary("mul", block.args[0], insert.constant(step)))
    for op in list(old.ops):
        op.detach()
        insert.add(op)
    insert.add(scf.YieldOp())
    copy.erase(safe_erase=False)
    for op in list(block.walk()):
        if isinstance(op, AtomicOp):
            new = SharedAtomicOp("add", op.value, own, list(op.indices), op.mask, None, op.order.data, op.scope.data)
            Rewriter.replace_op(op, new)
    return block


def _added_to(grid: GridOp) -> SSAValue | None:
    """Return the tensor that a launch only adds to, by elements; None where there is none, or several."""
    atomics = [op for op in ops_in(grid) if isinstance(op, AtomicOp)]
    if not atomics or not all(_is_private(op) for op in atomics) or len({op.tensor for op in atomics}) != 1:
        return None
    tensor = atomics[0].tensor
    return None if any(_meets(op, tensor) for op in ops_in(grid)) else tensor


def _is_private(op: AtomicOp) -> bool:
    """Return whether an atomic operation adds elements to a vector, in no order, and nothing asks what was there."""
    rank, kind = len(op.indices), dtype_of(element_of(op.tensor.type))
    elements = shape_at(op.indices)
    wide = max(elements, default=0) >= LEAST
    plain = op.fn.data == "add" and op.order.data == "relaxed"
    return plain and rank == 1 and wide and kind in KINDS and (op.result is None or not op.result.uses)


def _meets(op: Operation, tensor: SSAValue) -> bool:
    """Return whether an op touches a tensor's memory other than by adding to it, or is for the program's threads."""
    if isinstance(op, AllocSharedOp | BarrierOp):
        return True
    others = [one for one in op.operands if isinstance(one.type, TensorType) and memory_of(one) is memory_of(tensor)]
    return bool(others) and not (isinstance(op, AtomicOp | DimOp) and others == [tensor])
