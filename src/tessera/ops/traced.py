"""Arrays that stand for those of a graph: ops ask them for shape and dtype, and steps become calls of the graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tessera.errors import LanguageError, caller_location
from tessera.numerics.dtypes import DType

if TYPE_CHECKING:
    from tessera.ops.steps import Step


class Traced:
    """An array of a function that is traced. No class of `abc`, since every call of an op asks for it."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[Any, ...]:
        """The sizes: numbers, or sizes that differ from call to call."""

    @property
    @abstractmethod
    def element(self) -> DType:
        """The dtype."""

    @property
    @abstractmethod
    def is_differentiated(self) -> bool:
        """Whether a gradient of what is computed with it may be wanted."""

    @abstractmethod
    def join(self, value: Any) -> Any:
        """Return an array of the program around as one of the graph; anything else as it is."""

    @abstractmethod
    def filled(self, shape: Sequence[Any], dtype: DType) -> Traced:
        """Return zeros beside the array."""

    @abstractmethod
    def copied(self) -> Traced:
        """Return the array with elements that follow one another."""

    @abstractmethod
    def call(self, step: Step, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the results of a step, this array or ones of its graph among the arguments."""

    @abstractmethod
    def change(
        self,
        name: str,
        run: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
        changed: Sequence[Any],
        read: Sequence[Any],
        made: Sequence[Traced],
    ) -> Sequence[Traced]:
        """Let arrays of this one's graph be changed.

        Args:
            name: what changes them, for messages.
            run: changes arrays when the graph runs: takes them and those that it reads, and gives its other results.
            changed: the arrays, which stand for what they have become from then on.
            read: other arrays of the graph.
            made: arrays like the other results.

        Returns:
            The other results.

        Raises:
            CallError: `written-argument` for parts of arguments, and arrays of the program around.
            LanguageError: `not-in-graphs` inside of what is differentiated.
        """


def traced_among(values: Sequence[Any]) -> Traced | None:
    """Return the first traced array among values, None where there is none."""
    for value in values:
        if isinstance(value, Traced):
            return value
    return None


def joined(values: Sequence[Any]) -> Sequence[Any]:
    """Return values with all arrays among them as ones of a graph, where one of them is."""
    traced = traced_among(values)
    return values if traced is None else [traced.join(value) for value in values]


def check_known(array: Any, what: str) -> None:
    """Refuse a traced array whose elements decide the shape of a result.

    Args:
        array: any value.
        what: what depends on them.

    Raises:
        LanguageError: `value-needed`.
    """
    if isinstance(array, Traced):
        raise LanguageError(
            f"{what} depends on the elements of a traced array",
            code="value-needed",
            location=caller_location(),
            help="call it outside of ts.jit",
        )
