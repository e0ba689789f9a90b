"""Decides which sums of products lie where they are stored, rather than in scratch memory.

Before::

    %sums = scf.for %k ... iter_args(%acc = zeros) { ... mma %a, %b, %acc {begins_sums} ... }
    store %sums, %out[%m, %n]

After, the store has `sums_in_place`: vector units load and store the sums in the tensor, each time that a part of the
depth is added, and nothing is copied. The loop's first product begins them, so that what the tensor held is not read.
Programs that store past the caches take scratch memory. No two programs may store one element: of those that do, each
would add to what another one has begun.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.tile.elementwise import constant_value
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import element_of
from tessera.ir.walking import ops_in
from tessera.lower.facts import same_size, stays_inside
from tessera.schedule.cpu.boxes import source_box
from tessera.schedule.cpu.cpu_pass import CpuPass


@dataclass(frozen=True)
class PlaceSumsPass(CpuPass):
    """Writes `tessera_schedule.sums_in_place` on stores.

    Args:
        target: the CPU.
        knobs: none is its own: what `begin-sums` leaves alone stays in scratch memory.
    """

    name: ClassVar[str] = "place-sums"

    def apply(self, module: ModuleOp) -> None:
        """Annotate the stores of every kernel of the module."""
        for kernel in [op for op in module.ops if isinstance(op, KernelOp)]:
            for op in [op for op in ops_in(kernel) if isinstance(op, MmaOp)]:
                store = _store_of(op)
                if store is not None and _has_its_place(kernel, op, store):
                    decisions.SUMS_IN_PLACE.write(store)


def _store_of(op: MmaOp) -> StoreOp | None:
    """Return the store that is all that becomes of sums that vector units begin and a loop carries."""
    loop = decisions.carried_sum(op)
    if loop is None or not decisions.BEGINS_SUMS.on(op) or decisions.MATRIX_UNIT.on(op):
        return None
    acc = op.acc
    assert isinstance(acc, BlockArgument)
    uses = list(loop.results[acc.index - 1].uses)
    store = uses[0].operation if len(uses) == 1 else None
    return store if isinstance(store, StoreOp) and op.result.uses.get_length() == 1 else None


def _has_its_place(kernel: KernelOp, op: MmaOp, store: StoreOp) -> bool:
    """Return whether a product adds up exactly what a store writes, whose memory nothing else touches meanwhile."""
    loop = decisions.carried_sum(op)
    assert loop is not None
    element, axes = element_of(op.acc.type), list(store.kept)
    if len(axes) != 2 or store.mask is not None or element != element_of(store.tensor.type):
        return False
    if kernel.info_of(store.tensor).strides[axes[1]] != 1:
        return False
    if not all(stays_inside(kernel, offset, store.tensor, axis) for axis, offset in enumerate(store.offsets)):
        return False
    sides = ((op.a, 0), (op.b, 1))
    if not all(_lies_beside(kernel, value, axis, store, axes[axis]) for value, axis in sides):
        return False
    if not _is_alone(loop, store) or not all(_comes_before(offset, loop) for offset in store.offsets):
        return False
    return _lies_apart(store)


def _lies_beside(kernel: KernelOp, value: SSAValue, axis: int, store: StoreOp, stored: int) -> bool:
    """Return whether as much of an operand lies in its tensor along an axis as of the tile that is stored."""
    source = source_box(value)
    if source is None:
        return False
    load, dimensions = source
    own = dimensions[axis]
    first, there = load.offsets[own], store.offsets[stored]
    known = constant_value(first)
    begins = first is there or (known is not None and known == constant_value(there))
    same = begins and load.size_list[own] == store.size_list[stored]
    return same and same_size(kernel, (load.tensor, own), (store.tensor, stored))


def _is_alone(loop: scf.ForOp, store: StoreOp) -> bool:
    """Return whether a loop, and what comes between it and a store, read nothing of its memory and write nothing."""
    after = loop.next_op
    while after is not None and after is not store:
        if after.regions or effect_of(after) > Effect.PURE:
            return False
        after = after.next_op
    inside = [op for op in ops_in(loop) if not op.regions]
    loads = [op for op in inside if isinstance(op, LoadOp)]
    others = [op for op in inside if not isinstance(op, LoadOp | scf.YieldOp)]
    if after is None or any(effect_of(op) > Effect.PURE for op in others):
        return False
    return all(memory_of(op.tensor) is not memory_of(store.tensor) for op in loads)


def _lies_apart(store: StoreOp) -> bool:
    """Return whether each program of a launch stores to a box of its own."""
    grid = store.parent_op()
    while grid is not None and not isinstance(grid, GridOp):
        grid = grid.parent_op()
    if grid is None:
        return True
    stored = dict(zip(store.offsets, store.size_list, strict=True))
    blocks = zip(grid.body.block.args, grid.block_sizes, strict=True)
    return all(place in stored and stored[place] <= block for place, block in blocks)


def _comes_before(value: SSAValue, loop: scf.ForOp) -> bool:
    """Return whether a value of the loop's block, or from around it, is there where the loop begins."""
    owner = value.owner
    return not isinstance(owner, Operation) or owner.parent is not loop.parent or owner.is_before_in_block(loop)
