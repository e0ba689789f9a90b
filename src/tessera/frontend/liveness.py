"""Which names a loop or branch must hand on: a backward analysis over a function's statements."""

from __future__ import annotations

import ast
from collections.abc import Sequence

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
    """Return the names that an assignment's target binds."""
    return frozenset(
        child.id
        for child in ast.walk(target)
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)
    )


def assigned(statements: Sequence[ast.stmt]) -> Names:
    """Return every name that the statements bind."""
    return NONE.union(*(names_bound(statement) for statement in statements))


class Liveness:
    """Names read after each statement of a function before they are bound again.

    Args:
        function: the definition.
    """

    def __init__(self, function: ast.FunctionDef) -> None:
        self._after: dict[ast.stmt, Names] = {}
        self._block(function.body, NONE)

    def after(self, statement: ast.stmt) -> Names:
        """Return the names that live on after `statement`."""
        return self._after.get(statement, NONE)

    def exposed(self, statements: Sequence[ast.stmt]) -> Names:
        """Return the names that the statements read before binding them."""
        saved = dict(self._after)
        found = self._block(statements, NONE)
        self._after = saved
        return found

    def _block(self, statements: Sequence[ast.stmt], after: Names) -> Names:
        for statement in reversed(statements):
            self._after[statement] = after
            after = self._statement(statement, after)
        return after

    def _statement(self, node: ast.stmt, after: Names) -> Names:
        match node:
            case ast.Assign(targets=targets, value=value):
                bound = NONE.union(*map(names_bound, targets))
                return (after - bound) | names_read(value, *targets)
            case ast.AugAssign(target=target, value=value):
                return after | names_read(value, target) | names_bound(target)
            case ast.For(target=target, iter=iterable, body=body):
                carried = after | self.exposed(body)
                inner = self._block(body, carried) - names_bound(target)
                return after | inner | names_read(iterable)
            case ast.While(test=test, body=body):
                carried = after | names_read(test) | self.exposed(body)
                return after | self._block(body, carried) | names_read(test)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._block(body, after) | self._block(orelse, after) | names_read(test)
            case _:
                return (after - names_bound(node)) | names_read(node)
