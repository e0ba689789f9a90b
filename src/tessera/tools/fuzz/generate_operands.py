"""Where operands of products are loaded: before their loop, in a branch of it, before the tensor's first element.

Products are drawn with operands that each iteration loads. Here some of the loads move, so that what schedules find by
looking at a loop's own loads stands elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from tessera.tools.fuzz import tree
from tessera.tools.fuzz.generate_scope import INDEX

_N = TypeVar("_N", bound=tree.Node)


def moved(program: tree.Program, rng: random.Random) -> tree.Program:
    """Return a program in which some operands of products are loaded elsewhere.

    Args:
        program: the program.
        rng: what decides which, and where.
    """
    stored = {node.tensor for node in tree.walk(program) if isinstance(node, tree.Store | tree.Atomic)}
    loops = {node.var for node in tree.walk(program) if isinstance(node, tree.For) and not node.static}
    offsets = loops | {name for grid in program.grids for name in grid.vars}
    maker = _Moves(rng, stored, offsets)
    grids: list[tree.Grid] = []
    for grid in program.grids:
        known = {*grid.vars, *(param.name for param in program.params), *program.dims}
        grids.append(replace(grid, body=maker.block(grid.body, known)))
    return replace(program, grids=tuple(grids))


@dataclass
class _Moves:
    """Moves the operands of a program.

    Args:
        rng: the random choices.
        stored: the tensors that are stored to, of which each program has its own parts.
        offsets: names of places that are known at run time only: others may not be negative.
        count: how many were moved.
    """

    rng: random.Random
    stored: set[str]
    offsets: set[str]
    count: int = 0

    def block(self, block: tree.Block, known: set[str]) -> tree.Block:
        """Return a block with operands moved, given the names that are bound before it."""
        result: list[tree.Stmt] = []
        for statement in block:
            if isinstance(statement, tree.For) and not statement.static:
                result += self._loop(statement, known)
            else:
                result.append(statement)
            known = known | _bound(result[-1])
        return tuple(result)

    def _loop(self, loop: tree.For, known: set[str]) -> list[tree.Stmt]:
        before: list[tree.Stmt] = []
        body: list[tree.Stmt] = []
        for statement in self.block(loop.body, known | {loop.var}):
            made = [statement]
            products = [node for node in tree.walk(statement) if isinstance(node, tree.Mma)]
            if isinstance(statement, tree.Assign | tree.Augment) and products and self.rng.random() < 0.85:
                product = self.rng.choice(products)
                move: Callable[..., list[tree.Stmt]] = self.rng.choice(
                    (self._early, self._early, self._in_branch, self._chosen, self._shifted)
                )
                made = move(statement, product, loop, known, before)
            body += made
        return [*before, replace(loop, body=tuple(body))]

    def _named(self, value: tree.Expr) -> tree.Name:
        self.count += 1
        return tree.Name(f"moved{self.count}", value.type)

    def _operand(self, product: tree.Mma) -> tree.Expr | None:
        """Return one of the operands, None where both have names or their places order what happens."""
        sides = (product.a, product.b) if self.rng.random() < 0.35 else (product.b, product.a)
        return next((side for side in sides if not isinstance(side, tree.Name) and not _is_ordered(side)), None)

    def _early(
        self, statement: tree.Stmt, product: tree.Mma, loop: tree.For, known: set[str], before: list[tree.Stmt]
    ) -> list[tree.Stmt]:
        """Load an operand before the loop, where its first iteration would."""
        operand = self._operand(product)
        first = operand and _at_start(operand, loop)
        if operand is None or first is None or not _names(first) <= known:
            return [statement]
        name = self._named(operand)
        before.append(tree.Assign((name.name,), (first,)))
        return [_substituted(statement, operand, name)]

    def _in_branch(
        self, statement: tree.Stmt, product: tree.Mma, loop: tree.For, known: set[str], before: list[tree.Stmt]
    ) -> list[tree.Stmt]:
        """Multiply in some iterations only, in which what is multiplied is loaded."""
        if not _carried(statement, known):
            return [statement]
        return [tree.If(self._sometimes(loop), (statement,))]

    def _chosen(
        self, statement: tree.Stmt, product: tree.Mma, loop: tree.For, known: set[str], before: list[tree.Stmt]
    ) -> list[tree.Stmt]:
        """Load an operand in a branch, whose other side has another one."""
        operand = self._operand(product)
        if operand is None:
            return [statement]
        other: tree.Expr = tree.Full(operand.type.shape, tree.Number(1), operand.type.dtype)
        if self.rng.random() < 0.5:
            other = _at_start(operand, loop)
        name = self._named(operand)
        sides = [tree.Assign((name.name,), (value,)) for value in (operand, other)]
        return [tree.If(self._sometimes(loop), (sides[0],), (sides[1],)), _substituted(statement, operand, name)]

    def _shifted(
        self, statement: tree.Stmt, product: tree.Mma, loop: tree.For, known: set[str], before: list[tree.Stmt]
    ) -> list[tree.Stmt]:
        """Load an operand from places before those it had: before its tensor, there are zeros."""
        operand = self._operand(product)
        loads = [] if operand is None else [node for node in tree.walk(operand) if isinstance(node, tree.Load)]
        axes = [axis for load in loads if load.tensor not in self.stored for axis in load.axes]
        plain = [axis for axis in axes if isinstance(axis, tree.Span) and axis.step == 1]
        spans = [(axis, axis.start) for axis in plain if axis.start and _names(axis.start) & self.offsets]
        if operand is None or not spans:
            return [statement]
        span, start = self.rng.choice(spans)
        less = self.rng.choice((1, 8, span.size, span.size, 2 * span.size))
        start = tree.Apply("sub", (start, tree.Number(less)))
        return [_substituted(statement, operand, _substituted(operand, span, replace(span, start=start)))]

    def _sometimes(self, loop: tree.For) -> tree.Expr:
        step = loop.step.value if isinstance(loop.step, tree.Number) else 1
        first = loop.lower.value if isinstance(loop.lower, tree.Number) else 0
        near = tree.Number(int(first) + int(step) * self.rng.randint(0, 2))
        return tree.Apply(self.rng.choice(("lt", "ge", "eq", "ne")), (tree.Name(loop.var, INDEX), near))


def _is_ordered(operand: tree.Expr) -> bool:
    return tree.has_effects(operand) or any(hasattr(node, "buffer") for node in tree.walk(operand))


def _bound(statement: tree.Stmt) -> set[str]:
    return set(statement.names) if isinstance(statement, tree.Assign) else set()


def _carried(statement: tree.Stmt, known: set[str]) -> bool:
    """Return whether what a statement binds is bound before its loop."""
    return isinstance(statement, tree.Augment) or (isinstance(statement, tree.Assign) and _bound(statement) <= known)


def _at_start(operand: tree.Expr, loop: tree.For) -> tree.Expr:
    """Return an operand as a loop's first iteration computes it."""
    first = tree.Cast(loop.lower, INDEX.dtype)
    return _substituted(operand, tree.Name(loop.var, INDEX), first)


def _names(node: tree.Node) -> set[str]:
    return {part.name for part in tree.walk(node) if isinstance(part, tree.Name)}


def _substituted(node: _N, old: tree.Node, new: tree.Node) -> _N:
    """Return a node in which every part that equals `old` is `new`."""
    if node == old:
        return cast(_N, new)
    return tree.rebuild(node, tuple(_substituted(part, old, new) for part in tree.children(node)))
