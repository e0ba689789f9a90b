"""What calls of a graph call: how it runs, and what its derivatives are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from tessera.data import dataclass

Values = Sequence[SSAValue | None]
"""A value for each operand or result of an op; None where it has none, which is to say 0."""
Rule = Callable[[Any, Values, Sequence[bool]], Values]
"""Appends derivatives to the graph of an op; see `Callee`."""


@dataclass(frozen=True, slots=True, eq=False)
class Callee:
    """What a `CallOp` calls, or whose derivatives an `OwnOp` has.

    Args:
        run: takes the sizes of symbols and gives a function of arrays, which gives a sequence of arrays.
        pull: takes the op, the cotangent of each result, and for each operand whether its cotangent is needed; appends
            these and returns them. None where there is no derivative.
        push: the same of tangents: takes the op, the tangent of each operand, and for each result whether its tangent
            is needed.
        changed: how many arrays, the first ones, it overwrites; they are its first results.
    """

    run: Callable[[Mapping[str, int]], Callable[..., Sequence[Any]]]
    pull: Rule | None = None
    push: Rule | None = None
    changed: int = 0
