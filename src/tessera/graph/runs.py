"""What the steps of a bound graph do: objects that run on the values of a call, and say what they call.

A graph's first run, and one beside another thread's, calls them one by one. A replay writes out what they call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tessera.data import dataclass
from tessera.ops import arrays
from tessera.ops.forms import Form, Part, form_of, part_of

Values = list[Any]
"""What a run has computed, by the number of the value."""
Run = Callable[[Values], None]
Ready = Callable[[Any], Any]
"""Makes an argument of an operand, or a result of what a function gives."""


class Apply:
    """Sets one value to what a function gives.

    Args:
        function: takes arrays.
        operands: numbers of those.
        goal: the number of the result.
    """

    __slots__ = ("function", "goal", "operands")

    def __init__(self, function: Callable[..., Any], operands: Sequence[int], goal: int) -> None:
        self.function, self.operands, self.goal = function, operands, goal

    def __call__(self, values: Values) -> None:
        """Run the step."""
        values[self.goal] = self.function(*(values[number] for number in self.operands))


class Call:
    """Sets values to what a function gives.

    Args:
        function: takes arrays and gives several.
        operands: numbers of those that it takes.
        goals: numbers of the results.
        lies: whether each result's elements have to lie side by side, in order.
    """

    __slots__ = ("function", "goals", "lies", "operands", "seen")

    def __init__(
        self,
        function: Callable[..., Sequence[Any]],
        operands: Sequence[int],
        goals: Sequence[int],
        lies: Sequence[bool],
    ) -> None:
        self.function, self.operands, self.goals, self.lies = function, operands, goals, lies
        self.seen: Seen | None = None
        """What a `Direct` function has done, once `watched` has run."""

    def __call__(self, values: Values) -> None:
        """Run the step."""
        self._keep(self.function(*[values[number] for number in self.operands]), values)

    def watched(self, values: Values) -> None:
        """Run the step, and note what its function does to operands and results."""
        function, operands = self.function, [values[number] for number in self.operands]
        if not isinstance(function, Direct):
            self._keep(function(*operands), values)
            return
        found = function.raw(operands)
        leaves = leaves_of(found)
        self._keep(function.held(leaves), values)
        given = [(at, ready(operands[at]), operands[at]) for at, ready in function.slots]
        self.seen = Seen(
            tuple(part_of(argument, operand) for _, argument, operand in given),
            _outline(found),
            tuple(_kept(raw, values[number]) for raw, number in zip(leaves, self.goals, strict=True)),
        )

    def _keep(self, found: Sequence[Any], values: Values) -> None:
        for number, result, in_order in zip(self.goals, found, self.lies, strict=True):
            values[number] = lying(result) if in_order else result


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a `Direct` function has done to tensors that lie as those of all calls of a kind.

    Args:
        given: each argument as a part of its operand, None where it is made anew.
        outline: whether each element of what it gave is a tensor, empty for a single tensor, None for what is nested.
        kept: how each result lies as it was given, None where another tensor is made of it.
    """

    given: tuple[Part | None, ...]
    outline: tuple[bool, ...] | None
    kept: tuple[Form | None, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of an operand among arguments.

    Args:
        number: which of the function's `slots`.
    """

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """A function of tensors that calls another one with these and with constants.

    Args:
        target: what it calls.
        args: its arguments, with a `Slot` for each tensor, in lists and tuples too.
        kwargs: those that have names.
        slots: for each slot the number of the operand, and what makes the argument of it.
        holds: makes each result of a tensor that the target gives.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    slots: tuple[tuple[int, Ready], ...]
    holds: tuple[Ready, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the results."""
        return self.held(leaves_of(self.raw(operands)))

    def raw(self, operands: Sequence[Any]) -> Any:
        """Return what the target gives."""
        given = [ready(operands[at]) for at, ready in self.slots]
        kwargs = {name: _filled(one, given) for name, one in self.kwargs.items()}
        return self.target(*_filled(self.args, given), **kwargs)

    def held(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the results of the tensors that the target gives."""
        return [hold(one) for hold, one in zip(self.holds, leaves, strict=True)]


def leaves_of(found: Any) -> list[Any]:
    """Return the tensors of what an op gives; None stands for one that is not wanted."""
    if isinstance(found, list | tuple):
        return [leaf for one in cast("Sequence[Any]", found) for leaf in leaves_of(one)]
    return [] if found is None else [found]


def _filled(template: Any, given: Sequence[Any]) -> Any:
    """Return arguments with tensors in their slots."""
    if isinstance(template, Slot):
        return given[template.number]
    if isinstance(template, list | tuple):
        nested = [_filled(one, given) for one in cast("Sequence[Any]", template)]
        return nested if isinstance(template, list) else tuple(nested)
    return template


def _outline(found: Any) -> tuple[bool, ...] | None:
    if not isinstance(found, list | tuple):
        return ()
    nested = cast("Sequence[Any]", found)
    return None if any(isinstance(one, list | tuple) for one in nested) else tuple(one is not None for one in nested)


def _kept(raw: Any, held: Any) -> Form | None:
    part = part_of(held, raw)
    return form_of(raw) if part is not None and not part.after else None


def lying(array: Any) -> Any:
    """Return an array whose elements lie side by side, in order."""
    if arrays.is_torch(array):
        return array.contiguous()
    return np.ascontiguousarray(cast(Any, array)) if isinstance(array, np.ndarray) else array
