"""Slices of tensors with steps: `A[i + 7:i - 1:-1]`, `A[3:35:2]`, in place of plain ones of the same size."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from tessera.tools.fuzz import tree

_N = TypeVar("_N", bound=tree.Node)


def strided(program: tree.Program, random: random.Random) -> tree.Program:
    """Return a program in which some slices have steps, and no program of a grid touches what another one stores to.

    Args:
        program: the program.
        random: what decides which.
    """
    nodes = list(tree.walk(program))
    stored = {node.tensor for node in nodes if isinstance(node, tree.Store | tree.Atomic)}
    shapes = {tensor.name: tensor.shape for tensor in program.tensors}
    offsets = {name for grid in program.grids for name in grid.vars}
    return _Strides(random, shapes, stored, offsets).of(program)


class _Strides:
    """Gives slices steps.

    Args:
        random: what decides which.
        shapes: the shapes of the tensors.
        stored: those that are stored to.
        offsets: names of what differs from program to program, and is known at run time only.
    """

    def __init__(
        self, random: random.Random, shapes: dict[str, tuple[int, ...]], stored: set[str], offsets: set[str]
    ) -> None:
        self._random = random
        self._shapes = shapes
        self._stored = stored
        self._offsets = offsets

    def of(self, node: _N) -> _N:
        """Return a node with steps in its slices."""
        node = tree.rebuild(node, tuple(self.of(part) for part in tree.children(node)))
        if not isinstance(node, tree.Load | tree.Store | tree.Atomic):
            return node
        axes, sizes = list(node.axes), iter(self._shapes[node.tensor])
        for place, axis in enumerate(axes):
            size = 1 if isinstance(axis, tree.NewAxis) else next(sizes)
            if isinstance(axis, tree.Span) and axis.step == 1 and axis.size > 1 and self._random.random() < 0.5:
                axes[place] = self._stepped(axis, node.tensor in self._stored, size)
        return replace(node, axes=tuple(axes))

    def _stepped(self, axis: tree.Span, stored: bool, limit: int) -> tree.Span:
        names = {part.name for part in tree.walk(axis) if isinstance(part, tree.Name)}
        step, size = self._random.choice((1, 2, 2, 3, 5)), axis.size
        if names:
            # What other programs store to is theirs: the same elements, backwards.
            step = 1 if stored else step
            backwards = names <= self._offsets and (step == 1 or self._random.random() < 0.3)
            assert axis.start is not None
            last = tree.Apply("add", (axis.start, tree.Number((size - 1) * step)))
            return replace(axis, start=last if backwards else axis.start, step=-step if backwards else step)
        low = 0 if limit <= size * step else self._random.randrange(limit - size * step)
        if step == 1 or self._random.random() < 0.3:
            low = low if axis.start is not None else limit - size
            return tree.Span(tree.Number(low + (size - 1) * step), size, -step)
        return tree.Span(tree.Number(low), size, step)
