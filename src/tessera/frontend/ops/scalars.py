"""Compiles `ts.cdiv`, and Python's own functions on values known only when the kernel runs."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

from tessera.errors import LanguageError, TypeMismatchError
from tessera.frontend.builder import Builder
from tessera.frontend.constants import static_call
from tessera.frontend.convert import apply, operand
from tessera.frontend.expressions import is_runtime
from tessera.frontend.registry import builtin, compiles
from tessera.frontend.values import Value, show
from tessera.numerics.integers import cdiv


@compiles(cdiv)
def _cdiv(b: Builder, a: Any, b_: Any) -> Any:
    if not is_runtime(a) and not is_runtime(b_):
        return static_call(b, "ts.cdiv", cdiv, a, b_)
    for value in (a, b_):
        ready = operand(b, value, "cdiv")
        if isinstance(ready, float) or (isinstance(ready, Value) and ready.dtype.is_float):
            raise TypeMismatchError(
                f"cdiv: {show(ready)} is not an integer",
                code="dtype-mismatch",
                help="divide floats and round up: ts.tile.ceil(a / b)",
            )
    if not is_runtime(b_) and isinstance(b_, int) and b_ < 1:
        cdiv(1, b_)  # says what is wrong
    above = apply(b, "add", a, apply(b, "sub", b_, 1) if is_runtime(b_) else b_ - 1, what="cdiv")
    return apply(b, "floordiv", above, b_, what="cdiv")


@builtin(builtins.abs, 1)
def _abs(b: Builder, x: Any) -> Any:
    return apply(b, "abs", x)


@builtin(builtins.divmod, 2)
def _divmod(b: Builder, x: Any, y: Any) -> tuple[Any, Any]:
    return apply(b, "floordiv", x, y, what="divmod"), apply(b, "mod", x, y, what="divmod")


def _folded(fn: str, name: str) -> Callable[..., Any]:
    def fold(b: Builder, *values: Any) -> Any:
        def two(left: Any, right: Any) -> Any:
            return apply(b, fn, left, right, what=name)

        return reduce(two, _parts(values))

    return fold


def _parts(values: Sequence[Any]) -> Sequence[Any]:
    """Return the operands of `min(a, b, …)`, or of `min((a, b, …))`."""
    return cast(Sequence[Any], values[0]) if len(values) == 1 else values


builtin(builtins.min, None)(_folded("minimum", "min"))
builtin(builtins.max, None)(_folded("maximum", "max"))


@builtin(builtins.sum, 1)
def _sum(b: Builder, values: Any) -> Any:
    """Add what a tuple holds, from the left."""
    if not isinstance(values, tuple):
        raise LanguageError(
            f"sum takes a tuple, got {show(values)}",
            code="needs-constant",
            help="use ts.tile.sum(x) to add the elements of a tile",
        )
    return reduce(lambda total, value: apply(b, "add", total, value, what="sum"), cast("tuple[Any, ...]", values))
