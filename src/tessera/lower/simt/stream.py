"""SIMT lowering of launches whose programs share steps: of the last tiles (stream-K), or of each tile.

`schedule.hopper.stream_k` and `schedule.gpu.split_sums` explain in which order programs go through their work, and why
they cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout
from tessera.ir.target import stream as target
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.structure import ProgramCountOp, ProgramIdOp
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.stream import CollectSumsOp, LeaveSumsOp, ShareOp, sharers_of
from tessera.ir.tile.structure import GridOp
from tessera.ir.types import element_type, i1, index
from tessera.lower.simt.context import Part, Share, SimtContext
from tessera.lower.simt.order import mark_tile_loop
from tessera.lower.simt.placement import Placements, infers
from tessera.lower.simt.reduce import reduce_fragment
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import NEUTRAL

U32 = element_type(dtypes.u32)

_REDUCTIONS = {COMBINE[name]: name for name in ("sum", "prod", "max", "min")}
"""The reduction whose parts a function combines."""

GROUP_WORDS = 32
"""Registers of partial sums that are loaded at once, while others are held."""
PART_WORDS = 16
"""The same where threads that hold copies of a sum load other parts each."""
MOST_TOGETHER = 8
"""Programs whose partial sums are loaded at once."""
FEW_TOGETHER = 4
HELD_WORDS, CONSUMER_WORDS = 32, 64
"""The same, some registers of each at a time, where threads hold more of their own: at most so many, where warps have
one role, and where they have roles."""


class _Numbers:
    """Builds unsigned 32-bit arithmetic: 64-bit division is slow on GPUs."""

    def __init__(self, context: SimtContext) -> None:
        self.context = context

    def __call__(self, fn: str, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        return self.context.scalars.binary(fn, a, b, U32)

    def test(self, fn: str, a: SSAValue, b: SSAValue | int) -> SSAValue:
        other = self.context.scalars.constant(b, U32) if isinstance(b, int) else b
        return self.context.value(ElementwiseOp(fn, [a, other]))

    def choose(self, which: SSAValue, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        pair = [self.context.scalars.constant(x, U32) if isinstance(x, int) else x for x in (a, b)]
        return self.context.value(ElementwiseOp("select", [which, *pair]))


def _first_step(n: _Numbers, at: SSAValue, each: SSAValue, extra: SSAValue) -> SSAValue:
    """Return where a program's steps begin, of which all do `each`, and the first `extra` programs one more."""
    return n("add", n("mul", at, each), n("minimum", at, extra))


def _first_step_of_crews(
    n: _Numbers, at: SSAValue, length: SSAValue, crew: SSAValue, each: SSAValue, extra: SSAValue
) -> SSAValue:
    """Return the same where every `crew` programs share `length` steps."""
    number = n("floordiv", at, crew)
    place = n("sub", at, n("mul", number, crew))
    return n("add", n("mul", number, length), _first_step(n, place, each, extra))


@dataclass(frozen=True, slots=True)
class Walk:
    """What a program goes through, in order: `items` parts of tiles.

    The tiles from `base` on are one sequence of steps, `steps` for each, which the programs share out. Where there are
    two programs or more for each tile, equally many share it: those that do the same steps of several tiles do so at
    the same time, and find in the cache what the others fetch. So `crew` programs share `length` steps, those of a
    tile or of all: each does `each` of them, and the first `extra` ones one more.

    Args:
        numbers: builds arithmetic.
        program: the program's number.
        programs: how many there are.
        steps: steps of a tile, at least 1.
        rounds: whole tiles that each program does.
        base: the first tile of the sequence.
        length: see above.
        crew: see above.
        each: see above.
        extra: see above.
        start: the first step of the sequence that the program does.
        stop: the step before which it ends.
        top: the last tile, counted from `base`, of which it does steps.
        early: 1 if it does the first steps of that tile but not the last ones, so that it begins with them.
        items: how many parts of tiles it does.
    """

    numbers: _Numbers
    program: SSAValue
    programs: SSAValue
    steps: SSAValue
    rounds: SSAValue
    base: SSAValue
    length: SSAValue
    crew: SSAValue
    each: SSAValue
    extra: SSAValue
    start: SSAValue
    stop: SSAValue
    top: SSAValue
    early: SSAValue
    items: SSAValue

    @classmethod
    def of(
        cls,
        context: SimtContext,
        sharers: int,
        program: SSAValue,
        programs: SSAValue,
        tiles: SSAValue,
        steps: SSAValue,
    ) -> Walk:
        """Compute the numbers that determine a program's work; all are unsigned 32-bit.

        Args:
            context: the launch.
            sharers: programs for each tile that share out steps at most.
            program: the program's number.
            programs: how many there are.
            tiles: tiles of the launch.
            steps: steps of a tile.
        """
        n = _Numbers(context)
        full = n("floordiv", tiles, programs)
        even = n.test("eq", n("mul", full, programs), tiles)
        rounds = n.choose(even, full, n("sub", n("maximum", full, 1), 1))
        base = n("mul", rounds, programs)
        left = n("sub", tiles, base)
        few = n.test("lt", n("mul", left, 2), n("add", programs, 1))
        of_tile = n("minimum", n("floordiv", programs, n("maximum", left, 1)), sharers)
        crew, length = n.choose(few, of_tile, programs), n.choose(few, steps, n("mul", left, steps))
        sharing = n.choose(few, n("mul", left, of_tile), programs)
        each = n("floordiv", length, crew)
        extra = n("sub", length, n("mul", each, crew))
        place = n("minimum", program, sharing)
        after = n("minimum", n("add", program, 1), sharing)
        start, stop = (_first_step_of_crews(n, at, length, crew, each, extra) for at in (place, after))
        ends = n("floordiv", stop, steps)  # tiles whose last step is done
        partly = n.choose(n.test("eq", n("mul", ends, steps), stop), 0, 1)
        some = n.test("lt", start, stop)
        touched = n("sub", n("add", ends, partly), n("floordiv", start, steps))
        return cls(
            n,
            program,
            programs,
            steps,
            rounds,
            base,
            length,
            crew,
            each,
            extra,
            start,
            stop,
            n("sub", n("add", ends, partly), 1),
            n.choose(some, partly, 0),
            n("add", rounds, n.choose(some, touched, 0)),
        )

    def item(self, number: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue, SSAValue]:
        """Return tile, first step, step before which it ends, whether it owns the tile, and how many help it."""
        n = self.numbers
        turn = n("sub", number, self.early)  # wraps around for the very first step
        whole = n.test("lt", turn, self.rounds)
        first = n.test("lt", number, self.early)
        back = n("sub", self.top, n.choose(first, number, n("sub", number, self.rounds)))
        zero = n("mul", back, self.steps)
        tile = n.choose(whole, n("add", self.program, n("mul", turn, self.programs)), n("add", self.base, back))
        begin = n.choose(whole, 0, n("sub", n("maximum", self.start, zero), zero))
        end = n.choose(whole, self.steps, n("minimum", n("sub", self.stop, zero), self.steps))
        owner = n.test("eq", end, self.steps)
        helped = n.context.value(ElementwiseOp("and", [owner, n.test("gt", begin, 0)]))
        others = n.choose(helped, n("sub", self.program, self._program_of(zero)), 0)
        return tile, begin, end, owner, others

    def _program_of(self, step: SSAValue) -> SSAValue:
        """Return which program does a step of the sequence."""
        n = self.numbers
        number = n("floordiv", step, n("maximum", self.length, 1))
        step = n("sub", step, n("mul", number, self.length))
        larger = n("add", self.each, 1)
        cut = n("mul", self.extra, larger)
        after = n("floordiv", n("sub", step, cut), n("maximum", self.each, 1))
        place = n.choose(n.test("lt", step, cut), n("floordiv", step, larger), n("add", self.extra, after))
        return n("add", n("mul", number, self.crew), place)


OneTile = Callable[[SSAValue, Callable[[Sequence[SSAValue]], list[SSAValue]], Sequence[SSAValue]], None]
"""Lowers one tile, given its number, a role's ops and the state before it, and yields the state after it."""


def share_out(
    context: SimtContext, grid: GridOp, share: ShareOp, programs: SSAValue, count: SSAValue, one_tile: OneTile
) -> None:
    """Let the roles of a persistent launch walk parts of tiles.

    Args:
        context: the launch.
        grid: its grid.
        share: the op that says what a program does of its tile.
        programs: how many programs there are, an index.
        count: how many tiles there are, an index.
        one_tile: lowers one tile.
    """
    scalars, sharers = context.scalars, sharers_of(grid)

    def tiles(run: Callable[[Sequence[SSAValue]], list[SSAValue]], state: Sequence[SSAValue]) -> None:
        steps = scalars.binary("maximum", context.scalar(share.steps), 1)
        numbers = (context.value(ProgramIdOp()), programs, count, steps)
        walk = Walk.of(context, sharers, *(scalars.cast(x, U32) for x in numbers))
        loop = Block(arg_types=[index, *(value.type for value in state)])
        with context.into(loop):
            tile, first, last, owner, others = walk.item(scalars.cast(loop.args[0], U32))
            first, last, others = (scalars.cast(x, index) for x in (first, last, others))
            context.share = Share(first, last, owner, others)
            one_tile(scalars.cast(tile, index), run, loop.args[1:])
        bounds = (scalars.constant(0), scalars.cast(walk.items, index), scalars.constant(1))
        mark_tile_loop(context.emit(scf.ForOp(*bounds, list(state), Region(loop))))

    context.tiles = tiles


def divide(context: SimtContext, grid: GridOp, most: int) -> SSAValue:
    """Divide programs among the tiles of a launch: neighbours share one, equally many each. Return the program's tile.

    Args:
        context: the launch.
        grid: its grid.
        most: programs that share a tile at most.
    """
    n, scalars = _Numbers(context), context.scalars
    program, programs = (scalars.cast(context.value(op), U32) for op in (ProgramIdOp(), ProgramCountOp()))
    tiles = scalars.constant(1, U32)
    for extent, block in zip(grid.extents, grid.block_sizes, strict=True):
        tiles = n("mul", tiles, scalars.cast(scalars.ceildiv(context.scalar(extent), block), U32))
    count = n("floordiv", programs, tiles)
    tile = n("floordiv", program, count)
    number = n("sub", program, n("mul", tile, count))
    sharing = decisions.SHARING_PROGRAMS.of(grid) or 0
    context.part = Part(number, count, 1 if sharing else most, sharing)
    context.part_steps = decisions.PART_STEPS.of(grid) or 1
    return scalars.cast(tile, index)


def _part_of(context: SimtContext, part: Part, steps: SSAValue) -> Share:
    """Return a program's part of a loop: no more programs take part than have steps to do, the last ones.

    The first loop of a launch decides how many that are.
    """
    n, scalars = _Numbers(context), context.scalars
    steps = scalars.cast(scalars.binary("maximum", steps, 0), U32)
    if part.takes_part is None:
        least = context.part_steps
        enough = n("floordiv", steps, least) if least > 1 else steps
        count = n("maximum", n("minimum", part.count, enough), 1)
        number = n("sub", part.number, n("sub", part.count, count))  # wraps around for those that are left out
        part = context.part = Part(number, count, part.most, part.sharing, n.test("lt", number, count))
    each = n("floordiv", steps, part.count)
    extra = n("sub", steps, n("mul", each, part.count))
    after = n("add", part.number, 1)
    first, last = (_first_step(n, at, each, extra) for at in (part.number, after))
    owner = n.test("eq", after, part.count)
    others = n.choose(owner, n("sub", part.count, 1), 0)
    assert part.takes_part is not None
    first, last = (scalars.cast(n.choose(part.takes_part, at, 0), index) for at in (first, last))
    return Share(first, last, owner, scalars.cast(others, index))


@lowers(ShareOp)
def _share(context: SimtContext, op: ShareOp) -> None:
    share = context.share
    if context.part is not None:
        share = _part_of(context, context.part, context.scalar(op.steps))
    if share is None:
        context.note("stream_k", "stream_k=1 is ignored: the launch is not persistent")
        zero = context.scalars.constant(0)
        steps = context.scalars.binary("maximum", context.scalar(op.steps), 1)
        share = Share(zero, steps, context.scalars.constant(1, i1), zero)
    for result, value in zip(op.results, (share.first, share.last, share.owner, share.others), strict=True):
        context.define(result, value)


def _slot(context: SimtContext, partials: Sequence[SSAValue]) -> tuple[list[SSAValue], list[int], int]:
    """Return partial sums as fragments, where in a slot each lies, and how large a slot is."""
    fragments = [context.tile(partial, context.layout_of(partial)) for partial in partials]
    offsets: list[int] = []
    size = 0
    for fragment in fragments:
        assert isinstance(fragment.type, FragmentType)
        offsets.append(size)
        size += -(-target.slot_bytes(fragment.type) // 128) * 128
    return fragments, offsets, size


@lowers(LeaveSumsOp)
def _leave(context: SimtContext, op: LeaveSumsOp) -> None:
    part = context.part
    if context.share is None and part is None:
        return
    fragments, offsets, size = _slot(context, op.partials)
    leave = Block()
    with context.into(leave):
        workspace, program = _workspace(context, size), context.value(ProgramIdOp())
        for fragment, offset in zip(fragments, offsets, strict=True):
            context.emit(target.SlotStoreOp(fragment, workspace, program, offset, size))
        context.emit(target.FlagSetOp(workspace, program))
        context.emit(scf.YieldOp())
    takes_part = context.scalars.constant(1, i1) if part is None else part.takes_part
    assert takes_part is not None, "a loop comes before what it leaves"
    context.emit(scf.IfOp(takes_part, [], Region(leave), Region(Block([scf.YieldOp()]))))


def _workspace(context: SimtContext, slot_bytes: int) -> SSAValue:
    part = context.part
    return context.params.workspace(slot_bytes, *((0, 0) if part is None else (part.most, part.sharing)))


@infers(CollectSumsOp)
def _place(placements: Placements, op: CollectSumsOp) -> None:
    for partial, total in zip(op.partials, op.sums, strict=True):
        found = placements.of(partial)
        if found is not None:
            placements.place(total, found.layout, found.strength)


@dataclass(frozen=True, slots=True)
class _Left:
    """What the programs before the owner of a tile leave.

    Args:
        context: the launch.
        fns: combine two parts of each sum.
        offsets: where in a slot each sum lies.
        size: how large a slot is.
    """

    context: SimtContext
    fns: Sequence[str]
    offsets: Sequence[int]
    size: int

    def take_one(self, back: SSAValue) -> None:
        """Wait for the program that is so many before the owner."""
        context = self.context
        context.emit(target.FlagTakeOp(_workspace(context, self.size), self.program(back)))

    def take_all(self, others: SSAValue) -> None:
        """Wait for that many programs before the owner, as many at a time as there are threads."""
        context, scalars, wait = self.context, self.context.scalars, Block(arg_types=[index])
        threads = context.num_warps * 32
        with context.into(wait):
            rest = scalars.binary("sub", others, wait.args[0])
            count = scalars.binary("minimum", rest, threads)
            context.emit(target.FlagsTakeOp(_workspace(context, self.size), self.program(rest), count))
            context.emit(scf.YieldOp())
        zero, step = scalars.constant(0), scalars.constant(threads)
        context.emit(scf.ForOp(zero, others, step, [], Region(wait)))

    def only(self, numbers: Sequence[int]) -> _Left:
        """Return some of the sums."""
        fns, offsets = [self.fns[number] for number in numbers], [self.offsets[number] for number in numbers]
        return _Left(self.context, fns, offsets, self.size)

    def program(self, back: SSAValue) -> SSAValue:
        """Return the number of the program that is so many before the owner."""
        return self.context.scalars.binary("sub", self.context.value(ProgramIdOp()), back)

    def loop(
        self,
        sums: Sequence[SSAValue],
        count: SSAValue,
        done: SSAValue,
        width: int,
        wait: Callable[[SSAValue], None] = lambda _: None,
    ) -> Sequence[SSAValue]:
        """Combine sums with what programs have left, nearest first, and return the result.

        Args:
            sums: the owner's.
            count: iterations.
            done: how many programs before the owner are done with.
            width: programs of an iteration, whose sums are loaded at once.
            wait: waits for the program that is so many before the owner, the first of an iteration.
        """
        context, scalars = self.context, self.context.scalars
        loop = Block(arg_types=[index, *(value.type for value in sums)])
        with context.into(loop):
            start = scalars.add(done, scalars.add(scalars.mul(loop.args[0], width), 1))
            wait(start)
            context.emit(scf.YieldOp(*self._combined(loop.args[1:], start, width)))
        zero, one = scalars.constant(0), scalars.constant(1)
        return context.emit(scf.ForOp(zero, count, one, list(sums), Region(loop))).results

    def _combined(self, sums: Sequence[SSAValue], back: SSAValue, width: int) -> list[SSAValue]:
        workspace, nearest = _workspace(self.context, self.size), self.program(back)
        return [
            self.context.value(target.SlotCombineOp(fn, value, workspace, nearest, width, offset, self.size))
            for fn, value, offset in zip(self.fns, sums, self.offsets, strict=True)
        ]


def _in_groups(
    context: SimtContext, left: _Left, fragments: Sequence[SSAValue], others: SSAValue
) -> Sequence[SSAValue]:
    """Combine sums with those that have been left, several loads at a time, and return the result."""
    scalars, width = context.scalars, _width(context, fragments)
    n, number, sums, done = _Numbers(context), scalars.cast(others, U32), fragments, scalars.constant(0)
    count = n("floordiv", number, width)
    while True:
        sums = left.loop(sums, scalars.cast(count, index), done, width)
        if width == 1:
            return sums
        done = scalars.cast(n("sub", number, n("mod", number, width)), index)
        width //= 2
        count = n("mod", n("floordiv", number, width), 2)


def _width(context: SimtContext, fragments: Sequence[SSAValue]) -> int:
    """Return the programs whose sums are loaded at once, a power of two: the owner's own stay in registers."""
    words = 0
    for fragment in fragments:
        assert isinstance(fragment.type, FragmentType)
        words += fragment.type.linear.registers * max(fragment.type.dtype.bytes // 4, 1)
    few = words <= (HELD_WORDS if context.share is None else CONSUMER_WORDS)
    width = max(min(GROUP_WORDS // words, MOST_TOGETHER), FEW_TOGETHER if few else 1)
    return 1 << width.bit_length() - 1


def _copied_bits(layout: LinearLayout) -> list[tuple[str, int]]:
    """Return the bits of a lane's and a warp's number that tell no elements of a tile apart."""
    bases = {dim: layout.in_bases(dim) for dim in (LANE, WARP)}
    return [(dim, bit) for dim, vectors in bases.items() for bit, vector in enumerate(vectors) if not any(vector)]


def _told_apart(layout: LinearLayout) -> LinearLayout:
    """Return a layout with a dimension more, in front, that tells the copies of a tile apart."""
    place = {which: 1 << number for number, which in enumerate(_copied_bits(layout))}
    bases = {
        dim: [[place.get((dim, bit), 0), *vector] for bit, vector in enumerate(layout.in_bases(dim))]
        for dim in (REGISTER, LANE, WARP)
    }
    return LinearLayout.make(bases, (1 << len(place), *layout.out_sizes))


def _by_copies(context: SimtContext, left: _Left, number: int, own: SSAValue, others: SSAValue) -> SSAValue:
    """Combine a sum with those that have been left, each copy of it with other ones, and return the result.

    Args:
        context: the launch.
        left: what programs have left.
        number: of the sum.
        own: the owner's.
        others: how many programs have left one.
    """
    scalars, fn, type_ = context.scalars, left.fns[number], own.type
    assert isinstance(type_, FragmentType)
    assert context.part is not None
    layout = _told_apart(type_.linear)
    copies, words = layout.out_sizes[0], layout.registers * max(type_.dtype.bytes // 4, 1)
    width = max(min(PART_WORDS // words, context.part.most // copies), 1)
    width = 1 << width.bit_length() - 1
    start = context.splat(context.constant(_nothing(fn, type_.dtype), type_.element), layout)
    together = copies * width
    loop = Block(arg_types=[index, start.type])
    with context.into(loop):
        done = scalars.mul(loop.args[0], together)
        nearest = scalars.binary("sub", left.program(scalars.constant(1)), done)
        rest = scalars.binary("sub", others, done)
        slots = (_workspace(context, left.size), nearest, rest, width, left.offsets[number], left.size)
        context.emit(scf.YieldOp(context.value(target.SlotsCombineOp(fn, loop.args[1], *slots))))
    zero, one = scalars.constant(0), scalars.constant(1)
    times = scalars.ceildiv(others, together)
    parts = context.emit(scf.ForOp(zero, times, one, [start], Region(loop))).results[0]
    total = reduce_fragment(context, parts, layout, 0, _REDUCTIONS[fn])
    return context.value(ElementwiseOp(fn, [own, context.convert(total, type_.linear)]))


def _nothing(fn: str, dtype: DType) -> float:
    """Return what changes nothing that a function combines it with."""
    name = _REDUCTIONS[fn]
    return NEUTRAL[name] if dtype.is_float and name in NEUTRAL else identity_of(name, dtype)


@lowers(CollectSumsOp)
def _collect(context: SimtContext, op: CollectSumsOp) -> None:
    fragments, offsets, size = _slot(context, op.partials)
    sums: Sequence[SSAValue] = fragments
    others = context.scalar(op.others)
    left = _Left(context, op.combining, offsets, size)
    if context.share is not None and _width(context, fragments) == 1:
        sums = left.loop(fragments, others, context.scalars.constant(0), 1, left.take_one)
    elif context.share is not None:
        left.take_all(others)
        sums = _combined(context, left, fragments, others)
    elif context.part is not None:
        sums = _where_some(context, left, fragments, others)
    for total, value in zip(op.sums, sums, strict=True):
        context.define(total, value)


def _where_some(
    context: SimtContext, left: _Left, fragments: Sequence[SSAValue], others: SSAValue
) -> Sequence[SSAValue]:
    """Combine sums with what programs have left, where any have."""
    some = context.value(ElementwiseOp("gt", [others, context.scalars.constant(0)]))
    wait = Block()
    with context.into(wait):
        left.take_all(others)
        context.emit(scf.YieldOp(*_combined(context, left, fragments, others)))
    branches = (Region(wait), Region(Block([scf.YieldOp(*fragments)])))
    return context.emit(scf.IfOp(some, [fragment.type for fragment in fragments], *branches)).results


def _combined(context: SimtContext, left: _Left, fragments: Sequence[SSAValue], others: SSAValue) -> list[SSAValue]:
    """Combine sums with what programs have left, and return the results."""
    sums = list(fragments)
    alone = [
        number for number, fragment in enumerate(fragments) if not _has_copies(context, fragment, left.fns[number])
    ]
    if alone:
        combined = _in_groups(context, left.only(alone), [fragments[number] for number in alone], others)
        for number, total in zip(alone, combined, strict=True):
            sums[number] = total
    for number, fragment in enumerate(fragments):
        if number not in alone:
            sums[number] = _by_copies(context, left, number, fragment, others)
    return sums


def _has_copies(context: SimtContext, fragment: SSAValue, fn: str) -> bool:
    """Return whether several threads hold a sum, so that each can combine it with parts of its own."""
    assert isinstance(fragment.type, FragmentType)
    return context.part is not None and fn in _REDUCTIONS and bool(_copied_bits(fragment.type.linear))
