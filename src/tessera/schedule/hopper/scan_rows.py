"""Scans long rows part by part: by the programs of a cluster, one part after the other, or both (Hopper).

A program that scans a row of 100 000 elements holds a part of it at a time, and what the parts before come to. While it
scans a part, the next one is on its way. Few rows do not keep memory busy so: programs of a cluster have a part each
at the same time. They put what their parts come to into each other's shared memory, and each of them combines what
stands before its own part.

Before::

    %x = load %X[%i, 0] [1, 100000] drop [0]
    %y = scan "sum" %x axis 0
    store %y, %Y[%i, 0] [1, 100000] drop [0]

After, with eight programs and two steps::

    %buffer = alloc_shared [8]; %rank = cluster_rank; %at = %rank * 8192; cluster_arrive
    %x = load %X[%i, %at] [1, 8192] drop [0]
    %next = load %X[%i, %at + 65536] [1, 8192] drop [0]
    %part = scan "sum" %x axis 0
    cluster_wait; cluster_put (last of %part) to %buffer; cluster_arrive; cluster_wait
    %parts = shared_load %buffer [8]
    %before = reduce "sum" (where arange < %rank, %parts, else 0); %all = reduce "sum" %parts
    store add(splat %before, %part), %Y[%i, %at] [1, 8192] drop [0]
    ... (the same of %next, with %all before it)

Applies to rows of all of a tensor's columns of which a program only scans and computes elements. What a combiner of the
kernel's own scans is not shared by programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.chunking import Chunk, without
from tessera.ir.inserter import Inserter
from tessera.ir.long_tiles import ACCESSES, STORES, Passes, Whole, is_whole, passes_over
from tessera.ir.notes import Unfit, note
from tessera.ir.tile.cluster import MOST_PROGRAMS, ClusterArriveOp, ClusterPutOp, ClusterRankOp, ClusterWaitOp
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp, ScanByOp, ScanOp
from tessera.ir.tile.shared import AllocSharedOp, SharedLoadOp
from tessera.ir.tile.structure import GridOp, KernelOp, memory_of
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.ir.walking import ops_in
from tessera.lower.simt.placement import padded
from tessera.numerics import dtypes
from tessera.schedule.hopper.share_rows import check_others, launch_for_few, longest_row, word_of
from tessera.schedule.scheduled_pass import GridPass

PART = 4096
"""Most elements of a part: 32 of each of 128 threads, and as many of the next one (running sums of f32 on an H200,
parts of a copy's rate: 29 rows of 195427 in eight programs 0.83, with parts of 8192 0.78 and of 2048 0.67; 1000 of
50257 by one program 0.82, and with parts of 8192 0.81)."""
WHOLE = 8192
"""Elements of the longest row that a program scans at once."""
SHARED = 16384
"""Elements of the longest row that a program scans alone however few there are. Longer ones are shared by programs with
a part each; those that take several steps where there are fewer rows than multiprocessors (parts of a copy's rate,
shared and alone: 66 rows of 100003 0.74 and 0.44, 132 of 65536 0.79 and 0.78, 264 of 40001 0.66 and 0.81)."""
STRAIGHT = 4
"""Steps up to which there is no loop."""
ELEMENTS_OF_WARP = 1024
LEAST_TAILED, PADDED = 2048, 0.8
"""Elements of rows from which on what is left of them behind a power of two is a part of its own, and the most that
padded parts may have of what the padded row has."""

Scan = ScanOp | ScanByOp
Values = Sequence[SSAValue]
State = dict[Operation, Values]
"""What scans have come to after some steps; without those that have nothing to start from."""


@dataclass(frozen=True)
class Plan:
    """How a row is divided.

    Args:
        programs: that have a part each at the same time.
        steps: how many parts each of them has.
        part: elements of a part, a power of two.
        tail: those of the last part of a program's own, 0 where it is as long as the others.
    """

    programs: int
    steps: int
    part: int
    tail: int = 0

    @property
    def elements(self) -> int:
        """Elements that are computed, with padding."""
        return self.programs * self.steps * self.part


@dataclass(frozen=True)
class ScanRowsPass(GridPass):
    """Scans long rows part by part.

    Args:
        target: the GPU.
        knobs: `share_rows` is how many programs share a row; `chunk` leaves rows to another pass.
    """

    name: ClassVar[str] = "scan-rows"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Divide the rows of a launch, or note why they stay whole if that was asked for."""
        tile, asked = longest_row(grid), self.knobs.share_rows
        if self.knobs.chunk is not None or tile is None or not any(isinstance(op, Scan) for op in ops_in(grid)):
            return
        try:
            passes = _passes(grid, tile)
            shared = self._shared(grid, passes)
        except (Unfit, Whole) as reason:
            if asked not in (None, 1):
                note(grid, "share_rows", [f"share_rows={asked} is ignored: {reason}"])
            return
        if shared is None:
            self._divide(grid, passes, _alone(passes))
        elif asked is not None or shared.steps == 1:
            self._divide(grid, passes, shared)
        else:
            self._divide_few(grid, passes, shared)

    def _shared(self, grid: GridOp, passes: Passes) -> Plan | None:
        """Return how programs share rows, None if they do not.

        Raises:
            Unfit: they cannot as was asked for.
        """
        asked = self.knobs.share_rows
        if asked == 1 or not self.target.has("clusters") or (asked is None and passes.size <= SHARED):
            return None
        try:
            _check_shared(grid, passes)
            return _divided(passes, asked)
        except Unfit:
            if asked is not None:
                raise
            return None

    def _divide_few(self, grid: GridOp, passes: Passes, shared: Plan) -> None:
        """Let programs share the rows of calls with few of them, which a launch decides."""
        few = launch_for_few(grid, self.target.machine.units)
        if few is not None:
            tile = longest_row(few)
            assert tile is not None
            self._divide(few, passes if few is grid else _passes(few, tile), shared)
        if few is not grid:
            many = grid if few is None else few.next_op
            assert isinstance(many, GridOp)
            self._divide(many, passes, _alone(passes))

    def _divide(self, grid: GridOp, passes: Passes, plan: Plan | None) -> None:
        """Divide the rows of a launch, if there is a plan."""
        if plan is None:
            return
        _Scanned(passes, plan).write()
        decisions.NUM_WARPS.write(grid, self.knobs.num_warps or max(plan.part // ELEMENTS_OF_WARP, 1))
        if plan.programs > 1:
            decisions.CLUSTER.write(grid, plan.programs)
        note(grid, "scan_rows", [_told(passes, plan)])


def _told(passes: Passes, plan: Plan) -> str:
    parts = f"rows of {passes.size} elements are scanned in parts of {plan.part}"
    return f"{parts}, {plan.programs} at a time" if plan.programs > 1 else parts


def _passes(grid: GridOp, tile: SSAValue) -> Passes:
    """Return what a launch computes of its rows.

    Raises:
        Unfit: it cannot be divided.
        Whole: the same.
    """
    if any(isinstance(op, MmaOp) for op in ops_in(grid)) or decisions.CLUSTER.on(grid):
        raise Unfit("the launch has products, or clusters already")
    passes = passes_over(tile, shape_of(tile.type).index(max(shape_of(tile.type))))
    scans = [op for op in passes.ops if passes.scanned(op)]
    if passes.block is not grid.body.block or not scans:
        raise Unfit("branches or loops use it, or nothing is scanned")
    if len(passes.loops) > 1 or any(map(passes.reduced, passes.ops)):
        raise Unfit("rows are reduced as well")
    if any(isinstance(op, ScanByOp) and op.reverse is not None for op in scans):
        raise Unfit("a combiner scans from the end")
    stored = set[SSAValue]()
    for op in passes.ops:
        if not isinstance(op, ACCESSES):
            continue
        if not is_whole(op, passes):
            raise Unfit("accesses are of other elements than whole rows")
        if isinstance(op, LoadOp) and (op.mask is not None or memory_of(op.tensor) in stored):
            raise Unfit("what is loaded depends on elements, or was stored before")
        if isinstance(op, STORES):
            stored.add(memory_of(op.tensor))
    return passes


def _registers(passes: Passes) -> int:
    """Return how many registers an element of all tiles takes that are scanned together, a power of two."""
    scanned = [op.operands for op in passes.ops if passes.scanned(op)]
    each = max(sum(max(dtype_of(element_of(v.type)).bytes // 4, 1) for v in values) for values in scanned)
    return 1 << (each - 1).bit_length()


def _check_shared(grid: GridOp, passes: Passes) -> None:
    """Check that programs can share rows.

    Raises:
        Unfit: they cannot.
    """
    for op in passes.ops:
        if passes.scanned(op) and (isinstance(op, ScanByOp) or dtype_of(element_of(op.source.type)) is dtypes.boolean):
            raise Unfit("programs do not tell each other what a combiner, or one of truth values, comes to")
    check_others(grid, passes)


def _alone(passes: Passes) -> Plan | None:
    """Return how a program scans a row alone; None if it does at once."""
    if passes.size <= WHOLE // _registers(passes):
        return _tailed(passes)
    part = PART // _registers(passes)
    return Plan(1, -(-passes.size // part), part)


def _tailed(passes: Passes) -> Plan | None:
    """Return a plan of two parts with less padding than the row has as a whole; None if there is none."""
    whole = padded(passes.size)
    tail = padded(max(passes.size - whole // 2, 1))
    few = passes.size <= LEAST_TAILED or passes.size == whole
    return None if few or whole // 2 + tail > PADDED * whole else Plan(1, 2, whole // 2, tail)


def _divided(passes: Passes, asked: int | None) -> Plan:
    """Return how programs share a row: of what is asked for, or of as many as one step takes, the least padding."""
    most = PART // _registers(passes)
    one_step = range(-(-passes.size // most), MOST_PROGRAMS + 1)
    found = list[Plan]()
    for count in (asked,) if asked is not None else one_step or (MOST_PROGRAMS,):
        steps = -(-passes.size // (count * most))
        if steps > STRAIGHT:
            steps += steps % 2  # a loop does two at a time
        found.append(Plan(count, steps, padded(-(-passes.size // (count * steps)))))
    return min(found, key=lambda plan: (plan.elements, -plan.programs))


class _Scanned:
    """Rows being divided.

    Args:
        passes: what is computed of them.
        plan: how they are divided.
    """

    def __init__(self, passes: Passes, plan: Plan) -> None:
        self.passes, self.plan = passes, plan
        self.scans: list[Scan] = [op for op in passes.ops if passes.scanned(op)]
        self.loads = [op for op in passes.ops if isinstance(op, LoadOp)]
        self.reverse = self.scans[0].reverse is not None
        self.like = passes.ops[-1]
        self.rank: SSAValue | None = None
        self.buffers: dict[tuple[Operation, int], SSAValue] = {}
        self.runs = False

    def write(self) -> None:
        """Rewrite the block."""
        start = Inserter(InsertPoint.after(self.like), self.like)
        if self.plan.programs > 1:
            self._meet(start)
        state, steps = self._start(start), self.plan.steps
        part = self._loaded(self._chunk(start, 0))
        if steps <= STRAIGHT:
            self._straight(start, steps, part, state)
        else:
            first = 0
            if len(state) < len(self.scans):  # what a combiner comes to has nothing to start from
                after = self._loaded(self._chunk(start, 1))
                state, part, first = self._computed(part, 0, state), after, 1
            self._loop(start, first, part, state)
        for op in reversed(self.passes.ops):
            Rewriter.erase_op(op)

    def _meet(self, start: Inserter) -> None:
        """Number the programs, and give them buffers for what their parts come to: of this step, and of the next."""
        self.rank = start.value(ClusterRankOp())
        for op in self.scans:
            word = word_of(element_of(op.operands[0].type))
            for turn in range(min(self.plan.steps, 2)):
                self.buffers[op, turn] = start.value(AllocSharedOp([self.plan.programs], word))
        start.add(ClusterArriveOp())

    def _start(self, start: Inserter) -> State:
        """Return what changes nothing, for scans that have such an element."""
        chunk, found = Chunk(self.passes, start.point, start.constant(0), 1), State()
        for op in self.scans:
            shape = without(shape_of(op.operands[0].type), op.axis.data) if self.plan.programs == 1 else []
            if neutral := chunk.neutral(op):
                found[op] = [chunk.full(value, shape) for value in neutral]
        return found

    def _straight(self, start: Inserter, steps: int, part: Chunk, state: State) -> None:
        """Write steps one after the other, each behind the loads of the next one."""
        for step in range(1, steps + 1):
            after = self._loaded(self._chunk(start, step)) if step < steps else part
            state, part = self._computed(part, step - 1, state), after

    def _loop(self, start: Inserter, first: int, part: Chunk, state: State) -> None:
        """Write a loop over the steps from one on."""
        turns = 2 if self.plan.programs > 1 else 1
        bounds = [start.constant(value) for value in (first, self.plan.steps, turns)]
        tiles = self._tiles(part)
        self._await_all(start)
        carried = [*(value for values in state.values() for value in values), *tiles]
        body = Block(arg_types=[index, *(value.type for value in carried)])
        start.add(scf.ForOp(bounds[0], bounds[1], bounds[2], carried, Region(body)))
        inner, number = Inserter(InsertPoint.at_end(body), self.like), body.args[0]
        state, tiles = _like(state, body.args[1:]), body.args[len(carried) - len(tiles) + 1 :]
        for turn in range(turns):
            at = inner.binary("add", number, inner.constant(turn)) if turn else number
            part = Chunk(self.passes, inner.point, self._place(inner, at), self.plan.part)
            part.values.update(zip((op.result for op in self.loads), tiles, strict=True))
            place = self._place(inner, inner.binary("add", at, inner.constant(1)), inside=True)
            after = self._loaded(Chunk(self.passes, inner.point, place, self.plan.part))
            state, tiles = self._computed(part, turn, state), self._tiles(after)
        inner.add(scf.YieldOp(*(value for values in state.values() for value in values), *tiles))

    def _chunk(self, insert: Inserter, step: int) -> Chunk:
        """Return a program's part of a step."""
        last = step == (0 if self.reverse else self.plan.steps - 1)
        at = self._place(insert, insert.constant(step))
        return Chunk(self.passes, insert.point, at, self.plan.tail if last and self.plan.tail else self.plan.part)

    def _place(self, insert: Inserter, step: SSAValue, *, inside: bool = False) -> SSAValue:
        """Return where a program's part of a step begins.

        Args:
            insert: adds the ops.
            step: its number.
            inside: whether the step may be one past the last: it begins at or behind the end then, or with the row.
        """
        number = step
        if self.rank is not None:
            number = insert.binary("add", insert.binary("mul", step, insert.constant(self.plan.programs)), self.rank)
        if self.reverse:
            number = insert.binary("sub", insert.constant(self.plan.programs * self.plan.steps - 1), number)
            number = insert.binary("maximum", number, insert.constant(0)) if inside else number
        return insert.binary("mul", number, insert.constant(self.plan.part))

    def _loaded(self, part: Chunk) -> Chunk:
        """Load a part of all rows."""
        for op in self.loads:
            part.write(op)
        return part

    def _tiles(self, part: Chunk) -> list[SSAValue]:
        return [part.of(op.result) for op in self.loads]

    def _computed(self, chunk: Chunk, step: int, state: State) -> State:
        """Compute a part; return what the scans have come to with it, and the other programs' parts of the step."""
        new = State()
        for op in self.passes.ops:
            if self.passes.scanned(op):
                if self.reverse:  # what lies past the end comes first
                    chunk.values.update(zip(op.operands, chunk.inside(op), strict=True))
                new[op] = (
                    self._shared(chunk, op, step % 2, state[op]) if self.rank else chunk.scanned(op, state.get(op))
                )
            elif not isinstance(op, LoadOp):
                chunk.write(op)
        return new

    def _shared(self, chunk: Chunk, op: Scan, turn: int, before: Values) -> Values:
        """Scan the part of a program, and combine what stands before it in those of others."""
        assert isinstance(op, ScanOp), "combiners are not shared"
        (end,) = chunk.scanned(op, None)
        insert, buffer = Inserter(chunk.point, op), self.buffers[op, turn]
        self._await_all(insert)
        while isinstance(end.type, TileType):
            end = insert.value(ReduceOp(end, 0, op.fn.data))
        element, word = end.type, word_of(end.type)
        insert.add(ClusterPutOp(end if word == element else insert.value(CastOp(end, word)), buffer))
        insert.add(ClusterArriveOp())
        insert.add(ClusterWaitOp())
        parts = insert.value(SharedLoadOp(buffer))
        if word != element:
            parts = insert.value(CastOp(parts, element))
        (result,) = chunk.combine(op, [self._before(chunk, op, parts, before)], [chunk.of(op.result)])
        chunk.values[op.result] = result
        return chunk.combine(op, before, [insert.value(ReduceOp(parts, 0, op.fn.data))])

    def _await_all(self, insert: Inserter) -> None:
        """Wait until all programs of the cluster run, before the first one puts something there."""
        if self.rank is not None and not self.runs:
            insert.add(ClusterWaitOp())
            self.runs = True

    def _before(self, chunk: Chunk, op: ScanOp, parts: SSAValue, before: Values) -> SSAValue:
        """Return what comes before each element of a part: the steps before, and the parts of other programs."""
        insert, i32, size = Inserter(chunk.point, op), element_type(dtypes.i32), [self.plan.programs]
        assert self.rank is not None
        rank = insert.value(SplatOp(insert.value(CastOp(self.rank, i32)), size))
        earlier = insert.value(ElementwiseOp("lt", [insert.value(ArangeOp(size[0], i32)), rank]))
        (neutral,) = chunk.neutral(op)
        others = insert.value(ElementwiseOp("select", [earlier, parts, insert.value(SplatOp(neutral, size))]))
        (total,) = chunk.combine(op, before, [insert.value(ReduceOp(others, 0, op.fn.data))])
        return insert.value(SplatOp(total, shape_of(chunk.of(op.result).type)))


def _like(state: State, values: Values) -> State:
    """Give each scan its part of the carried values."""
    left = iter(values)
    return {op: list(islice(left, len(old))) for op, old in state.items()}
