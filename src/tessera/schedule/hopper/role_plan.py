"""How a launch is split into roles: what goes through rings, how many warps consume it, and how deep the rings are.

Rings are as deep as shared memory allows besides what products and stores keep there; a tile that only threads read
stays with the consumers where it would leave room for fewer than two stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.gpu.copies import Staged, qualifies
from tessera.schedule.hopper.limits import NARROW, ONE_STAGE, Room, usual_warps, why_no_warps
from tessera.schedule.hopper.prologue import COMPUTES, Product, sources_of, staged_bytes
from tessera.schedule.hopper.rings import boxes_of, ring_groups, top_of
from tessera.schedule.hopper.stores import bytes_across, final_stores, least_bytes
from tessera.schedule.knobs import Knobs
from tessera.schedule.products import BUFFER_BYTES
from tessera.schedule.resources import free_shared_bytes
from tessera.target.records import TargetRecord


@dataclass
class RolePlan:
    """How a launch is split.

    Args:
        loop: the loop whose loads become copies.
        operands: loads that products read as they are.
        raw: loads that threads read, to compute operands or anything else.
        plain: the other loads of the loop, and why the consumers do them.
        ahead: those of them that are small, which are done one iteration ahead.
        products: every product of the launch.
        once: operands that are loaded before the loop and that the producer can fetch, once for each tile.
    """

    loop: scf.ForOp
    operands: list[Staged]
    raw: list[Staged]
    plain: dict[LoadOp, str]
    ahead: list[LoadOp]
    products: list[Product]
    once: list[Staged]

    @property
    def group(self) -> list[Staged]:
        """What a stage of the rings holds."""
        return [*self.operands, *self.raw]

    def notes(self) -> list[str]:
        """Say which loads the consumers do, and why."""
        return [
            f"loaded by consumers{', one iteration ahead' if op in self.ahead else ''}: {reason}"
            for op, reason in self.plain.items()
        ]


def consumer_warps(products: Sequence[Product], knobs: Knobs, groups: int) -> int:
    """Return the consumer warps of a tile: each warpgroup takes 64 rows of every product.

    Raises:
        Unfit: the rows, or the registers, are not enough for them.
    """
    rows = [product.shape[0] for product in products]
    warps = knobs.num_warps or usual_warps(min(rows), groups)
    held = _held(products)
    of_steps = [product.shape[1] for product in products if isinstance(product.op.acc.owner, Operation)]
    is_narrow = bool(of_steps) and max(of_steps) <= NARROW
    if (reason := why_no_warps(warps, rows, held, groups, is_narrow)) is not None:
        raise Unfit(reason)
    return warps


def _held(products: Sequence[Product]) -> int:
    """Return the most elements of sums that threads hold at once.

    Sums that go on from one step to the next are held throughout. Those that begin with zeros are held until the last
    use, in their block, of what follows from them element by element and is not rounded to fewer bits.
    """
    kept, spans = 0, dict[Block | None, list[tuple[int, int, int]]]()
    for product in products:
        size = prod(product.shape[:2])
        if isinstance(product.op.acc.owner, SplatOp):
            spans.setdefault(product.op.parent, []).append((*_span(product.op), size))
        elif not isinstance(product.op.acc.owner, MmaOp):
            kept += size
    return kept + sum(
        max(sum(size for first, last, size in those if first <= at < last) for at, _, _ in those)
        for those in spans.values()
    )


def _span(op: MmaOp) -> tuple[int, int]:
    """Return the places in its block of a product and of the last op that reads what follows from it."""
    block = op.parent
    assert block is not None
    places = {one: place for place, one in enumerate(block.ops)}
    last, seen = places[op], set[SSAValue]()
    ahead: list[SSAValue] = [op.result]
    while ahead:
        value = ahead.pop()
        seen.add(value)
        users = [use.operation for use in value.uses]
        last = max([last, *(places.get(top_of(user, block), len(places)) for user in users)])
        follows = [user.results[0] for user in users if isinstance(user, COMPUTES)]
        ahead += [one for one in follows if one not in seen and _bits(one) >= _bits(op.result)]
    return places[op], last


def _bits(tile: SSAValue) -> int:
    return dtype_of(element_of(tile.type)).bits


def ring_stages(target: TargetRecord, knobs: Knobs, kernel: KernelOp, grid: GridOp, plan: RolePlan, groups: int) -> int:
    """Return the depth of the rings; raw tiles for which there is no room stay with the consumers.

    Raises:
        Unfit: two stages do not fit, or fewer were asked for.
    """
    if knobs.stages == 1:
        raise Unfit(ONE_STAGE)
    other = sum(staged_bytes(product) for product in plan.products) + sum(
        Staged(op, False).size_bytes
        for op in ops_in(grid)
        if isinstance(op, LoadOp) and qualifies(op) and op not in [s.load for s in plan.operands]
    )
    other += BUFFER_BYTES * sum(len(staged.shape) == 1 for staged in plan.raw)  # rings of rows fill no whole units
    boxes = decisions.ROW_GROUPS.of(grid) or 1
    rings = len(ring_groups(plan.loop, plan.group)) + bool(plan.once)
    left = free_shared_bytes(target, grid)
    stores = final_stores(grid.body.block) if knobs.bulk_stores != 0 else []
    least = least_bytes(kernel, grid, stores, groups)
    turned = any(product.turned for product in plan.products)
    wanted = max(least, bytes_across(stores, groups) if turned else 0)
    while True:
        stage = sum(boxes_of(staged, boxes) * staged.size_bytes for staged in plan.group)
        room = Room.beside(left, stage, kept=other, stores=wanted, groups=groups, rings=rings)
        if (stages := room.stages(knobs.stages)) is not None:
            return stages
        dropped = next((s for s in plan.raw if not _feeds_products(s, plan.products)), None)
        if dropped is None:
            raise Unfit(room.shortage(knobs.stages))
        plan.raw.remove(dropped)
        tile = "x".join(map(str, dropped.shape))
        plan.plain[dropped.load] = f"a stage of {dropped.size_bytes} bytes for {tile} does not fit in shared memory"


def _feeds_products(staged: Staged, products: Sequence[Product]) -> bool:
    """Return whether a product reads what threads make of a tile alone, as weights that were rounded to few bits.

    What they make of other products, as scores of attention with a bias, stays in their registers.
    """
    found = [sources_of(value) for product in products for value in (product.op.a, product.op.b)]
    return any(staged.load in owners and not any(isinstance(one, MmaOp) for one in owners) for owners in found)
