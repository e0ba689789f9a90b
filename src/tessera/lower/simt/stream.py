"""SIMT lowering of launches that distribute the steps of the last tiles over their programs (stream-K).

`schedule.hopper.stream_k` explains in which order a program goes through its work, and why it cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue

from tessera.data import dataclass
from tessera.ir.target import stream as target
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.structure import ProgramIdOp
from tessera.ir.target.types import FragmentType
from tessera.ir.tile.stream import SHARERS, CollectSumsOp, LeaveSumsOp, ShareOp
from tessera.ir.types import element_type, i1, index
from tessera.lower.simt.context import Share, SimtContext
from tessera.lower.simt.order import mark_tile_loop
from tessera.lower.simt.placement import Placements, infers
from tessera.lower.simt.rules import lowers
from tessera.numerics import dtypes

U32 = element_type(dtypes.u32)


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


@dataclass(frozen=True, slots=True)
class Walk:
    """What a program goes through, in order: `items` parts of tiles.

    The tiles from `base` on are one sequence of steps, `steps` for each. Every program, or `SHARERS` for each tile
    where there are few, does `each` steps of it, and the first `extra` programs one more.

    Args:
        numbers: builds arithmetic.
        program: the program's number.
        programs: how many there are.
        steps: steps of a tile, at least 1.
        rounds: whole tiles that each program does.
        base: the first tile of the sequence.
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
    each: SSAValue
    extra: SSAValue
    start: SSAValue
    stop: SSAValue
    top: SSAValue
    early: SSAValue
    items: SSAValue

    @classmethod
    def of(cls, context: SimtContext, program: SSAValue, programs: SSAValue, tiles: SSAValue, steps: SSAValue) -> Walk:
        """Compute the numbers that determine a program's work; all are unsigned 32-bit."""
        n = _Numbers(context)
        full = n("floordiv", tiles, programs)
        even = n.test("eq", n("mul", full, programs), tiles)
        rounds = n.choose(even, full, n("sub", n("maximum", full, 1), 1))
        base = n("mul", rounds, programs)
        left = n("sub", tiles, base)
        total = n("mul", left, steps)
        sharing = n("maximum", n("minimum", programs, n("mul", left, SHARERS)), 1)
        each = n("floordiv", total, sharing)
        extra = n("sub", total, n("mul", each, sharing))
        place = n("minimum", program, sharing)
        after = n("minimum", n("add", program, 1), sharing)
        start, stop = (n("add", n("mul", at, each), n("minimum", at, extra)) for at in (place, after))
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
        larger = n("add", self.each, 1)
        cut = n("mul", self.extra, larger)
        after = n("floordiv", n("sub", step, cut), n("maximum", self.each, 1))
        return n.choose(n.test("lt", step, cut), n("floordiv", step, larger), n("add", self.extra, after))


OneTile = Callable[[SSAValue, Callable[[Sequence[SSAValue]], list[SSAValue]], Sequence[SSAValue]], None]
"""Lowers one tile, given its number, a role's ops and the state before it, and yields the state after it."""


def share_out(context: SimtContext, share: ShareOp, programs: SSAValue, count: SSAValue, one_tile: OneTile) -> None:
    """Let the roles of a persistent launch walk parts of tiles.

    Args:
        context: the launch.
        share: the op that says what a program does of its tile.
        programs: how many programs there are, an index.
        count: how many tiles there are, an index.
        one_tile: lowers one tile.
    """
    scalars = context.scalars

    def tiles(run: Callable[[Sequence[SSAValue]], list[SSAValue]], state: Sequence[SSAValue]) -> None:
        steps = scalars.binary("maximum", context.scalar(share.steps), 1)
        walk = Walk.of(context, *(scalars.cast(x, U32) for x in (context.value(ProgramIdOp()), programs, count, steps)))
        loop = Block(arg_types=[index, *(value.type for value in state)])
        with context.into(loop):
            tile, first, last, owner, others = walk.item(scalars.cast(loop.args[0], U32))
            first, last, others = (scalars.cast(x, index) for x in (first, last, others))
            context.share = Share(first, last, owner, others)
            one_tile(scalars.cast(tile, index), run, loop.args[1:])
        bounds = (scalars.constant(0), scalars.cast(walk.items, index), scalars.constant(1))
        mark_tile_loop(context.emit(scf.ForOp(*bounds, list(state), Region(loop))))

    context.tiles = tiles


@lowers(ShareOp)
def _share(context: SimtContext, op: ShareOp) -> None:
    share = context.share
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
    if context.share is None:
        return
    fragments, offsets, size = _slot(context, op.partials)
    workspace, program = context.params.workspace(size), context.value(ProgramIdOp())
    for fragment, offset in zip(fragments, offsets, strict=True):
        context.emit(target.SlotStoreOp(fragment, workspace, program, offset, size))
    context.emit(target.FlagSetOp(workspace, program))


@infers(CollectSumsOp)
def _place(placements: Placements, op: CollectSumsOp) -> None:
    for partial, total in zip(op.partials, op.sums, strict=True):
        found = placements.of(partial)
        if found is not None:
            placements.place(total, found.layout, found.strength)


@lowers(CollectSumsOp)
def _collect(context: SimtContext, op: CollectSumsOp) -> None:
    fragments, offsets, size = _slot(context, op.partials)
    sums: Sequence[SSAValue] = fragments
    if context.share is not None:
        workspace = context.params.workspace(size)
        loop = Block(arg_types=[index, *(fragment.type for fragment in fragments)])
        with context.into(loop):
            back = context.scalars.add(loop.args[0], 1)
            from_ = context.scalars.binary("sub", context.value(ProgramIdOp()), back)
            context.emit(target.FlagTakeOp(workspace, from_))
            added: list[SSAValue] = []
            for before, offset in zip(loop.args[1:], offsets, strict=True):
                left = context.value(target.SlotLoadOp(workspace, from_, offset, size, before.type))
                added.append(context.value(ElementwiseOp("add", [before, left])))
            context.emit(scf.YieldOp(*added))
        zero, one = context.scalars.constant(0), context.scalars.constant(1)
        sums = context.emit(scf.ForOp(zero, context.scalar(op.others), one, list(fragments), Region(loop))).results
    for total, value in zip(op.sums, sums, strict=True):
        context.define(total, value)
