"""What code may rely on that divides sizes, strides and addresses: less, the more calls of a kernel differ."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field, replace
from math import gcd

from tessera.data import dataclass
from tessera.frontend.specialize import ArgFacts, Specialization

_Numbers = tuple[tuple[int, ...], ...]

WHOLE = 16
"""The most that code relies on."""


@dataclass(slots=True)
class _Family:
    """Calls that differ in what divides their numbers only.

    Args:
        common: what divides the numbers of all of them.
        kept: divisors that there is code for.
    """

    common: _Numbers
    kept: set[_Numbers] = field(default_factory=set[_Numbers])


class Divisors:
    """The divisors that code of a kernel relies on.

    Code for the first call has its own. A call of other divisors takes what it has in common with all before it, which
    soon divides everything: new sizes then run code that is there.
    """

    def __init__(self) -> None:
        self._families: dict[Hashable, _Family] = {}

    def agreed(self, spec: Specialization, wide: bool = False) -> Specialization:
        """Return what code for a call may rely on: what is true of it, or less.

        Args:
            spec: what is true of it.
            wide: whether accesses are wide only where much divides them, as on GPUs: code for that is kept apart.
        """
        own = tuple(map(_numbers_of, spec.args))
        family = self._families.setdefault(_without(spec), _Family(own))
        if own in family.kept:
            return spec
        common = tuple(tuple(map(gcd, a, b)) for a, b in zip(family.common, own, strict=True))
        family.common = common  # another thread may set its own now: what this call relies on stays true of it
        relied = tuple(map(_whole_or, own, common)) if wide else common
        family.kept.add(relied)
        return replace(spec, args=tuple(map(_relying_on, spec.args, relied)))


def _numbers_of(fact: ArgFacts) -> tuple[int, ...]:
    return (fact.align, *fact.stride_div, *fact.dim_div)


def _whole_or(own: tuple[int, ...], common: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([least if number % WHOLE else WHOLE for number, least in zip(own, common, strict=True)])


def _relying_on(fact: ArgFacts, numbers: Sequence[int]) -> ArgFacts:
    align, *rest = numbers
    rank = len(fact.stride_div)
    return replace(fact, align=align, stride_div=tuple(rest[:rank]), dim_div=tuple(rest[rank:]))


def _without(spec: Specialization) -> Hashable:
    """Return a specialisation without sizes, and what divides them."""
    bare = (replace(fact, sizes=(), align=1, stride_div=(), dim_div=()) for fact in spec.args)
    return replace(spec, args=tuple(bare))
