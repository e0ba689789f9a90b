"""Lets programs keep names in tuples: `p0_2 = (a, b)`, and from there on `p0_2[0]` and `p0_2[1]` for `a` and `b`.

A name of the tree such as `p0_2[1]` is an element of a tuple of two, and a name like others to what a program means.
The source rebinds the whole tuple where an element changes: loops carry tuples, branches and predicates choose between
them, and functions of the language make new ones. The first letter says how (`source_tuples`).

What is drawn from a seed otherwise stays the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.types import Type

KINDS = "pqrz"
"""How a tuple is made anew: by a display, by `enumerate`, by `reversed`, by `zip`."""

_PART = re.compile(rf"(?P<tuple>[{KINDS}]\d+_(?P<count>\d+))\[(?P<place>\d+)\]")
_N = TypeVar("_N", bound=tree.Node)


@dataclass(frozen=True)
class Part:
    """An element of a tuple.

    Args:
        tuple: the tuple's name.
        count: how many elements it has.
        place: which one it is.
    """

    tuple: str
    count: int
    place: int

    @property
    def kind(self) -> str:
        """How the tuple is made anew; see `KINDS`."""
        return self.tuple[0]


def part_of(name: str) -> Part | None:
    """Return which element of a tuple a name is, None for names of their own."""
    found = _PART.fullmatch(name)
    return Part(found["tuple"], int(found["count"]), int(found["place"])) if found else None


def kinds_of(program: tree.Program) -> set[str]:
    """Return how the tuples of a program are made anew."""
    names = (name for node in tree.walk(program) if isinstance(node, tree.Assign) for name in node.names)
    return {part.kind for part in map(part_of, names) if part}


def tupled(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program that keeps some of its names in tuples.

    Args:
        program: the program.
        rng: what the names and places are drawn from.
    """
    maker = _Tuples(rng)
    grids = tuple(replace(grid, body=maker.block(grid.body)) for grid in program.grids)
    helpers = tuple(map(maker.helper, program.helpers))
    return replace(program, grids=grids, helpers=helpers)


class _Tuples:
    """Puts tuples into blocks.

    Args:
        rng: the random choices.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._made = 0

    def helper(self, helper: tree.Helper) -> tree.Helper:
        """Return a function that keeps parameters and names of its own in tuples."""
        names = {param.name: param.type for param in helper.params}
        # The result is part of what follows, so it is renamed with it.
        *body, last = self.block((*helper.body, tree.Return(helper.result)), names)
        assert isinstance(last, tree.Return)
        assert last.value is not None
        return replace(helper, body=tuple(body), result=last.value)

    def block(
        self,
        block: tree.Block,
        names: Mapping[str, Type] | None = None,
        around: frozenset[str] = frozenset(),
        ends: bool = True,
    ) -> tree.Block:
        """Return a block some of whose names are elements of tuples from some statement on.

        Args:
            block: the block.
            names: the types of the tiles and scalars that are bound before it and end with it.
            around: the names that are bound before it and live on, as they are.
            ends: whether the names that the block binds end with it; others stay as they are.
        """
        own, done, left = dict(names or {}), list[tree.Stmt](), list(block)
        if own:
            left = self._packed(left, own, done)
        while left:
            statement = left.pop(0)
            if isinstance(statement, tree.Assign):
                bound = zip(statement.names, statement.values, strict=True)
                own |= {name: value.type for name, value in bound if name not in around}
            done.append(self._inside(statement, around.union(own)))
            if ends and left and self._rng.random() < 0.4:
                left = self._packed(left, own, done)
        return tuple(done)

    def _inside(self, statement: tree.Stmt, around: frozenset[str]) -> tree.Stmt:
        match statement:
            case tree.For():
                return replace(statement, body=self.block(statement.body, around=around))
            case tree.While():
                return replace(statement, body=self.block(statement.body, around=around, ends=not statement.endless))
            case tree.If():
                then, orelse = (
                    self.block(part, around=around, ends=False) for part in (statement.then, statement.orelse)
                )
                return replace(statement, then=then, orelse=orelse)
            case _:
                return statement

    def _packed(self, left: list[tree.Stmt], known: dict[str, Type], done: list[tree.Stmt]) -> list[tree.Stmt]:
        """Bind a tuple, and return what follows with its elements in place of names."""
        free = [name for name in known if part_of(name) is None and not _is_taken(name, left)]
        used = [name for name in free if any(_mentions(statement, name) for statement in left)]
        if not used:
            return left
        chosen = self._rng.sample(used, min(len(used), self._rng.randint(1, 3)))
        name = f"{self._rng.choice(KINDS)}{self._made}_{len(chosen)}"
        self._made += 1
        parts = {old: f"{name}[{place}]" for place, old in enumerate(chosen)}
        done.append(tree.Assign(tuple(parts.values()), tuple(tree.Name(old, known[old]) for old in chosen)))
        known |= {new: known[old] for old, new in parts.items()}
        return [_renamed(statement, parts) for statement in left]


def _mentions(statement: tree.Stmt, name: str) -> bool:
    return any(isinstance(node, tree.Name) and node.name == name for node in tree.walk(statement))


def _is_taken(name: str, left: list[tree.Stmt]) -> bool:
    """Return whether a name is bound together with others by values whose order matters."""
    return any(
        isinstance(node, tree.Assign) and name in node.names and len(node.names) > 1 and tree.has_effects(node)
        for statement in left
        for node in tree.walk(statement)
    )


def _renamed(node: _N, parts: Mapping[str, str]) -> _N:
    """Return a node with elements of a tuple in place of names."""
    if isinstance(node, tree.Augment) and node.name.name in parts:
        result = tree.Apply(node.fn, (node.name, node.value))
        return _renamed(tree.Assign((node.name.name,), (result,)), parts)  # pyright: ignore[reportReturnType]
    if isinstance(node, tree.Name) and node.name in parts:
        return replace(node, name=parts[node.name])
    node = tree.rebuild(node, tuple(_renamed(part, parts) for part in tree.children(node)))
    if isinstance(node, tree.Assign):
        node = replace(node, names=tuple(parts.get(name, name) for name in node.names))
    return node
