"""How values move when the reference of exponentials does: by a shift, by a factor, or not at all.

The sums of an online softmax are taken against a running maximum m: `l = Σ exp(s − m)`. With `m + δ` in place of m they
are `exp(−δ)` times as large, and a result such as `acc / l` or `m + log(l)` is the same. What follows from such a value
is found op by op: sums keep a factor, products multiply factors, logarithms make shifts of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, RoundTf32Op, SplatOp, constant_value
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of, is_scalar
from tessera.ir.walking import ops_in

MOVES = (BroadcastOp, CastOp, ReshapeOp, RoundTf32Op, SplatOp, TransposeOp)
"""Ops whose elements are those of their operand."""
LOG2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """What a value becomes when the reference moves by δ.

    Args:
        kind: `shift` where `by · δ` is added to it, `factor` where it is multiplied by `exp(by · δ)`.
        by: that number.
        axes: for each of its dimensions that of the reference along which δ varies there, `EVEN` where δ is the same.
    """

    kind: Literal["shift", "factor"]
    by: float
    axes: tuple[int, ...] = ()


EVEN = -1
SAME = Scale("shift", 0.0)
"""What does not move."""
_Scales = list["Scale | None"]


def scale_of(value: SSAValue, seeds: Mapping[SSAValue, Scale | None]) -> Scale | None:
    """Return how a value moves, None where that cannot be told.

    Args:
        value: the value.
        seeds: how some values move, None for those of which that is not known; what does not follow from them stays.
    """
    known: dict[SSAValue, Scale | None] = dict(seeds)
    work = [value]
    while work:
        one, owner = work[-1], work[-1].owner
        if one in known or not isinstance(owner, Operation):
            known.setdefault(one, SAME)
            work.pop()
            continue
        if missing := [operand for operand in _read_by(owner) if operand not in known]:
            work += missing
            continue
        known[one] = _of_op(owner, known)
        work.pop()
    return known[value]


def _read_by(op: Operation) -> list[SSAValue]:
    """Return what an op reads, and what the ops inside it read from outside."""
    inner = [one for one in ops_in(op) if one is not op] if op.regions else []
    inside = {op, *inner}
    blocks = {block for one in inside for region in one.regions for block in region.blocks}
    from_outside = (v for one in inner for v in one.operands if v.owner not in inside and v.owner not in blocks)
    return [*op.operands, *from_outside]


def _of_op(op: Operation, known: Mapping[SSAValue, Scale | None]) -> Scale | None:
    if all(known[operand] == SAME for operand in _read_by(op)):
        return SAME
    given = [known[operand] for operand in op.operands]
    if op.regions or None in given:
        return None
    match op:
        case ElementwiseOp():
            return _of_function(op, given)
        case ReduceOp() if op.fn.data in ("sum", "max", "min"):
            return _reduced(given[0], op)
        case MmaOp():
            product = _multiplied_along(given[0], given[1])
            return product if number_of(op.acc) == 0 else _alike([product, given[2]])
        case _:
            return _moved(op, given[0]) if isinstance(op, MOVES) else None


def _reduced(one: Scale | None, op: ReduceOp) -> Scale | None:
    """Return how a sum or an extreme moves: δ is the same for all that it is of."""
    at = op.axis.data
    if one is None or (op.fn.data == "sum" and one.kind == "shift") or one.axes[at] != EVEN:
        return None
    return Scale(one.kind, one.by, one.axes[:at] + one.axes[at + 1 :])


def _multiplied_along(a: Scale | None, b: Scale | None) -> Scale | None:
    """Return how a product of matrices moves of which one does, by the same along what is summed."""
    if a == SAME and b is not None and b.kind == "factor" and b.axes[0] == EVEN:
        return Scale(b.kind, b.by, (EVEN, b.axes[1]))
    if b == SAME and a is not None and a.kind == "factor" and a.axes[1] == EVEN:
        return Scale(a.kind, a.by, (a.axes[0], EVEN))
    return None


def _moved(op: Operation, one: Scale | None) -> Scale | None:
    """Return how the same elements in other places move."""
    source, result = op.operands[0].type, op.results[0].type
    if one is None or not is_scalar(element_of(result)) or not _are_floats(op):
        return None
    before, after = ([*shape_of(each)] if isinstance(each, TileType) else [] for each in (source, result))
    match op:
        case SplatOp():
            axes = [EVEN] * len(after)
        case TransposeOp():
            axes = [one.axes[at] for at in op.permutation]
        case BroadcastOp():
            axes = [at if size == grown else EVEN for at, size, grown in zip(one.axes, before, after, strict=True)]
        case ReshapeOp():
            kept = [(at, size) for at, size in zip(one.axes, before, strict=True) if size != 1]
            if [size for _, size in kept] != [size for size in after if size != 1]:
                return None
            left = iter(at for at, _ in kept)
            axes = [EVEN if size == 1 else next(left) for size in after]
        case _:
            axes = list(one.axes)
    return Scale(one.kind, one.by, tuple(axes))


def _are_floats(op: Operation) -> bool:
    return all(dtype_of(element_of(value.type)).is_float for value in (op.operands[0], op.results[0]))


def _of_function(op: ElementwiseOp, given: _Scales) -> Scale | None:
    fn = op.fn.data
    if fn in _RULES:
        return _RULES[fn](op, given)
    if fn == "select":
        return _alike_of(op, given, 1) if given[0] == SAME else None
    if fn in ("maximum", "minimum"):
        return _alike_of(op, given, 0)
    if fn in ("eq", "ne", "lt", "le", "gt", "ge"):
        return SAME if _is_told(op, given) else None
    return None


def _alike_of(op: ElementwiseOp, given: _Scales, first: int) -> Scale | None:
    """Return how operands move that all move alike; zeros and infinities move as the others do."""
    pairs = list(zip(op.args, given, strict=True))[first:]
    kinds = {one.kind for _, one in pairs if one is not None and one != SAME}
    rest = [one for arg, one in pairs if not _moves_along(arg, kinds)]
    return _alike(rest) if rest else SAME


def _moves_along(value: SSAValue, kinds: set[str]) -> bool:
    number = number_of(value)
    if number is None:
        return False
    return math.isinf(number) or (number == 0.0 and kinds == {"factor"})


def _is_told(op: ElementwiseOp, given: _Scales) -> bool:
    """Return whether a comparison says the same wherever the reference is."""
    if given[0] == given[1]:
        return True
    for other, one in ((op.args[1], given[0]), (op.args[0], given[1])):
        if one is not None and _moves_along(other, {one.kind}):
            return True
    return False


def _alike(given: _Scales) -> Scale | None:
    first = given[0]
    if first is None or not all(one is not None and _is_near(one, first) for one in given):
        return None
    return first


def _is_near(one: Scale, other: Scale) -> bool:
    return one.kind == other.kind and one.axes == other.axes and math.isclose(one.by, other.by, rel_tol=1e-5)


def is_factor(one: Scale | None, by: float) -> bool:
    """Return whether a value is multiplied by `exp(by · δ)`; constants of kernels are rounded to f32."""
    return one is not None and _is_near(one, Scale("factor", by, one.axes))


def _factor(one: Scale | None) -> float | None:
    """Return the exponent of a factor, None for shifts."""
    if one is None or (one.kind == "shift" and one.by):
        return None
    return one.by


def _times(a: Scale | None, b: Scale | None, sign: int = 1) -> Scale | None:
    left, right = _factor(a), _factor(b)
    if left is None or right is None or a is None or b is None or not _lie_alike(a, b):
        return None
    return _made("factor", left + sign * right, b if a == SAME else a)


def _lie_alike(a: Scale, b: Scale) -> bool:
    """Return whether δ is the same number for each element of two values."""
    return SAME in (a, b) or a.axes == b.axes


def _made(kind: Literal["shift", "factor"], by: float, beside: Scale) -> Scale:
    return SAME if abs(by) < 1e-12 else Scale(kind, by, beside.axes)


def number_of(value: SSAValue) -> float | None:
    """Return the number that all elements of a value are, None where it is no constant."""
    while isinstance(value.owner, MOVES) and _are_floats(value.owner):
        value = value.owner.operands[0]
    found = constant_value(value)
    return None if found is None else float(found)


def _shifted(sign: int) -> Callable[[ElementwiseOp, _Scales], Scale | None]:
    def rule(op: ElementwiseOp, given: _Scales) -> Scale | None:
        a, b = given
        assert a is not None, "operands are known"
        assert b is not None, "operands are known"
        if "factor" in (a.kind, b.kind):
            return _alike_of(op, given, 0)
        return _made("shift", a.by + sign * b.by, b if a == SAME else a) if _lie_alike(a, b) else None

    return rule


def _multiplied(op: ElementwiseOp, given: _Scales) -> Scale | None:
    for one, other in ((given[0], op.args[1]), (given[1], op.args[0])):
        if one is not None and one.kind == "shift" and one.by and (number := number_of(other)) is not None:
            return _made("shift", one.by * number, one)
    return _times(given[0], given[1])


def _divided(op: ElementwiseOp, given: _Scales) -> Scale | None:
    one, number = given[0], number_of(op.args[1])
    if one is not None and one.kind == "shift" and one.by and number:
        return _made("shift", one.by / number, one)
    return _times(given[0], given[1], -1)


def _power(base: float) -> Callable[[ElementwiseOp, _Scales], Scale | None]:
    def rule(_op: ElementwiseOp, given: _Scales) -> Scale | None:
        (one,) = given
        return _made("factor", one.by * base, one) if one is not None and one.kind == "shift" else None

    return rule


def _logarithm(base: float) -> Callable[[ElementwiseOp, _Scales], Scale | None]:
    def rule(_op: ElementwiseOp, given: _Scales) -> Scale | None:
        factor = _factor(given[0])
        return None if factor is None or given[0] is None else _made("shift", factor / base, given[0])

    return rule


def _root(by: float) -> Callable[[ElementwiseOp, _Scales], Scale | None]:
    def rule(_op: ElementwiseOp, given: _Scales) -> Scale | None:
        factor = _factor(given[0])
        return None if factor is None or given[0] is None else _made("factor", factor * by, given[0])

    return rule


_RULES: dict[str, Callable[[ElementwiseOp, _Scales], Scale | None]] = {
    "add": _shifted(1),
    "sub": _shifted(-1),
    "mul": _multiplied,
    "div": _divided,
    "neg": lambda _op, given: _negated(given[0]),
    "abs": _root(1.0),
    "exp": _power(1.0),
    "exp2": _power(LOG2),
    "log": _logarithm(1.0),
    "log2": _logarithm(LOG2),
    "sqrt": _root(0.5),
    "rsqrt": _root(-0.5),
}


def _negated(one: Scale | None) -> Scale | None:
    return one if one is None or one.kind == "factor" else _made("shift", -one.by, one)
