"""Which names a loop or branch must hand on: a backward analysis over a function's statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tessera.data import dataclass
from tessera.frontend.flow import RESULT, stop_of

Names = frozenset[str]
NONE: Names = frozenset()


def names_read(*nodes: ast.AST | None) -> Names:
    """Return the names that expressions read."""
    return frozenset(
        child.id
        for node in nodes
        if node is not None
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)
    )


def names_bound(target: ast.AST) -> Names:
    """Return the names that an assignment's target, or a statement, binds."""
    if isinstance(target, ast.Name):
        return frozenset({target.id}) if isinstance(target.ctx, ast.Store) else NONE
    return frozenset(
        child.id for child in ast.walk(target) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
    )


def _ended_by(loop: ast.stmt) -> Names:
    """Return the flag that a loop clears before its body and tests after it."""
    flag = stop_of(loop)
    return NONE if flag is None else frozenset({flag})


@dataclass(frozen=True, slots=True)
class Effect:
    """What statements do to the names that live: before them live `reads`, and what lives after them less `binds`.

    Args:
        reads: names they read before binding them.
        binds: names they bind on every path.
    """

    reads: Names = NONE
    binds: Names = NONE

    def before(self, after: Names) -> Names:
        """Return the names that live before the statements, given those that live after them."""
        return self.reads | (after - self.binds)


class Liveness:
    """Names read after each statement of a function before they are bound again.

    Args:
        function: the definition.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self._after: dict[ast.stmt, Names] = {}
        self._effects: dict[ast.stmt, Effect] = {}
        self._assigned: dict[ast.stmt, Names] = {}
        self._effect_of(function.body)
        self._block(function.body, self.assigned(function.body) & {RESULT})

    def after(self, statement: ast.stmt) -> Names:
        """Return the names that live on after `statement`."""
        return self._after.get(statement, NONE)

    def around(self, loop: ast.For | ast.While) -> Names:
        """Return the names that live at the end of a loop's body, its test aside."""
        return self.after(loop) | self.exposed(loop.body) | _ended_by(loop)

    def exposed(self, statements: Sequence[ast.stmt]) -> Names:
        """Return the names that the statements read before binding them."""
        return self._effect_of(statements).reads

    def assigned(self, statements: Sequence[ast.stmt]) -> Names:
        """Return every name that the statements bind, those of loops and branches in them too."""
        return NONE.union(*[self._assigned_by(statement) for statement in statements])

    def _assigned_by(self, statement: ast.stmt) -> Names:
        if statement not in self._assigned:
            parts = list(ast.iter_child_nodes(statement))
            inner = self.assigned([part for part in parts if isinstance(part, ast.stmt)])
            self._assigned[statement] = inner.union(*[names_bound(p) for p in parts if not isinstance(p, ast.stmt)])
        return self._assigned[statement]

    def _effect_of(self, statements: Sequence[ast.stmt]) -> Effect:
        reads, binds = NONE, NONE
        for statement in reversed(statements):
            if statement not in self._effects:
                self._effects[statement] = self._effect(statement)
            effect = self._effects[statement]
            reads, binds = effect.before(reads), effect.binds | binds
        return Effect(reads, binds)

    def _effect(self, node: ast.stmt) -> Effect:
        match node:
            case ast.Assign(targets=targets, value=value):
                return Effect(names_read(value, *targets), NONE.union(*map(names_bound, targets)))
            case ast.AugAssign(target=target, value=value):
                return Effect(names_read(value, target) | names_bound(target))
            case ast.For(target=target, iter=iterable, body=body):
                reads = self.exposed(body) - names_bound(target) - _ended_by(node)
                return Effect(reads | names_read(iterable), _ended_by(node))
            case ast.While(test=test, body=body):
                return Effect(names_read(test) | (self.exposed(body) - _ended_by(node)), _ended_by(node))
            case ast.If(test=test, body=body, orelse=orelse):
                one, other = self._effect_of(body), self._effect_of(orelse)
                return Effect(one.reads | other.reads | names_read(test), one.binds & other.binds)
            case _:
                return Effect(names_read(node), names_bound(node))

    def _block(self, statements: Sequence[ast.stmt], after: Names) -> None:
        """Record what lives after each statement of a block, and of the blocks in it."""
        for statement in reversed(statements):
            self._after[statement] = after
            match statement:
                case ast.For(body=body):
                    self._block(body, self.around(statement))
                case ast.While(test=test, body=body):
                    self._block(body, names_read(test) | self.around(statement))
                case ast.If(body=body, orelse=orelse):
                    self._block(body, after)
                    self._block(orelse, after)
                case _:
                    pass
            after = self._effects[statement].before(after)
