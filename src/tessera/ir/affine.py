"""Sums of multiples of scalars: index arithmetic of both dialects, taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target import arithmetic
from tessera.ir.tile import elementwise

DEEPEST = 16
"""Nested sums beyond which a scalar is taken as it is."""


@dataclass(frozen=True)
class Affine:
    """`constant + Σ factor · scalar`.

    Args:
        terms: the factor of each scalar; none is zero.
        constant: the rest.
    """

    terms: Mapping[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    constant: int = 0

    def scaled(self, factor: int) -> Affine:
        """Return the multiple."""
        if factor == 0:
            return Affine()
        return Affine({v: f * factor for v, f in self.terms.items()}, self.constant * factor)

    def plus(self, other: Affine) -> Affine:
        """Return the sum."""
        terms = dict(self.terms)
        for value, factor in other.terms.items():
            terms[value] = terms.get(value, 0) + factor
        return Affine({v: f for v, f in terms.items() if f}, self.constant + other.constant)


def affine(value: SSAValue) -> Affine:
    """Return an index as a sum."""
    return _affine(value, DEEPEST, {})


def boxes_apart(
    offsets: Sequence[SSAValue], sizes: Sequence[int], others: Sequence[SSAValue], other_sizes: Sequence[int]
) -> bool:
    """Return whether two boxes of a tensor are known to have no element in common, by a constant distance.

    Args:
        offsets: where the first one starts, along each dimension.
        sizes: its sizes.
        others: where the second one starts.
        other_sizes: its sizes.
    """
    for offset, size, other, other_size in zip(offsets, sizes, others, other_sizes, strict=True):
        distance = affine(other).plus(affine(offset).scaled(-1))
        if not distance.terms and (distance.constant >= size or distance.constant <= -other_size):
            return True
    return False


def _affine(value: SSAValue, deepest: int, made: dict[tuple[SSAValue, int], Affine]) -> Affine:
    """Return an index as a sum of at most so many levels; a scalar that is used often is taken apart once a level."""
    if (value, deepest) not in made:
        made[value, deepest] = _sum(value, lambda part: _affine(part, deepest - 1, made), deepest)
    return made[value, deepest]


def _sum(value: SSAValue, apart: Callable[[SSAValue], Affine], deepest: int) -> Affine:
    known = _constant(value)
    if known is not None:
        return Affine(constant=known)
    owner = value.owner
    if isinstance(owner, elementwise.ElementwiseOp | arithmetic.ElementwiseOp) and len(owner.args) == 2 and deepest:
        left, right = owner.args
        fn = owner.fn.data
        if fn == "add":
            return apart(left).plus(apart(right))
        if fn == "sub":
            return apart(left).plus(apart(right).scaled(-1))
        if fn == "mul":
            for factor, other in ((left, right), (right, left)):
                number = _constant(factor)
                if number is not None:
                    return apart(other).scaled(number)
    return Affine({value: 1})


def _constant(value: SSAValue) -> int | None:
    found = elementwise.constant_value(value)
    found = arithmetic.constant_value(value) if found is None else found
    return found if isinstance(found, int) else None
