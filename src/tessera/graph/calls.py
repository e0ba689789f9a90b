"""Calls of a traced function: how what is called is written into the graph, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xdsl.ir import SSAValue

from tessera.errors import shown
from tessera.frontend.exact import exact
from tessera.graph.sizes import Size
from tessera.graph.traced import Array, Trace
from tessera.graph.trees import flatten, unflatten
from tessera.ir.graph.types import ArrayType
from tessera.ops import arrays
from tessera.target.dims import Dim

Sizes = Mapping[str, int]


class Template:
    """Arguments of a call, of which arrays come when it runs, and sizes follow from the call's.

    Args:
        trace: the tracing.
        arguments: arrays, sizes, and anything else, in tuples, lists and dictionaries too.
    """

    def __init__(self, trace: Trace, arguments: Any) -> None:
        leaves, self._outline = flatten(arguments)
        self.places = [at for at, leaf in enumerate(leaves) if is_array(leaf)]
        self.inputs: list[SSAValue] = [trace.array(leaves[at]).ssa for at in self.places]
        apart = {*self.places}
        self._given = [None if at in apart else _static(leaf) for at, leaf in enumerate(leaves)]
        self.key = self._outline, tuple(map(exact, self._given))
        self._trace = trace

    def filled(self, made: Sequence[Any], of_size: Callable[[Dim], Any]) -> Any:
        """Return the arguments with arrays and sizes."""
        leaves = [of_size(one) if isinstance(one, Dim) else one for one in self._given]
        for at, array in zip(self.places, made, strict=True):
            leaves[at] = array
        return unflatten(self._outline, iter(leaves))

    def traced(self, values: Sequence[SSAValue]) -> Any:
        """Return the arguments with values of the graph."""
        return self.filled([Array(self._trace, value) for value in values], lambda dim: Size(self._trace, dim))

    def flags(self, of_arrays: Sequence[Any]) -> Any:
        """Return what is said of each array for each argument, False for all else, and for a None among them."""
        leaves = [False] * len(self._given)
        for at, flag in zip(self.places, of_arrays, strict=True):
            leaves[at] = flag
        return [False if one is None else one for one in unflatten(self._outline, iter(leaves))]

    def at(self, sizes: Sizes) -> Callable[[Sequence[Any]], Any]:
        """Return what makes a call's arguments of its arrays."""
        return lambda made: self.filled(made, lambda dim: dim.value(sizes))

    def __str__(self) -> str:
        """Return the arguments as a graph shows them."""
        apart = {*self.places}
        return ", ".join("%" if at in apart else _shown(one) for at, one in enumerate(self._given))


def is_array(leaf: Any) -> bool:
    """Return whether an argument is an array, of the graph or of the program around."""
    return isinstance(leaf, Array) or arrays.is_array(leaf)


def _static(leaf: Any) -> Any:
    return leaf.dim if isinstance(leaf, Size) else leaf


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Dim) else shown(value)


def written(trace: Trace, name: str, template: Template, types: Sequence[ArrayType]) -> list[Array]:
    """Return the results of a call that is pure."""
    given = str(template)
    with trace.at_caller() as writer:
        return [Array(trace, one) for one in writer.call(name, template.inputs, types, given, pure=True)]
