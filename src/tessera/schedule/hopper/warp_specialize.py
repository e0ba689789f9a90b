"""Splits a kernel's warps into a producer of bulk copies and consumers of tiles (Hopper).

Before::

    grid {
      scf.for %k ... iter_args(%acc) { %a = load A; %b = load B; yield mma %a, %b, %acc }
      store
    }

After, with rings of S buffers and two barriers per stage (operands of products that wait for each other, as K and V
of attention, have rings with barriers of their own)::

    grid {
      rings; %full = alloc_barriers; %empty = alloc_barriers
      roles(%slot = 0, %parity = 0) producer {
        scf.for %k ... iter_args(%slot, %parity) {
          barrier_wait %empty[%slot] parity (1 - %parity); barrier_expect %full[%slot] bytes
          bulk_copy A -> %ra[%slot]; bulk_copy B -> %rb[%slot]
        }
      } consumer {
        scf.for %k ... iter_args(%acc, %slot, %parity) {
          barrier_wait %full[%slot] parity %parity
          mma %ra[%slot], %rb[%slot], %acc; barrier_arrive %empty[%slot]
        }
        store
      }
    }

Operands that are loaded before the loop are copied by the producer too, once for each tile, into buffers of one stage.

The grid is marked persistent: as many programs as the GPU runs at once, each role with a loop of its own over its
program's tiles, so that the copies of the next tile overlap the end of this one.

With `ping_pong`, two groups of consumers take the tiles in turn (`schedule.hopper.ping_pong`). Groups that
`divide-rows` lets divide the rows of each tile share the stages of the rings; of what differs by group, a stage has a
box for each.

Other tiles that the loop loads go through the same rings: consumers read them from there, for operands that they
compute or anything else (`schedule.hopper.prologue`).

Applies to a launch with one outermost loop whose matrix operands the copy engine can fetch and whose products all have
a warpgroup instruction; anything else is left to `stage-copies`. Why a kernel does not qualify, and why a tile does not
go through a ring, is noted on its grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.directions import GROWS, directions
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter
from tessera.ir.loops import arguments_of, depends_on, remade, with_arguments
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import ElementwiseOp, RoundTf32Op
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.roles import (
    AllocBarriersOp,
    BarrierArriveOp,
    BarrierExpectOp,
    BarrierWaitOp,
    BulkCopyOp,
    RoleEndOp,
    RoleGroupOp,
    RolesOp,
)
from tessera.ir.tile.shared import AllocSharedOp
from tessera.ir.tile.split import AllocLinksOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import SharedType, TileType
from tessera.ir.tile.writes import is_settled_scalar, written_memories
from tessera.ir.walking import ops_in
from tessera.schedule.buffers import why_written
from tessera.schedule.gpu.copies import Staged, logical, qualifies, replace_load, stored_transposed
from tessera.schedule.hopper.boxes import ahead_of, check_copied, check_operand, is_tf32
from tessera.schedule.hopper.limits import REGISTERS, SHARING_REGISTERS, why_no_registers
from tessera.schedule.hopper.pair_tiles import depends_on_rank
from tessera.schedule.hopper.ping_pong import GROUPS, Turns, check_groups, is_plain
from tessera.schedule.hopper.prologue import (
    Product,
    carry_turned,
    check_staged,
    computed_from,
    is_direct,
    is_small,
    load_ahead,
    raw_boxes,
    read_raw,
    reduces_rows,
    sink,
    spread_rows,
    stage_right,
    stored_along_k,
    turn,
)
from tessera.schedule.hopper.reuse import fetched_once
from tessera.schedule.hopper.rings import Ring, allocate_rings, allocate_single, depends_on_group
from tessera.schedule.hopper.role_plan import RolePlan, consumer_warps, ring_stages
from tessera.schedule.hopper.rounding import round_operands, undo
from tessera.schedule.hopper.tensor_maps import Misplaced
from tessera.schedule.knobs import Knobs
from tessera.schedule.loops import only_loop
from tessera.schedule.products import has_roles, is_turned, why_no_instruction, why_not_known
from tessera.schedule.scheduled_pass import GridPass
from tessera.target.artifact import REREADS_BITS
from tessera.target.boxes import map_order, shared_axis
from tessera.target.records import TargetRecord


@dataclass(frozen=True)
class WarpSpecializePass(GridPass):
    """Rewrites the launches that profit from warp roles.

    Args:
        target: the GPU.
        knobs: `stages` forces the depth of the rings, `num_warps` the consumer warps; `ping_pong` asks for two groups
            of consumers.
    """

    name: ClassVar[str] = "warp-specialize"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Split a launch into roles, or note why not."""
        if not has_roles(self.target):
            return
        if not any(isinstance(op, MmaOp) for op in ops_in(grid)):
            return
        rounded: list[RoundTf32Op] = []
        try:
            plan = _plan(self.knobs, kernel, grid, rounded)
            groups, notes = self._groups(kernel, grid, plan)
            warps = consumer_warps(plan.products, self.knobs, groups)
            stages = ring_stages(self.target, self.knobs, kernel, grid, plan, groups)
        except Unfit as reason:
            undo(rounded)
            note(grid, "roles", [f"one role: {reason}"])
            if isinstance(reason, Misplaced):
                _mark_misplaced(kernel, grid)
            return
        registers, ignored = self._registers(grid, warps * groups)
        if notes := [*notes, *plan.notes(), *ignored]:
            note(grid, "roles", notes)
        _specialize(kernel, grid, plan, stages, warps, groups, registers)

    def _registers(self, grid: GridOp, warps: int) -> tuple[tuple[int, int], list[str]]:
        """Return the registers of threads that fetch and compute, and why not those that were asked for."""
        usual = (SHARING_REGISTERS if decisions.STREAM_K.on(grid) else REGISTERS)[warps]
        asked = self.knobs.producer_registers or usual[0], self.knobs.consumer_registers or usual[1]
        if asked == usual or (reason := why_no_registers(*asked, warps)) is None:
            return asked, []
        return usual, [f"{usual[0]} and {usual[1]} registers: {reason}"]

    def _groups(self, kernel: KernelOp, grid: GridOp, plan: RolePlan) -> tuple[int, list[str]]:
        """Return how many groups of consumers take tiles, and why not as many in turn as were asked for."""
        if (together := decisions.ROW_GROUPS.of(grid)) is not None:
            return together, []
        if not self.knobs.ping_pong or not is_plain(plan.loop):
            return 1, []
        try:
            check_groups(grid, plan.loop, [s.load for s in plan.operands], plan.once, self.knobs)
            consumer_warps(plan.products, self.knobs, GROUPS)
            ring_stages(self.target, self.knobs, kernel, grid, replace(plan, raw=list(plan.raw)), GROUPS)
        except Unfit as reason:
            return 1, [f"no ping-pong: {reason}"]
        return GROUPS, []


def planned(target: TargetRecord, knobs: Knobs, kernel: KernelOp, grid: GridOp) -> None:
    """Check that a launch would have roles, with groups only that divide its rows; it stays as it is.

    Raises:
        Unfit: it would not.
    """
    rounded: list[RoundTf32Op] = []
    try:
        plan, groups = _plan(knobs, kernel, grid, rounded), decisions.ROW_GROUPS.of(grid) or 1
        consumer_warps(plan.products, knobs, groups)
        ring_stages(target, knobs, kernel, grid, plan, groups)
    finally:
        undo(rounded)


def _plan(knobs: Knobs, kernel: KernelOp, grid: GridOp, rounded: list[RoundTf32Op]) -> RolePlan:
    """Return what the roles of a launch would do, once its operands are rounded; what rounds them joins `rounded`.

    Raises:
        Unfit: it has one role.
    """
    if knobs.mma_kind not in (None, "wgmma"):
        raise Unfit(f"mma_kind={knobs.mma_kind} was asked for")
    if any(isinstance(op, MmaOp) and op.sums_in_order for op in ops_in(grid)):
        raise Unfit("strict gives the order of sums, which warpgroup instructions do not take")
    loop = only_loop(grid)
    rounded += round_operands(kernel, grid, lambda op: _is_fetched(kernel, grid, loop, op))
    return _candidate(kernel, grid, loop)


def _candidate(kernel: KernelOp, grid: GridOp, loop: scf.ForOp) -> RolePlan:
    stored = written_memories(grid)
    loads = [op for op in loop.body.block.ops if isinstance(op, LoadOp) and qualifies(op) and ahead_of(op, loop)]
    raw, plain = raw_boxes(kernel, loop, stored)
    for staged in list(raw):
        try:
            _check_shared(grid, loop, [staged.load])
        except Unfit as reason:
            raw.remove(staged)
            plain[staged.load] = str(reason)
    products = _oriented([_product(op, raw) for op in ops_in(grid) if isinstance(op, MmaOp)])
    fetched = {staged.load for staged in raw}
    if not loads and not any(computed_from(v) & fetched for p in products for v in (p.op.a, p.op.b)):
        raise Unfit("no operand of a product is loaded by the loop")
    for product in products:
        _check_product(product)
    for op in loads:
        if (why := why_written(grid, memory_of(op.tensor))) is not None:
            raise Unfit(f"an operand of a product {why}")
        check_operand(kernel, op)
    for op in ops_in(grid):
        if isinstance(op, LoadOp) and qualifies(op) and op not in loads and op not in fetched:
            check_copied(kernel, op)  # in a branch, or before the loop
    _check_shared(grid, loop, [*loads, *fetched])
    operands = [_operand(kernel, op) for op in loads]
    ahead = [op for op in plain if is_small(op) and ahead_of(op, loop) and memory_of(op.tensor) not in stored]
    return RolePlan(loop, operands, raw, plain, ahead, products, _loaded_once(kernel, grid, loop))


def _mark_misplaced(kernel: KernelOp, grid: GridOp) -> None:
    """Write which operands would have to lie elsewhere, and along which dimensions of the grid they are read again."""
    rereads = dict[int, int]()
    for op in grid.walk():
        if not (isinstance(op, LoadOp) and qualifies(op) and _is_misplaced(kernel, op)):
            continue
        if memory_of(op.tensor) in written_memories(grid):
            return
        argument = kernel.body.block.args.index(op.tensor)
        rereads.setdefault(argument, 0)
        if op.parent is not grid.body.block:
            moved = {place for offset in op.offsets for place in arguments_of(offset, grid.body.block)}
            rereads[argument] |= sum(1 << axis for axis in range(len(grid.extents)) if axis not in moved)
    if any(rereads.values()):
        decisions.MISPLACED.write(grid, sum(1 << argument for argument in rereads))
        parts = (rereads[argument] << REREADS_BITS * place for place, argument in enumerate(sorted(rereads)))
        decisions.REREADS.write(grid, sum(parts))


def _is_misplaced(kernel: KernelOp, op: LoadOp) -> bool:
    try:
        check_operand(kernel, op)
    except Misplaced:
        return True
    except Unfit:
        return False
    return False


def _loaded_once(kernel: KernelOp, grid: GridOp, loop: scf.ForOp) -> list[Staged]:
    """Return the operands that are loaded before the loop and that the producer can fetch, once for each tile.

    The others are left to `stage-copies`.
    """
    return [
        _operand(kernel, op)
        for op in grid.body.block.ops
        if isinstance(op, LoadOp) and qualifies(op) and _is_fetched(kernel, grid, loop, op)
    ]


def _is_fetched(kernel: KernelOp, grid: GridOp, loop: scf.ForOp, op: LoadOp) -> bool:
    """Return whether the producer will fetch an operand, should the launch have one."""
    if op.parent is not grid.body.block:
        return ahead_of(op, loop)
    if not op.is_before_in_block(loop) or memory_of(op.tensor) in written_memories(grid):
        return False
    try:
        check_operand(kernel, op)
        _check_shared(grid, loop, [op])
    except Unfit:
        return False
    return True


def _operand(kernel: KernelOp, op: LoadOp) -> Staged:
    return Staged(op, stored_transposed(kernel, op), "panels", is_tf32(op))


def _product(op: MmaOp, raw: list[Staged]) -> Product:
    """Return how a product is computed: transposed if only its right operand is computed from what is fetched.

    One whose rows are reduced is not, where its right operand can be staged: its warps hold whole rows, those of its
    transpose parts of every row.
    """
    plain, turned = Product(op), Product(op, True)
    if not is_turned(is_direct(op.a), is_direct(op.b)) or not computed_from(op.b) & {staged.load for staged in raw}:
        return plain
    wanted = (plain, turned) if reduces_rows(op) else (turned, plain)
    return next(filter(_is_fit, wanted), plain)


def _is_fit(product: Product) -> bool:
    try:
        _check_product(product)
    except Unfit:
        return False
    return True


def _oriented(products: list[Product]) -> list[Product]:
    """Return products, or all of their transposes where warpgroups can compute only those: rows come in 64s."""
    operands = [value for product in products for value in (product.op.a, product.op.b)]
    turned = [replace(product, turned=not product.turned) for product in products]
    return (
        turned
        if all(map(is_direct, operands)) and _are_rows_wrong(products) and not _are_rows_wrong(turned)
        else products
    )


def _are_rows_wrong(products: Sequence[Product]) -> bool:
    """Return whether instructions, or the registers of warpgroups, do not take tiles of so many rows."""
    try:
        consumer_warps(products, Knobs(), 1)
    except Unfit:
        return True
    return any(why_no_instruction(*product.dtypes, product.shape) is not None for product in products)


def _check_product(product: Product) -> None:
    if any(isinstance(value.type, SharedType) for value in (product.op.a, product.op.b)):
        raise Unfit("an operand of a product is a shared buffer of the kernel's own")
    if (reason := why_no_instruction(*product.dtypes, product.shape)) is not None:
        raise Unfit(reason)
    if not is_direct(product.right):
        check_staged(product)


def _specialize(
    kernel: KernelOp, grid: GridOp, plan: RolePlan, stages: int, warps: int, groups: int, registers: tuple[int, int]
) -> None:
    body, group = grid.body.block, plan.group
    products = [turn(product.op) if product.turned else product.op for product in plan.products]
    spread_rows(kernel, products, {staged.load for staged in plan.raw})
    for op in products:
        decisions.WARPGROUP.write(op)
        if not is_direct(op.b):
            stage_right(op, body, stored_along_k(kernel, op))
    for staged in plan.raw:
        if len(staged.shape) == 1:
            sink(staged.load)
    plan.loop = carry_turned(plan.loop)
    loop = load_ahead(plan.loop, plan.ahead)
    uneven = _unevenness(loop, body)
    programs = decisions.CLUSTER.of(grid) or 1
    if any(depends_on_rank(bound) for bound in (loop.lb, loop.ub, loop.step)):
        programs = 1  # each waits for the parts that all others fetch: they have to take the same number of steps
    shared = {id(staged): programs if _is_shared(kernel, staged.load, programs) else 1 for staged in group}
    together = decisions.ROW_GROUPS.of(grid) or 1
    rings = allocate_rings(loop, group, shared, stages, body, together)
    single = allocate_single(loop, plan.once, body, together, len(rings)) if plan.once else None
    setup = Inserter(InsertPoint.after(rings[-1].empty.owner), loop)  # pyright: ignore[reportArgumentType]
    turns = setup.value(AllocBarriersOp(groups, 1)) if groups > together else None
    state = [setup.constant(0) for _ in range(3 if plan.once or turns is not None else 2)]
    once = {id(staged): fetched_once(setup, grid, staged.load) for staged in (*group, *plan.once)}
    producer = _producer(loop, rings, stages, single, once, len(state))
    consumer = Block(arg_types=[value.type for value in state])
    for op in _not_shared(body, _needed(loop, [staged.load for staged in (*group, *plan.once)])):
        op.detach()
        consumer.add_op(op)
    roles = RolesOp(producer, consumer, *registers, state, groups, together > 1)
    roles.location = loop.location
    body.add_op(roles)
    _consume(loop, rings, stages, single, turns)
    if not decisions.SPLIT_K.on(grid):  # with few tiles, none is left for a second turn
        decisions.PERSISTENT.write(grid)
        if uneven:
            decisions.UNEVEN.write(grid, uneven)
            if (axis := _uneven_axis(loop, body)) is not None:
                decisions.UNEVEN_AXIS.write(grid, axis)
    decisions.NUM_WARPS.write(grid, warps)
    if groups > together:
        decisions.PING_PONG.write(grid)


def _unevenness(loop: scf.ForOp, body: Block) -> int:
    """Return what `UNEVEN` says of the tiles of a launch, 0 where all take the same number of steps."""
    if not any(depends_on(bound, body) for bound in (loop.lb, loop.ub, loop.step)):
        return 0
    ways = directions(loop.ub, body) | {-way for way in directions(loop.lb, body)}
    return decisions.LAST_FIRST if ways == GROWS and not depends_on(loop.step, body) else 1


def _uneven_axis(loop: scf.ForOp, body: Block) -> int | None:
    """Return the dimension of a grid with which alone the steps of its loop differ, None where there are several."""
    found = {axis for bound in (loop.lb, loop.ub, loop.step) for axis in arguments_of(bound, body)}
    return found.pop() if len(found) == 1 else None


def _not_shared(body: Block, needed: Sequence[SSAValue]) -> list[Operation]:
    """Return the ops that only consumers run.

    All but the buffers, the pure scalar ops that need none of these, and the loads of scalars that the producer needs.

    Args:
        body: the launch's.
        needed: what the producer needs.
    """
    moved: dict[Operation, None] = {}
    wanted = _behind(needed)
    for op in body.ops:
        pure = effect_of(op) == Effect.PURE or (op in wanted and is_settled_scalar(op))
        scalar = pure and not any(isinstance(r.type, TileType) for r in op.results)
        buffer = isinstance(op, AllocSharedOp | AllocBarriersOp | AllocLinksOp)
        own = isinstance(op, RoleGroupOp) or any(operand.owner in moved for operand in op.operands)
        if op.regions or not (scalar or buffer) or own:
            moved[op] = None
    return list(moved)


def _behind(values: Sequence[SSAValue]) -> set[Operation]:
    """Return the ops that values follow from."""
    found: set[Operation] = set()
    rest = list(values)
    while rest:
        owner = rest.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            rest += owner.operands
    return found


def _needed(loop: scf.ForOp, loads: Sequence[LoadOp]) -> list[SSAValue]:
    """Return what the producer needs from around the loop, but for the numbers of groups: it knows them all."""
    needed: list[SSAValue] = [loop.lb, loop.ub, loop.step]
    for op in loads:
        needed += _from_all_groups(_from_outside(op.offsets, loop))
    return needed


def _from_all_groups(values: Sequence[SSAValue]) -> list[SSAValue]:
    """Return values, and in place of those that differ by group what they follow from that does not."""
    found: list[SSAValue] = []
    for value in values:
        owner = value.owner
        if not depends_on_group(value):
            found.append(value)
        elif isinstance(owner, Operation):
            found += _from_all_groups(owner.operands)
    return found


def _check_shared(grid: GridOp, loop: scf.ForOp, loads: Sequence[LoadOp]) -> None:
    """Raise unless the producer can compute what it needs: it runs no branches, and loads only scalars that stay."""
    needed = _needed(loop, loads)
    theirs = set(_not_shared(grid.body.block, needed))
    if (reason := why_not_known(any(value.owner in theirs for value in needed))) is not None:
        raise Unfit(reason)


def _from_outside(values: Sequence[SSAValue], loop: scf.ForOp) -> list[SSAValue]:
    """Return what movable values of a loop's body depend on outside of it."""
    found: list[SSAValue] = []
    for value in values:
        owner = value.owner
        if isinstance(owner, Operation) and owner.parent is loop.body.block:
            found += _from_outside(owner.operands, loop)
        else:
            found.append(value)
    return found


def _is_shared(kernel: KernelOp, load: LoadOp, programs: int) -> bool:
    """Return whether all programs of a cluster fetch the same box, of which each can fetch a part."""
    if any(depends_on_rank(offset) for offset in load.offsets):
        return False
    assert isinstance(load.result.type, TileType)
    if load.result.type.rank == 1:
        return False  # one copy moves all of a row
    sizes = [load.size_list[axis] for axis in map_order(kernel.info_of(load.tensor).strides)]
    return shared_axis(sizes, load.result.type.dtype.bytes, programs) is not None


def _producer(
    loop: scf.ForOp,
    rings: Sequence[Ring],
    stages: int,
    single: Ring | None,
    once: dict[int, SSAValue],
    size: int,
) -> Block:
    """Return the producer's block: the loop with nothing but copies, behind those that a tile needs once."""
    block = Block(arg_types=[loop.lb.type] * size)
    outer = Inserter(InsertPoint.at_end(block), loop)
    turns: list[SSAValue] = list(block.args[2:])
    fetched = [staged.load for ring in (*rings, *([single] if single else [])) for staged in ring.operands]
    of_groups = [_of_group(outer, loop, fetched, group) for group in range(rings[0].groups)]
    if single is not None:
        _fill(outer, single, loop, outer.constant(0), block.args[2], of_groups, once)
        turns = [outer.binary("sub", outer.constant(1), block.args[2])]
    inner = Block(arg_types=[loop.lb.type] * 3)
    counter, at, phase = inner.args
    insert = Inserter(InsertPoint.at_end(inner), loop)
    known = [{**values, loop.body.block.args[0]: counter} for values in of_groups]
    for ring in rings:
        _fill(insert, ring, loop, at, phase, known, once)
    insert.add(scf.YieldOp(*_next(insert, at, phase, stages)))
    copies = outer.add(scf.ForOp(loop.lb, loop.ub, loop.step, list(block.args[:2]), Region(inner)))
    outer.add(RoleEndOp([*copies.results, *turns]))
    return block


def _of_group(insert: Inserter, loop: scf.ForOp, loads: Sequence[LoadOp], group: int) -> dict[SSAValue, SSAValue]:
    """Return what differs by group of that which offsets follow from, as it is for one of the groups."""
    known: dict[SSAValue, SSAValue] = {}

    def of(value: SSAValue) -> SSAValue:
        owner = value.owner
        if value in known or not isinstance(owner, Operation) or not depends_on_group(value):
            return known.get(value, value)
        if isinstance(owner, RoleGroupOp):
            known[value] = insert.constant(group)
            return known[value]
        clone = owner.clone()
        clone.operands = [of(operand) for operand in owner.operands]
        insert.add(clone)
        known.update(zip(owner.results, clone.results, strict=True))
        return known[value]

    for value in _from_outside([offset for load in loads for offset in load.offsets], loop):
        of(value)
    return known


def _fill(
    insert: Inserter,
    ring: Ring,
    loop: scf.ForOp,
    at: SSAValue,
    phase: SSAValue,
    known: Sequence[dict[SSAValue, SSAValue]],
    once: dict[int, SSAValue],
) -> None:
    """Start the copies of one stage when it is free: its consumers have ended the phase before this one."""
    insert.add(BarrierWaitOp(ring.empty, at, insert.binary("sub", insert.constant(1), phase)))
    insert.add(BarrierExpectOp(ring.full, at, ring.stage_bytes))
    for staged, programs in zip(ring.operands, ring.programs, strict=True):
        load = staged.load
        box, loose = (load.size_list, load.dropped), decisions.LOOSE_END.of(load)
        how = (programs, once[id(staged)], staged.tf32, loose - 1 if loose else None)
        for group in range(ring.boxes(staged)):
            offsets = [remade(insert, offset, loop, known[group]) for offset in load.offsets]
            view = logical(insert, ring.stage(insert, staged, at, insert.constant(group)), staged)
            insert.add(BulkCopyOp(view, load.tensor, ring.full, at, offsets, *box, *how))


def _next(insert: Inserter, slot: SSAValue, parity: SSAValue, stages: int) -> list[SSAValue]:
    """Return the next slot around the ring, and the parity, which flips when the ring starts over."""
    zero, one = insert.constant(0), insert.constant(1)
    following = insert.binary("add", slot, one)
    wraps = insert.binary("eq", following, insert.constant(stages))
    flipped = insert.binary("sub", one, parity)
    return [
        insert.value(ElementwiseOp("select", [wraps, zero, following])),
        insert.value(ElementwiseOp("select", [wraps, flipped, parity])),
    ]


def _consume(loop: scf.ForOp, rings: Sequence[Ring], stages: int, single: Ring | None, turns: SSAValue | None) -> None:
    """Let the loop read the rings: wait for a stage, use it, hand it back."""
    role = loop.parent_block()
    assert role is not None
    places: Sequence[SSAValue] = role.args[:2]
    around = Turns.of(loop, turns, role.args[2], stages) if turns is not None else None
    following: list[SSAValue] = []
    if around is not None:
        places = around.skip(Inserter(InsertPoint.before(loop), loop), places, around.before)
        following.append(around.following)
    start = Inserter(InsertPoint.at_start(role), loop)
    group = start.value(RoleGroupOp()) if rings[0].groups > 1 else None
    if single is not None:
        following.append(start.binary("sub", start.constant(1), role.args[2]))
        _drain(role, single, start.constant(0), role.args[2], group)
    loop = with_arguments(loop, places)
    block = loop.body.block
    slot, parity = block.args[-2:]
    for ring in rings:
        _drain(block, ring, slot, parity, group)
    end = block.last_op
    assert end is not None
    end.operands = [*end.operands, *_next(Inserter(InsertPoint.before(end), end), slot, parity, stages)]
    decisions.STAGES.write(loop, stages)
    insert, places = Inserter(InsertPoint.at_end(role), loop), loop.results[-2:]
    if around is not None:
        around.take(loop)
        places = around.skip(insert, places, around.after)
    insert.add(RoleEndOp([*places, *following]))


def _drain(block: Block, ring: Ring, slot: SSAValue, parity: SSAValue, group: SSAValue | None) -> None:
    """Let a block read a stage of a ring in place of what it loaded."""
    first, last = ring.first_and_last_use(block)
    Inserter(InsertPoint.before(first), first).add(BarrierWaitOp(ring.full, slot, parity))
    Inserter(InsertPoint.after(last), last).add(BarrierArriveOp(ring.empty, slot))
    for staged in ring.operands:
        insert = Inserter(InsertPoint.before(staged.load), staged.load)
        read = replace_load if qualifies(staged.load) else read_raw
        read(staged, logical(insert, ring.stage(insert, staged, slot, group), staged))
