"""Splits loops that only add up over several programs, where a grid has too few of them to fill the machine.

A reduction along columns has a program for every 128 columns or so, and each walks all rows: 8 programs on 132
multiprocessors. How many programs there are is known at the launch, so that it decides how many share a tile: one where
the grid alone is enough, else as many as there is room for (`target.artifact.Launch.started`). Each does an equal part
of the steps and leaves its partial sums in device memory; the last one waits for the others, combines theirs with its
own in a fixed order, and does what follows the loop.

Before::

    grid(%n) by [128] {
      %sum = scf.for %k = %lo to %hi step %s iter_args(%part = 0) { yield add(%part, <what rows k.. give>) }
      epilogue; store
    }

After::

    grid(%n) by [128] {
      %first, %last, %owner, %others = share <steps of the loop>
      %sum = scf.for %k = <step %first> to <step %last> ...
      if %owner { %all = collect_sums %sum of %others by ["add"]; epilogue; store } else { leave_sums %sum }
    } {split_sums = 256}

Sums, products, maxima, minima and operations on bits are split, of tiles and of scalars, several at once and in several
loops if none needs the result of another; under `strict` those whose bits any order gives. A tile that the epilogue
reduces the same way is reduced before it is left. Loops of products are split where one role computes them. The result
has the same bits in every run on a GPU with as many multiprocessors.

A program waits only for programs with lower numbers, which have started before it: there is no deadlock even where not
all of them run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint
from xdsl.traits import IsTerminator

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.carried_sums import changes_nothing, combining_functions, is_in_order, neutral
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.elementwise import ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.roles import RolesOp
from tessera.ir.tile.stream import CollectSumsOp, LeaveSumsOp, ShareOp, bytes_of
from tessera.ir.tile.structure import GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.traits import has_trait
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in
from tessera.numerics.functions import COMBINE
from tessera.schedule.leaders import finish_in_one, rest_after
from tessera.schedule.scheduled_pass import GridPass
from tessera.target import gpu_rates as gpu
from tessera.target.artifact import FLAG_BYTES, MOST_PARTS

FEW_STEPS = 4
"""Loops known to have fewer are left as they are."""


@dataclass(frozen=True)
class SplitSumsPass(GridPass):
    """Lets several programs share a tile whose loops only add up.

    Args:
        target: the GPU.
        knobs: `split_sums` is how many programs share a tile at most; 1 leaves the loops as they are.
    """

    name: ClassVar[str] = "split-sums"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Split the loops of a launch where that can be done, and may help."""
        asked = self.knobs.split_sums
        if asked == 1 or (asked is None and not self._may_help(grid)):
            return
        try:
            loops = _loops(grid, kernel.profile.data)
            if asked is None:
                _check_room(loop for loop, _ in loops)
            total = _split(grid, loops)
        except Unfit as reason:
            if asked is not None:
                note(grid, "split_sums", [f"split_sums={asked} is ignored: {reason}"])
            return
        most = min(asked or _most(grid, total), MOST_PARTS)
        decisions.SPLIT_SUMS.write(grid, most)
        if asked is None:
            self._limit(grid, total)
        note(grid, "split_sums", [f"up to {most} programs share a tile's loop where the grid does not fill the GPU"])

    def _may_help(self, grid: GridOp) -> bool:
        """Return whether programs may be few, and do many steps."""
        programs = 1
        for extent, block in zip(grid.extents, grid.block_sizes, strict=True):
            programs *= -(-int(constant_value(extent) or 1) // block)
        steps = [_known_steps(loop) for loop in _outermost(grid)]
        return programs < self.target.machine.units and all(n is None or n >= FEW_STEPS for n in steps)

    def _limit(self, grid: GridOp, total: CollectSumsOp) -> None:
        """Say how many programs share tiles of products: as many as run at once, each with a few steps."""
        terms = max((shape_of(op.a.type)[-1] for op in ops_in(grid) if isinstance(op, MmaOp)), default=0)
        if terms:
            resident = max(4 * gpu.RESIDENT_SUMS // bytes_of(total.partials.types), 1)
            decisions.PART_STEPS.write(grid, -(-gpu.PART_TERMS // terms))
            decisions.SHARING_PROGRAMS.write(grid, min(resident * self.target.machine.units, FLAG_BYTES // 4))


def _outermost(grid: GridOp) -> list[scf.ForOp]:
    return [op for op in grid.body.block.ops if isinstance(op, scf.ForOp)]


def _known_steps(loop: scf.ForOp) -> int | None:
    lower, upper, step = (constant_value(bound) for bound in (loop.lb, loop.ub, loop.step))
    if lower is None or upper is None or step is None:
        return None
    return -((int(lower) - int(upper)) // int(step))


def _loops(grid: GridOp, profile: str) -> list[tuple[scf.ForOp, list[str]]]:
    """Return the loops of a launch, and how what they carry is combined.

    Raises:
        Unfit: they cannot be split.
    """
    loops = _outermost(grid)
    if not loops:
        raise Unfit("the grid has no outermost loop")
    if not any(loop.results for loop in loops):
        raise Unfit("its loops carry nothing")
    if any(isinstance(op, RolesOp) for op in ops_in(grid)):
        raise Unfit("its warps have roles: split_k and stream_k are for that")
    if decisions.CLUSTER.on(grid) or decisions.STREAM_K.on(grid):
        raise Unfit("its programs share tiles already, or what they fetch")
    _check_before(grid.body.block, loops)
    found = [(loop, combining_functions(loop)) for loop in loops]
    for loop, fns in found:
        for fn, result in zip(fns, loop.results, strict=True):
            _check_sum(fn, result.type, profile)
    return found


def _check_before(block: Block, loops: Sequence[scf.ForOp]) -> None:
    """Check that nothing happens before the last loop's end that may not happen several times, or not yet."""
    sums: set[SSAValue] = set()
    for op in block.ops:
        if any(operand in sums for inner in op.walk() for operand in inner.operands):
            if op in loops:
                raise Unfit("a loop needs the sums of another one")
            sums.update(op.results)
        if any(_does_something(inner) for inner in op.walk()):
            raise Unfit("something is written, or otherwise done, before the sums are complete")
        if op in loops:
            sums.update(op.results)
        if op is loops[-1]:
            return


def _check_sum(fn: str, type_: Attribute, profile: str) -> None:
    if type_ == index:
        raise Unfit("sums of sizes stay in one program")
    dtype = dtype_of(element_of(type_) if isinstance(type_, TileType) else type_)
    if dtype.kind == "bool" or dtype.bits < 8 or (dtype.is_float and dtype.bits < 16):
        raise Unfit(f"sums of {dtype} stay in one program")
    if is_in_order(fn, type_, profile):
        raise Unfit("strict gives the order of sums")


def _check_room(loops: Iterable[scf.ForOp]) -> None:
    if bytes_of(result.type for loop in loops for result in loop.results) > gpu.HELD_BYTES:
        raise Unfit("its sums take most registers")


def _most(grid: GridOp, total: CollectSumsOp) -> int:
    """Return how many programs share a tile at most: the last one reads what all of them leave."""
    most = max(gpu.LEFT_BYTES // bytes_of(total.partials.types), 2)
    return min(most, gpu.MOST_PARTS) if any(isinstance(op, MmaOp) for op in ops_in(grid)) else most


def _split(grid: GridOp, loops: Sequence[tuple[scf.ForOp, list[str]]]) -> CollectSumsOp:
    """Split loops, each with how what it carries is combined, and return the op that combines the parts."""
    block, last = grid.body.block, loops[-1][0]
    shares = [_shorten(loop, fns) for loop, fns in loops]
    delayed = _delayed(block, {result for loop, _ in loops for result in loop.results}, last)
    rest = rest_after(last)
    for op in reversed(delayed):
        op.detach()
        _put_first(rest, op)
    fns = [fn for _, each in loops for fn in each]
    results = [result for loop, _ in loops for result in loop.results]
    partials = [_partial(result, fn, rest, last) for result, fn in zip(results, fns, strict=True)]
    total = CollectSumsOp(shares[-1].others, partials, fns)
    finish_in_one(last, rest, shares[-1].owner, total, LeaveSumsOp(partials))
    _collect_late(total)
    return total


def _shorten(loop: scf.ForOp, fns: Sequence[str]) -> ShareOp:
    """Let a loop do a program's part of its steps; the owner starts from what the whole loop starts from."""
    insert = Inserter(InsertPoint.before(loop), loop)
    length = insert.binary("sub", loop.ub, loop.lb)
    share = ShareOp(ceildiv(insert, length, loop.step, insert.constant(1)))
    insert.add(share)
    start, stop = (
        insert.binary("add", loop.lb, insert.binary("mul", step, loop.step)) for step in (share.first, share.last)
    )
    loop.operands[0], loop.operands[1] = start, insert.binary("minimum", loop.ub, stop)
    for place, (fn, initial) in enumerate(zip(fns, loop.iter_args, strict=True)):
        if not changes_nothing(fn, initial):
            loop.operands[3 + place] = _first_of(insert, share.owner, fn, initial)
    return share


def _first_of(insert: Inserter, owner: SSAValue, fn: str, initial: SSAValue) -> SSAValue:
    """Return what a part starts from: the owner from `initial`, the others from what changes nothing."""
    tile = initial.type
    element = element_of(tile) if isinstance(tile, TileType) else tile
    other = insert.number(neutral(fn, initial), element)
    if isinstance(tile, TileType):
        owner, other = (insert.value(SplatOp(value, tile.shape)) for value in (owner, other))
    return insert.value(ElementwiseOp("select", [owner, initial, other]))


def _delayed(block: Block, sums: set[SSAValue], last: scf.ForOp) -> list[Operation]:
    """Return the ops before the end of the last loop that need sums of a loop before it."""
    known, found = set(sums), list[Operation]()
    for op in block.ops:
        if op is last:
            return found
        if any(operand in known for inner in op.walk() for operand in inner.operands):
            known.update(op.results)
            found.append(op)
    return found


def _partial(result: SSAValue, fn: str, rest: Block, last: scf.ForOp) -> SSAValue:
    """Return the tile that a program leaves for a result of a loop: reduced, where the rest reduces it anyway."""
    block = last.parent_block()
    assert block is not None
    after = Inserter(InsertPoint.at_end(block), last)
    reduction = _only_use(result)
    if isinstance(reduction, ReduceOp) and reduction.parent is rest and COMBINE[reduction.fn.data] == fn:
        reduction.detach()
        block.add_op(reduction)
        result = reduction.result
    if isinstance(result.type, TileType):
        return result
    tile = SplatOp(result, [1])
    after.add(tile)
    alone = ReduceOp(tile.result, 0, "max")  # of one element
    alone.location = last.location
    _put_first(rest, alone)
    result.replace_uses_with_if(alone.result, lambda use: use.operation is not tile)
    return tile.result


def _collect_late(total: CollectSumsOp) -> None:
    """Let the owner load and compute what it can before it waits for the others; they may still read what it writes."""
    following = total.next_op
    while following is not None:
        inside = list(following.walk())
        needs = any(operand in total.results for op in inside for operand in op.operands)
        if needs or any(_does_something(op) for op in inside) or has_trait(following, IsTerminator):
            break
        following = following.next_op
    block = total.parent_block()
    if following is not None and block is not None:
        total.detach()
        block.insert_op_before(total, following)


def _does_something(op: Operation) -> bool:
    return not op.regions and effect_of(op) > Effect.PURE and not reads_only(op)


def _only_use(value: SSAValue) -> Operation | None:
    users = [use.operation for use in value.uses]
    return users[0] if len(users) == 1 else None


def _put_first(block: Block, op: Operation) -> None:
    if block.first_op is None:
        block.add_op(op)
    else:
        block.insert_op_before(op, block.first_op)
