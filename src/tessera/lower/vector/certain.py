"""Conditions that hold for a whole tile: `column < size` in all blocks but the last, `key <= query` off the diagonal.

A tile of conditions that compares sums of positions with scalars has one scalar test that tells whether all of its
elements are true. Loops over blocks ask it once for a tile, and choose between a nest with and one without the mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.types import dtype_of, index
from tessera.lower.vector.nodes import Apply, Convert, Coord, Iota, Node, Remap, Uniform, walk

if TYPE_CHECKING:
    from tessera.lower.vector.context import VectorContext

_ORDERS = {"lt": "lt", "le": "le", "gt": "lt", "ge": "le"}
"""How the largest element of the lesser range must compare with the smallest of the other."""


@dataclass(frozen=True)
class Certain:
    """Conditions that hold for whole tiles where a scalar is true.

    Args:
        test: the scalar.
        nodes: the tiles of conditions.
    """

    test: SSAValue
    nodes: frozenset[Node]

    def chosen(self, node: Node) -> Node | None:
        """Return the operand that a select gives where these conditions hold; None for what computes all it needs."""
        if isinstance(node, Apply) and node.fn == "select" and node.args[0] in self.nodes:
            return node.args[1]
        return None

    def computed(self, roots: Iterable[Node]) -> set[Node]:
        """Return the tiles that `roots` compute where these conditions hold: neither them, nor what they leave out."""
        work, found = [*roots], set[Node]()
        while work:
            node = work.pop()
            if node in found or node.stored is not None:
                continue
            found.add(node)
            chosen = self.chosen(node)
            work += [part for part, _ in node.operands((Coord(0),) * len(node.shape))] if chosen is None else [chosen]
        return found


def certain_conditions(context: VectorContext, roots: Iterable[Node]) -> Certain | None:
    """Return what selects in `roots` ask, where one scalar can answer for the tile; None where none can.

    Only inside loops: a program's only tile is seldom worth two nests.
    """
    if context.at_top:
        return None
    parts = (n for root in roots for n, _ in walk(root) if isinstance(n, Apply) and n.fn == "select")
    asked = dict.fromkeys(n.args[0] for n in parts)
    scalars, total, found = context.writer.scalars, None, list[Node]()
    for node in asked:
        test = _Ranges(context).all_true(node) if _answerable(node) else None
        if test is not None:
            found.append(node)
            total = test if total is None else scalars.binary("and", total, test)
    return None if total is None else Certain(total, frozenset(found))


MOST_PARTS = 32
"""Conditions of more parts than this are not asked: the answer would take longer than the masks."""


def _answerable(node: Node) -> bool:
    """Return whether a tile of conditions compares few sums of positions and scalars, and has positions at all."""
    return _is_small(node) and _compares_ranges(node)


def _is_small(node: Node) -> bool:
    """Return whether a condition has few parts, each counted as often as it is used."""
    work, count = [node], 0
    while work and count <= MOST_PARTS:
        part, count = work.pop(), count + 1
        work += [operand for operand, _ in part.operands((Coord(0),) * len(part.shape))]
    return count <= MOST_PARTS


def _compares_ranges(node: Node) -> bool:
    if isinstance(node, Remap):
        return _compares_ranges(node.source)
    if not isinstance(node, Apply):
        return False
    if node.fn == "and":
        return all(map(_compares_ranges, node.args))
    return node.fn in _ORDERS and all(map(_is_range, node.args)) and any(map(_has_positions, node.args))


def _is_range(node: Node) -> bool:
    if node.element != index and dtype_of(node.element).kind != "int":
        return False
    if isinstance(node, Remap | Convert):
        return _widens(node) and _is_range(node.source)
    if isinstance(node, Apply):
        return node.fn in ("add", "sub") and all(map(_is_range, node.args))
    return isinstance(node, Uniform | Iota)


def _widens(node: Remap | Convert) -> bool:
    if isinstance(node, Remap) or node.element == index:
        return True
    source = node.source.element
    return source != index and dtype_of(source).bits <= dtype_of(node.element).bits


def _has_positions(node: Node) -> bool:
    if isinstance(node, Apply):
        return any(map(_has_positions, node.args))
    return _has_positions(node.source) if isinstance(node, Remap | Convert) else isinstance(node, Iota)


@dataclass
class _Ranges:
    """Writes the smallest and the largest element of tiles of integers.

    A sum may wrap around. Ranges are no longer than tiles, so that one that does has its ends in the wrong order.

    Args:
        context: the lowering.
        ordered: tests of whether ends are in order.
    """

    context: VectorContext
    ordered: list[SSAValue] = field(default_factory=list[SSAValue])

    def all_true(self, node: Node) -> SSAValue:
        """Return whether all elements of an answerable tile are true."""
        scalars = self.context.writer.scalars
        if isinstance(node, Remap):
            return self.all_true(node.source)
        assert isinstance(node, Apply)
        if node.fn == "and":
            first, second = node.args
            return scalars.binary("and", self.all_true(first), self.all_true(second))
        left, right = (self._ends(arg) for arg in node.args)
        lesser, greater = (left, right) if node.fn in ("lt", "le") else (right, left)
        total = scalars.binary(_ORDERS[node.fn], lesser[1], greater[0])
        for test in self.ordered:
            total = scalars.binary("and", total, test)
        self.ordered.clear()
        return total

    def _ends(self, node: Node) -> tuple[SSAValue, SSAValue]:
        scalars = self.context.writer.scalars
        if isinstance(node, Uniform):
            return node.value, node.value
        if isinstance(node, Iota):
            return scalars.constant(0, node.element), scalars.constant(node.shape[0] - 1, node.element)
        if isinstance(node, Remap):
            return self._ends(node.source)
        if isinstance(node, Convert):
            low, high = self._ends(node.source)
            return scalars.cast(low, node.element), scalars.cast(high, node.element)
        assert isinstance(node, Apply)
        (a, b), (c, d) = (self._ends(arg) for arg in node.args)
        first, last = (c, d) if node.fn == "add" else (d, c)
        low = scalars.binary(node.fn, a, first, node.element)
        high = scalars.binary(node.fn, b, last, node.element)
        if low is not high:
            self.ordered.append(scalars.binary("le", low, high))
        return low, high
