"""Rings of buffers between a producer of copies and its consumers, and which operands share one's barriers.

Operands of products that do not depend on each other arrive and are released together: one pair of barriers. Where a
product waits for another one, directly or through arithmetic, its operands are needed later and kept longer, so that
they get barriers of their own: the first product starts before the second one's operands have arrived, and its stage
is refilled while the second one runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.inserter import Inserter
from tessera.ir.loops import follows_from
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import AllocBarriersOp, BarriersType, RoleGroupOp
from tessera.ir.tile.shape import TransposeOp
from tessera.ir.tile.shared import SharedViewOp
from tessera.schedule.gpu.copies import Staged, allocate, qualifies


@dataclass
class Ring:
    """Operands that are copied and released together.

    Args:
        operands: the loads that become copies.
        buffers: a ring of buffers for each.
        programs: how many programs of a cluster fetch each together.
        full: one barrier per stage: its copies have arrived.
        empty: one barrier per stage: the consumers are done with it.
        groups: groups of consumers that read each stage, of some operands a box each.
    """

    operands: list[Staged]
    buffers: list[SSAValue]
    programs: list[int]
    full: SSAValue
    empty: SSAValue
    groups: int = 1

    def boxes(self, staged: Staged) -> int:
        """Return how many boxes of an operand a stage holds: one, or one for each group of consumers."""
        return boxes_of(staged, self.groups)

    @property
    def stage_bytes(self) -> int:
        """Bytes that arrive in a stage."""
        return sum(self.boxes(staged) * staged.size_bytes for staged in self.operands)

    def stage(self, insert: Inserter, staged: Staged, at: SSAValue, group: SSAValue | None = None) -> SSAValue:
        """Return one stage of an operand's buffer, which is the buffer where the ring holds no more.

        Args:
            insert: where the view of the stage is made.
            staged: the operand.
            at: the stage.
            group: the group of consumers whose box it is, where each has one.
        """
        assert isinstance(self.full.type, BarriersType)
        buffer, stages = self.buffers[self.operands.index(staged)], self.full.type.count.data
        if (boxes := self.boxes(staged)) > 1:
            assert group is not None
            at = group if stages == 1 else insert.binary("add", insert.binary("mul", at, insert.constant(boxes)), group)
        return buffer if stages * boxes == 1 else insert.value(SharedViewOp(buffer, at))

    def first_and_last_use(self, block: Block) -> tuple[Operation, Operation]:
        """Return the first and the last op of a loop's block that reads an operand, or what was read of it."""
        users = {top_of(user, block) for staged in self.operands for user in readers(staged)}
        users |= {staged.load for staged in self.operands if not qualifies(staged.load)}  # read by threads
        ordered = [op for op in block.ops if op in users]
        return ordered[0], ordered[-1]


def boxes_of(staged: Staged, groups: int) -> int:
    """Return how many boxes of an operand a stage holds for so many groups: one each, where it differs by group."""
    return groups if any(map(depends_on_group, staged.load.offsets)) else 1


def depends_on_group(value: SSAValue) -> bool:
    """Return whether a value may differ between groups of consumers."""
    return follows_from(value, RoleGroupOp)


def allocate_rings(
    loop: scf.ForOp, group: Sequence[Staged], programs: dict[int, int], stages: int, body: Block, together: int = 1
) -> list[Ring]:
    """Allocate the rings of a loop's operands at the start of the program, in order of their first use.

    Args:
        loop: the loop.
        group: the operands.
        programs: by operand (its id), how many programs of a cluster fetch it together.
        stages: depth of the rings.
        body: the program.
        together: groups of consumers that read each stage.
    """
    groups = ring_groups(loop, group)
    buffers = {id(staged): allocate(staged, stages * boxes_of(staged, together), body) for staged in group}
    rings: list[Ring] = []
    setup = Inserter(InsertPoint.after(buffers[id(group[0])].owner), loop)  # pyright: ignore[reportArgumentType]
    dependent = are_dependent(loop)
    for number, operands in enumerate(groups):
        sharing = [programs[id(staged)] for staged in operands]
        full = setup.value(AllocBarriersOp(stages, 1))
        empty = setup.value(AllocBarriersOp(stages, together, max(sharing)))
        ring = Ring(operands, [buffers[id(staged)] for staged in operands], sharing, full, empty, together)
        if dependent:
            _number(ring, number)
        rings.append(ring)
    return rings


def are_dependent(loop: scf.ForOp) -> bool:
    """Return whether a product of a loop waits for another one."""
    return max(product_depths(loop.body.block).values(), default=0) > 0


def _number(ring: Ring, number: int) -> None:
    """Say which ring buffers and barriers belong to, so that waits and releases order only the ops that read it."""
    for value in (*ring.buffers, ring.full, ring.empty):
        assert isinstance(value.owner, Operation)
        decisions.RING.write(value.owner, number)


def allocate_single(loop: scf.ForOp, operands: list[Staged], body: Block, together: int, number: int) -> Ring:
    """Allocate buffers of one stage, for operands that a tile needs once: the ring of a number."""
    buffers = [allocate(staged, boxes_of(staged, together), body) for staged in operands]
    setup = Inserter(InsertPoint.after(buffers[0].owner), loop)  # pyright: ignore[reportArgumentType]
    full, empty = (setup.value(AllocBarriersOp(1, arrivals)) for arrivals in (1, together))
    ring = Ring(operands, buffers, [1] * len(operands), full, empty, together)
    if are_dependent(loop):
        _number(ring, number)
    return ring


def ring_groups(loop: scf.ForOp, group: Sequence[Staged]) -> list[list[Staged]]:
    """Group operands by the first and last depth of the products that read them: each group shares its barriers.

    Rows by themselves go with operands that are needed no later and kept as long: they are not worth barriers.
    """
    block = loop.body.block
    depths = product_depths(block)
    found: dict[tuple[int, int], list[Staged]] = {}
    for staged in group:
        at = [depths[product] for user in readers(staged) for product in _products_after(user, block)]
        found.setdefault((min(at, default=0), max(at, default=0)), []).append(staged)
    rows = [key for key, operands in found.items() if all(len(staged.shape) == 1 for staged in operands)]
    for key in rows:
        around = next((other for other in sorted(found) if other not in rows and _is_around(other, key)), None)
        if around is not None:
            found[around] += found.pop(key)
    return [found[key] for key in sorted(found)]


def _is_around(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def readers(staged: Staged) -> list[Operation]:
    """Return the ops that read a loaded operand; transposes are views of it."""
    users = [use.operation for use in staged.load.result.uses]
    views = [user for user in users if isinstance(user, TransposeOp)]
    return [user for user in users if user not in views] + [use.operation for view in views for use in view.result.uses]


def product_depths(block: Block) -> dict[Operation, int]:
    """Return, for each product of a loop's block, how many products of the same iteration it waits for in turn.

    A product that goes on with the sums of another one does not wait for it.
    """
    behind: dict[Operation, int] = {}
    for op in block.ops:
        inputs = [top_of(o, block) for o in _operand_owners(op)]
        sums = op.acc.owner if isinstance(op, MmaOp) else None
        behind[op] = max(
            (behind[i] + (isinstance(i, MmaOp) and i is not sums) for i in inputs if i in behind), default=0
        )
    return {op: depth for op, depth in behind.items() if isinstance(op, MmaOp)}


def _operand_owners(op: Operation) -> list[Operation]:
    """Return the ops that an op, or an op inside of it, takes a value from."""
    return [v.owner for inner in op.walk() for v in inner.operands if isinstance(v.owner, Operation)]


def _products_after(op: Operation, block: Block) -> Iterable[Operation]:
    """Return the products of the block that are `op` or use what it computes, directly or not."""
    found: dict[Operation, None] = {top_of(op, block): None}
    rest = list(found)
    while rest:
        for result in rest.pop().results:
            for use in result.uses:
                user = top_of(use.operation, block)
                if user not in found and user is not block.last_op:
                    found[user] = None
                    rest.append(user)
    products = [op for op in found if isinstance(op, MmaOp)]
    first = top_of(op, block)
    return [first] if isinstance(first, MmaOp) else products


def top_of(op: Operation, block: Block) -> Operation:
    """Return the op of the block that is `op` or holds it; `op` itself where it lies elsewhere."""
    inner: Operation | None = op
    while inner is not None and inner.parent is not block:
        inner = inner.parent_op()
    return inner or op
