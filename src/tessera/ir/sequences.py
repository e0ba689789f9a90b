"""What integers a scalar of TIR-H takes in the iterations of a loop: arithmetic progressions, and cycles of values.

Stages of rings are such: `(k // 32) % 3`, or a carried `stage = 1 - stage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import lcm
from typing import Final

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.types import element_type, i1, index
from tessera.numerics import dtypes

LONGEST: Final = 64
"""Iterations after which a cycle that has not closed is taken for none."""


@dataclass(frozen=True)
class Progression:
    """`start + step · i` in iteration `i`."""

    start: int
    step: int = 0

    def at(self, iteration: int) -> int:
        """Return the value in an iteration."""
        return self.start + self.step * iteration


@dataclass(frozen=True)
class Cycle:
    """`values[i mod len(values)]` in iteration `i`."""

    values: tuple[int, ...]

    def at(self, iteration: int) -> int:
        """Return the value in an iteration."""
        return self.values[iteration % len(self.values)]


Sequence = Progression | Cycle

_TYPES: Final = (index, i1, element_type(dtypes.i64))
"""Scalars of 64 bits, which wrap around alike, and conditions; others may wrap around and are not looked at."""


def _select(condition: int, a: int, b: int) -> int:
    return a if condition else b


_POINTWISE: Final[Mapping[str, Callable[..., int]]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "mod": int.__mod__,
    "minimum": min,
    "maximum": max,
    "neg": int.__neg__,
    "and": int.__and__,
    "or": int.__or__,
    "xor": int.__xor__,
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
    "select": _select,
}
"""Python's meaning is the language's for indices and conditions."""


def period(sequence: Sequence) -> int | None:
    """Return after how many iterations a sequence repeats itself, None if never."""
    if isinstance(sequence, Cycle):
        return len(sequence.values)
    return None if sequence.step else 1


def sequence_of(value: SSAValue, loop: scf.ForOp) -> Sequence | None:
    """Return what a scalar takes in a loop's iterations, None where that is not known."""
    return _of(value, loop, {})


def _of(value: SSAValue, loop: scf.ForOp, known: dict[SSAValue, Sequence | None]) -> Sequence | None:
    if value not in known:
        known[value] = None  # what a cycle through carried values sees
        known[value] = _found(value, loop, known)
    return known[value]


def _found(value: SSAValue, loop: scf.ForOp, known: dict[SSAValue, Sequence | None]) -> Sequence | None:
    number = constant_value(value)
    if value.type not in _TYPES:
        return None
    if isinstance(number, int):
        return Progression(int(number))
    block, owner = loop.body.block, value.owner
    if owner is block:
        return _counter(loop) if value is block.args[0] else _carried(value, loop, known)
    if isinstance(owner, Block) or not block.is_ancestor(owner):
        return None
    if isinstance(owner, CastOp):
        return _of(owner.source, loop, known)
    if not isinstance(owner, ElementwiseOp):
        return None
    parts = [_of(arg, loop, known) for arg in owner.args]
    whole = [part for part in parts if part is not None]
    return _combined(owner.fn.data, whole) if len(whole) == len(parts) else None


def _counter(loop: scf.ForOp) -> Sequence | None:
    low, step = constant_value(loop.lb), constant_value(loop.step)
    return Progression(low, step) if isinstance(low, int) and isinstance(step, int) and step > 0 else None


def _combined(fn: str, parts: list[Sequence]) -> Sequence | None:
    """Return a function of sequences."""
    if fn not in _POINTWISE:
        return None
    periods = [one for one in map(period, parts) if one is not None]
    if len(periods) < len(parts):
        return _of_progressions(fn, [part for part in parts if isinstance(part, Progression)], len(parts))
    length = lcm(*periods)
    columns = [[part.at(i) for part in parts] for i in range(length)]
    if length > LONGEST or (fn in ("floordiv", "mod") and not all(column[1] for column in columns)):
        return None
    values = tuple(_POINTWISE[fn](*column) for column in columns)
    return Progression(values[0]) if length == 1 else Cycle(values)


def _of_progressions(fn: str, parts: list[Progression], count: int) -> Sequence | None:
    if len(parts) != 2 or count != 2:
        return None
    a, b = parts
    if fn in ("add", "sub"):
        sign = 1 if fn == "add" else -1
        return Progression(a.start + sign * b.start, a.step + sign * b.step)
    if fn == "mul" and not (a.step and b.step):
        by = a.start if not a.step else b.start
        of = b if not a.step else a
        return Progression(of.start * by, of.step * by)
    if b.step or b.start <= 0:
        return None
    if fn == "floordiv" and a.step % b.start == 0:
        return Progression(a.start // b.start, a.step // b.start)
    if fn == "mod":
        length = lcm(b.start, abs(a.step)) // abs(a.step)
        return Cycle(tuple(a.at(i) % b.start for i in range(length))) if length <= LONGEST else None
    return None


def _carried(value: SSAValue, loop: scf.ForOp, known: dict[SSAValue, Sequence | None]) -> Sequence | None:
    """Return what a loop carries from constants on: `next = value + 1`, or a machine of few states."""
    initial, following = _ends(value, loop)
    start = constant_value(initial)
    owner = following.owner
    if isinstance(owner, ElementwiseOp) and owner.fn.data == "add" and value in owner.args and isinstance(start, int):
        by = constant_value(owner.args[1] if owner.args[0] is value else owner.args[0])
        return Progression(start, by) if isinstance(by, int) else None
    return _machine(value, loop)


def _ends(value: SSAValue, loop: scf.ForOp) -> tuple[SSAValue, SSAValue]:
    """Return what a carried value is at first, and what the next iteration gets."""
    block = loop.body.block
    number = list(block.args).index(value) - 1  # pyright: ignore[reportArgumentType]
    assert block.last_op is not None
    return loop.iter_args[number], block.last_op.operands[number]


def _machine(value: SSAValue, loop: scf.ForOp) -> Sequence | None:
    """Follow carried values from their constants until they are what they were at first."""
    states = _needed(value, loop)
    if states is None:
        return None
    first: dict[SSAValue, int] = {}
    for state in states:
        number = constant_value(_ends(state, loop)[0])
        if not isinstance(number, int):
            return None
        first[state] = number
    values, current = [first[value]], first
    for _ in range(LONGEST):
        following: dict[SSAValue, int] = {}
        for state in states:
            number = _evaluated(_ends(state, loop)[1], current)
            if number is None:
                return None
            following[state] = number
        if following == first:
            return Cycle(tuple(values)) if len(values) > 1 else Progression(values[0])
        values.append(following[value])
        current = following
    return None


def _needed(value: SSAValue, loop: scf.ForOp) -> list[SSAValue] | None:
    """Return the carried values that decide one, None where something else does too."""
    block = loop.body.block
    found: dict[SSAValue, None] = {value: None}
    rest = [_ends(value, loop)[1]]
    while rest:
        one = rest.pop()
        if one in found or isinstance(constant_value(one), int):
            continue
        owner = one.owner
        if owner is block and one is not block.args[0]:
            found[one] = None
            rest.append(_ends(one, loop)[1])
        elif _is_computed(one, block):
            assert not isinstance(owner, Block)
            rest += owner.operands
        else:
            return None
    return list(found)


def _is_computed(value: SSAValue, block: Block) -> bool:
    """Return whether a loop computes an index or a condition in a way that is known here."""
    owner = value.owner
    known = isinstance(owner, CastOp) or (isinstance(owner, ElementwiseOp) and owner.fn.data in _POINTWISE)
    return known and block.is_ancestor(owner) and value.type in _TYPES


def _evaluated(value: SSAValue, known: Mapping[SSAValue, int]) -> int | None:
    """Return a function of carried values, None where it divides by zero."""
    if value in known:
        return known[value]
    number = constant_value(value)
    if isinstance(number, int):
        return int(number)
    owner = value.owner
    if isinstance(owner, CastOp):
        return _evaluated(owner.source, known)
    assert isinstance(owner, ElementwiseOp), "_needed has looked"
    parts = [_evaluated(arg, known) for arg in owner.args]
    whole = [part for part in parts if part is not None]
    if len(whole) < len(parts) or (owner.fn.data in ("floordiv", "mod") and whole[1] == 0):
        return None
    return _POINTWISE[owner.fn.data](*whole)
