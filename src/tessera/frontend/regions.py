"""Regions, `with ts.tile.role(...):`, as the statements that begin and end them around those inside.

    with ts.tile.role("producer"):          Enter ts.tile.role("producer")
        copy()                              copy()
    compute()                               Leave
                                            compute()

So everything that looks at statements sees a region's as those around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator


class Enter(ast.Expr):
    """Begins a region, whose kind is the value; `jump` leaves it from inside, which nothing may."""

    jump: ast.stmt | None


class Leave(ast.Pass):
    """Ends a region."""


def flatten(function: ast.FunctionDef) -> None:
    """Replace the regions of a function."""
    if _has_region(function.body):
        function.body = list(_flat(function.body))


def _has_region(statements: Iterable[ast.stmt]) -> bool:
    for node in statements:
        if isinstance(node, ast.With):
            return True
        if isinstance(node, ast.If | ast.For | ast.While) and _has_region((*node.body, *node.orelse)):
            return True
    return False


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in statements:
        if isinstance(node, ast.With) and not any(item.optional_vars for item in node.items):
            yield from _region(node)
            continue
        for field in ("body", "orelse"):
            if isinstance(node, ast.If | ast.For | ast.While):
                setattr(node, field, list(_flat(getattr(node, field))))
        yield node


def _region(node: ast.With) -> Iterator[ast.stmt]:
    jump = next(_leaving(node.body), None)
    for item in node.items:
        enter = ast.copy_location(Enter(item.context_expr), item.context_expr)
        enter.jump = jump
        yield enter
    yield from _flat(node.body)
    for item in node.items:
        yield ast.copy_location(Leave(), item.context_expr)


def _leaving(statements: Iterable[ast.stmt], in_loop: bool = False) -> Iterator[ast.stmt]:
    """Yield the jumps that leave a region; its own loops keep their `break` and `continue`."""
    for node in statements:
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not in_loop):
            yield node
        elif isinstance(node, ast.If | ast.With):
            yield from _leaving((*node.body, *getattr(node, "orelse", ())), in_loop)
        elif isinstance(node, ast.For | ast.While):
            yield from _leaving(node.body, True)
            yield from _leaving(node.orelse, in_loop)
