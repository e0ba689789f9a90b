"""SIMT lowering of sorting: the bitonic network, whose first steps of each merge are mirrored.

Runs of 2, 4, 8 … elements are merged. A step compares elements whose indices differ in one bit, or, in the first step
of a merge, in this bit and all lower ones: so the smaller element always goes to the lower place. Bits of an index
number registers, lanes or warps. Steps of registers are written one by one, those of lanes and of warps as loops over
the bits, and so are merges that end in the same steps: the code grows with the number of bits, not with its square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects import scf
from xdsl.ir import Block, Region, SSAValue

from tessera.data import dataclass
from tessera.ir.layouts import LANE, REGISTER, WARP, LinearLayout, partner
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.exchange import U32, KeepInOrderOp
from tessera.ir.tile.exchange import SortOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of, index
from tessera.lower.combiners import Values
from tessera.lower.simt.context import SimtContext, tile_shape
from tessera.lower.simt.exchange import exchanged_by
from tessera.lower.simt.placement import follow, infers
from tessera.lower.simt.reduce import plain_layout
from tessera.lower.simt.rules import lowers
from tessera.numerics.functions import identity_of

UNROLLED = 1024
"""Most registers times steps of a network that is written without loops: their counters cost more than its code."""
FULL = 128
"""Elements of 32 bits of a thread whose registers hold no more: loops would spill them at every turn (65 536 f32 took
1.4 times as long on an H200), so the network is written without, which takes half a minute to compile. Wider ones would
take ten times that."""

infers(SortOp)(follow)


@lowers(SortOp)
def _sort(context: SimtContext, op: SortOp) -> None:
    axis, descending = op.axis.data, op.descending is not None
    layout = plain_layout(context, op.sources[0], axis)
    last = "max" if descending else "min"  # whose identity goes to the end
    values = [
        context.fill_outside(
            context.tile(source, layout),
            tile_shape(source),
            identity_of(last, dtype_of(element_of(source.type))),
        )
        for source in op.sources
    ]
    runs = _runs(layout, axis)
    bits = sum(run.count for run in runs)
    steps = bits if op.merge is not None else bits * (bits + 1) // 2
    held = layout.registers * len(values)
    is_full = layout.registers >= FULL and len(values) == 1 and dtype_of(element_of(op.sources[0].type)).bytes <= 4
    network = _Network(context, layout, runs, descending, held * steps > UNROLLED and not is_full)
    values = network.steps_below(values, len(runs)) if op.merge is not None else network.sort(values)
    for output, value in zip(op.outputs, values, strict=True):
        context.define(output, context.convert(value, context.layout_of(output)))


@dataclass(frozen=True)
class _Run:
    """Bits of an index that follow one another and number registers, lanes or warps in the same order.

    Args:
        dim: what they number.
        first: the first one, as a bit of that number.
        count: how many there are.
    """

    dim: str
    first: int
    count: int

    def upto(self, bit: int) -> int:
        """Return the mask of the bits from the first to one of them, counted from 0."""
        return ((2 << bit) - 1) << self.first


def _runs(layout: LinearLayout, axis: int) -> list[_Run]:
    """Return the bits of an index along an axis, from the lowest."""
    found = list[_Run]()
    for bit in range((layout.out_sizes[axis] - 1).bit_length()):
        masks = dict(zip((REGISTER, LANE, WARP), partner(layout, axis, 1 << bit), strict=True))
        ((dim, mask),) = ((dim, mask) for dim, mask in masks.items() if mask)
        at = mask.bit_length() - 1
        if found and found[-1].dim == dim and found[-1].first + found[-1].count == at:
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(_Run(dim, at, 1))
    return found


@dataclass(frozen=True)
class _Network:
    """Writes the steps of a network.

    Args:
        context: the lowering.
        layout: of the fragments.
        runs: the bits of an index.
        descending: whether the largest comes first.
        loops: whether steps and merges that are alike are written as loops.
    """

    context: SimtContext
    layout: LinearLayout
    runs: Sequence[_Run]
    descending: bool
    loops: bool

    def sort(self, values: Values) -> Values:
        """Merge runs of more and more elements."""
        for number, run in enumerate(self.runs):
            if self.loops and run.count > 1 and run.dim != REGISTER:
                values = self._thread_merges(values, number)
            elif self.loops and run.count > 1 and number:
                values = self._register_merges(values, number)
            else:
                for bit in range(run.count):
                    values = self.steps_below(self._steps(self._mirrored(values, number, bit), run, bit), number)
        return values

    def steps_below(self, values: Values, number: int) -> Values:
        """Compare by each bit of the runs before one, from the highest."""
        for run in reversed(self.runs[:number]):
            if run.dim == REGISTER or run.count == 1 or not self.loops:
                values = self._steps(values, run, run.count)
            else:
                values = self._thread_steps(values, run, self.context.scalars.constant(run.count))
        return values

    def _register_merges(self, values: Values, number: int) -> Values:
        """Merge by each bit of a run of registers: each has steps of its own, then they have the same."""
        run = self.runs[number]

        def merge(values: Values, number_of_bit: SSAValue) -> Values:
            def own(bit: int, values: Values) -> Values:
                return self._steps(self._mirrored(values, number, bit), run, bit)

            return self.steps_below(self._chosen(values, number_of_bit, run.count, own), number)

        return self._loop(values, self.context.scalars.constant(run.count), merge)

    def _chosen(
        self, values: Values, chosen: SSAValue, count: int, write: Callable[[int, Values], Values], first: int = 0
    ) -> Values:
        """Write what is done for each number from `first` on, and choose one at run time."""
        if first == count - 1:
            return write(first, values)
        context, blocks = self.context, [Block(), Block()]
        is_first = context.value(ElementwiseOp("eq", [chosen, context.scalars.constant(first)]))
        with context.into(blocks[0]):
            context.emit(scf.YieldOp(*write(first, values)))
        with context.into(blocks[1]):
            context.emit(scf.YieldOp(*self._chosen(values, chosen, count, write, first + 1)))
        types = [value.type for value in values]
        return list(context.emit(scf.IfOp(is_first, types, Region(blocks[0]), Region(blocks[1]))).results)

    def _thread_merges(self, values: Values, number: int) -> Values:
        """Merge by each bit of a run of lanes or warps."""
        run, scalars = self.runs[number], self.context.scalars

        def merge(values: Values, bit: SSAValue) -> Values:
            top = scalars.binary("shl", scalars.constant(1 << run.first, U32), scalars.cast(bit, U32), U32)
            twice = scalars.binary("add", top, top, U32)
            up_to = scalars.binary("sub", twice, scalars.constant(1 << run.first, U32), U32)
            values = self._step(values, run.dim, self._mask(number), up_to, top)
            return self.steps_below(self._thread_steps(values, run, bit), number)

        return self._loop(values, scalars.constant(run.count), merge)

    def _thread_steps(self, values: Values, run: _Run, count: SSAValue) -> Values:
        """Compare by the lowest `count` bits of a run of lanes or warps, from the highest."""
        scalars = self.context.scalars
        top = scalars.binary("shl", scalars.constant(1 << run.first, U32), scalars.cast(count, U32), U32)

        def step(values: Values, number: SSAValue) -> Values:
            down = scalars.cast(scalars.add(number, 1), U32)
            mask = scalars.binary("shr", top, down, U32)
            return self._step(values, run.dim, {}, mask, mask)

        return self._loop(values, count, step)

    def _loop(self, values: Values, count: SSAValue, write: Callable[[Values, SSAValue], Values]) -> Values:
        context, scalars = self.context, self.context.scalars
        body = Block(arg_types=[index, *(value.type for value in values)])
        with context.into(body):
            context.emit(scf.YieldOp(*write(list(body.args[1:]), body.args[0])))
        zero, one = scalars.constant(0), scalars.constant(1)
        return list(context.emit(scf.ForOp(zero, count, one, values, Region(body))).results)

    # Steps whose bits are known

    def _mask(self, number: int) -> dict[str, int]:
        """Return the bits of all runs before one."""
        masks = dict[str, int]()
        for run in self.runs[:number]:
            masks[run.dim] = masks.get(run.dim, 0) | run.upto(run.count - 1)
        return masks

    def _mirrored(self, values: Values, number: int, bit: int) -> Values:
        """Compare by a bit of a run and all lower ones."""
        run, masks = self.runs[number], self._mask(number)
        masks[run.dim] = masks.get(run.dim, 0) | run.upto(bit)
        return self._known_step(values, masks, run.dim, 1 << run.first + bit)

    def _steps(self, values: Values, run: _Run, count: int) -> Values:
        """Compare by the lowest `count` bits of a run, from the highest."""
        for bit in reversed(range(count)):
            mask = 1 << run.first + bit
            values = self._known_step(values, {run.dim: mask}, run.dim, mask)
        return values

    def _known_step(self, values: Values, masks: dict[str, int], dim: str, top: int) -> Values:
        others = [exchanged_by(self.context, value, _bits(masks)) for value in values]
        threads = {REGISTER: 0, LANE: top, WARP: top * self.layout.lanes}[dim]
        return self._ordered(values, others, top if dim == REGISTER else 0, self.context.scalars.constant(threads, U32))

    def _step(self, values: Values, dim: str, masks: dict[str, int], more: SSAValue, top: SSAValue) -> Values:
        """Compare by bits of lanes or warps that are known at run time, and others; one tells which is upper."""
        lanes, warps = (more, None) if dim == LANE else (None, more)
        others = [exchanged_by(self.context, value, _bits(masks), lanes, warps) for value in values]
        if dim == WARP:
            top = self.context.scalars.binary("mul", top, self.layout.lanes, U32)
        return self._ordered(values, others, 0, top)

    def _ordered(self, own: Values, other: Values, register: int, threads: SSAValue) -> Values:
        return list(self.context.emit(KeepInOrderOp(own, other, register, threads, self.descending)).results)


def _bits(masks: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the bits of registers, lanes and warps."""
    return masks.get(REGISTER, 0), masks.get(LANE, 0), masks.get(WARP, 0)
