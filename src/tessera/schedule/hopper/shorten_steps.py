"""Gives loops of products shorter steps where roles have no room for those that are written (Hopper).

Before::

    scf.for %k = 0 to %K step 128 iter_args(%acc) {
      %keys = load %A[%k, 0] [128, 128]; %s = mma %q, %keysᵀ, 0; %p = exp %s
      yield mma %p, %keys, %acc
    }

After::

    scf.for %k = 0 to %K step 64 iter_args(%acc) {
      %keys = load %A[%k, 0] [64, 128]; %s = mma %q, %keysᵀ, 0; %p = exp %s
      yield mma %p, %keys, %acc
    }

The accumulators of all products of a step have to lie in the registers of the warps that compute, beside the sums that
the loop carries, and two stages of what it loads in shared memory. A step of half as many elements halves both, but
for the sums. It computes the same where the loop only adds up, element by element of the dimension that it goes along:
what is computed of an element depends on its own place and number alone.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of
from tessera.ir.inserter import Inserter, ceildiv
from tessera.ir.notes import Unfit, note
from tessera.ir.splitting import Dimensions, Splitter
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ElementwiseOp, RoundTf32Op, SplatOp, constant_value, is_zero
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_in
from tessera.schedule.hopper.warp_specialize import planned
from tessera.schedule.loops import only_loop
from tessera.schedule.products import has_roles
from tessera.schedule.scheduled_pass import GridPass

LEAST = 16
"""Elements of the shortest step."""
_MOVES = (SplatOp, BroadcastOp, ReshapeOp, TransposeOp)
_OUTSIDE = (ElementwiseOp, CastOp, *_MOVES)
_COMPARISONS = frozenset("lt le gt ge eq ne".split())


@dataclass(frozen=True)
class ShortenStepsPass(GridPass):
    """Shortens the steps of loops that have no roles as they are, and would have them so.

    Args:
        target: the GPU.
        knobs: what roles depend on; where they say that there are none, nothing is done.
    """

    name: ClassVar[str] = "shorten-steps"

    def rewrite(self, kernel: KernelOp, grid: GridOp) -> None:
        """Shorten the steps of a launch, by as little as is enough."""
        if not has_roles(self.target) or self.knobs.stages == 1 or self.knobs.mma_kind not in (None, "wgmma"):
            return
        if not any(isinstance(op, MmaOp) for op in ops_in(grid)) or self._is_planned(kernel, grid):
            return
        trial = grid.clone()
        Rewriter.insert_op(trial, InsertPoint.before(grid))
        new = self._shortened(kernel, trial)
        Rewriter.erase_op(trial)
        if new is not None:
            Rewriter.erase_op(grid)

    def _shortened(self, kernel: KernelOp, grid: GridOp) -> GridOp | None:
        """Return a launch with steps for which there is room, behind the given one, which may change."""
        _unshare(grid)
        try:
            steps = _Steps(kernel, grid, only_loop(grid))
        except Unfit:
            return None
        size = steps.size
        while (size := size // 2) >= LEAST:
            new = steps.shortened(size)
            Rewriter.insert_op(new, InsertPoint.after(grid))
            if self._is_planned(kernel, new):
                note(new, "terms", [f"steps of {steps.size} are computed as steps of {size}: roles have room"])
                return new
            Rewriter.erase_op(new)
        return None

    def _is_planned(self, kernel: KernelOp, grid: GridOp) -> bool:
        try:
            planned(self.target, self.knobs, kernel, grid)
        except Unfit:
            return False
        return True


def _unshare(grid: GridOp) -> None:
    """Give each reader of what costs nothing its own: tiles of one number, or of the numbers of elements."""
    for op in reversed(list(ops_in(grid))):
        if not _is_free(op):
            continue
        for use in list(op.results[0].uses)[1:]:
            copy = op.clone()
            Rewriter.insert_op(copy, InsertPoint.before(use.operation))
            use.operation.operands[use.index] = copy.results[0]


def _is_free(op: Operation) -> bool:
    while isinstance(op, ReshapeOp | BroadcastOp | CastOp) and isinstance(op.source.owner, Operation):
        op = op.source.owner
    return isinstance(op, ArangeOp | SplatOp)


class _Steps:
    """A loop whose steps can have another size.

    Args:
        kernel: the kernel.
        grid: the launch.
        loop: its loop.

    Raises:
        Unfit: they cannot.
    """

    def __init__(self, kernel: KernelOp, grid: GridOp, loop: scf.ForOp) -> None:
        self._kernel, self._grid, self._loop = kernel, grid, loop
        self._dimensions = Dimensions(grid)
        step = constant_value(loop.step)
        if not isinstance(step, int) or step < 2 * LEAST or step & (step - 1):
            raise Unfit("the loop's step is no power of two")
        shapes = [shape_of(value.type) for op in loop.body.block.ops for value in op.results]
        self._largest = max((size for shape in shapes for size in shape), default=1)
        self.size = step
        self._loads = [op for op in loop.body.block.ops if isinstance(op, LoadOp) and self._moves(op)]
        found = {self._dimensions.of(op.result, op.kept.index(self._axis(op))) for op in self._loads}
        if len(found) != 1:
            raise Unfit("the loop does not go along one dimension")
        (self._along,) = found
        if all(map(_is_plain, loop.body.block.ops)):
            raise Unfit("plans and other passes decide about sums of products")
        self._check()

    def shortened(self, size: int) -> GridOp:
        """Return the launch with steps of another size; it is not inserted."""
        loop = self._loop
        end = loop.ub
        if not self._is_end(end):  # the last step as it is written may go on behind the end
            insert = Inserter(InsertPoint.before(loop), loop)
            length = insert.binary("sub", end, loop.lb)
            steps = ceildiv(insert, length, insert.constant(self.size), insert.constant(1))
            loop.operands[1] = insert.binary("add", loop.lb, insert.binary("mul", steps, insert.constant(self.size)))
        new = Splitter(self._dimensions, {self._along: (size,)}, {loop: size}).grid_of_parts(self._grid)
        loop.operands[1] = end
        return new

    def _is_end(self, end: SSAValue) -> bool:
        """Return whether all that the loop reads ends where it does, or steps end there."""
        first, last = constant_value(self._loop.lb), constant_value(end)
        if isinstance(first, int) and isinstance(last, int) and (last - first) % self.size == 0:
            return True
        if not isinstance(end.owner, DimOp) or not all(map(self._adds_no_pads, self._loop.body.block.ops)):
            return False
        size = self._kernel.info_of(end.owner.tensor).dims[end.owner.axis.data]
        return all(self._kernel.info_of(op.tensor).dims[self._axis(op)] == size for op in self._loads)

    def _adds_no_pads(self, op: Operation) -> bool:
        """Return whether an op that sums over a step adds nothing for elements behind the end, which are read as 0."""
        if not isinstance(op, MmaOp | ReduceOp) or not self._sums_along(op):
            return True
        return isinstance(op, MmaOp) and any(map(self._is_read, (op.a, op.b)))

    def _is_read(self, value: SSAValue) -> bool:
        while isinstance(value.owner, CastOp | TransposeOp | RoundTf32Op):
            value = value.owner.operands[0]
        return value.owner in self._loads

    def _moves(self, op: LoadOp) -> bool:
        """Return whether a load moves on with the loop: by one offset, which is the counter.

        Raises:
            Unfit: it does in another way.
        """
        counter = self._loop.body.block.args[0]
        places = [axis for axis, offset in enumerate(op.offsets) if offset is counter]
        if not places and not any(self._depends(offset) for offset in op.offsets):
            return False  # `_check_op` sees whether it has elements of a step
        plain = len(places) == 1 and places[0] in op.kept and op.size_list[places[0]] == self.size
        others = [offset for axis, offset in enumerate(op.offsets) if axis not in places]
        if not plain or any(map(self._depends, others)) or op.mask is not None or op.fill is not None:
            raise Unfit("a load of the loop does not move on by what it reads")
        return True

    def _axis(self, op: LoadOp) -> int:
        return next(axis for axis, offset in enumerate(op.offsets) if offset is self._loop.body.block.args[0])

    def _depends(self, value: SSAValue) -> bool:
        """Return whether a value follows from what the loop computes."""
        owner = value.owner
        block = self._loop.body.block
        if owner is block:
            return True
        inside = isinstance(owner, Operation) and owner.parent is block
        return inside and any(map(self._depends, owner.operands))  # pyright: ignore

    def _check(self) -> None:
        """Check that what is computed of an element is its own.

        Raises:
            Unfit: the loop does more.
        """
        block, end = self._loop.body.block, self._loop.body.block.last_op
        if self._dimensions.why_whole(self._along) is not None:
            raise Unfit("an op takes all elements of a step")
        if any(self._axes_along(argument) for argument in block.args[1:]):
            raise Unfit("the loop carries elements of a step")
        for place in range(len(self._loop.iter_args)):
            self._check_sum(place)
        places: dict[SSAValue, _Place] = {block.args[0]: _Place(1, 0)}
        for op in self._grid.walk():
            if op.parent is not block and any(map(self._axes_along, op.results)):
                self._check_op(op, places)
        for op in block.ops:
            if op is end:
                continue
            if op.regions or (effect_of(op) > Effect.PURE and not isinstance(op, LoadOp)):
                raise Unfit("the loop does more than to compute tiles")
            self._check_op(op, places)

    def _axes_along(self, value: SSAValue) -> list[int]:
        axes = range(len(shape_of(value.type)) if isinstance(value.type, TileType) else 0)
        return [axis for axis in axes if self._dimensions.of(value, axis) == self._along]

    def _check_sum(self, place: int) -> None:
        """Check that a loop adds to what it carries what it has summed over the elements of a step.

        Raises:
            Unfit: it does something else.
        """
        block, end = self._loop.body.block, self._loop.body.block.last_op
        assert end is not None, "a loop's body ends with its yield"
        argument, value = block.args[1 + place], end.operands[place]
        while value is not argument:
            op = value.owner
            if value.uses.get_length() != 1:
                raise Unfit("the loop carries more than sums")
            if isinstance(op, MmaOp) and self._sums_along(op):
                value = op.acc
            elif isinstance(op, ElementwiseOp) and op.fn.data == "add" and self._is_sum(op.args[1]):
                value = op.args[0]
            elif isinstance(op, ElementwiseOp) and op.fn.data == "add" and self._is_sum(op.args[0]):
                value = op.args[1]
            else:
                raise Unfit("the loop carries more than sums")
        if argument.uses.get_length() != 1:
            raise Unfit("the loop carries more than sums")

    def _is_sum(self, value: SSAValue) -> bool:
        """Return whether a value is a sum over the elements of a step and nothing else."""
        op = value.owner
        while isinstance(op, ReshapeOp):
            op = op.source.owner
        if isinstance(op, ReduceOp):
            return op.fn.data == "sum" and self._sums_along(op)
        return isinstance(op, MmaOp) and is_zero(op.acc) and self._sums_along(op)

    def _sums_along(self, op: MmaOp | ReduceOp) -> bool:
        value, axis = (op.a, 1) if isinstance(op, MmaOp) else (op.source, op.axis.data)
        return self._dimensions.of(value, axis) == self._along

    def _check_op(self, op: Operation, places: dict[SSAValue, _Place]) -> None:
        """Check one op: sums over a step go to what the loop carries, places are used as those of elements.

        Raises:
            Unfit: they are not.
        """
        if isinstance(op, MmaOp | ReduceOp) and self._sums_along(op) and not self._is_carried(op.results[0]):
            raise Unfit("something of all elements of a step is used in it")
        if op.regions or not (op.parent is self._loop.body.block or isinstance(op, _OUTSIDE) or _is_free(op)):
            raise Unfit("elements of a step are computed before the loop")
        if isinstance(op, LoadOp):
            if op not in self._loads and self._axes_along(op.result):
                raise Unfit("the elements of each step read the same")
            return
        if isinstance(op, ArangeOp):
            if self._axes_along(op.result):
                places[op.result] = _Place(0, 1)
            return
        given = [places.get(operand, _NOWHERE) for operand in op.operands]
        if all(one == _NOWHERE for one in given):
            return
        places[op.results[0]] = _followed(op, given, self._largest)

    def _is_carried(self, value: SSAValue) -> bool:
        """Return whether a value has no use but to be added to what the loop carries."""
        block, end = self._loop.body.block, self._loop.body.block.last_op
        uses = list(value.uses)
        if len(uses) != 1:
            return False
        user = uses[0].operation
        if user is end:
            return True
        if isinstance(user, MmaOp) and user.parent is block and user.acc is value:
            return self._is_carried(user.result)
        added = isinstance(user, ElementwiseOp) and user.fn.data == "add" and user.parent is block
        return (added or isinstance(user, ReshapeOp)) and self._is_carried(user.results[0])


def _is_plain(op: Operation) -> bool:
    """Return whether an op loads, multiplies or computes no tile."""
    moves = isinstance(op, LoadOp | MmaOp | TransposeOp | CastOp | RoundTf32Op | scf.YieldOp)
    return moves or not any(isinstance(result.type, TileType) for result in op.results)


@dataclass(frozen=True, slots=True)
class _Place:
    """How often a number holds the loop's counter, and that of an element within its step.

    Args:
        counter: factor of the counter.
        element: factor of the element's number.
        bounded: whether it was kept within bounds that no difference of two elements' numbers reaches.
        spent: whether an element's number was added to that: a second one may reach them.
    """

    counter: int
    element: int
    bounded: bool = False
    spent: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is a number of the element's place, wherever steps begin."""
        return self.counter == self.element and not self.bounded


_NOWHERE = _Place(0, 0)


def _followed(op: Operation, given: list[_Place], largest: int) -> _Place:
    """Return what the result of an op holds, given what its operands do.

    Args:
        op: the op.
        given: what its operands hold.
        largest: the most elements that a tile has along a dimension.

    Raises:
        Unfit: it depends on where a step begins.
    """
    if isinstance(op, _MOVES):
        return given[0]
    if all(one.is_own for one in given):
        return _NOWHERE
    if isinstance(op, CastOp) and _keeps_integers(op):
        return given[0]
    if isinstance(op, ElementwiseOp) and len(given) == 2:
        (a, b), fn = given, op.fn.data
        pairs = zip(op.args, given, strict=True)
        is_near = not (a.bounded or b.bounded) or all(_is_count(arg) or one.bounded for arg, one in pairs)
        if fn in ("add", "sub") and is_near and not (a.spent or b.spent):
            sign, bounded = 1 if fn == "add" else -1, a.bounded or b.bounded
            return _Place(a.counter + sign * b.counter, a.element + sign * b.element, bounded, bounded)
        if fn in _COMPARISONS and is_near and a.counter - b.counter == a.element - b.element:
            return _NOWHERE
        if fn in ("maximum", "minimum") and _is_far(op, largest):
            one = a if b == _NOWHERE else b
            if one.element == 0 and _NOWHERE in given:
                return _Place(one.counter, 0, True)
    raise Unfit("the counter of the loop says more than where elements are")


def _keeps_integers(op: CastOp) -> bool:
    source, result = (dtype_of(element_of(value.type)) for value in (op.source, op.result))
    return source.is_int and result.is_int and result.bits >= 32


def _is_far(op: ElementwiseOp, largest: int) -> bool:
    """Return whether a number is kept within a bound that differences of two elements' numbers do not reach."""
    numbers = [number for arg in op.args if (number := constant_value(arg)) is not None]
    sign = 1 if op.fn.data == "minimum" else -1
    return len(numbers) == 1 and sign * numbers[0] >= 2 * largest


def _is_count(value: SSAValue) -> bool:
    """Return whether a value numbers elements, or holds a number that was kept within bounds beside such."""
    op = value.owner
    while isinstance(op, _MOVES) or (isinstance(op, CastOp) and _keeps_integers(op)):
        op = op.operands[0].owner
    return isinstance(op, ArangeOp)
