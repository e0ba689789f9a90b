"""Puts prints, and asserts that hold, into programs that are drawn: neither may change what a program computes.

What is drawn from a seed otherwise stays the same, so that a program with them can be compared with the one without.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX
from tessera.tools.fuzz.types import Type, is_int

MOST_PRINTED = 64
"""Elements of a tile that is printed: each is a line."""


def instrumented(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program with prints and asserts at random places of its grids.

    Args:
        program: the program; those over element numbers, all of which are predicated, stay as they are.
        rng: what the places are drawn from.
    """
    known = [p for p in program.params if isinstance(p, tree.ScalarParam) and p.python and p.dtype == "i64"]
    holds = [tree.Apply("eq", (tree.Name(param.name, INDEX), tree.Number(int(param.value)))) for param in known]
    grids: list[tree.Grid] = []
    for grid in program.grids:
        if isinstance(grid, tree.Linear):
            return program
        inside = [tree.Apply("ge", (tree.Name(var, INDEX), tree.Number(0))) for var in grid.vars]
        grids.append(replace(grid, body=_Places(rng, [*holds, *inside]).block(grid.body, {})))
    return replace(program, grids=tuple(grids), asserts=True)


@dataclass(slots=True)
class _Places:
    """Where what is put in.

    Args:
        rng: the random choices.
        holds: conditions that hold, and which the compiler need not know to.
    """

    rng: random.Random
    holds: list[tree.Apply]

    def block(self, block: tree.Block, names: dict[str, Type]) -> tree.Block:
        """Return a block with statements put in.

        Args:
            block: the block, under no predicate.
            names: the types of the tiles and scalars that are bound before it.
        """
        result: list[tree.Stmt] = []
        names = dict(names)
        for stmt in block:
            result.append(self._inside(stmt, names))
            if isinstance(stmt, tree.Assign):
                names |= {name: value.type for name, value in zip(stmt.names, stmt.values, strict=True)}
            if names and not isinstance(stmt, tree.Jump) and self.rng.random() < 0.35:
                result.append(self._print(names) if self.rng.random() < 0.5 else self._check(names))
        return tuple(result)

    def _inside(self, stmt: tree.Stmt, names: dict[str, Type]) -> tree.Stmt:
        if isinstance(stmt, tree.For):
            return replace(stmt, body=self.block(stmt.body, names))
        if isinstance(stmt, tree.If) and not stmt.predicates:
            return replace(stmt, then=self.block(stmt.then, names), orelse=self.block(stmt.orelse, names))
        return stmt

    def _print(self, names: dict[str, Type]) -> tree.Stmt:
        small = [tree.Name(name, type_) for name, type_ in names.items() if type_.size <= MOST_PRINTED]
        chosen = self.rng.sample(small, min(len(small), self.rng.randint(0, 2)))
        # The values of one print have one shape.
        return tree.Print("here", tuple(name for name in chosen if name.type.shape == chosen[0].type.shape))

    def _check(self, names: dict[str, Type]) -> tree.Stmt:
        holds = self.rng.choice(self.holds)
        numbers = [tree.Name(name, type_) for name, type_ in names.items() if is_int(type_.dtype)]
        if not numbers or self.rng.random() < 0.3:
            return tree.Check(holds, "always")
        condition = tree.Apply(self.rng.choice(("lt", "eq", "ge")), (self.rng.choice(numbers), tree.Number(3)))
        return tree.Check(tree.Apply("or", (condition, holds)), "one or the other")
