"""Computes a program's values again and then goes back over its ops, through loops and branches too.

What a loop carries is needed at each of its iterations, the last one first. Where the number of iterations has a bound
that is known before a launch, the loop that computes forwards keeps what it carries in memory of the program's own;
else the values at an iteration are computed again from the first one on. A value that no derivative asks for is not
kept: sums, of which the accumulator of a product is one, need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from xdsl.dialects.scf import ForOp, IfOp, WhileOp, YieldOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter
from xdsl.traits import IsTerminator

from tessera.autodiff.tiles.accesses import Load
from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.decays import Decay, decays_of
from tessera.autodiff.tiles.emitter import Emitter, cotangent_type
from tessera.autodiff.tiles.errors import Asked
from tessera.autodiff.tiles.memory import Memory
from tessera.autodiff.tiles.rebase import Rebase, rebase_of
from tessera.autodiff.tiles.rules import Pull, pull_back, scaled
from tessera.canonicalize.dead_code import remove_dead
from tessera.data import dataclass
from tessera.ir.effects import acts
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp
from tessera.ir.tile.types import TensorType
from tessera.ir.traits import has_trait
from tessera.ir.types import index
from tessera.ir.walking import ops_in

Keep = Callable[[ForOp, ForOp, Sequence[int], SSAValue], "Sequence[SSAValue] | None"]
"""Makes a loop keep some of what it carries (the kernel's loop, the one that computes forwards, their numbers, the
number of an iteration); returns them at that iteration, None where the loop has no bound."""


@dataclass(eq=False)
class _Running:
    """A carried sum that decays, in one iteration of an adjoint.

    Args:
        decay: which it is.
        cotangent: what comes back to the sum behind it.
        rest: the product of the exponentials of later iterations, and of this one too once that is known.
        d: `D` behind the iteration, and before it once that is known.
        left: what comes back to the left operand of the product that is added, where it is one.
    """

    decay: Decay
    cotangent: SSAValue
    rest: SSAValue
    d: SSAValue
    left: SSAValue | None = None


class Sweep:
    """One region of a program: its values, and what comes back to them.

    Args:
        emit: writes ops.
        activity: which values anything comes back to.
        memory: what accesses do.
        asked: what is differentiated, for messages.
        keep: keeps what loops carry.
        values: what stands for the values of the kernel from outside.
    """

    def __init__(
        self,
        emit: Emitter,
        activity: Activity,
        memory: Memory,
        asked: Asked,
        keep: Keep,
        values: dict[SSAValue, SSAValue],
    ) -> None:
        self._emit, self._activity, self._memory, self._asked, self._keep = emit, activity, memory, asked, keep
        self.values = dict(values)
        self.back: dict[SSAValue, SSAValue] = {}
        self._loops: dict[ForOp, ForOp] = {}
        self._decays: dict[Operation, _Running] = {}
        self._given: dict[Operation, SSAValue] = {}
        """Ops to whose operands nothing comes back, with what stands for their results."""
        self._pull = Pull(emit, self.values.__getitem__, activity.__contains__, asked)

    def _inside(self) -> Sweep:
        return Sweep(self._emit, self._activity, self._memory, self._asked, self._keep, self.values)

    def _give(self, value: SSAValue, part: SSAValue | None) -> None:
        """Add to what comes back to a value."""
        if part is not None and value in self._activity:
            held = self.back.get(value)
            self.back[value] = part if held is None else self._emit.binary("add", held, part)

    # Forwards

    def forward(self, ops: Iterable[Operation]) -> None:
        """Compute the results of ops again; what they do besides is left out."""
        for op in ops:
            self._emit.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
            if op in self._given:
                self.values[op.results[0]] = self._given[op]
            elif acts(op) and not has_trait(op, IsTerminator):
                if any(result.uses for result in op.results):
                    raise self._asked.refused(op, f"what {_name(op)} gives")
            else:
                self._again(op)

    def _again(self, op: Operation) -> None:
        regions = [Region([self._block(block) for block in region.blocks]) for region in op.regions]
        copy = op.create(
            operands=[self.values[operand] for operand in op.operands],
            result_types=[result.type for result in op.results],
            properties=op.properties,
            attributes=op.attributes,
            regions=regions,
        )
        self._emit.add(copy)
        self.values.update(zip(op.results, copy.results, strict=True))
        if isinstance(op, ForOp) and isinstance(copy, ForOp):
            self._loops[op] = copy

    def _block(self, block: Block) -> Block:
        copy = Block(arg_types=block.arg_types)
        self.values.update(zip(block.args, copy.args, strict=True))
        with self._emit.into(copy):
            self.forward(block.ops)
        return copy

    # Backwards

    def backward(self, ops: Iterable[Operation]) -> None:
        """Go back over ops, from the last to the first."""
        for op in reversed(list(ops)):
            self._emit.location = op.location  # pyright: ignore[reportAttributeAccessIssue]
            match op:
                case StoreOp() | ScatterOp() | AtomicOp():
                    if self._memory.concerns(op) and op.value is not None:
                        self._give(op.value, self._memory.stored(op, self.values))
                case LoadOp() | GatherOp():
                    self._load(op)
                case ForOp():
                    if self._is_moved(op):
                        self._loop(op)
                case IfOp():
                    if self._is_moved(op):
                        self._branch(op)
                case _:
                    self._op(op)

    def _is_moved(self, op: Operation) -> bool:
        """Return whether anything comes back to what is in an op."""
        return any(
            self._memory.concerns(one) or any(result in self._activity for result in one.results) for one in ops_in(op)
        )

    def _load(self, op: Load) -> None:
        part = self.back.pop(op.result, None)
        if part is None:
            return
        if op.fill is not None and op.fill in self._activity:
            raise self._asked.refused(op, "the fill value of a load")
        if self._memory.concerns(op):
            self._memory.loaded(op, self.values, part)

    def _op(self, op: Operation) -> None:
        if op.regions and self._is_moved(op):
            raise self._asked.refused(op, "a while loop" if isinstance(op, WhileOp) else _name(op))
        parts = [self.back.pop(result, None) for result in op.results]
        found = [part for part in parts if part is not None]
        if not found:
            return
        if op in self._given:
            return
        if len(op.results) != 1:
            raise self._asked.refused(op, _name(op))
        if op in self._decays:
            self._decaying(self._decays[op])
            return
        given = list(pull_back(op, self._pull, found[0]))
        for operand, part in zip(op.operands, given, strict=True):
            self._give(operand, part)
        for running in self._decays.values():
            if running.decay.total is op:
                running.left = given[0]

    def _decaying(self, running: _Running) -> None:
        """Go back over the product of an exponential and a carried sum, which is not known."""
        emit, decay = self._emit, running.decay
        running.rest = emit.binary("mul", running.rest, emit.widened(self.values[decay.power.result]))
        running.d = decay.before(emit, running.d, running.cotangent, running.left, self.values)
        self._give(decay.exponent, scaled(emit, running.d, decay.factor))

    def _from_outside(self, op: Operation) -> list[SSAValue]:
        """Return the values from outside of an op that something may come back to from its regions."""
        blocks = {block for one in ops_in(op) for region in one.regions for block in region.blocks}
        inner = {op, *ops_in(op)}
        used = {v: None for one in inner if one is not op for v in one.operands if v in self._activity}
        outer = [v for v in used if v.owner not in blocks and v.owner not in inner]
        return [v for v in outer if not isinstance(v.type, TensorType)]

    def _branch(self, op: IfOp) -> None:
        outside, ends = self._from_outside(op), [self.back.pop(result, None) for result in op.results]
        made: list[tuple[Block, Sweep]] = []
        for region in op.regions:
            inside, block = self._inside(), Block()
            with self._emit.into(block):
                if region.blocks:
                    inside._through(region.block, ends)
            made.append((block, inside))
        given = [value for value in outside if any(value in inside.back for _, inside in made)]
        types = [cotangent_type(value.type) for value in given]
        for block, inside in made:
            with self._emit.into(block):
                parts = [inside.back.get(v) or self._emit.zero(t) for v, t in zip(given, types, strict=True)]
                self._emit.add(YieldOp(*parts))
            remove_dead(block)
        then, other = (Region(block) for block, _ in made)
        branch = self._emit.add(IfOp(self.values[op.cond], types, then, other))
        for value, part in zip(given, branch.results, strict=True):
            self._give(value, part)

    def _through(self, block: Block, ends: Sequence[SSAValue | None]) -> None:
        """Compute a block again and go back over it, from what comes back to what it gives."""
        last = block.last_op
        assert isinstance(last, YieldOp), "regions end with what they give"
        ops = [op for op in block.ops if op is not last]
        for value, part in zip(last.operands, ends, strict=True):
            self._give(value, part)
        self.forward(ops)
        self.backward(ops)

    def _loop(self, op: ForOp) -> None:
        """Emit a loop from the last iteration to the first.

        It carries what comes back to what the kernel's loop carries, to values from outside, and `D` of sums that
        decay, in this order.
        """
        emit, args, location = self._emit, op.body.block.args[1:], self._emit.location
        carried = [n for n, arg in enumerate(args) if arg in self._activity or op.results[n] in self._activity]
        rebase = rebase_of(op, carried, self._activity, self._memory.concerns)
        if rebase is not None:
            self._rebased(op, rebase)
            return
        outside = self._from_outside(op)
        ends = [self.back.pop(result, None) for result in op.results]
        count = self._count(*(self.values[value] for value in (op.lb, op.ub, op.step)))
        types = [cotangent_type(value.type) for value in [*[args[n] for n in carried], *outside]]
        starts = [*[ends[n] for n in carried], *[None] * len(outside)]
        initial = [start or emit.zero(type_) for start, type_ in zip(starts, types, strict=True)]
        decays = [one for one in decays_of(op, carried) if one.exponent in self._activity]
        finals = {one: initial[carried.index(one.carried)] for one in decays}
        for one, final in finals.items():  # what comes back to the sum is that at the end times a product
            initial[carried.index(one.carried)] = emit.full(1.0, cotangent_type(one.exponent.type))
            initial.append(one.at_end(emit, final, self.values[op.results[one.carried]]))

        block = Block(arg_types=[index, *[value.type for value in initial]])
        held = Block(arg_types=[arg.type for arg in args])
        with emit.into(block):
            nexts = self._iterated(op, block, held, count, carried, outside, finals)
            emit.location = location
            kept = _constant_ones(block, nexts, initial)
            emit.add(YieldOp(*[nexts[at] for at in kept]))
        remove_dead(block)
        self._fill_in(op, block, held, count)
        loop = emit.add(ForOp(emit.index(0), count, emit.index(1), [initial[at] for at in kept], Region(block)))
        results = list(initial)
        for at, result in zip(kept, loop.results, strict=True):
            results[at] = result
        for one, final in finals.items():
            at = carried.index(one.carried)
            results[at] = emit.binary("mul", final, one.spread_out(emit, results[at]))
        for at, n in enumerate(carried):
            self._give(op.iter_args[n], results[at])
        for at, value in enumerate(outside, len(carried)):
            if at in kept:
                self._give(value, results[at])

    def _rebased(self, op: ForOp, rebase: Rebase) -> None:
        """Emit the adjoint of a loop of sums against a maximum, by the last one: iterations in their own order."""
        emit, body, number = self._emit, op.body.block, rebase.reference
        outside = self._from_outside(op)
        ends = {n: self.back.pop(result, None) for n, result in enumerate(op.results)}
        ends[number] = None  # in all, nothing comes back to the maximum
        emit.near.update(end for end in ends.values() if end is not None)
        last = self._finite(self.values[op.results[number]])
        initial = [emit.zero(cotangent_type(value.type)) for value in outside]
        block = Block(arg_types=[index, *[value.type for value in initial]])
        held = Block(arg_types=[arg.type for arg in body.args[1:]])
        with emit.into(block):
            inside = self._inside()
            inside.values.update(zip(body.args, [block.args[0], *held.args], strict=True))
            inside.values[body.args[number + 1]] = last
            inside._given[rebase.maximum] = last
            for one in rebase.sums:
                inside._given[one.product] = emit.zero(one.product.result.type)
            inside._through(body, [ends[n] for n in range(len(body.args) - 1)])
            pairs = list(zip(block.args[1:], outside, strict=True))
            parts = [(total, inside.back.get(value)) for total, value in pairs]
            emit.add(YieldOp(*[total if part is None else emit.binary("add", total, part) for total, part in parts]))
        remove_dead(block)
        first, after, step = (self.values[value] for value in (op.lb, op.ub, op.step))
        loop = emit.add(ForOp(first, after, step, initial, Region(block)))
        for value, total in zip(outside, loop.results, strict=True):
            self._give(value, total)

    def _finite(self, maximum: SSAValue) -> SSAValue:
        """Return a maximum, and zero in place of that of nothing: a difference of infinities is no number."""
        emit = self._emit
        nothing = emit.binary("eq", maximum, emit.full(-inf, maximum.type))
        last = emit.value(ElementwiseOp("select", [nothing, emit.zero(maximum.type), maximum]))
        emit.near.add(last)
        return last

    def _iterated(
        self,
        op: ForOp,
        block: Block,
        held: Block,
        count: SSAValue,
        carried: Sequence[int],
        outside: Sequence[SSAValue],
        finals: Mapping[Decay, SSAValue],
    ) -> list[SSAValue]:
        """Emit one iteration of a loop's adjoint, and return what it hands on."""
        emit, body, inside = self._emit, op.body.block, self._inside()
        place = self._iteration(op, count, block)[1]
        inside.values.update(zip(body.args, [place, *held.args], strict=True))
        into: dict[int, SSAValue] = dict(zip(carried, block.args[1:], strict=False))
        decays = list(zip(finals.items(), block.args[len(block.args) - len(finals) :], strict=True))
        for (one, final), d in decays:
            rest = into[one.carried]
            into[one.carried] = emit.binary("mul", final, one.spread_out(emit, rest))
            inside._decays[one.product] = _Running(one, into[one.carried], rest, d)
        inside._through(body, [into.get(n) for n in range(len(body.args) - 1)])
        rests = {running.decay.carried: running.rest for running in inside._decays.values()}
        nexts: list[SSAValue] = []
        for n in carried:
            argument = body.args[n + 1]
            nexts.append(rests.get(n) or inside.back.get(argument) or emit.zero(cotangent_type(argument.type)))
        for value, argument in zip(outside, block.args[1 + len(carried) :], strict=False):
            part = inside.back.get(value)
            nexts.append(argument if part is None else emit.binary("add", argument, part))
        return [*nexts, *(running.d for running in inside._decays.values())]

    def _count(self, first: SSAValue, after: SSAValue, step: SSAValue) -> SSAValue:
        """Return the number of a loop's iterations, or less than 0; a step that is not positive gives none."""
        emit, length = self._emit, self._emit.binary("sub", after, first)
        if constant_value(step) is not None:
            return emit.ceildiv(length, step)
        one, zero = emit.index(1), emit.index(0)
        count = emit.ceildiv(length, emit.binary("maximum", step, one))
        return emit.value(ElementwiseOp("select", [emit.binary("ge", step, one), count, zero]))

    def _iteration(self, op: ForOp, count: SSAValue, block: Block) -> tuple[SSAValue, SSAValue]:
        """Return the number of a loop's iteration and its counter, in the body of the loop that goes backwards."""
        emit = self._emit
        number = emit.binary("sub", emit.binary("sub", count, block.args[0]), emit.index(1))
        return number, emit.binary("add", self.values[op.lb], emit.binary("mul", number, self.values[op.step]))

    def _fill_in(self, op: ForOp, block: Block, held: Block, count: SSAValue) -> None:
        """Give the values that a loop carries at an iteration to those who need them in its adjoint."""
        needed = [n for n, value in enumerate(held.args) if value.uses]
        if not needed:
            return
        ahead = Block()
        with self._emit.into(ahead):
            number, place = self._iteration(op, count, block)
            found = self._keep(op, self._loops[op], needed, number)
            if found is None:
                replay = self._replay(op, place)
                found = [replay.results[n] for n in needed]
        for made in reversed(list(ahead.ops)):
            made.detach()
            Rewriter.insert_op(made, InsertPoint.at_start(block))
        for n, value in zip(needed, found, strict=True):
            held.args[n].replace_all_uses_with(value)

    def _replay(self, op: ForOp, place: SSAValue) -> Operation:
        """Emit a loop up to an iteration."""
        body = self._inside()._block(op.body.block)
        start = [self.values[value] for value in op.iter_args]
        return self._emit.add(ForOp(self.values[op.lb], place, self.values[op.step], start, Region(body)))


def _constant_ones(block: Block, nexts: list[SSAValue], initial: Sequence[SSAValue]) -> list[int]:
    """Take what a loop hands on as it is out of what it carries; return the numbers of the rest."""
    kept: list[int] = []
    for at in reversed(range(len(nexts))):
        argument = block.args[at + 1]
        if nexts[at] is argument:
            argument.replace_all_uses_with(initial[at])
            nexts[at] = initial[at]
            block.erase_arg(argument)
        else:
            kept.insert(0, at)
    return kept


def _name(op: Operation) -> str:
    if isinstance(op, AtomicOp):
        return f"atomic_{op.fn.data}"
    return op.name.rpartition(".")[2]
