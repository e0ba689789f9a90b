"""Evaluates the few expressions an annotation may hold, without running any code of the user's module.

Needed for annotations that are strings (`from __future__ import annotations`).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

from tessera.errors import LanguageError
from tessera.frontend.annotations import OneType, no_union


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the values of a function's free variables, without those not assigned yet."""
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue
    return values


def lookup_in(function: FunctionType) -> Callable[[str], Any]:
    """Return how names resolve inside `function`: closure, module, builtins.

    The returned function raises KeyError for an unknown name.
    """
    closure, module = closure_of(function), function.__globals__
    found: Any = module.get("__builtins__", {})
    table = cast(dict[str, Any], found if isinstance(found, dict) else vars(found))

    def lookup(name: str) -> Any:
        for scope in (closure, module, table):
            if name in scope:
                return scope[name]
        raise KeyError(name)

    return lookup


def evaluate_annotation(text: str, lookup: Callable[[str], Any]) -> Any:
    """Return the value of an annotation's text.

    Raises:
        LanguageError: `bad-annotation` or `unknown-name`.
    """
    try:
        tree = ast.parse(text, mode="eval")
        return _evaluate(tree.body, lookup)
    except (SyntaxError, RecursionError, MemoryError):
        raise _bad(text) from None


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.MatMult: lambda a, b: a @ b,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Pow: lambda a, b: a ** _few(b),
    ast.LShift: lambda a, b: a << _few(b),
}
"""What policies and dimensions are made with."""


def _few(count: int) -> int:
    """Return an exponent that sizes can have."""
    if not 0 <= count < 64:
        raise ValueError(count)
    return count


def _bad(text: str) -> LanguageError:
    return LanguageError(
        f"the annotation {text!r} cannot be understood",
        code="bad-annotation",
        help='write ts.Tensor["M", "K", ts.f32], a dtype, int, float, bool or ts.constexpr',
    )


def _evaluate(node: ast.expr, lookup: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            try:
                return lookup(name)
            except KeyError:
                raise LanguageError(
                    f"{name!r} in an annotation is not defined",
                    code="unknown-name",
                    help="names of a function are not visible under `from __future__ import annotations`; "
                    "use module-level ones, or leave that import out",
                ) from None
        case ast.Tuple(elts=parts):
            return tuple(_evaluate(part, lookup) for part in parts)
        case ast.Attribute(value=base, attr=attr):
            value = _evaluate(base, lookup)
            if not hasattr(value, attr):
                raise LanguageError(
                    f"{ast.unparse(node)!r} does not exist",
                    code="unknown-name",
                    help='write ts.Tensor["M", "K", ts.f32], a dtype, int, float, bool or ts.constexpr',
                )
            return getattr(value, attr)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            sides = [_evaluate(side, lookup) for side in (left, right)]
            if not any(side is None for side in sides) or not any(isinstance(side, OneType) for side in sides):
                raise no_union(ast.unparse(node))
            return sides[0] | sides[1]
        case ast.Subscript() | ast.Call() | ast.BinOp():
            return _compound(node, lookup)
        case _:
            raise _bad(ast.unparse(node))


def _compound(node: ast.Subscript | ast.Call | ast.BinOp, lookup: Callable[[str], Any]) -> Any:
    try:
        match node:
            case ast.Subscript(value=base, slice=index):
                return _evaluate(base, lookup)[_evaluate(index, lookup)]
            case ast.Call(func=callee, args=args, keywords=[]):
                return _evaluate(callee, lookup)(*(_evaluate(arg, lookup) for arg in args))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](_evaluate(left, lookup), _evaluate(right, lookup))
            case _:
                raise _bad(ast.unparse(node))
    except (TypeError, ValueError, LookupError, AttributeError, ZeroDivisionError):
        raise _bad(ast.unparse(node)) from None
