"""Loops of sums against a running maximum, as those of an online softmax, whose adjoint takes the last maximum instead.

Such a loop carries `m' = maximum(m, …)` and sums `c' = exp(m − m') · c + f`, where `f` is in proportion to `exp(−m')`.
After it, `c = Σ exp(m' − m_end) · f`, and that is the sum of what `f` would be with the last maximum in place of each
`m'`. So an iteration's derivative needs nothing of the others. Where what follows from the sums is the same whatever
the reference is, as `acc / l` and `m + log(l)` are (`scales.py`), nothing comes back to the maximum itself.

Source: Dao et al., "FlashAttention" (NeurIPS 2022), whose backward pass takes weights against the final sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.scf import ForOp
from xdsl.ir import Operation, SSAValue

from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.decays import Decay, decays_of
from tessera.autodiff.tiles.scales import SAME, Scale, is_factor, number_of, scale_of
from tessera.data import dataclass
from tessera.ir.effects import acts
from tessera.ir.tile.elementwise import ElementwiseOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import TileType, shape_of
from tessera.ir.walking import ops_in

Concerns = Callable[[Operation], bool]
"""Tells whether the adjoint of an access to memory does anything."""


@dataclass(frozen=True, eq=False)
class Rebase:
    """A loop whose sums can be taken against its last maximum.

    Args:
        reference: the number of the maximum among what the loop carries.
        sums: the sums.
        maximum: the op that gives the maximum after an iteration.
    """

    reference: int
    sums: tuple[Decay, ...]
    maximum: ElementwiseOp


def rebase_of(loop: ForOp, carried: Sequence[int], activity: Activity, concerns: Concerns) -> Rebase | None:
    """Return how the sums of a loop are taken against its last maximum, None where they cannot be.

    Args:
        loop: the loop.
        carried: the numbers of what it carries that something comes back to.
        activity: what moves with what.
        concerns: which stores something comes back from.
    """
    grid, end, block = loop.parent_op(), loop.body.block.last_op, loop.body.block
    assert end is not None, "a loop's body ends with its yield"
    sums = tuple(decays_of(loop, carried))
    places = {_reference(one, loop) for one in sums}
    if not isinstance(grid, GridOp) or len(places) != 1 or None in places:
        return None
    (number,) = (place for place in places if place is not None)
    numbers = {number, *(one.carried for one in sums)}
    if {*range(len(loop.iter_args))} != numbers or any(loop.iter_args[n] in activity for n in numbers):
        return None
    if any(acts(op) for op in ops_in(loop)):
        return None  # what is stored in an iteration is against the maximum of then
    held, new = block.args[number + 1], end.operands[number]
    maximum = new.owner
    if not isinstance(maximum, ElementwiseOp) or maximum.fn.data != "maximum" or held not in maximum.args:
        return None
    differences = {_difference(one.exponent)[0] for one in sums}
    if {use.operation for use in held.uses} - {maximum, *differences}:
        return None
    moved = Scale("shift", 1.0, tuple(range(_rank(new))))
    seeds: dict[SSAValue, Scale | None] = {new: moved, held: None}
    added = [_added_scale(one, seeds) for one in sums]
    spread = [_spread_scale(one, {new: moved, held: SAME}) for one in sums]
    if not all(is_factor(scale, -_rate(one)) for one, scale in zip(sums, added, strict=True)) or added != spread:
        return None
    after: dict[SSAValue, Scale | None] = {loop.results[number]: moved}
    after |= {loop.results[one.carried]: scale for one, scale in zip(sums, added, strict=True)}
    if not _is_same_behind(loop, after, concerns):
        return None
    return Rebase(number, sums, maximum)


def _rank(value: SSAValue) -> int:
    return len(shape_of(value.type)) if isinstance(value.type, TileType) else 0


def _spread_scale(one: Decay, seeds: dict[SSAValue, Scale | None]) -> Scale | None:
    """Return how the exponential by which a sum decays moves with the maximum, in the sum's shape."""
    last = one.spread[-1].results[0] if one.spread else one.power.result
    return scale_of(last, seeds)


def _difference(exponent: SSAValue) -> tuple[Operation | None, float]:
    """Return the difference that an exponent is a multiple of, and by how much."""
    op, by = exponent.owner, 1.0
    while isinstance(op, ElementwiseOp) and op.fn.data == "mul":
        number, other = next(((number_of(a), b) for a, b in (op.args, reversed(op.args)) if number_of(a)), (None, None))
        if number is None or other is None:
            return None, by
        op, by = other.owner, by * number
    return (op if isinstance(op, ElementwiseOp) and op.fn.data == "sub" else None), by


def _rate(one: Decay) -> float:
    """Return how fast a sum falls as the maximum grows."""
    return _difference(one.exponent)[1] * one.factor


def _reference(one: Decay, loop: ForOp) -> int | None:
    """Return the number of what a loop carries by whose difference, before less after, a sum decays."""
    op, end = _difference(one.exponent)[0], loop.body.block.last_op
    assert end is not None, "a loop's body ends with its yield"
    if op is None:
        return None
    before, after = op.operands
    for number, argument in enumerate(loop.body.block.args[1:]):
        if argument is before and end.operands[number] is after:
            return number
    return None


def _added_scale(one: Decay, seeds: dict[SSAValue, Scale | None]) -> Scale | None:
    """Return how what is added to a sum moves with the maximum."""
    if isinstance(one.total, MmaOp):
        left, right = (scale_of(value, seeds) for value in (one.total.a, one.total.b))
        if left is None or right is None or (left != SAME and right != SAME):
            return None
        return right if left == SAME else left
    new = next(arg for arg in one.total.args if arg is not one.product.result)
    return scale_of(new, seeds)


def _is_same_behind(loop: ForOp, seeds: dict[SSAValue, Scale | None], concerns: Concerns) -> bool:
    """Return whether all that something comes back from is the same wherever the maximum lies."""
    op = loop.next_op
    while op is not None:
        inner = [one for one in ops_in(op) if one is not op]
        if inner or op.regions:
            block = loop.parent_block()
            used = {v for one in (op, *inner) for v in one.operands if _is_of(v, block)}
        else:
            used = {*op.operands} if concerns(op) else set[SSAValue]()
        if any(scale_of(value, seeds) != SAME for value in used):
            return False
        op = op.next_op
    return True


def _is_of(value: SSAValue, block: object) -> bool:
    return isinstance(value.owner, Operation) and value.owner.parent_block() is block
