"""Entry points of the compiler of Python's syntax; one function per node type registers here."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import singledispatch
from itertools import zip_longest
from typing import Any

from tessera.errors import LanguageError
from tessera.frontend.builder import Builder
from tessera.frontend.flow import Jump

INSTEAD: dict[type[ast.AST], tuple[str, str]] = {
    ast.ListComp: ("a list comprehension", "use a tile, or ts.tile.static_range for compile-time repetition"),
    ast.SetComp: ("a set comprehension", "use a tile"),
    ast.DictComp: ("a dictionary comprehension", "compute it outside and pass it as a ts.constexpr"),
    ast.GeneratorExp: ("a generator expression", "use a tile and a reduction such as ts.tile.sum"),
    ast.Lambda: ("a lambda", "define a helper with @ts.function"),
    ast.Dict: ("a dictionary", "use separate names, or a module-level constant"),
    ast.Set: ("a set", "use a tuple"),
    ast.Await: ("await", "copies complete at ts.tile.wait_group"),
    ast.Yield: ("yield", "store the result to a tensor argument"),
    ast.YieldFrom: ("yield from", "store the result to a tensor argument"),
    ast.NamedExpr: ("the walrus operator", "assign on a line of its own"),
    ast.Starred: ("unpacking with *", "name each element"),
    ast.FunctionDef: ("a nested function", "define a helper with @ts.function outside the kernel"),
    ast.AsyncFunctionDef: ("a nested function", "define a helper with @ts.function outside the kernel"),
    ast.ClassDef: ("a class", "use tiles and tuples"),
    ast.Delete: ("del", "names end with the block that binds them"),
    ast.With: ("with", 'only roles are regions: with ts.tile.role("producer"):'),
    ast.AsyncWith: ("async with", "regions need no context manager"),
    ast.AsyncFor: ("async for", "use ts.tile.range"),
    ast.Try: ("try", "kernels raise nothing; test the condition with `if`"),
    ast.TryStar: ("try", "kernels raise nothing; test the condition with `if`"),
    ast.Raise: ("raise", 'use assert condition, "message"'),
    ast.Import: ("import", "import at the top of the module"),
    ast.ImportFrom: ("import", "import at the top of the module"),
    ast.Global: ("global", "kernels cannot assign module names; store to a tensor argument"),
    ast.Nonlocal: ("nonlocal", "kernels cannot assign outer names; store to a tensor argument"),
    ast.Match: ("match", "use if and elif"),
}


def unsupported(node: ast.AST) -> LanguageError:
    """Return the error for a node the language does not have."""
    what, instead = INSTEAD.get(type(node), (type(node).__name__, "see the language reference"))
    return LanguageError(f"{what} cannot be used in a kernel", code="unsupported-syntax", help=instead)


@singledispatch
def _expression(node: Any, b: Builder) -> Any:
    raise unsupported(node)


@singledispatch
def _statement(node: Any, b: Builder) -> None:
    raise unsupported(node)


expression = _expression.register
statement = _statement.register


def evaluate(b: Builder, node: ast.expr) -> Any:
    """Return the value of an expression; its location is given to what it emits and raises."""
    with b.at(node):
        b.spend()
        return _expression(node, b)


def execute(b: Builder, statements: Sequence[ast.stmt]) -> None:
    """Compile statements in order.

    Raises:
        LanguageError: `unreachable` for a statement after `return`, `break` or `continue`.
    """
    for node, follower in zip_longest(statements, statements[1:]):
        with b.at(node):
            b.spend()
            _statement(node, b)
        if isinstance(node, Jump) and follower is not None:
            with b.at(follower):
                raise LanguageError(
                    f"a statement after {node.kind}",
                    code="unreachable",
                    help=f"remove it, or put {node.kind} into an `if`",
                )
