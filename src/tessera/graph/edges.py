"""What stands between a graph and its callers: arguments are made ready, and results are given as they are wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.data import dataclass
from tessera.graph.runs import Ready


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A result that is an array.

    Args:
        number: which of the graph's results.
        ready: takes the sizes of symbols, and gives what makes of the result what is given.
    """

    number: int
    ready: Callable[[Mapping[str, int]], Ready]


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A result that is no array.

    Args:
        value: takes the sizes of symbols.
    """

    value: Callable[[Mapping[str, int]], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The edges of a graph.

    Args:
        takes: for each argument what makes it ready, None where it is taken as it is.
        gives: the results.
        written: arguments that are changed at the end, each with the number of the graph's result that is copied to it;
            those that are copied together.
        write: copies arrays to others.
    """

    takes: tuple[Ready | None, ...]
    gives: tuple[Given | Number, ...]
    written: tuple[tuple[tuple[int, int], ...], ...]
    write: Callable[[Sequence[Any], Sequence[Any]], Any]

    def taken(self, given: Sequence[Any]) -> list[Any]:
        """Return arguments as the graph takes them."""
        return [one if ready is None else ready(one) for one, ready in zip(given, self.takes, strict=True)]

    def targets(self, given: Sequence[Any]) -> list[list[Any]]:
        """Return the arguments that are changed."""
        return [[given[at] for at, _ in together] for together in self.written]

    def given(self, results: Sequence[Any], targets: Sequence[Sequence[Any]], sizes: Mapping[str, int]) -> list[Any]:
        """Change arguments, and return results as they are wanted."""
        for goals, together in zip(targets, self.written, strict=True):
            self.write(goals, [results[number] for _, number in together])
        return [
            one.value(sizes) if isinstance(one, Number) else one.ready(sizes)(results[one.number]) for one in self.gives
        ]
