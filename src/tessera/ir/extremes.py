"""Which combiners find the place of the largest or smallest element.

Such a combiner takes an element with its place, `(a, i)`, and another one, `(b, j)`, and gives the larger with its
place; of equal ones the first, and NaN before any number. Whatever it is written as, all that it does is to compare
`a` with `b` and `i` with `j`: what it does in each case of these comparisons says what it is. It has neutral elements
then, and may be done as two reductions: of the elements, and of the places of those that are equal to the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import isnan, nan
from typing import Literal

from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.reduce import CombinedOp, ReduceByOp
from tessera.ir.types import dtype_of, i1
from tessera.numerics.functions import identity_of

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_LOGIC = ("and", "or", "xor", "not")
_VALUES = ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (nan, 0.0), (0.0, nan), (nan, nan))
"""Elements that compare in every way."""
_PLACES = ((0, 1), (1, 0), (0, 0))


@dataclass(frozen=True, slots=True)
class Extreme:
    """What a combiner of elements and places finds.

    Args:
        fn: `max` or `min`, the reduction of the elements.
        neutral: an element and a place that change nothing.
    """

    fn: Literal["max", "min"]
    neutral: tuple[float, float]


def extreme_of(op: ReduceByOp) -> Extreme | None:
    """Return what a reduction finds the first of, None where it is something else."""
    block = op.combiner.block
    if len(block.args) != 4:
        return None
    value, place = dtype_of(block.args[0].type), dtype_of(block.args[1].type)
    if value.kind == "bool" or not place.is_int or min(value.bits, place.bits) < 32:
        return None
    cases = [(left, right) for left, right in _cases() if value.is_float or not isnan(left[0] + right[0])]
    chosen = [_chosen(block, *case) for case in cases]
    for fn in ("max", "min"):
        if chosen == [_first(fn, *case) for case in cases]:
            return Extreme(fn, (identity_of(fn, value), identity_of("min", place)))
    return None


def lacks_neutral(op: Operation) -> bool:
    """Return whether an op is a reduction of which no elements are known that change nothing."""
    return isinstance(op, ReduceByOp) and extreme_of(op) is None


_Element = tuple[float, int]


def _cases() -> Iterator[tuple[_Element, _Element]]:
    """Yield pairs of elements with their places that compare in every way, but those that are equal in both."""
    for (a, b), (i, j) in product(_VALUES, _PLACES):
        alike = a == b or (isnan(a) and isnan(b))
        if not alike or i != j:
            yield (a, i), (b, j)


def _first(fn: str, left: _Element, right: _Element) -> int:
    """Return which of two elements comes first: 0 or 1."""
    (a, i), (b, j) = left, right
    if isnan(a) or isnan(b):
        return int(isnan(b) and (not isnan(a) or j < i))
    if a == b:
        return int(j < i)
    return int(b > a if fn == "max" else b < a)


def _chosen(block: Block, left: _Element, right: _Element) -> int | None:
    """Return which of two elements a combiner gives, 0 or 1; None where it gives neither, or does something else."""
    known = dict[SSAValue, float](zip(block.args, (*left, *right), strict=True))
    sides = dict[SSAValue, int]((arg, number // 2) for number, arg in enumerate(block.args))
    kinds = dict[SSAValue, int]((arg, number % 2) for number, arg in enumerate(block.args))
    for op in block.ops:
        if isinstance(op, CombinedOp):
            found = {sides.get(end) for end in op.values}
            in_place = [kinds.get(end) for end in op.values] == [0, 1]
            return found.pop() if in_place and len(found) == 1 else None
        if isinstance(op, ConstantOp) and op.result.type == i1:
            known[op.result] = bool(op.python_value)
        elif not isinstance(op, ElementwiseOp) or not _follow(op, known, sides, kinds):
            return None
    return None


def _follow(
    op: ElementwiseOp, known: dict[SSAValue, float], sides: dict[SSAValue, int], kinds: dict[SSAValue, int]
) -> bool:
    """Compute one op of a combiner; return whether it is one that compares, chooses or combines conditions.

    Args:
        op: the op.
        known: what values are, added to.
        sides: of elements and places, the operand that they come from: 0 or 1; added to.
        kinds: of the same, 0 for an element and 1 for a place; added to.
    """
    fn, args = op.fn.data, list(op.args)
    given = [known.get(arg) for arg in args]
    conditions = all(arg.type == i1 and arg not in kinds for arg in args)
    if None in given:
        return False
    if fn == "select" and args[1] in kinds and kinds[args[1]] == kinds.get(args[2]):
        chosen = args[1] if given[0] else args[2]
        known[op.result], sides[op.result], kinds[op.result] = known[chosen], sides[chosen], kinds[chosen]
        return True
    if fn == "select" and conditions:
        known[op.result] = known[args[1] if given[0] else args[2]]
        return True
    if fn in _COMPARISONS and args[0] in kinds and kinds[args[0]] == kinds.get(args[1]):
        known[op.result] = _COMPARISONS[fn](known[args[0]], known[args[1]])
        return True
    if fn == "isnan" and kinds.get(args[0]) == 0:
        known[op.result] = isnan(known[args[0]])
        return True
    if fn in _LOGIC and conditions:
        known[op.result] = _condition(fn, list(map(bool, given)))
        return True
    return False


def _condition(fn: str, given: Sequence[bool]) -> bool:
    """Return what conditions come to."""
    if fn == "not":
        return not given[0]
    left, right = given
    return left != right if fn == "xor" else left and right if fn == "and" else left or right
