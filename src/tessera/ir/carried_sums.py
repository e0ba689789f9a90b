"""What a loop carries, where it is a sum in a wide sense: combined with new values in any grouping, and not used else.

Additions, products, maxima, minima and operations on bits qualify. Parts of such a loop can be computed apart, each
from the value that changes nothing, and be combined afterwards.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.notes import Unfit
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp
from tessera.ir.tile.stream import COMBINING
from tessera.ir.tile.types import element_of
from tessera.ir.types import dtype_of
from tessera.numerics.functions import COMBINE, identity_of
from tessera.numerics.order import is_ordered

_REDUCTIONS = {fn: name for name, fn in COMBINE.items()}
_IDEMPOTENT = ("maximum", "minimum", "and", "or")


@dataclass(frozen=True, slots=True)
class Chain:
    """How a value becomes another one.

    Args:
        fn: the function that combines it with others, None where it stays as it is.
        uses: the uses of it on the way: op and position.
    """

    fn: str | None = None
    uses: tuple[tuple[Operation, int], ...] = ()


def combining_functions(loop: scf.ForOp) -> list[str]:
    """Return the function that each value carried by a loop is combined by.

    Raises:
        Unfit: the loop carries something else.
    """
    return [combining_function(loop, place) for place in range(len(loop.iter_args))]


def combining_function(loop: scf.ForOp, place: int) -> str:
    """Return the function that one of the values carried by a loop is combined by.

    Raises:
        Unfit: it is none.
    """
    end = loop.body.block.last_op
    assert end is not None
    chain = _chain(loop.body.block.args[place + 1], end.operands[place])
    if chain is None or chain.fn is None:
        raise Unfit("the loop carries something that is not a sum, a maximum or the like")
    return chain.fn


def is_in_order(fn: str, type_: Attribute, profile: str) -> bool:
    """Return whether a profile gives the order in which a function combines scalars or tiles of a type."""
    is_float = dtype_of(element_of(type_)).is_float
    return any(is_ordered(profile, name, is_float) for name, combine in COMBINE.items() if combine == fn)


def _chain(first: SSAValue, last: SSAValue) -> Chain | None:
    """Return how an argument of a loop's body becomes what the loop carries on; None where either is used for more."""
    found = _way(first, last)
    if found is None or first is last:
        return found
    uses = {(use.operation, use.index) for use in first.uses}
    return found if uses <= set(found.uses) and last.uses.get_length() == 1 else None


def _way(first: SSAValue, last: SSAValue) -> Chain | None:
    """Return how `first` becomes `last`, where what it becomes on the way is used for nothing else."""
    if first is last:
        return Chain()
    op = last.owner
    if isinstance(op, ElementwiseOp):
        return _combined(first, op)
    if isinstance(op, MmaOp):
        return None if op.sums_in_order else _joined("add", _step(first, op, list(op.operands).index(op.acc)))
    if isinstance(op, scf.ForOp):
        return _through_loop(first, op, op.results.index(last))
    return _through_branch(first, op, op.results.index(last)) if isinstance(op, scf.IfOp) else None


def _combined(first: SSAValue, op: ElementwiseOp) -> Chain | None:
    fn = op.fn.data
    if fn == "select":
        return _chosen(first, op)
    if fn == "sub":
        return _joined("add", _step(first, op, 0))
    if fn == "fma":
        return _joined("add", _step(first, op, 2))
    if fn not in COMBINING:
        return None
    ways = [way for way in (_step(first, op, place) for place in range(2)) if way is not None]
    return _joined(fn, ways[0]) if len(ways) == 1 else None


def _step(first: SSAValue, op: Operation, place: int) -> Chain | None:
    """Return how `first` becomes an operand of an op, of which that is the only use."""
    value = op.operands[place]
    if value is not first and value.uses.get_length() > 1:
        return None
    way = _way(first, value)
    return None if way is None else Chain(way.fn, (*way.uses, (op, place)))


def _joined(fn: str, before: Chain | None) -> Chain | None:
    """Return what comes of one function after another: both are the same."""
    if before is None or before.fn not in (None, fn):
        return None
    return Chain(fn, before.uses)


def _either(one: Chain | None, other: Chain | None) -> Chain | None:
    """Return what comes of one of two ways."""
    if one is None or other is None or (one.fn and other.fn and one.fn != other.fn):
        return None
    return Chain(one.fn or other.fn, (*one.uses, *other.uses))


def _chosen(first: SSAValue, op: ElementwiseOp) -> Chain | None:
    return _either(_step(first, op, 1), _step(first, op, 2))


def _through_loop(first: SSAValue, loop: scf.ForOp, place: int) -> Chain | None:
    """Return how `first` becomes a loop's result, carried by the loop."""
    end = loop.body.block.last_op
    assert end is not None
    before = _step(first, loop, 3 + place)
    inside = _chain(loop.body.block.args[place + 1], end.operands[place])
    return None if before is None or inside is None else _either(before, Chain(inside.fn))


def _through_branch(first: SSAValue, branch: scf.IfOp, place: int) -> Chain | None:
    """Return how `first` becomes a branch's result, either way."""
    ways: list[Chain | None] = []
    for region in (branch.true_region, branch.false_region):
        end = region.block.last_op
        assert end is not None
        ways.append(_step(first, end, place))
    return _either(*ways)


def changes_nothing(fn: str, initial: SSAValue) -> bool:
    """Return whether every part of a loop may start from a value as the whole does."""
    return fn in _IDEMPOTENT or is_neutral(fn, initial)


def is_neutral(fn: str, value: SSAValue) -> bool:
    """Return whether a scalar or tile is known to change nothing that it is combined with."""
    owner = value.owner
    while isinstance(owner, SplatOp | ReshapeOp | BroadcastOp):
        owner = owner.operands[0].owner
    return isinstance(owner, ConstantOp) and owner.python_value == neutral(fn, value)


def neutral(fn: str, like: SSAValue) -> float:
    """Return what changes nothing that it is combined with."""
    dtype = dtype_of(element_of(like.type))
    if fn == "xor":
        return 0
    if fn == "and" and dtype.kind != "bool":
        return -1 if dtype.kind == "int" else (1 << dtype.bits) - 1
    return identity_of(_REDUCTIONS[fn], dtype)


def reduction_of(fn: str, type_: Attribute) -> str:
    """Return the reduction that combines the elements of tiles of a type by a function.

    Raises:
        Unfit: there is none, as for bits of integers.
    """
    if fn not in _REDUCTIONS or (fn in ("and", "or") and dtype_of(element_of(type_)).kind != "bool"):
        raise Unfit("no reduction combines bits of integers")
    return _REDUCTIONS[fn]
